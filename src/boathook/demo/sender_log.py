"""The sender's own record: what was sent, what was answered, and what should not have been."""

import hashlib
import json
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from boathook.demo.sample_events import SampleEvent
from boathook.service.remote import HttpResponse

_MAX_LATENCIES = 5_000


@dataclass(frozen=True, slots=True)
class TimedResponse:
    """A response, and how long it took."""

    response: HttpResponse
    seconds: float

    @property
    def status(self) -> int:
        """The HTTP status."""
        return self.response.status

    @property
    def body(self) -> bytes:
        """The bytes of the response."""
        return self.response.body

    @property
    def json(self) -> Any:
        """The body's JSON; an empty object where it is none."""
        try:
            return json.loads(self.body)
        except ValueError:
            return {}


class SendResult(StrEnum):
    """What an answer says became of a request."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    CONFLICT = "conflict"
    REJECTED = "rejected"
    HANDSHAKE = "greeted"
    """A handshake was answered."""
    UNANSWERED = "unanswered"
    """No answer, or one that says to come back later."""
    UNEXPECTED = "odd"


def classify_response(sample: SampleEvent, answer: TimedResponse | None) -> SendResult:
    """Return what *answer* says."""
    if answer is None or answer.status >= 500 or answer.status == 429:
        return SendResult.UNANSWERED
    if answer.status == 401:
        return SendResult.REJECTED
    if challenge := sample.payload.get("challenge"):
        return (
            SendResult.HANDSHAKE
            if answer.status == 200 and challenge.encode() in answer.body
            else SendResult.UNEXPECTED
        )
    said = answer.json if answer.status == 200 else {}
    if not isinstance(said, dict) or "event_id" not in said:
        return SendResult.UNEXPECTED
    if said.get("conflict"):
        return SendResult.CONFLICT
    return SendResult.DUPLICATE if said.get("duplicate") else SendResult.ACCEPTED


@dataclass(slots=True)
class SentEvent:
    """Everything that was genuinely sent under one id."""

    sample: SampleEvent
    sha256: bytes
    """Of the body that was sent first."""
    event_ids: set[str] = field(default_factory=set)
    """As answered; there should be one."""
    accepted: int = 0
    """Answers that said the event is new; there should be one."""
    conflicts: int = 0
    is_uncertain: bool = False
    """Whether a request broke off, so that its event may have been stored without an answer."""

    @property
    def is_acknowledged(self) -> bool:
        """Whether boathook has answered that it has the event."""
        return bool(self.event_ids)


class SenderLog:
    """Counts by source, and the record of every genuine id."""

    def __init__(self, sources: Iterable[str]) -> None:
        self.replies: dict[str, Counter[SendResult]] = {source: Counter() for source in sources}
        self.sent: dict[tuple[str, str], SentEvent] = {}
        self.forged: dict[tuple[str, str], set[bytes]] = {}
        """SHA-256 of the bodies that were sent with a wrong signature, by source and id."""
        self.unexpected: list[str] = []
        self.waits_s: deque[float] = deque(maxlen=_MAX_LATENCIES)

    @property
    def answered(self) -> int:
        """Requests that got an answer."""
        return sum(counter.total() - counter[SendResult.UNANSWERED] for counter in self.replies.values())

    def total(self, reply: SendResult) -> int:
        """Return how often *reply* was given, over all sources."""
        return sum(counter[reply] for counter in self.replies.values())

    def record_forgery(self, sample: SampleEvent) -> None:
        """Remember what is about to be sent with a wrong signature."""
        self.forged.setdefault((sample.source, sample.key), set()).add(hashlib.sha256(sample.body).digest())

    def record_send(self, sample: SampleEvent) -> None:
        """Remember what is about to be sent genuinely."""
        sha256 = hashlib.sha256(sample.body).digest()
        self.sent.setdefault((sample.source, sample.key), SentEvent(sample, sha256))

    def record_response(
        self, sample: SampleEvent, answer: TimedResponse | None, *, is_forged: bool = False
    ) -> SendResult:
        """Remember what came back, and return what it says."""
        reply = classify_response(sample, answer)
        self.replies[sample.source][reply] += 1
        if answer is not None and reply in {SendResult.ACCEPTED, SendResult.DUPLICATE, SendResult.CONFLICT}:
            self.waits_s.append(answer.seconds)
        if is_forged:
            self._expect_rejection(sample, reply, answer)
        elif sample.key:
            self._record_result(self.sent[sample.source, sample.key], reply, answer)
        elif reply not in {SendResult.HANDSHAKE, SendResult.UNANSWERED}:
            self._record_unexpected(sample, reply, answer)
        return reply

    def _expect_rejection(self, sample: SampleEvent, reply: SendResult, answer: TimedResponse | None) -> None:
        if reply not in {SendResult.REJECTED, SendResult.UNANSWERED}:
            self._record_unexpected(sample, reply, answer, "a forgery")

    def _record_result(self, sent: SentEvent, reply: SendResult, answer: TimedResponse | None) -> None:
        match reply:
            case SendResult.ACCEPTED | SendResult.DUPLICATE | SendResult.CONFLICT:
                assert answer is not None
                sent.event_ids.add(answer.json["event_id"])
                sent.accepted += reply is SendResult.ACCEPTED
                sent.conflicts += reply is SendResult.CONFLICT
            case SendResult.UNANSWERED:
                sent.is_uncertain = True
            case _:
                self._record_unexpected(sent.sample, reply, answer)

    def _record_unexpected(
        self, sample: SampleEvent, reply: SendResult, answer: TimedResponse | None, what: str = "a genuine request"
    ) -> None:
        status = "nothing" if answer is None else f"{answer.status} {answer.body[:80]!r}"
        self.unexpected.append(f"{what} for {sample.source} {sample.key} was answered {status} ({reply})")

    def wait_ms(self, share: float) -> float:
        """Return a quantile of the latest acknowledged requests' waits, in milliseconds."""
        waits = sorted(self.waits_s)
        return waits[min(len(waits) - 1, int(len(waits) * share))] * 1e3 if waits else 0.0
