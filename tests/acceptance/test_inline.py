"""Senders that wait for the handler's answer: the reply itself, the fallback in time, and each effect once all the same."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import httpx
import psycopg
import pytest

from tests.acceptance.conftest import BoathookProcess, payload, signed
from tests.support import until

HANDLERS = """
import asyncio, os, time
from boathook import Boathook, Event, Ignore, RetryPolicy, Transaction

hook = Boathook()
QUICK = RetryPolicy(first_s=0.05, max_delay_s=0.2, max_attempts=4)

async def note(event, tx):
    await tx.execute(
        "insert into shop.effect (event_key, handler, attempt) values ($1, 'desk', $2)", event.dedup_key, event.attempt)

@hook.on("desk", "check.*", retry=QUICK)
async def check(event: Event, tx: Transaction) -> None:
    await note(event, tx)
    event.reply({"code": 1})
    event.reply({"code": 0, "attempt": event.attempt, "name": "Жук"})

@hook.on("desk", "voice.*", retry=QUICK)
def voice(event: Event, tx) -> None:
    tx.execute("insert into shop.effect (event_key, handler, attempt) values ($1, 'desk', $2)", event.dedup_key, event.attempt)
    event.reply("<Response><Say>Hello</Say></Response>", content_type="text/xml")

@hook.on("desk", "slow.*", retry=QUICK, timeout=30)
async def slow(event: Event, tx: Transaction) -> None:
    await note(event, tx)
    await asyncio.sleep(event.json["seconds"])
    event.reply("at last")

@hook.on("hasty", "slow.*", retry=QUICK, timeout=30)
async def later(event: Event, tx: Transaction) -> None:
    await slow(event, tx)

@hook.on("desk", "flaky.*", retry=QUICK)
async def flaky(event: Event, tx: Transaction) -> None:
    await note(event, tx)
    event.reply(f"attempt {event.attempt}", status=422 if event.attempt == 3 else 200)
    if event.attempt < event.json["good"]:
        raise ConnectionError("the bank is away")

@hook.on("desk", "kill.*", retry=QUICK)
async def kill(event: Event, tx: Transaction) -> None:
    await note(event, tx)
    if event.attempt == 1:
        os.kill(os.getpid(), 9)
    event.reply(f"attempt {event.attempt}")

@hook.on("desk", "silent.*")
async def silent(event: Event) -> Ignore:
    return Ignore("nothing to say")

@hook.on("desk", "gone.*")
async def gone(event: Event) -> None:
    event.reply("", status=410)

@hook.on("stripe", "check.*")
async def unasked(event: Event, tx: Transaction) -> None:
    await note(event, tx)
    event.reply("nobody waits")
"""

INLINE_SOURCE = """
[sources.desk]
provider = "stripe"
secrets = ["whsec_acceptance"]
mode = "inline"
reply_within_s = {within_s}
fallback_body = "later"
fallback_status = 202
"""

HASTY = """
[sources.hasty]
provider = "stripe"
secrets = ["whsec_acceptance"]
mode = "inline"
reply_within_s = 0.5
fallback_body = "later"
fallback_status = 202
"""

Make = Callable[..., BoathookProcess]
Ask = Callable[..., httpx.Response]


def made(
    boathook: Make, *, within_s: float = 9.0, start: bool = True, toml: str = INLINE_SOURCE, **options: Any
) -> BoathookProcess:
    """Return a boathook whose source ``desk`` is inline."""
    running = boathook(start=False, extra=toml.replace("{within_s}", str(within_s)), **options)
    (running.folder / "shop.py").write_text(HANDLERS)
    return running.start() if start else running


@pytest.fixture
def make_inline(boathook: Make) -> Make:
    """Make boathooks of this test's own."""
    return partial(made, boathook)


@pytest.fixture(scope="module")
def shared(shared_boathook: Make) -> BoathookProcess:
    """A boathook shared by tests that do not stop it; event keys and types keep them apart."""
    return made(shared_boathook, toml=INLINE_SOURCE + HASTY)


def ask(
    running: BoathookProcess, key: str, kind: str, *, source: str = "desk", timeout: float = 300, **more: Any
) -> httpx.Response:
    body, headers = signed(payload(key, kind, **more))
    return httpx.post(f"{running.base}/in/{source}", content=body, headers=headers, timeout=timeout)


