"""Claims deliveries under a lease, renews leases, and settles, reschedules, releases or reaps deliveries.

A success is settled by one call, `boathook.db.sql_functions.SETTLE`, made by the holder of the handler's transaction on
that connection. Everything else runs here, on boathook's own connections, in batches.
"""

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, Final, Protocol, TypeVar
from uuid import UUID

import asyncpg
import msgspec
from msgspec.structs import replace

from boathook.db import events
from boathook.db.database import Connection, Database, Record, translate_errors
from boathook.db.sql_functions import Arguments
from boathook.db.statements import load
from boathook.domain.errors import LeaseLost
from boathook.domain.model import Claim, Event
from boathook.domain.policy import (
    AttemptState,
    Complete,
    DeadLetter,
    Failure,
    Interruption,
    RetryAt,
    RetryDefaults,
    RetryPolicy,
    WaitUntil,
    decide,
)

SQL = load(__file__, fragments_of=(events.__file__,))

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
"""A watermark that includes every due delivery."""

_SUSPECT_AFTER = 2
CLAIM_ROUNDS: Final = 5
"""How often a claim is retried after a conflict with another worker."""

SIGNAL_RETENTION_S: Final = 3_600.0
"""How long signals are kept; an attempt that runs for longer may miss one that was sent meanwhile."""
_MAX_MATCHED: Final = 2_000
"""Signals that one round compares with waits; more are left to the next."""

_LOST = "LEASE_LOST"
_POLICY = msgspec.json.Decoder(RetryPolicy)


class ClaimLimit(msgspec.Struct, frozen=True):
    """The maximum number of due deliveries of one recipient that a worker may claim."""

    recipient: str
    slots: int
    since: datetime = EPOCH
    """Deliveries due before this time are skipped; `EPOCH` scans all."""
    maximum: int | None = None
    """Maximum number of leases of this recipient over all workers; None: no limit."""


class Lease(Protocol):
    """The right to one delivery, identified by its fence."""

    @property
    def event_id(self) -> UUID: ...  # noqa: D102
    @property
    def ordinal(self) -> int: ...  # noqa: D102
    @property
    def fence(self) -> int: ...  # noqa: D102


AnyClaimLimit = TypeVar("AnyClaimLimit", bound=ClaimLimit)


class ClaimedDelivery(msgspec.Struct, frozen=True):
    """A claim with its event."""

    claim: Claim
    event: Event | None
    """None if the event was deleted; retention never deletes the event of a pending delivery."""
    due_at: datetime
    claimed_at: datetime
    """The database's time of the claim."""


class FailedAttempt(msgspec.Struct, frozen=True):
    """An attempt that did not succeed, with the decision of the retry policy."""

    claim: Claim
    decision: RetryAt | DeadLetter
    outcome: str
    """``failed``, ``retry``, ``dead`` or ``lost``, as recorded with the attempt."""
    traceback: str | None
    worker: str
    started_at: datetime
    dependency: str | None = None
    """The service that failed, if it is known."""


class WaitingAttempt(msgspec.Struct, frozen=True):
    """An attempt after which its delivery waits, or is ignored because what it waited for has not come."""

    claim: Claim
    decision: WaitUntil | Complete
    worker: str
    started_at: datetime


class Backlog(msgspec.Struct, frozen=True):
    """Unfinished deliveries and dead letters of one recipient."""

    recipient: str
    due: int
    later: int
    blocked: int
    leased: int
    dead: int
    oldest_due_s: float
    ages: Sequence[int]
    """Due deliveries by how long they have been due: less than 10 s, a minute, 10 minutes, an hour, or longer."""


class CommitOutcome(Enum):
    """The result of an attempt whose commit got no response."""

    SETTLED = "settled"
    """The commit succeeded."""
    HELD = "held"
    """It failed, and the lease still holds."""
    LOST = "lost"
    """It failed, and the lease is lost."""


def transaction_mark(claim: Claim) -> str:
    """Return the marker of the transaction opened for *claim*, stored in the setting boathook.mark."""
    return f"{claim.event_id}/{claim.ordinal}/{claim.fence}"


