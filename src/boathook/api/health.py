"""Routes that tell whether the API works; no token is needed."""

from fastapi import Request

from boathook.api.route import router
from boathook.service.authorization import Permission, requires
from boathook.service.unit_of_work import AppContext

routes = router("Health")


@routes.api_route(
    "/health", methods=["GET"], status_code=204, operation_id="v1.health.get", summary="Check that the API works"
)
@routes.api_route("/health", methods=["HEAD"], status_code=204, include_in_schema=False)
@requires(Permission.PUBLIC)
async def check_health(request: Request) -> None:
    """Answer 204 if the database does, too."""
    app_context: AppContext = request.app.state.app_context
    await app_context.ping()


@routes.api_route("/health/ping", methods=["GET"], status_code=204, operation_id="v1.health.ping", summary="Ping")
@routes.api_route("/health/ping", methods=["HEAD"], status_code=204, include_in_schema=False)
@requires(Permission.PUBLIC)
async def ping() -> None:
    """Answer 204."""
