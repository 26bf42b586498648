"""Runs a gateway on its own PostgreSQL server, so that everything written there was caused by the test's requests."""

import asyncio
import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import psutil
import psycopg

from boathook.db import migrations
from boathook_embedded.server import EmbeddedServer
from tests.acceptance.conftest import BoathookProcess, boathook_processes, payload, signed
from tests.conftest import open_folder
from tests.security.keep_alive_client import KeepAliveClient, TimedResponse
from tests.support import until

IN: Final = "/in/stripe"
Sent = tuple[bytes, dict[str, str]]

SPY: Final = """
import os
from boathook.domain import json_document
from boathook.providers import request_reader
from boathook.verification import diagnostics

place = "looks.txt"

def told(call):
    def spy(*args, **named):
        descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(descriptor, b".")
        os.close(descriptor)
        return call(*args, **named)
    return spy

json_document.parse = diagnostics.parse = told(json_document.parse)
request_reader.FieldExtractor.extract = told(request_reader.FieldExtractor.extract)
explain = diagnostics.explain

def explaining(*args):
    global place
    place = "hints.txt"
    try:
        return explain(*args)
    finally:
        place = "looks.txt"

diagnostics.explain = explaining
"""
"""A sitecustomize.py that counts how often a body is parsed as JSON, separately for verification and for the diagnosis of
stored rejections. The modules that parse import these names."""


@contextmanager
def own_postgres() -> Iterator[str]:
    """Start a PostgreSQL server and yield the URL of its migrated database."""
    folder = open_folder()
    server = asyncio.run(EmbeddedServer.start(folder))
    try:
        asyncio.run(migrations.migrate(server.url))
        yield server.url
    finally:
        asyncio.run(server.stop())
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def gateway(folder: Path, url: str, *, site: str = SPY, extra: str = "") -> Iterator[BoathookProcess]:
    """Start a process with only the gateway role; *site* is its sitecustomize.py."""
    folder.mkdir(exist_ok=True)
    with boathook_processes(folder, url) as make:
        running = make(roles="gateway", extra=extra, start=False)
        (running.folder / "sitecustomize.py").write_text(site)
        yield running.start()


def body_parses(running: BoathookProcess, why: str = "looks") -> int:
    """Return how often a body was parsed during verification, or for ``hints``."""
    file = running.folder / f"{why}.txt"
    return file.stat().st_size if file.exists() else 0


def memory_bytes(running: BoathookProcess) -> int:
    """Return the resident memory of the gateway process."""
    [child] = running.children("gateway")
    return int(psutil.Process(child.pid).memory_info().rss)


def post_all(running: BoathookProcess, requests: Sequence[Sent], *, connections: int = 24) -> list[TimedResponse]:
    """Send all requests over a few keep-alive connections, and return the responses in order."""

    async def run() -> list[TimedResponse]:
        waiting = iter(enumerate(requests))
        answers: dict[int, TimedResponse] = {}

        async def send_next() -> None:
            client = KeepAliveClient(running.port)
            for number, (body, headers) in waiting:
                answers[number] = await _sent(client, headers, body)
            client.close()

        await asyncio.gather(*(send_next() for _ in range(connections)))
        return [answers[number] for number in range(len(requests))]

    return asyncio.run(run())


async def _sent(client: KeepAliveClient, headers: dict[str, str], body: bytes) -> TimedResponse:
    try:
        return await client.request("POST", IN, headers, body)
    except ConnectionError:  # a connection that the gateway closed meanwhile
        return await client.request("POST", IN, headers, body)


def genuine(key: str, **more: object) -> Sent:
    """Return a genuine request."""
    return signed(payload(key, **more))


def forged(key: str, way: int, size: int = 1024) -> Sent:
    """Return a request with the id of a genuine event and a missing or wrong signature, chosen by *way*."""
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
    """Return the number of rows of every table."""
    with psycopg.connect(url, autocommit=True) as connection:
        names = [name for (name,) in connection.execute(
            "select c.oid::regclass::text from pg_class c join pg_namespace n on n.oid = c.relnamespace"
            " where n.nspname = 'boathook' and c.relkind = 'r'"
        )]  # fmt: skip
        return {name: connection.execute(f"select count(*) from {name}").fetchone()[0] for name in names}


def row_changes(url: str) -> dict[str, tuple[int, int, int]]:
    """Return PostgreSQL's counts of rows inserted, updated and deleted, including rolled-back ones, by table.

    A process reports its counts when it ends at the latest, so this waits until there is no other connection.
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


def reset_row_changes(url: str) -> None:
    """Reset PostgreSQL's counts."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("select pg_stat_reset()")


def wal_bytes(url: str) -> int:
    """Return the number of bytes written to the write-ahead log."""
    with psycopg.connect(url, autocommit=True) as connection:
        [(bytes_,)] = connection.execute("select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')").fetchall()
    return int(bytes_)
