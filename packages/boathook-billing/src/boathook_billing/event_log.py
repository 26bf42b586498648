"""Writes the log line of an attempt to apply a payment, without e-mail addresses."""

import hashlib
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, assert_never

from boathook import Event
from boathook_billing.app import hook, provider_of
from boathook_billing.payload import Notice
from boathook_billing.payment_store import StoredPayment
from boathook_billing.rules import Blocked, Extend, NoChange, Reverse, Verdict

_EMAIL: Final = re.compile(r"[^\s\"<>()\[\],;:]+(?:@|%40)[^\s\"'<>()\[\]{},;:=]+", re.IGNORECASE)


@dataclass(slots=True, kw_only=True)
class Attempt:
    """What is known so far of one attempt to apply an event."""

    event: Event
    started: float
    """When it began, by `time.perf_counter`."""
    notice: Notice | None = None
    stored: StoredPayment | None = None
    end_before: datetime | None = None
    """The subscription's end before the attempt."""

    @property
    def duration_s(self) -> float:
        """How long it has taken."""
        return time.perf_counter() - self.started

    def log_verdict(self, verdict: Verdict, end_after: datetime | None) -> None:
        """Log what becomes of the payment."""
        result, code, message = _result(verdict)
        is_applied = isinstance(verdict, Extend)
        self._log(result, code, message, end_after=end_after, is_applied=is_applied)

    def log_failure(self, result: str, code: str, message: str) -> None:
        """Log that the attempt changes nothing because of an error."""
        self._log(result, code, message, end_after=self.end_before, is_applied=False)

    def _log(
        self, result: str, code: str | None, message: str, *, end_after: datetime | None, is_applied: bool
    ) -> None:
        event = self.event
        fields = {
            "request_id": event.request_id,
            "provider": provider_of(event),
            "event_id": str(event.id),
            "dedup_key": event.dedup_key,
            "attempt": event.attempt,
            **_reported(event, self.notice),
            **_changes(self.stored, self.end_before, end_after, is_applied=is_applied),
            "result": result,
            "error_code": code,
            "error_message": message or None,
            "duration_ms": round(self.duration_s * 1000, 2),
        }
        hook.log.info("payment_event", **without_emails(fields))


def without_emails(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields in whose texts a hash stands for each e-mail address; equal addresses have equal hashes."""
    return {name: _EMAIL.sub(_hash, value) if isinstance(value, str) else value for name, value in fields.items()}


def _hash(address: re.Match[str]) -> str:
    text = address[0].lower().replace("%40", "@")
    return f"sha256:{hashlib.sha256(text.encode('utf-8', 'replace')).hexdigest()[:16]}"


def _reported(event: Event, notice: Notice | None) -> Mapping[str, Any]:
    if notice is None:
        return {}
    return {
        "external_event_id": notice.event_id,
        "external_payment_id": notice.external_payment_id,
        "incoming_status": notice.reported_status,
        "mapped_status": notice.status,
        "amount": None if notice.amount is None else f"{notice.amount:f}",
        "currency": notice.currency,
        "event_age_s": round(notice.age_s(event.accepted_at, datetime.now(UTC)), 3),
    }


def _changes(
    stored_payment: StoredPayment | None, end_before: datetime | None, end_after: datetime | None, *, is_applied: bool
) -> Mapping[str, Any]:
    if stored_payment is None:
        return {}
    payment = stored_payment.payment
    return {
        "payment_id": payment.id,
        "user_id": payment.user_id,
        "payment_status_before": stored_payment.status_before,
        "payment_status_after": payment.status,
        "subscription_end_before": end_before and end_before.isoformat(),
        "subscription_end_after": end_after and end_after.isoformat(),
        "applied_before": payment.is_applied,
        "applied_after": payment.is_applied or is_applied,
        "is_late": payment.is_late,
    }


def _result(verdict: Verdict) -> tuple[str, str | None, str]:
    """Return the result, the code and the message of a verdict."""
    match verdict:
        case Extend():
            return "applied", None, ""
        case Reverse():
            return "reversed", None, ""
        case NoChange(reason=reason):
            return "ignored", reason, ""
        case Blocked(problem=problem, note=note):
            return ("waiting" if problem.is_waiting else "refused"), problem, note
        case _:
            assert_never(verdict)
