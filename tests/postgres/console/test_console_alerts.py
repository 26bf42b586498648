"""The alerts page: firing alerts, silences with their authors, and channel tests."""

import html
import json
import re
from datetime import UTC, datetime, timedelta

import pytest

from boathook.alerts.dispatcher import build_entry
from boathook.config.notifications import default_rules
from boathook.db import alerts as kept
from boathook.db.alerts import Alert
from boathook.db.secret_box import SecretBox
from boathook.domain import ids
from boathook.domain.alerts import AlertMessage, AlertMessageKind, AlertState
from boathook.domain.errors import InvalidValue, NotFound
from boathook.handlers.outbox import Outbox
from boathook.service.caller import HOST
from boathook.service.catalogue import alerts, silences
from boathook.service.catalogue.alerts import ChannelNamed, ChannelTested
from boathook.service.catalogue.silences import NewSilence, SilenceFilter, SilenceNamed
from boathook.service.operating import alerts as actions
from boathook.service.unit_of_work import AppContext, new_id
from boathook_alert_channels import render
from boathook_alert_channels.settings import TelegramChannel
from tests.alert_harness import open_harness, sent_alerts, settings_of, webhook
from tests.postgres.operating.test_alerts import HIGH, LEVEL
from tests.postgres.portal_client import open_console
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
    new = NewSilence(rule="high", note="a move", duration_seconds=3_600)
    async with context.work(actor="console:anna", caller=HOST) as work:
        created = await silences.create(work, new)
    assert created.until - created.created_at == pytest.approx(timedelta(hours=1), abs=timedelta(seconds=5))
    async with context.work(actor="console:bert", caller=HOST) as work:
        ended = await silences.end(work, SilenceNamed(id=created.id))
    assert (ended.ended_by, ended.until < created.until) == ("console:bert", True)
    rows = await db.fetch("select actor, action, subject, note from boathook.audit order by id")
    assert [tuple(row.values()) for row in rows] == [
        ("console:anna", "alert.silence", created.id, "high *: a move"),
        ("console:bert", "alert.unsilence", created.id, None),
    ]
    async with context.work(caller=HOST) as work:
        with pytest.raises(NotFound):
            await silences.end(work, SilenceNamed(id=created.id))


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"rule": ""}, "rule"),
        ({"subject": "a\nb"}, "subject"),
        ({"subject": "x" * 301}, "subject"),
        ({"note": "  "}, "note"),
        ({"note": "a\0b"}, "note"),
        ({"duration_seconds": 0}, "durationSeconds"),
        ({"duration_seconds": 366 * 86_400}, "durationSeconds"),
        ({"duration_seconds": 10**30}, "durationSeconds"),
    ],
)
async def test_an_invalid_silence_is_refused_by_its_field(db, change, field):
    async with context_of(db, settings_of()).work(caller=HOST) as work:
        with pytest.raises(InvalidValue) as caught:
            await silences.create(work, NewSilence(**{"note": "why"} | change))
        assert (await silences.list_silences(work, SilenceFilter(ended=True))).data == []
    assert caught.value.where == (field,)


async def test_silences_are_listed_in_pages_with_and_without_those_that_ended(db):
    async with context_of(db, settings_of()).work(caller=HOST) as work:
        first, second, third = [await silences.create(work, NewSilence(note=note)) for note in ("a", "b", "c")]
        await silences.end(work, SilenceNamed(id=second.id))
        page = await silences.list_silences(work, SilenceFilter(limit=1))
        assert ([each.id for each in page.data], page.done) == ([third.id], False)
        page = await silences.list_silences(work, SilenceFilter(limit=1, iterator=page.iterator))
        assert ([each.id for each in page.data], page.done) == ([first.id], True)
        page = await silences.list_silences(work, SilenceFilter(ended=True))
        assert [(each.id, each.ended_by) for each in page.data] == [
            (third.id, None), (second.id, "unknown"), (first.id, None),
        ]  # fmt: skip


async def test_a_silence_that_no_rule_matches_says_so(db):
    async with context_of(db, settings_of(rules=HIGH)).work(caller=HOST) as work:
        assert (await silences.create(work, NewSilence(rule="hi*", note="a"))).notes == []
        (note,) = (await silences.create(work, NewSilence(rule="hey", note="a"))).notes
    assert note.startswith("no rule matches 'hey', so this silences nothing; the rules are ")


async def test_a_test_alert_arrives_marked_as_a_test_and_is_audited(db, receiver):
    context = context_of(db, settings_of(channels={"ops": webhook(receiver.url)}))
    async with context.work(actor="console:anna", caller=HOST) as work:
        assert await alerts.test(work, ChannelNamed(channel="ops")) == ChannelTested(channel="ops", sent=True)
    assert await db.fetchval("select actor || action || subject from boathook.audit") == "console:annaalert.testops"
    assert [(kind, rule) for kind, rule, _ in sent_alerts(receiver)] == [("test", "test")]
    assert json.loads(receiver.requests[0].body)["type"] == "alerts.test"


async def test_a_test_of_a_channel_that_is_not_there_is_refused(db):
    async with context_of(db, settings_of()).work(caller=HOST) as work:
        with pytest.raises(NotFound):
            await alerts.test(work, ChannelNamed(channel="nobody"))


async def test_a_test_that_fails_is_audited_and_says_why(db):
    refused = webhook("http://127.0.0.1:9/")
    context = context_of(db, settings_of(channels={"ops": refused}))
    async with context.work(caller=HOST) as work:
        tested = await alerts.test(work, ChannelNamed(channel="ops"))
    assert not tested.sent
    assert tested.error
    assert await db.fetchval("select count(*) from boathook.audit where action = 'alert.test'") == 1


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
