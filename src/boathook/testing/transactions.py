"""Transactions on the session of a test: one that is rolled back at its end, and savepoints in it for the handlers."""

import inspect
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

from boathook.domain.errors import ConfigError
from boathook.handlers.sessions import library_of, refusing_commit

LIBRARIES: Final = frozenset({"asyncpg", "django", "psycopg", "sqlalchemy"})
"""The libraries whose sessions can be rolled back."""


def is_async(session: Any) -> bool:
    """Return whether the methods of a session of a supported library are awaited."""
    return library_of(session) == "asyncpg" or inspect.iscoroutinefunction(getattr(session, "execute", None))


@asynccontextmanager
async def rolled_back(session: Any) -> AsyncIterator[None]:
    """Roll back what the block does through an async session: to where it began, if a transaction is open."""
    match library_of(session):
        case "asyncpg":
            transaction = session.transaction()
            await transaction.start()
            try:
                yield
            finally:
                await transaction.rollback()
        case "psycopg":
            async with session.transaction(force_rollback=True):
                yield
        case "sqlalchemy":
            transaction = await (session.begin_nested() if session.in_transaction() else session.begin())
            try:
                yield
            finally:
                if transaction.is_active:
                    await transaction.rollback()
        case _:
            raise unknown_session(session)


@asynccontextmanager
async def savepoint(session: Any) -> AsyncIterator[None]:
    """Roll back what the block does through an async session if it raises, or ends the savepoint."""
    if library_of(session) != "sqlalchemy":
        async with session.transaction():
            yield
        return
    async with session.begin_nested() as nested:
        with refusing_commit(session.sync_session, nested.sync_transaction):
            yield


@contextmanager
def rolled_back_sync(session: Any) -> Iterator[None]:
    """Roll back what the block does through a sync session: to where it began, if a transaction is open."""
    match library_of(session):
        case "psycopg":
            with session.transaction(force_rollback=True):
                yield
        case "sqlalchemy":
            transaction = session.begin_nested() if session.in_transaction() else session.begin()
            try:
                yield
            finally:
                if transaction.is_active:
                    transaction.rollback()
        case "django":
            from django.db import transaction as blocks

            with blocks.atomic(session.alias):
                try:
                    yield
                finally:
                    blocks.set_rollback(True, session.alias)
        case _:
            raise unknown_session(session)


@contextmanager
def savepoint_sync(session: Any) -> Iterator[None]:
    """Do the same through a sync session."""
    match library_of(session):
        case "django":
            from django.db import transaction

            with transaction.atomic(session.alias):
                yield
        case "sqlalchemy":
            with session.begin_nested() as nested, refusing_commit(session, nested):
                yield
        case _:
            with session.transaction():
                yield


def unknown_session(session: Any) -> ConfigError:
    """Return the error for a session that handlers cannot run on."""
    name = f"{type(session).__module__}.{type(session).__qualname__}"
    return ConfigError(
        f"session= is a {name}; pass an asyncpg connection, or a session of SQLAlchemy, psycopg or Django that the test"
        " has opened"
    )
