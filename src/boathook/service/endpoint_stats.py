"""Statistics of endpoints: lists of disabled and failing ones, and the attempts and backlog of one."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

import msgspec

from boathook.db.endpoints import Endpoint
from boathook.db.queries import endpoint_stats, summaries
from boathook.db.queries.endpoint_stats import AttemptStats, SecretValidity, UnhealthyEndpoint
from boathook.db.queries.endpoint_stats import EndpointHealth as EndpointHealth  # noqa: PLC0414 - re-exported
from boathook.db.queries.endpoint_stats import TimeBucket as TimeBucket  # noqa: PLC0414 - re-exported
from boathook.db.queries.summaries import FailedDelivery, RecipientBacklog
from boathook.service.recipient_stats import MAX_FAILURES, StatsRange
from boathook.service.unit_of_work import UnitOfWork

DAY: Final = timedelta(days=1)


class EndpointStats(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of one endpoint at one time."""

    health: EndpointHealth
    disabled_by: str | None
    """The actor who disabled it, from the audit; None if it is enabled."""
    secrets: Sequence[SecretValidity]
    """The current secret first, then former ones that still sign."""
    backlog: RecipientBacklog
    attempts: AttemptStats
    """Its attempts in the range."""
    failures: Sequence[FailedDelivery]


async def read(work: UnitOfWork, endpoint: Endpoint, wanted: StatsRange, now: datetime) -> EndpointStats:
    """Return the statistics of an endpoint in a range."""
    connection, recipient = work.connection, endpoint.recipient
    disabled_by = None
    if endpoint.is_disabled:
        disabled_by = await endpoint_stats.find_disabled_by(connection, endpoint.shown_id)
    return EndpointStats(
        health=await endpoint_stats.find_health(connection, endpoint.id),
        disabled_by=disabled_by,
        secrets=await endpoint_stats.list_secrets(connection, endpoint.id),
        backlog=await summaries.count_backlog(connection, recipient),
        attempts=await endpoint_stats.measure_attempts(connection, endpoint.id, now, wanted.span, wanted.width),
        failures=await summaries.list_failures(connection, recipient, limit=MAX_FAILURES),
    )


async def read_health(work: UnitOfWork, endpoints: Sequence[Endpoint]) -> Mapping[UUID, EndpointHealth]:
    """Return the health of each of these endpoints."""
    failed = await endpoint_stats.list_health(work.connection, [one.id for one in endpoints])
    return {one.id: failed.get(one.id, EndpointHealth()) for one in endpoints}


async def list_unhealthy(work: UnitOfWork, *, limit: int) -> Sequence[UnhealthyEndpoint]:
    """Return the organization's disabled or failing endpoints, latest change first."""
    return await endpoint_stats.list_unhealthy(work.connection, work.organization, limit=limit)
