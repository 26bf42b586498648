"""Test harness for sending: stores endpoints and deliveries, and runs a scripted receiver and senders."""

import asyncio
import base64
import contextlib
import hashlib
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

import msgspec

from boathook.config import Settings, load
from boathook.db.database import Database
from boathook.db.due_notifier import notify_due
from boathook.db.secret_box import SecretBox
from boathook.delivery.destination import Executor
from boathook.delivery.dispatcher import Dispatcher
from boathook.delivery.endpoint_queues import EndpointAttempt
from boathook.delivery.sender import make_sender
from boathook.delivery.signer import make_secret
from boathook.domain import ids
from boathook.domain.due import ANY_DUE, due_recipients
from boathook.domain.endpoints import recipient_of
from boathook.domain.policy import RetryPolicy
from boathook.service.unit_of_work import new_id

KEY: Final = "a key for tests, and for tests only"
QUICK: Final = RetryPolicy(delays_s=(0.02,) * 8, jitter=0.0, max_age_s=60.0)


@dataclass(frozen=True)
class Request:
    """A request that the receiver got."""

    path: str
    headers: Mapping[str, str]
    body: bytes
    at: float


@dataclass
class Reply:
    """The response of a scripted receiver."""

    status: int = 204
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    after_s: float = 0.0
    gate: asyncio.Event | None = None
    """It is sent once this is set."""


