"""Alerts on a real PostgreSQL: sent once, whichever process is the keeper; grouped, repeated, silenced, recovered; never in the way."""

import asyncio
import json
import socket
import time
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

import pytest

from boathook import config
from boathook.alerts.evaluator import LocalEvaluator, after_quiet
from boathook.alerts.notifier import Notifier
from boathook.alerts.rules import compile_rules
from boathook.alerts.service import AlertService
from boathook.db import alerts as kept
from boathook.db import metric_samples
from boathook.db.dead_letter_groups import list_groups
from boathook.db.delivery_commands import AuditContext
from boathook.db.events import EventStore
from boathook.db.metric_samples import HostSample
from boathook.db.route_registry import register
from boathook.delivery.keeper import Keeper
from boathook.domain import ids
from boathook.domain.model import Route
from boathook.observability import meters
from boathook.observability.metric_snapshot import MetricSnapshot
from boathook.server.sampler import Sampler
from tests.alert_harness import insert_sample, open_harness, sent_alerts, settings_of, webhook
from tests.postgres.db.test_events import event
from tests.postgres.operating.event_actions import route_events
from tests.postgres.operating.test_dead_groups import DeadLetterStore
from tests.sender_harness import add_endpoint
from tests.support import eventually
from tests.unit.receivers import OK, Receiver

ACCEPTED = "boathook_events_accepted_total"
LEVEL = "boathook_connections"
SPOOLED = MetricSnapshot(gauges={"boathook_spool_events": {(): 7}})
HIGH = {"high": {"metric": LEVEL, "above": 10, "clear_s": 0, "summary": "it is high"}}
BACKLOG = {"waits": {"metric": "boathook_backlog", "by": ["recipient"], "above": 10, "clear_s": 0}}


@pytest.fixture
async def receiver():
    async with Receiver() as made:
        yield made


