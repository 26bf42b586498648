"""Routes that tell whether the API works; no token is needed."""

from fastapi import Request

from boathook.admin.api.calls import router
from boathook.admin.authorization import Permission, needs
from boathook.admin.desk import Desk

routes = router("Health")


@routes.api_route(
    "/health", methods=["GET"], status_code=204, operation_id="v1.health.get", summary="Check that the API works"
)
@routes.api_route("/health", methods=["HEAD"], status_code=204, include_in_schema=False)
@needs(Permission.PUBLIC)
async def check_health(request: Request) -> None:
    """Answer 204 if the database does, too."""
    desk: Desk = request.app.state.desk
    await desk.database.fetchval("select 1")


@routes.api_route("/health/ping", methods=["GET"], status_code=204, operation_id="v1.health.ping", summary="Ping")
@routes.api_route("/health/ping", methods=["HEAD"], status_code=204, include_in_schema=False)
@needs(Permission.PUBLIC)
async def ping() -> None:
    """Answer 204."""
