"""OpenTelemetry: traces events from the request of each to every attempt at its deliveries.

This module declares the package and imports none of it; docs/how-to/tracing.md shows how to use it.

settings     [tracing]
spans        spans, their ids, and the header that carries them
process      traces in one process; tracer: what follows messages and attempts there
exporter     sends spans to a collector
gateway      traces requests; attempts: of handlers and of endpoints
link         the trace of an event, for the console
metrics      the metrics of all of these
"""

from typing import Final

from boathook.config.packages import Package

package: Final = Package(
    name="otel",
    requires=("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.common"),
    tables="boathook_otel.settings:TABLES",
    metrics="boathook_otel.metrics:METRICS",
    check="boathook_otel.settings:check",
    process="boathook_otel.process:traced",
    gateway="boathook_otel.gateway:open_part",
    trace="boathook_otel.link:find_trace",
    in_tests={"tracing.endpoint": ""},
)