@pytest.fixture
def refused():
    """An address that refuses connections: bound, but not listened on."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}/hook"


async def test_firing_and_recovery_are_each_sent_once(db, receiver):
    async with open_harness(db, settings_of(channels={"ops": webhook(receiver.url)}, rules=HIGH)) as harness:
        await harness.record_sample(LEVEL, 11)
        await harness.evaluate(3)
        await harness.deliver()
        await harness.deliver()
        assert sent_alerts(receiver) == [("firing", "high", "")]
        await harness.record_sample(LEVEL, 9)
        await harness.evaluate(3)
        await harness.deliver()
        assert sent_alerts(receiver) == [("firing", "high", ""), ("recovered", "high", "")]
        assert await harness.open_alerts() == []
        (ended,) = await harness.ended_alerts()
        assert (ended.state, ended.worst, ended.value) == ("recovered", 11, 9)


DEAD = {"dead_letters": {"clear_s": 0}}


async def test_dead_deliveries_alert_until_they_are_removed(db, receiver):
    letters = DeadLetterStore(db)
    async with open_harness(db, settings_of(channels={"ops": webhook(receiver.url)}, rules=DEAD)) as harness:
        await letters.add_dead("away", "away", "away")
        await harness.evaluate()
        await db.execute("update boathook.delivery set dead_at = dead_at - interval '30 days'")
        await harness.advance_time(days=30)
        await harness.evaluate()
        (alert,) = await harness.open_alerts()
        assert (alert.subject, alert.value, alert.state) == ("handler:upgrade", 3, "firing")
        await db.execute("delete from boathook.delivery where ctid in (select ctid from boathook.delivery limit 2)")
        await harness.evaluate()
        (alert,) = await harness.open_alerts()
        assert (alert.value, alert.state) == (1, "firing")
        await db.execute("delete from boathook.delivery")
        await harness.evaluate()
        assert await harness.open_alerts() == []


CAUSE = {"repeating_cause": {"above": 2, "over_s": 3_600, "clear_s": 0}}


def two_channels(receiver: Receiver) -> dict[str, Any]:
    """Return a channel for every alert, and one for critical alerts only."""
    return {
        "team": webhook(f"{receiver.url}/team"),
        "on-call": webhook(f"{receiver.url}/on-call", min_severity="critical"),
    }


def received(receiver: Receiver) -> list[tuple[str, str]]:
    """Return the channel and rule of each alert that a receiver got."""
    return [
        (request.lines[0].split()[1].rpartition("/")[2], one["rule"])
        for request in receiver.requests
        for one in json.loads(request.body)["data"]["alerts"]
    ]


async def test_a_cause_that_repeats_reaches_the_channel_for_critical_alerts(db, receiver):
    letters = DeadLetterStore(db)
    rules = {"dead_letters": {"severity": "warning"}, **CAUSE}
    async with open_harness(db, settings_of(channels=two_channels(receiver), rules=rules)) as harness:
        await letters.add_dead("away", "away", "full")
        await harness.evaluate()
        await harness.deliver()
        assert received(receiver) == [("team", "dead_letters")]
        await letters.add_dead("away")
        await harness.evaluate()
        await harness.deliver()
        assert sorted(received(receiver)[1:]) == [("on-call", "repeating_cause"), ("team", "repeating_cause")]
        (alert,) = [one for one in await harness.open_alerts() if one.rule == "repeating_cause"]
        assert (alert.value, alert.severity) == (3, "critical")
        groups, _ = await list_groups(db)
        (group,) = [one for one in groups if one.number == 3]
        assert alert.subject == group.id
        assert alert.name == f"{group.code} of handler:upgrade"


async def test_the_same_deaths_of_different_causes_are_no_repetition(db, receiver):
    """Shows that the test above can fail: the number alone does not raise the alert."""
    letters = DeadLetterStore(db)
    async with open_harness(db, settings_of(channels=two_channels(receiver), rules=CAUSE)) as harness:
        await letters.add_dead("away", "away", "full", "full")
        await harness.evaluate()
        assert await harness.open_alerts() == []


async def test_a_cause_that_did_not_repeat_lately_recovers(db, receiver):
    letters = DeadLetterStore(db)
    async with open_harness(db, settings_of(channels=two_channels(receiver), rules=CAUSE)) as harness:
        await letters.add_dead("away", "away", "away")
        await harness.evaluate()
        (alert,) = await harness.open_alerts()
        assert alert.state == "firing"
        await db.execute("update boathook.delivery set dead_at = dead_at - interval '2 hours'")
        await harness.evaluate()
        assert await harness.open_alerts() == []


async def test_the_keeper_counts_the_deaths_of_the_worst_cause_for_prometheus(db):
    letters, keeper = DeadLetterStore(db), Keeper(db, config.load(None))
    gauge = meters.gauge_handle("boathook_repeating_cause")
    await letters.add_dead("away", "away", "full")
    await keeper.count()
    assert gauge.value == 2
    await db.execute("update boathook.delivery set dead_at = dead_at - interval '2 hours'")
    await keeper.count()
    assert gauge.value == 0


async def test_later_deaths_of_other_causes_do_not_end_the_alert_of_a_cause(db, monkeypatch):
    monkeypatch.setitem(kept.SQL, "count_causes", kept.SQL["count_causes"].replace("limit 1000\n", "limit 1\n"))
    letters = DeadLetterStore(db)
    async with open_harness(
        db, settings_of(rules={"repeating_cause": {**CAUSE["repeating_cause"], "above": 0}})
    ) as harness:
        await letters.add_dead("away")
        await harness.evaluate()
        await letters.add_dead("full")
        await harness.evaluate()
        assert len(await harness.open_alerts()) == 2


async def test_a_paused_endpoint_is_alerted_until_it_is_resumed(db, receiver):
    rules = {"endpoint_paused": {"for_s": 0}}
    endpoint = await add_endpoint(db, "https://erp.example.com/in")
    async with open_harness(db, settings_of(channels={"ops": webhook(receiver.url)}, rules=rules)) as harness:
        await harness.evaluate()
        assert await harness.open_alerts() == []
        await db.execute(
            "insert into boathook.endpoint_health (endpoint_id, failures, open_until, pauses) values ($1, 9, now(), 1)",
            endpoint.id,
        )
        await harness.evaluate()
        await harness.deliver()
        await db.execute("update boathook.endpoint_health set open_until = null, pauses = 0, failures = 0")
        await harness.evaluate()
        await harness.deliver()
        name = ids.show(ids.ENDPOINT, endpoint.id)
        assert sent_alerts(receiver) == [("firing", "endpoint_paused", name), ("recovered", "endpoint_paused", name)]


async def test_an_open_breaker_is_alerted_until_it_closes(db, receiver):
    metric = "boathook_handler_circuit_breaker_open"
    rules = {"breaker_open": {"clear_s": 0}}
    async with open_harness(db, settings_of(channels={"ops": webhook(receiver.url)}, rules=rules)) as harness:
        for is_open in (1.0, 0.0):
            gauges = {metric: {("handler:note", "crm"): is_open, ("handler:mail", "crm"): is_open}}
            await insert_sample(db, "a", gauges)
            await harness.evaluate()
            await harness.deliver()
        assert sent_alerts(receiver) == [("firing", "breaker_open", "crm"), ("recovered", "breaker_open", "crm")]


async def later_deaths_of_another_keep_the_alert(db, monkeypatch) -> bool:
    """Return whether an alert keeps firing while the latest deaths, the only ones scanned, are another's."""
    monkeypatch.setitem(kept.SQL, "count_dead", kept.SQL["count_dead"].replace("limit 20000", "limit 2"))
    letters = DeadLetterStore(db)
    async with open_harness(db, settings_of(rules=DEAD)) as harness:
        await letters.add_dead("away")
        await harness.evaluate()
        await letters.add_dead("full", "full", to="handler:mail")
        await harness.evaluate()
        found = {one.subject: one.value for one in await harness.open_alerts()}
        assert found["handler:mail"] == 2
        return "handler:upgrade" in found


