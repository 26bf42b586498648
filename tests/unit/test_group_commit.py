"""The engine of group commits: its limits, its failures, and who gets which outcome."""

import asyncio
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any

import pytest

from boathook.db import group_commit
from boathook.db.group_commit import Entry, GroupCommit
from boathook.domain.errors import DatabaseError, DatabaseUnavailable, RoutesChanged, TooManyDeliveries, ValueRejected
from tests.support import eventually

CALLER: ContextVar[str] = ContextVar("caller", default="nobody")


class Store:
    """Stores rows in memory once its gate is open; raises what *judge* returns for a row."""

    def __init__(self, judge: Callable[[str], Exception | None] = lambda _row: None) -> None:
        self.judge = judge
        self.groups: list[list[str]] = []
        self.limits: list[float | None] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def commit(self, rows: list[str], within_s: float | None) -> list[str]:
        self.groups.append(rows)
        self.limits.append(within_s)
        await self.gate.wait()
        for row in rows:
            if (error := self.judge(row)) is not None:
                raise error
        return [row.upper() for row in rows]


def group_commits(store: Store, **options: Any) -> GroupCommit[str, str]:
    limits = {"max_weight": 1_000, "max_rows": 100, "max_waiting": 100, "committers": 1}
    return GroupCommit(store.commit, name="test", weigh=len, **limits | options)


def put(commits: GroupCommit[str, str], rows: str | Sequence[str]) -> "list[asyncio.Future[str]]":
    waiters: list[asyncio.Future[str]] = [asyncio.get_running_loop().create_future() for _ in rows]
    for row, waiter in zip(rows, waiters, strict=True):
        commits.put(row, waiter)
    return waiters


async def outcomes(waiters: "list[asyncio.Future[str]]") -> list[str | BaseException]:
    return await asyncio.wait_for(asyncio.gather(*waiters, return_exceptions=True), 60)


async def test_rows_that_arrive_together_share_a_commit_and_each_gets_its_own_outcome():
    store = Store()
    assert await outcomes(put(group_commits(store), "abc")) == ["A", "B", "C"]
    assert (store.groups, store.limits) == ([["a", "b", "c"]], [None])


async def test_rows_that_arrive_during_a_commit_form_the_next_one():
    store = Store()
    commits = group_commits(store)
    store.gate.clear()
    waiters = put(commits, "a")
    await eventually(lambda: store.groups)
    waiters += put(commits, "bcd")
    assert commits.waiting == 3
    store.gate.set()
    assert await outcomes(waiters) == ["A", "B", "C", "D"]
    assert store.groups == [["a"], ["b", "c", "d"]]


@pytest.mark.parametrize(
    ("limits", "groups"),
    [
        ({"max_rows": 2}, [["aa", "bb"], ["cc", "dddddd"], ["ee"]]),
        ({"max_weight": 4}, [["aa", "bb"], ["cc"], ["dddddd"], ["ee"]]),
        ({"max_weight": 1}, [["aa"], ["bb"], ["cc"], ["dddddd"], ["ee"]]),
    ],
)
async def test_a_commit_is_bounded_by_rows_and_weight_but_takes_any_single_row(
    limits: dict[str, int], groups: list[list[str]]
):
    store = Store()
    rows = ["aa", "bb", "cc", "dddddd", "ee"]
    assert await outcomes(put(group_commits(store, **limits), rows)) == [row.upper() for row in rows]
    assert store.groups == groups


@pytest.mark.parametrize("committers", [1, 2, 3])
async def test_there_are_at_most_so_many_commits_at_once(committers: int):
    store = Store()
    store.gate.clear()
    commits = group_commits(store, committers=committers, max_rows=1)
    waiters = put(commits, "abcde")
    await eventually(lambda: len(store.groups) == committers)
    await asyncio.sleep(0)
    assert (len(store.groups), commits.waiting) == (committers, 5 - committers)
    store.gate.set()
    await outcomes(waiters)


async def test_the_queue_says_when_it_is_full():
    store = Store()
    commits = group_commits(store, max_waiting=2, is_paused=True)
    put(commits, "a")
    assert not commits.is_full
    put(commits, "b")
    assert commits.is_full


@pytest.mark.parametrize("error", [ValueRejected("never"), TooManyDeliveries("never")])
async def test_a_row_that_can_never_be_stored_fails_alone(error: Exception):
    store = Store(lambda row: error if row == "x" else None)
    assert await outcomes(put(group_commits(store), "abxcd")) == ["A", "B", error, "C", "D"]
    assert ["x"] in store.groups


@pytest.mark.parametrize("error", [DatabaseUnavailable("away"), RoutesChanged("again"), RuntimeError("a bug")])
async def test_another_error_fails_its_group_and_the_next_one_is_committed(error: Exception):
    is_failing = True
    store = Store(lambda _row: error if is_failing else None)
    commits = group_commits(store)
    assert await outcomes(put(commits, "ab")) == [error, error]
    is_failing = False
    assert await outcomes(put(commits, "c")) == ["C"]


async def test_a_failure_of_the_store_after_a_split_fails_what_is_left_of_the_group():
    def judge(row: str) -> Exception | None:
        return {"x": ValueRejected("never"), "y": DatabaseUnavailable("away")}.get(row)

    results = await outcomes(put(group_commits(Store(judge)), "axyb"))
    assert [type(result) for result in results] == [str, ValueRejected, DatabaseUnavailable, DatabaseUnavailable]


