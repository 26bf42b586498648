"""Starts tracing in one process, and connects its exporter to the HTTP client."""

import contextlib
from collections.abc import Iterator
from typing import Final

from boathook.config import Settings
from boathook.domain.errors import FetchFailed
from boathook.observability import tracer
from boathook_otel.settings import TracingTable, find_table, resolve_headers
from boathook_otel.spans import Spans, TracingOptions

_PATH: Final = "/v1/traces"
_MAX_ANSWER: Final = 1_048_576


@contextlib.contextmanager
def traced(settings: Settings, process: str) -> Iterator[None]:
    """Trace for the duration of the block, if configured. Raises ConfigError as `settings.check` does."""
    table = find_table(settings)
    if table is None:
        yield
        return
    # OpenTelemetry is optional, and all of these are slow to import.
    from boathook_otel.exporter import OtlpExporter
    from boathook_otel.tracer import OtelTracer

    options = TracingOptions(
        sample=table.sample,
        continues=table.incoming != "ignore",
        trusts=table.incoming == "trust",
        propagates=table.propagate,
    )
    collector = OtlpExporter(table, process=process, post=_Poster(settings, table))
    tracer.install(OtelTracer(Spans(options, collector)))
    try:
        yield
    finally:
        tracer.install(None)
        collector.close()


class _Poster:
    """Posts batches of spans to the operator's collector, through the configured proxy."""

    def __init__(self, settings: Settings, table: TracingTable) -> None:
        from boathook.http_client.client import Client, unguarded_settings

        self._client = Client(unguarded_settings(settings))
        self._url = table.endpoint.rstrip("/") + _PATH
        self._headers = {**resolve_headers(settings, table), "content-type": "application/x-protobuf"}

    def __call__(self, body: bytes, within_s: float) -> None:
        """Post one batch. Raises FetchFailed."""
        answer = self._client.submit(
            "POST", self._url, headers=self._headers, body=body, timeout_s=within_s, max_bytes=_MAX_ANSWER
        ).result()
        if not answer.is_ok:
            raise FetchFailed(f"the collector answered with status {answer.status}", status=answer.status)