async def test_later_deaths_of_another_do_not_end_an_alert(db, monkeypatch):
    assert await later_deaths_of_another_keep_the_alert(db, monkeypatch)


async def test_without_those_known_they_would(db, monkeypatch):
    """Mutant of the test above, which shows that it can fail."""
    count = kept.count_dead_letters
    monkeypatch.setattr(kept, "count_dead_letters", lambda connection, known, limit: count(connection, (), limit))
    assert not await later_deaths_of_another_keep_the_alert(db, monkeypatch)


async def test_a_value_at_the_threshold_is_not_sent(db, receiver):
    async with open_harness(db, settings_of(channels={"ops": webhook(receiver.url)}, rules=HIGH)) as harness:
        await harness.record_sample(LEVEL, 10)
        await harness.evaluate(3)
        await harness.deliver()
        assert (await harness.open_alerts(), receiver.requests) == ([], [])


async def test_unhandled_events_alert_by_source_until_routed(db, receiver):
    settings = settings_of(channels={"ops": webhook(receiver.url)}, own=True)
    store = EventStore(db)
    async with open_harness(db, settings) as harness:
        made = event("one", owed=())
        await store.append([made])
        await harness.evaluate()
        assert [(one.rule, one.subject, one.value) for one in await harness.open_alerts()] == [
            ("unhandled_events", "stripe", 1.0)
        ]
        await register(db, "shop", [Route(recipient="handler:pay", app="shop", source="stripe")])
        await route_events(db, [made.id], AuditContext(actor="test"))
        await harness.evaluate()
        await harness.advance_time(minutes=2)
        await harness.evaluate()
        assert await harness.open_alerts() == []


async def test_a_new_keeper_continues_without_repeating_or_losing_alerts(db, receiver):
    settings = settings_of(channels={"ops": webhook(receiver.url)}, rules={"high": {**HIGH["high"], "for_s": 60}})
    async with open_harness(db, settings) as first:
        await first.record_sample(LEVEL, 11)
        await first.evaluate()
        assert [one.state for one in await first.open_alerts()] == ["pending"]
    async with open_harness(db, settings) as second:
        await second.advance_time(seconds=60)
        await second.record_sample(LEVEL, 12)
        await second.evaluate()  # written down, and this keeper dies before it tells it
        assert [one.state for one in await second.open_alerts()] == ["firing"]
    async with open_harness(db, settings) as third:
        await third.evaluate()
        await third.deliver()
        assert sent_alerts(receiver) == [("firing", "high", "")]
    async with open_harness(db, settings) as fourth:
        await fourth.evaluate()
        await fourth.deliver()
        assert sent_alerts(receiver) == [("firing", "high", "")]


async def test_two_concurrent_keepers_send_once(db, receiver):
    settings = settings_of(channels={"ops": webhook(receiver.url)}, rules=HIGH)
    async with open_harness(db, settings) as one, open_harness(db, settings) as other:
        await one.record_sample(LEVEL, 11)
        await asyncio.gather(*(harness.evaluate() for harness in (one, other) for _ in range(3)))
        await asyncio.gather(*(harness.deliver() for harness in (one, other) for _ in range(3)))
        assert sent_alerts(receiver) == [("firing", "high", "")]


async def test_without_the_stored_alert_it_is_sent_twice(db, receiver):
    settings = settings_of(channels={"ops": webhook(receiver.url)}, rules=HIGH)
    for _ in range(2):
        async with open_harness(db, settings) as harness:
            await harness.record_sample(LEVEL, 11)
            await harness.evaluate()
            await harness.deliver()
            await db.execute("delete from boathook.alert")
    assert sent_alerts(receiver) == [("firing", "high", "")] * 2


