"""Authenticates the callers of mounts: by an API key, or by a JSON Web Token of the owner's users."""

import asyncio
import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec

from boathook.api.authentication import forbidden, unauthenticated
from boathook.api.errors import ApiError
from boathook.db.database import Database, translate_errors
from boathook.domain.errors import FetchFailed, TokenRejected
from boathook.domain.model import MountRole
from boathook.domain.redaction import RedactedStruct
from boathook.http.asgi import Message, Receive, Send
from boathook.service.access import keys
from boathook.service.access.authorization import Permission, mount_role_may
from boathook.service.access.keys import PREFIX

if TYPE_CHECKING:
    from boathook.service.access.user_tokens import UserTokens

WAIT_S: Final = 10.0
"""How long a request waits for the database connection that authenticates it."""
FIRST_MESSAGE_S: Final = 5.0
"""How long a WebSocket may be open without a token."""
POLICY_VIOLATION: Final = 1008
TRY_AGAIN_LATER: Final = 1013


class Caller(msgspec.Struct, frozen=True):
    """The holder of a valid token."""

    actor: str
    """The actor for the application's audit."""
    role: MountRole
    valid_for_s: float | None = None
    """Seconds until the token ends; None: it is only known once it has ended."""


class MountAccess:
    """Authenticates the callers of one mount.

    Args:
        path: the mounted path; ``/`` for the root.
        roles: the role of users by the values of their token's claim.
        database: stores the API keys.
        user_tokens: verifies users' tokens; None if none is accepted.
    """

    def __init__(
        self, path: str, roles: Mapping[str, MountRole], database: Database, user_tokens: "UserTokens | None"
    ) -> None:
        self._path = path
        self._roles = roles
        self._database = database
        self._user_tokens = user_tokens

    async def authenticate(self, token: str, permission: Permission) -> Caller:
        """Return the caller with this token.

        Raises:
            ApiError: 401: the token is not valid; 403: it does not grant this permission here; 503: the issuer's keys
                cannot be fetched.
            DatabaseError: the database cannot be reached to check it.
        """
        is_user = self._user_tokens is not None and self._roles and not token.startswith(PREFIX)
        caller = await (self._find_user(token) if is_user else self._find_key_holder(token))
        if not mount_role_may(caller.role, permission):
            raise forbidden()
        return caller

    async def _find_key_holder(self, token: str) -> Caller:
        async with self._database.acquire(WAIT_S) as connection:
            with translate_errors():
                principal = await keys.find_principal(connection, token)
        if principal is None:
            raise unauthenticated()
        if principal.mount not in {None, self._path} or not principal.may(Permission.APP_READ):
            raise forbidden()
        return Caller(principal.actor, principal.mount_role or MountRole.OPERATOR)

    async def _find_user(self, token: str) -> Caller:
        assert self._user_tokens is not None, "only called with users' tokens"
        try:
            user = await self._user_tokens.verify(token)
        except TokenRejected:
            raise unauthenticated() from None
        except FetchFailed:
            raise ApiError(503, "unavailable", "this token cannot be checked now", {"retry-after": "10"}) from None
        granted = {role for group, role in self._roles.items() if group in user.groups}
        if not granted:
            raise forbidden()
        role = MountRole.OPERATOR if MountRole.OPERATOR in granted else MountRole.READER
        return Caller(f"user:{user.subject}", role, user.valid_for_s)


class FirstMessage:
    """The WebSocket of a browser, which can send its token only as its first message.

    It is accepted without the application, which may then only accept or close it. Later messages pass unchanged.

    Args:
        receive: returns the client's messages.
        send: sends messages to the client.
    """

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._is_connect_pending = True

    async def read_token(self) -> str | None:
        """Accept the WebSocket and return its token; None if it was closed.

        A message that is not ``{"token": "..."}`` closes it, as does one that does not arrive within five seconds.
        """
        if (await self._receive())["type"] != "websocket.connect":
            return None
        await self._send({"type": "websocket.accept"})
        try:
            async with asyncio.timeout(FIRST_MESSAGE_S):
                message = await self._receive()
        except TimeoutError:
            await self.close(POLICY_VIOLATION, "no token arrived in time")
            return None
        if message["type"] != "websocket.receive":
            return None
        token = _read_token(message)
        if token is None:
            await self.close(POLICY_VIOLATION, 'the first message must be {"token": "TOKEN"}')
        return token

    async def close(self, code: int, reason: str) -> None:
        """Close the WebSocket."""
        with contextlib.suppress(OSError):
            await self._send({"type": "websocket.close", "code": code, "reason": reason})

    async def receive(self) -> Message:
        """Return the next message for the application."""
        if self._is_connect_pending:
            self._is_connect_pending = False
            return {"type": "websocket.connect"}
        return await self._receive()

    async def send(self, message: dict[str, Any]) -> None:
        """Send a message of the application; its answer to the handshake can no longer change."""
        match message["type"]:
            case "websocket.accept" | "websocket.http.response.body":
                return
            case "websocket.http.response.start":
                await self.close(POLICY_VIOLATION, f"the application refused it with {message['status']}")
            case _:
                await self._send(message)


class _TokenMessage(RedactedStruct, frozen=True, forbid_unknown_fields=True):
    hidden_fields: ClassVar[frozenset[str]] = frozenset({"token"})

    token: str


def _read_token(message: Message) -> str | None:
    try:
        token = msgspec.json.decode(message.get("text") or b"", type=_TokenMessage).token.strip()
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    return token or None
