"""Requests put on the wire as they are written, and boathooks shared by all tests of a module."""

import http.client
import json
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg

from boathook.testing import Signed
from tests.acceptance.conftest import TABLES, Running
from tests.databases import with_database

OFFLINE = """
import socket

_find = socket.getaddrinfo

def _find_here(host, *arguments, **named):
    if host not in {None, "", "localhost", "127.0.0.1", "::1"}:
        raise socket.gaierror(socket.EAI_NONAME, "this machine is offline")
    return _find(host, *arguments, **named)

socket.getaddrinfo = _find_here
"""
"""A sitecustomize.py for processes that must not find any other machine, whatever network the tests run in."""


@dataclass(frozen=True, slots=True)
class Said:
    """What a request was answered."""

    status: int
    headers: Mapping[str, str]
    """Lower-case names."""
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def say(
    running: Running, method: str, target: str, headers: Mapping[str, str] | None = None, body: bytes = b""
) -> Said:
    """Send one request whose target is not touched: no library's notion of a tidy address comes between."""
    connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=20)
    try:
        connection.request(method, target, body=body, headers={"content-length": str(len(body)), **(headers or {})})
        answer = connection.getresponse()
        return Said(answer.status, {name.lower(): text for name, text in answer.getheaders()}, answer.read())
    finally:
        connection.close()


def deliver(running: Running, signed: Signed, **headers: str) -> Said:
    """Send a signed request to *running*, whatever host it was signed for."""
    parts = urlsplit(signed.url)
    target = f"{parts.path}?{parts.query}" if parts.query else parts.path
    more = {name.replace("_", "-"): text for name, text in headers.items()}
    return say(running, signed.method, target, {**signed.headers, **more}, signed.body)


def rows(running: Running, sql: str, *values: Any) -> list[tuple[Any, ...]]:
    with psycopg.connect(running.database_url, autocommit=True) as connection:
        return connection.execute(sql, values).fetchall()


HEAD = """
[database]
url = "{url}"
[server]
bind = "127.0.0.1:{port}"
data_dir = "data"
app = "{app}"
roles = {roles}
{server}
[worker]
lease_s = 2.0
poll_s = 0.1
[retention]
rejections_rate = {kept}
"""


def configure(
    running: Running, sources: str, *, app: str = "", server: str = "", roles: str = '["gateway"]', kept: float = 1000.0
) -> None:
    """Write a boathook.toml that has just these sources."""
    head = HEAD.format(url=running.database_url, port=running.port, app=app, server=server, roles=roles, kept=kept)
    (running.folder / "boathook.toml").write_text(head + sources)
    (running.folder / "sitecustomize.py").write_text(OFFLINE)


@contextmanager
def shared(admin_url: str, template: str, folder: Path) -> Iterator[Running]:
    """Yield a boathook, not started yet, on a database that is dropped at the end."""
    name = f"test_{uuid.uuid4().hex}"
    url = with_database(admin_url, name)
    with psycopg.connect(admin_url, autocommit=True) as admin:
        admin.execute(f"create database {name} template {template}")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(TABLES)
    running = Running(folder, url, roles="gateway")
    try:
        yield running
    finally:
        if running.process is not None and running.process.poll() is None:
            running.kill_all()
        with psycopg.connect(admin_url, autocommit=True) as admin:
            admin.execute(f"drop database {name} with (force)")
