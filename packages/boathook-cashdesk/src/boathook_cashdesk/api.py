"""The cabinet's API: JSON over HTTP, authenticated by a user's token.

A request is one transaction. It is answered after the commit, so a 2xx response means that the change and its events
are committed.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from boathook import BoathookError, Transaction
from boathook_cashdesk import actions, ledger, records, users, webhooks
from boathook_cashdesk.app import hook
from boathook_cashdesk.cabinet_errors import BadField, CabinetError, Unauthenticated
from boathook_cashdesk.entities import Entity, Object
from boathook_cashdesk.forms import (
    DeviceForm,
    EncashmentChange,
    EncashmentForm,
    Form,
    ProductForm,
    ReceiptForm,
    ReplayForm,
    ShiftChange,
    ShiftForm,
    WebhookForm,
    read,
)
from boathook_cashdesk.users import User
from boathook_cashdesk.web import guarded, path_id, read_body, read_number

MAX_ROWS: Final = 200
_MAX_ID: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class ApiCall:
    """A parsed request, in its transaction."""

    tx: Transaction
    user: User
    request: Request
    body: bytes

    @property
    def id(self) -> int:
        """The id in the path."""
        return path_id(self.request)


Reply = tuple[int, Any]
"""A status and the JSON of the body; None for no body."""
Answer = Callable[[ApiCall], Awaitable[Reply]]


def authenticated_endpoint(answer: Answer) -> Callable[[Request], Awaitable[Response]]:
    """Return *answer* as an endpoint for authenticated users; its work is committed before the response."""

    async def endpoint(request: Request) -> Response:
        try:
            body = await read_body(request)
            async with hook.transaction() as tx:
                status, document = await answer(ApiCall(tx, await _user(tx, request), request, body))
        except CabinetError as refusal:
            return _refuse(refusal)
        except BoathookError as error:
            # Refusals are the cabinet's own errors; a BoathookError here means that it is unavailable.
            hook.log.warning("request_failed", path=request.url.path, exc_info=error)
            words = {"error": {"code": "unavailable", "message": "the cabinet cannot do this now; try again"}}
            return guarded(JSONResponse(words, 503, {"retry-after": "2"}))
        return guarded(Response(status_code=status) if document is None else JSONResponse(document, status))

    return endpoint


async def _user(tx: Transaction, request: Request) -> User:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    user = await users.find_by_token(tx, token.strip()) if scheme.lower() == "bearer" else None
    if user is None:
        raise Unauthenticated("send your cabinet's token: Authorization: Bearer TOKEN")
    return user


def _refuse(refusal: CabinetError) -> Response:
    headers = {"www-authenticate": "Bearer"} if isinstance(refusal, Unauthenticated) else None
    return guarded(JSONResponse(refusal.show(), refusal.status, headers))


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """The operations on objects of one kind; None for those not supported."""

    entity: Entity
    remove: Callable[[Transaction, User, int], Awaitable[Object]]
    form: type[Form] | None = None
    add: Callable[[Transaction, User, Any], Awaitable[Object]] | None = None
    created: int = 201
    """The status for a new object; 202 if the work is only started."""
    change_form: type[Form] | None = None
    change: Callable[[Transaction, User, int, Any], Awaitable[Object]] | None = None


RESOURCES: Final = (
    Resource(
        entity=Entity.PRODUCTS,
        form=ProductForm,
        add=actions.add_product,
        change_form=ProductForm,
        change=actions.change_product,
        remove=actions.remove_product,
    ),
    Resource(
        entity=Entity.DEVICES,
        form=DeviceForm,
        add=actions.register_device,
        change_form=DeviceForm,
        change=actions.change_device,
        remove=actions.remove_device,
    ),
    Resource(
        entity=Entity.SHIFTS,
        form=ShiftForm,
        add=actions.open_shift,
        change_form=ShiftChange,
        change=actions.change_shift,
        remove=actions.remove_shift,
    ),
    Resource(
        entity=Entity.ENCASHMENTS,
        form=EncashmentForm,
        add=actions.add_encashment,
        change_form=EncashmentChange,
        change=actions.change_encashment,
        remove=actions.remove_encashment,
    ),
    Resource(
        entity=Entity.RECEIPTS,
        form=ReceiptForm,
        add=actions.add_receipt,
        created=202,
        remove=actions.remove_receipt,
    ),
    Resource(entity=Entity.OPERATIONS, remove=actions.remove_operation),
)


def at(path: str, **answers: Answer | None) -> Route:
    """Return the route of a path below the API's, with an answer for each method that is not None."""
    endpoints = {method: authenticated_endpoint(answer) for method, answer in answers.items() if answer is not None}

    async def endpoint(request: Request) -> Response:
        return await endpoints["GET" if request.method == "HEAD" else request.method](request)

    return Route(f"/api/{path}", endpoint, methods=list(endpoints))


