"""Authenticates an API request by its bearer token; the token is read on each request, so revocation is immediate.

Only publishing with an API key may use a local copy of the keys, while PostgreSQL is unavailable.
"""

from collections.abc import Mapping

from boathook.api.errors import ApiError
from boathook.service.access import keys, operator_tokens
from boathook.service.access.authorization import ApiCaller, Principal
from boathook.service.sending.buffered_publisher import BufferedPublisher
from boathook.service.unit_of_work import Connection


async def authenticate(connection: Connection, headers: Mapping[str, str], client: str) -> ApiCaller:
    """Return the caller of a request.

    Args:
        connection: reads the token.
        headers: the request's headers.
        client: the client's address.

    Raises:
        ApiError: 401: the request has no valid bearer token.
        RateLimited: its address has sent too many wrong operators' tokens, or its token too many requests.
    """
    token = read_bearer_token(headers)
    caller: ApiCaller | None
    if token.startswith(operator_tokens.PREFIX):
        caller = await operator_tokens.authenticate(connection, token, client)
    else:
        caller = await keys.find_principal(connection, token)
    if caller is None:
        raise unauthenticated()
    return caller


async def authenticate_buffered(buffered: BufferedPublisher, headers: Mapping[str, str]) -> Principal:
    """Return the caller of a request without PostgreSQL.

    Raises:
        ApiError: 401: the request has no bearer token.
        AccessUnknown: its token cannot be checked, as no operators' token can be.
    """
    return await buffered.find_principal(read_bearer_token(headers))


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
