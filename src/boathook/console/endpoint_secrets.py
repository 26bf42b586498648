"""What an endpoint holds sealed, on pages: shown to those who may see it, with a note of who looked, and rotated."""

from datetime import timedelta
from typing import Final

from starlette.responses import Response

from boathook.console.application_pages import ApplicationScope, Pages
from boathook.domain.errors import InvalidValue
from boathook.service import endpoint_secrets, endpoints
from boathook.service.applications import Application
from boathook.service.authorization import Permission
from boathook.service.endpoints import Endpoint
from boathook.service.unit_of_work import UnitOfWork

pages = Pages()

GRACE_PERIODS: Final = (("0", "0 seconds"), ("3600", "one hour"), ("86400", "one day"), ("604800", "one week"))
"""How long a former secret may sign along: seconds, and how a form says it."""


@pages.post("/endpoints/{endpoint}/secret", Permission.ENDPOINT_SECRET_VIEW)
async def reveal_secret(scope: ApplicationScope) -> Response:
    """Show what the receiver verifies with; who looked is noted."""
    async with scope.work() as (work, application):
        endpoint = await _get(scope, work, application)
        secret = await endpoint_secrets.reveal_secret(work, application, endpoint.shown_id)
    return scope.page("endpoints/secret.html", application=application, endpoint=endpoint, secret=secret)


@pages.post("/endpoints/{endpoint}/headers", Permission.ENDPOINT_HEADERS_VIEW)
async def reveal_headers(scope: ApplicationScope) -> Response:
    """Show the headers sent with each message, but those that prove who sends; who looked is noted."""
    async with scope.work() as (work, application):
        endpoint = await _get(scope, work, application)
        headers = await endpoint_secrets.reveal_headers(work, application, endpoint.shown_id)
    return scope.page("endpoints/headers.html", application=application, endpoint=endpoint, headers=headers)


@pages.post("/endpoints/{endpoint}/rotate", Permission.ENDPOINT_SECRET_ROTATE)
async def rotate_secret(scope: ApplicationScope) -> Response:
    """Give an endpoint another secret; the present one signs along for a while."""
    grace = scope.field("grace")
    if grace not in dict(GRACE_PERIODS):
        raise InvalidValue(f"choose one of {', '.join(dict(GRACE_PERIODS))} seconds", "grace")
    async with scope.work() as (work, application):
        endpoint = await _get(scope, work, application)
        await endpoint_secrets.rotate_secret(work, application, endpoint.shown_id, grace=timedelta(seconds=int(grace)))
    along = "" if grace == "0" else f" The old secret stays valid for {dict(GRACE_PERIODS)[grace]}."
    return scope.to(f"/endpoints/{endpoint.shown_id}", f"Secret rotated.{along}")


async def _get(scope: ApplicationScope, work: UnitOfWork, application: Application) -> Endpoint:
    return await endpoints.get(work, application, scope.context.path["endpoint"])
