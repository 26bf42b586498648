"""What an endpoint holds sealed, on pages: shown to those who may see it, with a note of who looked, and rotated."""

from datetime import timedelta
from typing import Final

from starlette.responses import Response

from boathook.admin import endpoint_secrets, endpoints
from boathook.admin.authorization import Permission
from boathook.admin.console.application_visits import Pages, Side
from boathook.admin.desk import Work
from boathook.domain.errors import InvalidValue
from boathook.journal.applications import Application
from boathook.journal.endpoints import Endpoint

pages = Pages()

GRACES: Final = (("0", "not at all"), ("3600", "one hour"), ("86400", "one day"), ("604800", "one week"))
"""How long a former secret may sign along: seconds, and how a form says it."""


@pages.post("/endpoints/{endpoint}/secret", Permission.ENDPOINT_SECRET_VIEW)
async def reveal_secret(side: Side) -> Response:
    """Show what the receiver verifies with; who looked is noted."""
    async with side.work() as (work, application):
        endpoint = await _get(side, work, application)
        secret = await endpoint_secrets.reveal_secret(work, application, endpoint.shown_id)
    return side.page("endpoints/secret.html", application=application, endpoint=endpoint, secret=secret)


@pages.post("/endpoints/{endpoint}/headers", Permission.ENDPOINT_HEADERS_VIEW)
async def reveal_headers(side: Side) -> Response:
    """Show the headers sent with each message, but those that prove who sends; who looked is noted."""
    async with side.work() as (work, application):
        endpoint = await _get(side, work, application)
        headers = await endpoint_secrets.reveal_headers(work, application, endpoint.shown_id)
    return side.page("endpoints/headers.html", application=application, endpoint=endpoint, headers=headers)


@pages.post("/endpoints/{endpoint}/rotate", Permission.ENDPOINT_SECRET_ROTATE)
async def rotate_secret(side: Side) -> Response:
    """Give an endpoint another secret; the present one signs along for a while."""
    grace = side.field("grace")
    if grace not in dict(GRACES):
        raise InvalidValue(f"write one of {', '.join(dict(GRACES))} seconds", "grace")
    async with side.work() as (work, application):
        endpoint = await _get(side, work, application)
        await endpoint_secrets.rotate_secret(work, application, endpoint.shown_id, grace=timedelta(seconds=int(grace)))
    along = "" if grace == "0" else f" The former one signs along for {dict(GRACES)[grace]}."
    return side.to(f"/endpoints/{endpoint.shown_id}", f"It has another secret.{along}")


async def _get(side: Side, work: Work, application: Application) -> Endpoint:
    return await endpoints.get(work, application, side.visit.path["endpoint"])
