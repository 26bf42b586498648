"""Traces of events from the request that brings one to every attempt at its deliveries, across all processes.

No process tells another which trace an event belongs to: it follows from what all of them know. An event that came
with a W3C ``traceparent``, which is among its stored headers, belongs to that trace; any other event's trace id is its
own id, whose 16 bytes are as unique. The span by which it entered has an id made of the event's id, and that of an
attempt one made of event, ordinal and fence. So each process says its part, in any order, and may die before it has.

Nobody traces unless `install` was called: `current` is None then, and nothing of OpenTelemetry is imported.
"""

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from hashlib import blake2b
from typing import Any, Final, Protocol
from uuid import UUID

from boathook.domain import ids

HEADER: Final = "traceparent"
"""Of W3C Trace Context, https://www.w3.org/TR/trace-context/#traceparent-header."""
_TRACEPARENT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED: Final = 0x01
_RANDOM_MASK: Final = (1 << 56) - 1
"""The part of an event's id that holds nothing but random bits."""

Attributes = Mapping[str, str | int | bool | float]


class Kind(Enum):
    """What a span is to those at its ends, in OpenTelemetry's words."""

    SERVER = "SERVER"
    CLIENT = "CLIENT"
    PRODUCER = "PRODUCER"
    CONSUMER = "CONSUMER"
    INTERNAL = "INTERNAL"


@dataclass(frozen=True, slots=True)
class Context:
    """One span, as others name it."""

    trace_id: int
    span_id: int
    is_sampled: bool

    def header(self) -> str:
        """Return it as the value of a header ``traceparent``."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{self.is_sampled:02x}"

    def with_span(self, span_id: int) -> "Context":
        """Return another span of the same trace."""
        return Context(self.trace_id, span_id, self.is_sampled)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One span that has ended."""

    name: str
    kind: Kind
    context: Context
    parent: Context | None
    began_ns: int
    """Nanoseconds since 1970, as the end."""
    ended_ns: int
    attributes: Attributes
    error: str | None = None
    """One line, where it failed."""
    link: Context | None = None
    """A span of another trace that it has to do with."""


@dataclass(frozen=True, slots=True)
class EntrySpan:
    """How an event entered: its first span here, and the sender's, if that is known."""

    context: Context
    parent: Context | None


@dataclass(frozen=True, slots=True)
class TracingOptions:
    """What is traced."""

    sample: float = 1.0
    """The share of events."""
    continues: bool = True
    """Whether an event goes on with the trace of its sender."""
    trusts: bool = False
    """Whether the sender decides if it is sampled."""
    propagates: bool = True
    """Whether endpoints are told of the trace."""


class SpanSink(Protocol):
    """Where spans go; the one place that knows OpenTelemetry's classes."""

    def put(self, span: Span) -> None:
        """Take a span; never waits, and drops it where there are too many."""
        ...

    def attach(self, context: Context) -> Callable[[], None]:
        """Make a span the current one of this task, for the user's own spans; what is returned undoes that."""
        ...

    def present(self) -> Context | None:
        """Return the current span of this task, whoever made it."""
        ...


class Tracer:
    """Names spans and hands those that are sampled to an outlet."""

    def __init__(self, rules: TracingOptions, outlet: SpanSink) -> None:
        self.rules = rules
        self._sink = outlet
        self._bound = int(rules.sample * (_RANDOM_MASK + 1))

    def entry(self, event_id: UUID, traceparent: str | None, *, is_ours: bool) -> EntrySpan:
        """Return how an event entered.

        Args:
            event_id: the event's.
            traceparent: the header among those stored with it.
            is_ours: whether it was published here, so that the header is ours too.
        """
        own = span_id_of(event_id, "entry")
        parent = read_traceparent(traceparent) if is_ours or self.rules.continues else None
        is_chosen = event_id.int & _RANDOM_MASK < self._bound
        if parent is None:
            return EntrySpan(Context(event_id.int, own, is_chosen), None)
        is_sampled = parent.is_sampled if is_ours or self.rules.trusts else is_chosen
        return EntrySpan(Context(parent.trace_id, own, is_sampled), parent)

    def record(self, span: Span) -> None:
        """Hand a span on, if its trace is sampled."""
        if span.context.is_sampled:
            self._sink.put(span)

    @contextlib.contextmanager
    def inside(self, context: Context) -> Iterator[None]:
        """Make a span the current one for as long as the block lasts, also for what the user's code traces."""
        detach = self._sink.attach(context)
        try:
            yield
        finally:
            detach()

    def present(self) -> Context | None:
        """Return the current span, ours or the user's own."""
        return self._sink.present()


def read_traceparent(text: str | None) -> Context | None:
    """Read the header; None where it is none, or says nothing."""
    match = _TRACEPARENT.fullmatch(text.strip()) if text else None
    if match is None or match[1] == "ff" or (match[1] == "00" and match[5]):
        return None
    trace_id, span_id = int(match[2], 16), int(match[3], 16)
    return Context(trace_id, span_id, bool(int(match[4], 16) & _SAMPLED)) if trace_id and span_id else None


def span_id_of(event_id: UUID, *which: object) -> int:
    """Return the id of a span about an event; *which* of them tells it from the event's others."""
    digest = blake2b(event_id.bytes + "/".join(map(str, which)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") or 1


_tracer: Tracer | None = None


def install(tracer: Tracer | None) -> None:
    """Trace in this process from now on; None ends that."""
    global _tracer  # noqa: PLW0603 - one for a process, as all that telemetry has
    _tracer = tracer


def current() -> Tracer | None:
    """Return what traces in this process; None where nothing does."""
    return _tracer


def with_traceparent(headers: dict[str, str]) -> dict[str, str]:
    """Return the headers of a message about to be published, with the publisher's trace where there is one."""
    if _tracer is None or HEADER in headers:
        return headers
    present = _tracer.present()
    return headers if present is None else {**headers, HEADER: present.header()}


def record_publish(event_id: UUID, headers: Mapping[str, str], began_ns: int, ended_ns: int, type: str) -> None:
    """Tell of a message that was published, whether or not its transaction will be committed."""
    if _tracer is not None:
        entry = _tracer.entry(event_id, headers.get(HEADER), is_ours=True)
        _tracer.record(
            Span(
                name="publish",
                kind=Kind.PRODUCER,
                context=entry.context,
                parent=entry.parent,
                began_ns=began_ns,
                ended_ns=ended_ns,
                attributes=otel_attributes(
                    messaging__system="boathook",
                    messaging__operation__type="send",
                    messaging__message__id=ids.show(ids.MESSAGE, event_id),
                    boathook__event__type=type,
                ),
            )
        )


def otel_attributes(**attributes: Any) -> Attributes:
    """Return attributes under the names of OpenTelemetry's conventions: ``__`` for the dot, None left out."""
    return {name.replace("__", "."): value for name, value in attributes.items() if value is not None}
