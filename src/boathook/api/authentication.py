"""Authenticates an API request by its bearer token; the token is read on each request, so revocation is immediate."""

from collections.abc import Mapping

from boathook.api.errors import ApiError
from boathook.service import keys
from boathook.service.authorization import Principal
from boathook.service.unit_of_work import Connection


async def authenticate(connection: Connection, headers: Mapping[str, str]) -> Principal:
    """Return the caller of a request. Raises ApiError 401 without a valid bearer token."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    token = token.strip()
    principal = await keys.find_principal(connection, token) if scheme.lower() == "bearer" and token else None
    if principal is None:
        raise ApiError(401, "authentication_failed", "Invalid token", {"www-authenticate": "Bearer"})
    return principal


def forbidden() -> ApiError:
    """Return the error for a token without the required permission."""
    return ApiError(403, "insufficient access", "this token does not allow it")
