"""The cabinet's pages: a user's webhooks with the record of their requests."""

from typing import Any, Final

from starlette.responses import Response

from boathook.languages import gettext_noop
from boathook.pages import PageRequest, Refusal
from boathook_cashdesk import records, users, webhooks
from boathook_cashdesk.app import gettext, hook, pages
from boathook_cashdesk.entities import Entity, types_of
from boathook_cashdesk.forms import ReplayForm, WebhookForm, read

_SHOWN: Final = 25
"""Attempts and dropped deliveries on a page."""
_WEBHOOK: Final = "/webhooks/{id:id}"

pages.nav("/", gettext_noop("Webhooks"))


@pages.values
def _values() -> dict[str, Any]:
    return {"is_simulated": hook.settings.drive.is_simulated, "names": {kind: gettext(NAMES[kind]) for kind in Entity}}


NAMES: Final = {
    Entity.PRODUCTS: gettext_noop("products"),
    Entity.RECEIPTS: gettext_noop("receipts"),
    Entity.SHIFTS: gettext_noop("shifts"),
    Entity.ENCASHMENTS: gettext_noop("encashments"),
    Entity.DEVICES: gettext_noop("devices"),
    Entity.OPERATIONS: gettext_noop("operations"),
}


@pages.get("/")
async def list_webhooks(request: PageRequest) -> Response:
    """Show the webhooks."""
    return request.page("list.html", webhooks=await webhooks.list_all(request.tx, request.user))


@pages.get("/webhooks/new")
async def show_new(request: PageRequest) -> Response:
    """Show an empty form."""
    return request.page("edit.html", webhook=None, address="", types=types_of(0), active=True, error="")


@pages.post("/webhooks/new")
async def create(request: PageRequest) -> Response:
    """Create a webhook."""
    try:
        async with request.tx.savepoint():
            webhook = await webhooks.create(request.tx, request.user, _read(request))
    except Refusal as refusal:
        return _again(request, refusal, None)
    return request.redirect(f"/webhooks/{webhook.id}", gettext("The webhook was created."))


@pages.get(_WEBHOOK)
async def show(request: PageRequest, secret: str | None = None) -> Response:
    """Show a webhook with its requests and dropped deliveries."""
    webhook = await webhooks.get(request.tx, request.user, request.path["id"])
    attempts = await records.attempts(request.tx, request.user, webhook.id, _SHOWN)
    dropped = await records.deliveries(request.tx, request.user, webhook.id, "dead", _SHOWN)
    form: dict[str, Any] = {"address": webhook.url, "types": webhook.wanted, "active": webhook.is_active, "error": ""}
    return request.page("webhook.html", webhook=webhook, attempts=attempts, dropped=dropped, secret=secret, **form)


@pages.post(_WEBHOOK)
async def save(request: PageRequest) -> Response:
    """Change a webhook."""
    webhook = await webhooks.get(request.tx, request.user, request.path["id"])
    try:
        async with request.tx.savepoint():
            await webhooks.change(request.tx, request.user, webhook.id, _read(request))
    except Refusal as refusal:
        return _again(request, refusal, webhook)
    return request.redirect(f"/webhooks/{webhook.id}", gettext("The changes were saved."))


def _again(request: PageRequest, refusal: Refusal, webhook: webhooks.Webhook | None) -> Response:
    """Show the form again with its values and the error."""
    form: dict[str, Any] = {
        "address": request.field("url"),
        "types": _types(request),
        "active": "active" in request.form,
    }
    return request.page("edit.html", refusal.status, webhook=webhook, error=str(refusal), **form)


def _read(request: PageRequest) -> WebhookForm:
    fields = {"url": request.field("url"), "types": _types(request), "isActive": "active" in request.form}
    return read(WebhookForm, fields)


def _types(request: PageRequest) -> dict[str, bool]:
    return {entity.value: entity in request.form for entity in Entity}


@pages.post(_WEBHOOK + "/active")
async def activate(request: PageRequest) -> Response:
    """Activate or deactivate a webhook."""
    await users.lock(request.tx, request.user)
    webhook = await webhooks.get(request.tx, request.user, request.path["id"])
    fields = webhook.show() | {"isActive": request.field("active") == "yes"}
    form = read(WebhookForm, {name: fields[name] for name in ("url", "types", "isActive")})
    await webhooks.change(request.tx, request.user, webhook.id, form)
    return request.redirect("/", gettext("The changes were saved."))


@pages.get(_WEBHOOK + "/delete")
async def ask_to_delete(request: PageRequest) -> Response:
    """Ask whether to delete a webhook."""
    return request.page("delete.html", webhook=await webhooks.get(request.tx, request.user, request.path["id"]))


@pages.post(_WEBHOOK + "/delete")
async def delete(request: PageRequest) -> Response:
    """Delete a webhook."""
    await webhooks.remove(request.tx, request.user, request.path["id"])
    return request.redirect("/", gettext("The webhook was deleted."))


@pages.post(_WEBHOOK + "/test")
async def test(request: PageRequest) -> Response:
    """Send a test event."""
    await webhooks.test(request.tx, request.user, request.path["id"])
    notice = gettext("A test event is on its way; look at the record below.")
    return request.redirect(f"/webhooks/{request.path['id']}", notice)


@pages.post(_WEBHOOK + "/secret")
async def show_secret(request: PageRequest) -> Response:
    """Show a webhook with its secret."""
    return await show(request, await webhooks.secret(request.tx, request.user, request.path["id"]))


@pages.post(_WEBHOOK + "/replay")
async def replay(request: PageRequest) -> Response:
    """Send a dropped delivery again."""
    delivery = read(ReplayForm, {"delivery": request.field("delivery")}).delivery
    is_replayed = await records.replay(request.tx, request.user, request.path["id"], delivery)
    path = f"/webhooks/{request.path['id']}"
    if is_replayed:
        return request.redirect(path, gettext("It is being sent again."))
    return request.redirect(path, gettext("That was not dropped, so it is not sent again."), kind="bad")