async def test_the_next_keeper_resends_an_interrupted_message_with_its_id(db):
    async with Receiver(script=(3_600,)) as silent:
        settings = settings_of(channels={"ops": webhook(silent.url)}, rules=HIGH)
        async with open_harness(db, settings) as harness:
            await harness.record_sample(LEVEL, 11)
            await harness.evaluate()
            await harness.dispatcher.run_once()
            await eventually(lambda: silent.requests)
    async with Receiver() as receiver:
        settings = settings_of(channels={"ops": webhook(receiver.url)}, rules=HIGH)
        async with open_harness(db, settings) as harness:
            await harness.deliver()
            assert receiver.requests == []  # the other may still be at it
            await harness.advance_time(minutes=2)
            await harness.deliver()
            ids = {request.headers["webhook-id"] for request in (*silent.requests, *receiver.requests)}
            assert (len(receiver.requests), len(ids)) == (1, 1)


async def test_many_subjects_are_one_message(db, receiver):
    async with open_harness(db, settings_of(channels={"ops": webhook(receiver.url)}, rules=BACKLOG)) as harness:
        rows = {(f"handler:{n}", "due"): 100.0 + n for n in range(30)}
        await insert_sample(db, "a", {"boathook_backlog": rows})
        await harness.evaluate()
        await harness.deliver()
        assert (len(receiver.requests), len(sent_alerts(receiver))) == (1, 30)
        assert "30 warning" in json.loads(receiver.requests[0].body)["data"]["title"]


async def test_a_message_waits_for_others_to_join_it(db, receiver):
    settings = settings_of(channels={"ops": webhook(receiver.url)}, rules=BACKLOG, group_wait_s=20)
    async with open_harness(db, settings) as harness:
        await harness.record_sample("boathook_backlog", 11, "handler:a", "due")
        await harness.evaluate()
        await harness.deliver()
        assert receiver.requests == []
        await harness.record_sample("boathook_backlog", 11, "handler:b", "due", host="b")
        await harness.evaluate()
        await harness.advance_time(seconds=20)
        await harness.deliver()
        assert sorted(sent_alerts(receiver)) == [("firing", "waits", "handler:a"), ("firing", "waits", "handler:b")]
        assert len(receiver.requests) == 1


async def test_an_alert_recovering_within_group_wait_is_sent_as_recovered(db, receiver):
    settings = settings_of(channels={"ops": webhook(receiver.url)}, rules=HIGH, group_wait_s=20)
    async with open_harness(db, settings) as harness:
        for value in (11, 9):
            await harness.record_sample(LEVEL, value)
            await harness.evaluate()
        await harness.advance_time(seconds=20)
        await harness.deliver()
        assert sent_alerts(receiver) == [("recovered", "high", "")]


async def test_a_rule_has_no_more_than_a_hundred_alerts_at_once(db, receiver):
    async with open_harness(db, settings_of(channels={"ops": webhook(receiver.url)}, rules=BACKLOG)) as harness:
        rows = {(f"handler:{n}", "due"): 100.0 + n for n in range(250)}
        await insert_sample(db, "a", {"boathook_backlog": rows})
        await harness.evaluate(2)
        found = {one.subject for one in await harness.open_alerts()}
        assert found == {f"handler:{n}" for n in range(150, 250)}  # those that are worst off


async def test_messages_respect_min_interval_and_max_per_hour(db, receiver):
    settings = settings_of(channels={"ops": webhook(receiver.url)}, rules=BACKLOG, min_interval_s=30, max_per_hour=2)
    async with open_harness(db, settings) as harness:

        async def another(name: str) -> int:
            await harness.record_sample("boathook_backlog", 11, name, "due", host=name)
            await harness.evaluate()
            await harness.deliver()
            return len(receiver.requests)

        assert await another("a") == 1
        assert await another("b") == 1  # too soon after the first
        await harness.advance_time(seconds=31)
        assert await another("c") == 2  # together with the one that waited
        await harness.advance_time(seconds=31)
        assert await another("d") == 2  # two within the hour are enough
        await harness.advance_time(hours=1)
        await harness.deliver()
        assert len(receiver.requests) == 3
        assert {subject for _, _, subject in sent_alerts(receiver)} == {"a", "b", "c", "d"}  # late, but nothing is lost


