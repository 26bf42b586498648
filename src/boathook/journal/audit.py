"""The audit: who did what to what, written in the transaction that does it."""

from boathook.journal.database import Connection
from boathook.journal.statements import load

SQL = load(__file__)


async def note(connection: Connection, actor: str, action: str, subject: str, text: str | None = None) -> None:
    """Note who did what to what."""
    await connection.execute(SQL["insert_note"], actor, action, subject, text)
