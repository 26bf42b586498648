"""The main job: one signed webhook in, exactly one effect out, through the real command line and real sockets."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psycopg
import pytest

from tests.acceptance.conftest import BoathookProcess, payload, signed
from tests.support import until


def rows(url: str, sql: str) -> list[tuple]:
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(sql).fetchall()


@pytest.fixture(scope="module")
def fixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file whose existence fixes the handler of ``broken.*``."""
    return tmp_path_factory.mktemp("shop") / "fixed"


@pytest.fixture(scope="module")
def shared(shared_boathook: Callable[..., BoathookProcess], fixed: Path) -> BoathookProcess:
    """A boathook shared by tests that do not change it; event keys keep them apart."""
    return shared_boathook(SHOP_FIXED=str(fixed), BOATHOOK_WORKER_MEMORY_MB="4096")


def post(running: BoathookProcess, body: bytes, headers: dict[str, str], path: str = "/in/stripe") -> httpx.Response:
    return httpx.post(running.base + path, content=body, headers=headers, timeout=300)


def settled(running: BoathookProcess) -> bool:
    return rows(running.database_url, "select count(*) from boathook.delivery where state <> 'dead'") == [(0,)]


def effects_of(running: BoathookProcess, key: str) -> list[tuple]:
    return rows(running.database_url, f"select handler, attempt from shop.effect where event_key = '{key}' order by id")


def test_a_signed_webhook_has_one_effect_however_often_it_arrives(shared: BoathookProcess):
    body, headers = signed(payload("evt_1"))
    answers = [post(shared, body, headers) for _ in range(3)]
    again, later = signed(payload("evt_1"))
    answers.append(post(shared, again, later, "/webhooks/stripe"))
    assert [answer.status_code for answer in answers] == [200] * 4
    assert [answer.json()["duplicate"] for answer in answers] == [False, True, True, True]
    assert len({answer.json()["event_id"] for answer in answers}) == 1
    until(lambda: effects_of(shared, "evt_1") == [("pay", 1)])
    until(lambda: settled(shared))
    assert effects_of(shared, "evt_1") == [("pay", 1)]
    assert shared.cli("check").returncode == 0


def test_many_senders_at_once(shared: BoathookProcess):
    keys = [f"evt_many_{n}" for n in range(400)]

    def send(key: str) -> int:
        return post(shared, *signed(payload(key, "payment.many"))).status_code

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(send, keys * 2)) == {200}
    effects = "select count(*), count(distinct event_key) from shop.effect where event_key like 'evt_many_%'"
    until(lambda: rows(shared.database_url, effects) == [(400, 400)])
    events = shared.listing("events", "list", "--type", "payment.many", "--limit", "1000")
    assert {event["dedup_key"] for event in events} == set(keys)
    assert shared.cli("check").returncode == 0


def test_a_forged_request_stores_nothing_and_the_real_one_is_accepted(shared: BoathookProcess):
    traces = "select (select count(*) from boathook.event), (select count(*) from boathook.dedup)"
    before = rows(shared.database_url, traces)
    body, headers = signed(payload("evt_real"), secret="whsec_wrong")
    assert post(shared, body, headers).status_code == 401
    assert rows(shared.database_url, traces) == before
    answer = post(shared, *signed(payload("evt_real")))
    assert answer.status_code == 200
    assert answer.json()["duplicate"] is False
    until(lambda: effects_of(shared, "evt_real") == [("pay", 1)])


def test_another_body_under_a_known_key_is_a_conflict(shared: BoathookProcess):
    first = post(shared, *signed(payload("evt_twice", amount=1))).json()
    second = post(shared, *signed(payload("evt_twice", amount=2))).json()
    assert second["event_id"] == first["event_id"]
    assert second["conflict"] is True
    conflicts = "select differs, seen from boathook.conflict c join boathook.event e on e.id = c.event_id"
    assert rows(shared.database_url, f"{conflicts} where e.dedup_key = 'evt_twice'") == [("body", 1)]
    assert shared.cli("check").returncode == 0


def test_bodies_are_stored_byte_for_byte(shared: BoathookProcess):
    body, headers = signed(payload("evt_bytes"))
    import stripe

    odd = b'{"id": "evt_odd", "type": "payment.odd", "x": "\\u0000 \\ud800", "x": 1e400}  \n'
    stamp = headers["stripe-signature"].split(",")[0].removeprefix("t=")
    signature = stripe.WebhookSignature._compute_signature(f"{stamp}.{odd.decode()}", "whsec_acceptance")
    answer = post(shared, odd, {**headers, "stripe-signature": f"t={stamp},v1={signature}"})
    assert answer.status_code == 200, answer.text
    stored = rows(shared.database_url, "select body from boathook.event where type = 'payment.odd'")
    assert stored == [(odd,)]
    assert body != odd


