"""Traces the attempts of handlers: an optional wrapper around the runner."""

import time
from typing import assert_never

from boathook.db.deliveries import ClaimedDelivery
from boathook.domain import ids
from boathook.domain.policy import (
    Completed,
    Dead,
    Failure,
    Ignore,
    Interruption,
    NotStarted,
    Result,
    Retry,
    Stopped,
    Success,
    Superseded,
    WaitFor,
)
from boathook.handlers.handler import Handler
from boathook.handlers.runner import Runner, RunningAttempt, RunSlot
from boathook.observability.tracing import HEADER, EntrySpan, Kind, Span, Tracer, otel_attributes, span_id_of


class TracedRunner:
    """A runner that records each attempt as a span; spans, calls and messages of the handler become its children."""

    def __init__(self, runner: Runner, tracer: Tracer) -> None:
        self._runner = runner
        self._tracer = tracer

    async def run(self, handler: Handler, running: RunningAttempt, run_slot: RunSlot) -> Result:
        """See `boathook.handlers.runner.Runner.run`."""
        work = running.work
        entry = self._entry(work)
        claim = work.claim
        context = entry.context.with_span(span_id_of(claim.event_id, claim.ordinal, claim.fence))
        began_ns = time.time_ns()
        with self._tracer.inside(context):
            ending = await self._runner.run(handler, running, run_slot)
        outcome, error = _outcome_of(ending)
        self._tracer.record(
            Span(
                name=f"handle {claim.recipient}",
                kind=Kind.CONSUMER,
                context=context,
                parent=entry.context,
                began_ns=began_ns,
                ended_ns=time.time_ns(),
                attributes=otel_attributes(
                    messaging__system="boathook",
                    messaging__operation__type="process",
                    messaging__destination__name=claim.recipient,
                    messaging__message__id=ids.show(ids.EVENT, claim.event_id),
                    boathook__delivery=ids.show_delivery(claim.event_id, claim.ordinal),
                    boathook__attempt=claim.attempt,
                    boathook__event__type=None if work.event is None else work.event.type,
                    boathook__outcome=outcome,
                    error__type=_code_of(ending),
                ),
                error=error,
            )
        )
        return ending

    def _entry(self, work: ClaimedDelivery) -> EntrySpan:
        event = work.event
        if event is None:
            return self._tracer.entry(work.claim.event_id, None, is_ours=False)
        return self._tracer.entry(event.id, event.headers.get(HEADER), is_ours=event.source is None)


def _outcome_of(ending: Result) -> tuple[str, str | None]:
    """Return the outcome of an attempt as one word, and the error message if there is one."""
    match ending:
        case Completed(state=state):
            return state, None
        case Success() | Ignore():
            return "succeeded", None
        case Retry(code=code):
            return "retry", code
        case WaitFor():
            return "waiting", None
        case Dead(code=code, note=note):
            return "dead", note or code
        case Failure(error=error) | Interruption(error=error):
            return "failed", error
        case Superseded():
            return "lost", "the lease is another worker's"
        case Stopped():
            return "stopped", None
        case NotStarted():
            return "not begun", "PostgreSQL is unavailable"
        case _:
            assert_never(ending)


def _code_of(ending: Result) -> str | None:
    return ending.code if isinstance(ending, Retry | WaitFor | Dead | Failure | Interruption) else None