def settle_arguments(
    claim: Claim, decision: Complete, *, worker: str, started_at: datetime, mark: str | None = None
) -> Arguments:
    """Return the arguments of `SETTLE` that complete *claim* with success.

    Args:
        mark: the mark of the transaction; None means `transaction_mark`.
    """
    return (
        str(claim.event_id),
        str(claim.ordinal),
        str(claim.fence),
        "succeeded" if decision.ignored_because is None else "ignored",
        decision.ignored_because,
        worker,
        started_at.isoformat(),
        transaction_mark(claim) if mark is None else mark,
    )


class DeliveryStore:
    """The database's queue of deliveries.

    Args:
        database: where the deliveries are.
        retries: the policies of handlers and endpoints without their own.
    """

    def __init__(self, database: Database, retries: RetryDefaults) -> None:
        self._database = database
        self._retries = retries

    async def claim(
        self, limits: Sequence[ClaimLimit], *, worker: str, lease_s: float, is_suspect: bool = False
    ) -> list[ClaimedDelivery]:
        """Lease due deliveries for *worker*, at most as many as each of *limits* allows, longest due first.

        Args:
            is_suspect: Lease at most one delivery, of those that lost their worker twice in a row; otherwise none of
                these.
        """

        async def claim(connection: Connection, allowed: Sequence[ClaimLimit]) -> list[Record]:
            return await connection.fetch(
                SQL["claim_due"],
                worker,
                timedelta(seconds=lease_s),
                1 if is_suspect else None,
                [limit.recipient for limit in allowed],
                [limit.slots for limit in allowed],
                [limit.since for limit in allowed],
                [limit.maximum for limit in allowed],
                is_suspect,
            )

        return [_to_claimed_delivery(row) for row in await claim_rows(self._database, limits, claim)]

    async def renew(self, claims: Sequence[Lease], *, lease_s: float) -> set[tuple[UUID, int, int]]:
        """Renew leases; return those that no longer hold, as (event id, ordinal, fence)."""
        rows = await self._database.fetch(SQL["renew_leases"], *_keys(claims), timedelta(seconds=lease_s))
        return {(row["event_id"], row["ordinal"], row["fence"]) for row in rows}

    async def record_failed_attempts(self, failed_attempts: Sequence[FailedAttempt]) -> list[bool]:
        """Record failed attempts and move their deliveries; return for each whether its lease was held."""
        rows = await self._database.fetch(SQL["record_failure"], *_failure_columns(failed_attempts))
        moved = {row["position"]: row["is_moved"] for row in rows}
        return [moved[position] for position in range(1, len(failed_attempts) + 1)]

    async def record_attempts(
        self, failed: Sequence[FailedAttempt], waiting: Sequence[WaitingAttempt]
    ) -> tuple[list[bool], list[bool]]:
        """Do what `record_failed_attempts` does, and record waits, in one transaction; return the same for each."""
        async with self._database.queue_transaction() as connection:
            are_held = []
            for name, columns in (
                ("record_failure", _failure_columns(failed)),
                ("record_wait", _wait_columns(waiting)),
            ):
                rows = await connection.fetch(SQL[name], *columns)
                moved = {row["position"]: row["is_moved"] for row in rows}
                are_held.append([moved[position] for position in range(1, len(columns[0]) + 1)])
            return are_held[0], are_held[1]

    async def match_signals(self) -> int:
        """Wake deliveries whose signal was committed while they began to wait; return the number."""
        async with self._database.queue_transaction() as connection:
            return int(await connection.fetchval(SQL["match_signals"], _MAX_MATCHED))

    async def drop_signals(self) -> None:
        """Delete old signals, and the waits of deliveries that have ended."""
        async with self._database.queue_transaction() as connection:
            await connection.execute(SQL["drop_signals"], SIGNAL_RETENTION_S)
            await connection.execute(SQL["drop_waits"])

    async def release_claims(self, claims: Sequence[Lease]) -> None:
        """Release claims whose attempt did not start, without counting an attempt."""
        await self._database.execute(SQL["release_claims"], *_keys(claims))

    async def reap(self, *, dead_workers: Sequence[str] = ()) -> int:
        """Take back leases that have expired, or those of workers known to be dead; return the number.

        Each counts as a failed attempt; the policy of its route or endpoint decides whether there is another one.
        """
        async with self._database.queue_transaction() as connection:
            rows = await connection.fetch(SQL["find_lost"], list(dead_workers))
            if rows:
                await connection.fetch(SQL["record_failure"], *_failure_columns([self._lost(row) for row in rows]))
        return len(rows)

    def _lost(self, row: Record) -> FailedAttempt:
        """Decide what follows a lost lease, by the policy of its route or endpoint or, without one, the default.

        A handler may have crashed its worker, so the loss counts as an attempt. An endpoint cannot, so it does not.
        """
        policy = self._policy_of(row)
        error = f"worker {row['leased_by']} vanished while it held this delivery"
        loss = Interruption(error=error) if row["is_sent"] else Failure(code=_LOST, error=error)
        state = AttemptState(attempt=row["attempt"], enqueued_at=row["enqueued_at"], free_retries=row["free_retries"])
        decision = decide(state, loss, policy, row["now"], random.random())
        if isinstance(decision, Complete | WaitUntil):
            raise AssertionError("a loss cannot settle a delivery")  # noqa: TRY004
        claim = Claim(
            event_id=row["event_id"],
            ordinal=row["ordinal"],
            recipient=row["recipient"],
            fence=row["fence"],
            attempt=row["attempt"],
            attempts_before=0,
            enqueued_at=row["enqueued_at"],
            order_key=None,
            suspect=False,
        )
        # The start time is unknown; it was before the lease ended and before now.
        return FailedAttempt(
            claim, replace(decision, code=_LOST), "lost", None, row["leased_by"], min(row["lease_until"], row["now"])
        )

    def _policy_of(self, row: Record) -> RetryPolicy:
        own_policy = None if row["policy"] is None else _POLICY.decode(row["policy"])
        if row["is_sent"]:
            return own_policy or self._retries.endpoints
        # A route for any source is stored with the default policy, but the event's source may have its own.
        if own_policy is None or (row["is_any_source"] and own_policy == self._retries.policy):
            return self._retries.of(row["source"])
        return own_policy

    async def unblock(self) -> int:
        """Unblock every order key whose first delivery was left blocked; return the number."""
        async with self._database.queue_transaction() as connection:
            return int(await connection.fetchval(SQL["unblock_heads"]))

    async def commit_outcome(self, claim: Claim) -> CommitOutcome:
        """Return the result of an attempt whose commit got no response, after waiting for a commit in progress."""
        async with self._database.transaction() as connection:
            if await connection.fetchval(SQL["find_held"], claim.event_id, claim.ordinal, claim.fence):
                return CommitOutcome.HELD
            settled = await connection.fetchval(SQL["find_settled"], claim.event_id, claim.ordinal, claim.attempt)
            return CommitOutcome.SETTLED if settled else CommitOutcome.LOST

    async def find_side_effect(self, claim: Claim, name: str) -> str | None:
        """Return the stored result of a side effect as JSON text, or None.

        Raises:
            LeaseLost: another process holds the delivery, so the side effect must not run here.
        """
        row = await self._database.fetchrow(
            SQL["recall_effect"], claim.event_id, claim.ordinal, claim.fence, claim.recipient, _effect(claim, name)
        )
        if row is None or not row["is_held"]:
            raise LeaseLost(f"the lease of {claim.recipient} ended before {name!r} was done")
        result: str | None = row["result"]
        return result

    async def save_side_effect(self, claim: Claim, name: str, result: str) -> None:
        """Store the result of a side effect as JSON text, immediately and permanently."""
        await self._database.execute(
            SQL["save_side_effect"], claim.event_id, claim.recipient, _effect(claim, name), result
        )

    async def backlog(self) -> list[Backlog]:
        """Count the unfinished deliveries and dead letters of each recipient."""
        return [Backlog(**dict(row)) for row in await self._database.fetch(SQL["count_backlog"])]

    async def find_troubled_endpoints(self) -> tuple[Sequence[UUID], int]:
        """Return the endpoints that failed since their last success, and the number of disabled ones.

        Disabled and paused endpoints are left out. At most 200 are returned, those that failed last.
        """
        row = await self._database.fetchrow(SQL["find_troubled_endpoints"])
        assert row is not None  # one row
        return row["failed"], row["disabled"]

    async def oldest_snapshot_s(self) -> float:
        """Return the age of the oldest open snapshot of the server, in seconds."""
        return float(await self._database.fetchval(SQL["age_of_oldest_snapshot"]))


