"""A cabinet under test: a real server with its database, users who speak to it, and a look at its books."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import psycopg

from boathook.apps.cashdesk import hook, users
from boathook.apps.cashdesk.entities import Entity
from boathook.apps.cashdesk.receiver import Receiver
from boathook.apps.cashdesk.users import User
from boathook.config import load
from boathook.server.loading import bound
from tests.acceptance.conftest import TABLES, Running
from tests.conftest import with_database
from tests.support import until

CONFIG = """
[apps]
load = ["boathook.apps.cashdesk"]
[outbound]
allow = ["127.0.0.0/8"]
[cashdesk]
max_webhooks = 5
[cashdesk.drive]
seconds = 0.05
largest = 1000000
"""
ALL = dict.fromkeys(Entity, True)
NONE = dict.fromkeys(Entity, False)


@contextlib.contextmanager
def new_database(admin_url: str, template: str) -> Iterator[str]:
    """Lend a database with boathook's schema for longer than a test."""
    name = f"test_{uuid4().hex}"
    with psycopg.connect(admin_url, autocommit=True) as admin:
        admin.execute(f"create database {name} template {template}")
    yield with_database(admin_url, name)
    with psycopg.connect(admin_url, autocommit=True) as admin:
        admin.execute(f"drop database {name} with (force)")


def make_running(folder: Path, url: str, *, extra: str = "", senders: int = 1) -> Running:
    """Return a boathook with the cabinet, not started."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(TABLES)
    return Running(folder, url, roles="gateway,worker,console,keeper", extra=CONFIG + extra, senders=senders)


def started(running: Running, **environment: str) -> Running:
    """Start it, and wait until the cabinet itself is there."""
    running.start(**environment)
    until(lambda: is_up(running), timeout=60)
    return running


def is_up(running: Running) -> bool:
    """Return whether the cabinet answers."""
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(f"{running.base}/cabinet/", timeout=2).status_code == 200
    return False


@dataclass(frozen=True)
class Client:
    """A user of the cabinet, who speaks to its API."""

    base: str
    user: User
    token: str

    async def ask(self, method: str, path: str, document: object = None, *, token: str | None = None) -> httpx.Response:
        """Send one request, as this user unless another token is given."""
        async with httpx.AsyncClient(base_url=self.base, timeout=20) as http:
            headers = {"authorization": f"Bearer {self.token if token is None else token}"}
            return await http.request(method, f"/cabinet/api/{path}", json=document, headers=headers)

    async def do(self, method: str, path: str, document: object = None) -> Any:
        """Send one request that must succeed, and return what is answered."""
        answer = await self.ask(method, path, document)
        assert 200 <= answer.status_code < 300, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json() if answer.content else None

    async def webhook(
        self, receiver: Receiver, path: str, types: Mapping[Entity, bool] = ALL, *, active: bool = True
    ) -> Any:
        """Make a webhook that leads to *path* of the receiver, which then knows its secret."""
        body = {"url": receiver.base + path, "types": types, "active": active}
        made = await self.do("POST", "webhooks", body)
        receiver.secrets[path] = (await self.do("GET", f"webhooks/{made['id']}/secret"))["secret"]
        return made

    async def product(self, name: str = "tea", price: int = 100) -> Any:
        """Put a product up for sale."""
        return await self.do("POST", "products", {"name": name, "price": price})

    async def shift(self) -> Any:
        """Open a shift at a device of its own."""
        device = await self.do("POST", "devices", {"serial": uuid4().hex, "model": "M", "name": "D"})
        return await self.do("POST", "shifts", {"device_id": device["id"], "cashier": "Anna"})

    async def sale(self, price: int = 100) -> Any:
        """Sell a product in a shift of its own."""
        product, shift = await self.product(price=price), await self.shift()
        items = [{"product_id": product["id"], "quantity": 2}]
        return await self.do("POST", "receipts", {"shift_id": shift["id"], "items": items})


class Cabinet:
    """A running cabinet."""

    def __init__(self, running: Running) -> None:
        self.running = running

    @contextlib.asynccontextmanager
    async def lent(self) -> AsyncIterator[None]:
        """Let this process use the app on the server's database, as a handler would."""
        own = {"server.data_dir": str(self.running.folder / "data")}
        async with bound(load(self.running.folder / "boathook.toml", own), [hook]):
            yield

    async def client(self, name: str = "shop") -> Client:
        """Make a user."""
        async with self.lent(), hook.transaction() as tx:
            user, token = await users.add(tx, name)
        return Client(self.running.base, user, token)

    def rows(self, sql: str, *arguments: Any) -> list[tuple[Any, ...]]:
        """Read from the database."""
        with psycopg.connect(self.running.database_url, autocommit=True) as connection:
            return connection.execute(sql, arguments).fetchall()

    def payloads(self, user: User) -> list[dict[str, Any]]:
        """Return what was published for a user, in order."""
        rows = self.rows(
            "select body from boathook.event where application = any (boathook.application_names(%s)) order by id",
            user.application,
        )
        return [json.loads(body) for (body,) in rows]

    def verify(self) -> None:
        """Assert that boathook's books balance."""
        assert self.running.cli("verify").returncode == 0


async def settled(cabinet: Cabinet, user: User, timeout: float = 30.0) -> None:
    """Wait until nothing is owed to any webhook of a user, and no receipt is with the drive."""
    deadline = asyncio.get_running_loop().time() + timeout
    while True:
        # In this order: an operation that ends between the two looks makes deliveries that the second one sees.
        pending = cabinet.rows(
            "select count(*) from cashdesk.operations where user_id = %s and state = 'PENDING'", user.id
        )
        owed = cabinet.rows(
            "select count(*) from boathook.delivery d join boathook.event e on e.id = d.event_id"
            " where d.state <> 'dead' and e.application = any (boathook.application_names(%s))",
            user.application,
        )
        if pending == owed == [(0,)]:
            return
        assert asyncio.get_running_loop().time() < deadline, f"still owed {owed}, pending {pending}"
        await asyncio.sleep(0.05)
