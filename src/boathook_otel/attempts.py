"""Traces attempts: of handlers, by a wrapper around the runner, and of endpoints."""

import time
from typing import Final, assert_never

from boathook.db.deliveries import ClaimedDelivery
from boathook.db.endpoint_deliveries import ClaimedEndpointDelivery, FinishedEndpointDelivery
from boathook.delivery.endpoint_recorder import SenderTracer
from boathook.domain import ids
from boathook.domain.policy import (
    Complete,
    Completed,
    Dead,
    DeadLetter,
    Failure,
    Ignore,
    Interruption,
    NotStarted,
    Result,
    Retry,
    RetryAt,
    Stopped,
    Success,
    Superseded,
    WaitFor,
)
from boathook.handlers.handler import Handler
from boathook.handlers.runner import RunningAttempt, Runs, RunSlot
from boathook_otel.spans import HEADER, Context, EntrySpan, Kind, Span, Spans, otel_attributes, span_id_of

_NS: Final = 1_000_000_000


class TracedRunner(Runs):
    """A runner that records each attempt as a span; spans, calls and messages of the handler become its children."""

    def __init__(self, runner: Runs, spans: Spans) -> None:
        self._runner = runner
        self._spans = spans

    async def run(self, handler: Handler, running: RunningAttempt, run_slot: RunSlot) -> Result:
        """See `boathook.handlers.runner.Runner.run`."""
        work = running.work
        entry = self._entry(work)
        claim = work.claim
        context = entry.context.with_span(span_id_of(claim.event_id, claim.ordinal, claim.fence))
        began_ns = time.time_ns()
        with self._spans.inside(context):
            ending = await self._runner.run(handler, running, run_slot)
        outcome, error = _outcome_of(ending)
        self._spans.record(
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
            return self._spans.entry(work.claim.event_id, None, is_ours=False)
        return self._spans.entry(event.id, event.headers.get(HEADER), is_ours=event.source is None)


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


class SendTraces(SenderTracer):
    """Records the trace spans of one sender's attempts."""

    stored_header = HEADER

    def __init__(self, spans: Spans) -> None:
        self._spans = spans

    def header(self, delivery: ClaimedEndpointDelivery) -> tuple[str, str] | None:
        """Return the trace header of an attempt's request; None if traces are not propagated to endpoints."""
        if not self._spans.rules.propagates:
            return None
        return HEADER, self._context(delivery, self._entry(delivery)).header()

    def record(self, finished: FinishedEndpointDelivery, ended_ns: int, took_s: float) -> None:
        """Record the span of an attempt that ended at *ended_ns* and took *took_s* seconds."""
        delivery = finished.delivery
        entry = self._entry(delivery)
        outcome, code, error = _words_of(finished)
        self._spans.record(
            Span(
                name="send",
                kind=Kind.CLIENT,
                context=self._context(delivery, entry),
                parent=entry.context,
                began_ns=ended_ns - int(took_s * _NS),
                ended_ns=ended_ns,
                # The URL is left out because it may contain a secret.
                attributes=otel_attributes(
                    messaging__system="boathook",
                    messaging__operation__type="send",
                    messaging__destination__name=ids.show(ids.ENDPOINT, delivery.endpoint_id),
                    messaging__message__id=ids.show(ids.MESSAGE, delivery.event_id),
                    http__request__method="POST",
                    http__response__status_code=finished.status or None,
                    boathook__delivery=ids.show_delivery(delivery.event_id, delivery.ordinal),
                    boathook__attempt=delivery.attempt,
                    boathook__outcome=outcome,
                    error__type=code,
                ),
                error=error,
            )
        )

    def _entry(self, delivery: ClaimedEndpointDelivery) -> EntrySpan:
        return self._spans.entry(delivery.event_id, delivery.kept_header, is_ours=True)

    @staticmethod
    def _context(delivery: ClaimedEndpointDelivery, entry: EntrySpan) -> Context:
        return entry.context.with_span(span_id_of(delivery.event_id, delivery.ordinal, delivery.fence))


def _words_of(finished: FinishedEndpointDelivery) -> tuple[str, str | None, str | None]:
    """Return the outcome of an attempt, with the code and message of its error."""
    match finished.decision:
        case Complete():
            return "succeeded", None, None
        case RetryAt(code=code, error=error):
            return "retry", code, error
        case DeadLetter(code=code, error=error):
            return "dead", code, error
        case _ as never:
            assert_never(never)
