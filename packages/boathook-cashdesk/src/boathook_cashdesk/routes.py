"""The cabinet's API, its event catalogue, and the mount of both with the pages."""

from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from boathook.pages import ApiRequest, InvalidForm
from boathook_cashdesk import actions, catalogue, ledger, records, users, webhooks
from boathook_cashdesk.app import api, gettext, hook, pages
from boathook_cashdesk.cabinet_errors import BadField
from boathook_cashdesk.entities import Action, Entity, event_type
from boathook_cashdesk.forms import Form, ReplayForm, WebhookForm, read

MAX_ROWS: Final = 200
_MAX_ID: Final = 2**63 - 1
_LATEST_COMMIT: Final = timedelta(minutes=2)
"""Events of this time may still appear before others that were already listed."""

Reply = tuple[int, Any]


def _limit(request: ApiRequest) -> int:
    return max(1, request.number("limit", 50, MAX_ROWS))


def _add_objects(entity: Entity) -> None:
    """Add the paths for one kind of objects."""
    rules = actions.RULES[entity]

    async def list_some(request: ApiRequest) -> Reply:
        after = request.number("after", 0, _MAX_ID)
        return 200, {"data": await ledger.page(request.tx, request.user, entity, after, _limit(request))}

    async def create(request: ApiRequest) -> Reply:
        made = await actions.add(request.tx, request.user, entity, read(_sure(rules.form), request.body))
        return 202 if entity is Entity.RECEIPTS else 201, made

    async def get(request: ApiRequest) -> Reply:
        return 200, await ledger.get(request.tx, request.user, entity, request.path["id"])

    async def put(request: ApiRequest) -> Reply:
        form = read(_sure(rules.change_form), request.body)
        return 200, await actions.change(request.tx, request.user, entity, request.path["id"], form)

    async def patch(request: ApiRequest) -> Reply:
        now = await ledger.get(request.tx, request.user, entity, request.path["id"], "for update")
        change_form = _sure(rules.change_form)
        form = read(change_form, {field: now[field] for field in change_form.model_fields} | request.document())
        return 200, await actions.change(request.tx, request.user, entity, request.path["id"], form)

    async def remove(request: ApiRequest) -> Reply:
        await actions.remove(request.tx, request.user, entity, request.path["id"])
        return 204, None

    changes = {"PUT": put, "PATCH": patch} if rules.change_form else {}
    api.add(f"/{entity}", GET=list_some, POST=create if rules.form else None)
    api.add(f"/{entity}/{{id:id}}", GET=get, DELETE=remove, **changes)


def _sure(form: type[Form] | None) -> type[Form]:
    assert form is not None, "there is a route only for a form"
    return form


async def _show_user(request: ApiRequest) -> Reply:
    return 200, {"id": request.user.id, "name": request.user.name}


async def _close_shift(request: ApiRequest) -> Reply:
    return 200, await actions.close_shift(request.tx, request.user, request.path["id"])


async def _list_webhooks(request: ApiRequest) -> Reply:
    return 200, {"data": [webhook.show() for webhook in await webhooks.list_all(request.tx, request.user)]}


async def _add_webhook(request: ApiRequest) -> Reply:
    return 201, (await webhooks.create(request.tx, request.user, _webhook_form(request))).show()


async def _get_webhook(request: ApiRequest) -> Reply:
    return 200, (await webhooks.get(request.tx, request.user, request.path["id"])).show()


async def _put_webhook(request: ApiRequest) -> Reply:
    webhook = await webhooks.change(request.tx, request.user, request.path["id"], _webhook_form(request))
    return 200, webhook.show()


async def _patch_webhook(request: ApiRequest) -> Reply:
    """Change the fields in the body; in ``types``, too, only the given kinds change."""
    await users.lock(request.tx, request.user)
    now = await webhooks.get(request.tx, request.user, request.path["id"])
    form = _webhook_form(request, now)
    return 200, (await webhooks.change(request.tx, request.user, request.path["id"], form)).show()


def _webhook_form(request: ApiRequest, now: webhooks.Webhook | None = None) -> WebhookForm:
    """Parse a webhook's fields, which may be within ``fields``; those that are missing are those of *now*.

    Raises:
        InvalidForm: a field is invalid, or there are others next to ``fields``.
    """
    document, place = request.document(), ""
    if "fields" in document:
        place = "fields"
        if len(document) > 1 or not isinstance(document[place], dict):
            raise BadField(place, gettext("it is an object with all fields, and there is nothing next to it"))
        document = document[place]
    if now is not None:
        types = {entity.value: is_wanted for entity, is_wanted in now.wanted.items()}
        if isinstance(document.get("types"), dict):
            document["types"] = types | document["types"]
        document = {"url": now.url, "types": types} | document
        if "active" not in document:
            document.setdefault("isActive", now.is_active)
    try:
        return read(WebhookForm, document)
    except InvalidForm as error:
        raise error.within(place) from None


