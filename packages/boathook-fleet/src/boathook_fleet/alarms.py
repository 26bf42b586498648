"""Sends critical errors to Telegram: promptly, rate-limited, with repeats collapsed, and without blocking callers.

An alarm increments a counter in the row of its kind. If none is pending, it publishes an event that is due when the
kind may be sent again. The handler of that event reads the row without a lock, sends the message, and subtracts the
alarms it has sent. So a caller that raises an alarm never waits for Telegram's server.
"""

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from boathook import Boathook, BoathookError, Event, Ignore, Retry, RetryPolicy, Transaction
from boathook_fleet.log import Kind, Phase, log_error
from boathook_fleet.settings import TelegramSettings

TYPE: Final = "alarm.raised"
LATE_S: Final = 3_600.0
"""Seconds after which an announcement without an effect is repeated by the next alarm."""
RETRY: Final = RetryPolicy(first_s=2.0, max_delay_s=300.0, max_attempts=500, max_age_s=86_400.0)
MAX_TEXT: Final = 1_000
_MINUTE_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Sent:
    """Telegram accepted the message."""


@dataclass(frozen=True, slots=True)
class Busy:
    """Telegram's rate limit is reached."""

    after_s: float


@dataclass(frozen=True, slots=True)
class Unsent:
    """The message was not delivered, as far as is known."""

    kind: str
    because: str


Answer = Sent | Busy | Unsent


async def raise_alarm(hook: Boathook, kind: str, text: str, number: int = 1) -> None:
    """Count an alarm of *kind* and have it sent; never raises, because the caller is handling an error."""
    try:
        async with hook.transaction() as tx:
            due = await _count(tx, kind, text[:MAX_TEXT], number, hook.settings.telegram.quiet_s)
            if due is not None and hook.settings.telegram.is_on:
                await _announce(hook, tx, kind, due)
    except BoathookError as error:
        hook.log.warning("fleet_alarm_not_kept", kind=kind, text=text, because=str(error))


_COUNT: Final = """
insert into fleet.alarm as alarm (kind, text, waiting, total, first_at, last_at, announced_at)
values ($1, $2, $3, $3, now(), now(), now())
on conflict (kind) do update set
    text = excluded.text,
    waiting = alarm.waiting + excluded.waiting,
    total = alarm.total + excluded.total,
    last_at = now(),
    announced_at = case
        when alarm.announced_at > now() - make_interval(secs => $4) then alarm.announced_at else now()
    end
returning case when announced_at = now() then greatest(now(), told_at + make_interval(secs => $5)) end as due_at
"""


async def _count(tx: Transaction, kind: str, text: str, number: int, quiet_s: float) -> datetime | None:
    """Return when the kind is due to be sent, or None if it is already announced."""
    due: datetime | None = await tx.fetchval(_COUNT, kind, text, number, LATE_S, quiet_s)
    return due


async def _announce(hook: Boathook, tx: Transaction, kind: str, due: datetime) -> None:
    at = due if due > datetime.now(UTC) else None
    await hook.publish(tx, application=hook.name, type=TYPE, payload={"kind": kind}, deliver_at=at)


async def send_alarms(hook: Boathook, event: Event, tx: Transaction) -> Ignore | Retry | None:
    """Handle an announcement: send the waiting alarms of its kind as one message."""
    telegram: TelegramSettings = hook.settings.telegram
    kind = event.json["kind"]
    row = await tx.fetchrow("select text, waiting from fleet.alarm where kind = $1", kind)
    if row is None or not row["waiting"] or not telegram.is_on:
        await tx.execute("update fleet.alarm set announced_at = null where kind = $1", kind)
        return Ignore("nothing to announce, or no receivers")
    wait_s = await _wait_for_turn(tx, telegram.per_minute)
    if wait_s > 0:
        return Retry(after=wait_s, code="RATE_LIMITED")
    # The sent message is stored with its count: a crash after it neither repeats the message nor loses alarms.
    try:
        sent = await event.once("send", _send_or_raise, hook, compose(row["text"], row["waiting"]), row["waiting"])
    except _NotSent as trouble:
        return await _put_off(hook, event, trouble.answer)
    await _take_off(hook, tx, kind, sent["text"], sent["alarms"])
    return None