async def claim_rows(
    database: Database,
    limits: Sequence[AnyClaimLimit],
    claim: Callable[[Connection, Sequence[AnyClaimLimit]], Awaitable[list[Record]]],
) -> list[Record]:
    """Run a claim; recipients with a limit take part only if they could be locked.

    The lock is a separate statement, because the claim must count leases in a snapshot taken after it. The claim is
    repeated if another worker leased the same order key concurrently; the next run sees that lease.
    """
    limited = [limit.recipient for limit in limits if limit.maximum is not None]
    for _ in range(CLAIM_ROUNDS):
        async with database.acquire() as connection:
            with translate_errors():
                try:
                    if not limited:
                        return await claim(connection, limits)
                    async with connection.transaction():
                        locked = {row["recipient"] for row in await connection.fetch(SQL["lock_recipients"], limited)}
                        allowed = [limit for limit in limits if limit.maximum is None or limit.recipient in locked]
                        return await claim(connection, allowed)
                except asyncpg.UniqueViolationError:
                    continue
    return []


@asynccontextmanager
async def elect_keeper(database: Database) -> AsyncIterator[Connection | None]:
    """Yield a connection that is the elected keeper while it is open, or None if another one is elected."""
    async with database.acquire() as connection:
        with translate_errors():
            is_keeper = await connection.fetchval(SQL["elect_keeper"])
        yield connection if is_keeper else None


