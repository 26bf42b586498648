"""Events of four senders, and the senders' record of requests and responses."""

import hashlib
import json
import random
import time
import uuid
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from itertools import count
from typing import Any

from boathook.service.remote import HttpResponse

PLANS = ("basic", "pro", "team")
CHANNELS = ("C0GENERAL", "C0ORDERS", "C0SUPPORT")


@dataclass(frozen=True, slots=True)
class SampleEvent:
    """One generated event, to be signed and sent."""

    source: str
    key: str
    """The sender's id of the event, which becomes its dedup key."""
    payload: Mapping[str, Any]
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers in addition to those of the signature."""
    effects: tuple[str, ...] = ()
    """The handlers that should each have exactly one effect for it."""

    @property
    def body(self) -> bytes:
        """The bytes that are signed and sent."""
        return json.dumps(self.payload, separators=(",", ":")).encode()

    def with_payload(self, **changes: Any) -> "SampleEvent":
        """Return an event with the same id and a different body."""
        return replace(self, payload={**self.payload, **changes})

    def with_headers(self, **changes: str) -> "SampleEvent":
        """Return the same event with additional headers; underscores stand for hyphens."""
        more = {name.replace("_", "-"): value for name, value in changes.items()}
        return replace(self, headers={**self.headers, **more})


class EventFactory:
    """Creates events, each with its own id."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._run = f"{rng.getrandbits(32):08x}"
        self._numbers = count(1)

    def _id(self, prefix: str) -> str:
        return f"{prefix}_{self._run}{next(self._numbers):06d}"

    def stripe(
        self, kind: str, stripe_object: Mapping[str, Any], *effects: str, created: float | None = None
    ) -> SampleEvent:
        """Create an event in Stripe's format."""
        key = self._id("evt")
        payload = {
            "id": key,
            "object": "event",
            "type": kind,
            "created": int(created or time.time()),
            "pending_webhooks": 1,
            "data": {"object": dict(stripe_object)},
        }
        return SampleEvent("stripe", key, payload, effects=effects)

    def payment(self) -> SampleEvent:
        """Create a payment event, which leads to an order to ship."""
        intent = {"id": self._id("pi"), "amount": self._rng.randrange(500, 90_000), "currency": "eur"}
        return self.stripe("payment_intent.succeeded", intent, "book_payment", "ship_order")

    def subscription_updates(self) -> tuple[SampleEvent, SampleEvent]:
        """Create two updates of one subscription, the newer one first; the older should have no effect."""
        subscription, now = self._id("sub"), time.time()
        newer, older = (
            self.stripe("customer.subscription.updated", {"id": subscription, "plan": plan}, created=created)
            for plan, created in zip(self._rng.sample(PLANS, 2), (now, now - 60), strict=True)
        )
        return replace(newer, effects=("follow_subscription",)), older

    def unpaid_invoice(self) -> SampleEvent:
        """Create an event at which `remind` fails twice before it succeeds."""
        return self.stripe("invoice.payment_failed", {"id": self._id("in")}, "remind")

    def dispute(self) -> SampleEvent:
        """Create an event at which `answer_dispute` always fails."""
        return self.stripe("charge.dispute.created", {"id": self._id("dp")})

    def github(self, event: str, payload: Mapping[str, Any], *effects: str) -> SampleEvent:
        """Create an event in GitHub's format."""
        key = str(uuid.UUID(int=self._rng.getrandbits(128), version=4))
        headers = {"x-github-event": event, "x-github-delivery": key, "user-agent": "GitHub-Hookshot/boathook-demo"}
        return SampleEvent("github", key, payload, headers, effects)

    def push(self) -> SampleEvent:
        """Create an event about pushed commits."""
        commit = f"{self._rng.getrandbits(160):040x}"
        return self.github("push", {"ref": "refs/heads/main", "after": commit}, "note_change")

    def issue(self) -> SampleEvent:
        """Create an event about an opened issue."""
        return self._issue(next(self._numbers), "opened", time.time(), "follow_issue")

    def issue_updates(self) -> tuple[SampleEvent, SampleEvent]:
        """Create an event about a closed issue, and an older one about its opening, which should have no effect."""
        number, now = next(self._numbers), time.time()
        return self._issue(number, "closed", now, "follow_issue"), self._issue(number, "opened", now - 60)

    def _issue(self, number: int, action: str, at: float, *effects: str) -> SampleEvent:
        timestamp = datetime.fromtimestamp(int(at), UTC).isoformat().replace("+00:00", "Z")
        state = "closed" if action == "closed" else "open"
        issue = {
            "id": int(self._run, 16) * 1_000_000 + number,
            "number": number,
            "state": state,
            "updated_at": timestamp,
        }
        return self.github("issues", {"action": action, "issue": issue}, *effects)

    def ping(self) -> SampleEvent:
        """Create an event that its handler ignores."""
        return self.github("ping", {"zen": "Keep it logically awesome.", "hook_id": next(self._numbers)})

    def message(self) -> SampleEvent:
        """Create a channel message; for some, the handler reports to be busy on the first attempt."""
        rng = self._rng
        event: dict[str, Any] = {
            "type": rng.choice(("message", "app_mention")),
            "channel": rng.choice(CHANNELS),
            "text": "where is my order?",
        }
        if rng.random() < 0.1:
            event["is_busy"] = True
        return self._slack(event, "reply")

    def message_edits(self) -> tuple[SampleEvent, SampleEvent]:
        """Create two edits of one message, the newer one first; the older should have no effect."""
        channel, now = self._rng.choice(CHANNELS), time.time()
        message = f"{now - 3_600:.6f}"
        newer, older = (
            {
                "type": "message",
                "subtype": "message_changed",
                "channel": channel,
                "message": {"ts": message, "text": text},
                "event_ts": f"{at:.6f}",
            }
            for text, at in (("my order has come, thank you!", now), ("where is my order?", now - 60))
        )
        return self._slack(newer, "follow_message"), self._slack(older)

    def _slack(self, event: Mapping[str, Any], *effects: str) -> SampleEvent:
        key = self._id("Ev")
        return SampleEvent("slack", key, {"type": "event_callback", "event_id": key, "event": event}, effects=effects)

    def report(self) -> SampleEvent:
        """Create a report, signed by Standard Webhooks."""
        return self._report(self._rng.randrange(1, 200), "file_report")

    def empty_report(self) -> SampleEvent:
        """Create a report that its handler dead-letters on the first attempt."""
        return self._report(0)

    def _report(self, pages: int, *effects: str) -> SampleEvent:
        key = self._id("msg")
        payload = {"type": "report.ready", "timestamp": int(time.time()), "data": {"report": key, "pages": pages}}
        return SampleEvent("reports", key, payload, effects=effects)

    def url_verification(self) -> SampleEvent:
        """Create the handshake that Slack sends before events."""
        return SampleEvent("slack", "", {"type": "url_verification", "challenge": self._id("challenge")})


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
        """The body's JSON; an empty object if it is not JSON."""
        try:
            return json.loads(self.body)
        except ValueError:
            return {}