async def _remove_webhook(request: ApiRequest) -> Reply:
    await webhooks.remove(request.tx, request.user, request.path["id"])
    return 204, None


async def _show_secret(request: ApiRequest) -> Reply:
    return 200, {"secret": await webhooks.secret(request.tx, request.user, request.path["id"])}


async def _test_webhook(request: ApiRequest) -> Reply:
    await webhooks.test(request.tx, request.user, request.path["id"])
    return 202, {"sent": True}


async def _list_attempts(request: ApiRequest) -> Reply:
    rows = await records.attempts(request.tx, request.user, request.path["id"], _limit(request))
    return 200, {"data": rows}


async def _list_deliveries(request: ApiRequest) -> Reply:
    state = request.query("state")
    if state is not None and state not in records.STATES:
        raise BadField("state", gettext("write one of: %(expected)s", expected=", ".join(records.STATES)))
    rows = await records.deliveries(request.tx, request.user, request.path["id"], state, _limit(request))
    return 200, {"data": rows}


async def _get_delivery(request: ApiRequest) -> Reply:
    return 200, await records.delivery(request.tx, request.user, request.path["id"], request.path["delivery"])


async def _replay(request: ApiRequest) -> Reply:
    delivery = read(ReplayForm, request.body).delivery
    return 200, {"replayed": await records.replay(request.tx, request.user, request.path["id"], delivery)}


async def _list_events(request: ApiRequest) -> Reply:
    """Return the user's events since a time, with the ids and bodies of the webhooks, oldest first.

    ``next`` leads to the next page. On the last one, ``until`` is the time from which to ask the next time.
    """
    now = datetime.now(UTC)
    rows = await records.events(
        request.tx, request.user, _since(request, now), request.query("after"), _kinds(request), _limit(request)
    )
    events = [{"id": row.id, "type": row.type, "createdAt": row.created_at, "body": _raw(row.payload)} for row in rows]
    return 200, {"data": events, "next": rows[-1].id if rows else None, "until": now - _LATEST_COMMIT}


def _raw(payload: bytes | None) -> msgspec.Raw | None:
    return None if payload is None else msgspec.Raw(payload)


def _since(request: ApiRequest, now: datetime) -> datetime:
    # In a query, an unescaped plus sign of a zone is a space.
    text = (request.query("since") or "").replace(" ", "+")
    try:
        since = datetime.fromisoformat(text)
    except ValueError:
        since = None
    if since is None or since.tzinfo is None:
        raise BadField("since", gettext("write a time with a zone, such as 2027-01-31T12:00:00Z"))
    if since < now - records.KEPT:
        raise BadField("since", gettext("events are kept for %(days)s days", days=records.KEPT.days))
    return since


def _kinds(request: ApiRequest) -> list[str]:
    """Return the event types of the kinds in ``?types=products,receipts``; of all kinds without it."""
    text = request.query("types")
    kinds = [*Entity] if text is None else text.split(",")
    if unknown := [kind for kind in kinds if kind not in set(Entity)]:
        expected = gettext("write some of: %(expected)s", expected=", ".join(Entity))
        raise BadField("types", f"{unknown[0]!r}: {expected}")
    return [event_type(Entity(kind), action) for kind in kinds for action in Action]


async def _show_catalogue(request: Request) -> Response:
    """Serve the catalogue of events as an OpenAPI document; it needs no token."""
    version = request.path_params["version"]
    if version != catalogue.VERSION:
        text = gettext("There is only version %(version)s of the events.", version=catalogue.VERSION)
        return JSONResponse({"error": {"code": "not_found", "message": text}}, 404)
    return JSONResponse(catalogue.openapi(hook.settings.format))


for _entity in Entity:
    _add_objects(_entity)
api.add("/me", GET=_show_user)
api.add("/events", GET=_list_events)
api.add("/shifts/{id:id}/close", POST=_close_shift)
api.add("/webhooks", GET=_list_webhooks, POST=_add_webhook)
api.add("/webhooks/{id:id}", GET=_get_webhook, PUT=_put_webhook, PATCH=_patch_webhook, DELETE=_remove_webhook)
api.add("/webhooks/{id:id}/secret", GET=_show_secret)
api.add("/webhooks/{id:id}/test", POST=_test_webhook)
api.add("/webhooks/{id:id}/attempts", GET=_list_attempts)
api.add("/webhooks/{id:id}/deliveries", GET=_list_deliveries)
api.add("/webhooks/{id:id}/deliveries/{delivery}", GET=_get_delivery)
api.add("/webhooks/{id:id}/replay", POST=_replay)
pages.mount(routes=[*api.routes(), Route("/events/{version}/openapi.json", _show_catalogue)])
