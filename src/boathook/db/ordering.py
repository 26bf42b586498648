"""Order keys: of the deliveries of one recipient with the same order key, only the first may run."""

from collections.abc import Iterable

from boathook.db.database import Connection
from boathook.db.statements import load

SQL = load(__file__)


async def unblock(connection: Connection, lines: Iterable[tuple[str, str | None]]) -> None:
    """Unblock the first delivery of each of these order keys, if no other delivery precedes it.

    Args:
        lines: recipient and order key of each; those without an order key are ignored.
    """
    ordered = [(recipient, order_key) for recipient, order_key in lines if order_key is not None]
    if ordered:
        recipients, order_keys = zip(*ordered, strict=True)
        await connection.execute(SQL["unblock_lines"], recipients, order_keys)