class SendResult(StrEnum):
    """The result of a request, from its response."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    CONFLICT = "conflict"
    REJECTED = "rejected"
    HANDSHAKE = "greeted"
    """A handshake was answered."""
    UNANSWERED = "unanswered"
    """No response, or one that requests a later retry."""
    UNEXPECTED = "odd"


def classify_response(sample: SampleEvent, answer: TimedResponse | None) -> SendResult:
    """Return the result that *answer* reports."""
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
    document = answer.json if answer.status == 200 else {}
    if not isinstance(document, dict) or "event_id" not in document:
        return SendResult.UNEXPECTED
    if document.get("conflict"):
        return SendResult.CONFLICT
    return SendResult.DUPLICATE if document.get("duplicate") else SendResult.ACCEPTED


@dataclass(slots=True)
class SentEvent:
    """All genuine requests with one id."""

    sample: SampleEvent
    sha256: bytes
    """SHA-256 of the body that was sent first."""
    event_ids: set[str] = field(default_factory=set)
    """The ids from the responses; there should be one."""
    accepted: int = 0
    """Responses that reported a new event; there should be one."""
    conflicts: int = 0
    is_uncertain: bool = False
    """Whether a request broke off, so that its event may be stored without a response."""
    is_buffered: bool = False
    """Whether a request was answered while PostgreSQL was stopped, so that a duplicate was recognized only later."""

    @property
    def is_acknowledged(self) -> bool:
        """Whether boathook has confirmed that it has the event."""
        return bool(self.event_ids)


class SenderLog:
    """Counts results by source, and records every genuine id."""

    def __init__(self, sources: Iterable[str]) -> None:
        self.replies: dict[str, Counter[SendResult]] = {source: Counter() for source in sources}
        self.sent: dict[tuple[str, str], SentEvent] = {}
        self.forged: dict[tuple[str, str], set[bytes]] = {}
        """SHA-256 of the bodies that were sent with a wrong signature, by source and id."""
        self.unexpected: list[str] = []
        self.waits_s: deque[float] = deque(maxlen=_MAX_LATENCIES)
        self.is_outage = False
        """Whether PostgreSQL is stopped, or events of that time are still being stored."""
        self.had_outage = False
        """Whether PostgreSQL was stopped at all: what was under way then, such as a post to a customer, is repeated."""
        self.answered_in_outage = 0
        """Genuine requests that were answered 2xx meanwhile."""

    @property
    def answered(self) -> int:
        """The number of requests that got a response."""
        return sum(counter.total() - counter[SendResult.UNANSWERED] for counter in self.replies.values())

    def total(self, reply: SendResult) -> int:
        """Return how often *reply* was received, over all sources."""
        return sum(counter[reply] for counter in self.replies.values())

    def record_forgery(self, sample: SampleEvent) -> None:
        """Record a request before it is sent with a wrong signature."""
        self.forged.setdefault((sample.source, sample.key), set()).add(hashlib.sha256(sample.body).digest())

    def record_send(self, sample: SampleEvent) -> None:
        """Record a genuine request before it is sent."""
        sha256 = hashlib.sha256(sample.body).digest()
        self.sent.setdefault((sample.source, sample.key), SentEvent(sample, sha256))

    def record_response(
        self, sample: SampleEvent, answer: TimedResponse | None, *, is_forged: bool = False
    ) -> SendResult:
        """Record a response, and return its result."""
        reply = classify_response(sample, answer)
        self.replies[sample.source][reply] += 1
        if answer is not None and reply in {SendResult.ACCEPTED, SendResult.DUPLICATE, SendResult.CONFLICT}:
            self.waits_s.append(answer.seconds)
        if is_forged:
            self._expect_rejection(sample, reply, answer)
        elif sample.key:
            self._record_result(self.sent[sample.source, sample.key], reply, answer)
            self.sent[sample.source, sample.key].is_buffered |= self.is_outage
            self.answered_in_outage += self.is_outage and answer is not None and answer.status == 200
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
        self,
        sample: SampleEvent,
        reply: SendResult,
        answer: TimedResponse | None,
        request_text: str = "a genuine request",
    ) -> None:
        status = "nothing" if answer is None else f"{answer.status} {answer.body[:80]!r}"
        self.unexpected.append(f"{request_text} for {sample.source} {sample.key} was answered {status} ({reply})")

    def wait_ms(self, share: float) -> float:
        """Return a quantile of the latest acknowledged requests' response times, in milliseconds."""
        waits = sorted(self.waits_s)
        return waits[min(len(waits) - 1, int(len(waits) * share))] * 1e3 if waits else 0.0
