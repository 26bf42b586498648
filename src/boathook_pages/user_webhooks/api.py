"""The routes of users' webhooks in an app's API: ``/webhooks`` and ``/events``."""

from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from boathook_pages.kit.api import ApiRequest, JsonApi, Reply
from boathook_pages.kit.errors import BadField, InvalidForm
from boathook_pages.kit.forms import read_model
from boathook_pages.user_webhooks.forms import ReplayForm
from boathook_pages.user_webhooks.store import KEPT, STATES, UserWebhooks, Webhook

_LATEST_COMMIT: Final = timedelta(minutes=2)
"""Events of this time may still appear before others that were already listed."""


def add_routes(webhooks: UserWebhooks, api: JsonApi) -> None:
    """Add the routes to an API."""
    routes = _Routes(webhooks)
    webhook = "/webhooks/{id:id}"
    api.add("/events", GET=routes.list_events)
    api.add("/webhooks", GET=routes.list_all, POST=routes.create)
    api.add(webhook, GET=routes.get, PUT=routes.put, PATCH=routes.patch, DELETE=routes.remove)
    api.add(f"{webhook}/secret", GET=routes.show_secret)
    api.add(f"{webhook}/test", POST=routes.test)
    api.add(f"{webhook}/attempts", GET=routes.list_attempts)
    api.add(f"{webhook}/deliveries", GET=routes.list_deliveries)
    api.add(f"{webhook}/deliveries/{{delivery}}", GET=routes.get_delivery)
    api.add(f"{webhook}/replay", POST=routes.replay)


class _Routes:
    """The answers to requests."""

    def __init__(self, webhooks: UserWebhooks) -> None:
        self._webhooks = webhooks
        self._gettext = webhooks.languages.gettext

    async def list_all(self, request: ApiRequest) -> Reply:
        return 200, {"data": [webhook.show() for webhook in await self._webhooks.list_all(request.tx, request.user)]}

    async def create(self, request: ApiRequest) -> Reply:
        return 201, (await self._webhooks.create(request.tx, request.user, self._read(request))).show()

    async def get(self, request: ApiRequest) -> Reply:
        return 200, (await self._webhooks.get(request.tx, request.user, request.path["id"])).show()

    async def put(self, request: ApiRequest) -> Reply:
        form = self._read(request)
        return 200, (await self._webhooks.change(request.tx, request.user, request.path["id"], form)).show()

    async def patch(self, request: ApiRequest) -> Reply:
        """Change the fields in the body; in ``types``, too, only the given kinds change."""
        await self._webhooks.lock(request.tx, request.user)
        now = await self._webhooks.get(request.tx, request.user, request.path["id"])
        form = self._read(request, now)
        return 200, (await self._webhooks.change(request.tx, request.user, now.id, form)).show()

    def _read(self, request: ApiRequest, now: Webhook | None = None) -> Any:
        """Parse a webhook's fields, which may be within ``fields``; those that are missing are those of *now*.

        Raises:
            InvalidForm: a field is invalid, or there are others next to ``fields``.
        """
        document, place = request.document(), ""
        if "fields" in document:
            place = "fields"
            if len(document) > 1 or not isinstance(document[place], dict):
                text = self._gettext("it is an object with all fields, and there is nothing next to it")
                raise BadField(place, text)
            document = document[place]
        if now is not None:
            if isinstance(document.get("types"), dict):
                document["types"] = {**now.wanted, **document["types"]}
            document = {"url": now.url, "types": now.wanted} | document
            if "active" not in document:
                document.setdefault("isActive", now.is_active)
        try:
            return self._webhooks.read(document)
        except InvalidForm as error:
            raise error.within(place) from None

    async def remove(self, request: ApiRequest) -> Reply:
        await self._webhooks.remove(request.tx, request.user, request.path["id"])
        return 204, None

    async def show_secret(self, request: ApiRequest) -> Reply:
        return 200, {"secret": await self._webhooks.secret(request.tx, request.user, request.path["id"])}

    async def test(self, request: ApiRequest) -> Reply:
        await self._webhooks.test(request.tx, request.user, request.path["id"])
        return 202, {"sent": True}

    async def list_attempts(self, request: ApiRequest) -> Reply:
        rows = await self._webhooks.attempts(request.tx, request.user, request.path["id"], request.limit())
        return 200, {"data": rows}

    async def list_deliveries(self, request: ApiRequest) -> Reply:
        state = request.query("state")
        if state is not None and state not in STATES:
            raise BadField("state", self._gettext("write one of: %(expected)s", expected=", ".join(STATES)))
        rows = await self._webhooks.deliveries(request.tx, request.user, request.path["id"], state, request.limit())
        return 200, {"data": rows}

    async def get_delivery(self, request: ApiRequest) -> Reply:
        delivery = request.path["delivery"]
        return 200, await self._webhooks.delivery(request.tx, request.user, request.path["id"], delivery)

    async def replay(self, request: ApiRequest) -> Reply:
        delivery = read_model(ReplayForm, request.body, self._webhooks.languages).delivery
        replayed = await self._webhooks.replay(request.tx, request.user, request.path["id"], delivery)
        return 200, {"replayed": replayed}

    async def list_events(self, request: ApiRequest) -> Reply:
        """Return the user's events since a time, with the ids and bodies of the webhooks, oldest first.

        ``next`` leads to the next page. On the last one, ``until`` is the time from which to ask the next time.
        """
        now = datetime.now(UTC)
        rows = await self._webhooks.events(
            request.tx,
            request.user,
            since=self._since(request, now),
            after=request.query("after"),
            kinds=self._kinds(request),
            limit=request.limit(),
        )
        events = [
            {"id": row.id, "type": row.type, "createdAt": row.created_at, "body": _raw(row.payload)} for row in rows
        ]
        return 200, {"data": events, "next": rows[-1].id if rows else None, "until": now - _LATEST_COMMIT}

    def _since(self, request: ApiRequest, now: datetime) -> datetime:
        # In a query, an unescaped plus sign of a zone is a space.
        text = (request.query("since") or "").replace(" ", "+")
        try:
            since = datetime.fromisoformat(text)
        except ValueError:
            since = None
        if since is None or since.tzinfo is None:
            text = self._gettext("write a time with a zone, such as 2027-01-31T12:00:00Z")
            raise BadField("since", text)
        if since < now - KEPT:
            raise BadField("since", self._gettext("events are kept for %(days)s days", days=KEPT.days))
        return since

    def _kinds(self, request: ApiRequest) -> list[str]:
        """Return the kinds in ``?types=products,receipts``; all kinds without it. Raises BadField."""
        text = request.query("types")
        kinds = [*self._webhooks.kinds] if text is None else text.split(",")
        if unknown := [kind for kind in kinds if kind not in self._webhooks.kinds]:
            expected = self._gettext("write some of: %(expected)s", expected=", ".join(self._webhooks.kinds))
            raise BadField("types", f"{unknown[0]!r}: {expected}")
        return kinds


def _raw(payload: bytes | None) -> msgspec.Raw | None:
    return None if payload is None else msgspec.Raw(payload)
