"""A `boathook serve` for tests: on an embedded PostgreSQL of its own, with secrets of its own."""

import asyncio
import contextlib
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import msgspec
from msgspec.structs import replace

from boathook.db import applications
from boathook.db.database import Database
from boathook.db.route_registry import read_routes
from boathook.domain import ids
from boathook.domain.errors import BoathookError, ConfigError, FetchFailed, NotFound
from boathook.domain.json_document import UNREADABLE, parse
from boathook.domain.model import DEFAULT_ORGANIZATION
from boathook.domain.verification import Verified
from boathook.ingest.sources import configured_spec
from boathook.service.operating import listings, search
from boathook.service.operating.event_query import EventQuery
from boathook.service.operating.listings import DeliveryDetail, EventDetail
from boathook.service.receiving.source_trial import sample_request, send_request, sign_request
from boathook.service.unit_of_work import new_id
from boathook.testing.events import choose_body
from boathook.testing.results import DeliverResult, HandlerResult, Outcome, PublishedMessage, print_failures
from boathook.testing.server_process import ServerProcess, running
from boathook.verification.provider_signer import Signed, to_request
from boathook.verification.source import ResolvedSource, resolve_source
from boathook.verification.verifier import Verifier

_POLL_S: Final = 0.02
_MAX_MESSAGES: Final = 1_000
_HANDLER: Final = "handler:"
_ARGUMENTS: Final = frozenset({"body", "fields", "headers", "id", "json", "type"})
"""What makes one request."""
_OUTCOMES: Final[Mapping[str, Outcome]] = {"retry": "retry", "waiting": "waiting", "dead": "dead"}