class Sink:
    """A receiver on loopback that answers each request as *script* says and records all requests."""

    def __init__(self, script: Callable[[Request], Reply] = lambda _request: Reply()) -> None:
        self.script = script
        self.requests: list[Request] = []
        self.base = ""
        self.running: dict[str, int] = {}
        self.most: dict[str, int] = {}
        """Largest number of concurrent requests, by path."""
        self._serving: set[asyncio.Task[None]] = set()

    @property
    def messages(self) -> list[str]:
        """The ids of the received messages, in order of arrival."""
        return [request.headers["webhook-id"] for request in self.requests]

    def to(self, path: str) -> list[Request]:
        """Return the requests to one path."""
        return [request for request in self.requests if request.path == path]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                headers = {
                    name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)
                }
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                request = Request(head[0].split()[1], headers, body, time.monotonic())
                writer.write(await self._answer(request))
                await writer.drain()
        writer.close()
        self._serving.discard(task)

    async def _answer(self, request: Request) -> bytes:
        self.requests.append(request)
        path = request.path
        self.running[path] = self.running.get(path, 0) + 1
        self.most[path] = max(self.most.get(path, 0), self.running[path])
        try:
            reply = self.script(request)
            if reply.after_s:
                await asyncio.sleep(reply.after_s)
            if reply.gate:
                await reply.gate.wait()
        finally:
            self.running[path] -= 1
        length = {} if reply.status == 204 else {"content-length": str(len(reply.body))}
        lines = [f"{name}: {value}" for name, value in {**length, **reply.headers}.items()]
        return "\r\n".join([f"HTTP/1.1 {reply.status} X", *lines, "", ""]).encode() + reply.body

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator["Sink"]:
        """Listen on a free port of loopback."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=1024)
        self.base = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()
            for task in self._serving:
                task.cancel()
            await asyncio.gather(*self._serving, return_exceptions=True)


@dataclass(frozen=True)
class StoredEndpoint:
    """An endpoint that is stored in the database."""

    id: UUID
    application: UUID
    secret: str

    @property
    def recipient(self) -> str:
        """The recipient of its deliveries."""
        return recipient_of(ids.show(ids.ENDPOINT, self.id))


async def add_application(db: Database, *, organization: str = "default", **columns: Any) -> UUID:
    """Store an application."""
    identifier = new_id()
    await _insert(db, "application", id=identifier, organization=organization, name="test", **columns)
    return identifier


async def add_endpoint(
    db: Database, url: str, *, application: UUID | None = None, retry: RetryPolicy | None = QUICK, **columns: Any
) -> StoredEndpoint:
    """Store an endpoint with a secret; also store an application for it unless one is given."""
    application = application or await add_application(db)
    endpoint = StoredEndpoint(new_id(), application, make_secret())
    name = ids.show(ids.ENDPOINT, endpoint.id)
    secret_box = SecretBox([KEY])
    for kind in ("headers", "auth"):
        if kind in columns:
            encrypted = secret_box.encrypt(msgspec.json.encode(columns.pop(kind)).decode(), f"endpoint_{kind}:{name}")
            columns[f"encrypted_{kind}"] = encrypted
    encoded = None if retry is None else msgspec.json.encode(retry).decode()
    await _insert(db, "endpoint", id=endpoint.id, application_id=application, url=url, retry=encoded, **columns)
    await add_secret(db, endpoint, endpoint.secret)
    return endpoint


async def add_secret(db: Database, endpoint: StoredEndpoint, secret: str, *, expires_in_s: float | None = None) -> None:
    """Store another secret of an endpoint; without an expiry it is the current one."""
    encrypted = SecretBox([KEY]).encrypt(secret, f"endpoint_secret:{ids.show(ids.ENDPOINT, endpoint.id)}")
    await db.execute(
        "insert into boathook.endpoint_secret (endpoint_id, encrypted, expires_at)"
        " values ($1, $2, now() + make_interval(secs => $3))",
        endpoint.id, encrypted, expires_in_s,
    )  # fmt: skip


async def _insert(db: Database, table: str, **columns: Any) -> None:
    marks = ", ".join(f"${position}" for position in range(1, len(columns) + 1))
    await db.execute(f"insert into boathook.{table} ({', '.join(columns)}) values ({marks})", *columns.values())


async def add_deliveries(
    db: Database, endpoints: StoredEndpoint | Sequence[StoredEndpoint], number: int = 1, *, order_key: str | None = None,
    body: bytes = b'{"a": 1}', is_manual: bool = False, is_named: bool = False,
    is_announced: bool = True,
) -> list[UUID]:  # fmt: skip
    """Store *number* messages with a delivery to each of *endpoints*, notify the senders, and return the message ids.

    With *is_named* the notification names the endpoints; without *is_announced* there is none.
    """
    endpoints = [endpoints] if isinstance(endpoints, StoredEndpoint) else list(endpoints)
    events = [new_id() for _ in range(number)]
    async with db.transaction() as connection:
        await connection.execute(
            "insert into boathook.event (id, application, type, dedup_key, grade, origin, headers, content_type, body,"
            " body_sha256, fanout) select id, $2, 'thing.done', 'evt_' || id, 'none', 'published', '{}',"
            " 'application/json', $3, $4, $5 from unnest($1::uuid[]) as u (id)",
            events, ids.show(ids.APPLICATION, endpoints[0].application), body, hashlib.sha256(body).digest(), len(endpoints),
        )  # fmt: skip
        await connection.execute(
            "insert into boathook.dedup (key, event_id, body_sha256, expires_at)"
            " select id, id, $2, now() + interval '30 days' from unnest($1::uuid[]) as u (id)",
            events, hashlib.sha256(body).digest(),
        )  # fmt: skip
        await connection.execute(
            "insert into boathook.delivery (event_id, ordinal, recipient, order_key, is_blocked, is_manual)"
            " select id, place - 1, recipient, $3::text, $3::text is not null and (place_of_event > 1 or exists (select from"
            " boathook.delivery o where o.recipient = r.recipient and o.order_key = $3 and o.state <> 'dead')), $4"
            " from unnest($1::uuid[]) with ordinality as u (id, place_of_event),"
            " unnest($2::text[]) with ordinality as r (recipient, place) order by place_of_event",
            events, [endpoint.recipient for endpoint in endpoints], order_key, is_manual,
        )  # fmt: skip
    if is_announced:
        await notify_due(db, due_recipients([endpoint.recipient for endpoint in endpoints]) if is_named else ANY_DUE)
    return events


def sender_settings(url: str, *, outbound: Mapping[str, Any] | None = None, **tables: Mapping[str, Any]) -> Settings:
    """Return settings with a short poll interval that allow requests to loopback."""
    return load(
        None,
        {
            "database": {"url": url},
            "worker": {"poll_interval_s": 0.05, "lease_s": 5.0, **tables.pop("worker", {})},
            "server": {"drain_s": 5.0, **tables.pop("server", {})},
            "outbound": {"allow": ["127.0.0.0/8"], "encryption_keys": [KEY], "timeout_s": 10.0, **(outbound or {})},
            **tables,
        },
    )


@contextlib.asynccontextmanager
async def running_sender(
    db: Database, *, sender_id: str = "s1", keys: Sequence[str] = (KEY,), predecessors: Sequence[str] = (),
    executor: Executor[EndpointAttempt] | None = None, **settings: Any,
) -> AsyncIterator[Dispatcher[EndpointAttempt]]:  # fmt: skip
    """Run a sender until the block ends; an error in the sender fails the test."""
    chosen = sender_settings(db.url, **settings)
    own = await Database.open(db.url, purpose="sender", size=5, is_reset=False, is_queue=True)
    stop = asyncio.Event()
    sender = make_sender(chosen, own=own, secret_box=SecretBox(list(keys)), sender_id=sender_id, executor=executor)
    task = asyncio.create_task(sender.run(stop, lambda: None, predecessors=predecessors))
    try:
        yield sender
    finally:
        stop.set()
        try:
            await asyncio.wait_for(task, 300)
        finally:
            await own.close()


def unpadded(secret: str) -> bytes:
    """Return the raw key of a symmetric secret."""
    return base64.b64decode(secret.removeprefix("whsec_"))
