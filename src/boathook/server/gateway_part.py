"""What optional packages add to a gateway process, and what the process offers to them."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, Self

import msgspec

from boathook.config import Settings
from boathook.db.database import Database
from boathook.domain.errors import ServedElsewhere
from boathook.domain.rate_leases import LeaseTokens
from boathook.http.asgi import Asgi
from boathook.ingest.buffer import Buffer
from boathook.ingest.event_builder import EventBuilder
from boathook.ingest.event_writer import Elsewhere, EventSink, EventWriter
from boathook.server.gateway_database import GatewayDatabase
from boathook.service.sending.message_store import MessageStore
from boathook.spool.spool import Spool

if TYPE_CHECKING:
    from boathook.ingest.intake import Intake


class Gateway(msgspec.Struct, eq=False):
    """One gateway process, as the parts of packages see it."""

    settings: Settings
    slot: str
    """The name of the process on this host; the same after a restart."""
    database: GatewayDatabase
    """PostgreSQL, which may be unavailable at any time."""
    event_builder: EventBuilder
    """Gives events their deliveries under the current routes."""
    messages: MessageStore
    """Stores published messages in this database."""
    spool: Spool | None
    """The spool of this process; None if events may not be written to its disk."""
    make_writer: Callable[[], EventWriter]
    """Makes a writer of events that the intake's buffer has held; see `intake`."""
    get_intake: Callable[[], "Intake"]

    @property
    def intake(self) -> "Intake":
        """What makes events durable; not yet while the parts are made."""
        return self.get_intake()


class GatewayPart:
    """What a package adds to one gateway process.

    It is made before the intake, entered before the intake starts, while PostgreSQL may be unavailable, and left after
    the intake has drained. A part overrides what it needs.
    """

    buffer: Buffer | None = None
    """Holds events while PostgreSQL does not accept them, instead of the spool."""
    lease_tokens: LeaseTokens | None = None
    """Leases the tokens of sources' rates, instead of PostgreSQL."""
    elsewhere: Elsewhere | None = None
    """Finds the intake of another installation for an event of what that serves."""

    needs_every_request: bool = False
    """Whether `wrap` must see all requests; small ones to sources are answered without ASGI otherwise."""

    def wrap_intake(self, intake: EventSink) -> EventSink:
        """Return the intake of the events that requests bring, around *intake*."""
        return intake

    def wrap(self, app: Asgi) -> Asgi:
        """Return the ASGI application that answers every request, in front of *app*; the intake exists by now."""
        return app

    async def check_database(self, database: Database) -> None:
        """Check a database that has been reached, before anything is stored in it. Raises DatabaseError."""

    def note_move(self, error: ServedElsewhere) -> None:
        """Note that a message's application has moved to another installation."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None


class OpenGatewayPart(Protocol):
    """Makes the part of a package for a gateway; `Package.gateway` names such a function."""

    def __call__(self, gateway: Gateway) -> GatewayPart | None:
        """Return the part; None if the package adds nothing with these settings. Raises ConfigError."""
        ...
