"""Manages users' webhooks: each is a row here and a boathook endpoint, changed together."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from boathook import BoathookError, Transaction
from boathook_cashdesk import users, wire
from boathook_cashdesk.app import User, gettext, hook
from boathook_cashdesk.cabinet_errors import BadField, Conflict, LimitReached, Missing
from boathook_cashdesk.entities import Entity, mask_of, patterns_of, types_of
from boathook_cashdesk.forms import WebhookForm

RETRY: Final = "cashdesk"
"""The name of boathook's retry schedule of exactly 5 s, 1 min, 1 h, 3 h and 24 h."""
TIMEOUT_S: Final = 20.0
"""Seconds within which a receiver must respond with a 2xx."""

_MAX_ID: Final = 2**63 - 1
_COLUMNS: Final = "w.id, w.url, w.types, w.is_active, w.created_at, w.updated_at"


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """A webhook's row, with the state of its endpoint."""

    id: int
    url: str
    types: int
    """One bit for each kind of objects, see `entities`."""
    is_active: bool
    endpoint: str | None
    """The id of its endpoint, ``ep_...``; None if an operator has deleted it, until the webhook is saved."""
    is_sending: bool
    """Whether its endpoint is enabled. boathook disables an endpoint that responds 410, or fails for days."""
    created_at: datetime
    updated_at: datetime

    @property
    def uid(self) -> str:
        """The uid of its endpoint."""
        return _uid(self.id)

    @property
    def wanted(self) -> dict[Entity, bool]:
        """The selected kinds of objects."""
        return types_of(self.types)

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


async def list_all(tx: Transaction, user: User) -> list[Webhook]:
    """Return the user's webhooks, oldest first."""
    rows = await tx.fetch(
        f"select {_COLUMNS} from cashdesk.webhooks w where w.user_id = $1 order by w.id",  # noqa: S608 a constant
        user.id,
    )
    endpoints = await _endpoints(tx, user)
    return [_webhook(row, endpoints) for row in rows]


async def list_of_all(tx: Transaction) -> list[dict[str, Any]]:
    """Return the webhooks of all users, each with its user's id and name, oldest first."""
    rows = await tx.fetch(
        "select w.id, u.id as user_id, u.name, w.url, w.types, w.is_active as active, w.created_at"
        " from cashdesk.webhooks w join cashdesk.users u on u.id = w.user_id order by w.id"
    )
    return [dict(row) for row in rows]


async def get(tx: Transaction, user: User, id: int) -> Webhook:
    """Return a webhook of the user. Raises Missing."""
    row = await tx.fetchrow(
        f"select {_COLUMNS} from cashdesk.webhooks w where w.user_id = $1 and w.id = $2",  # noqa: S608 a constant
        user.id, min(id, _MAX_ID),
    )  # fmt: skip
    if row is None:
        raise _missing(id)
    return _webhook(row, await _endpoints(tx, user))


async def create(tx: Transaction, user: User, form: WebhookForm) -> Webhook:
    """Create a webhook with its endpoint.

    Raises:
        LimitReached: the user has reached the limit.
        BadField: requests to its URL are not allowed.
    """
    await users.lock(tx, user)
    count = await tx.fetchval("select count(*) from cashdesk.webhooks where user_id = $1", user.id)
    if count >= hook.settings.max_webhooks:
        raise LimitReached(gettext("You have %(count)s webhooks, the maximum; delete one first.", count=count))
    id = await tx.fetchval(
        "insert into cashdesk.webhooks (user_id, url, types, is_active) values ($1, $2, $3, $4) returning id",
        user.id, form.url, mask_of(form.types.wanted()), form.is_active,
    )  # fmt: skip
    await put_endpoint(tx, user, id, form)
    return await get(tx, user, id)


async def change(tx: Transaction, user: User, id: int, form: WebhookForm) -> Webhook:
    """Change a webhook and its endpoint. Raises Missing, and BadField like `create`."""
    tag = await tx.execute(
        "update cashdesk.webhooks set url = $3, types = $4, is_active = $5, updated_at = now()"
        " where user_id = $1 and id = $2",
        user.id, min(id, _MAX_ID), form.url, mask_of(form.types.wanted()), form.is_active,
    )  # fmt: skip
    if tag != "UPDATE 1":
        raise _missing(id)
    await put_endpoint(tx, user, id, form)
    return await get(tx, user, id)


async def remove(tx: Transaction, user: User, id: int) -> None:
    """Delete a webhook and its endpoint; pending deliveries are not sent. Raises Missing."""
    await users.lock(tx, user)
    tag = await tx.execute("delete from cashdesk.webhooks where user_id = $1 and id = $2", user.id, min(id, _MAX_ID))
    if tag != "DELETE 1":
        raise _missing(id)
    await hook.operations.delete_endpoint(tx, user.application, _uid(id))


async def secret(tx: Transaction, user: User, id: int) -> str:
    """Return the signing secret of a webhook. Raises Missing, and Conflict if its endpoint is gone."""
    webhook = await get(tx, user, id)
    try:
        return await hook.operations.endpoint_secret(tx, user.application, webhook.uid)
    except BoathookError as error:
        if error.name != "NotFound":
            raise
        raise Conflict(gettext("This webhook has no secret; save it to generate one.")) from None


async def test(tx: Transaction, user: User, id: int) -> None:
    """Send a test event to one webhook only. Raises Missing, and Conflict if it is not sending."""
    webhook = await get(tx, user, id)
    if not webhook.is_sending:
        raise Conflict(gettext("Nothing is sent to this webhook; activate it, and choose at least one type, first."))
    await users.publish(tx, user, f"{_test_type(id)}.TEST", wire.test_body(hook.settings.format, id))


async def put_endpoint(tx: Transaction, user: User, id: int, form: WebhookForm) -> None:
    """Make the endpoint of a webhook's row as *form* says. Raises BadField: requests to its URL are not allowed."""
    mask = mask_of(form.types.wanted())
    # An operator may have deleted the application; saving a webhook restores it.
    await hook.operations.put_application(tx, user.application, name=user.name)
    try:
        await hook.operations.put_endpoint(
            tx,
            user.application,
            _uid(id),
            url=form.url,
            # An empty list would select every type; a webhook without types is disabled.
            event_types=[*patterns_of(mask), f"{_test_type(id)}.*"],
            is_disabled=not (form.is_active and mask),
            retry=RETRY,
            timeout_s=TIMEOUT_S,
        )
    except BoathookError as error:
        # Of all these values only the URL is the user's choice.
        if error.name != "InvalidValue":
            raise
        raise BadField("url", str(error)) from None


async def _endpoints(tx: Transaction, user: User) -> Mapping[str | None, Any]:
    return {view.uid: view for view in await hook.operations.endpoints(tx, user.application)}


def _webhook(row: Any, endpoints: Mapping[str | None, Any]) -> Webhook:
    endpoint = endpoints.get(_uid(row["id"]))
    if endpoint is None:
        return Webhook(**dict(row), endpoint=None, is_sending=False)
    return Webhook(**dict(row), endpoint=endpoint.id, is_sending=not endpoint.is_disabled)


def _missing(id: int) -> Missing:
    return Missing(gettext("You have no webhook with the id %(id)s.", id=id))


def _uid(id: int) -> str:
    return f"webhook-{id}"


def _test_type(id: int) -> str:
    """Return the type prefix of events for this webhook only."""
    return f"test.webhook-{id}"
