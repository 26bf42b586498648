"""The alerts page: firing alerts, silences with their authors, and channel tests."""

import html
import json
import re
from datetime import UTC, datetime, timedelta

import pytest

from boathook.alerts import render
from boathook.alerts.dispatcher import build_entry
from boathook.alerts.notifier import Sent
from boathook.config.notifications import TelegramChannel, default_rules
from boathook.db import alerts as kept
from boathook.db.alerts import Alert
from boathook.db.secret_box import SecretBox
from boathook.domain import ids
from boathook.domain.alerts import AlertMessage, AlertMessageKind, AlertState
from boathook.domain.errors import InvalidValue, NotFound
from boathook.handlers.outbox import Outbox
from boathook.service.operating import alerts as actions
from boathook.service.unit_of_work import AppContext, new_id
from tests.alert_harness import open_harness, sent_alerts, settings_of, webhook
from tests.postgres.portal_client import open_console
from tests.postgres.test_alerts import HIGH, LEVEL
from tests.sender_harness import add_application, add_endpoint
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


async def test_firing_alerts_are_sentences_that_open_their_subject_critical_ones_first(db):
    application = await add_application(db, uid="acme")
    await db.execute("update boathook.application set name = 'Acme' where id = $1", application)
    endpoint = await add_endpoint(db, "https://u:p@erp.example/in", application=application, description="ERP")
    bare = await add_endpoint(db, "https://u:p@crm.example/in?key=1", application=application)
    shown, other = (ids.show(ids.ENDPOINT, one.id) for one in (endpoint, bare))
    now = datetime.now(UTC)
    async with db.transaction() as connection:
        for age, (rule, subject, severity, value) in enumerate(
            (
                ("error_rate", f"endpoint:{shown}", "warning", 0.28),
                ("error_rate", "handler:b/pay", "warning", 0.281),
                ("endpoint_disabled", other, "warning", 1.0),
                ("all_signatures_failing", "shop", "critical", 1.0),
                ("dead_letters", "handler:b/pay", "critical", 3.0),
            )
        ):
            since = now - timedelta(minutes=age)
            await kept.insert(
                connection,
                Alert(id=new_id(), rule=rule, subject=subject, severity=severity, state=AlertState.FIRING, since=since,
                      value=value, worst=value, fired_at=since),
            )  # fmt: skip
        firing = await kept.list_open(connection)
    async with open_console(db) as console:
        anna = await console.operator()
        links = [
            ("/console/rejections?source=shop", "all requests for shop fail verification: check its secret"),
            ("/console/dead?recipient=handler%3Ab%2Fpay", "handler:b/pay has new dead letters"),
            (f"/console/endpoints/{shown}", "28 % of attempts of ERP of Acme failed in 10 minutes; the rule says 25 %"),
            ("/console/handlers/b/pay", "28.1 % of attempts of handler:b/pay failed in 10 minutes; the rule says 25 %"),
            (f"/console/endpoints/{other}", "crm.example of Acme is disabled because it failed for days or is gone"),
        ]
        page = await anna.get_page("/console/alerts")
        rows = re.findall(r'<th scope="row"><a href="([^"]+)">([^<]+)</a>', page)
        assert [(html.unescape(link), text) for link, text in rows] == links
        overview = await anna.get_page("/console")
        assert [link for link, _ in links if f'href="{html.escape(link)}"' in overview] == [
            link for link, _ in links[:3]
        ]
        for link, _ in links:
            if not link.endswith("b/pay"):  # no such handler
                assert (await anna.get(link)).status_code in {200, 303}
    entry = build_entry(console.context.settings.notifications.rules, firing[2], AlertMessageKind.FIRING)
    message = AlertMessage("ntc_1", now, [entry], "https://hooks.example.com")
    text = str(render.telegram(TelegramChannel(kind="telegram", token="t", chat="c"), message), "utf-8")
    assert "28 % of attempts of ERP of Acme failed in 10 minutes; the rule says 25 %, since " in text
    assert f"https://hooks.example.com/console/endpoints/{shown}" in text
