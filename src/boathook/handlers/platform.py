"""The interface that a running app uses: its database, operators' actions, HTTP client and live messages.

The rooms that can do these things lie above this one. The server, and the command line, build a `Platform` of them
and bind it to each `Boathook` they load; here stands only what it can do.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol
from uuid import UUID

from boathook.handlers.transaction import Transaction
from boathook.http_client.messages import DownloadResult as DownloadResult  # noqa: PLC0414 - a part of `Http`, to be had with it
from boathook.http_client.messages import HttpResponse as HttpResponse  # noqa: PLC0414 - the same


class Http(Protocol):
    """An HTTP client for addresses that strangers have a say in: no way into private networks but by `outbound.allow`.

    Every address is judged as it is dialled; no redirects, no proxies or credentials of the environment.
    """

    async def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | Path = b"",
        timeout_s: float = 20.0,
        max_bytes: int = 1_048_576,
    ) -> HttpResponse:
        """Send one request and return its answer, whatever its status; a `Path` is sent as the file's bytes.

        Raises:
            FetchFailed: it may not or could not be sent, or the answer is larger than *max_bytes*.
        """
        ...

    async def download(
        self,
        url: str,
        to: Path,
        *,
        max_bytes: int,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 300.0,
    ) -> DownloadResult:
        """Fetch a file to *to*, which appears only once it is whole.

        What an earlier call left unfinished beside it (``<name>.part``) is gone on with by a Range request, if the
        server still has the same file (by its ETag or Last-Modified), else begun anew.

        Raises:
            FetchFailed: it may not or could not be fetched, or is larger than *max_bytes*; what came so far is kept
                unless it is too large.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointView:
    """An endpoint of an application, as apps see it."""

    id: str
    uid: str | None
    url: str
    event_types: Sequence[str] | None
    is_disabled: bool
    description: str
    created_at: datetime
    updated_at: datetime


class Desk(Protocol):
    """What operators can do, for apps that show it to their own users."""

    async def deliveries(
        self,
        *,
        source: str | None = None,
        application: str | None = None,
        type: str | None = None,
        recipient: str | None = None,
        state: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        after: str | None = None,
        limit: int = 50,
    ) -> list[Any]:
        """Return deliveries, newest events first: rows with the fields of ``boathook deliveries list --json``."""
        ...

    async def delivery(self, id: str) -> dict[str, Any]:
        """Return a delivery (``delivery``), its attempts (``attempts``), its event (``event``, ``headers``, ``body``).

        Raises:
            NotFound: there is none.
        """
        ...

    async def replay(self, ids: Sequence[str], *, note: str | None = None) -> list[str]:
        """Make dead letters pending again; return which, of those named, were dead. An audit row tells of each."""
        ...

    async def ignore(self, ids: Sequence[str], *, note: str) -> list[str]:
        """Settle dead letters as ignored; return which, of those named, were dead. An audit row tells of each."""
        ...

    async def wake(self, tx: Transaction, event_id: UUID | str) -> int:
        """Make an event's pending deliveries due, and its dead ones pending, when *tx* commits; return how many.

        One that is being tried at that moment is tried again at once if that attempt fails. Several events are woken
        in the order of their ids.
        """
        ...

    async def put_application(self, tx: Transaction, uid: str, *, name: str) -> str:
        """Make the application with this uid if there is none; return its id (``app_...``)."""
        ...

    async def endpoints(self, tx: Transaction, application: str) -> list[EndpointView]:
        """Return an application's endpoints, oldest first; none for an application that does not exist."""
        ...

    async def put_endpoint(
        self,
        tx: Transaction,
        application: str,
        uid: str,
        *,
        url: str,
        event_types: Sequence[str] | None = None,
        is_disabled: bool = False,
        description: str = "",
        retry: str | Sequence[float] | None = None,
        timeout_s: float | None = None,
    ) -> EndpointView:
        """Make an application's endpoint with this uid, or give it these values.

        Raises:
            InvalidValue: a value breaks a rule; the message names it.
            NotFound: there is no such application.
        """
        ...

    async def delete_endpoint(self, tx: Transaction, application: str, uid: str) -> bool:
        """Delete an endpoint; return whether there was one."""
        ...

    async def endpoint_secret(self, tx: Transaction, application: str, uid: str) -> str:
        """Return what an endpoint's messages are signed with. Raises NotFound."""
        ...

    async def attempts(self, tx: Transaction, application: str, uid: str, *, limit: int = 50) -> list[Any]:
        """Return the latest requests to an endpoint, newest first: rows as `boathook.db.attempts` lists them."""
        ...

    async def declare_types(self, tx: Transaction, types: Mapping[str, str]) -> None:
        """Make event types, by name with their descriptions, known where they are not."""
        ...


class Platform(Protocol):
    """What one process offers its apps; connections are opened when they are first needed."""

    @property
    def desk(self) -> Desk:
        """What operators can do."""
        ...

    @property
    def http(self) -> Http:
        """The guarded HTTP client. Raises ConfigError."""
        ...

    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        """Lend a transaction that commits at the end of the block and rolls back on an error."""
        ...

    async def publish_live(self, tx: Transaction, channel: str, message: Any) -> None:
        """Send *message*, which JSON can hold, to all subscribers of *channel* in any process, when *tx* commits."""
        ...

    def subscribe(self, channel: str) -> AsyncIterator[Any]:
        """Yield the live messages on *channel* from now on; a slow subscriber misses the oldest."""
        ...

    async def vitals(self) -> dict[str, Any]:
        """Return what ``/metrics.json`` shows of all processes of this host, and ``problems`` as ``/readyz`` does."""
        ...

    @property
    def data_dir(self) -> Path:
        """`server.data_dir`: this host's own folder."""
        ...

    def resolve(self, reference: str, key: str) -> str:
        """Return the text behind ``env:NAME`` or ``file:PATH``. Raises ConfigError, which names *key*."""
        ...

    def run(self, work: Any) -> Any:
        """Run a coroutine of a command to its end, and close what it opened."""
        ...
