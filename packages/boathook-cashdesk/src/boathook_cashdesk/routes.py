"""The cabinet's API, its event catalogue, and the mount of both with the pages."""

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from boathook_cashdesk import actions, catalogue, ledger
from boathook_cashdesk.app import api, gettext, hook, pages
from boathook_cashdesk.entities import Entity
from boathook_cashdesk.forms import Form, read
from boathook_pages import ApiRequest

_MAX_ID: Final = 2**63 - 1

Reply = tuple[int, Any]


def _add_objects(entity: Entity) -> None:
    """Add the paths for one kind of objects."""
    rules = actions.RULES[entity]

    async def list_some(request: ApiRequest) -> Reply:
        after = request.number("after", 0, _MAX_ID)
        return 200, {"data": await ledger.page(request.tx, request.user, entity, after, request.limit())}

    async def create(request: ApiRequest) -> Reply:
        added = await actions.add(request.tx, request.user, entity, read(_sure(rules.form), request.body))
        return 202 if entity is Entity.RECEIPTS else 201, added

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
api.add("/shifts/{id:id}/close", POST=_close_shift)
pages.mount(routes=[*api.routes(), Route("/events/{version}/openapi.json", _show_catalogue)])
