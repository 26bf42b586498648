"""Publishes messages of concurrent API requests by group commit; see `boathook.db.group_commit`.

Each message is stored completely, with all its deliveries, or not at all. Its request is answered after the commit.
Exceptional cases are left to `messages.create`, in a separate transaction: a message that exists already, changed
routes, a revoked token, or a key locked by another transaction.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from boathook.db.group_commit import GroupCommit
from boathook.db.message_group import GroupRolledBack, MessageTarget, NewMessageRow, insert_group
from boathook.db.route_registry import read_routing
from boathook.domain.due import due_recipients
from boathook.domain.messages import Message
from boathook.handlers.outbox import CompiledRoutes, Draft
from boathook.observability.failpoints import failpoint
from boathook.observability.log import get_logger
from boathook.service.access import keys
from boathook.service.access.authorization import Principal
from boathook.service.sending.message_store import to_event
from boathook.service.unit_of_work import AppContext

_MAX_COMMITTERS: Final = 2
_MAX_MESSAGES: Final = 128
DELIVERY_WEIGHT: Final = 1_024
"""What a delivery weighs in a commit, where a byte of a body weighs 1."""
_MAX_WEIGHT: Final = 4_194_304
"""Limit for one commit; a single message may exceed it."""
_MAX_WAITING: Final = 4_096
_TOKEN_AGE_S: Final = 1.0
"""How long a token is cached. Each commit checks it again, so a revoked token stores nothing meanwhile."""
_MAX_TOKENS: Final = 10_000
_LOG = get_logger("api")


class KnownToken(msgspec.Struct, frozen=True):
    """A valid token of a whole organization."""

    sha256: bytes
    principal: Principal
    known_until: float


class PreparedMessage(msgspec.Struct, eq=False):
    """A message with its deliveries."""

    draft: Draft
    row: NewMessageRow


class GroupPublisher:
    """Publishes messages for the API in groups; each request waits for its own message.

    Args:
        app_context: the database and the routes.
        within_s: how long a message may wait for the end of its commit, if it can be published without PostgreSQL; else
            None.
    """

    def __init__(self, app_context: AppContext, within_s: float | None = None) -> None:
        self._context = app_context
        self._within_s = within_s
        self._tokens: dict[bytes, KnownToken] = {}
        self._commits = GroupCommit[PreparedMessage, bool](
            self._commit,
            name="api:publish",
            weigh=_weigh,
            max_weight=_MAX_WEIGHT,
            max_rows=_MAX_MESSAGES,
            max_waiting=_MAX_WAITING,
            committers=_MAX_COMMITTERS,
            within_s=within_s,
        )
        self._loading: dict[tuple[str, str], asyncio.Task[CompiledRoutes | None]] = {}

    async def find_token(self, token: str) -> KnownToken | None:
        """Return a valid, unrestricted token of an organization; None for any other token."""
        sha256 = keys.hash_token(token)
        cached = self._tokens.get(sha256)
        if cached is not None and cached.known_until > time.monotonic():
            return cached
        if cached is not None:  # one request checks the token again, the others use the cached one meanwhile
            self._tokens[sha256] = replace(cached, known_until=time.monotonic() + _TOKEN_AGE_S)
        async with self._context.reading(self._within_s) as connection:
            principal = await keys.find_principal(connection, token)
        if principal is None or not principal.is_for_organization:
            self._tokens.pop(sha256, None)
            return None
        if len(self._tokens) >= _MAX_TOKENS:
            self._tokens.clear()
        cached = self._tokens[sha256] = KnownToken(sha256, principal, time.monotonic() + _TOKEN_AGE_S)
        return cached

    async def prepare(self, token: KnownToken, message: Message) -> "PreparedMessage | None":
        """Return a message with its deliveries; None if `messages.create` must publish it.

        Args:
            token: the caller's token.
            message: the message.

        Raises:
            InvalidMessage: a field is invalid.
            TooManyDeliveries: more endpoints match than an event may have deliveries.
            DatabaseUnavailable: PostgreSQL is unavailable.
        """
        organization, application = message.organization, message.application
        outbox = self._context.outbox
        routes = outbox.cached_routes(organization, application)
        if routes is None or routes.routing.application is None:
            routes = await self._load_routes(organization, application)
        routed_application = None if routes is None else routes.routing.application
        if (
            routes is None
            or routed_application is None
            or routed_application.is_operational
            or routed_application.home is not None
        ):
            return None
        if self._commits.is_full:
            return None
        draft = outbox.draft(message)
        row = NewMessageRow(
            target=MessageTarget(
                organization=organization,
                application_id=routed_application.id,
                uid=routes.uid,
                registry=routes.routing.registry,
                routes=routed_application.version,
                token_sha256=token.sha256,
            ),
            event=to_event(draft, routed_application.id),
            deliveries=routes.recipients(draft),
        )
        return PreparedMessage(draft, row)

    async def commit(self, prepared: "PreparedMessage") -> bool:
        """Store a message; return True once it is committed, False if `messages.create` must publish it instead.

        Raises:
            DatabaseUnavailable: PostgreSQL is unavailable; the message may have been stored.
        """
        is_stored: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._commits.put(prepared, is_stored)
        return await is_stored

    async def _load_routes(self, organization: str, application: str) -> CompiledRoutes | None:
        """Read an application's routes, once for all concurrent callers; None if there is no such application."""
        cache_key = organization, application
        if cache_key not in self._loading:
            self._loading[cache_key] = asyncio.create_task(self._read_routes(*cache_key))
            self._loading[cache_key].add_done_callback(lambda _: self._loading.pop(cache_key))
        return await asyncio.shield(self._loading[cache_key])

    async def _read_routes(self, organization: str, application: str) -> CompiledRoutes | None:
        async with self._context.reading(self._within_s) as connection:
            routing = await read_routing(connection, organization, application)
        if routing.application is None or routing.application.home is not None:
            return None
        return self._context.outbox.cache_routes(organization, application, routing)

    async def _commit(self, group: Sequence[PreparedMessage], within_s: float | None) -> list[bool]:
        """Store messages in one transaction; return whether each is stored, and none is if one fails."""
        try:
            failpoint("publish.before_commit")
            rows = [prepared.row for prepared in group]
            verdicts = await insert_group(self._context.database, rows, within_s=within_s)
            failpoint("publish.after_commit")
        except GroupRolledBack as error:
            _LOG.debug("group_rolled_back", error=str(error), messages=len(group))
            return [False] * len(group)
        publishable = []
        for prepared, verdict in zip(group, verdicts, strict=True):
            if verdict is None:
                publishable.append(prepared)
            else:
                self._forget(prepared, verdict)
        self._context.outbox.count(prepared.draft for prepared in publishable)
        self._notify_due([prepared.row for prepared in publishable])
        return [verdict is None for verdict in verdicts]

    def _notify_due(self, rows: Sequence[NewMessageRow]) -> None:
        due = {
            due_recipient
            for row in rows
            for due_recipient in due_recipients(
                [delivery.recipient for delivery in row.deliveries], row.publication.deliver_at
            )
        }
        if due:
            self._context.notify_due(due)

    def _forget(self, prepared: PreparedMessage, verdict: str) -> None:
        """Remove the cached token or routes that a verdict shows to be outdated."""
        message = prepared.draft.message
        if verdict == "unauthorized" and prepared.row.target.token_sha256 is not None:
            self._tokens.pop(prepared.row.target.token_sha256, None)
        elif verdict in {"outdated", "missing"}:
            self._context.outbox.forget_routes(message.organization, message.application)


def _weigh(prepared: PreparedMessage) -> int:
    return len(prepared.row.event.body) + DELIVERY_WEIGHT * len(prepared.row.deliveries)
