"""Cells without gateways: three databases with their APIs, and the posts between them."""

import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from boathook.config import Settings
from boathook.config.packages import register_metrics
from boathook.db.database import Database
from boathook.domain.errors import FetchFailed
from boathook.domain.filters import Router
from boathook.domain.model import Accepted, NewEvent, Receipt
from boathook.handlers.outbox import Outbox
from boathook.ingest.event_builder import EventBuilder
from boathook.ingest.event_writer import EventWriter
from boathook.service.sending.message_store import MessageStore
from boathook_cells import moves, package, store
from boathook_cells.directory import ApplicationAssignment
from boathook_cells.forwarding import CellIntakes, CellReceiver
from boathook_cells.settings import CellsSettings, require_cells
from tests.databases import Pool
from tests.postgres.api_client import ApiClient, make_context, make_token

NAMES = ("c1", "c2", "c3")
SECRET = "whsec_" + "A" * 32
PAID: dict[str, Any] = {"eventType": "invoice.paid", "payload": {"n": 1}}


@dataclass
class Cell:
    """A cell without a gateway: its database and its API."""

    db: Database
    api: ApiClient

    @property
    def settings(self) -> Settings:
        return self.api.context.settings

    async def publish(self, reference: str, key: str, expect: int = 202) -> dict[str, Any]:
        return await self.api.ask(expect, "POST", f"/app/{reference}/msg", PAID | {"eventId": key})

    async def stored(self) -> list[str]:
        """Return the publishers' ids of the messages that are stored here, oldest first."""
        rows = await self.db.fetch("select dedup_key from boathook.event where type = 'invoice.paid' order by id")
        return [row["dedup_key"] for row in rows]

    async def rows(self, table: str) -> list[dict[str, Any]]:
        """Return the rows of a table as JSON."""
        found = await self.db.fetch(f"select to_jsonb(t)::text as row from boathook.{table} t order by 1")
        return [json.loads(row["row"]) for row in found]


Cells = dict[str, Cell]


@contextlib.asynccontextmanager
async def open_cells(databases: Pool) -> AsyncIterator[Cells]:
    """Yield three cells."""
    with databases.database() as one, databases.database() as other, databases.database() as third:
        urls = dict(zip(NAMES, (one, other, third), strict=True))
        members = {
            name: {"url": f"https://{name}.example", "database": url, "accepts_new": True} for name, url in urls.items()
        }
        made: Cells = {}
        register_metrics(package)  # as a server does whose file has [cells]
        for name, url in urls.items():
            db = await Database.open(url, purpose=name, size=4)
            await store.claim(db, name)
            given = {"name": name, "secret": SECRET, "members": members}
            context = make_context(db)
            own = context.settings.database.model_copy(update={"url": url})
            context.settings = context.settings.model_copy(
                update={
                    "tables": {"boathook_cells:package": {"cells": CellsSettings.model_validate(given)}},
                    "database": own,
                }
            )
            made[name] = Cell(db, ApiClient(context, await make_token(context)))
        yield made
        for cell in made.values():
            await cell.api.aclose()
            await cell.db.close()


async def make_application(cell: Cell, uid: str = "acme") -> str:
    """Create an application with an endpoint; return its id."""
    made = await cell.api.ask(201, "POST", "/app", {"name": "Acme", "uid": uid})
    await cell.api.ask(201, "POST", f"/app/{uid}/endpoint", {"url": "http://127.0.0.1:18080/hook", "uid": "main"})
    return str(made["id"])


async def move(pair: Cells, application: str, to: str = "c2") -> moves.ApplicationMove:
    return await moves.move_application(pair["c1"].settings, application, to)


@dataclass
class Network:
    """Carries posts to the receivers of the cells, which store messages as a gateway does."""

    cells: Cells
    away: set[str] = field(default_factory=set)
    """Cells that do not answer."""
    mute: set[str] = field(default_factory=set)
    """Cells whose answers are lost."""
    spooling: set[str] = field(default_factory=set)
    """Cells whose gateways put what they get into a spool."""
    spooled: list[NewEvent] = field(default_factory=list)
    """What these got."""
    posts: list[str] = field(default_factory=list)
    """The cells that were posted to."""

    async def post(
        self, url: str, headers: Mapping[str, str], body: bytes, timeout_s: float, max_bytes: int
    ) -> tuple[int, bytes]:
        name = url.removeprefix("https://").partition(".")[0]
        self.posts.append(name)
        if name in self.away:
            raise FetchFailed("no answer")
        answer = await self._ask(name, headers, body)
        if name in self.mute:
            raise FetchFailed("the answer is lost")
        return answer

    async def _ask(self, name: str, headers: Mapping[str, str], body: bytes) -> tuple[int, bytes]:
        cell, sent = self.cells[name], list[dict[str, Any]]()
        messages = MessageStore(lambda: cell.db, Outbox())

        async def accept(event: NewEvent) -> Receipt:
            if name in self.spooling:
                self.spooled.append(event)
                return Accepted(event.id, is_spooled=True)
            (receipt,) = await EventWriter(SimpleNamespace(), messages=messages).append([event])
            return receipt

        async def find_cells(wanted: Any) -> list[ApplicationAssignment]:
            found = (await store.read_applications(cell.db, wanted)).values()
            return [
                ApplicationAssignment(application=one.shown_id, home=one.home or name, revision=one.revision)
                for one in found
            ]

        async def read_router() -> Router:
            return Router((), 1)

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        builder = EventBuilder(Router((), -1), read_router)
        intake: Any = SimpleNamespace(accept=accept)
        receiver = CellReceiver(
            CellIntakes(require_cells(cell.settings).directory, lambda: builder.router, messages),
            SECRET,
            intake,
            builder,
            applications=SimpleNamespace(find_cells=find_cells),
            others=SimpleNamespace(),
        )
        given = [(key.encode(), value.encode()) for key, value in headers.items()]
        given.append((b"content-length", str(len(body)).encode()))
        await receiver({"path": "/cells/events", "method": "POST", "headers": given}, receive, send)
        return sent[0]["status"], sent[1]["body"]
