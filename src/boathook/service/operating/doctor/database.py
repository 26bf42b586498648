"""Diagnoses the database: its durability, its schema, and what the store says about deliveries and sending."""

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime, timedelta
from ipaddress import ip_address
from typing import Final

from boathook.config import Settings
from boathook.db.database import TRANSACTION_POOLER, Database, check_safety
from boathook.db.health import (
    DatabaseHealth,
    SendingHealth,
    read_clock,
    read_database_health,
    read_sending_health,
    read_standby_health,
)
from boathook.db.migrations import list_pending, read_missing_grant
from boathook.db.rerouting import MAX_COUNTED, count_unhandled
from boathook.db.secret_box import FILE_NAME, open_secret_box
from boathook.db.server_monitor import describe_stall
from boathook.domain.errors import BoathookError, ConfigError, DatabaseUnavailable, UnsafeDatabase
from boathook.domain.plurals import counted
from boathook.service.database import Migrations, check_connections, count_connections, with_url
from boathook.service.operating.doctor import packages, spool
from boathook.service.operating.doctor.handlers import CheckStatus, Finding
from boathook.service.sending import endpoint_secrets

_METADATA: Final = (ip_address("169.254.169.254"), ip_address("fd00:ec2::254"))
"""Addresses at which clouds return credentials to any client inside their network."""
_WIDE: Final = {4: 8, 6: 32}
"""Networks of outbound.allow with a shorter prefix than this are too wide."""
_NAMED: Final = 3


async def examine(settings: Settings, database: Database, migrations: Migrations) -> AsyncIterator[Finding]:
    """Yield the findings about the database; most of them only if its schema is current."""
    finding = await _safety(settings, database)
    yield finding
    if finding.found == TRANSACTION_POOLER.partition(". ")[0]:
        return  # every further query may fail
    async for limited in _connection_limit(settings, database):
        yield limited
    yield await _standbys(database)
    yield await _clock(database)
    finding = await _schema(database, migrations)
    yield finding
    if finding.verdict is CheckStatus.FAIL:
        return
    health = await read_database_health(database)
    yield _connections(settings, health)
    yield _wal_compression(health)
    yield _partitions(health)
    yield _backlog(health)
    yield _routes(health)
    yield _unhandled(await count_unhandled(database, health.now - timedelta(days=1)))
    yield _dead(health)
    yield _snapshot(health)
    yield await spool.compare(settings, database)
    async for finding in packages.examine(settings, database):
        yield finding
    async for finding in _sending(settings, database):
        yield finding


async def _schema(database: Database, migrations: Migrations) -> Finding:
    try:
        missing = await list_pending(database, migrations)
        grant = await read_missing_grant(database) if missing else None
    except BoathookError as error:
        return Finding(
            "schema", CheckStatus.FAIL, str(error), "correct the app's files, or install the app's release again"
        )
    if missing:
        return Finding(
            "schema",
            CheckStatus.FAIL,
            f"lacks {', '.join(missing)}",
            f"{grant}; then run `boathook migrate`" if grant else "run `boathook migrate`",
        )
    return Finding("schema", CheckStatus.OK, "is current")


async def _safety(settings: Settings, database: Database) -> Finding:
    try:
        notes = await check_safety(database, allow_unsafe=settings.database.allow_unsafe)
    except (DatabaseUnavailable, UnsafeDatabase) as error:
        text, _, fix = str(error).partition(". ")
        return Finding("safety", CheckStatus.FAIL, text, fix)
    if notes:
        return Finding("safety", CheckStatus.WARN, " ".join(notes), "set database.allow_unsafe = false in production")
    return Finding("safety", CheckStatus.OK, "commits are durable")


async def _standbys(database: Database) -> Finding:
    standbys = await read_standby_health(database)
    if standbys.stalled:
        text, _, fix = describe_stall(standbys.stalled).partition(". ")
        return Finding("standbys", CheckStatus.WARN, text, fix)
    if not standbys.connected:
        return Finding("standbys", CheckStatus.OK, "none is connected; commits are on the primary only")
    if standbys.names and not (standbys.is_hidden or standbys.synchronous):
        text = f"none of the {standbys.connected} connected is one of synchronous_standby_names ({standbys.names})"
        return Finding("standbys", CheckStatus.WARN, text, "start the standby that is named: commits wait for it")
    if standbys.names:
        return Finding(
            "standbys", CheckStatus.OK, f"{standbys.connected} connected, and commits wait for {standbys.names}"
        )
    text = f"{standbys.connected} connected, and commits wait for none: promoting one loses commits it has not received"
    return Finding(
        "standbys", CheckStatus.WARN, text, "set synchronous_standby_names, if a failover must not lose data"
    )


