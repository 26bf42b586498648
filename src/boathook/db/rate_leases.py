"""Leases tokens of the rates that gateways share, and counts the gateways."""

from collections.abc import Sequence
from typing import Final

from boathook.db.database import Connection, Database, translate_errors
from boathook.db.server_monitor import heartbeat_name
from boathook.db.statements import load
from boathook.domain.rate_leases import LeaseRequest

SQL = load(__file__)

GATEWAY: Final = "gateway"
"""The purpose of a gateway's connections."""


async def lease_tokens(database: Database, requests: Sequence[LeaseRequest], *, within_s: float) -> dict[str, int]:
    """Charge what was spent, and return the tokens granted to each source.

    Raises:
        DatabaseError: PostgreSQL is unavailable, or did not respond within *within_s* seconds.
    """
    async with database.acquire(within_s=within_s) as connection:
        with translate_errors():
            granted = await _lease(connection, requests)
            if missing := [request for request in requests if request.source not in granted]:
                await connection.execute(SQL["ensure_rates"], [request.source for request in missing])
                granted |= await _lease(connection, missing)
    return granted


async def _lease(connection: Connection, requests: Sequence[LeaseRequest]) -> dict[str, int]:
    columns = (
        [request.source for request in requests],
        [request.per_second for request in requests],
        [request.burst for request in requests],
        [request.spent for request in requests],
        [request.wanted for request in requests],
    )
    return {row["source"]: row["taken"] for row in await connection.fetch(SQL["lease_tokens"], *columns)}


async def count_gateways(database: Database, *, within_s: float) -> int:
    """Return the number of gateways that are connected to this database.

    A frozen gateway counts, a killed one does not; one whose host is lost does for up to twelve seconds.

    Raises:
        DatabaseError: PostgreSQL is unavailable, or did not respond within *within_s* seconds.
    """
    async with database.acquire(within_s=within_s) as connection:
        with translate_errors():
            number: int = await connection.fetchval(SQL["count_gateways"], heartbeat_name(GATEWAY))
    return number
