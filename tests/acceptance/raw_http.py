"""Sends HTTP requests without changing their target, and creates boathook processes that a test module shares."""

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
from tests.acceptance.conftest import TABLES, BoathookProcess
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
"""A sitecustomize.py that makes the name resolution of every other host fail."""


@dataclass(frozen=True, slots=True)
class RawResponse:
    """The response to a request."""

    status: int
    headers: Mapping[str, str]
    """Lower-case names."""
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def send_request(
    running: BoathookProcess, method: str, target: str, headers: Mapping[str, str] | None = None, body: bytes = b""
) -> RawResponse:
    """Send one request with the target exactly as given; no library normalizes it."""
    connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=300)
    try:
        connection.request(method, target, body=body, headers={"content-length": str(len(body)), **(headers or {})})
        answer = connection.getresponse()
        return RawResponse(answer.status, {name.lower(): text for name, text in answer.getheaders()}, answer.read())
    finally:
        connection.close()


def send_signed(running: BoathookProcess, signed: Signed, **headers: str) -> RawResponse:
    """Send a signed request to *running*, whatever host it was signed for."""
    parts = urlsplit(signed.url)
    target = f"{parts.path}?{parts.query}" if parts.query else parts.path
    more = {name.replace("_", "-"): text for name, text in headers.items()}
    return send_request(running, signed.method, target, {**signed.headers, **more}, signed.body)


def rows(running: BoathookProcess, sql: str, *values: Any) -> list[tuple[Any, ...]]:
    with psycopg.connect(running.database_url, autocommit=True) as connection:
        return connection.execute(sql, values).fetchall()


CONFIG_HEAD = """
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
poll_interval_s = 0.1
[retention]
rejections_rate = {kept}
"""


def write_config(
    running: BoathookProcess,
    sources: str,
    *,
    app: str = "",
    server: str = "",
    roles: str = '["gateway"]',
    kept: float = 1000.0,
) -> None:
    """Write a boathook.toml with exactly these sources."""
    head = CONFIG_HEAD.format(
        url=running.database_url, port=running.port, app=app, server=server, roles=roles, kept=kept
    )
    (running.folder / "boathook.toml").write_text(head + sources)
    (running.folder / "sitecustomize.py").write_text(OFFLINE)


@contextmanager
def boathook_on_new_database(admin_url: str, template: str, folder: Path) -> Iterator[BoathookProcess]:
    """Yield a boathook process, not yet started, on a new database that is dropped at the end."""
    name = f"test_{uuid.uuid4().hex}"
    url = with_database(admin_url, name)
    with psycopg.connect(admin_url, autocommit=True) as admin:
        admin.execute(f"create database {name} template {template}")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(TABLES)
    running = BoathookProcess(folder, url, roles="gateway")
    try:
        yield running
    finally:
        if running.process is not None and running.process.poll() is None:
            running.kill_all()
        with psycopg.connect(admin_url, autocommit=True) as admin:
            admin.execute(f"drop database {name} with (force)")