async def _clock(database: Database) -> Finding:
    before = time.time()
    theirs = (await read_clock(database)).timestamp()
    skew_s = theirs - (before + time.time()) / 2
    text = f"{abs(skew_s):.1f} s {'behind' if skew_s > 0 else 'ahead of'} the database's"
    if abs(skew_s) < 2:
        return Finding("clock", CheckStatus.OK, "agrees with the database's")
    verdict = CheckStatus.WARN if abs(skew_s) < 60 else CheckStatus.FAIL
    return Finding("clock", verdict, text, "synchronise both hosts' clocks (NTP); signatures carry timestamps")


def _connections(settings: Settings, health: DatabaseHealth) -> Finding:
    """Compare what the processes of this host may open with the server's limit."""
    needed = count_connections(settings).most
    text = f"PostgreSQL {health.version}, {health.connections} of {health.max_connections} connections in use"
    if needed + 5 > health.max_connections:
        fix = f"raise max_connections above {needed + 5}, or lower server.workers or database.worker_connections"
        return Finding("connections", CheckStatus.WARN, f"{text}; these settings need {needed}", fix)
    return Finding("connections", CheckStatus.OK, text)


async def _connection_limit(settings: Settings, database: Database) -> AsyncIterator[Finding]:
    """Yield a finding if the role, the database or the server allows fewer connections than this host opens."""
    verdict, text = CheckStatus.WARN, None
    try:
        text = await check_connections(with_url(settings, database.url))
    except ConfigError as error:
        verdict, text = CheckStatus.FAIL, str(error)
    if text is not None:
        summary, _, fix = text.partition(". ")
        yield Finding("connections", verdict, summary, fix)


def _wal_compression(health: DatabaseHealth) -> Finding:
    text = f"wal_compression is {health.wal_compression}"
    if health.wal_compression in {"on", "pglz"}:
        text += ": compressing pages with pglz slows ingest after each checkpoint"
        return Finding("log", CheckStatus.WARN, text, f"set wal_compression = {'lz4' if health.has_lz4 else 'off'}")
    return Finding("log", CheckStatus.OK, text)


def _partitions(health: DatabaseHealth) -> Finding:
    fix = "run the keeper: `boathook serve` with the role keeper"
    if health.latest_partition is None:
        return Finding("partitions", CheckStatus.FAIL, "there is none", fix)
    ahead = (health.latest_partition - health.now.date()).days
    if ahead < 0 or health.unpartitioned_events:
        text = f"the last is of the week of {health.latest_partition}; {health.unpartitioned_events} events are in none"
        return Finding("partitions", CheckStatus.FAIL if ahead < -7 else CheckStatus.WARN, text, fix)
    return Finding("partitions", CheckStatus.OK, f"are made up to the week of {health.latest_partition}")


def _backlog(health: DatabaseHealth) -> Finding:
    if health.overdue or health.expired_leases:
        oldest = _ago(health.now, health.oldest_due)
        text = (
            f"{health.overdue} deliveries overdue, the oldest since {oldest}; {health.expired_leases} leases abandoned"
        )
        return Finding("backlog", CheckStatus.WARN, text, "run workers and a keeper, or more of them (server.workers)")
    return Finding("backlog", CheckStatus.OK, "nothing is overdue")


def _routes(health: DatabaseHealth) -> Finding:
    if health.unrouted:
        names = ", ".join(
            f"{recipient_count.recipient} ({recipient_count.number})" for recipient_count in health.unrouted[:5]
        )
        fix = "load the app that handles them (server.app or apps.load), or ignore them when they are dead letters"
        return Finding(
            "routes", CheckStatus.WARN, f"pending deliveries to recipients without an active route: {names}", fix
        )
    return Finding("routes", CheckStatus.OK, "every pending delivery has an active recipient")


def _unhandled(counts: Mapping[str, int]) -> Finding:
    if not counts:
        return Finding("unhandled", CheckStatus.OK, "every event of the last day matched a handler")
    number = sum(counts.values())
    total = f"{number:,} or more" if number >= MAX_COUNTED else f"{number:,}"
    subjects = ", ".join(f"{subject} ({count:,})" for subject, count in list(counts.items())[:5])
    fix = (
        "see `boathook events list --unhandled`; once a handler matches them, run"
        " `boathook events replay --route --unhandled`"
    )
    return Finding("unhandled", CheckStatus.WARN, f"{total} events of the last day matched no handler: {subjects}", fix)


def _dead(health: DatabaseHealth) -> Finding:
    if health.dead:
        return Finding(
            "dead letters", CheckStatus.WARN, f"{health.dead} wait for a decision", "see `boathook dead list`"
        )
    return Finding("dead letters", CheckStatus.OK, "none")


