"""What nobody could handle: told, logged, decided by people through the app's own routes, or tried again by itself."""

import json

import httpx
import pytest

from tests.apps.fleet.server import BOT_TOKEN, CHAT, POISON, BotApi, Stand, new_id, served
from tests.support import until

DEAD = "/api/rentprog/webhook/dead"
HEALED = "drop trigger poison on fleet.cars"


def settings(bot: BotApi, *, retry: str) -> str:
    return f"""
        dead_retry_s = {retry}
        window_s = 0.05
        [fleet.telegram]
        token = "{BOT_TOKEN}"
        chat_id = "{CHAT}"
        api = "{bot.url}"
        quiet_s = 1.0
    """


@pytest.fixture(scope="module")
def stand(tmp_path_factory, admin_url, pg_template, bot):
    """A boathook that cannot write five of its cars, and has given that up."""
    folder = tmp_path_factory.mktemp("fleet")
    with served(folder, admin_url, pg_template, fleet=settings(bot, retry="[3600.0]")) as running:
        running.rows(POISON)
        for _ in range(5):
            running.tell("car_create", {"id": new_id(), "poison": "yes"})
        until(lambda: len(dead(running)) == 5, timeout=60)
        until(lambda: told(bot) >= 5, timeout=60)  # before a test decides about one of them
        yield running


def told(bot: BotApi) -> int:
    """Return of how many dead letters people have heard."""
    texts = [text for text in bot.taken if text.startswith("Dead letter: fleet.apply")]
    return len(texts) + sum(int(text.rpartition("(and ")[2].split()[0]) for text in texts if "(and " in text)


def dead(stand: Stand) -> list[dict]:
    answer = stand.client.get(DEAD)
    assert answer.status_code == 200, answer.text
    return answer.json()["data"]


def car_of(stand: Stand, letter: dict) -> str:
    """Return which car a letter is about."""
    shown = json.loads(stand.cli("dead", "show", letter["id"], "--json").stdout)
    return json.loads(shown["event"]["body"])["id"]


def test_dead_letters_are_listed_with_their_reason_and_plan(stand: Stand):
    letters = dead(stand)
    assert {letter["recipient"] for letter in letters} == {"handler:fleet.apply"}
    assert all("poisoned" in letter["note"] and letter["code"] for letter in letters)
    planned = until(lambda: [letter for letter in dead(stand) if letter["next_replay_at"]])
    assert planned[0]["replays_by_itself"] == 0
    listed = stand.listing("fleet", "dead", "list")
    assert {row["id"] for row in listed} == {letter["id"] for letter in dead(stand)}


def test_the_list_is_paged_and_filtered(stand: Stand):
    first = stand.client.get(DEAD, params={"limit": 2}).json()
    second = stand.client.get(DEAD, params={"limit": 2, "after": first["next"]}).json()
    assert len(first["data"]) == len(second["data"]) == 2
    assert not {row["id"] for row in first["data"]} & {row["id"] for row in second["data"]}
    assert stand.client.get(DEAD, params={"type": "entity.*"}).json()["data"]
    assert stand.client.get(DEAD, params={"source": "umnico"}).json() == {"data": [], "next": None}
    for wrong in ({"limit": "x"}, {"limit": "0"}, {"after": "nothing"}, {"after": "dlv_zzzzzzzzzzzzzzzzzzzzzzzzzzz_0"}):
        assert stand.client.get(DEAD, params=wrong).status_code == 400, wrong


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", DEAD), ("POST", f"{DEAD}/x/replay"), ("POST", f"{DEAD}/cleanup"), ("DELETE", f"{DEAD}/x")],
)
def test_nobody_decides_without_a_token(method: str, path: str, stand: Stand):
    assert httpx.request(method, stand.base + path, timeout=10).status_code == 401


def test_a_replayed_letter_is_handled_and_then_cannot_be_replayed_again(stand: Stand):
    letter = dead(stand)[0]
    car = car_of(stand, letter)
    stand.tell("car_update", {"id": int(car), "poison": "no"})
    answer = stand.client.post(f"{DEAD}/{letter['id']}/replay")
    assert (answer.status_code, answer.json()["result"]) == (202, "replayed")
    assert stand.known("cars", car)["data"]["poison"] == "no"
    until(
        lambda: (
            stand.client.post(f"{DEAD}/{letter['id']}/replay").json().get("detail", "").endswith("nothing to decide")
        )
    )
    again = stand.client.post(f"{DEAD}/{letter['id']}/replay")
    assert (again.status_code, again.json()["error"]) == (409, "not_dead")
    assert "succeeded" in again.json()["detail"] or "ignored" in again.json()["detail"]


def test_a_deleted_letter_is_ignored_with_a_note_and_keeps_its_record(stand: Stand):
    letter = dead(stand)[0]
    answer = stand.client.delete(f"{DEAD}/{letter['id']}", params={"note": "a test car"})
    assert (answer.status_code, answer.json()["result"]) == (200, "ignored")
    assert letter["id"] not in {row["id"] for row in dead(stand)}
    assert stand.client.delete(f"{DEAD}/{letter['id']}").status_code == 409
    shown = json.loads(stand.cli("deliveries", "show", letter["id"], "--json").stdout)
    assert (shown["state"], shown["note"]) == ("ignored", "a test car")
    assert shown["attempts_made"]


