"""The alerts page: firing alerts, silences with their authors, and channel tests."""

import json
from datetime import timedelta

import pytest

from boathook.alerts.notifier import Sent
from boathook.config.notifications import default_rules
from boathook.db.secret_box import SecretBox
from boathook.domain.errors import InvalidValue, NotFound
from boathook.handlers.outbox import Outbox
from boathook.service import alerts as actions
from boathook.service.unit_of_work import AppContext
from tests.alert_harness import open_harness, sent_alerts, settings_of, webhook
from tests.postgres.portal_client import open_console
from tests.postgres.test_alerts import HIGH, LEVEL
from tests.unit.receivers import Receiver


@pytest.fixture
async def receiver():
    async with Receiver() as made:
        yield made


def context_of(db, settings):
    return AppContext(settings, db, SecretBox(["a key of at least sixteen characters"]), Outbox())


async def test_the_overview_shows_figures_thresholds_and_channels(db, receiver):
    settings = settings_of(channels={"ops": webhook(receiver.url)}, rules=HIGH)
    async with open_harness(db, settings) as harness:
        context = context_of(db, settings)
        async with context.work() as work:
            assert (await actions.read_overview(work.connection, settings)).is_stale
        await harness.record_sample(LEVEL, 11)
        await harness.evaluate()
        await harness.deliver()
        async with context.work() as work:
            found = await actions.read_overview(work.connection, settings)
        assert not found.is_stale
        assert [one.rule for one in found.firing] == ["high"]
        (rule,) = [one for one in found.rules if one.name == "high"]
        assert rule.threshold == "value above 10"
        assert [one["value"] for one in rule.readings] == [11]
        assert rule.channels == ("ops",)
        assert [(one.name, one.state.sent) for one in found.channels] == [("ops", 1)]


async def test_creating_and_ending_a_silence_is_audited(db):
    settings = settings_of(rules=HIGH)
    context = context_of(db, settings)
    async with context.work(actor="console:anna") as work:
        made = await actions.silence(work, rule="high", subject="*", text="a move", length=timedelta(hours=1))
    async with context.work(actor="console:bert") as work:
        await actions.end_silence(work, made.shown_id)
    rows = await db.fetch("select actor, action, subject, note from boathook.audit order by id")
    assert [tuple(row.values()) for row in rows] == [
        ("console:anna", "alert.silence", made.shown_id, "high *: a move"),
        ("console:bert", "alert.unsilence", made.shown_id, None),
    ]
    async with context.work() as work:
        with pytest.raises(NotFound):
            await actions.end_silence(work, made.shown_id)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"rule": ""}, "rule"),
        ({"subject": "a\nb"}, "subject"),
        ({"subject": "x" * 301}, "subject"),
        ({"text": "  "}, "note"),
        ({"text": "a\0b"}, "note"),
        ({"length": timedelta(0)}, "length"),
        ({"length": timedelta(days=366)}, "length"),
    ],
)
async def test_an_invalid_silence_is_refused_by_its_field(db, change, field):
    given = {"rule": "*", "subject": "*", "text": "why", "length": timedelta(hours=1)} | change
    async with context_of(db, settings_of()).work() as work:
        with pytest.raises(InvalidValue) as caught:
            await actions.silence(work, **given)
    assert caught.value.where == (field,)


async def test_a_test_alert_arrives_marked_as_a_test(receiver):
    settings = settings_of(channels={"ops": webhook(receiver.url)})
    assert await actions.test_channel(settings, "ops", "anna") == Sent()
    assert [(kind, rule) for kind, rule, _ in sent_alerts(receiver)] == [("test", "test")]
    assert json.loads(receiver.requests[0].body)["type"] == "alerts.test"


async def test_a_test_of_a_channel_that_is_not_there_is_refused(db):
    async with context_of(db, settings_of()).work() as work:
        with pytest.raises(NotFound):
            await actions.note_test(work, "nobody")


async def test_every_link_of_every_rule_answers(db):
    async with open_console(db) as console:
        anna = await console.operator()
        for name, rule in default_rules().items():
            await anna.get_page(rule["page"])
            await anna.get_page(f"/console/alerts?rule={name}&subject=*")
