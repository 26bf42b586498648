"""Groups of dead letters: found, counted, described, and decided about in the background."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from boathook.config import load
from boathook.db import dead_letter_groups, tasks
from boathook.db.database import Database
from boathook.db.dead_letter_groups import DeadLetterGroup
from boathook.db.delivery_commands import ReplayOutcomes
from boathook.db.queries import listings
from boathook.db.queries.listings import ListFilter
from boathook.db.secret_box import SecretBox
from boathook.db.tasks import Task, TaskState
from boathook.delivery import tasks as runner
from boathook.domain import ids
from boathook.domain.errors import InvalidState, InvalidValue, LimitReached, NotFound
from boathook.domain.windows import Window
from boathook.handlers.outbox import Outbox
from boathook.service.caller import HOST
from boathook.service.catalogue import jobs
from boathook.service.catalogue.dead_letters import purge
from boathook.service.catalogue.jobs import JobNamed
from boathook.service.operating import dead_letters as actions
from boathook.service.operating.event_query import EventQuery
from boathook.service.unit_of_work import AppContext
from boathook_console.derived import check_typed
from tests.postgres.db.test_integrity import Store
from tests.postgres.operating.dead_letter_actions import ignore_group, purge_group, replay_group
from tests.postgres.operating.event_actions import start_replay
from tests.postgres.portal_client import open_console

FAIL_SQL = "select boathook.record_failure($1, $2, $3, null, 'failed', $4, $5, 'trace', 'w', now())"


class DeadLetterStore(Store):
    """A store in which deliveries fail for good with chosen errors."""

    number = 0

    async def add_dead(self, *errors: str, to: str = "handler:upgrade", code: str = "KeyError") -> list:
        keys = []
        for error in errors:
            self.number += 1
            event = await self.accept(f"event-{self.number}", to)
            await self.fail_with(event, code, error)
            keys.append((event, 0))
        return keys

    async def fail_with(self, event, code: str, error: str) -> None:
        fence = await self.claim(event)
        assert await self.db.fetchval(FAIL_SQL, event, 0, fence, code, error)

    async def groups(self, **wanted: str) -> list[DeadLetterGroup]:
        return (await dead_letter_groups.list_groups(self.db, **wanted))[0]

    async def states(self) -> dict[str, int]:
        rows = await self.db.fetch("select state, count(*) from boathook.delivery group by 1")
        return {row[0]: row[1] for row in rows}


@pytest.fixture
async def dead_letters(db: Database) -> AsyncIterator[DeadLetterStore]:
    """A store with dead letters; at the end `boathook check` must find no violation."""
    dead_letters = DeadLetterStore(db)
    yield dead_letters
    assert (await dead_letters.verify()).violations == ()


@pytest.fixture
def context(db: Database) -> AppContext:
    return AppContext(load(None), db, SecretBox(["a key that only tests know"]), Outbox())


async def decide(context: AppContext, what, *args, **more) -> Any:
    async with context.work(actor="console:anna", caller=HOST) as work:
        return await what(work, *args, **more)


async def follow(context: AppContext, task: Task) -> jobs.Job:
    return await decide(context, jobs.get, JobNamed(id=task.shown_id))


async def finish(context: AppContext, task: Task) -> jobs.Job:
    for _ in range(1_000):
        progress = await follow(context, task)
        if progress.state != "running":
            return progress
        await runner.run_step(context.database, Outbox())
    raise AssertionError("it does not end")


async def interrupted_step(context: AppContext) -> None:
    """Run a step of the next task, killed before its commit."""
    async with context.database.transaction() as connection:
        taken = await tasks.lock_next(connection)
        assert taken is not None
        await runner.advance(connection, Outbox(), taken)
        raise RuntimeError("killed")


SHAPES = {
    "KeyError: 'customer'": "KeyError: '*'",
    'no such plan "pro" for cus_81f3ab': "no such plan '*' for #",
    "can't open it, won't try": "can't open it, won't try",
    "took 12.5 s, 3 rows": "took # s, # rows",
    "row 550e8400-e29b-41d4-a716-446655440000 is gone": "row # is gone",
    "at 2026-11-21T10:00:00.123Z": "at #",
    "points [1, 2, 3, 4]": "points [#]",
    "hash deadbeefcafe": "hash #",
    "one\n  two\tthree": "one two three",
    None: "",
}


@pytest.mark.parametrize("error", SHAPES)
async def test_a_shape_is_an_error_without_its_variable_parts(db: Database, error):
    assert await db.fetchval("select boathook.dead_shape($1)", error) == SHAPES[error]


async def test_a_shape_of_the_longest_error_is_short_and_quick(db: Database):
    for error in ("'" * 2_000, "1-" * 1_000, "a1 " * 666, "#" * 2_000, "`" + "x" * 1_998 + "`"):
        assert len(await db.fetchval("select boathook.dead_shape($1)", error)) <= 200


async def test_dead_letters_are_grouped_by_recipient_code_and_shape(dead_letters: DeadLetterStore):
    await dead_letters.add_dead("KeyError: 'a'", "KeyError: 'b'", "KeyError: 'c'")
    await dead_letters.add_dead("KeyError: 'a'", to="handler:mail")
    await dead_letters.add_dead("KeyError: 'a'", code="ValueError")
    await dead_letters.add_dead("KeyError: the other one")
    groups = await dead_letters.groups()
    assert [group.number for group in groups] == [3, 1, 1, 1]
    (first,) = await dead_letter_groups.with_types(dead_letters.db, groups[:1])
    assert (first.recipient, first.code, first.shape) == ("handler:upgrade", "KeyError", "KeyError: '*'")
    assert first.types == ("payment.paid",)
    assert first.error == "KeyError: 'c'"
    assert first.oldest < first.newest
    assert first.hourly == (0,) * 23 + (3,)


async def test_a_group_is_counted_by_hour_for_a_day(dead_letters: DeadLetterStore):
    keys = await dead_letters.add_dead("x", "x", "x", "x", "x")
    hours_ago = (-0.01, 0.9, 1.1, 23.9, 24.1)
    for (event, _), hours in zip(keys, hours_ago, strict=True):
        died = "update boathook.delivery set dead_at = now() - make_interval(secs => $2) where event_id = $1"
        await dead_letters.db.execute(died, event, 3600 * hours)
    (group,) = await dead_letters.groups()
    assert group.hourly == (1,) + (0,) * 21 + (1, 2)
    assert (group.number, group.oldest < group.newest - timedelta(days=1)) == (5, True)


async def test_groups_are_found_by_recipient_and_code(dead_letters: DeadLetterStore):
    await dead_letters.add_dead("x", "y")
    await dead_letters.add_dead("x", to="handler:mail", code="TIMEOUT")
    assert [group.recipient for group in await dead_letters.groups(recipient="*mail")] == ["handler:mail"]
    assert [group.code for group in await dead_letters.groups(code="TIMEOUT")] == ["TIMEOUT"]
    assert await dead_letters.groups(code="NONE") == []


async def test_a_group_list_is_limited_and_marked_as_cut(dead_letters: DeadLetterStore, monkeypatch):
    monkeypatch.setattr(dead_letter_groups, "MAX_GROUPS", 2)
    monkeypatch.setattr(dead_letter_groups, "MAX_RECENT", 1)
    await dead_letters.add_dead("one", "two", "three", "four", "five")
    groups, is_cut = await dead_letter_groups.list_groups(dead_letters.db)
    assert is_cut
    assert 2 <= len(groups) <= 3
    assert "five" in {group.shape for group in groups}, "what died last is among them"


async def test_dead_letters_of_a_group_are_paged_newest_first(dead_letters: DeadLetterStore):
    keys = await dead_letters.add_dead(*(f"row {n} is gone" for n in range(7)))
    (group,) = await dead_letters.groups()
    seen = []
    after = None
    while page := await dead_letter_groups.list_dead_letters(dead_letters.db, group.key, after=after, limit=3):
        seen += [row.id for row in page]
        after = page[-1]
    assert seen == [ids.show_delivery(*key) for key in reversed(keys)]


@pytest.mark.parametrize("limit", [1, 3, 50])
async def test_a_scanned_dead_letter_search_misses_nothing(dead_letters: DeadLetterStore, monkeypatch, limit: int):
    monkeypatch.setattr(dead_letter_groups, "SCAN_ROWS", 2)
    keys = await dead_letters.add_dead(*(f"row {n}" for n in range(5)))
    rare = await dead_letters.add_dead("rare", to="handler:mail", code="TIMEOUT")
    chosen = [
        (ListFilter(limit=limit), [*reversed([*keys, *rare])]),
        (ListFilter(limit=limit, recipient="*mail"), rare),
        (ListFilter(limit=limit, code="KeyError", source="stripe", type="payment.*"), [*reversed(keys)]),
        (ListFilter(limit=limit, source="github"), []),
        (ListFilter(limit=limit, until=datetime.now(UTC) - timedelta(hours=1)), []),
    ]
    for wanted, expected in chosen:
        seen, before = [], None
        while True:
            found = await dead_letter_groups.search_dead_letters(dead_letters.db, wanted, before=before)
            seen += [row.id for row in found.rows]
            if (before := found.place) is None:
                break
        assert seen == [ids.show_delivery(*key) for key in expected]


async def test_a_slow_search_stops_with_a_cursor(dead_letters: DeadLetterStore, monkeypatch):
    monkeypatch.setattr(dead_letter_groups, "SCAN_ROWS", 2)
    monkeypatch.setattr(dead_letter_groups, "SCAN_BUDGET_S", 0.0)
    await dead_letters.add_dead("a", "b", "c", "d")
    found = await dead_letter_groups.search_dead_letters(dead_letters.db, ListFilter(code="NONE"), before=None)
    assert (found.rows, found.is_full) == ([], False)
    assert found.place is not None


async def test_only_the_dead_are_in_a_group(dead_letters: DeadLetterStore):
    await dead_letters.accept("alive", "handler:upgrade")
    assert await dead_letters.groups() == []
    (key,) = await dead_letters.add_dead("x")
    assert await dead_letter_groups.group_of(dead_letters.db, key) == (await dead_letters.groups())[0].key


class TestWords:
    async def test_a_failure_is_described_in_one_sentence(self):
        assert actions.describe_failure("handler:upgrade", 8, "KeyError", "KeyError: 'customer'") == (
            "handler:upgrade failed 8 times, last with KeyError: 'customer'"
        )
        assert actions.describe_failure("endpoint:ep_1", 1, "HTTP_503", "the endpoint answered with status 503") == (
            "endpoint:ep_1 failed at its only attempt, with HTTP status 503"
        )
        assert (
            actions.describe_failure("handler:a", 3, "TIMEOUT", "x") == "handler:a failed 3 times, last with a timeout"
        )
        assert actions.describe_failure("handler:a", 2, "NO_STOCK", "sold out\nfor good") == (
            "handler:a failed 2 times, last with NO_STOCK: sold out for good"
        )
        assert actions.describe_failure("handler:a", 0, "CANCELED", None).startswith(
            "handler:a failed before the first attempt"
        )

    def test_every_failure_code_has_advice(self):
        codes = ["KeyError", "TIMEOUT", "LEASE_LOST", "HTTP_401", "HTTP_404", "HTTP_429", "HTTP_302", "HTTP_500", "DNS"]
        advice = {actions.advise("handler:a", code) for code in [*codes, "HTTP_422", "CONNECT", None]}
        assert len(advice) == 11
        assert all(text.endswith(".") for text in advice)


class TestEscalation:
    async def test_a_dead_letter_that_fails_again_after_a_replay_marks_its_group(
        self, dead_letters: DeadLetterStore, context: AppContext
    ):
        ((event, _),) = await dead_letters.add_dead("KeyError: 'a'")
        (group,) = await dead_letters.groups()
        assert actions.escalation_reasons(group) == []
        await finish(context, await decide(context, replay_group, group.id))
        await dead_letters.fail_with(event, "KeyError", "KeyError: 'b'")
        (group,) = await dead_letters.groups()
        assert actions.escalation_reasons(group) == ["1 dead letter failed again after a replay"]
        row = await listings.get_delivery(dead_letters.db, event, 0)
        assert actions.delivery_escalation_reason(row.replays) == "it failed again after a replay"

    async def test_a_group_that_grows_after_it_was_replayed_is_marked(
        self, dead_letters: DeadLetterStore, context: AppContext
    ):
        await dead_letters.add_dead("x", "x")
        (group,) = await dead_letters.groups()
        await finish(context, await decide(context, replay_group, group.id))
        await dead_letters.add_dead("x", "x", "x")
        (group,) = await dead_letters.groups()
        (reason,) = actions.escalation_reasons(group)
        assert reason.startswith("3 dead letters failed since console:anna replayed them all on ")

    async def test_a_group_that_was_never_replayed_is_not(self, dead_letters: DeadLetterStore):
        await dead_letters.add_dead("x", "x")
        assert actions.escalation_reasons((await dead_letters.groups())[0]) == []


class TestInTheBackground:
    async def test_a_group_replay_covers_the_group_only(self, dead_letters: DeadLetterStore, context: AppContext):
        await dead_letters.add_dead(*(f"row {n}" for n in range(7)))
        await dead_letters.add_dead("another", code="ValueError")
        group = (await dead_letters.groups())[0]
        progress = await finish(context, await decide(context, replay_group, group.id, note="deployed"))
        assert (progress.state, progress.done, progress.total, progress.share) == ("finished", 7, 7, 1.0)
        assert await dead_letters.states() == {"pending": 7, "dead": 1}
        rows = await listings.list_audit(dead_letters.db, ListFilter(), subject=group.id)
        assert [(row.actor, row.action) for row in rows] == [("console:anna", "dead.replay-group")]
        assert rows[0].note == f"{progress.id}: deployed"
        each = await listings.list_audit(dead_letters.db, ListFilter(), action="dead.replay")
        assert {(row.actor, row.note) for row in each} == {("console:anna", f"{progress.id}: deployed")}
        assert len(each) == 7

    async def test_replay_outcomes_are_reported(self, dead_letters: DeadLetterStore, context: AppContext):
        ended, ignored, failing, dying, _ = await dead_letters.add_dead(*(f"row {n}" for n in range(5)))
        other = (await dead_letters.add_dead("another", code="ValueError"))[0]
        groups = await dead_letters.groups()
        tasks = [await decide(context, replay_group, one.id, note="deployed") for one in groups]
        assert [(await finish(context, task)).results for task in tasks] == [
            ReplayOutcomes(waiting=5),
            ReplayOutcomes(waiting=1),
        ]
        await dead_letters.end(ended[0])
        await dead_letters.end(ignored[0], state="ignored", note="no matter")
        await dead_letters.fail(failing[0])
        await dead_letters.fail_with(dying[0], "KeyError", "row 3")
        await dead_letters.end(other[0])
        found = await follow(context, tasks[0])
        assert found.results == ReplayOutcomes(succeeded=1, ignored=1, dead=1, retrying=1, waiting=1, same_cause=1)
        assert (found.results.failed, found.results.is_open) == (2, True)
        assert found.outcome == (
            "5 replayed: 1 succeeded, 1 ignored, 1 failed again with the same cause, 1 failed and will be retried, "
            "1 not attempted yet"
        )
        assert (await follow(context, tasks[1])).results == ReplayOutcomes(succeeded=1)
        await dead_letters.fail_with(failing[0], "Other", "another cause")
        assert "2 failed again (1 with the same cause)" in (await follow(context, tasks[0])).outcome

    async def test_a_group_replay_skips_later_dead_letters(self, dead_letters: DeadLetterStore, context: AppContext):
        ((event, _),) = await dead_letters.add_dead("x")
        task = await decide(context, replay_group, (await dead_letters.groups())[0].id)
        await dead_letters.add_dead("x")
        await finish(context, task)
        assert await dead_letters.states() == {"pending": 1, "dead": 1}
        assert (await listings.get_delivery(dead_letters.db, event, 0)).state == "pending"

    async def test_a_rate_is_never_exceeded(self, dead_letters: DeadLetterStore, context: AppContext):
        await dead_letters.add_dead(*("x" for _ in range(7)))
        task = await decide(context, replay_group, (await dead_letters.groups())[0].id, rate=3.0)
        assert await runner.run_step(context.database, Outbox())
        assert not await runner.run_step(context.database, Outbox()), "the next step is not before a second"
        assert (await follow(context, task)).done == 3
        spread = await dead_letters.one(
            "select extract(epoch from max(due_at) - min(due_at))::float8 from boathook.delivery where state = 'pending'"
        )
        assert 0.6 < spread < 0.7
        await dead_letters.db.execute("""update boathook.task set place = '{"not_before": "2020-01-01T00:00:00Z"}'""")
        assert await runner.run_step(context.database, Outbox())
        assert (await follow(context, task)).done == 6

    async def test_without_the_pause_a_rate_would_be_exceeded(
        self, dead_letters: DeadLetterStore, context: AppContext, monkeypatch
    ):
        monkeypatch.setattr(runner, "_later", lambda *_: {})
        await dead_letters.add_dead(*("x" for _ in range(7)))
        task = await decide(context, replay_group, (await dead_letters.groups())[0].id, rate=3.0)
        while await runner.run_step(context.database, Outbox()):
            pass
        assert (await follow(context, task)).done == 7

    async def test_it_can_be_stopped_between_steps(self, dead_letters: DeadLetterStore, context: AppContext):
        await dead_letters.add_dead(*("x" for _ in range(7)))
        task = await decide(context, replay_group, (await dead_letters.groups())[0].id, rate=3.0)
        await runner.run_step(context.database, Outbox())
        await decide(context, jobs.stop, JobNamed(id=task.shown_id))
        progress = await finish(context, task)
        assert (progress.state, progress.done, progress.error) == ("stopped", 3, "stopped by console:anna")
        assert await dead_letters.states() == {"pending": 3, "dead": 4}
        with pytest.raises(InvalidState, match="ended already"):
            await decide(context, jobs.stop, JobNamed(id=task.shown_id))
        assert (await listings.list_audit(dead_letters.db, ListFilter(), action="task.stop"))[
            0
        ].subject == task.shown_id

    async def test_an_interrupted_step_is_repeated_completely(
        self, dead_letters: DeadLetterStore, context: AppContext, monkeypatch
    ):
        monkeypatch.setattr(runner, "STEP", 2)
        await dead_letters.add_dead(*("x" for _ in range(5)))
        task = await decide(context, replay_group, (await dead_letters.groups())[0].id)
        await runner.run_step(context.database, Outbox())
        with pytest.raises(RuntimeError, match="killed"):
            await interrupted_step(context)
        assert (await dead_letters.states(), (await follow(context, task)).done) == ({"pending": 2, "dead": 3}, 2)
        assert (await finish(context, task)).done == 5
        assert len(await listings.list_audit(dead_letters.db, ListFilter(), action="dead.replay")) == 5

    async def test_two_keepers_at_once_do_nothing_twice(
        self, dead_letters: DeadLetterStore, context: AppContext, monkeypatch
    ):
        monkeypatch.setattr(runner, "STEP", 1)
        await dead_letters.add_dead(*("x" for _ in range(9)))
        task = await decide(context, replay_group, (await dead_letters.groups())[0].id)
        await asyncio.gather(*(runner.run_tasks(context.database, Outbox(), budget_s=30) for _ in range(3)))
        assert (await finish(context, task)).done == 9
        assert await dead_letters.one("select max(replays) from boathook.delivery") == 1

    async def test_ignoring_needs_a_note_which_becomes_the_outcome(
        self, dead_letters: DeadLetterStore, context: AppContext
    ):
        await dead_letters.add_dead("x", "x")
        (group,) = await dead_letters.groups()
        with pytest.raises(InvalidValue, match="why"):
            await decide(context, ignore_group, group.id, note="  ")
        progress = await finish(context, await decide(context, ignore_group, group.id, note="refunded by hand"))
        assert (progress.done, progress.participle) == (2, "ignored")
        rows = await dead_letters.db.fetch("select distinct state, note from boathook.delivery_archive")
        assert [tuple(row) for row in rows] == [("ignored", "refunded by hand")]

    async def test_purging_is_confirmed_by_a_word_and_counted(self, dead_letters: DeadLetterStore, context: AppContext):
        await dead_letters.add_dead("x", "x")
        (group,) = await dead_letters.groups()
        form = SimpleNamespace(field={"typed": "yes"}.get)
        with pytest.raises(InvalidValue, match="type purge"):
            check_typed(form, purge)
        check_typed(SimpleNamespace(field={"typed": "Purge"}.get), purge)
        assert (await finish(context, await decide(context, purge_group, group.id))).done == 2
        assert await dead_letters.states() == {}
        assert (await dead_letters.verify()).balance.purged == 2

    async def test_an_empty_group_is_not_found(self, dead_letters: DeadLetterStore, context: AppContext):
        await dead_letters.add_dead("x")
        (group,) = await dead_letters.groups()
        await finish(context, await decide(context, replay_group, group.id))
        with pytest.raises(NotFound, match="no dead letters are left"):
            await decide(context, replay_group, group.id)
        with pytest.raises(InvalidValue, match="expected an id like grp_"):
            await decide(context, replay_group, "grp_nonsense")

    @pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf"), 1e9])
    async def test_an_invalid_rate_is_refused(self, dead_letters: DeadLetterStore, context: AppContext, rate: float):
        await dead_letters.add_dead("x")
        (group,) = await dead_letters.groups()
        with pytest.raises(InvalidValue, match=r"a number from 0\.001 to 100,000"):
            await decide(context, replay_group, group.id, rate=rate)

    async def test_running_group_replays_are_limited(
        self, dead_letters: DeadLetterStore, context: AppContext, monkeypatch
    ):
        monkeypatch.setattr("boathook.service.operating.tasks.MAX_PER_ORGANIZATION", 1)
        await dead_letters.add_dead("x")
        (group,) = await dead_letters.groups()
        await decide(context, replay_group, group.id)
        with pytest.raises(LimitReached):
            await decide(context, replay_group, group.id)

    async def test_events_run_again_at_a_rate(self, dead_letters: DeadLetterStore, context: AppContext):
        for n in range(5):
            await dead_letters.end(await dead_letters.accept(f"good-{n}", "handler:upgrade"))
        await dead_letters.add_dead("x")
        since = datetime.now(UTC) - timedelta(hours=1)
        wanted = EventQuery(source="stripe", since=since)
        task = await decide(context, start_replay, wanted, rate=4.0)
        await runner.run_step(context.database, Outbox())
        assert (await follow(context, task)).done == 4
        assert not await runner.run_step(context.database, Outbox())
        await dead_letters.db.execute("""
            update boathook.task set place = (place::jsonb || '{"not_before": "2020-01-01T00:00:00Z"}')::json""")
        progress = await finish(context, task)
        assert (progress.state, progress.done, progress.total) == ("finished", 6, 6)
        assert await dead_letters.states() == {"pending": 6}
        assert progress.results == ReplayOutcomes(waiting=6)
        row = await dead_letters.db.fetchrow("select event_id, ordinal from boathook.delivery where is_replay limit 1")
        await dead_letters.end(row["event_id"], row["ordinal"])
        assert (await follow(context, task)).results == ReplayOutcomes(waiting=5, succeeded=1)

    async def test_events_that_a_search_selects_run_again_and_no_others(
        self, dead_letters: DeadLetterStore, context: AppContext
    ):
        for n in range(5):
            event = await dead_letters.accept(f"good-{n}", "handler:upgrade")
            await dead_letters.db.execute(
                "update boathook.event set body = $2 where id = $1", event, b'{"to":{"id":"CUS_%d"}}' % (n % 2)
            )
            await dead_letters.end(event)
        await dead_letters.add_dead("x")
        task = await decide(context, start_replay, EventQuery(words="to.id = CUS_1", text="cus_"), rate=1.0)
        await runner.run_step(context.database, Outbox())
        assert (await follow(context, task)).done == 1
        await dead_letters.db.execute("""
            update boathook.task set place = (place::jsonb || '{"not_before": "2020-01-01T00:00:00Z"}')::json""")
        progress = await finish(context, task)
        assert (progress.state, progress.done, progress.total) == ("finished", 2, 2)
        assert await dead_letters.states() == {"pending": 2, "dead": 1}
        task = await decide(context, start_replay, EventQuery(state="dead"))
        assert (await finish(context, task)).done == 1
        assert await dead_letters.states() == {"pending": 3}
        with pytest.raises(InvalidValue, match="nothing selected"):
            await decide(context, start_replay, EventQuery())

    async def test_expunged_events_are_previewed_and_skipped(self, dead_letters: DeadLetterStore, context: AppContext):
        keys = await dead_letters.add_dead("x", "x", "x")
        await dead_letters.db.execute(
            "update boathook.event set body = '', expunged_at = now() where id = $1", keys[0][0]
        )
        (group,) = await dead_letters.groups()
        foreseen = await dead_letter_groups.preview_replay(dead_letters.db, group)
        assert (foreseen.is_open, foreseen.has_route, foreseen.expunged) == (True, False, 1)
        assert (await finish(context, await decide(context, replay_group, group.id))).done == 2
        assert await dead_letters.states() == {"pending": 2, "dead": 1}

    async def test_group_replays_are_invisible_in_the_api(self, dead_letters: DeadLetterStore, context: AppContext):
        await dead_letters.add_dead("x")
        task = await decide(context, replay_group, (await dead_letters.groups())[0].id)
        assert task.state is TaskState.RUNNING
        async with context.work() as work:
            window = Window(UUID(int=0), UUID(int=2**128 - 1))
            assert (await tasks.list_page(work.connection, work.organization, window, limit=10)).rows == []


async def test_a_replay_is_followed_on_its_page_until_all_have_ended(dead_letters: DeadLetterStore):
    keys = await dead_letters.add_dead("KeyError: 'a'", "KeyError: 'b'")
    (group,) = await dead_letters.groups()
    async with open_console(dead_letters.db) as app:
        pages = await app.operator()
        listed = await pages.get_page("/console/dead")
        assert 'aria-label="2 in the last 24 hours, at most 2 in one hour"' in listed
        replay = f"/console/dead/groups/{group.id}/replay"
        assert f'<a href="{replay}" data-shortcut="r">' in listed
        assert "<details open>" in await pages.get_page(f"/console/dead/groups/{group.id}?ignore=yes")
        started = await pages.submit_form(replay)
        await runner.run_tasks(app.context.database, Outbox(), budget_s=30)
        job = await pages.get_page(started.headers["location"])
        assert "2 replayed: 0 succeeded, 2 not attempted yet" in job
        assert 'hx-trigger="every' in job
        for event, _ in keys:
            await dead_letters.fail_with(event, "KeyError", "KeyError: 'again'")
        job = await pages.get_page(started.headers["location"])
        assert '<p class="notice bad" id="results">' in job
        assert "2 replayed: 0 succeeded, 2 failed again with the same cause" in job
        assert f'href="/console/dead/groups/{group.id}">Review them' in job
        assert 'hx-trigger="every' not in job


async def test_a_decision_leads_back_to_its_group_until_that_is_empty(dead_letters: DeadLetterStore):
    first, second = [ids.show_delivery(*key) for key in await dead_letters.add_dead("x", "x")]
    page = f"/console/dead/groups/{(await dead_letters.groups())[0].id}"
    async with open_console(dead_letters.db) as app:
        pages = await app.operator()
        for chosen, leads_to in ((first, page), (second, "/console/dead")):
            form = {"id": chosen, "do": "replay", "back": page}
            answer = await pages.submit_form("/console/dead/decide", form, on="/console/dead")
            assert answer.headers["location"] == leads_to
            shown = await pages.get_page(leads_to)
            assert "1 failed delivery queued for replay." in shown