def _routes_of(resource: Resource) -> list[Route]:
    """Return the routes of one kind of objects."""
    entity = resource.entity

    async def list_some(asked: ApiCall) -> Reply:
        after = read_number(asked.request, "after", usual=0, maximum=_MAX_ID)
        return 200, {"data": await ledger.page(asked.tx, asked.user, entity, after, _limit(asked))}

    async def get(asked: ApiCall) -> Reply:
        return 200, await ledger.get(asked.tx, asked.user, entity, asked.id)

    async def remove(asked: ApiCall) -> Reply:
        await resource.remove(asked.tx, asked.user, asked.id)
        return 204, None

    put, patch = _changes(resource)
    return [
        at(entity, GET=list_some, POST=resource.add and _creation(resource)),
        at(f"{entity}/{{id:cashdesk_id}}", GET=get, PUT=put, PATCH=patch, DELETE=remove),
    ]


def _creation(resource: Resource) -> Answer:
    async def create(asked: ApiCall) -> Reply:
        assert resource.form is not None
        assert resource.add is not None
        made = await resource.add(asked.tx, asked.user, read(resource.form, asked.body))
        return resource.created, made

    return create


def _changes(resource: Resource) -> tuple[Answer | None, Answer | None]:
    """Return the answers to PUT, which has all fields, and PATCH, which has only changed fields."""
    form, change = resource.change_form, resource.change
    if form is None or change is None:
        return None, None

    async def put(asked: ApiCall) -> Reply:
        return 200, await change(asked.tx, asked.user, asked.id, read(form, asked.body))

    async def patch(asked: ApiCall) -> Reply:
        now = await ledger.get(asked.tx, asked.user, resource.entity, asked.id, "for update")
        known = {field: now[field] for field in form.model_fields}
        return 200, await change(asked.tx, asked.user, asked.id, read(form, known | _object(asked.body)))

    return put, patch


def _object(body: bytes) -> dict[str, Any]:
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise BadField("", "the body is not JSON") from None
    if not isinstance(document, dict):
        raise BadField("", "the body is not a JSON object")
    return document


def _limit(asked: ApiCall) -> int:
    return max(1, read_number(asked.request, "limit", usual=50, maximum=MAX_ROWS))


async def _show_user(asked: ApiCall) -> Reply:
    return 200, {"id": asked.user.id, "name": asked.user.name}


async def _close_shift(asked: ApiCall) -> Reply:
    return 200, await actions.close_shift(asked.tx, asked.user, asked.id)


async def _list_webhooks(asked: ApiCall) -> Reply:
    return 200, {"data": [webhook.show() for webhook in await webhooks.list_all(asked.tx, asked.user)]}


async def _add_webhook(asked: ApiCall) -> Reply:
    return 201, (await webhooks.create(asked.tx, asked.user, _webhook_form(asked.body))).show()


async def _get_webhook(asked: ApiCall) -> Reply:
    return 200, (await webhooks.get(asked.tx, asked.user, asked.id)).show()


