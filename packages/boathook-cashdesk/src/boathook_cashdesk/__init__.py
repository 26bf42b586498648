"""A cash-register cabinet that notifies shops and integrators of all changes by webhooks.

The flow: a user's request (`api`, `pages`) is one transaction that changes a row and publishes its event (`actions`,
`ledger`). boathook delivers the event to each of the user's endpoints that subscribe to it (`webhooks`), with the cash
desk's retry schedule, and keeps the record (`records`). A receipt goes to the fiscal drive (`fiscal`) between two such
transactions.
"""

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from boathook_cashdesk import api, fiscal, pages
from boathook_cashdesk.app import hook
from boathook_cashdesk.commands import commands
from boathook_cashdesk.web import MOUNT

__all__ = ["fiscal", "hook"]


async def _refuse(request: Request, error: Exception) -> Response:
    """Respond to a request without a route: with a page to browsers, otherwise like the API."""
    assert isinstance(error, HTTPException)
    is_api = f"{request.url.path}/".startswith(f"{MOUNT}/api/")
    is_page = not is_api and "text/html" in request.headers.get("accept", "")
    return await (pages.show_unknown if is_page else api.refuse_unknown)(request, error)


hook.mount(
    MOUNT,
    Starlette(routes=[*api.routes(), *pages.routes()], exception_handlers={HTTPException: _refuse}),
    is_open=True,
)
hook.commands(commands)
