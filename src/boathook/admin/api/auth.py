"""Who calls: the bearer token, looked up with each request, so that a revoked one is refused at once."""

from collections.abc import Mapping

from boathook.admin.api.errors import ApiError
from boathook.admin.authorization import Principal, principal_of
from boathook.admin.keys import hash_token
from boathook.journal import api_keys
from boathook.journal.database import Connection


async def authenticate(connection: Connection, headers: Mapping[str, str]) -> Principal:
    """Return who calls. Raises ApiError 401 without a valid bearer token."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    token = token.strip()
    key = await api_keys.find(connection, hash_token(token)) if scheme.lower() == "bearer" and token else None
    if key is None:
        raise ApiError(401, "authentication_failed", "Invalid token", {"www-authenticate": "Bearer"})
    return principal_of(key)


def refused() -> ApiError:
    """Return the error for a token that does not allow this."""
    return ApiError(403, "insufficient access", "this token does not allow it")