async def test_a_firing_alert_is_repeated_after_repeat_interval(db, receiver):
    settings = settings_of(channels={"ops": webhook(receiver.url)}, rules=HIGH, repeat_interval_s=3600)
    async with open_harness(db, settings) as harness:
        await harness.record_sample(LEVEL, 11)
        await harness.evaluate()
        await harness.deliver()
        await harness.advance_time(minutes=59)
        await harness.evaluate()
        await harness.deliver()
        assert sent_alerts(receiver) == [("firing", "high", "")]
        await harness.advance_time(minutes=2)
        await harness.record_sample(LEVEL, 12)
        await harness.evaluate(2)
        await harness.deliver()
        assert sent_alerts(receiver) == [("firing", "high", ""), ("repeated", "high", "")]


class TestSilence:
    async def silence(self, db, rule="*", subject="*", minutes=60):
        async with db.transaction() as connection:
            return await kept.insert_silence(
                connection, kept_id(), rule=rule, subject=subject, note="known", actor="test",
                until=datetime.now(UTC) + timedelta(minutes=minutes),
            )  # fmt: skip

    async def test_a_silenced_alert_is_sent_once_the_silence_ends(self, db, receiver):
        async with open_harness(db, settings_of(channels={"ops": webhook(receiver.url)}, rules=HIGH)) as harness:
            await self.silence(db, rule="hi*")
            await harness.record_sample(LEVEL, 11)
            await harness.evaluate(2)
            await harness.deliver()
            (alert,) = await harness.open_alerts()
            assert (alert.state, alert.is_silenced, receiver.requests) == ("firing", True, [])
            await harness.advance_time(minutes=61)
            await harness.record_sample(LEVEL, 11)
            await harness.evaluate()
            await harness.deliver()
            assert sent_alerts(receiver) == [("firing", "high", "")]

    async def test_an_alert_that_recovers_while_silenced_is_never_sent(self, db, receiver):
        async with open_harness(db, settings_of(channels={"ops": webhook(receiver.url)}, rules=HIGH)) as harness:
            await self.silence(db)
            for value in (11, 9):
                await harness.record_sample(LEVEL, value)
                await harness.evaluate()
            await harness.advance_time(minutes=61)
            await harness.evaluate()
            await harness.deliver()
            assert receiver.requests == []

    async def test_other_subjects_are_still_sent(self, db, receiver):
        async with open_harness(db, settings_of(channels={"ops": webhook(receiver.url)}, rules=BACKLOG)) as harness:
            await self.silence(db, subject="handler:a")
            rows = {(name, "due"): 11.0 for name in ("handler:a", "handler:ab")}
            await insert_sample(db, "a", {"boathook_backlog": rows})
            await harness.evaluate()
            await harness.deliver()
            assert sent_alerts(receiver) == [("firing", "waits", "handler:ab")]


def kept_id():
    from boathook.alerts.dispatcher import new_id

    return new_id()


