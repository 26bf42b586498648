"""The example of a long operation: a receipt is sent to the fiscal drive, and the result is published."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from boathook import ConfigError, Event, Ignore, Retry, RetryPolicy, Transaction
from boathook_cashdesk import ledger
from boathook_cashdesk.actions import FISCALISE, OWN
from boathook_cashdesk.app import User, hook
from boathook_cashdesk.drive import DriveBusy, Verdict, open_drive
from boathook_cashdesk.entities import Entity, Object
from boathook_cashdesk.settings import CashdeskSettings
from boathook_pages import Missing

RECIPIENT: Final = "handler:cashdesk.fiscalise"
RECEIPT_RETRY: Final = RetryPolicy(first_s=1.0, max_delay_s=60.0, max_attempts=10, max_age_s=3_600.0)
"""How long the drive may be unavailable before a receipt fails."""
_RESUME_S: Final = 60.0
_RESUMED: Final = timedelta(days=7)
"""How long unfinished receipts are resumed; after that an operator must handle them."""
_GIVEN_UP: Final = "DRIVE_AWAY: the drive did not answer"
_SET_ASIDE: Final = "IGNORED: an operator has set it aside"
_PAGE: Final = 200
_SKEW: Final = timedelta(hours=1)
"""By how much an event may seem older than its operation, because their clocks differ."""

_SIMULATION: Final = "the fiscal drive is simulated, so no receipt is recorded"

_ended = hook.counter("cashdesk_fiscalisations_total", "Receipts that came back from the fiscal drive.", "state")


@hook.check
def check_drive(settings: CashdeskSettings, is_production: bool) -> Iterator[tuple[str, str]]:
    """Open the drive, and announce the simulation. Raises ConfigError."""
    open_drive(settings.drive)
    if settings.drive.is_simulated:
        if is_production:
            raise ConfigError(f"cashdesk.drive: {_SIMULATION}, and server.production is true; name your own drive")
        yield _SIMULATION, "name your own drive under [cashdesk.drive] before you go live"


@hook.every(_RESUME_S)
async def resume() -> None:
    """Replay the dead letters of receipts that have no result.

    This happens if a worker crashed during the last attempt, or none ran for longer than the retry period. Receipts
    with a result were settled by the handler and have no dead letter.
    """
    since = datetime.now(UTC) - _RESUMED
    dead = await hook.operations.deliveries(
        application=OWN, type=FISCALISE, recipient=RECIPIENT, state="dead", since=since, limit=_PAGE
    )
    if dead:
        resumed = await hook.operations.replay([row.id for row in dead], note="its receipt is not finished yet")
        hook.log.info("receipts_resumed", count=len(resumed))


@hook.every(_RESUME_S)
async def end_ignored() -> None:
    """Mark receipts as FAILED whose dead letters an operator has ignored, because the drive is not called again."""
    async with hook.transaction() as tx:
        oldest = await tx.fetchval("select min(created_at) from cashdesk.operations where state = 'PENDING'")
    if oldest is None:
        return
    after = None
    while rows := await hook.operations.deliveries(
        application=OWN, type=FISCALISE, recipient=RECIPIENT, state="ignored", since=oldest - _SKEW, after=after,
        limit=_PAGE,
    ):  # fmt: skip
        for row in rows:
            await _set_aside(row.id)
        after = rows[-1].id


async def _set_aside(delivery: str) -> None:
    detail = await hook.operations.delivery(delivery)
    if detail["event"].expunged_at is not None:
        return
    work = msgspec.json.decode(detail["body"])
    user = User(id=work["user"], name="")
    async with hook.transaction() as tx:
        operation = await _pending(tx, user, work["operation"], "for update")
        if not isinstance(operation, Ignore):  # else the handler itself ignored it
            await _settle(tx, user, operation, {"sign": None, "declined": _SET_ASIDE})


@hook.on(None, FISCALISE, application=OWN, retry=RECEIPT_RETRY, timeout=120.0)
async def fiscalise(event: Event, tx: Transaction) -> Ignore | Retry | None:
    """Send a receipt to the drive once, then settle it with its operation and publish both.

    Nothing is locked while the drive works; its verdict is stored outside the transaction.
    """
    user = User(id=event.json["user"], name="")
    operation = await _pending(tx, user, event.json["operation"])
    if isinstance(operation, Ignore):
        return operation
    receipt = await ledger.get(tx, user, Entity.RECEIPTS, operation["receipt_id"])
    verdict = await _ask(event, receipt)
    if verdict is None:
        return Retry(code="DRIVE_AWAY")
    operation = await _pending(tx, user, operation["id"], "for update")
    if isinstance(operation, Ignore):
        return operation
    await _settle(tx, user, operation, verdict)
    return None


async def _pending(tx: Transaction, user: User, id: int, lock: ledger.Lock = "") -> Object | Ignore:
    """Return a pending operation, or why there is nothing to do."""
    try:
        operation = await ledger.get(tx, user, Entity.OPERATIONS, id, lock)
    except Missing:
        return Ignore("the operation no longer exists")
    if operation["state"] != "PENDING":
        return Ignore(f"the operation is {operation['state']} already")
    return operation


async def _ask(event: Event, receipt: Object) -> Verdict | None:
    """Return the drive's verdict on a receipt, or None if the request may be retried."""
    drive = open_drive(hook.settings.drive)
    try:
        verdict: Verdict = await event.once("drive", drive.fiscalise, receipt, event.attempt)
    except DriveBusy:
        is_last = event.attempt >= RECEIPT_RETRY.max_attempts
        return {"sign": None, "declined": _GIVEN_UP} if is_last else None
    return verdict


async def _settle(tx: Transaction, user: User, operation: Object, verdict: Verdict) -> None:
    state = "FAILED" if verdict["sign"] is None else "DONE"
    receipt = await ledger.get(tx, user, Entity.RECEIPTS, operation["receipt_id"], "for update")
    number = None if verdict["sign"] is None else await _next_document(tx, user, receipt)
    outcome = {"state": state, "error": verdict["declined"]}
    finished_at = await tx.fetchval("select to_jsonb(clock_timestamp()) #>> '{}'")
    recorded = {"sign": verdict["sign"], "document": number, "drive": verdict.get("drive")}
    await ledger.change(tx, user, Entity.RECEIPTS, receipt["id"], outcome | recorded)
    await ledger.change(tx, user, Entity.OPERATIONS, operation["id"], outcome | {"finished_at": finished_at})
    _ended.add(state=state)
    hook.log.info("receipt_fiscalised", user=user.id, receipt=receipt["id"], state=state, document=number)


async def _next_document(tx: Transaction, user: User, receipt: Object) -> int:
    """Return the device's next document number; it rolls back with the transaction, so there are no gaps."""
    number: int = await tx.fetchval(
        "insert into cashdesk.documents as d (device_id, latest)"
        " select device_id, 1 from cashdesk.shifts where user_id = $1 and id = $2"
        " on conflict (device_id) do update set latest = d.latest + 1 returning latest",
        user.id, receipt["shift_id"],
    )  # fmt: skip
    return number