def compose(text: str, number: int) -> str:
    """Return the text of one message for *number* alarms of a kind, the latest of which has the text *text*."""
    return text if number == 1 else f"{text}\n(and {number - 1} more)"


async def _wait_for_turn(tx: Transaction, per_minute: int) -> float:
    """Return the seconds until the next message may be sent."""
    wait_s: float | None = await tx.fetchval(
        "select extract(epoch from at - now())::float8 + $1 from fleet.notice order by at desc offset $2 limit 1",
        _MINUTE_S, per_minute - 1,
    )  # fmt: skip
    return max(0.0, wait_s or 0.0)


async def _take_off(hook: Boathook, tx: Transaction, kind: str, text: str, alarms: int) -> None:
    await tx.execute("insert into fleet.notice (kind, alarms, text) values ($1, $2, $3)", kind, alarms, text)
    left = await tx.fetchval(
        "update fleet.alarm set waiting = greatest(0, waiting - $2), told_at = now(),"
        " announced_at = case when waiting > $2 then now() end where kind = $1 returning waiting",
        kind, alarms,
    )  # fmt: skip
    if left:
        await _announce(hook, tx, kind, datetime.now(UTC) + timedelta(seconds=hook.settings.telegram.quiet_s))


class _NotSent(Exception):
    """Leaves `Event.once` without storing a result."""

    def __init__(self, answer: Busy | Unsent) -> None:
        super().__init__(answer)
        self.answer = answer


async def _send_or_raise(hook: Boathook, text: str, alarms: int) -> dict[str, Any]:
    answer = await send(hook, text)
    if not isinstance(answer, Sent):
        raise _NotSent(answer)
    return {"text": text, "alarms": alarms}


async def _put_off(hook: Boathook, event: Event, answer: Busy | Unsent) -> Retry:
    match answer:
        case Busy(after_s):
            await log_error(
                hook, Phase.NOTIFY, "TELEGRAM_BUSY", f"rate limit; retry in {after_s:g} s", kind=Kind.WARN,
                payload=event.body, event_id=event.id,
            )  # fmt: skip
            return Retry(after=after_s, code="TELEGRAM_BUSY")
        case Unsent(kind, because):
            await log_error(hook, Phase.NOTIFY, kind, because, payload=event.body, event_id=event.id)
            return Retry(code=kind)


async def send(hook: Boathook, text: str) -> Answer:
    """Send one message to the chat; see https://core.telegram.org/bots/api#sendmessage."""
    telegram: TelegramSettings = hook.settings.telegram
    token = hook.resolve(telegram.token, "telegram.token")
    message = {"chat_id": telegram.chat_id, "text": text, "disable_web_page_preview": True}
    try:
        answer = await hook.http.request(
            "POST",
            f"{telegram.api.rstrip('/')}/bot{token}/sendMessage",
            headers={"content-type": "application/json"},
            body=json.dumps(message).encode(),
            timeout_s=telegram.timeout_s,
            max_bytes=65_536,
        )
    except BoathookError as error:
        # Error messages contain the URL and responses may repeat it, and the URL contains the token.
        return Unsent("TELEGRAM_AWAY", str(error).replace(token, "***"))
    return _understood(answer.status, answer.body.replace(token.encode(), b"***"))


def _understood(status: int, body: bytes) -> Answer:
    try:
        reply = json.loads(body)
    except (ValueError, RecursionError):
        reply = {}
    reply = reply if isinstance(reply, dict) else {}
    if status == 200 and reply.get("ok") is True:
        return Sent()
    if status == 429:
        parameters = reply.get("parameters")
        after = parameters.get("retry_after") if isinstance(parameters, dict) else None
        return Busy(float(after) if isinstance(after, int) and 0 <= after <= 86_400 else 30.0)
    return Unsent(f"TELEGRAM_{status}", str(reply.get("description", "the Bot API's answer was not understood"))[:500])