class TestChannels:
    async def test_a_dead_channel_delays_no_other_and_its_error_is_kept(self, db, refused, receiver):
        channels = {"dead": webhook(refused), "ops": webhook(receiver.url)}
        async with open_harness(db, settings_of(channels=channels, rules=HIGH)) as harness:
            await harness.record_sample(LEVEL, 11)
            await harness.evaluate()
            await harness.deliver()
            assert sent_alerts(receiver) == [("firing", "high", "")]
            found = await harness.channels()
            assert (found["ops"].sent, found["ops"].waiting, found["ops"].error) == (1, 0, None)
            assert (found["dead"].sent, found["dead"].waiting, found["dead"].failures) == (0, 1, 1)
            assert "127.0.0.1" in (found["dead"].error or "")
            assert found["dead"].not_before is not None
            assert found["dead"].not_before > datetime.now(UTC)

    async def test_a_recovered_channel_gets_missed_messages(self, db):
        broken = (b"HTTP/1.1 500 X\r\ncontent-length: 0\r\n\r\n",)
        async with (
            Receiver(script=broken) as receiver,
            open_harness(db, settings_of(channels={"ops": webhook(receiver.url)}, rules=HIGH)) as harness,
        ):
            await harness.record_sample(LEVEL, 11)
            await harness.evaluate()
            await harness.deliver()
            await harness.deliver()
            assert len(receiver.requests) == 1  # it rests first
            receiver.script = (OK,)
            await harness.advance_time(minutes=1)
            await harness.deliver()
            assert (await harness.channels())["ops"].failures == 0
            assert len({request.headers["webhook-id"] for request in receiver.requests}) == 1
            await harness.advance_time(minutes=1)
            await harness.deliver()
            assert len(receiver.requests) == 2

    async def test_a_notification_failing_for_a_day_is_given_up(self, db, refused):
        channels = {"dead": webhook(refused)}
        async with open_harness(db, settings_of(channels=channels, rules=HIGH)) as harness:
            await harness.record_sample(LEVEL, 11)
            await harness.evaluate()
            await harness.advance_time(hours=25)
            await harness.deliver()
            assert (await harness.channels())["dead"].waiting == 0
            assert await db.fetchval("select state from boathook.alert_notification") == "given_up"

    async def test_channels_are_chosen_by_rule_and_min_severity(self, db, receiver):
        channels = {
            "all": webhook(receiver.url),
            "grave": webhook(receiver.url, min_severity="critical"),
            "none": webhook(receiver.url),
        }
        rules = {
            "mild": {**HIGH["high"], "channels": ["all", "grave"]},
            "grave": {**HIGH["high"], "severity": "critical", "channels": ["grave"]},
            "shown": {**HIGH["high"], "channels": []},
        }
        async with open_harness(db, settings_of(channels=channels, rules=rules)) as harness:
            await harness.record_sample(LEVEL, 11)
            await harness.evaluate()
            rows = await db.fetch(
                "select n.channel, a.rule from boathook.alert_notification n join boathook.alert a on a.id = n.alert_id order by 1"
            )
            assert [(row["channel"], row["rule"]) for row in rows] == [("all", "mild"), ("grave", "grave")]
            assert len(await harness.open_alerts()) == 3

    async def test_the_guard_keeps_it_from_private_addresses(self, db, receiver):
        settings = settings_of(channels={"ops": webhook(receiver.url)}, rules=HIGH)
        closed = settings.model_copy(update={"outbound": settings.outbound.model_copy(update={"allow": ()})})
        async with open_harness(db, closed) as harness:
            await harness.record_sample(LEVEL, 11)
            await harness.evaluate()
            await harness.deliver()
            assert "this machine" in ((await harness.channels())["ops"].error or "")
            assert receiver.accepted == 0


async def test_figures_that_stop_coming_neither_fire_nor_recover_anything(db, receiver):
    async with open_harness(db, settings_of(channels={"ops": webhook(receiver.url)}, rules=HIGH)) as harness:
        await harness.record_sample(LEVEL, 11)
        await harness.evaluate()
        await db.execute("update boathook.metric_sample set at = at - interval '10 minutes'")
        async with open_harness(db, harness.settings) as later:
            await later.evaluate(2)
            assert [one.state for one in await later.open_alerts()] == ["firing"]


async def test_an_alert_ends_once_its_metric_is_stale_not_before(db, receiver):
    async with open_harness(db, settings_of(channels={"ops": webhook(receiver.url)}, rules=HIGH)) as harness:
        await harness.record_sample(LEVEL, 11)
        await harness.evaluate()
        await harness.record_sample("boathook_endpoint_requests_in_flight", 0)
        await harness.evaluate()
        assert [one.state for one in await harness.open_alerts()] == ["firing"]
        await db.execute("update boathook.metric_sample set at = at - interval '61 seconds'")
        await harness.record_sample("boathook_endpoint_requests_in_flight", 0)
    async with open_harness(db, harness.settings) as later:
        await later.evaluate()
        assert await later.open_alerts() == []


async def test_an_alert_of_a_removed_rule_recovers(db, receiver):
    async with open_harness(db, settings_of(channels={"ops": webhook(receiver.url)}, rules=HIGH)) as harness:
        await harness.record_sample(LEVEL, 11)
        await harness.evaluate()
        await harness.deliver()
    async with open_harness(db, settings_of(channels={"ops": webhook(receiver.url)})) as harness:
        await harness.evaluate()
        await harness.deliver()
        assert await harness.open_alerts() == []
        assert [kind for kind, _, _ in sent_alerts(receiver)] == ["firing", "recovered"]


