"""The demo's verdict on an outage of PostgreSQL, and on a machine without RabbitMQ."""

import asyncio
import json
from collections import Counter
from pathlib import Path

import pytest
from typer.testing import CliRunner

from boathook.cli import app
from boathook.domain.errors import ConfigError
from boathook.http_client.messages import HttpResponse
from boathook_demo import rabbitmq, services
from boathook_demo.outage import Outage
from boathook_demo.reconciliation import Stored, compare
from boathook_demo.sample_events import SampleEvent, SenderLog, TimedResponse

SAMPLE = SampleEvent("github", "1", {"n": 1}, effects=("remind",))


def answer(status: int, event_id: str = "") -> TimedResponse:
    body = json.dumps({"ok": True, "event_id": event_id, "duplicate": False}).encode() if event_id else b""
    return TimedResponse(HttpResponse(status, {}, body), 0.001)


@pytest.fixture
def sender_log() -> SenderLog:
    log = SenderLog(["github"])
    log.record_send(SAMPLE)
    return log


def stored(log: SenderLog, event_id: str, mails: int = 1) -> Stored:
    sha256 = log.sent["github", "1"].sha256
    return Stored(
        events={("github", "1"): [(event_id, sha256)]},
        effects=Counter({("1", "remind"): 1}),
        conflicts=Counter(),
        mails=Counter({"1": mails}),
    )


def outage(seconds: float = 5.0, buffered: int = 3) -> Outage:
    one = Outage(None, Path(), 9.0, asyncio.Event(), print)
    one.seconds, one.buffered = seconds, buffered
    return one


def test_a_repeat_accepted_as_new_during_the_outage_is_fine(sender_log: SenderLog):
    sender_log.record_response(SAMPLE, answer(200, "evt_a"))
    sender_log.is_outage = sender_log.had_outage = True
    sender_log.record_response(SAMPLE, answer(200, "evt_b"))
    assert sender_log.answered_in_outage == 1
    assert compare(sender_log, stored(sender_log, "evt_a")) == []


def test_a_repeat_accepted_as_new_without_an_outage_is_reported(sender_log: SenderLog):
    sender_log.record_response(SAMPLE, answer(200, "evt_a"))
    sender_log.record_response(SAMPLE, answer(200, "evt_b"))
    assert len(compare(sender_log, stored(sender_log, "evt_a"))) == 2


def test_an_event_with_an_unknown_id_is_reported_during_an_outage(sender_log: SenderLog):
    sender_log.is_outage = True
    sender_log.record_response(SAMPLE, answer(200, "evt_a"))
    assert "which no answer named" in compare(sender_log, stored(sender_log, "evt_x"))[0]


@pytest.mark.parametrize(("had_outage", "mails", "complaints"), [(True, 2, 0), (False, 2, 1), (True, 0, 1)])
def test_a_mail_may_repeat_after_an_outage_but_not_be_missing(
    sender_log: SenderLog, had_outage: bool, mails: int, complaints: int
):
    sender_log.record_response(SAMPLE, answer(200, "evt_a"))
    sender_log.had_outage = had_outage
    assert len(compare(sender_log, stored(sender_log, "evt_a", mails))) == complaints


def test_an_outage_senders_did_not_notice_passes(sender_log: SenderLog):
    sender_log.record_response(SAMPLE, answer(200, "evt_a"))
    one = outage()
    one.judge(sender_log)
    assert one.complaints == ()


@pytest.mark.parametrize("reply", [None, answer(503), answer(429)])
def test_a_request_that_was_not_answered_2xx_is_a_complaint(sender_log: SenderLog, reply: TimedResponse | None):
    sender_log.record_response(SAMPLE, reply)
    one = outage()
    one.judge(sender_log)
    assert one.complaints == ("1 requests got no answer, or a 429 or 5xx",)


def test_an_outage_without_the_broker_is_a_complaint(sender_log: SenderLog):
    one = outage(buffered=0)
    one.judge(sender_log)
    assert one.complaints == ("no event waited with RabbitMQ",)


def test_missing_rabbitmq_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(rabbitmq, "PACKAGED", tmp_path / "missing")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="apt-get install rabbitmq-server"):
        rabbitmq.server_program()
    done = CliRunner().invoke(app, ["--data-dir", str(tmp_path / "demo"), "demo", "--buffer", "rabbitmq"])
    assert done.exit_code != 0
    assert not (tmp_path / "demo").exists(), "nothing is begun"


def test_servers_that_are_not_installed_are_left_out_and_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(rabbitmq, "PACKAGED", tmp_path / "missing")
    monkeypatch.setenv("PATH", str(tmp_path))
    choice = services.chosen("auto")
    assert (choice.has_broker, choice.has_redis) == (False, False)
    assert [sentence.partition(",")[0] for sentence in choice.left_out] == ["RabbitMQ", "Redis"]
    assert all("apt-get install" in sentence for sentence in choice.left_out)
    assert services.chosen("disk") == services.Choice()


@pytest.mark.parametrize(
    ("metrics", "are_used"),
    [
        (
            {
                "boathook_due_lane_messages_total": 7.0,
                "boathook_due_lane_unavailable": 0.0,
                "boathook_redis_unavailable": 0.0,
            },
            [True, True],
        ),
        (
            {
                "boathook_due_lane_messages_total": 7.0,
                "boathook_due_lane_unavailable": 1.0,
                "boathook_redis_unavailable": 1.0,
            },
            [False, False],
        ),
        ({"boathook_due_lane_messages_total": 0.0, "boathook_due_lane_unavailable": 0.0}, [False, False]),
        ({}, [False, False]),
    ],
)
async def test_only_servers_that_boathook_uses_are_reported_as_used(metrics: dict[str, float], are_used: list[bool]):
    class Serving:
        async def read_metric(self, name: str, **_: str) -> float | None:
            return metrics.get(name)

    lines = await services.report(services.Services("127.0.0.1:1", "redis://127.0.0.1:2/0"), Serving())
    assert [is_used for _, is_used in lines] == are_used


def test_rabbitmq_is_found_on_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    program = tmp_path / "rabbitmq-server"
    program.touch(mode=0o755)
    monkeypatch.setattr(rabbitmq, "PACKAGED", tmp_path / "missing")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert rabbitmq.server_program() == program
