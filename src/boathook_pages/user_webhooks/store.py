"""Manages users' webhooks: each is a row here and a boathook endpoint, changed together."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from boathook.db.included_migrations import check_included
from boathook.domain.errors import ApplicationNotFound, BoathookError, InvalidValue, NotFound
from boathook.handlers.api import Boathook
from boathook.handlers.transaction import Transaction, connection_of
from boathook_pages.app_users import UserTables, lock
from boathook_pages.kit.errors import BadField, Conflict, LimitReached, Missing
from boathook_pages.kit.forms import read_model
from boathook_pages.languages import Languages
from boathook_pages.user_webhooks import table
from boathook_pages.user_webhooks.forms import make_form

STATES: Final = ("pending", "leased", "succeeded", "dead", "ignored")
"""The states that can be selected; a delivery dropped after its last attempt is ``dead``."""
KEPT: Final = timedelta(days=90)
"""How far back events can be listed."""
_DELIVERY_FIELDS: Final = ("id", "type", "state", "attempts", "due_at", "code", "note", "ended_at")
_TRY_FIELDS: Final = ("number", "outcome", "code", "error", "started_at", "ended_at")


class Kind(msgspec.Struct, frozen=True):
    """A group of event types that webhooks select together."""

    title: str
    """Its name on pages, marked by `gettext_noop`."""
    pattern: str
    """Matches its event types, such as ``products.*``."""
    types: tuple[str, ...]
    """Its event types."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """A webhook's row, with the state of its endpoint."""

    id: int
    url: str
    types: int
    """One bit for each kind, in their order."""
    wanted: Mapping[str, bool]
    """The selected kinds."""
    is_active: bool
    endpoint: str | None
    """The id of its endpoint, ``ep_...``; None if an operator has deleted it, until the webhook is saved."""
    is_sending: bool
    """Whether its endpoint is enabled. boathook disables an endpoint that responds 410, or fails for days."""
    created_at: datetime
    updated_at: datetime

    def show(self) -> dict[str, Any]:
        """Return it as an API response."""
        return {
            "id": self.id,
            "url": self.url,
            "types": self.wanted,
            "isActive": self.is_active,
            "active": self.is_active,
            "sending": self.is_sending,
            "created_at": self.created_at,
            "updated_at": self.updated_at,
        }


