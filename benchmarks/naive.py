"""The servers people write first: FastAPI with an insert per request, through SQLAlchemy's ORM or through asyncpg.

They do the same work as boathook's gateway for one event: check the signature, hash, parse, find duplicates, store
the event and its delivery, commit synchronously, answer. Their tables stand in the schema ``naive``.
"""

import hashlib
import hmac
import json
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import asyncpg
from fastapi import FastAPI, HTTPException, Request
from sqlalchemy import ForeignKey, LargeBinary, func
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

SCHEMA = """
    drop schema if exists naive cascade;
    create schema naive;
    create table naive.event (
        id uuid primary key, source text not null, type text not null, dedup_key text not null,
        accepted_at timestamptz not null default now(), headers text not null, body bytea not null,
        body_sha256 bytea not null, unique (source, dedup_key));
    create table naive.delivery (
        id uuid primary key, event_id uuid not null references naive.event, recipient text not null,
        state text not null default 'pending', due_at timestamptz not null default now());
    create index on naive.delivery (state, due_at);
"""


async def _read_event(request: Request, secret: str) -> tuple[bytes, dict[str, Any]]:
    body = await request.body()
    fields = dict(part.split("=", 1) for part in request.headers.get("stripe-signature", "").split(",") if "=" in part)
    expected = hmac.new(secret.encode(), f"{fields.get('t')}.".encode() + body, hashlib.sha256).hexdigest()
    if not hmac.compare_digest(expected, fields.get("v1", "")) or abs(time.time() - int(fields["t"])) > 300:
        raise HTTPException(401)
    return body, json.loads(body)


class Base(DeclarativeBase):
    """The naive tables."""


class EventRow(Base):
    """One event."""

    __tablename__ = "event"
    __table_args__ = {"schema": "naive"}  # noqa: RUF012 - as SQLAlchemy declares it
    id: Mapped[uuid.UUID] = mapped_column(primary_key=True)
    source: Mapped[str]
    type: Mapped[str]
    dedup_key: Mapped[str]
    headers: Mapped[str]
    body: Mapped[bytes] = mapped_column(LargeBinary)
    body_sha256: Mapped[bytes] = mapped_column(LargeBinary)


class DeliveryRow(Base):
    """One delivery."""

    __tablename__ = "delivery"
    __table_args__ = {"schema": "naive"}  # noqa: RUF012 - as SQLAlchemy declares it
    id: Mapped[uuid.UUID] = mapped_column(primary_key=True)
    event_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("naive.event.id"))
    recipient: Mapped[str]
    state: Mapped[str] = mapped_column(default="pending")
    due_at: Mapped[datetime] = mapped_column(server_default=func.now())


def with_orm(url: str, secret: str) -> FastAPI:
    """Return the server that stores through SQLAlchemy's ORM, with the engine's default pool."""
    engine = create_async_engine(url.replace("postgresql://", "postgresql+asyncpg://", 1))
    session_of = async_sessionmaker(engine, expire_on_commit=False)
    app = FastAPI()

    @app.post("/in/stripe")
    async def receive(request: Request) -> dict[str, Any]:
        body, event = await _read_event(request, secret)
        event_id = uuid.uuid4()
        async with session_of() as session:
            session.add(
                EventRow(
                    id=event_id,
                    source="stripe",
                    type=event["type"],
                    dedup_key=event["id"],
                    headers=json.dumps(dict(request.headers)),
                    body=body,
                    body_sha256=hashlib.sha256(body).digest(),
                )
            )
            try:
                await session.flush()
            except IntegrityError:
                return {"ok": True, "duplicate": True}
            session.add(
                DeliveryRow(id=uuid.uuid4(), event_id=event_id, recipient="handler:first", due_at=datetime.now(tz=UTC))
            )
            await session.commit()
        return {"ok": True, "duplicate": False, "event_id": str(event_id)}

    return app


def with_asyncpg(url: str, secret: str) -> FastAPI:
    """Return the server that stores through plain asyncpg, with the driver's default pool of ten."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.pool = await asyncpg.create_pool(url)
        yield
        await app.state.pool.close()

    app = FastAPI(lifespan=lifespan)

    @app.post("/in/stripe")
    async def receive(request: Request) -> dict[str, Any]:
        body, event = await _read_event(request, secret)
        event_id = uuid.uuid4()
        async with app.state.pool.acquire() as connection, connection.transaction():
            stored = await connection.fetchval(
                """
                insert into naive.event (id, source, type, dedup_key, headers, body, body_sha256)
                values ($1, 'stripe', $2, $3, $4, $5, $6)
                on conflict (source, dedup_key) do nothing returning id
                """,
                event_id,
                event["type"],
                event["id"],
                json.dumps(dict(request.headers)),
                body,
                hashlib.sha256(body).digest(),
            )
            if stored is not None:
                await connection.execute(
                    "insert into naive.delivery (id, event_id, recipient) values ($1, $2, 'handler:first')",
                    uuid.uuid4(),
                    event_id,
                )
        return {"ok": True, "duplicate": stored is None, "event_id": str(event_id)}

    return app