class TestQuietHours:
    @pytest.mark.parametrize(
        ("hours", "zone", "at", "ends"),
        [
            ("22:00-07:00", "UTC", "2026-03-01T23:30", "2026-03-02T07:00"),
            ("22:00-07:00", "UTC", "2026-03-01T06:59", "2026-03-01T07:00"),
            ("22:00-07:00", "UTC", "2026-03-01T12:00", "2026-03-01T12:00"),
            ("12:00-13:00", "UTC", "2026-03-01T12:30", "2026-03-01T13:00"),
            ("22:00-07:00", "Europe/Berlin", "2026-01-10T22:00", "2026-01-11T06:00"),
            # The clocks go forward in this night, so that seven o'clock comes an hour sooner.
            ("22:00-07:00", "Europe/Berlin", "2026-03-28T22:00", "2026-03-29T05:00"),
        ],
    )
    def test_they_end_when_they_should(self, hours, zone, at, ends):
        settings = settings_of(quiet_hours=hours, quiet_zone=zone).notifications
        moment = datetime.fromisoformat(at).replace(tzinfo=UTC)
        assert after_quiet(settings, moment) == datetime.fromisoformat(ends).replace(tzinfo=UTC)

    async def test_only_critical_alerts_are_sent_and_the_rest_afterwards(self, db, receiver):
        now = datetime.now(UTC)
        hours = f"{now - timedelta(hours=1):%H:%M}-{now + timedelta(hours=1):%H:%M}"
        rules = {"mild": HIGH["high"], "grave": {**HIGH["high"], "severity": "critical"}}
        settings = settings_of(channels={"ops": webhook(receiver.url)}, rules=rules, quiet_hours=hours)
        async with open_harness(db, settings) as harness:
            await harness.record_sample(LEVEL, 11)
            await harness.evaluate()
            await harness.deliver()
            assert sent_alerts(receiver) == [("firing", "grave", "")]
            await harness.advance_time(hours=1, minutes=1)
            await harness.deliver()
            assert sent_alerts(receiver)[1:] == [("firing", "mild", "")]


class StillClock:
    def __init__(self, moment):
        self.moment = moment

    def now(self, _zone):
        return self.moment


class TestLocalEvaluator:
    """Alerts sent by a host without PostgreSQL."""

    RULES: ClassVar = {"spooled": {"metric": "boathook_spool_events", "by": ["host"], "above": 0, "clear_s": 0}}

    def alone(self, settings):
        return LocalEvaluator(settings, compile_rules(settings), "me", Notifier(settings))

    async def test_it_sends_once_and_syncs_so_the_keeper_does_not_repeat(self, db, receiver):
        settings = settings_of(channels={"ops": webhook(receiver.url)}, rules=self.RULES)
        alone = self.alone(settings)
        for _ in range(3):
            await alone.run_once(SPOOLED)
        assert sent_alerts(receiver) == [("firing", "spooled", "me")]
        async with open_harness(db, settings) as harness:
            await alone.sync_to_database(db)
            await harness.record_sample("boathook_spool_events", 5, host="me")
            await harness.evaluate()
            await harness.deliver()
            assert sent_alerts(receiver) == [("firing", "spooled", "me")]
            await alone.sync_to_database(db)
            await harness.record_sample("boathook_spool_events", 0, host="me")
            await harness.evaluate()
            await harness.deliver()
            assert sent_alerts(receiver)[1:] == [("recovered", "spooled", "me")]

    async def test_it_does_not_repeat_what_the_keeper_sent(self, db, receiver):
        settings = settings_of(channels={"ops": webhook(receiver.url)}, rules=self.RULES)
        async with open_harness(db, settings) as harness:
            await harness.record_sample("boathook_spool_events", 5, host="me")
            await harness.evaluate()
            await harness.deliver()
            alone = self.alone(settings)
            await alone.sync_to_database(db)
            await alone.run_once(SPOOLED)
            assert sent_alerts(receiver) == [("firing", "spooled", "me")]

    @pytest.mark.extended("needs thousands of rows, objects or connections")
    async def test_a_day_without_postgresql_is_not_kept_whole(self, monkeypatch):
        alone = self.alone(settings_of(rules=self.RULES))
        counted = MetricSnapshot(gauges=SPOOLED.gauges, counters={"boathook_requests_total": {("s", "200"): 1}})
        began = datetime.now(UTC)
        for moment in (began + timedelta(seconds=10 * n) for n in range(8_640)):
            monkeypatch.setattr("boathook.alerts.evaluator.datetime", StillClock(moment))
            await alone.run_once(counted)
        kept = alone._window._hosts["me"]
        assert len(kept) < 400
        assert (set(kept[-1].snapshot.gauges), kept[-1].snapshot.counters) == ({"boathook_spool_events"}, {}), (
            "what no rule of a host looks at is not kept"
        )

    async def test_without_the_sync_it_is_sent_twice(self, db, receiver):
        settings = settings_of(channels={"ops": webhook(receiver.url)}, rules=self.RULES)
        await self.alone(settings).run_once(SPOOLED)
        async with open_harness(db, settings) as harness:
            await harness.record_sample("boathook_spool_events", 5, host="me")
            await harness.evaluate()
            await harness.deliver()
            assert sent_alerts(receiver) == [("firing", "spooled", "me")] * 2

    async def test_the_keeper_sends_to_channels_it_could_not_reach(self, db, refused, receiver):
        channels = {"ops": webhook(receiver.url), "dead": webhook(refused)}
        settings = settings_of(channels=channels, rules=self.RULES)
        alone = self.alone(settings)
        await alone.run_once(SPOOLED)
        await alone.sync_to_database(db)
        assert [row["channel"] for row in await db.fetch("select channel from boathook.alert_notification")] == ["dead"]

    async def test_it_ignores_rules_without_a_host(self, receiver):
        settings = settings_of(channels={"ops": webhook(receiver.url)}, rules=HIGH)
        await self.alone(settings).run_once(MetricSnapshot(gauges={LEVEL: {(): 70}}))
        assert receiver.requests == []

    async def test_a_sampler_without_postgresql_sends_alerts(self, tmp_path, receiver):
        from boathook.observability import meters

        url = "postgresql://127.0.0.1:1/none"
        settings = settings_of(url=url, channels={"ops": webhook(receiver.url)}, rules=self.RULES)
        server = settings.server.model_copy(update={"data_dir": tmp_path})
        meters.gauge("boathook_spool_events", 3)
        try:
            sampler = Sampler(settings.model_copy(update={"server": server}), "supervisor-0")
            await sampler.stop()  # which samples once more
        finally:
            meters.drop_series("boathook_spool_events")
        assert [(kind, rule) for kind, rule, _ in sent_alerts(receiver)] == [("firing", "spooled")]