class UserWebhooks:
    """The webhooks of an app's users.

    A user has the attributes ``id``, ``name`` and ``application``, the uid of the application that the user's events
    are published to. The table is that of the line ``-- include: webhooks 1`` in a migration.

    Args:
        hook: The app.
        languages: The languages of messages.
        kinds: The kinds of events by their names in the API, at most 60; a new one is added at the end.
        test_payload: Returns the payload of a test event for the webhook with this id.
        prefix: The prefix of the tables' names.
        limit: Returns how many webhooks a user may have.
        retry: The retry schedule of the endpoints, by name or in seconds.
        timeout_s: Within how many seconds a receiver must respond.
        never: Names that may stand among the kinds in the API, but cannot be selected.

    Raises:
        ConfigError: no migration of the app includes the table.
    """

    def __init__(
        self,
        hook: Boathook,
        languages: Languages,
        *,
        kinds: Mapping[str, Kind],
        test_payload: Callable[[int], Mapping[str, Any]],
        prefix: str = "",
        limit: Callable[[], int] = lambda: 20,
        retry: str | Sequence[float] | None = None,
        timeout_s: float | None = None,
        never: Sequence[str] = (),
    ) -> None:
        self.hook = hook
        self.languages = languages
        self.kinds = dict(kinds)
        self.form = make_form(kinds, never)
        self._tables = UserTables(hook.name, prefix)
        self._test_payload = test_payload
        self._limit = limit
        self.retry = retry
        self.timeout_s = timeout_s
        check_included(hook.name, hook.manifest.migrations, "webhooks", 1, prefix)

    def read(self, document: bytes | Mapping[str, Any]) -> Any:
        """Validate the fields of a webhook (``url``, ``types``, ``isActive``), and return them. Raises InvalidForm."""
        return read_model(self.form, document, self.languages)

    def mask_of(self, types: Mapping[str, bool]) -> int:
        """Return the bits of the selected kinds; missing kinds are not selected."""
        return sum(1 << place for place, kind in enumerate(self.kinds) if types.get(kind))

    def types_of(self, mask: int) -> dict[str, bool]:
        """Return for every kind whether its bit is set."""
        return {kind: bool(mask >> place & 1) for place, kind in enumerate(self.kinds)}

    def patterns_of(self, mask: int) -> list[str]:
        """Return the patterns that match the events of the kinds whose bits are set, and no others."""
        return [self.kinds[kind].pattern for kind, is_wanted in self.types_of(mask).items() if is_wanted]

    async def list_all(self, tx: Transaction, user: Any) -> list[Webhook]:
        """Return the user's webhooks, oldest first."""
        rows = await table.list_page(connection_of(tx), self._tables, user.id)
        endpoints = await self._endpoints(tx, user)
        return [self._webhook(row, endpoints) for row in rows]

    async def list_of_all(self, tx: Transaction) -> list[dict[str, Any]]:
        """Return the webhooks of all users, each with its user's id and name, oldest first."""
        return [dict(row) for row in await table.list_all(connection_of(tx), self._tables)]

    async def get(self, tx: Transaction, user: Any, id: int) -> Webhook:
        """Return a webhook of the user. Raises Missing."""
        row = await table.find(connection_of(tx), self._tables, user.id, id)
        if row is None:
            raise self._missing(id)
        return self._webhook(row, await self._endpoints(tx, user))

    async def create(self, tx: Transaction, user: Any, form: Any) -> Webhook:
        """Create a webhook with its endpoint.

        Raises:
            LimitReached: the user has reached the limit.
            BadField: requests to its URL are not allowed.
        """
        await self.lock(tx, user)
        count = await table.count(connection_of(tx), self._tables, user.id)
        if count >= self._limit():
            text = self.languages.gettext("You have %(count)s webhooks, the maximum; delete one first.", count=count)
            raise LimitReached(text)
        mask = self._mask(form)
        id = await table.insert(connection_of(tx), self._tables, user.id, form.url, mask, is_active=form.is_active)
        await self.put_endpoint(tx, user, id, form)
        return await self.get(tx, user, id)

    async def change(self, tx: Transaction, user: Any, id: int, form: Any) -> Webhook:
        """Change a webhook and its endpoint. Raises Missing, and BadField like `create`."""
        mask = self._mask(form)
        if not await table.update(
            connection_of(tx), self._tables, user.id, id, form.url, mask, is_active=form.is_active
        ):
            raise self._missing(id)
        await self.put_endpoint(tx, user, id, form)
        return await self.get(tx, user, id)

    async def remove(self, tx: Transaction, user: Any, id: int) -> None:
        """Delete a webhook and its endpoint; pending deliveries are not sent. Raises Missing."""
        await self.lock(tx, user)
        if not await table.delete(connection_of(tx), self._tables, user.id, id):
            raise self._missing(id)
        await self.hook.operations.delete_endpoint(tx, user.application, _uid(id))

    async def lock(self, tx: Transaction, user: Any) -> None:
        """Make concurrent calls for this user wait until the transaction ends."""
        await lock(connection_of(tx), self._tables, user.id)

    async def secret(self, tx: Transaction, user: Any, id: int) -> str:
        """Return the signing secret of a webhook. Raises Missing, and Conflict if its endpoint is gone."""
        webhook = await self.get(tx, user, id)
        try:
            return await self.hook.operations.endpoint_secret(tx, user.application, _uid(webhook.id))
        except NotFound:
            text = self.languages.gettext("This webhook has no secret; save it to generate one.")
            raise Conflict(text) from None

    async def test(self, tx: Transaction, user: Any, id: int) -> None:
        """Send a test event to one webhook only. Raises Missing, and Conflict if it is not sending."""
        webhook = await self.get(tx, user, id)
        if not webhook.is_sending:
            raise Conflict(
                self.languages.gettext(
                    "Nothing is sent to this webhook; activate it, and choose at least one type, first."
                )
            )
        await self.publish(tx, user, f"{_test_type(id)}.TEST", self._test_payload(id))

    async def publish(self, tx: Transaction, user: Any, type: str, payload: Mapping[str, Any]) -> None:
        """Publish an event to the user's application; create it again if an operator has deleted it."""
        try:
            await self.hook.publish(tx, application=user.application, type=type, payload=payload)
        except ApplicationNotFound:
            # The transaction goes on: the name was looked up, and nothing failed in PostgreSQL.
            await self.hook.operations.put_application(tx, user.application, name=user.name)
            await self.hook.publish(tx, application=user.application, type=type, payload=payload)

    async def put_endpoint(self, tx: Transaction, user: Any, id: int, form: Any) -> None:
        """Make the endpoint of a webhook's row as *form* says. Raises BadField: requests to its URL are not allowed."""
        mask = self._mask(form)
        # An operator may have deleted the application; saving a webhook restores it.
        await self.hook.operations.put_application(tx, user.application, name=user.name)
        try:
            await self.hook.operations.put_endpoint(
                tx,
                user.application,
                _uid(id),
                url=form.url,
                # An empty list would select every type; a webhook without types is disabled.
                event_types=[*self.patterns_of(mask), f"{_test_type(id)}.*"],
                is_disabled=not (form.is_active and mask),
                retry=self.retry,
                timeout_s=self.timeout_s,
            )
        except InvalidValue as error:
            # Of all these values only the URL is the user's choice.
            raise BadField("url", str(error)) from None

    async def attempts(self, tx: Transaction, user: Any, id: int, limit: int) -> list[dict[str, Any]]:
        """Return the latest requests to a webhook with their responses, newest first. Raises Missing."""
        webhook = await self.get(tx, user, id)
        try:
            rows = await self.hook.operations.attempts(tx, user.application, _uid(webhook.id), limit=limit)
        except NotFound:
            return []
        return [
            {
                "message": row.message.shown_id,
                "type": row.message.type,
                "url": row.url,
                "success": row.is_success,
                "status": row.status or None,
                "started_at": row.started_at,
                "duration_ms": row.duration_ms,
                "error": row.error,
                "response": _text(row.response),
            }
            for row in rows
        ]

    async def deliveries(
        self, tx: Transaction, user: Any, id: int, state: str | None, limit: int
    ) -> list[dict[str, Any]]:
        """Return the deliveries to a webhook in any state, newest first. Raises Missing."""
        recipient = _recipient(await self.get(tx, user, id))
        rows = await self.hook.operations.deliveries(recipient=recipient, state=state, limit=limit)
        return [_fields(row, _DELIVERY_FIELDS) for row in rows]

    async def delivery(self, tx: Transaction, user: Any, id: int, name: str) -> dict[str, Any]:
        """Return one delivery with the sent body and all its attempts. Raises Missing."""
        detail = await self._own_delivery(tx, user, id, name)
        tries = [_fields(row, _TRY_FIELDS) for row in detail["attempts"]]
        return _fields(detail["delivery"], _DELIVERY_FIELDS) | {"body": _text(detail["body"]), "tries": tries}

    async def replay(self, tx: Transaction, user: Any, id: int, name: str) -> bool:
        """Replay a dropped delivery; return whether it was dropped. Raises Missing."""
        await self._own_delivery(tx, user, id, name)
        note = f"requested by user {user.id} of {self.hook.name}"
        return bool(await self.hook.operations.replay([name], note=note))

    async def events(
        self, tx: Transaction, user: Any, *, since: datetime, after: str | None, kinds: Sequence[str], limit: int
    ) -> list[Any]:
        """Return the user's events since a time, oldest first, as `hook.operations.messages` does. Raises BadField."""
        types = [type for kind in kinds for type in self.kinds[kind].types]
        try:
            return list(
                await self.hook.operations.messages(
                    tx, user.application, since=since, after=after, types=types, limit=limit
                )
            )
        except NotFound:
            return []
        except InvalidValue:
            text = self.languages.gettext("write the id of the last event of the page before")
            raise BadField("after", text) from None

    async def _own_delivery(self, tx: Transaction, user: Any, id: int, name: str) -> dict[str, Any]:
        """Return a delivery if it belongs to this webhook."""
        webhook = await self.get(tx, user, id)
        try:
            detail = await self.hook.operations.delivery(name)
        except BoathookError as error:
            if not isinstance(error, NotFound | InvalidValue):
                raise
            detail = None
        if detail is None or detail["delivery"].recipient != _recipient(webhook):
            text = self.languages.gettext("Your webhook %(id)s has no delivery %(name)s.", id=id, name=name)
            raise Missing(text)
        return detail

    def _mask(self, form: Any) -> int:
        return self.mask_of({kind: getattr(form.types, kind) for kind in self.kinds})

    async def _endpoints(self, tx: Transaction, user: Any) -> Mapping[str | None, Any]:
        return {view.uid: view for view in await self.hook.operations.endpoints(tx, user.application)}

    def _webhook(self, row: Any, endpoints: Mapping[str | None, Any]) -> Webhook:
        endpoint = endpoints.get(_uid(row["id"]))
        return Webhook(
            id=row["id"],
            url=row["url"],
            types=row["types"],
            wanted=self.types_of(row["types"]),
            is_active=row["is_active"],
            endpoint=None if endpoint is None else endpoint.id,
            is_sending=endpoint is not None and not endpoint.is_disabled,
            created_at=row["created_at"],
            updated_at=row["updated_at"],
        )

    def _missing(self, id: int) -> Missing:
        return Missing(self.languages.gettext("You have no webhook with the id %(id)s.", id=id))


def _uid(id: int) -> str:
    """Return the uid of a webhook's endpoint."""
    return f"webhook-{id}"


def _test_type(id: int) -> str:
    """Return the type prefix of events for this webhook only."""
    return f"test.webhook-{id}"


def _recipient(webhook: Webhook) -> str:
    return f"endpoint:{webhook.endpoint}"


def _fields(row: Any, names: Sequence[str]) -> dict[str, Any]:
    return {name: getattr(row, name) for name in names}


def _text(body: bytes | None) -> str | None:
    return None if body is None else body.decode("utf-8", "replace")
