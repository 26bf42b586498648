"""Alerts that apps declare: fired and resolved in transactions or decided by a check, and sent as boathook's own."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from boathook import AlertReading, Boathook, Dead, Event, SyncTransaction, Transaction
from boathook.alerts.service import AlertService
from boathook.db.database import Database
from boathook.delivery.keeper import Keeper, alert_checks
from boathook.domain.errors import ConfigError, HandlerMisuse
from boathook.observability import meters
from boathook.service.app_platform import AppPlatform, open_platform
from boathook.service.operating import alerts as actions
from tests.alert_harness import AlertHarness, open_harness, sent_alerts, settings_of, webhook
from tests.support import eventually
from tests.unit.receivers import Receiver
from tests.worker_harness import accept_events, running_worker, settings_for, wait_for_states

SUMMARY = "{subject} was not understood {value} times: {field}"


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with Receiver() as made:
        yield made


@pytest.fixture
async def platform(db: Database) -> AsyncIterator[AppPlatform]:
    opened = open_platform(settings_for(db.url)).for_app("shop")
    yield opened
    await opened.stop()


@pytest.fixture
def hook(platform: AppPlatform) -> Boathook:
    made = Boathook("shop")
    made.bind(None, platform)
    return made


def settings_with(hook: Boathook, receiver: Receiver, **overrides: Any) -> Any:
    """Return settings with the rules of an app, which the operator changes."""
    rules = {f"shop.{name}": keys for name, keys in overrides.items()}
    settings = settings_of(channels={"ops": webhook(receiver.url)}, rules=rules)
    return settings.with_alerts(hook.manifest.alert_rules or {})


async def round_of(harness: AlertHarness) -> None:
    await harness.evaluate()
    await harness.deliver()


def summaries(receiver: Receiver) -> list[str]:
    """Return the kind and summary of each alert that a receiver got."""
    return [
        f"{alert['kind']}: {alert['summary']}"
        for request in receiver.requests
        for alert in json.loads(request.body)["data"]["alerts"]
    ]


class TestFire:
    async def test_repeats_are_one_alert_with_the_latest_details(self, db, hook, receiver):
        alert = hook.alert("odd", SUMMARY, severity="critical", advice="See the list.")
        async with hook.transaction() as tx:
            for field in ("mileage", "colour", "state"):
                await alert.fire(tx, "car 17", field=field)
            await alert.fire(tx, "car 18", field="price")
        async with open_harness(db, settings_with(hook, receiver)) as harness:
            await round_of(harness)
            assert summaries(receiver) == [
                "firing: car 17 was not understood 3 times: state",
                "firing: car 18 was not understood 1 times: price",
            ]
            (first, _) = json.loads(receiver.requests[0].body)["data"]["alerts"]
            assert (first["rule"], first["severity"], first["details"]) == ("shop.odd", "critical", {"field": "state"})
            await round_of(harness)
            assert len(receiver.requests) == 1

    async def test_nothing_is_sent_if_the_transaction_rolls_back(self, db, hook, receiver):
        alert = hook.alert("odd", SUMMARY)
        with pytest.raises(KeyError):
            await self.fire_and_fail(hook, alert)
        async with open_harness(db, settings_with(hook, receiver)) as harness:
            await round_of(harness)
        assert receiver.requests == []

    @staticmethod
    async def fire_and_fail(hook: Boathook, alert: Any) -> None:
        async with hook.transaction() as tx:
            await alert.fire(tx, "car 17", field="mileage")
            raise KeyError

    async def test_a_reminder_needs_another_one(self, db, hook, receiver):
        alert = hook.alert("odd", SUMMARY, repeat_interval_s=60, over_s=3_600)
        async with open_harness(db, settings_with(hook, receiver)) as harness:
            await self.fire(hook, alert)
            await round_of(harness)
            await harness.advance_time(seconds=61)
            await round_of(harness)
            assert summaries(receiver) == ["firing: car 17 was not understood 1 times: a"]
            for _ in range(57):
                await self.fire(hook, alert)
            await round_of(harness)
            await self.fire(hook, alert)
            await round_of(harness)  # not before the interval
            assert summaries(receiver)[1:] == ["repeated: car 17 was not understood 58 times: a"]

    @staticmethod
    async def fire(hook: Boathook, alert: Any) -> None:
        async with hook.transaction() as tx:
            await alert.fire(tx, "car 17", field="a")

    async def test_it_recovers_once_it_was_not_fired_for_a_time_and_counts_anew(self, db, hook, receiver):
        alert = hook.alert("odd", SUMMARY, over_s=600)
        async with open_harness(db, settings_with(hook, receiver)) as harness:
            for _ in range(3):
                await self.fire(hook, alert)
            await round_of(harness)
            await harness.advance_time(seconds=599)
            await round_of(harness)
            assert len(summaries(receiver)) == 1
            await self.fire(hook, alert)  # prolongs it
            await harness.evaluate()
            await harness.advance_time(seconds=599)
            await round_of(harness)
            assert len(summaries(receiver)) == 1
            await harness.advance_time(seconds=2)
            await round_of(harness)
            assert summaries(receiver)[1:] == ["recovered: car 17 was not understood 4 times: a"]
            await self.fire(hook, alert)
            await round_of(harness)
            assert summaries(receiver)[2:] == ["firing: car 17 was not understood 1 times: a"]

    async def test_a_burst_that_was_over_before_it_was_counted_begins_anew(self, db, hook, receiver):
        alert = hook.alert("odd", SUMMARY, over_s=600)
        async with open_harness(db, settings_with(hook, receiver)) as harness:
            await self.fire(hook, alert)
            await harness.evaluate()
            await harness.advance_time(seconds=601)
            await self.fire(hook, alert)  # no evaluation has seen the end
            await harness.evaluate()
            assert [one.value for one in await harness.open_alerts()] == [1]

    async def test_resolving_ends_it_and_what_was_fired_before(self, db, hook, receiver):
        alert = hook.alert("odd", SUMMARY)
        async with open_harness(db, settings_with(hook, receiver)) as harness:
            await self.fire(hook, alert)
            await round_of(harness)
            async with hook.transaction() as tx:
                await alert.fire(tx, "car 17", field="b")
                await alert.resolve(tx, "car 17")
                await alert.resolve(tx, "car 18")
            await round_of(harness)
            assert [line.partition(":")[0] for line in summaries(receiver)] == ["firing", "recovered"]
            async with hook.transaction() as tx:
                await alert.fire(tx, "car 17", field="b")
                await alert.resolve(tx, "car 17")
                await alert.fire(tx, "car 17", field="c")
            await round_of(harness)
            assert summaries(receiver)[2:] == ["firing: car 17 was not understood 1 times: c"]

    async def test_no_transaction_waits_for_another_that_fires_the_same(self, db, hook, receiver):
        alert = hook.alert("odd", SUMMARY)
        async with hook.transaction() as first:
            await alert.fire(first, "car 17", field="a")
            async with hook.transaction() as second:
                await second.execute("set local lock_timeout = '2s'")
                await alert.fire(second, "car 17", field="b")
            async with open_harness(db, settings_with(hook, receiver)) as harness:
                await harness.evaluate()
                assert [one.value for one in await harness.open_alerts()] == [1]
        async with open_harness(db, settings_with(hook, receiver)) as harness:
            await harness.evaluate()
            assert [one.value for one in await harness.open_alerts()] == [2]

    async def test_the_operator_changes_its_rule_and_silences_it(self, db, hook, receiver):
        alert = hook.alert("odd", SUMMARY)
        settings = settings_with(hook, receiver, odd={"above": 2, "severity": "critical"})
        async with open_harness(db, settings) as harness:
            await self.fire(hook, alert)
            await self.fire(hook, alert)
            await round_of(harness)
            assert receiver.requests == []
            await self.fire(hook, alert)
            await round_of(harness)
            assert json.loads(receiver.requests[0].body)["data"]["alerts"][0]["severity"] == "critical"
            async with db.acquire() as connection:
                overview = await actions.read_overview(connection, settings)
            (rule,) = [one for one in overview.rules if one.name == "shop.odd"]
            assert rule.threshold == "number above 2, over 900 s"
            assert [one["value"] for one in rule.readings] == [3]
            (listed,) = [actions.alert_view(one, settings.notifications.rules) for one in overview.firing]
            assert listed["summary"] == "car 17 was not understood 3 times: a"
            await db.execute(
                "insert into boathook.alert_silence (id, rule, subject, note, actor, until)"
                " values (gen_random_uuid(), 'shop.*', 'car 18', 'x', 'x', now() + interval '1 hour')"
            )
            async with hook.transaction() as tx:
                for _ in range(3):
                    await alert.fire(tx, "car 18", field="a")
            await round_of(harness)
            assert len(receiver.requests) == 1
            assert {one.subject: one.is_silenced for one in await harness.open_alerts()}["car 18"]

    async def test_handlers_fire_in_their_transaction(self, db, hook, receiver):
        alert = hook.alert("odd", SUMMARY)

        @hook.on("shop")
        async def asynchronous(event: Event, tx: Transaction) -> None:
            await alert.fire(tx, "async", field="a")

        @hook.on("shop")
        def synchronous(event: Event, tx: SyncTransaction) -> None:
            alert.fire_sync(tx, "sync", field="b")
            alert.resolve_sync(tx, "gone")

        @hook.on("shop")
        async def failing(event: Event, tx: Transaction) -> Dead:
            await alert.fire(tx, "rolled back", field="c")
            async with hook.transaction() as own:
                await alert.fire(own, "failed", field="d")
            return Dead("NO")

        async with running_worker(db, hook):
            await accept_events(db, {})
            await wait_for_states(db, succeeded=2, dead=1)
        async with open_harness(db, settings_with(hook, receiver)) as harness:
            await round_of(harness)
        assert {subject for _, _, subject in sent_alerts(receiver)} == {"async", "sync", "failed"}

    async def test_untrusted_text_is_cut_and_stored(self, db, hook, receiver):
        alert = hook.alert("odd", "{subject}: {text} {unknown}")
        async with hook.transaction() as tx:
            await alert.fire(tx, "a\x00\ud800" + "b" * 500, text="<b>\n" + "c" * 5_000)
        async with open_harness(db, settings_with(hook, receiver)) as harness:
            await round_of(harness)
            (alert_row,) = await harness.open_alerts()
        assert len(alert_row.subject) == 200
        assert len(alert_row.details["text"]) == 500
        assert "{unknown}" in summaries(receiver)[0]
        assert "\n" not in summaries(receiver)[0]

    async def test_signals_of_an_app_that_is_not_loaded_here_are_kept_for_a_day(self, db, hook, receiver):
        alert = hook.alert("odd", SUMMARY)
        await self.fire(hook, alert)
        async with open_harness(db, settings_of()) as harness:
            await harness.evaluate()
            assert await db.fetchval("select count(*) from boathook.alert_signal") == 1
            await harness.advance_time(hours=25)
            await harness.evaluate()
            assert await db.fetchval("select count(*) from boathook.alert_signal") == 0

    def test_details_cannot_replace_what_boathook_fills_in(self, hook):
        alert = hook.alert("odd", SUMMARY)
        with pytest.raises(HandlerMisuse, match="cannot be named 'value'"):
            alert.fire_sync(None, "x", value="3")


class TestCheck:
    async def test_what_it_returns_fires_and_what_it_no_longer_returns_recovers(self, db, hook, receiver):
        alert, late = (
            hook.alert("late", "booking {subject} of {client} is {value} h late", above=2),
            {"7": 3.5, "8": 1.0},
        )
        await db.execute("create table booking (id text, hours float8)")

        @alert.check
        async def bookings(tx: Transaction) -> list[AlertReading]:
            rows = await tx.fetch("select id, hours from booking order by id")
            return [AlertReading(row["id"], row["hours"], {"client": "Anna"}) for row in rows]

        async with open_harness(db, settings_with(hook, receiver), alert_checks([hook])) as harness:
            for id, hours in late.items():
                await db.execute("insert into booking values ($1, $2)", id, hours)
            await harness.evaluate()  # without a result nothing changes
            await harness.checks.run_once("shop.late")
            await round_of(harness)
            assert summaries(receiver) == ["firing: booking 7 of Anna is 3.5 h late"]
            await db.execute("delete from booking")
            await harness.checks.run_once("shop.late")
            await round_of(harness)
            assert summaries(receiver)[1:] == ["recovered: booking 7 of Anna is 3.5 h late"]

    async def test_a_failure_changes_no_alert_and_is_counted(self, db, hook, receiver):
        alert, results = hook.alert("late", "{subject} is late"), iter([[AlertReading("7")], None, [7], []])

        @alert.check
        async def bookings(tx: Transaction) -> Any:
            return next(results)

        meters.reset()
        async with open_harness(db, settings_with(hook, receiver), alert_checks([hook])) as harness:
            for failures in (0, 1, 2):
                await harness.checks.run_once("shop.late")
                await harness.evaluate()
                assert [one.subject for one in await harness.open_alerts()] == ["7"]
                assert meters.counter("boathook_alert_checks_failed_total", rule="shop.late").value == failures
            await harness.checks.run_once("shop.late")
            await harness.evaluate()
            assert await harness.open_alerts() == []

    async def test_a_value_that_is_no_number_is_a_failure(self, db, hook, receiver):
        alert = hook.alert("late", "{subject} is late")

        @alert.check
        async def bookings(tx: Transaction) -> list[AlertReading]:
            return [AlertReading("7", float("nan"))]

        async with open_harness(db, settings_with(hook, receiver), alert_checks([hook])) as harness:
            await harness.checks.run_once("shop.late")
            assert harness.checks.latest("shop.late", 60) is None

    async def test_the_keeper_runs_it_and_a_hanging_one_delays_no_other_rule(self, pg_url, db, hook, receiver):
        fired, hanging, quick = (hook.alert(name, f"{name} {{subject}}") for name in ("fired", "hangs", "quick"))
        is_hanging = asyncio.Event()

        @hanging.check
        async def hangs(tx: Transaction) -> list[AlertReading]:
            is_hanging.set()
            await asyncio.Event().wait()
            return []

        @quick.check
        async def returns(tx: Transaction) -> list[AlertReading]:
            return [AlertReading("now")]

        settings = settings_of(url=pg_url, channels={"ops": webhook(receiver.url)}, evaluation_interval_s=1)
        settings = settings.with_alerts(hook.manifest.alert_rules or {})
        stop = asyncio.Event()
        keeper = asyncio.create_task(Keeper(db, settings, [hook]).run(stop, lambda: None))
        try:
            await is_hanging.wait()
            async with hook.transaction() as tx:
                await fired.fire(tx, "x")
            await eventually(
                lambda: (
                    {(rule, subject) for _, rule, subject in sent_alerts(receiver)}
                    == {("shop.fired", "x"), ("shop.quick", "now")}
                )
            )
        finally:
            stop.set()
            await keeper

    def test_it_is_an_async_function_of_a_transaction(self, hook):
        alert = hook.alert("late", "{subject} is late")
        with pytest.raises(ConfigError, match=r"async def bookings\(tx\)"):

            @alert.check
            def bookings(tx: Any) -> list[AlertReading]:
                return []

    def test_an_alert_with_a_check_is_not_fired(self, hook):
        alert = hook.alert("late", "{subject} is late")

        @alert.check
        async def bookings(tx: Transaction) -> list[AlertReading]:
            return []

        with pytest.raises(HandlerMisuse, match=r"the alert shop.late has a check"):
            alert.fire_sync(None, "x")
        with pytest.raises(ConfigError, match="declared twice"):
            alert.check(bookings)


class TestDeclaration:
    def test_a_wrong_key_is_named(self, hook):
        with pytest.raises(ConfigError, match=r"odd.*severety"):
            hook.alert("odd", SUMMARY, severety="critical")

    def test_two_of_one_name_are_refused(self, hook):
        hook.alert("odd", SUMMARY)
        with pytest.raises(ConfigError, match="two rules are named"):
            hook.alert("odd", SUMMARY)


async def test_a_service_without_the_app_leaves_its_alerts(pg_url, db, receiver):
    async with AlertService(settings_of(url=pg_url, evaluation_interval_s=1), pg_url).run_in_background():

        async def is_evaluated() -> bool:
            return bool(await db.fetchval("select count(*) from boathook.alert_evaluation"))

        await eventually(is_evaluated)
