"""Critical errors are sent to a chat through the real HTTP client and a fake Bot API."""

import json
import time
from types import SimpleNamespace

import pytest

from boathook_fleet.alarms import Unsent, _wait_for_turn, send
from boathook_fleet.settings import TelegramSettings
from tests.apps.fleet.server import BOT_TOKEN, CHAT, BotApi, FleetServer, broken, hang, new_id, started, too_many
from tests.apps.fleet.test_mutants import transaction, url  # noqa: F401 - url is a fixture
from tests.support import until


@pytest.fixture(scope="module")
def server(tmp_path_factory, admin_url, pg_template, bot):
    """A boathook that finds every acknowledgement too slow, which is critical."""
    fleet = f"""
        ack_sla_ms = 0.0001
        window_s = 0.05
        [fleet.telegram]
        token = "{BOT_TOKEN}"
        chat_id = "{CHAT}"
        api = "{bot.url}"
        quiet_s = 1.0
        timeout_s = 8.0
    """
    with started(tmp_path_factory.mktemp("fleet"), admin_url, pg_template, fleet=fleet) as running:
        yield running


def test_a_critical_error_is_sent_as_the_bot_api_expects(server: FleetServer, bot: BotApi):
    server.send_event("car_create", {"id": new_id()})
    until(lambda: bot.taken)
    assert bot.taken[0].startswith("Acknowledging takes ")
    assert bot.calls == len(bot.taken), "the Bot API refused a request"


@pytest.mark.extended("waits for intervals and deadlines of the product")
def test_no_alert_is_lost_while_telegram_fails_and_repeats_are_collapsed(server: FleetServer, bot: BotApi):
    server.send_event("car_create", {"id": new_id()})
    until(lambda: server.rows("select from fleet.alarm where announced_at is null"))
    taken, moments = len(bot.taken), []

    def busy():
        moments.append(time.monotonic())
        return too_many(4)()

    def after():
        moments.append(time.monotonic())
        return broken(502)()

    bot.troubles += [broken(500), busy, after]
    # As many alarms as a bad night has, through the row that every alarm goes through.
    server.rows("update fleet.alarm set waiting = waiting + 57")
    server.send_event("car_create", {"id": new_id()})
    until(lambda: not bot.troubles and len(bot.taken) > taken)
    assert moments[1] - moments[0] >= 4, "it was asked to wait for 4 seconds"
    assert " more)" in bot.taken[taken]
    assert int(bot.taken[taken].rpartition("(and ")[2].split()[0]) >= 57
    kinds = {row["code"] for row in server.rows("select code from fleet.error_log where phase = 'notify'")}
    assert kinds >= {"TELEGRAM_500", "TELEGRAM_BUSY", "TELEGRAM_502"}


@pytest.mark.extended("waits for intervals and deadlines of the product")
def test_a_server_that_hangs_blocks_no_handling(server: FleetServer, bot: BotApi):
    bot.troubles.append(hang)
    server.send_event("car_create", {"id": new_id()})
    until(bot.hanging.is_set)
    calls, car = bot.calls, new_id()
    server.send_event("car_create", {"id": car})
    server.send_event("car_update", {"id": car, "state": "free"})
    server.known("cars", car, lambda row: row["state"] == "free")
    assert bot.calls == calls, "the hanging message had ended before"
    until(lambda: bot.calls > calls)
    assert server.rows("select from fleet.error_log where code = 'TELEGRAM_AWAY'")


def test_the_command_sends_one_message(server: FleetServer, bot: BotApi):
    assert "sent" in server.cli("fleet", "telegram", "test", "--text", "Проверка").stdout
    assert "Проверка" in bot.taken


def test_the_command_reports_the_error_without_the_token(server: FleetServer, bot: BotApi, tmp_path):
    folder = tmp_path / "wrong"
    folder.mkdir()
    fleet = f'[fleet.telegram]\ntoken = "1:other-secret"\nchat_id = "{CHAT}"\napi = "{bot.url}"\n'
    done = FleetServer(folder, server.database_url, fleet=fleet).cli("fleet", "telegram", "test", check=False)
    assert done.returncode != 0
    assert "TELEGRAM_401" in done.stdout + done.stderr
    assert "other-secret" not in done.stdout + done.stderr


def test_the_token_is_in_no_log(server: FleetServer):
    assert "telegram-test-secret" not in server.log()
    assert "/bot" not in "".join(row["error"] for row in server.rows("select error from fleet.error_log"))
    assert not server.rows("select from boathook.event where encode(body, 'escape') like '%%telegram-test-secret%%'")


async def test_a_response_echoing_the_url_does_not_reveal_the_token():
    class Echo:
        async def request(self, _method, address, **_options):
            return SimpleNamespace(status=404, body=json.dumps({"ok": False, "description": f"no {address}"}).encode())

    telegram = TelegramSettings(token=BOT_TOKEN, chat_id=CHAT)
    hook = SimpleNamespace(
        settings=SimpleNamespace(telegram=telegram), resolve=lambda reference, _key: reference, http=Echo()
    )
    answer = await send(hook, "hello")
    assert answer == Unsent("TELEGRAM_404", "no https://api.telegram.org/bot***/sendMessage")


async def test_no_more_messages_a_minute_than_allowed(url: str):  # noqa: F811
    async with transaction(url) as tx:
        assert await _wait_for_turn(tx, 2) == 0
        for age in (50, 20):
            await tx.execute(
                "insert into fleet.notice (at, kind, alarms, text) values (now() - make_interval(secs => $1), 'x', 1, 'x')",
                float(age),
            )
        assert 9 < await _wait_for_turn(tx, 2) <= 10, "until the first of the two is a minute old"
        assert await _wait_for_turn(tx, 3) == 0
