"""Authenticates an API request by its bearer token; the token is read on each request, so revocation is immediate.

Only publishing may use a local copy of the keys, while PostgreSQL is unavailable.
"""

from collections.abc import Mapping

from boathook.api.errors import ApiError
from boathook.service.access import keys
from boathook.service.access.access_copy import AccessCopy
from boathook.service.access.authorization import Principal
from boathook.service.unit_of_work import Connection


async def authenticate(connection: Connection, headers: Mapping[str, str]) -> Principal:
    """Return the caller of a request. Raises ApiError 401 without a valid bearer token."""
    principal = await keys.find_principal(connection, read_bearer_token(headers))
    if principal is None:
        raise unauthenticated()
    return principal


async def authenticate_by_copy(access: AccessCopy, headers: Mapping[str, str]) -> Principal:
    """Return the caller of a request by the local copy of the keys.

    Raises:
        ApiError: 401: the request has no bearer token.
        AccessUnknown: the copy cannot decide about its token.
    """
    return await access.find_principal(read_bearer_token(headers))


def read_bearer_token(headers: Mapping[str, str]) -> str:
    """Return the bearer token of a request. Raises ApiError 401 if it has none."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token:
        raise unauthenticated()
    return token


def unauthenticated() -> ApiError:
    """Return the error for a request without a valid token."""
    return ApiError(401, "authentication_failed", "Invalid token", {"www-authenticate": "Bearer"})


def forbidden() -> ApiError:
    """Return the error for a token without the required permission."""
    return ApiError(403, "insufficient access", "this token does not allow it")