@pytest.mark.extended("waits for intervals and deadlines of the product")
async def test_an_unresponsive_channel_does_not_delay_evaluation_or_stop(pg_url, db):
    async with Receiver(script=(60,)) as silent:
        settings = settings_of(url=pg_url, channels={"ops": webhook(silent.url)}, rules=HIGH, evaluation_interval_s=1)
        async with AlertService(settings, pg_url).run_in_background():
            await insert_sample(db, "a", {LEVEL: {(): 11}})
            await eventually(lambda: silent.requests)
            before = await db.fetchval("select at from boathook.alert_evaluation")

            async def evaluated_again() -> bool:
                return await db.fetchval("select at from boathook.alert_evaluation") > before

            await eventually(evaluated_again)  # the rules are looked at all the while
            began = time.monotonic()
        assert time.monotonic() - began < 600  # and stopping does not wait for it


async def test_a_failing_evaluation_does_not_stop_later_ones(pg_url, db, receiver):
    settings = settings_of(url=pg_url, channels={"ops": webhook(receiver.url)}, rules=HIGH, evaluation_interval_s=1)
    await db.execute("alter table boathook.alert_evaluation rename to hidden")
    async with AlertService(settings, pg_url).run_in_background():
        await insert_sample(db, "a", {LEVEL: {(): 11}})
        await asyncio.sleep(0)
        await db.execute("alter table boathook.hidden rename to alert_evaluation")
        await eventually(lambda: sent_alerts(receiver) == [("firing", "high", "")])


async def test_figures_of_a_clock_that_was_ahead_hide_no_present_ones(db, receiver):
    async with open_harness(db, settings_of(channels={"ops": webhook(receiver.url)}, rules=HIGH)) as harness:
        await harness.record_sample(LEVEL, 5)
        await db.execute("update boathook.metric_sample set at = at + interval '1 hour'")
        await harness.evaluate()
        await harness.record_sample(LEVEL, 11)
        await harness.evaluate()
        await harness.deliver()
        assert sent_alerts(receiver) == [("firing", "high", "")]


async def test_samples_stored_after_an_outage_are_counted_once(db):
    rules = {"many": {"metric": ACCEPTED, "measure": "increase", "over_s": 3_600, "above": 40}}
    async with open_harness(db, settings_of(rules=rules)) as harness:
        await harness.evaluate()
        began = datetime.now(UTC) - timedelta(minutes=20)
        accepted = MetricSnapshot(span_s=10, counters={ACCEPTED: {("stripe",): 1}})
        ats = [*(began + timedelta(seconds=10 * n) for n in range(30)), datetime.now(UTC)]
        await metric_samples.insert(db, [HostSample("a", at, accepted) for at in ats])
        await harness.evaluate(5)
        assert await harness.open_alerts() == [], "31 of at most 40 events"
        await metric_samples.insert(db, [HostSample("b", at, accepted) for at in ats])
        await harness.evaluate()
        assert [one.value for one in await harness.open_alerts()] == [62]
