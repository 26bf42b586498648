"""What storing an event and storing a batch have in common: keys freed when their memory ends, order keys let go."""

from collections.abc import Iterable, Sequence
from uuid import UUID

from boathook.journal.database import Connection
from boathook.journal.statements import load

SQL = load(__file__)


async def forget_expired(connection: Connection, keys: Sequence[UUID]) -> None:
    """Free those of *keys* whose memory has run out."""
    await connection.execute(SQL["forget_expired"], keys)


async def unblock(connection: Connection, ordered: Iterable[tuple[str, str]]) -> None:
    """Let the first delivery of each recipient and order key run, if what was before it has ended meanwhile."""
    recipients, order_keys = zip(*ordered, strict=True)
    await connection.execute(SQL["unblock_order_keys"], recipients, order_keys)