async def _put_webhook(asked: ApiCall) -> Reply:
    return 200, (await webhooks.change(asked.tx, asked.user, asked.id, _webhook_form(asked.body))).show()


async def _patch_webhook(asked: ApiCall) -> Reply:
    """Change the fields in the body; in ``types``, too, only the given kinds change."""
    await users.lock(asked.tx, asked.user)
    now = await webhooks.get(asked.tx, asked.user, asked.id)
    form = _webhook_form(asked.body, now)
    return 200, (await webhooks.change(asked.tx, asked.user, asked.id, form)).show()


def _webhook_form(body: bytes, now: webhooks.Webhook | None = None) -> WebhookForm:
    """Parse a webhook's fields, which may be within ``fields``; those that are missing are those of *now*.

    Raises:
        BadField: a field is invalid, or there are others next to ``fields``.
    """
    document, place = _object(body), ""
    if "fields" in document:
        place = "fields"
        if len(document) > 1 or not isinstance(document[place], dict):
            raise BadField(place, "it is an object with all fields, and there is nothing next to it")
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
    except BadField as error:
        raise error.within(place) from None


async def _remove_webhook(asked: ApiCall) -> Reply:
    await webhooks.remove(asked.tx, asked.user, asked.id)
    return 204, None


async def _show_secret(asked: ApiCall) -> Reply:
    return 200, {"secret": await webhooks.secret(asked.tx, asked.user, asked.id)}


async def _test_webhook(asked: ApiCall) -> Reply:
    await webhooks.test(asked.tx, asked.user, asked.id)
    return 202, {"sent": True}


async def _list_attempts(asked: ApiCall) -> Reply:
    return 200, {"data": await records.attempts(asked.tx, asked.user, asked.id, _limit(asked))}


async def _list_deliveries(asked: ApiCall) -> Reply:
    state = asked.request.query_params.get("state")
    if state is not None and state not in records.STATES:
        raise BadField("state", f"write one of {', '.join(records.STATES)}")
    return 200, {"data": await records.deliveries(asked.tx, asked.user, asked.id, state, _limit(asked))}


async def _get_delivery(asked: ApiCall) -> Reply:
    return 200, await records.delivery(asked.tx, asked.user, asked.id, asked.request.path_params["delivery"])


async def _replay(asked: ApiCall) -> Reply:
    wanted = read(ReplayForm, asked.body).delivery
    return 200, {"replayed": await records.replay(asked.tx, asked.user, asked.id, wanted)}


def routes() -> list[Route]:
    """Return all routes of the API."""
    return [
        at("me", GET=_show_user),
        *(route for resource in RESOURCES for route in _routes_of(resource)),
        at("shifts/{id:cashdesk_id}/close", POST=_close_shift),
        at("webhooks", GET=_list_webhooks, POST=_add_webhook),
        at(
            "webhooks/{id:cashdesk_id}",
            GET=_get_webhook,
            PUT=_put_webhook,
            PATCH=_patch_webhook,
            DELETE=_remove_webhook,
        ),
        at("webhooks/{id:cashdesk_id}/secret", GET=_show_secret),
        at("webhooks/{id:cashdesk_id}/test", POST=_test_webhook),
        at("webhooks/{id:cashdesk_id}/attempts", GET=_list_attempts),
        at("webhooks/{id:cashdesk_id}/deliveries", GET=_list_deliveries),
        at("webhooks/{id:cashdesk_id}/deliveries/{delivery}", GET=_get_delivery),
        at("webhooks/{id:cashdesk_id}/replay", POST=_replay),
    ]


async def refuse_unknown(_request: Request, error: HTTPException) -> Response:
    """Respond to a request without a route, in the API's format."""
    words = {"error": {"code": "not_found" if error.status_code == 404 else "refused", "message": error.detail}}
    return guarded(JSONResponse(words, error.status_code, error.headers))