def effects(running: BoathookProcess, key: str) -> list[int]:
    """Return the attempts with a committed effect of one event."""
    with psycopg.connect(running.database_url) as connection:
        rows = connection.execute("select attempt from shop.effect where event_key = %s order by id", [key]).fetchall()
    return [row[0] for row in rows]


def counted(running: BoathookProcess, name: str, **labels: str) -> float:
    """Return a metric's sum over the series with these labels."""
    found = httpx.get(f"{running.base}/metrics", timeout=300).text.splitlines()
    wanted = [f'{label}="{value}"' for label, value in labels.items()]
    return sum(
        float(line.rpartition(" ")[2]) for line in found if line.startswith(name) and all(w in line for w in wanted)
    )


def test_the_handlers_reply_is_the_answer(shared: BoathookProcess) -> None:
    answer = ask(shared, "evt_said_1", "check.card")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    assert answer.content == '{"code":0,"attempt":1,"name":"Жук"}'.encode()
    voice = ask(shared, "evt_said_2", "voice.call")
    assert (voice.text, voice.headers["content-type"]) == ("<Response><Say>Hello</Say></Response>", "text/xml")
    assert (effects(shared, "evt_said_1"), effects(shared, "evt_said_2")) == ([1], [1])
    assert shared.cli("check").returncode == 0


@pytest.mark.extended("waits for intervals and deadlines of the product")
def test_a_duplicate_gets_the_same_reply_and_has_no_effect(make_inline: Make) -> None:
    running = make_inline()
    first = ask(running, "evt_1", "check.card")
    again = [ask(running, "evt_1", "check.card") for _ in range(3)]
    assert {one.content for one in again} == {first.content}
    running.stop()
    running.start()
    assert ask(running, "evt_1", "check.card").content == first.content, "after a restart"
    assert effects(running, "evt_1") == [1]


def test_a_duplicate_of_a_running_event_gets_the_same_reply(shared: BoathookProcess) -> None:
    with ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(ask, shared, "evt_thrice", "slow.card", seconds=1.0) for _ in range(3)]
        assert [one.result().text for one in asked] == ["at last"] * 3
    assert effects(shared, "evt_thrice") == [1]


@pytest.mark.extended("starts several servers of its own")
def test_a_slow_handler_continues_after_the_fallback(shared: BoathookProcess) -> None:
    began = time.monotonic()
    answer = ask(shared, "evt_slow", "slow.card", source="hasty", seconds=3.0)
    assert effects(shared, "evt_slow") == [], "it was answered while the handler was at work"
    assert time.monotonic() - began > 0.4
    assert (answer.status_code, answer.text) == (202, "later")
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    until(lambda: effects(shared, "evt_slow") == [1])
    late = ask(shared, "evt_slow", "slow.card", source="hasty", seconds=3.0)
    assert late.text == "at last", "who asks again hears what became of it"
    assert effects(shared, "evt_slow") == [1]
    assert counted(shared, "boathook_inline_replies_total", source="hasty", outcome="fallback") == 1


def test_a_failing_handler_is_retried_while_the_sender_waits(shared: BoathookProcess) -> None:
    assert ask(shared, "evt_failing_1", "flaky.card", good=2).text == "attempt 2"
    refusal = ask(shared, "evt_failing_2", "flaky.card", good=3)
    assert (refusal.status_code, refusal.text) == (422, "attempt 3")
    assert effects(shared, "evt_failing_1") == [2], "failed attempts leave neither effect nor reply"


@pytest.mark.parametrize(("kind", "state"), [("flaky.vain", "dead"), ("silent.vain", "ignored"), ("other.vain", None)])
def test_an_event_that_cannot_be_replied_to_falls_back_at_once(
    shared: BoathookProcess, kind: str, state: str | None
) -> None:
    began = time.monotonic()
    answer = ask(shared, f"evt_{kind}", kind, good=99)
    assert (answer.status_code, answer.text) == (202, "later")
    assert time.monotonic() - began < 3, "it waited although no reply could come"
    assert [one["state"] for one in shared.listing("deliveries", "list", "--type", kind)] == ([state] if state else [])


