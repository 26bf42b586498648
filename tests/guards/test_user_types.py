"""Handlers and their tests, as users write them, pass `mypy --strict`."""

import subprocess
import sys
from pathlib import Path

from tests.guards.documents import ROOT

HOOKS = """
from typing import Any

from boathook import Boathook, Breaker, Dead, Event, Ignore, Retry, RetryPolicy, Transaction
from boathook.handlers.api import SyncTransaction
from boathook.handlers.sessions import django, psycopg_async, psycopg_sync, sqlalchemy_async, sqlalchemy_sync
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

hook = Boathook()
factory = async_sessionmaker(create_async_engine("postgresql+asyncpg:///shop"))


@hook.on("stripe", "invoice.*", order_by="data.object.id", retry=RetryPolicy(max_attempts=2), breaker=Breaker(dependency="bank"))
async def record(event: Event, tx: Transaction) -> Ignore | Retry | Dead | None:
    row = await tx.fetchrow("select amount from payment where id = $1", event.json["id"])
    if row is None or not await tx.newer("invoice", event.json["id"], event.accepted_at):
        return Ignore("unknown")
    async with tx.savepoint():
        await tx.executemany("insert into payment values ($1)", [(1,), (2,)])
    receipt = await hook.publish(tx, application="acme", type="invoice.recorded", payload={"amount": row["amount"]})
    sent: str = await event.once("mail", str, receipt.event_id)
    event.reply({"sent": sent})
    return None


@hook.on("github", filter={"body": {"action": "opened"}}, timeout=5)
def note(event: Event, tx: SyncTransaction) -> None:
    tx.execute("select $1", event.type)
    hook.publish_sync(tx, application="acme", type="noted", payload=event.body)


@hook.on("slack", session=sqlalchemy_async(factory))
async def chat(event: Event, session: AsyncSession) -> None:
    await session.commit()


@hook.on("vk", session=django())
def talk(event: Event, connection: Any) -> None: ...


others = (psycopg_async, psycopg_sync, sqlalchemy_sync)
"""
TESTS = """
import asyncpg
from boathook.testing import BoathookServer, DeliverResult, PublishedMessage, RunResult, event, run, run_sync, sign
from hooks import factory, hook


async def test_in_a_transaction() -> None:
    connection = await asyncpg.connect("postgresql:///shop")
    made = event("stripe", type="invoice.paid", json={"id": 1}, fields={"n": 2}, attempt=2)
    result: RunResult = await run(hook, made, session=connection)
    assert result.outcome == "succeeded"
    assert result.published[0].payload == {"amount": 1}
    async with factory() as session, run(hook, event("slack"), session=session) as second:
        assert second["chat"].error is None
    with run_sync(hook, event("shop", provider="hmac", type_path="type", type="paid")) as third:
        assert third.location is None
    headers: dict[str, str] = sign("stripe", "whsec", made.body)
    assert headers


def test_through_http(boathook_server: BoathookServer) -> None:
    result: DeliverResult = boathook_server.deliver("stripe", type="invoice.paid", id="evt_1", timeout_s=5)
    messages: list[PublishedMessage] = boathook_server.published(application="acme")
    assert (result.is_duplicate, result.handlers[0].effects["mail"], len(messages)) == (False, "m", 1)
"""


def check_types(folder: Path, tests: str) -> "subprocess.CompletedProcess[str]":
    """Check a project; with the cache of `make check`, which has boathook itself in it."""
    (folder / "hooks.py").write_text(HOOKS)
    (folder / "test_shop.py").write_text(tests)
    command = [sys.executable, "-m", "mypy", "--strict", folder / "hooks.py", folder / "test_shop.py"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_handlers_and_their_tests_are_clean(tmp_path: Path) -> None:
    done = check_types(tmp_path, TESTS)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr


def test_mutant_wrong_ones_are_found(tmp_path: Path) -> None:
    wrong = TESTS.replace('"succeeded"', '"success"').replace("timeout_s=5", "timeout=5")
    done = check_types(tmp_path, wrong)
    assert "Non-overlapping equality check" in done.stdout, done.stdout
    assert 'Unexpected keyword argument "timeout" for "deliver"' in done.stdout
