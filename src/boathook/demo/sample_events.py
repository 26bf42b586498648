"""Made-up events of four senders: what they say, and what they should lead to."""

import json
import random
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import count
from typing import Any

PLANS = ("basic", "pro", "team")
CHANNELS = ("C0GENERAL", "C0ORDERS", "C0SUPPORT")


@dataclass(frozen=True, slots=True)
class SampleEvent:
    """One made-up event, to be signed and sent."""

    source: str
    key: str
    """The sender's id of the event, which should become its dedup key."""
    payload: Mapping[str, Any]
    headers: Mapping[str, str] = field(default_factory=dict)
    """Besides those of the signature."""
    effects: tuple[str, ...] = ()
    """The handlers that should each leave exactly one effect for it."""

    @property
    def body(self) -> bytes:
        """The bytes that are signed and sent."""
        return json.dumps(self.payload, separators=(",", ":")).encode()

    def with_payload(self, **changes: Any) -> "SampleEvent":
        """Return a letter with the same id and another body."""
        return replace(self, payload={**self.payload, **changes})

    def with_headers(self, **changes: str) -> "SampleEvent":
        """Return the same letter with further headers; underscores stand for hyphens."""
        more = {name.replace("_", "-"): value for name, value in changes.items()}
        return replace(self, headers={**self.headers, **more})


class EventFactory:
    """Writes letters, each with an id of its own."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._run = f"{rng.getrandbits(32):08x}"
        self._numbers = count(1)

    def _id(self, prefix: str) -> str:
        return f"{prefix}_{self._run}{next(self._numbers):06d}"

    def stripe(self, kind: str, thing: Mapping[str, Any], *effects: str, created: float | None = None) -> SampleEvent:
        """Write an event as Stripe does."""
        key = self._id("evt")
        payload = {
            "id": key,
            "object": "event",
            "type": kind,
            "created": int(created or time.time()),
            "pending_webhooks": 1,
            "data": {"object": dict(thing)},
        }
        return SampleEvent("stripe", key, payload, effects=effects)

    def payment(self) -> SampleEvent:
        """Write of a payment, which an order to ship follows from."""
        thing = {"id": self._id("pi"), "amount": self._rng.randrange(500, 90_000), "currency": "eur"}
        return self.stripe("payment_intent.succeeded", thing, "book_payment", "ship_order")

    def subscription_updates(self) -> tuple[SampleEvent, SampleEvent]:
        """Write of two updates of one subscription, the newer one first; the older should have no effect."""
        subscription, now = self._id("sub"), time.time()
        newer, older = (
            self.stripe("customer.subscription.updated", {"id": subscription, "plan": plan}, created=created)
            for plan, created in zip(self._rng.sample(PLANS, 2), (now, now - 60), strict=True)
        )
        return replace(newer, effects=("follow_subscription",)), older

    def unpaid_invoice(self) -> SampleEvent:
        """Write what `remind` fails at twice before it works."""
        return self.stripe("invoice.payment_failed", {"id": self._id("in")}, "remind")

    def dispute(self) -> SampleEvent:
        """Write what `answer_dispute` never works for."""
        return self.stripe("charge.dispute.created", {"id": self._id("dp")})

    def github(self, event: str, payload: Mapping[str, Any], *effects: str) -> SampleEvent:
        """Write an event as GitHub does."""
        key = str(uuid.UUID(int=self._rng.getrandbits(128), version=4))
        headers = {"x-github-event": event, "x-github-delivery": key, "user-agent": "GitHub-Hookshot/boathook-demo"}
        return SampleEvent("github", key, payload, headers, effects)

    def push(self) -> SampleEvent:
        """Write of pushed commits."""
        commit = f"{self._rng.getrandbits(160):040x}"
        return self.github("push", {"ref": "refs/heads/main", "after": commit}, "note_change")

    def issue(self) -> SampleEvent:
        """Write of an opened issue."""
        return self._issue(next(self._numbers), "opened", time.time(), "follow_issue")

    def issue_updates(self) -> tuple[SampleEvent, SampleEvent]:
        """Write that an issue was closed, and that it was opened before; the latter should have no effect."""
        number, now = next(self._numbers), time.time()
        return self._issue(number, "closed", now, "follow_issue"), self._issue(number, "opened", now - 60)

    def _issue(self, number: int, action: str, at: float, *effects: str) -> SampleEvent:
        moment = datetime.fromtimestamp(int(at), UTC).isoformat().replace("+00:00", "Z")
        state = "closed" if action == "closed" else "open"
        issue = {"id": int(self._run, 16) * 1_000_000 + number, "number": number, "state": state, "updated_at": moment}
        return self.github("issues", {"action": action, "issue": issue}, *effects)

    def ping(self) -> SampleEvent:
        """Write what is ignored."""
        return self.github("ping", {"zen": "Keep it logically awesome.", "hook_id": next(self._numbers)})

    def message(self) -> SampleEvent:
        """Write of a message in a channel; the handler is too busy for some of them at first."""
        rng = self._rng
        said: dict[str, Any] = {
            "type": rng.choice(("message", "app_mention")),
            "channel": rng.choice(CHANNELS),
            "text": "where is my order?",
        }
        if rng.random() < 0.1:
            said["is_busy"] = True
        return self._slack(said, "reply")

    def message_edits(self) -> tuple[SampleEvent, SampleEvent]:
        """Write of two edits of one message, the newer one first; the older should have no effect."""
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
        """Write of a report, signed as Standard Webhooks says."""
        return self._report(self._rng.randrange(1, 200), "file_report")

    def empty_report(self) -> SampleEvent:
        """Write of a report that its handler gives up at once."""
        return self._report(0)

    def _report(self, pages: int, *effects: str) -> SampleEvent:
        key = self._id("msg")
        payload = {"type": "report.ready", "timestamp": int(time.time()), "data": {"report": key, "pages": pages}}
        return SampleEvent("reports", key, payload, effects=effects)

    def url_verification(self) -> SampleEvent:
        """Write what Slack asks before it sends events."""
        return SampleEvent("slack", "", {"type": "url_verification", "challenge": self._id("challenge")})
