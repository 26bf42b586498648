"""A gateway on a PostgreSQL of its own, so that all that is written there is what these requests have caused."""

import asyncio
import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import psutil
import psycopg

from boathook.journal import schema
from boathook.journal.embedded import EmbeddedServer
from boathook.outbound.loopback import Answer, Client
from tests.acceptance.conftest import BoathookProcess, boathook_processes, payload, signed
from tests.conftest import open_folder
from tests.support import until

IN: Final = "/in/stripe"
Sent = tuple[bytes, dict[str, str]]

SPY: Final = """
import os
from boathook.domain import documents
from boathook.inbound import extract
from boathook.inbound.proving import hints

place = "looks.txt"

def told(call):
    def spy(*args, **named):
        descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(descriptor, b".")
        os.close(descriptor)
        return call(*args, **named)
    return spy

documents.parse = hints.parse = told(documents.parse)
extract.Picker.pick = told(extract.Picker.pick)
explain = hints.explain

def explaining(*args):
    global place
    place = "hints.txt"
    try:
        return explain(*args)
    finally:
        place = "looks.txt"

hints.explain = explaining
"""
"""Counts each look into a body as JSON: those in judging, and apart from them those in explaining why the few requests
that are kept were refused. The modules that parse take these names on import."""


@contextmanager
def own_server() -> Iterator[str]:
    """Start a PostgreSQL and give the address of its migrated database."""
    folder = open_folder()
    server = asyncio.run(EmbeddedServer.start(folder))
    try:
        asyncio.run(schema.migrate(server.url))
        yield server.url
    finally:
        asyncio.run(server.stop())
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def gateway(folder: Path, url: str, *, site: str = SPY, extra: str = "") -> Iterator[BoathookProcess]:
    """Start a gateway and nothing else, whose processes run *site* before anything."""
    folder.mkdir(exist_ok=True)
    with boathook_processes(folder, url) as make:
        running = make(roles="gateway", extra=extra, start=False)
        (running.folder / "sitecustomize.py").write_text(site)
        yield running.start()


def looks(running: BoathookProcess, why: str = "looks") -> int:
    """Return how often a body was looked into in judging, or for ``hints``."""
    file = running.folder / f"{why}.txt"
    return file.stat().st_size if file.exists() else 0


def resident(running: BoathookProcess) -> int:
    """Return the bytes of memory the gateway's process holds."""
    [child] = running.children("gateway")
    return int(psutil.Process(child.pid).memory_info().rss)


def post_all(running: BoathookProcess, requests: Sequence[Sent], *, lanes: int = 24) -> list[Answer]:
    """Send all requests over a few kept-alive connections, and return their answers in order."""

    async def run() -> list[Answer]:
        waiting = iter(enumerate(requests))
        answers: dict[int, Answer] = {}

        async def lane() -> None:
            client = Client(running.port)
            for number, (body, headers) in waiting:
                answers[number] = await _sent(client, headers, body)
            client.close()

        await asyncio.gather(*(lane() for _ in range(lanes)))
        return [answers[number] for number in range(len(requests))]

    return asyncio.run(run())


async def _sent(client: Client, headers: dict[str, str], body: bytes) -> Answer:
    try:
        return await client.request("POST", IN, headers, body)
    except ConnectionError:  # a connection that the gateway closed meanwhile
        return await client.request("POST", IN, headers, body)


def genuine(key: str, **more: object) -> Sent:
    """Return what the sender sends."""
    return signed(payload(key, **more))


def forged(key: str, way: int, size: int = 1024) -> Sent:
    """Return a request with the id of a genuine event and one of several ways not to be signed."""
    body = json.dumps(payload(key, forged="x" * size)).encode()
    match way % 4:
        case 0:
            return body, {"content-type": "application/json"}
        case 1:
            return body, {"stripe-signature": "t=1,v1=" + "0" * 64}
        case 2:
            return body, signed(payload(key), secret="whsec_another")[1]
        case _:  # the genuine signature of another body
            return body, signed(payload(key))[1]


def counts(url: str) -> dict[str, int]:
    """Return the rows of every table of boathook's."""
    with psycopg.connect(url, autocommit=True) as connection:
        names = [name for (name,) in connection.execute(
            "select c.oid::regclass::text from pg_class c join pg_namespace n on n.oid = c.relnamespace"
            " where n.nspname = 'boathook' and c.relkind = 'r'"
        )]  # fmt: skip
        return {name: connection.execute(f"select count(*) from {name}").fetchone()[0] for name in names}


def written(url: str) -> dict[str, tuple[int, int, int]]:
    """Return PostgreSQL's own counts of rows inserted, updated, deleted, rolled back ones too, where there were any.

    A process tells its counts at the latest when it ends: ask once nobody else is connected.
    """
    with psycopg.connect(url, autocommit=True) as connection:
        until(lambda: connection.execute(
            "select count(*) from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid()"
        ).fetchone() == (0,))  # fmt: skip
        rows = connection.execute(
            "select relname, n_tup_ins, n_tup_upd, n_tup_del from pg_stat_user_tables"
            " where schemaname = 'boathook' and n_tup_ins + n_tup_upd + n_tup_del > 0"
        ).fetchall()
    return {name: (inserted, updated, deleted) for name, inserted, updated, deleted in rows}


def forget_written(url: str) -> None:
    """Set PostgreSQL's counts to nothing."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("select pg_stat_reset()")


def wal(url: str) -> int:
    """Return the bytes ever written to the log that makes PostgreSQL durable."""
    with psycopg.connect(url, autocommit=True) as connection:
        [(bytes_,)] = connection.execute("select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')").fetchall()
    return int(bytes_)
