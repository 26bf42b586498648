"""The life of a delivery: claimed under a lease, renewed, then settled, set back, given back or reaped.

Settling a success is the one call `boathook.db.sql_functions.SETTLE`, made by whoever holds the handler's transaction,
on whatever connection that is. Everything else happens here, on boathook's own connections, in batches.
"""

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, Final, Protocol, TypeVar
from uuid import UUID

import asyncpg
import msgspec

from boathook.db.database import Connection, Database, Record, translate_errors
from boathook.db.events import to_event
from boathook.db.sql_functions import Arguments
from boathook.db.statements import load
from boathook.domain.endpoints import RETRY_PRESETS
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
    decide,
)

SQL = load(__file__)

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
"""A watermark that lets every due delivery be looked at."""

_SUSPECT_AFTER = 2
CLAIM_ROUNDS: Final = 5
"""How often a claim looks again when another worker was quicker."""

_LOST = "LEASE_LOST"
_POLICY = msgspec.json.Decoder(RetryPolicy)


@dataclass(frozen=True, slots=True)
class ClaimLimit:
    """How much of one recipient's due work a worker would take."""

    recipient: str
    slots: int
    since: datetime = EPOCH
    """Nothing due before this is looked at; `EPOCH` for a full look."""
    most: int | None = None
    """Most leases of this recipient over all workers; None: no limit."""


class Lease(Protocol):
    """A right to one delivery, told by its fence."""

    @property
    def event_id(self) -> UUID: ...  # noqa: D102
    @property
    def ordinal(self) -> int: ...  # noqa: D102
    @property
    def fence(self) -> int: ...  # noqa: D102


AnyClaimLimit = TypeVar("AnyClaimLimit", bound=ClaimLimit)


@dataclass(frozen=True, slots=True)
class ClaimedDelivery:
    """A claim with the event it is about."""

    claim: Claim
    event: Event | None
    """None when the event is gone, which no retention of ours does to an owed one."""
    due_at: datetime
    claimed_at: datetime
    """The journal's clock at the claim."""


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """An attempt that ended without success, and the move the policy decided."""

    claim: Claim
    move: RetryAt | DeadLetter
    outcome: str
    """``failed``, ``retry``, ``dead`` or ``lost``, as the attempt is recorded."""
    traceback: str | None
    worker: str
    started_at: datetime


@dataclass(frozen=True, slots=True)
class Backlog:
    """What one recipient is owed."""

    recipient: str
    due: int
    later: int
    blocked: int
    leased: int
    dead: int
    oldest_due_s: float
    ages: Sequence[int]
    """Of those that are due, how many have been so for less than 10 s, a minute, 10 minutes, an hour, or longer."""


class CommitOutcome(Enum):
    """What became of an attempt whose commit was not answered."""

    SETTLED = "settled"
    """It was committed."""
    HELD = "held"
    """It was not, and its lease still holds."""
    LOST = "lost"
    """It was not, and the lease is another's."""


def transaction_mark(claim: Claim) -> str:
    """Return the text that marks the transaction opened for *claim*, held in the setting boathook.mark."""
    return f"{claim.event_id}/{claim.ordinal}/{claim.fence}"


def settle_arguments(claim: Claim, move: Complete, *, worker: str, started_at: datetime) -> Arguments:
    """Return the arguments of `SETTLE` that end *claim* well."""
    return (
        str(claim.event_id),
        str(claim.ordinal),
        str(claim.fence),
        "succeeded" if move.ignored_because is None else "ignored",
        move.ignored_because,
        worker,
        started_at.isoformat(),
        transaction_mark(claim),
    )


