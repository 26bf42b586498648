"""Authenticates an API request by its bearer token, read on each request so that a revoked one is refused at once."""

from collections.abc import Mapping

from boathook.api.errors import ApiError
from boathook.service import keys
from boathook.service.authorization import Principal
from boathook.service.unit_of_work import Connection


async def authenticate(connection: Connection, headers: Mapping[str, str]) -> Principal:
    """Return who calls. Raises ApiError 401 without a valid bearer token."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    token = token.strip()
    principal = await keys.find_principal(connection, token) if scheme.lower() == "bearer" and token else None
    if principal is None:
        raise ApiError(401, "authentication_failed", "Invalid token", {"www-authenticate": "Bearer"})
    return principal


def forbidden() -> ApiError:
    """Return the error for a token that does not allow this."""
    return ApiError(403, "insufficient access", "this token does not allow it")