class BoathookServer:
    """A running `boathook serve` with the handlers of a project, for tests.

    Its settings are those of the project's boathook.toml, except that it has an address, a data folder and a PostgreSQL
    of its own, that each source has a new secret, that handlers without a retry policy are not retried, and that it
    sends neither notifications nor traces.
    """

    def __init__(self, process: ServerProcess) -> None:
        self.settings = process.settings
        """The settings that it runs with, with the sources of apps."""
        self.url = process.url
        """Its address, without a slash at the end."""
        self.database_url = process.database_url
        """The URL of its PostgreSQL, as asyncpg, psycopg and SQLAlchemy parse it."""
        self.log = process.log
        """The file of its log."""
        self._secrets = dict(process.secrets)
        self._call = process.loop.call
        self._database: Database | None = None

    @classmethod
    @contextlib.contextmanager
    def running(
        cls, folder: Path, file: Path | None = None, overrides: Mapping[str, Any] | None = None
    ) -> "Iterator[BoathookServer]":
        """Run a server until the end of the block.

        Args:
            folder: the working folder, from which modules are imported too.
            file: its boathook.toml; None for none.
            overrides: settings that take precedence, as tables or by dotted key. Without ``database.url`` among them
                it starts a PostgreSQL of its own.

        Raises:
            ConfigError: a setting is wrong, or the server does not start; the message ends with its log.
        """
        with running(folder, file, overrides or {}) as process:
            server = cls(process)
            try:
                yield server
            finally:
                server._close_database()

    def deliver(
        self,
        source: str,
        *,
        type: str | None = None,
        json: Any = None,
        fields: Mapping[str, Any] | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        id: str | None = None,
        timeout_s: float = 60.0,
    ) -> DeliverResult:
        """Send a signed request of a source's sender, wait for its handlers, and return what they did.

        It waits until each handler has ended or failed an attempt. The arguments are those of `boathook.testing.event`.

        Args:
            source: The source's name.
            type: The event type; None keeps that of the body.
            json: The body, as a JSON value.
            fields: JSON values by dotted path, to set in the body.
            body: The body's bytes.
            headers: Headers to add.
            id: The sender's event id; the same id again is a duplicate.
            timeout_s: Maximum time for the handlers.

        Raises:
            ConfigError: both *json* and *body* are given, or the sender cannot make such a request.
            FetchFailed: the server did not accept the request; the message has its response.
            NotFound: there is no such source, or no handler takes the event; the message lists those that there are.
            TimeoutError: a handler did not end in time.
        """
        __tracebackhide__ = True  # pytest then shows the test's line with the error
        try:
            signed = self._sign(source, type=type, json=json, fields=fields, body=body, headers=headers, id=id)
            return self._send(source, signed, timeout_s)
        except (BoathookError, TimeoutError) as error:
            raise error.with_traceback(None) from None

    def deliver_swapped(
        self, source: str, earlier: Mapping[str, Any], later: Mapping[str, Any], *, timeout_s: float = 60.0
    ) -> tuple[DeliverResult, DeliverResult]:
        """Send two requests of a source's sender in the wrong order, and return what the handlers did with each.

        Both requests are made and signed in the right order. The later one is sent and handled first, then the earlier.

        Args:
            source: The source's name.
            earlier: What happened first: arguments of `deliver`, such as ``{"id": "evt_1", "fields": {...}}``.
            later: What happened then.
            timeout_s: Maximum time for the handlers of one request.

        Returns:
            The results of *earlier* and *later*, in this order.

        Raises:
            ConfigError: an argument is unknown or wrong.
            FetchFailed, NotFound, TimeoutError: as `deliver` raises them.
        """
        __tracebackhide__ = True
        try:
            signed = [self._sign(source, **_known("deliver_swapped", arguments)) for arguments in (earlier, later)]
            second = self._send(source, signed[1], timeout_s)
            return self._send(source, signed[0], timeout_s), second
        except (BoathookError, TimeoutError) as error:
            raise error.with_traceback(None) from None

    def _sign(
        self,
        source: str,
        *,
        type: str | None = None,
        json: Any = None,
        fields: Mapping[str, Any] | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        id: str | None = None,
    ) -> Signed:
        """Return a signed request of a source's sender."""
        resolved = self._resolve(source)
        body = choose_body("deliver", json, body)
        own_headers = {name.lower(): value for name, value in (headers or {}).items()}
        request = sample_request(resolved, source, id=id, type=type, fields=fields, body=body, headers=own_headers)
        return sign_request(resolved, request, self._secrets.get(source, ""))

    def _send(self, source: str, signed: Signed, timeout_s: float) -> DeliverResult:
        """Send a request, and wait for its handlers."""
        began = datetime.now(UTC)
        response = self._call(send_request(self.url, signed))
        if not 200 <= response.status < 300:
            text = response.body[:500].decode("utf-8", "replace")
            raise FetchFailed(f"the request was answered {response.status}: {text}", status=response.status)
        document = parse(response.body)
        if isinstance(document, dict) and "event_id" in document:
            event_id, is_duplicate = ids.read_event(document["event_id"]), document.get("duplicate") is True
        else:  # the sender requires its own reply format
            event_id = self._call(self._find_event(self._resolve(source), signed, timeout_s))
            is_duplicate = ids.created_at(event_id) < began - timedelta(milliseconds=1)
        handlers = self._call(self._wait_for_handlers(event_id, timeout_s))
        print_failures(handlers)
        return DeliverResult(
            handlers=handlers,
            event_id=ids.show(ids.EVENT, event_id),
            is_duplicate=is_duplicate,
            status=response.status,
            response=response.body,
        )

    def create_application(self, uid: str, *, name: str = "") -> str:
        """Create an application to publish to, unless there is one with this uid, and return its id.

        Args:
            uid: its uid, as publishers name it.
            name: its name; empty for the uid.
        """
        return self._call(self._create_application(uid, name or uid))

    async def _create_application(self, uid: str, name: str) -> str:
        async with (await self._open()).transaction() as connection:
            application = await applications.find(connection, DEFAULT_ORGANIZATION, uid)
            if application is None:
                application = await applications.insert(
                    connection, new_id(), DEFAULT_ORGANIZATION, uid=uid, name=name, throttle_rate=None, metadata={}
                )
            return application.shown_id

    def published(
        self, *, application: str | None = None, type: str | None = None, since: datetime | None = None
    ) -> list[PublishedMessage]:
        """Return the messages that were published, oldest first.

        Args:
            application: Only those of this application, by id, uid or name.
            type: Only those whose type matches this pattern; ``*`` matches any characters.
            since: Only those since this time.
        """
        return self._call(self._published(EventQuery(application=application, type=type, since=since)))

    def _resolve(self, source: str) -> ResolvedSource:
        self.settings.source(source)
        return resolve_source(configured_spec(self.settings, source))

    def _close_database(self) -> None:
        if self._database is not None:
            self._call(self._database.close())

    async def _open(self) -> Database:
        if self._database is None:
            self._database = await Database.open(self.database_url, purpose="testing", size=2)
        return self._database

    async def _find_event(self, resolved: ResolvedSource, signed: Signed, timeout_s: float) -> UUID:
        """Return the event of a request; the response does not name it."""
        database, source = await self._open(), resolved.spec.name
        verified = Verifier(replace(resolved.spec, secrets=(), unsigned=True)).verify(to_request(signed), time.time())
        if not isinstance(verified, Verified):
            raise NotFound(f"the request to {source} was answered as a handshake, not an event")
        deadline = time.monotonic() + timeout_s
        while True:
            for row in await search.list_events(database, EventQuery(source=source), limit=_MAX_MESSAGES):
                if row.dedup_key == verified.dedup_key:
                    return ids.read_event(row.id)
            if time.monotonic() > deadline:
                raise NotFound(f"the request to {source} was accepted, but there is no event; the log is {self.log}")
            await asyncio.sleep(_POLL_S)

    async def _wait_for_handlers(self, event_id: UUID, timeout_s: float) -> tuple[HandlerResult, ...]:
        database = await self._open()
        deadline = time.monotonic() + timeout_s
        while True:
            details = await self._read_deliveries(database, event_id)
            waiting = [detail.row.recipient.removeprefix(_HANDLER) for detail in details if not _has_ended(detail)]
            if details and not waiting:
                return tuple(map(_handler_result, details))
            if time.monotonic() > deadline:
                names = ", ".join(waiting) or "the event"
                raise TimeoutError(f"{names} did not end within {timeout_s:g} s; the log is {self.log}")
            await asyncio.sleep(_POLL_S)

    async def _read_deliveries(self, database: Database, event_id: UUID) -> list[DeliveryDetail]:
        """Return the handlers' deliveries; none while the event is in the spool. Raises NotFound if it has none."""
        try:
            event = await listings.get_event(database, event_id)
        except NotFound:
            return []
        rows = [row for row in event.deliveries if row.recipient.startswith(_HANDLER)]
        if not rows:
            raise NotFound(await self._describe_missing(database, event))
        return [await listings.get_delivery(database, ids.read_delivery(row.id)) for row in rows]

    async def _describe_missing(self, database: Database, event: EventDetail) -> str:
        routes = (await read_routes(database)).routes
        handlers = "; ".join(
            f"{route.recipient.removeprefix(_HANDLER)} takes {route.source or route.application or 'any source'}:"
            f" {', '.join(route.types)}{' (with a filter)' if route.filter else ''}"
            for route in routes
            if route.recipient.startswith(_HANDLER)
        )
        recipients = handlers or 'there are none: set `boathook_app = "module:attribute"` for pytest, or server.app'
        return f"no handler takes {event.row.type!r} of {event.row.source}; {recipients}"

    async def _published(self, query: EventQuery) -> list[PublishedMessage]:
        database = await self._open()
        rows = [row for row in await search.list_events(database, query, limit=_MAX_MESSAGES) if row.source is None]
        return [await _read_message(database, row) for row in reversed(rows)]


