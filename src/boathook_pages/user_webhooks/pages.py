"""The pages of users' webhooks: the list, a form, and the record of requests."""

from typing import Any, Final

from starlette.responses import Response

from boathook_pages.kit.errors import Refusal
from boathook_pages.kit.forms import read_model
from boathook_pages.kit.request import PageRequest
from boathook_pages.kit.site import Pages
from boathook_pages.user_webhooks.forms import ReplayForm
from boathook_pages.user_webhooks.store import UserWebhooks, Webhook

_SHOWN: Final = 25
"""Attempts and dropped deliveries on a page."""


def add_pages(webhooks: UserWebhooks, pages: Pages, path: str = "/webhooks") -> None:
    """Add the pages below a path of the mount; the list of webhooks is also the first page of the mount."""
    own = _Pages(webhooks, path)
    webhook = path + "/{id:id}"
    pages.get("/")(own.list_all)
    pages.get(f"{path}/new")(own.show_new)
    pages.post(f"{path}/new")(own.create)
    pages.get(webhook)(own.show)
    pages.post(webhook)(own.save)
    pages.post(f"{webhook}/active")(own.activate)
    pages.get(f"{webhook}/delete")(own.ask_to_delete)
    pages.post(f"{webhook}/delete")(own.delete)
    pages.post(f"{webhook}/test")(own.test)
    pages.post(f"{webhook}/secret")(own.show_secret)
    pages.post(f"{webhook}/replay")(own.replay)


class _Pages:
    """The pages and the handlers of their forms."""

    def __init__(self, webhooks: UserWebhooks, path: str) -> None:
        self._webhooks = webhooks
        self._path = path
        self._gettext = webhooks.languages.gettext

    def _page(self, request: PageRequest, template: str, status: int = 200, **values: Any) -> Response:
        names = {name: self._gettext(kind.title) for name, kind in self._webhooks.kinds.items()}
        return request.page(f"boathook/webhooks/{template}", status, names=names, base=self._path, **values)

    def _to(self, request: PageRequest, id: int, notice: str, kind: str = "good") -> Response:
        return request.redirect(f"{self._path}/{id}", notice, kind)

    async def list_all(self, request: PageRequest) -> Response:
        return self._page(request, "list.html", webhooks=await self._webhooks.list_all(request.tx, request.user))

    async def show_new(self, request: PageRequest) -> Response:
        values: dict[str, Any] = {"address": "", "types": self._webhooks.types_of(0), "active": True, "error": ""}
        return self._page(request, "edit.html", webhook=None, **values)

    async def create(self, request: PageRequest) -> Response:
        try:
            async with request.tx.savepoint():
                webhook = await self._webhooks.create(request.tx, request.user, self._read(request))
        except Refusal as refusal:
            return self._again(request, refusal, None)
        return self._to(request, webhook.id, self._gettext("The webhook was created."))

    async def show(self, request: PageRequest, secret: str | None = None) -> Response:
        """Show a webhook with its requests and dropped deliveries."""
        webhook = await self._webhooks.get(request.tx, request.user, request.path["id"])
        values: dict[str, Any] = {
            "attempts": await self._webhooks.attempts(request.tx, request.user, webhook.id, _SHOWN),
            "dropped": await self._webhooks.deliveries(request.tx, request.user, webhook.id, "dead", _SHOWN),
            "address": webhook.url,
            "types": webhook.wanted,
            "active": webhook.is_active,
        }
        return self._page(request, "webhook.html", webhook=webhook, secret=secret, error="", **values)

    async def save(self, request: PageRequest) -> Response:
        webhook = await self._webhooks.get(request.tx, request.user, request.path["id"])
        try:
            async with request.tx.savepoint():
                await self._webhooks.change(request.tx, request.user, webhook.id, self._read(request))
        except Refusal as refusal:
            return self._again(request, refusal, webhook)
        return self._to(request, webhook.id, self._gettext("The changes were saved."))

    def _again(self, request: PageRequest, refusal: Refusal, webhook: Webhook | None) -> Response:
        """Show the form again with its values and the error."""
        values: dict[str, Any] = {"types": self._types(request), "active": "active" in request.form}
        address, error = request.field("url"), str(refusal)
        return self._page(request, "edit.html", refusal.status, webhook=webhook, address=address, error=error, **values)

    def _read(self, request: PageRequest) -> Any:
        is_active = "active" in request.form
        return self._webhooks.read({"url": request.field("url"), "types": self._types(request), "isActive": is_active})

    def _types(self, request: PageRequest) -> dict[str, bool]:
        return {kind: kind in request.form for kind in self._webhooks.kinds}

    async def activate(self, request: PageRequest) -> Response:
        await self._webhooks.lock(request.tx, request.user)
        now = await self._webhooks.get(request.tx, request.user, request.path["id"])
        is_active = request.field("active") == "yes"
        form = self._webhooks.read({"url": now.url, "types": now.wanted, "isActive": is_active})
        await self._webhooks.change(request.tx, request.user, now.id, form)
        return request.redirect("/", self._gettext("The changes were saved."))

    async def ask_to_delete(self, request: PageRequest) -> Response:
        webhook = await self._webhooks.get(request.tx, request.user, request.path["id"])
        return self._page(request, "delete.html", webhook=webhook)

    async def delete(self, request: PageRequest) -> Response:
        await self._webhooks.remove(request.tx, request.user, request.path["id"])
        return request.redirect("/", self._gettext("The webhook was deleted."))

    async def test(self, request: PageRequest) -> Response:
        await self._webhooks.test(request.tx, request.user, request.path["id"])
        notice = self._gettext("A test event is on its way; look at the record below.")
        return self._to(request, request.path["id"], notice)

    async def show_secret(self, request: PageRequest) -> Response:
        secret = await self._webhooks.secret(request.tx, request.user, request.path["id"])
        return await self.show(request, secret)

    async def replay(self, request: PageRequest) -> Response:
        fields = {"delivery": request.field("delivery")}
        delivery = read_model(ReplayForm, fields, self._webhooks.languages).delivery
        if await self._webhooks.replay(request.tx, request.user, request.path["id"], delivery):
            return self._to(request, request.path["id"], self._gettext("It is being sent again."))
        notice = self._gettext("That was not dropped, so it is not sent again.")
        return self._to(request, request.path["id"], notice, kind="bad")
