"""Lines of ordered deliveries: those of one recipient with one order key, of which only the first may run."""

from collections.abc import Iterable

from boathook.db.database import Connection
from boathook.db.statements import load

SQL = load(__file__)


async def unblock(connection: Connection, lines: Iterable[tuple[str, str | None]]) -> None:
    """Let the first delivery of each of these lines run, if what was before it is gone.

    Args:
        lines: recipient and order key of each; those without an order key stand in no line and are passed over.
    """
    ordered = [(recipient, order_key) for recipient, order_key in lines if order_key is not None]
    if ordered:
        recipients, order_keys = zip(*ordered, strict=True)
        await connection.execute(SQL["unblock_lines"], recipients, order_keys)
