"""Runs a boathook process with the cashdesk app; creates users, calls its API and reads its tables."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import psycopg

from boathook.config import load
from boathook.server.loading import bound
from boathook_cashdesk import hook, users
from boathook_cashdesk.app import User
from boathook_cashdesk.entities import Entity
from boathook_cashdesk.receiver import Receiver
from tests.apps.app_server import AppServer

TABLE = """
    [cashdesk]
    max_webhooks = 5
    [cashdesk.drive]
    seconds = 0.05
    largest = 1000000
"""
ALL = dict.fromkeys(Entity, True)
NONE = dict.fromkeys(Entity, False)


class CashdeskServer(AppServer):
    """A `boathook serve` process with the cashdesk app."""

    app = "cashdesk"
    page = "/cabinet/"

    def __init__(self, folder: Path, database_url: str) -> None:
        super().__init__(folder, database_url, TABLE, senders=1)

    def set_key(self, table: str, line: str) -> None:
        """Add a line to a table of the settings file, before the start."""
        file = self.folder / "boathook.toml"
        file.write_text(file.read_text().replace(f"[{table}]", f"[{table}]\n{line}"))


@dataclass(frozen=True)
class Client:
    """Client of the cashdesk API with one user's token."""

    base: str
    user: User
    token: str

    async def ask(self, method: str, path: str, document: object = None, *, token: str | None = None) -> httpx.Response:
        """Send one request with this user's token, or another one."""
        async with httpx.AsyncClient(base_url=self.base, timeout=300) as http:
            headers = {"authorization": f"Bearer {self.token if token is None else token}"}
            return await http.request(method, f"/cabinet/api/{path}", json=document, headers=headers)

    async def do(self, method: str, path: str, document: object = None) -> Any:
        """Send one request that must succeed, and return its JSON."""
        answer = await self.ask(method, path, document)
        assert 200 <= answer.status_code < 300, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json() if answer.content else None

    async def webhook(
        self, receiver: Receiver, path: str, types: Mapping[Entity, bool] = ALL, *, active: bool = True
    ) -> Any:
        """Create a webhook to *path* of the receiver, and give the receiver its secret."""
        body = {"url": receiver.base + path, "types": types, "active": active}
        made = await self.do("POST", "webhooks", body)
        receiver.secrets[path] = (await self.do("GET", f"webhooks/{made['id']}/secret"))["secret"]
        return made

    async def product(self, name: str = "tea", price: int = 100) -> Any:
        """Create a product."""
        return await self.do("POST", "products", {"name": name, "price": price})

    async def shift(self) -> Any:
        """Open a shift at a new device."""
        device = await self.do("POST", "devices", {"serial": uuid4().hex, "model": "M", "name": "D"})
        return await self.do("POST", "shifts", {"device_id": device["id"], "cashier": "Anna"})

    async def sale(self, price: int = 100) -> Any:
        """Sell a new product in a new shift."""
        product, shift = await self.product(price=price), await self.shift()
        items = [{"product_id": product["id"], "quantity": 2}]
        return await self.do("POST", "receipts", {"shift_id": shift["id"], "items": items})


class Cabinet:
    """A running cashdesk app."""

    def __init__(self, running: CashdeskServer) -> None:
        self.running = running

    @contextlib.asynccontextmanager
    async def bound_app(self) -> AsyncIterator[None]:
        """Bind the app to the server's database in this process, as for a handler."""
        own = {"server.data_dir": str(self.running.folder / "data")}
        async with bound(load(self.running.folder / "boathook.toml", own), [hook]):
            yield

    async def client(self, name: str = "shop") -> Client:
        """Create a user and return a client for it."""
        async with self.bound_app(), hook.transaction() as tx:
            user, token = await users.add(tx, name)
        return Client(self.running.base, user, token)

    def rows(self, sql: str, *arguments: Any) -> list[tuple[Any, ...]]:
        """Query the database."""
        with psycopg.connect(self.running.database_url, autocommit=True) as connection:
            return connection.execute(sql, arguments).fetchall()

    def payloads(self, user: User) -> list[dict[str, Any]]:
        """Return the payloads that were published for a user, in order."""
        rows = self.rows(
            "select body from boathook.event where application = any (boathook.application_names(%s)) order by id",
            user.application,
        )
        return [json.loads(body) for (body,) in rows]

    def verify(self) -> None:
        """Assert that `boathook check` finds no violation."""
        assert self.running.cli("check").returncode == 0


async def wait_until_delivered(cabinet: Cabinet, user: User, timeout: float = 300) -> None:
    """Wait until a user has no pending delivery and no pending operation."""
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
