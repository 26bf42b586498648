"""The operations that apps may call, recorded in the audit under the app's name."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Protocol
from uuid import UUID

from boathook.config import Settings
from boathook.db.applications import PageRequest
from boathook.db.attempts import AttemptRow
from boathook.db.database import Connection, Database
from boathook.db.delivery_commands import Key
from boathook.db.endpoints import Endpoint
from boathook.db.secret_box import SecretBox
from boathook.domain import ids
from boathook.domain.due import ANY_DUE
from boathook.domain.errors import AlreadyExists, InvalidState, InvalidTransition, InvalidValue, NotFound
from boathook.domain.model import DEFAULT_ORGANIZATION
from boathook.domain.windows import Cursor, open_window
from boathook.handlers.collector import add_due
from boathook.handlers.outbox import Outbox
from boathook.handlers.platform import EndpointView, MessageView
from boathook.handlers.transaction import Transaction, connection_of
from boathook.service.caller import HOST
from boathook.service.catalogue import dead_letters as actions
from boathook.service.catalogue.operation import Operation
from boathook.service.catalogue.selection import MAX_NAMED, Acted
from boathook.service.fields import check_values
from boathook.service.operating import dead_letters, listings
from boathook.service.operating.listings import DeliveryRow, ListFilter
from boathook.service.sending import applications, attempts, endpoint_secrets, endpoints, event_types, messages
from boathook.service.sending.applications import NewApplication
from boathook.service.sending.endpoints import NewEndpoint
from boathook.service.sending.event_types import NewEventType
from boathook.service.unit_of_work import AppContext, UnitOfWork

Decision = actions.Replay | actions.Ignore
"""The inputs of the operations on dead letters that apps may run."""
_SCHEMA_VERSION: Final = "1"
"""The version of the schemas that apps declare."""


class AppDependencies(Protocol):
    """The dependencies of the operations."""

    settings: Settings
    outbox: Outbox

    async def operations_database(self) -> Database: ...  # noqa: D102
    def secret_box(self) -> SecretBox: ...  # noqa: D102


class AppOperations:
    """A `boathook.handlers.platform.Operations`, in the default organization.

    Args:
        dependencies: the settings, the database and the secret box; opened on first use.
        actor: the actor for the audit.
    """

    def __init__(self, dependencies: AppDependencies, actor: str) -> None:
        self._dependencies = dependencies
        self._actor = actor

    async def deliveries(
        self,
        *,
        source: str | None = None,
        application: str | None = None,
        type: str | None = None,
        recipient: str | None = None,
        state: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        after: str | None = None,
        limit: int = 50,
    ) -> list[DeliveryRow]:
        """Return deliveries, those of the newest events first.

        Raises:
            InvalidValue: *after* is not a delivery id.
        """
        if after is not None:
            _read_delivery(after)
        filters = ListFilter(
            source=source,
            application=application,
            type=type,
            recipient=recipient,
            state=state,
            since=since,
            until=until,
            after=after,
            limit=limit,
        )
        return await listings.list_deliveries(await self._dependencies.operations_database(), filters)

    async def dead_letters(
        self,
        *,
        source: str | None = None,
        type: str | None = None,
        recipient: str | None = None,
        code: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        after: str | None = None,
        limit: int = 50,
    ) -> list[DeliveryRow]:
        """Return dead letters, those of the newest events first. Raises InvalidValue: *after* is not a delivery id."""
        if after is not None:
            _read_delivery(after)
        filters = ListFilter(
            source=source, type=type, recipient=recipient, code=code, since=since, until=until, after=after, limit=limit
        )
        return await listings.list_dead_letters(await self._dependencies.operations_database(), filters)

    async def delivery(self, id: str) -> dict[str, Any]:
        """Return a delivery with its attempts and the events that led to it. Raises NotFound, InvalidValue."""
        key = _read_delivery(id)
        database = await self._dependencies.operations_database()
        detail = await listings.get_delivery(database, key)
        return {
            "delivery": detail.row,
            "attempts": await listings.list_attempts(database, *key),
            "event": detail.event,
            "headers": detail.stored.headers,
            "body": detail.stored.body,
            "chain": detail.chain,
            "first_headers": detail.first and detail.first.headers,
            "first_body": detail.first and detail.first.body,
        }

    async def replay(self, ids: Sequence[str], *, note: str | None = None, first: bool = False) -> list[str]:
        """Make dead letters pending again, or replay their first events; return the ids. Raises InvalidValue."""
        if first:
            return [id for id in dict.fromkeys(ids) if await self._replay_first(_read_delivery(id), note)]
        return await self._decide(actions.replay, actions.Replay, ids, note or "")

    async def _replay_first(self, key: Key, note: str | None) -> bool:
        """Handle the first event of a dead letter's chain again; return whether that is possible."""
        database = await self._dependencies.operations_database()
        async with database.transaction() as connection:
            try:
                await dead_letters.replay_first(self._unit(database, connection), key, note=note or "")
            except (NotFound, InvalidState, InvalidTransition):
                return False
        return True

    async def ignore(self, ids: Sequence[str], *, note: str) -> list[str]:
        """Mark dead letters as ignored; return the ids of those ignored. Raises InvalidValue, also without a note."""
        return await self._decide(actions.ignore, actions.Ignore, ids, note)

    async def _decide(
        self, operation: Operation[Any, Acted], table: type[Decision], ids: Sequence[str], note: str
    ) -> list[str]:
        """Decide about dead letters, in one transaction a batch; return the ids of those that were changed."""
        check_values(table, {"note": note})
        database = await self._dependencies.operations_database()
        decided: list[str] = []
        for names in _batches(ids):
            async with database.transaction() as connection:
                acted = await operation(self._unit(database, connection), table(ids=names, note=note))
            skipped = {each.id for each in acted.skipped}
            decided += [name for name in names if name not in skipped]
        return decided

    async def wake(self, tx: Transaction, event_id: UUID | str) -> int:
        """Make an event's pending deliveries due, and its dead ones pending, when *tx* commits; return their number.

        Wake several events in the order of their ids, so that two transactions cannot deadlock.

        Raises:
            InvalidValue: *event_id* is not an event id.
        """
        # Imported only here, as it imports all provider recipes, which most workers do not need.
        from boathook.service.catalogue import events as event_actions

        event = event_actions.EventNamed(id=ids.show(ids.EVENT, _read_event(event_id)), note="woken")
        return (await event_actions.wake(await self._work(tx), event)).due

    async def put_application(self, tx: Transaction, uid: str, *, name: str) -> str:
        """Create the application with this uid if it does not exist; return its id."""
        work = await self._work(tx)
        stored_application, _ = await applications.get_or_create(work, NewApplication(name=name, uid=uid))
        return stored_application.shown_id

    async def endpoints(self, tx: Transaction, application: str) -> list[EndpointView]:
        """Return an application's endpoints, oldest first; empty if the application does not exist."""
        work = await self._work(tx)
        try:
            owner = await applications.get(work, application)
        except NotFound:
            return []
        window = PageRequest(None, is_ascending=True, limit=endpoints.MAX_ENDPOINTS)
        return [_view(endpoint) for endpoint in await endpoints.list_page(work, owner, window)]

    async def put_endpoint(
        self,
        tx: Transaction,
        application: str,
        uid: str,
        *,
        url: str,
        event_types: Sequence[str] | None = None,
        is_disabled: bool = False,
        description: str = "",
        retry: str | Sequence[float] | None = None,
        timeout_s: float | None = None,
    ) -> EndpointView:
        """Create or update an application's endpoint with this uid.

        Raises:
            InvalidValue: a value is invalid; the message names it.
            NotFound: there is no such application.
            LimitReached: the application has too many endpoints, or they have too many event types.
        """
        work = await self._work(tx)
        new = NewEndpoint(
            url=url,
            uid=uid,
            event_types=event_types,
            is_disabled=is_disabled,
            description=description,
            retry=retry,
            timeout_s=timeout_s,
        )
        endpoint, _ = await endpoints.put(work, await applications.get(work, application), uid, new)
        add_due(tx, ANY_DUE)
        return _view(endpoint)

    async def delete_endpoint(self, tx: Transaction, application: str, uid: str) -> bool:
        """Delete an endpoint; return whether there was one."""
        work = await self._work(tx)
        try:
            await endpoints.delete(work, await applications.get(work, application), uid)
        except NotFound:
            return False
        add_due(tx, ANY_DUE)
        return True

    async def endpoint_secret(self, tx: Transaction, application: str, uid: str) -> str:
        """Return the secret or public key that verifies an endpoint's messages. Raises NotFound, SecretUnreadable."""
        work = await self._work(tx)
        return await endpoint_secrets.get_secret(work, await applications.get(work, application), uid)

    async def attempts(self, tx: Transaction, application: str, uid: str, *, limit: int = 50) -> list[AttemptRow]:
        """Return the latest attempts of an endpoint in the last 90 days, newest first. Raises NotFound."""
        work = await self._work(tx)
        owner = await applications.get(work, application)
        page = await attempts.list_page(work, owner, open_window(datetime.now(UTC)), endpoint=uid, limit=limit)
        return list(page.rows)

    async def messages(
        self,
        tx: Transaction,
        application: str,
        *,
        since: datetime,
        after: str | None = None,
        types: Sequence[str] = (),
        limit: int = 100,
    ) -> list[MessageView]:
        """Return an application's messages since a time, oldest first. Raises NotFound, InvalidValue."""
        work = await self._work(tx)
        owner = await applications.get(work, application)
        cursor = None if after is None else Cursor(_read_event(after), is_back=True)
        # Ids have millisecond precision, so of the first millisecond all are returned: some rather repeat than lack.
        window = open_window(
            datetime.now(UTC), cursor=cursor, after=since.replace(microsecond=since.microsecond // 1_000 * 1_000)
        )
        message_filter = messages.MessageFilter(types=list(types) or None)
        page = await messages.list_page(work, owner, window, message_filter, limit=limit)
        return [
            MessageView(
                id=row.shown_id,
                type=row.type,
                created_at=ids.created_at(row.id),
                payload=None if row.is_gone else row.body,
            )
            for row in reversed(page.rows)
        ]

    async def declare_types(
        self, tx: Transaction, types: Mapping[str, str], schemas: Mapping[str, Mapping[str, Any]] | None = None
    ) -> None:
        """Create the event types that do not exist yet, given as descriptions and schemas by name.

        Raises:
            InvalidValue: a schema is invalid.
        """
        work = await self._work(tx)
        for name, description in sorted(types.items()):
            schema = (schemas or {}).get(name)
            new = NewEventType(description=description, schemas=None if schema is None else {_SCHEMA_VERSION: schema})
            with contextlib.suppress(AlreadyExists):
                await event_types.create(work, name, new)

    async def _work(self, tx: Transaction) -> UnitOfWork:
        """Return a unit of work in the app's transaction."""
        return self._unit(await self._dependencies.operations_database(), connection_of(tx))

    def _unit(self, database: Database, connection: Connection) -> UnitOfWork:
        dependencies = self._dependencies
        app_context = AppContext(dependencies.settings, database, dependencies.secret_box(), dependencies.outbox)
        return UnitOfWork(app_context, connection, DEFAULT_ORGANIZATION, self._actor, HOST)


def _view(endpoint: Endpoint) -> EndpointView:
    assert endpoint.created_at is not None
    assert endpoint.updated_at is not None
    return EndpointView(
        id=endpoint.shown_id,
        uid=endpoint.uid,
        url=endpoint.url,
        event_types=endpoint.event_types,
        is_disabled=endpoint.is_disabled,
        description=endpoint.description,
        created_at=endpoint.created_at,
        updated_at=endpoint.updated_at,
    )


def _read_delivery(text: str) -> Key:
    try:
        return ids.read_delivery(text)
    except ValueError as error:
        raise InvalidValue(str(error), "id") from None


def _read_event(event_id: UUID | str) -> UUID:
    if isinstance(event_id, UUID):
        return event_id
    try:
        return ids.read_event(event_id)
    except ValueError as error:
        raise InvalidValue(str(error), "event_id") from None


def _batches(names: Sequence[str]) -> Iterator[list[str]]:
    """Yield names as `selection.MAX_NAMED` allows. Raises InvalidValue for an invalid id."""
    whole = [ids.show_delivery(*_read_delivery(name)) for name in dict.fromkeys(names)]
    for first in range(0, len(whole), MAX_NAMED):
        yield whole[first : first + MAX_NAMED]