def _to_claimed_delivery(row: Record) -> ClaimedDelivery:
    claim = Claim(
        event_id=row["event_id"],
        ordinal=row["ordinal"],
        recipient=row["recipient"],
        fence=row["fence"],
        attempt=row["attempts"],
        attempts_before=row["attempts_before"],
        enqueued_at=row["enqueued_at"],
        order_key=row["order_key"],
        free_retries=row["free_retries"],
        suspect=row["crashes"] >= _SUSPECT_AFTER,
        item_path=row["item_path"],
        item_type=row["item_type"],
    )
    event = None if row["id"] is None else events.to_event(row)
    return ClaimedDelivery(claim, event, row["due_at"], row["claimed_at"])


def _effect(claim: Claim, name: str) -> str:
    """Return the stored name of a side effect; the item path keeps the items of one event apart."""
    return name if claim.item_path is None else f"{claim.item_path}/{name}"


def _keys(claims: Sequence[Lease]) -> tuple[list[UUID], list[int], list[int]]:
    return (
        [claim.event_id for claim in claims],
        [claim.ordinal for claim in claims],
        [claim.fence for claim in claims],
    )


def _wait_columns(waiting: Sequence[WaitingAttempt]) -> list[list[Any]]:
    waits = [attempt.decision if isinstance(attempt.decision, WaitUntil) else None for attempt in waiting]
    notes = [
        attempt.decision.ignored_because if isinstance(attempt.decision, Complete) else attempt.decision.error
        for attempt in waiting
    ]
    return [
        *_keys([attempt.claim for attempt in waiting]),
        [wait and wait.key for wait in waits],
        [wait and wait.until for wait in waits],
        [wait and wait.code for wait in waits],
        notes,
        [attempt.worker for attempt in waiting],
        [attempt.started_at for attempt in waiting],
    ]


def _failure_columns(failed_attempts: Sequence[FailedAttempt]) -> list[list[Any]]:
    return [
        *_keys([failed.claim for failed in failed_attempts]),
        [failed.decision.due_at if isinstance(failed.decision, RetryAt) else None for failed in failed_attempts],
        [failed.outcome for failed in failed_attempts],
        [failed.decision.code for failed in failed_attempts],
        [failed.decision.error for failed in failed_attempts],
        [failed.traceback for failed in failed_attempts],
        [failed.worker for failed in failed_attempts],
        [failed.started_at for failed in failed_attempts],
        [isinstance(failed.decision, RetryAt) and failed.decision.is_free for failed in failed_attempts],
        [failed.dependency for failed in failed_attempts],
    ]
