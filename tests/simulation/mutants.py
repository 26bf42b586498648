"""Mutants: each removes one safeguard of the production code, and the simulation must find a violation."""

import contextlib
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from boathook.db.deliveries import DeliveryStore
from boathook.delivery.keeper import Keeper
from boathook.domain.errors import DatabaseError
from boathook.ingest.intake import Intake, Mode
from boathook.spool.segment_store import Segment, SegmentStore
from boathook.spool.spool import Spool
from tests.simulation import disk, ingest_statements, lease_statements
from tests.simulation.plan import Plan
from tests.simulation.tables import Row, Transaction

Mutant = Callable[[pytest.MonkeyPatch], None]


def without_fences(patch: pytest.MonkeyPatch) -> None:
    """A process that lost its lease may still end the delivery."""
    patch.setattr(lease_statements, "holds", lambda row, _fence: row is not None and row.leased_by is not None)


def counting_attempts_when_they_fail(patch: pytest.MonkeyPatch) -> None:
    """An attempt that takes its worker down is never counted."""
    lease, record_failure = lease_statements.take_lease, lease_statements.record_failure_one

    def uncounted(t: Transaction, row: Row, worker: str, interval: Any) -> Row:
        return t.move(lease(t, row, worker, interval), attempts=row.attempts)

    def counted(
        t: Transaction, event_id: Any, ordinal: int, fence: int, due: Any, outcome: str, *rest: Any, **more: Any
    ) -> bool:
        row = t.latest("delivery", (event_id, ordinal))
        if outcome != "lost" and row is not None and row.fence == fence and t.try_hold("delivery", row.key):
            t.move(row, attempts=row.attempts + 1)
        return record_failure(t, event_id, ordinal, fence, due, outcome, *rest, **more)

    patch.setattr(lease_statements, "take_lease", uncounted)
    patch.setattr(lease_statements, "record_failure_one", counted)
    patch.setattr(lease_statements, "record_attempt", lambda *_: None)


def without_rescue(patch: pytest.MonkeyPatch) -> None:
    """Leases of dead processes are never taken back."""

    async def nothing(*_: object, **__: object) -> int:
        return 0

    patch.setattr(Keeper, "_reap", nothing)
    patch.setattr(DeliveryStore, "reap", nothing)


def answering_before_the_disk_has_it(patch: pytest.MonkeyPatch) -> None:
    """The spool acknowledges data in the page cache."""
    patch.setattr(disk.File, "sync", lambda _self: None)


def draining_out_of_order(patch: pytest.MonkeyPatch) -> None:
    """The newest segment is drained first."""
    oldest = SegmentStore.oldest

    def newest(self: SegmentStore) -> Segment | None:
        self.seal()
        for life in self._folders():
            life.segments = deque(sorted(life.segments, key=lambda one: one.path, reverse=True))
        return oldest(self)

    patch.setattr(SegmentStore, "oldest", newest)


def putting_a_segment_aside_before_it_is_stored(patch: pytest.MonkeyPatch) -> None:
    """A drained segment is renamed first and committed afterwards."""

    bring_and_finish = Intake._drain_segment

    async def nothing(_segment: Segment) -> None:
        pass

    async def bring(self: Intake, spool: Spool, segment: Segment, patience_s: float) -> int:
        await spool.finish(segment)
        spool.finish = nothing  # type: ignore[assignment, method-assign]
        try:
            return await bring_and_finish(self, spool, segment, patience_s)
        finally:
            del spool.finish

    patch.setattr(Intake, "_drain_segment", bring)


def going_direct_past_the_spool(patch: pytest.MonkeyPatch) -> None:
    """Newer events go to the database while older ones still wait in the spool."""
    accept = Intake.accept

    async def accept_directly(self: Intake, event: Any) -> Any:
        if self.mode is not Mode.DIRECT:
            with contextlib.suppress(DatabaseError):
                return (await self._store.append([event], 1.0))[0]
        return await accept(self, event)

    patch.setattr(Intake, "accept", accept_directly)


def claiming_out_of_order(patch: pytest.MonkeyPatch) -> None:
    """A claim ignores other deliveries with the same order key."""

    def is_due(t: Transaction, row: Row, watermark: Any) -> bool:
        return row.state == "pending" and watermark <= row.due_at <= t.now and row.crashes < 2

    patch.setattr(lease_statements, "is_first", lambda _t, _row: True)
    patch.setattr(lease_statements, "is_due", is_due)


def forgetting_keys(patch: pytest.MonkeyPatch) -> None:
    """Keys are remembered, and never looked at."""

    def remember(t: Transaction, seen: Any) -> bool:
        t.put("dedup", seen.key, seen)
        return True

    patch.setattr(ingest_statements, "remember", remember)


def leaving_lines_blocked(patch: pytest.MonkeyPatch) -> None:
    """The next delivery of an order key is never unblocked."""
    patch.setattr(lease_statements, "unblock", lambda *_: None)


def removing_folders_of_the_living(patch: pytest.MonkeyPatch) -> None:
    """An empty folder is removed although another process may want to spool into it again."""
    patch.setattr(SegmentStore, "_remove_unused", lambda self, folder: self._disk.remove_folder(folder))


def naming_a_segment_like_one_that_failed(patch: pytest.MonkeyPatch) -> None:
    """A segment that could not be made leaves its name to the next one."""
    begin = SegmentStore._begin

    def begin_again(self: SegmentStore, size: int) -> Any:
        name = self._next
        try:
            return begin(self, size)
        except OSError:
            self._next = name
            raise

    patch.setattr(SegmentStore, "_begin", begin_again)


ALL: dict[Mutant, tuple[str, int]] = {
    without_fences: ("C5|C7|C8|C9", 955),
    counting_attempts_when_they_fail: ("C8|C11", 16),
    without_rescue: ("C11", 6),
    answering_before_the_disk_has_it: ("C1:", 13),
    draining_out_of_order: ("C6", 3),
    putting_a_segment_aside_before_it_is_stored: ("C1:", 35),
    going_direct_past_the_spool: ("C6", 3),
    claiming_out_of_order: ("C6", 2),
    forgetting_keys: ("C3", 3),
    leaving_lines_blocked: ("C11", 2),
    removing_folders_of_the_living: ("C11", 11),
    naming_a_segment_like_one_that_failed: ("C11", 52),
}
"""Each mutant with the invariants that it must violate, and a seed that finds it."""

PLANS: dict[Mutant, Callable[[Plan], bool]] = {
    without_fences: lambda plan: "pause worker" in plan.faults and plan.lease_s == 1.0 and plan.workers > 1
}
"""The plans that can find a mutant where most cannot: a late commit must meet the lease of another worker."""