def test_a_status_that_ends_the_senders_trust_is_never_sent(shared: BoathookProcess) -> None:
    assert ask(shared, "evt_gone", "gone.card").status_code == 202
    [dead] = shared.listing("dead", "list", "--type", "gone.card")
    assert dead["code"] == "HANDLER_MISUSE"
    assert "410" in shared.cli("dead", "show", dead["id"]).stdout


def test_a_source_that_stores_only_is_answered_at_once(shared: BoathookProcess) -> None:
    answer = ask(shared, "evt_stored", "check.card", source="stripe")
    assert answer.json()["ok"] is True
    until(lambda: effects(shared, "evt_stored") == [1])
    with psycopg.connect(shared.database_url) as connection:
        replies = (
            "select count(*) from boathook.reply r join boathook.event e on e.id = r.event_id where dedup_key = %s"
        )
        assert connection.execute(replies, ["evt_stored"]).fetchone() == (0,)


@pytest.mark.extended("kills or freezes processes again and again; the smokes of tests/faults stay")
def test_a_worker_killed_under_the_handler_leaves_the_effect_once(make_inline: Make) -> None:
    running = make_inline()
    answer = ask(running, "evt_1", "kill.card")
    assert answer.text in {"attempt 2", "later"}
    until(lambda: effects(running, "evt_1") == [2])
    assert ask(running, "evt_1", "kill.card").text == "attempt 2"
    assert effects(running, "evt_1") == [2]


@pytest.mark.extended("starts several servers of its own")
def test_any_gateway_answers_what_any_worker_replied(make_inline: Make) -> None:
    running = make_inline(roles="gateway", start=False)
    text = (running.folder / "boathook.toml").read_text()
    (running.folder / "boathook.toml").write_text(text.replace("[server]", "[server]\ngateways = 2", 1))
    running.start()
    worker = make_inline(roles="worker,keeper", start=False)
    worker.start(wait=False)
    until(lambda: ask(running, "evt_0", "check.card").text != "later")
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda n: ask(running, f"evt_{n // 2}", "check.card", timeout=300), range(40)))
    assert {one.status_code for one in answers} == {200}
    assert [answers[n].content == answers[n + 1].content for n in range(0, 40, 2)] == [True] * 20
    assert all(effects(running, f"evt_{n}") == [1] for n in range(20))


@pytest.mark.extended("waits for intervals and deadlines of the product")
def test_a_disconnect_frees_the_slot(shared: BoathookProcess) -> None:
    with pytest.raises(httpx.ReadTimeout):
        ask(shared, "evt_hung_up", "slow.card", seconds=4, timeout=0.5)
    until(lambda: counted(shared, "boathook_inline_replies_total", source="desk", outcome="gone") == 1)
    until(lambda: effects(shared, "evt_hung_up") == [1])


@pytest.mark.extended("waits for intervals and deadlines of the product")
def test_senders_over_the_limit_get_the_fallback_and_events_are_stored(make_inline: Make) -> None:
    running = make_inline(within_s=6.0, toml=INLINE_SOURCE + "[limits]\nmax_waiting = 2\n")
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(ask, running, f"evt_{n}", "slow.card", seconds=1.5) for n in range(4)]
        texts = sorted(one.result().text for one in asked)
    assert texts == ["at last", "at last", "later", "later"]
    until(lambda: all(effects(running, f"evt_{n}") == [1] for n in range(4)))


@pytest.mark.extended("waits for intervals and deadlines of the product")
def test_stopping_answers_waiting_senders(make_inline: Make) -> None:
    running = make_inline()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask, running, "evt_1", "slow.card", seconds=1.5)
        with psycopg.connect(running.database_url, autocommit=True) as connection:
            until(lambda: connection.execute("select count(*) from boathook.event").fetchone() == (1,))
        assert running.stop() == 0
        assert asked.result().text in {"at last", "later"}
    assert 'is_clean":true' in running.log().replace(" ", "")


def test_an_impossible_deadline_is_refused_with_its_fix(make_inline: Make) -> None:
    running = make_inline(within_s=60.0, start=False)
    done = running.cli("config", "check", check=False)
    assert done.returncode != 0
    assert "sources.desk.reply_within_s" in done.stdout + done.stderr
