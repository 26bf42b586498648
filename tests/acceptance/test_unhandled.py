"""A handler with a misspelt source, and how its events reach it once fixed, in real processes."""

import textwrap
from collections.abc import Callable

import httpx
import psycopg
import pytest

from tests.acceptance.conftest import BoathookProcess, payload, signed
from tests.support import until

APP = """
    from boathook import Boathook, Event, Transaction

    hook = Boathook()

    {decorators}
    async def pay(event: Event, tx: Transaction) -> None:
        await tx.execute("insert into shop.effect (event_key, handler) values ($1, 'pay')", event.json["id"])
"""


def write_app(running: BoathookProcess, *decorators: str) -> None:
    (running.folder / "shop.py").write_text(textwrap.dedent(APP).format(decorators="\n".join(decorators)))


def post(running: BoathookProcess, key: str) -> str:
    body, headers = signed(payload(key))
    answer = httpx.post(f"{running.base}/in/stripe", content=body, headers=headers, timeout=300)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["event_id"])


def effects(running: BoathookProcess) -> list[str]:
    with psycopg.connect(running.database_url) as connection:
        return [row[0] for row in connection.execute("select event_key from shop.effect order by event_key")]


@pytest.mark.extended("starts several servers of its own")
def test_events_lost_by_a_typo_are_reported_and_routed_once_fixed(boathook: Callable[..., BoathookProcess]):
    running = boathook(start=False)
    write_app(running, '@hook.on("strpe", "payment.*")')
    warned = running.cli("config", "check")
    assert "did you mean 'stripe'?" in warned.stderr
    assert "valid; 1 source" in warned.stdout
    running.start()
    running.wait_logged("did you mean 'stripe'?")
    events = [post(running, f"lost-{number}") for number in range(3)]
    assert sorted(row["id"] for row in running.listing("events", "list", "--unhandled")) == sorted(events)
    findings = {row["found"]: row["verdict"] for row in running.listing("doctor")}
    assert findings["3 events of the last day matched no handler: stripe (3)"] == "warn"
    assert any("did you mean 'stripe'?" in found for found in findings)
    metrics = httpx.get(f"{running.base}/metrics", timeout=60)
    if metrics.status_code == 200:
        until(lambda: 'unhandled_total{source="stripe"} 3' in httpx.get(f"{running.base}/metrics", timeout=60).text)
    replayed = running.cli("events", "replay", events[0])
    assert "0 deliveries added" in replayed.stdout
    assert "it has no recipients; `boathook events route`" in replayed.stderr
    running.stop()

    write_app(running, '@hook.on("stripe", "payment.*")')
    running.start()
    handled = post(running, "handled")
    assert (
        "3 events, 3 routed: 3 deliveries would be added"
        in running.cli("events", "replay", "--route", "--unhandled", "--dry-run").stdout
    )
    assert (
        "would route 3 events; add --yes"
        in running.cli("events", "replay", "--route", "--unhandled", check=False).stderr
    )
    routed = running.cli("events", "replay", "--route", "--unhandled", "--yes", "--note", "the typo").stdout
    assert "3 events, 3 routed: 3 deliveries added" in routed
    until(lambda: effects(running) == ["handled", "lost-0", "lost-1", "lost-2"])
    again = running.cli("events", "replay", "--route", "--to", "handler:pay", *events, handled).stdout
    assert "4 events, 0 routed: 0 deliveries added" in again
    assert running.listing("events", "list", "--unhandled") == []
    assert effects(running) == ["handled", "lost-0", "lost-1", "lost-2"]
    for arguments, complaint in (
        (("--to", "handler:pay", "--all"), "--to needs --route"),
        (("--route", "--run", "x", "--all"), "--run cannot be used with --route"),
        (("--run", "x", "--note", "y", "--all"), "--run or --note"),
        (("--route", "--to", "handler:pai", events[0]), "did you mean handler:pay?"),
    ):
        assert complaint in running.cli("events", "replay", *arguments, check=False).stderr
    running.cli("check")


@pytest.mark.extended("kills or freezes processes again and again; the smokes of tests/faults stay")
def test_a_new_handler_gets_past_events_despite_a_killed_keeper(
    boathook: Callable[..., BoathookProcess],
):
    running = boathook(start=False)
    write_app(running, '@hook.on("strpe", name="old")')
    running.start()
    keys = [f"past-{number:03}" for number in range(40)]
    for key in keys:
        post(running, key)
    running.kill_all()
    write_app(running, '@hook.on("stripe", "payment.*", since="1h")')
    running.start(wait=False)
    until(lambda: bool(running.children("keeper")))
    running.kill("keeper")
    running.wait_ready()
    until(lambda: len(effects(running)) >= len(keys))
    assert effects(running) == keys
    running.stop()
    running.start()
    post(running, "zz-later")
    until(lambda: "zz-later" in effects(running))
    assert effects(running) == [*keys, "zz-later"], "done once, and not at each start"
    running.cli("check")


def test_a_handler_of_an_impossible_type_prevents_the_start(
    boathook: Callable[..., BoathookProcess],
):
    plain = '\n[sources.plain]\nprovider = "hmac"\nheader = "x-signature"\nsecrets = ["abcdefgh"]\n'
    running = boathook(start=False, extra=plain)
    write_app(running, '@hook.on("plain", "order.*")')
    for command in ("config check", "serve"):
        done = running.cli(*command.split(), check=False)
        assert done.returncode != 0
        assert "handler:pay subscribes to order.* of source 'plain'" in done.stderr + done.stdout
    found = running.cli("doctor", "--json", check=False)
    assert found.returncode == 1
    assert "handler:pay subscribes to order.*" in found.stdout