class DeliveryStore:
    """The journal's queue of deliveries."""

    def __init__(
        self,
        database: Database,
        *,
        endpoint_policy: RetryPolicy = RETRY_PRESETS["standard-webhooks"],
        retries: RetryDefaults | None = None,
    ) -> None:
        self._database = database
        self._endpoint_policy = endpoint_policy
        """That of endpoints without one of their own."""
        self._retries = retries or RetryDefaults()
        """Those of handlers without one of their own."""

    async def claim(
        self, wants: Sequence[ClaimLimit], *, worker: str, lease_s: float, is_suspect: bool = False
    ) -> list[ClaimedDelivery]:
        """Lease due deliveries for *worker*, at most so many as each of *wants* says, the longest due first.

        Args:
            is_suspect: Lease one in all, of those that have lost their worker twice in a row; else none of these.
        """

        async def claim(connection: Connection, allowed: Sequence[ClaimLimit]) -> list[Record]:
            return await connection.fetch(
                SQL["claim_due"],
                worker,
                timedelta(seconds=lease_s),
                1 if is_suspect else None,
                [want.recipient for want in allowed],
                [want.slots for want in allowed],
                [want.since for want in allowed],
                [want.most for want in allowed],
                is_suspect,
            )

        return [_to_claimed_delivery(row) for row in await claim_rows(self._database, wants, claim)]

    async def renew(self, claims: Sequence[Lease], *, lease_s: float) -> set[tuple[UUID, int, int]]:
        """Prolong leases; return those that no longer hold, as (event id, ordinal, fence)."""
        rows = await self._database.fetch(SQL["renew_leases"], *_keys(claims), timedelta(seconds=lease_s))
        return {(row["event_id"], row["ordinal"], row["fence"]) for row in rows}

    async def record_failed_attempts(self, ended: Sequence[FailedAttempt]) -> list[bool]:
        """Record attempts that ended without success and move their deliveries; says of each whether it was held."""
        rows = await self._database.fetch(SQL["record_failure"], *_failure_columns(ended))
        moved = {row["position"]: row["is_moved"] for row in rows}
        return [moved[position] for position in range(1, len(ended) + 1)]

    async def release_claims(self, claims: Sequence[Lease]) -> None:
        """Undo claims whose attempt did not begin, so that it does not count."""
        await self._database.execute(SQL["give_back"], *_keys(claims))

    async def reap(self, *, dead_workers: Sequence[str] = ()) -> int:
        """Take back leases that ran out, or whose holder is known to be dead; return how many were taken.

        Each counts as a lost attempt, and the policy of its route or endpoint decides whether there will be another.
        """
        async with self._database.transaction() as connection:
            rows = await connection.fetch(SQL["find_lost"], list(dead_workers))
            if rows:
                await connection.fetch(SQL["record_failure"], *_failure_columns([self._lost(row) for row in rows]))
        return len(rows)

    def _lost(self, row: Record) -> FailedAttempt:
        """Decide what follows a lost lease, by the policy of its route or endpoint or, without one, the default.

        A handler may have taken its worker down, so that counts. An endpoint cannot, so it loses no attempt by that.
        """
        policy = self._policy_of(row)
        error = f"worker {row['leased_by']} vanished while it held this delivery"
        loss = Interruption(error=error) if row["is_sent"] else Failure(code=_LOST, error=error)
        standing = AttemptState(
            attempt=row["attempt"], enqueued_at=row["enqueued_at"], free_retries=row["free_retries"]
        )
        move = decide(standing, loss, policy, row["now"], random.random())
        if isinstance(move, Complete):
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
        # When it began is not known any more; it was before its lease ended, and before this moment.
        return FailedAttempt(
            claim, replace(move, code=_LOST), "lost", None, row["leased_by"], min(row["lease_until"], row["now"])
        )

    def _policy_of(self, row: Record) -> RetryPolicy:
        stored = None if row["policy"] is None else _POLICY.decode(row["policy"])
        if row["is_sent"]:
            return stored or self._endpoint_policy
        # A line for any source is stored with the default, in place of which the event's source may have another.
        if stored is None or (row["is_any_source"] and stored == self._retries.policy):
            return self._retries.of(row["source"])
        return stored

    async def unblock(self) -> int:
        """Free every order key whose first delivery was left waiting; return how many were."""
        return int(await self._database.fetchval(SQL["unblock_heads"]))

    async def commit_outcome(self, claim: Claim) -> CommitOutcome:
        """Find out what became of an attempt whose commit was not answered, waiting while it is still under way."""
        async with self._database.transaction() as connection:
            if await connection.fetchval(SQL["find_held"], claim.event_id, claim.ordinal, claim.fence):
                return CommitOutcome.HELD
            settled = await connection.fetchval(SQL["find_settled"], claim.event_id, claim.ordinal, claim.attempt)
            return CommitOutcome.SETTLED if settled else CommitOutcome.LOST

    async def find_side_effect(self, claim: Claim, name: str) -> str | None:
        """Return the remembered result of a side effect as JSON text, or None.

        Raises:
            LeaseLost: the delivery is another's, so the side effect must not be done here.
        """
        row = await self._database.fetchrow(
            SQL["recall_effect"], claim.event_id, claim.ordinal, claim.fence, claim.recipient, _effect(claim, name)
        )
        if row is None or not row["is_held"]:
            raise LeaseLost(f"the lease of {claim.recipient} ended before {name!r} was done")
        result: str | None = row["result"]
        return result

    async def save_side_effect(self, claim: Claim, name: str, result: str) -> None:
        """Keep the result of a side effect, as JSON text, at once and for good."""
        await self._database.execute(
            SQL["remember_effect"], claim.event_id, claim.recipient, _effect(claim, name), result
        )

    async def backlog(self) -> list[Backlog]:
        """Count what each recipient is owed."""
        return [Backlog(**dict(row)) for row in await self._database.fetch(SQL["count_backlog"])]

    async def count_unhealthy_endpoints(self) -> tuple[int, int]:
        """Count the enabled endpoints whose latest requests failed, and the disabled ones."""
        row = await self._database.fetchrow(SQL["count_troubled_endpoints"])
        assert row is not None  # one row of two sums
        return row["failing"], row["disabled"]

    async def oldest_snapshot_s(self) -> float:
        """Return the age of the oldest open snapshot of the server, in seconds."""
        return float(await self._database.fetchval(SQL["age_of_oldest_snapshot"]))


