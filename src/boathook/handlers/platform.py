"""The services for a running app: its database, operators' actions, HTTP client and live messages.

The modules that implement them are in higher layers, so this module only defines the interface. The server and the
command line build a `Platform` and bind it to each `Boathook` that they load.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol
from uuid import UUID

import msgspec

from boathook.handlers.metric_history import MetricPoint
from boathook.handlers.transaction import Transaction
from boathook.http_client.messages import DownloadResult as DownloadResult  # noqa: PLC0414 - part of `Http`, re-exported
from boathook.http_client.messages import HttpResponse as HttpResponse  # noqa: PLC0414 - the same


class Http(Protocol):
    """An HTTP client for untrusted URLs: private networks are blocked unless `outbound.allow` permits them.

    Every address is checked when the connection is made. It follows no redirects and uses no proxies or credentials of
    the environment.
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
        """Send one request and return its response, with any status; a `Path` sends the file's bytes.

        Raises:
            FetchFailed: the request is not allowed or failed, or the response is larger than *max_bytes*.
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
        """Download a file to *to*, which appears only when it is complete.

        A partial file of an earlier call (``<name>.part`` in the same folder) is resumed with a Range request. If the
        file on the server has changed (by its ETag or Last-Modified), the download restarts.

        Raises:
            FetchFailed: the download is not allowed or failed, or is larger than *max_bytes*; the partial file is kept
                unless it is too large.
        """
        ...


class EndpointView(msgspec.Struct, frozen=True, kw_only=True):
    """An endpoint of an application, as apps see it."""

    id: str
    uid: str | None
    url: str
    event_types: Sequence[str] | None
    is_disabled: bool
    description: str
    created_at: datetime
    updated_at: datetime


class MessageView(msgspec.Struct, frozen=True, kw_only=True):
    """A message of an application, as apps see it."""

    id: str
    """Sent as ``webhook-id``."""
    type: str
    created_at: datetime
    payload: bytes | None
    """As it is sent, byte for byte; None once it was deleted."""


class Operations(Protocol):
    """The actions of operators, for apps that offer them to their own users."""

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

    async def dead_letters(
        self,
        *,
        source: str | None = None,
        type: str | None = None,
        recipient: str | None = None,
        code: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        after: str | None = None,
        limit: int = 50,
    ) -> list[Any]:
        """Return dead letters as ``boathook dead list`` does, newest events first; the times are those of death.

        *source* and *type* match the event of a dead letter, or the first event of its chain if a handler published
        it: ``first`` of a row has that event's id, source, application and type.
        """
        ...

    async def delivery(self, id: str) -> dict[str, Any]:
        """Return a delivery (``delivery``), its attempts (``attempts``), its event (``event``, ``headers``, ``body``).

        ``chain`` has the events that led to it, the first one first; ``first_headers`` and ``first_body`` those of the
        first event if it is another one and is still stored, else None.

        Raises:
            NotFound: there is none.
        """
        ...

    async def replay(self, ids: Sequence[str], *, note: str | None = None, first: bool = False) -> list[str]:
        """Make dead letters pending again; return which of *ids* were dead. Each is recorded in the audit log.

        With *first*, the first event of each chain is handled again by the handler that published the next one, and the
        dead letter is ignored with a note. Those without another first event are left out.
        """
        ...

    async def ignore(self, ids: Sequence[str], *, note: str) -> list[str]:
        """Settle dead letters as ignored; return which of *ids* were dead. Each is recorded in the audit log."""
        ...

    async def wake(self, tx: Transaction, event_id: UUID | str) -> int:
        """Make an event's pending deliveries due, and its dead ones pending, when *tx* commits; return their number.

        A delivery whose attempt is in progress is retried immediately if that attempt fails. Wake several events in the
        order of their ids, so that two transactions cannot deadlock.
        """
        ...

    async def put_application(self, tx: Transaction, uid: str, *, name: str) -> str:
        """Create the application with this uid if it does not exist; return its id (``app_...``)."""
        ...

    async def endpoints(self, tx: Transaction, application: str) -> list[EndpointView]:
        """Return an application's endpoints, oldest first; none if the application does not exist."""
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
        """Create an application's endpoint with this uid, or update it.

        Raises:
            InvalidValue: a value breaks a rule; the message names it.
            NotFound: there is no such application.
        """
        ...

    async def delete_endpoint(self, tx: Transaction, application: str, uid: str) -> bool:
        """Delete an endpoint; return whether it existed."""
        ...

    async def endpoint_secret(self, tx: Transaction, application: str, uid: str) -> str:
        """Return the secret that signs an endpoint's messages. Raises NotFound."""
        ...

    async def attempts(self, tx: Transaction, application: str, uid: str, *, limit: int = 50) -> list[Any]:
        """Return the latest requests to an endpoint, newest first: rows as `boathook.db.attempts` lists them."""
        ...

    async def messages(
        self,
        tx: Transaction,
        application: str,
        *,
        since: datetime,
        after: str | None = None,
        types: Sequence[str] = (),
        limit: int = 100,
    ) -> list[MessageView]:
        """Return an application's messages since a time, oldest first.

        Args:
            tx: the transaction.
            application: the application, by id or uid.
            since: the earliest time, up to 90 days ago.
            after: the id of the last message of the previous page.
            types: only messages of these types.
            limit: the maximum number of messages.

        Raises:
            InvalidValue: *after* is not the id of a message.
            NotFound: there is no such application.
        """
        ...

    async def declare_types(
        self, tx: Transaction, types: Mapping[str, str], schemas: Mapping[str, Mapping[str, Any]] | None = None
    ) -> None:
        """Create the event types, by name with their descriptions, that do not exist.

        Args:
            tx: the transaction.
            types: the descriptions.
            schemas: by name, the JSON Schema (draft 7) of the type's messages; its ``examples`` show some.

        Raises:
            InvalidValue: a schema is invalid.
        """
        ...


class Platform(Protocol):
    """The services of one process for its apps; connections are opened on first use."""

    @property
    def operations(self) -> Operations:
        """The actions of operators."""
        ...

    @property
    def http(self) -> Http:
        """The guarded HTTP client. Raises ConfigError."""
        ...

    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        """Open a transaction that commits at the end of the block and rolls back on an error."""
        ...

    async def publish_live(self, tx: Transaction, channel: str, message: Any) -> None:
        """Send *message*, a JSON value, to all subscribers of *channel* in any process when *tx* commits."""
        ...

    def subscribe(self, channel: str) -> AsyncIterator[Any]:
        """Yield the live messages on *channel* from now on; a slow subscriber loses the oldest."""
        ...

    async def metric_history(self, app: str, *, minutes: float, step_s: int) -> list[MetricPoint]:
        """Return the history of an app's metrics; see `Boathook.metric_history`."""
        ...

    async def health(self) -> dict[str, Any]:
        """Return the content of ``/metrics.json`` for this host, with ``problems`` as in ``/readyz``."""
        ...

    @property
    def data_dir(self) -> Path:
        """`server.data_dir`: this host's folder."""
        ...

    def resolve(self, reference: str, key: str) -> str:
        """Return the text that ``env:NAME`` or ``file:PATH`` refers to. Raises ConfigError, which names *key*."""
        ...

    def run(self, work: Any) -> Any:
        """Run a command's coroutine to completion, and close the connections that it opened."""
        ...