def _snapshot(health: DatabaseHealth) -> Finding:
    if health.vacuum_blockers:
        names = ", ".join(health.vacuum_blockers[:5])
        return Finding("snapshots", CheckStatus.WARN, f"vacuum is blocked by {names}", "end or drop them")
    since = health.snapshot_since
    if since is not None and health.now - since > timedelta(minutes=5):
        text = f"{health.snapshot_by} has held one for {_ago(health.now, since)}, so vacuum cannot remove dead rows"
        return Finding("snapshots", CheckStatus.WARN, text, "end that session or its transaction")
    return Finding("snapshots", CheckStatus.OK, "none is old")


async def _sending(settings: Settings, database: Database) -> AsyncIterator[Finding]:
    """Yield the findings about sending."""
    sending = await read_sending_health(database)
    yield await _secrets(settings, database, sending)
    yield _endpoints(sending)
    yield _breakers(sending)
    yield _allowed(settings)


async def _secrets(settings: Settings, database: Database, sending: SendingHealth) -> Finding:
    check = "secrets"
    if not sending.has_secrets:
        return Finding(check, CheckStatus.OK, "none is stored")
    is_file = not settings.outbound.encryption_keys
    file = settings.server.data_dir / FILE_NAME
    if is_file and not file.exists():
        fix = f"restore {file} from a backup, or set outbound.encryption_keys"
        return Finding(check, CheckStatus.FAIL, f"are encrypted, but the key file {file} is missing", fix)
    try:
        report = await endpoint_secrets.examine(database, open_secret_box(settings))
    except ConfigError as error:
        return Finding(check, CheckStatus.FAIL, str(error), "correct outbound.encryption_keys")
    if is_file and sending.hosts > 1 and not report.unreadable:
        fix = f'set outbound.encryption_keys on all hosts, such as to ["file:{file}"]'
        hosts = f"boathook runs on {sending.hosts} hosts, and the key is a file of this one"
        return Finding(check, CheckStatus.WARN, hosts, fix)
    return _encrypted(check, report)


def _encrypted(check: str, report: endpoint_secrets.EncryptionReport) -> Finding:
    if report.unreadable:
        reasons = "; ".join(report.unreadable)
        names = _names(report.endpoints)
        fix = f"add the missing key to outbound.encryption_keys, or give these others: {names}"
        return Finding(check, CheckStatus.FAIL, f"{report.unreadable.total()} cannot be read: {reasons}", fix)
    if report.old:
        fix = "run `boathook endpoints reencrypt`; then the old key may go"
        return Finding(check, CheckStatus.WARN, f"{report.old} of {report.number} are encrypted with an old key", fix)
    return Finding(check, CheckStatus.OK, f"all {report.number} can be read")


def _endpoints(sending: SendingHealth) -> Finding:
    if sending.disabled:
        fix = "fix them with their owners, then run `boathook endpoints enable`"
        names = _names(sending.disabled)
        text = f"{len(sending.disabled)} of {sending.endpoints} failed permanently and are disabled: {names}"
        return Finding("endpoints", CheckStatus.WARN, text, fix)
    return Finding("endpoints", CheckStatus.OK, f"{sending.endpoints}, none disabled")


def _breakers(sending: SendingHealth) -> Finding:
    if sending.paused:
        fix = "check their attempts: `boathook deliveries list --recipient endpoint:ID`, then `deliveries show`"
        text = f"paused, as they keep failing: {counted(len(sending.paused), 'endpoint')}, {_names(sending.paused)}"
        return Finding("breakers", CheckStatus.WARN, text, fix)
    return Finding("breakers", CheckStatus.OK, "no endpoint is paused")


def _allowed(settings: Settings) -> Finding:
    check = "outbound.allow"
    for network in settings.outbound.allow:
        if any(address in network for address in _METADATA):
            fix = "list only the networks of endpoints you know"
            return Finding(check, CheckStatus.WARN, f"{network} lets endpoints reach the cloud's metadata service", fix)
        if network.prefixlen < _WIDE[network.version]:
            return Finding(check, CheckStatus.WARN, f"{network} is very wide", "list only the networks you mean")
    number = len(settings.outbound.allow)
    return Finding(
        check,
        CheckStatus.OK,
        f"{number} private networks may be reached" if number else "no private network is allowed",
    )


def _names(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED]) + (" ..." if len(names) > _NAMED else "")


def _ago(now: datetime, since: datetime | None) -> str:
    return "" if since is None else str(timedelta(seconds=round((now - since).total_seconds())))