def test_failures_are_retried_buried_and_replayed(shared: BoathookProcess, fixed: Path):
    kinds = ("flaky.now", "broken.now", "ignored.now")
    names = {kind: post(shared, *signed(payload(f"evt_{kind}", kind))).json()["event_id"] for kind in kinds}
    until(lambda: [one for one in shared.listing("dead", "list") if one["event_id"] == names["broken.now"]])
    until(lambda: settled(shared))
    assert [effects_of(shared, f"evt_{kind}") for kind in kinds] == [[("flaky", 3)], [], []]
    (dead,) = shared.listing("dead", "list")
    assert (dead["recipient"], dead["attempts"]) == ("handler:broken", 4)
    shown = shared.cli("dead", "show", dead["id"]).stdout
    assert "this never works" in shown
    assert "evt_broken.now" in shown
    fixed.touch()
    shared.cli("dead", "replay", dead["id"])
    until(lambda: effects_of(shared, "evt_broken.now") == [("broken", 5)])
    until(lambda: settled(shared))
    ended = {one["event_id"]: one["state"] for one in shared.listing("deliveries", "list", "--limit", "0")}
    assert [ended[names[kind]] for kind in kinds] == ["succeeded", "succeeded", "ignored"]
    assert shared.cli("check").returncode == 0


def test_one_order_key_is_handled_in_accept_order(shared: BoathookProcess):
    for n in range(30):
        for customer in ("ann", "bob"):
            body, headers = signed(payload(f"evt_{customer}_{n}", "order.changed", customer=customer, n=n))
            assert post(shared, body, headers).status_code == 200
    until(lambda: rows(shared.database_url, "select count(*) from shop.sequence") == [(60,)])
    for customer in ("ann", "bob"):
        order = rows(shared.database_url, f"select n from shop.sequence where customer = '{customer}' order by id")
        assert order == [(n,) for n in range(30)]


def test_poison_payloads_die_and_other_events_succeed(boathook: Callable[..., BoathookProcess], pg_url: str):
    running = boathook()
    assert post(running, *signed(payload("evt_crash", "poison.crash"))).status_code == 200
    assert post(running, *signed(payload("evt_loop", "poison.loop"))).status_code == 200
    for n in range(20):
        assert post(running, *signed(payload(f"evt_ok_{n}"))).status_code == 200
    until(lambda: rows(pg_url, "select count(distinct event_key) from shop.effect") == [(20,)])
    until(lambda: rows(pg_url, "select count(*) from boathook.delivery where state = 'dead'") == [(2,)])
    assert rows(pg_url, "select count(*) from shop.effect") == [(20,)]
    assert running.cli("check").returncode == 0


def test_a_handler_that_takes_too_much_memory_fails_alone(shared: BoathookProcess):
    url = shared.database_url
    name = post(shared, *signed(payload("evt_greedy", "poison.memory"))).json()["event_id"]
    until(lambda: [one["code"] for one in shared.listing("dead", "list") if one["event_id"] == name] == ["MemoryError"])
    assert post(shared, *signed(payload("evt_ok"))).status_code == 200
    until(lambda: effects_of(shared, "evt_ok") == [("pay", 1)])
    assert rows(url, "select count(*) from boathook.attempt where outcome = 'lost'") == [(0,)]


def test_metrics_and_health_are_correct(shared: BoathookProcess):
    for n in range(5):
        post(shared, *signed(payload(f"evt_metric_metric_{n}")))
    post(shared, *signed(payload("evt_metric_0")))
    post(shared, *signed(payload("evt_metric_bad"), secret="whsec_wrong"))
    assert httpx.get(shared.base + "/healthz").status_code == 200
    assert httpx.get(shared.base + "/selftest", timeout=300).status_code == 200

    def counted() -> bool:
        text = httpx.get(shared.base + "/metrics").text
        return "boathook_events_accepted_total" in text and "boathook_attempts_total{" in text

    until(counted)
    assert isinstance(httpx.get(shared.base + "/metrics.json").json(), dict)


def test_logs_never_carry_bodies_or_secrets(boathook: Callable[..., BoathookProcess]):
    running = boathook(extra='[log]\nlevel = "debug"\nformat = "json"\n')
    post(running, *signed(payload("evt_1", note="CANARY-IN-BODY")))
    post(running, *signed(payload("evt_2", note="CANARY-IN-BODY"), secret="whsec_wrong"))
    until(lambda: "evt_1" in running.log())
    running.stop()
    assert "CANARY-IN-BODY" not in running.log()
    assert "whsec_acceptance" not in running.log()
    for line in running.log().splitlines():
        if line.startswith("{"):
            json.loads(line)
