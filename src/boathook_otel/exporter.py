"""Exports spans to a collector with OpenTelemetry's SDK: OTLP over HTTP in protobuf, in a background thread.

The SDK's own exporter would add a second HTTP client. This one posts through a given function instead, so that it uses
boathook's HTTP client with its proxy, certificates and timeouts.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBased, Sampler, TraceIdRatioBased
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from boathook.domain.errors import BoathookError
from boathook.observability import meters
from boathook.observability.log import get_logger
from boathook_otel.settings import TracingTable
from boathook_otel.spans import Context, Kind, Span

Post = Callable[[bytes, float], None]
"""Posts one batch with a timeout in seconds. Raises BoathookError."""

_BATCH: Final = 512
_EXPORT_INTERVAL_MS: Final = 1_000
_EXPORT_TIMEOUT_S: Final = 5.0
_SHUTDOWN_TIMEOUT_S: Final = 2.0
"""How long a stopping process continues to export."""
_SCOPE: Final = InstrumentationScope("boathook")
_KINDS: Final = {kind: SpanKind[kind.value] for kind in Kind}
_LOG = get_logger("observability")


class OtlpExporter:
    """Exports spans to a collector; one for a process.

    Args:
        process: the name of this process, such as ``worker-0``.
        post: sends a batch to the collector.
    """

    def __init__(self, settings: TracingTable, *, process: str, post: Post) -> None:
        # The SDK would log every dropped span; dropped spans are counted instead.
        logging.getLogger("opentelemetry.sdk").setLevel(logging.ERROR)
        self._resource = Resource.create({"service.name": settings.service, "service.instance.id": process})
        self._exporter = _Exporter(post)
        self._processor = BatchSpanProcessor(
            self._exporter,
            max_queue_size=settings.queue,
            schedule_delay_millis=_EXPORT_INTERVAL_MS,
            max_export_batch_size=min(_BATCH, settings.queue),
        )
        provider = TracerProvider(resource=self._resource, sampler=_sampler(settings), shutdown_on_exit=False)
        provider.add_span_processor(self._processor)
        if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
            # Spans that users create in handlers are exported too, unless they have set another provider.
            trace.set_tracer_provider(provider)

    def put(self, span: Span) -> None:
        """Queue a span without waiting; it is dropped if the queue is full."""
        self._processor.on_end(
            ReadableSpan(
                name=span.name,
                context=_to_otel(span.context, is_remote=False),
                parent=None if span.parent is None else _to_otel(span.parent),
                resource=self._resource,
                attributes=dict(span.attributes),
                links=() if span.link is None else (Link(_to_otel(span.link)),),
                kind=_KINDS[span.kind],
                status=Status(StatusCode.UNSET) if span.error is None else Status(StatusCode.ERROR, span.error),
                start_time=span.began_ns,
                end_time=max(span.began_ns, span.ended_ns),
                instrumentation_scope=_SCOPE,
            )
        )

    def attach(self, context: Context) -> Callable[[], None]:
        """Make a span the current one of this task; the returned function undoes that."""
        token = contexts.attach(trace.set_span_in_context(NonRecordingSpan(_to_otel(context))))
        return lambda: contexts.detach(token)

    def present(self) -> Context | None:
        """Return the current span of this task, even if another library created it."""
        span_context = trace.get_current_span().get_span_context()
        return (
            Context(span_context.trace_id, span_context.span_id, span_context.trace_flags.sampled)
            if span_context.is_valid
            else None
        )

    def close(self) -> None:
        """Export the queued spans, for at most two seconds."""
        self._exporter.set_deadline(_SHUTDOWN_TIMEOUT_S)
        closing = threading.Thread(target=self._processor.shutdown, daemon=True, name="boathook-traces-close")
        closing.start()
        closing.join(_SHUTDOWN_TIMEOUT_S)


def _sampler(settings: TracingTable) -> Sampler:
    """Return the sampler for spans that do not belong to an event, such as those of API requests."""
    share = TraceIdRatioBased(settings.sample)
    if settings.incoming == "trust":
        return ParentBased(share)
    return ParentBased(share, remote_parent_sampled=share, remote_parent_not_sampled=share)


class _Exporter(SpanExporter):
    """Posts batches in the SDK's thread."""

    def __init__(self, post: Post) -> None:
        self._post = post
        self._until = float("inf")
        self._is_unreachable = False

    def set_deadline(self, within_s: float) -> None:
        """Limit the total time of all further batches."""
        self._until = time.monotonic() + within_s

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Post one batch; a batch that fails is dropped and counted."""
        left_s = min(_EXPORT_TIMEOUT_S, self._until - time.monotonic())
        try:
            if left_s <= 0:
                raise BoathookError("there was no time left")
            self._post(encode_spans(spans).SerializeToString(), left_s)
        except BoathookError as error:
            self._note(str(error))
            meters.count("boathook_trace_spans_total", len(spans), outcome="dropped")
            return SpanExportResult.FAILURE
        self._note(None)
        meters.count("boathook_trace_spans_total", len(spans), outcome="exported")
        return SpanExportResult.SUCCESS

    def _note(self, error: str | None) -> None:
        """Log once that the collector is unavailable, and once that it is available again."""
        if error is not None and not self._is_unreachable:
            _LOG.warning("traces_dropped", error=error, note="until the collector is back; nothing else is affected")
        elif error is None and self._is_unreachable:
            _LOG.info("traces_taken_again")
        self._is_unreachable = error is not None


def _to_otel(context: Context, *, is_remote: bool = True) -> Any:
    flags = TraceFlags(TraceFlags.SAMPLED if context.is_sampled else TraceFlags.DEFAULT)
    return SpanContext(context.trace_id, context.span_id, is_remote=is_remote, trace_flags=flags)