class TakenOver:
    """What is passed to `on_failure`."""

    def __init__(self) -> None:
        self.rows: list[str] = []
        self.errors: list[DatabaseError] = []

    def take(self, entries: Sequence[Entry[str, str]], error: DatabaseError) -> None:
        self.rows += [row for row, _, _ in entries]
        self.errors.append(error)


@pytest.mark.parametrize(("within_s", "rows"), [(60.0, ["a", "b", "c"]), (None, ["a"])])
async def test_only_with_a_limit_those_behind_a_failure_are_taken_over_too(within_s: float | None, rows: list[str]):
    store = Store(lambda row: DatabaseUnavailable("away") if row == "a" else None)
    store.gate.clear()
    taken = TakenOver()
    commits = group_commits(store, within_s=within_s, on_failure=taken.take)
    put(commits, "a")
    await eventually(lambda: store.groups)
    put(commits, "bc")
    store.gate.set()
    await commits.drain()
    assert taken.rows == rows
    assert str(taken.errors[0]) == "away"


async def test_rows_that_have_waited_for_too_long_are_taken_over_in_order(monkeypatch: pytest.MonkeyPatch):
    now = 1_000.0
    monkeypatch.setattr(group_commit, "time", SimpleNamespace(monotonic=lambda: now))
    store, taken = Store(), TakenOver()
    store.gate.clear()
    commits = group_commits(store, within_s=2.0, on_failure=taken.take)
    first = put(commits, "a")
    await eventually(lambda: store.groups)
    put(commits, "b")
    now += 2.5
    put(commits, "c")
    store.gate.set()
    assert await outcomes(first) == ["A"]
    await commits.drain()
    assert (store.groups, taken.rows) == ([["a"]], ["b", "c"])
    assert isinstance(taken.errors[0], DatabaseUnavailable)


@pytest.mark.parametrize(("waited_s", "left_s"), [(0.0, 2.0), (0.5, 1.5), (1.9, 0.5)])
async def test_a_commit_has_the_time_left_and_at_least_a_share(
    monkeypatch: pytest.MonkeyPatch, waited_s: float, left_s: float
):
    now = 1_000.0
    monkeypatch.setattr(group_commit, "time", SimpleNamespace(monotonic=lambda: now))
    store = Store()
    commits = group_commits(store, within_s=2.0, is_paused=True)
    waiters = put(commits, "a")
    now += waited_s
    commits.resume()
    assert await outcomes(waiters) == ["A"]
    assert store.limits == [pytest.approx(left_s)]


async def test_a_waiter_that_has_gone_affects_no_other():
    store = Store()
    store.gate.clear()
    waiters = put(group_commits(store), "ab")
    await eventually(lambda: store.groups)
    waiters[0].cancel()
    store.gate.set()
    assert await outcomes(waiters[1:]) == ["B"]


async def test_paused_nothing_is_committed_and_what_waited_is_returned():
    store = Store()
    commits = group_commits(store, is_paused=True)
    put(commits, "ab")
    await commits.drain()
    assert (store.groups, commits.waiting) == ([], 2)
    assert [row for row, _, _ in commits.pause()] == ["a", "b"]
    assert commits.waiting == 0
    later = put(commits, "c")
    commits.resume()
    assert await outcomes(later) == ["C"]
    assert await outcomes(put(commits, "d")) == ["D"]
    assert store.groups == [["c"], ["d"]]


async def test_paused_during_a_commit_the_next_one_does_not_begin():
    store = Store()
    store.gate.clear()
    commits = group_commits(store)
    first = put(commits, "a")
    await eventually(lambda: store.groups)
    assert commits.pause() == []
    later = put(commits, "b")
    store.gate.set()
    assert await outcomes(first) == ["A"]
    await commits.drain()
    assert (store.groups, commits.waiting) == ([["a"]], 1)
    commits.resume()
    assert await outcomes(later) == ["B"]


async def test_draining_commits_all_that_wait():
    store = Store()
    commits = group_commits(store, max_rows=1)
    waiters = put(commits, "abc")
    await commits.drain()
    assert [waiter.result() for waiter in waiters] == ["A", "B", "C"]


async def test_a_row_put_as_the_last_committer_ends_is_committed():
    store = Store()
    commits = group_commits(store)
    later: list[asyncio.Future[str]] = []
    (first,) = put(commits, "a")
    # Called between the end of the committer and whatever is called once its task is known to be done.
    first.add_done_callback(lambda _: later.extend(put(commits, "b")))
    await first
    await eventually(lambda: later)
    assert await outcomes(later) == ["B"]


async def test_a_committer_does_not_run_in_the_context_of_the_request_that_starts_it():
    seen: list[str] = []

    async def commit(rows: list[str], _within_s: float | None) -> list[str]:
        seen.append(CALLER.get())
        return rows

    limits = {"max_weight": 1_000, "max_rows": 100, "max_waiting": 100, "committers": 1}
    commits = GroupCommit(commit, name="test", weigh=len, **limits)
    CALLER.set("a request")
    await outcomes(put(commits, "a"))
    assert seen == ["nobody"]