def _known(caller: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return arguments of a request. Raises ConfigError for others."""
    unknown = arguments.keys() - _ARGUMENTS
    if unknown:
        raise ConfigError(f"{caller}: unknown argument {min(unknown)!r}; it takes {', '.join(sorted(_ARGUMENTS))}")
    return arguments


def _has_ended(detail: DeliveryDetail) -> bool:
    """Return whether a delivery has ended, or waits for another attempt after one that failed."""
    return detail.row.state in {"succeeded", "ignored", "dead"} or (
        detail.row.state == "pending" and bool(detail.attempts)
    )


def _handler_result(detail: DeliveryDetail) -> HandlerResult:
    name = detail.row.recipient.removeprefix(_HANDLER)
    effects = {effect.name: msgspec.json.decode(effect.result) for effect in detail.side_effects}
    if detail.row.state == "succeeded":
        return HandlerResult(handler=name, outcome="succeeded", effects=effects)
    if detail.row.state == "ignored":
        return HandlerResult(handler=name, outcome="ignored", note=detail.row.note, effects=effects)
    if not detail.attempts:
        return HandlerResult(handler=name, outcome="dead", code=detail.row.code, note=detail.row.note, effects=effects)
    last = max(detail.attempts, key=lambda attempt: attempt.number)
    outcome = _OUTCOMES.get(last.outcome, "failed")
    is_error = outcome == "failed"
    return HandlerResult(
        handler=name,
        outcome=outcome,
        code=last.code,
        note=(last.error or None) if outcome in {"waiting", "dead"} else None,
        error=last.error if is_error else None,
        traceback=last.traceback,
        dependency=last.dependency,
        effects=effects,
    )


async def _read_message(database: Database, row: Any) -> PublishedMessage:
    body = (await listings.get_event(database, ids.read_event(row.id))).stored.body
    document = parse(body)
    return PublishedMessage(
        application=row.application,
        type=row.type,
        payload=body if document is UNREADABLE else document,
        channels=tuple(row.channels or ()),
        tags=tuple(row.tags or ()),
    )
