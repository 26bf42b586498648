"""Brings spans to a collector by OpenTelemetry's SDK: OTLP over HTTP in protobuf, in a thread, never in the way.

The SDK's own exporter brings a second HTTP client into the house. This one is given a way to post, so that it goes
through the room that speaks HTTP, with its proxy, its certificates and its time limits.
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

from boathook.config.tables import TracingSettings
from boathook.domain.errors import BoathookError
from boathook.observability import meters
from boathook.observability.log import get_logger
from boathook.observability.tracing import Context, Kind, Span

Post = Callable[[bytes, float], None]
"""Posts one batch within so many seconds. Raises BoathookError."""

_BATCH: Final = 512
_EXPORT_INTERVAL_MS: Final = 1_000
_EXPORT_TIMEOUT_S: Final = 5.0
_SHUTDOWN_TIMEOUT_S: Final = 2.0
"""How long a process that stops goes on telling."""
_SCOPE: Final = InstrumentationScope("boathook")
_KINDS: Final = {kind: SpanKind[kind.value] for kind in Kind}
_LOG = get_logger("observability")


class OtlpExporter:
    """The way of spans to a collector; one for a process.

    Args:
        process: what this process is called, such as ``worker-0``.
        post: how a batch gets there.
    """

    def __init__(self, settings: TracingSettings, *, process: str, post: Post) -> None:
        # It would say of each span that is dropped that it was; they are counted.
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
            # Spans of the user's own, made in handlers, go the same way, unless the user has chosen another.
            trace.set_tracer_provider(provider)

    def put(self, span: Span) -> None:
        """Take a span; never waits, and drops one where there are too many."""
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
        """Make a span the current one of this task; what is returned undoes that."""
        token = contexts.attach(trace.set_span_in_context(NonRecordingSpan(_to_otel(context))))
        return lambda: contexts.detach(token)

    def present(self) -> Context | None:
        """Return the current span of this task, whoever made it."""
        found = trace.get_current_span().get_span_context()
        return Context(found.trace_id, found.span_id, found.trace_flags.sampled) if found.is_valid else None

    def close(self) -> None:
        """Bring what waits to the collector, if it takes it within two seconds."""
        self._exporter.set_deadline(_SHUTDOWN_TIMEOUT_S)
        closing = threading.Thread(target=self._processor.shutdown, daemon=True, name="boathook-traces-close")
        closing.start()
        closing.join(_SHUTDOWN_TIMEOUT_S)


def _sampler(settings: TracingSettings) -> Sampler:
    """Return what decides about spans that are not of an event, such as those of requests to the API."""
    share = TraceIdRatioBased(settings.sample)
    if settings.incoming == "trust":
        return ParentBased(share)
    return ParentBased(share, remote_parent_sampled=share, remote_parent_not_sampled=share)


class _Exporter(SpanExporter):
    """Posts batches in the thread of the SDK."""

    def __init__(self, post: Post) -> None:
        self._post = post
        self._until = float("inf")
        self._is_unreachable = False

    def set_deadline(self, within_s: float) -> None:
        """Take no longer than this from now on, over all batches."""
        self._until = time.monotonic() + within_s

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Post one batch; where that fails it is dropped, and counted."""
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
        """Say once that the collector is away, and once that it is back."""
        if error is not None and not self._is_unreachable:
            _LOG.warning("traces_dropped", error=error, note="until the collector is back; nothing else is affected")
        elif error is None and self._is_unreachable:
            _LOG.info("traces_taken_again")
        self._is_unreachable = error is not None


def _to_otel(context: Context, *, is_remote: bool = True) -> Any:
    flags = TraceFlags(TraceFlags.SAMPLED if context.is_sampled else TraceFlags.DEFAULT)
    return SpanContext(context.trace_id, context.span_id, is_remote=is_remote, trace_flags=flags)