@pytest.mark.parametrize(
    "id", ["dlv_00000000000000000000000000_0", "dlv_000000000000000000000000000_0", "nonsense", "evt_1"]
)
def test_a_letter_that_is_not_there_is_404(id: str, stand: Stand):
    for answer in (stand.client.post(f"{DEAD}/{id}/replay"), stand.client.delete(f"{DEAD}/{id}")):
        assert (answer.status_code, answer.json()["error"]) == (404, "not_found")


def test_a_delivery_that_is_not_dead_is_409(stand: Stand):
    (delivery,) = stand.listing("deliveries", "list", "--recipient", "handler:fleet.note", "--limit", "1")
    answer = stand.client.post(f"{DEAD}/{delivery['id']}/replay")
    assert (answer.status_code, answer.json()["detail"].split()[2]) == (409, "succeeded,")


def test_errors_are_logged_though_their_transaction_is_undone(stand: Stand):
    rows = stand.listing("fleet", "errors", "--phase", "upsert")
    assert len(rows) >= 25, "five attempts for each of five cars"
    assert {row["entity"] for row in rows} == {"car"}
    assert "poisoned" in rows[0]["message"]
    assert rows[0]["kind"] == "RaiseError"


def test_dead_letters_are_told_by_telegram_and_collapsed(stand: Stand, bot: BotApi):
    assert told(bot) >= 5
    texts = [text for text in bot.taken if text.startswith("Dead letter: fleet.apply")]
    assert len(texts) < 5, "repeats were not collapsed"
    assert "poisoned" in texts[0]


def test_the_metrics_count_the_dead(stand: Stand):
    until(lambda: stand.client.get("/webhooks/_selftest").json()["queue"]["dead"] > 0)


@pytest.mark.parametrize(
    "query", [f"{DEAD}?type=", f"{DEAD}?source=", "/api/rentprog/errors?kind=", "/api/rentprog/cars?after="]
)
def test_a_question_with_nul_is_400_and_no_fault_of_the_database(query: str, stand: Stand):
    answer = stand.client.get(f"{query}%00")
    assert (answer.status_code, answer.json()["error"]) == (400, "bad_request")


@pytest.mark.parametrize("days", [10_000, 36_500])
def test_the_cleanup_of_what_is_older_than_boathook_finds_nothing(days: int, stand: Stand):
    answer = stand.client.post(f"{DEAD}/cleanup", params={"days": days})
    assert (answer.status_code, answer.json().get("ignored")) == (200, 0)
    assert stand.cli("fleet", "dead", "cleanup", "--days", "1e12").stdout.startswith("0 dead letters")


def test_the_cleanup_ignores_old_letters_and_erases_nothing(stand: Stand):
    before = dead(stand)
    assert before
    kept = stand.client.post(f"{DEAD}/cleanup", params={"days": 1}).json()
    assert (kept["ignored"], len(dead(stand))) == (0, len(before))
    assert stand.client.post(f"{DEAD}/cleanup", params={"days": "soon"}).status_code == 400
    done = stand.client.post(f"{DEAD}/cleanup", params={"days": 0}).json()
    assert sorted(done["ids"]) == sorted(letter["id"] for letter in before)
    assert dead(stand) == []
    shown = json.loads(stand.cli("deliveries", "show", before[0]["id"], "--json").stdout)
    assert shown["state"] == "ignored"
    assert "cleaned up" in shown["note"]
    assert stand.cli("verify").returncode == 0


@pytest.fixture(scope="module")
def hasty(tmp_path_factory, admin_url, pg_template, bot):
    """A boathook that cannot write poisoned cars either, and tries dead letters again at once, but only once."""
    folder = tmp_path_factory.mktemp("fleet")
    with served(folder, admin_url, pg_template, fleet=settings(bot, retry="[0.2]")) as running:
        running.rows(POISON)
        yield running


def test_a_dead_letter_is_tried_again_by_the_schedule_and_then_left_to_people(hasty: Stand, bot: BotApi):
    car = new_id()
    hasty.tell("car_create", {"id": car, "poison": "yes"})
    (plan,) = until(lambda: hasty.rows("select * from fleet.dead_retry where given_up_at is not null"), timeout=90)
    assert (plan["replays"], plan["next_at"]) == (1, None)
    until(lambda: any(text.startswith("Left to people") for text in bot.taken))
    shown = json.loads(hasty.cli("dead", "show", plan["delivery_id"], "--json").stdout)
    assert len(shown["attempts_made"]) == 10, "five attempts of the handler's, five of the replay's"


def test_a_dead_letter_whose_cause_is_gone_is_handled_by_itself(hasty: Stand):
    car = new_id()
    hasty.tell("car_create", {"id": car, "poison": "yes"})
    until(lambda: len(dead(hasty)) == 2, timeout=60)
    hasty.rows(HEALED)
    assert hasty.known("cars", car)["data"]["poison"] == "yes"
    until(lambda: len(dead(hasty)) == 1)
    assert hasty.cli("verify").returncode == 0
