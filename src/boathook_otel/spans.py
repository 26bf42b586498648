"""Traces events from the request that receives one to every attempt at its deliveries, across all processes.

Processes do not pass trace ids to each other; each derives them from the event. An event with a W3C ``traceparent``
among its stored headers belongs to that trace. For any other event the trace id is the event id, whose 16 bytes are as
unique. The id of the entry span is derived from the event id, and that of an attempt from event id, ordinal and fence.
Processes therefore record their spans independently, in any order, and a process that dies affects no other's spans.

No class of OpenTelemetry is used here: a `SpanSink` converts finished spans.
"""

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from hashlib import blake2b
from typing import Any, Final, Protocol
from uuid import UUID

import msgspec

HEADER: Final = "traceparent"
"""The header of W3C Trace Context, https://www.w3.org/TR/trace-context/#traceparent-header."""
_TRACEPARENT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED: Final = 0x01
_RANDOM_MASK: Final = (1 << 56) - 1
"""The part of an event's id that holds only random bits."""

Attributes = Mapping[str, str | int | bool | float]


class Kind(Enum):
    """The kind of a span, as defined by OpenTelemetry."""

    SERVER = "SERVER"
    CLIENT = "CLIENT"
    PRODUCER = "PRODUCER"
    CONSUMER = "CONSUMER"
    INTERNAL = "INTERNAL"


class Context(msgspec.Struct, frozen=True):
    """Identifies one span to other spans."""

    trace_id: int
    span_id: int
    is_sampled: bool

    def header(self) -> str:
        """Return the value of a ``traceparent`` header."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{self.is_sampled:02x}"

    def with_span(self, span_id: int) -> "Context":
        """Return the context of another span of the same trace."""
        return Context(self.trace_id, span_id, self.is_sampled)


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """A finished span."""

    name: str
    kind: Kind
    context: Context
    parent: Context | None
    began_ns: int
    """Nanoseconds since 1970, like `ended_ns`."""
    ended_ns: int
    attributes: Attributes
    error: str | None = None
    """One line, if it failed."""
    link: Context | None = None
    """A related span of another trace."""


class EntrySpan(msgspec.Struct, frozen=True):
    """The first span of an event here, and the sender's span as its parent, if known."""

    context: Context
    parent: Context | None


class TracingOptions(msgspec.Struct, frozen=True):
    """Options of tracing."""

    sample: float = 1.0
    """The share of events that is sampled."""
    continues: bool = True
    """Whether an event continues the trace of its sender."""
    trusts: bool = False
    """Whether the sender's sampling decision applies."""
    propagates: bool = True
    """Whether endpoints receive the trace header."""


class SpanSink(Protocol):
    """Exports spans; only implementations use OpenTelemetry's classes."""

    def put(self, span: Span) -> None:
        """Queue a span without waiting; drop it if the queue is full."""
        ...

    def attach(self, context: Context) -> Callable[[], None]:
        """Make a span the current one of this task, for the user's own spans; the returned function undoes that."""
        ...

    def present(self) -> Context | None:
        """Return the current span of this task, even if another library created it."""
        ...


class Spans:
    """Creates span ids and passes sampled spans to a sink."""

    def __init__(self, rules: TracingOptions, outlet: SpanSink) -> None:
        self.rules = rules
        self._sink = outlet
        self._bound = int(rules.sample * (_RANDOM_MASK + 1))

    def entry(self, event_id: UUID, traceparent: str | None, *, is_ours: bool) -> EntrySpan:
        """Return the entry span of an event.

        Args:
            event_id: the event's id.
            traceparent: the header among those stored with the event.
            is_ours: whether boathook published the event, so that the header is ours too.
        """
        own = span_id_of(event_id, "entry")
        parent = read_traceparent(traceparent) if is_ours or self.rules.continues else None
        is_chosen = event_id.int & _RANDOM_MASK < self._bound
        if parent is None:
            return EntrySpan(Context(event_id.int, own, is_chosen), None)
        is_sampled = parent.is_sampled if is_ours or self.rules.trusts else is_chosen
        return EntrySpan(Context(parent.trace_id, own, is_sampled), parent)

    def record(self, span: Span) -> None:
        """Pass a span to the sink, if its trace is sampled."""
        if span.context.is_sampled:
            self._sink.put(span)

    @contextlib.contextmanager
    def inside(self, context: Context) -> Iterator[None]:
        """Make a span the current one while the block runs, also for spans of the user's code."""
        detach = self._sink.attach(context)
        try:
            yield
        finally:
            detach()

    def present(self) -> Context | None:
        """Return the current span, ours or the user's own."""
        return self._sink.present()


def read_traceparent(text: str | None) -> Context | None:
    """Parse the header; return None if it is missing or invalid."""
    match = _TRACEPARENT.fullmatch(text.strip()) if text else None
    if match is None or match[1] == "ff" or (match[1] == "00" and match[5]):
        return None
    trace_id, span_id = int(match[2], 16), int(match[3], 16)
    return Context(trace_id, span_id, bool(int(match[4], 16) & _SAMPLED)) if trace_id and span_id else None


def trace_id_of(event_id: UUID, traceparent: str | None, *, continues: bool) -> str:
    """Return the trace id of an event in hexadecimal; *continues* is whether it may be that of its sender."""
    parent = read_traceparent(traceparent) if continues else None
    return f"{event_id.int if parent is None else parent.trace_id:032x}"


def span_id_of(event_id: UUID, *which: object) -> int:
    """Derive the id of a span about an event; *which* distinguishes it from other spans of the event."""
    digest = blake2b(event_id.bytes + "/".join(map(str, which)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") or 1


def otel_attributes(**attributes: Any) -> Attributes:
    """Return attributes by their OpenTelemetry names: ``__`` becomes a dot, and None values are left out."""
    return {name.replace("__", "."): value for name, value in attributes.items() if value is not None}
