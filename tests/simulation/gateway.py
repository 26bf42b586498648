"""Connects the intake of a simulated gateway to the fake database and the routes."""

import asyncio
from collections.abc import Collection, Sequence
from typing import Final

from msgspec.structs import replace

from boathook.db.database import Database
from boathook.db.due_notifier import notify_due
from boathook.db.events import EventStore
from boathook.db.route_registry import read_router
from boathook.domain.due import DueRecipient
from boathook.domain.errors import DatabaseError, DatabaseUnavailable
from boathook.domain.filters import Router
from boathook.domain.model import NewEvent, Receipt
from tests.simulation.plan import Plan

URL: Final = "postgresql://simulated/boathook"


class FakeStore:
    """The store as a gateway knows it: tried until it is reached."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._database: Database | None = None

    async def keep_connecting(self) -> None:
        while self._database is None:
            try:
                self._database = await Database.open(
                    URL, purpose="gateway", size=self._plan.committers + 3, connect_timeout_s=2.0,
                    statement_timeout_s=self._plan.statement_timeout_s, is_reset=False,
                )  # fmt: skip
            except DatabaseError:
                await asyncio.sleep(0.5)

    def _there(self) -> Database:
        if self._database is None:
            raise DatabaseUnavailable("PostgreSQL has not been reached yet")
        return self._database

    async def append(self, batch: Sequence[NewEvent], *, within_s: float | None = None) -> list[Receipt]:
        return await EventStore(self._there()).append(batch, within_s=within_s)

    async def announce(self, due: Collection[DueRecipient]) -> None:
        await notify_due(self._there(), due)

    async def read_router(self) -> Router:
        return await read_router(self._there(), within_s=self._plan.after_s)

    async def close(self) -> None:
        if self._database is not None:
            await self._database.close()


def routed(router: Router, events: Sequence[NewEvent]) -> list[NewEvent]:
    return [
        replace(
            event,
            deliveries=router.route(
                source=event.source, application=None, type=event.type, headers={}, body=event.body
            ),
            routes_version=router.version,
        )
        for event in events
    ]
