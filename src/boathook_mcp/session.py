"""The caller of a tool, and the part of the store that it reaches."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from boathook.domain import ids
from boathook.domain.errors import NotFound
from boathook.service.access.authorization import Permission
from boathook.service.caller import Caller
from boathook.service.operating import listings
from boathook.service.sending import applications
from boathook.service.sending.applications import Application
from boathook.service.unit_of_work import AppContext, Connection, UnitOfWork


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """The caller of tools: one request at ``/mcp``, or one process of ``boathook mcp``."""

    app_context: AppContext
    caller: Caller
    organization: str
    """The organization of the applications that the caller names."""
    actor: str
    """The actor for the audit; it also identifies the caller to whom a preview belongs."""
    allows_writes: bool
    """Whether the settings allow tools that change something; the caller needs the permission as well."""

    def may(self, permission: Permission) -> bool:
        """Return whether the caller has a permission."""
        return self.caller.may(permission)

    @asynccontextmanager
    async def reading(self) -> AsyncIterator["Reach"]:
        """Open a transaction that cannot change anything. Raises DatabaseError."""
        async with self.app_context.reading() as connection:
            work = self._work(connection)
            async with work.snapshot():
                yield await self._reach(work)

    @asynccontextmanager
    async def writing(self) -> AsyncIterator["Reach"]:
        """Open a transaction that commits at the end and rolls back on an error. Raises DatabaseError."""
        with self.app_context.announcing():
            async with self.app_context.writing() as connection:
                yield await self._reach(self._work(connection))

    def _work(self, connection: Connection) -> UnitOfWork:
        return UnitOfWork(self.app_context, connection, self.organization, self.actor, self.caller)

    async def _reach(self, work: UnitOfWork) -> "Reach":
        application_id = self.caller.application_id
        only = None if application_id is None else ids.show(ids.APPLICATION, application_id)
        application = None if only is None else await applications.get(work, only)
        return Reach(work=work, tenant=self.caller.tenant, application=application)


class Reach(msgspec.Struct, frozen=True, kw_only=True):
    """A transaction, and the rows that its caller may see: every tool that reads events or deliveries asks it."""

    work: UnitOfWork
    tenant: str | None
    """The only organization; None: all."""
    application: Application | None
    """The only application; None: all of the organization."""

    async def owns(self, application: str | None) -> bool:
        """Return whether what belongs to an application, or is inbound if it is None, is in reach."""
        if self.application is not None:
            return application == self.application.shown_id
        if self.tenant is None:
            return True
        return await listings.find_owner(self.work.connection, application) == self.tenant

    async def require(self, name: str, application: str | None) -> None:
        """Raise NotFound for an object out of reach, as if it did not exist."""
        if not await self.owns(application):
            raise NotFound(f"there is no {name}; retention may have dropped it")

    async def find_application(self, reference: str) -> Application | None:
        """Return the application that a tool is about: the named one, or the caller's only one; None: none.

        Raises:
            NotFound: there is no such application in reach.
        """
        if not reference:
            return self.application
        application = await applications.get(self.work, reference)
        if self.application is not None and application.id != self.application.id:
            raise NotFound(f"unknown application {reference}")
        return application