async def claim_rows(
    database: Database,
    wants: Sequence[AnyClaimLimit],
    claim: Callable[[Connection, Sequence[AnyClaimLimit]], Awaitable[list[Record]]],
) -> list[Record]:
    """Run a claim for what may be claimed: of limited recipients only for those that could be locked.

    The lock is a statement of its own, because the next one must count leases in a snapshot taken after it. The claim
    runs again where another worker leased the same order key in the same moment; the next look sees its lease.
    """
    limited = [want.recipient for want in wants if want.most is not None]
    for _ in range(CLAIM_ROUNDS):
        async with database.acquire() as connection:
            with translate_errors():
                try:
                    if not limited:
                        return await claim(connection, wants)
                    async with connection.transaction():
                        locked = {row["recipient"] for row in await connection.fetch(SQL["lock_recipients"], limited)}
                        allowed = [want for want in wants if want.most is None or want.recipient in locked]
                        return await claim(connection, allowed)
                except asyncpg.UniqueViolationError:
                    continue
    return []


@asynccontextmanager
async def elect_keeper(database: Database) -> AsyncIterator[Connection | None]:
    """Lend a connection that is the elected keeper for as long as it lives, or None where another is."""
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
    event = None if row["id"] is None else to_event(row)
    return ClaimedDelivery(claim, event, row["due_at"], row["claimed_at"])


def _effect(claim: Claim, name: str) -> str:
    """Return the name of a side effect as it is stored: those of one event's items must not be taken for each other."""
    return name if claim.item_path is None else f"{claim.item_path}/{name}"


def _keys(claims: Sequence[Lease]) -> tuple[list[UUID], list[int], list[int]]:
    return (
        [claim.event_id for claim in claims],
        [claim.ordinal for claim in claims],
        [claim.fence for claim in claims],
    )


def _failure_columns(ended: Sequence[FailedAttempt]) -> list[list[Any]]:
    return [
        *_keys([one.claim for one in ended]),
        [one.move.due_at if isinstance(one.move, RetryAt) else None for one in ended],
        [one.outcome for one in ended],
        [one.move.code for one in ended],
        [one.move.error for one in ended],
        [one.traceback for one in ended],
        [one.worker for one in ended],
        [one.started_at for one in ended],
        [isinstance(one.move, RetryAt) and one.move.is_free for one in ended],
    ]
