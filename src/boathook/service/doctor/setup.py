"""Diagnoses an installation: settings, clock, database, disk, spool, sources and endpoints."""

import contextlib
import math
import os
import resource
import shutil
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from boathook.broker.access import read_access, read_redis_url
from boathook.config import Settings
from boathook.db import source_secrets
from boathook.db.database import Database, check_safety
from boathook.db.health import DatabaseHealth, read_clock, read_database_health, read_standby_health
from boathook.db.live_settings import LiveSettings
from boathook.db.migrations import list_pending
from boathook.db.rerouting import MAX_COUNTED, count_unhandled
from boathook.db.server_monitor import describe_stall
from boathook.domain.errors import BoathookError, ConfigError, DatabaseError, DatabaseUrlRejected, UnsafeDatabase
from boathook.domain.plurals import counted
from boathook.ingest.secrets_cache import SecretsCache
from boathook.ingest.sources import compile_sources, compile_verifier
from boathook.ingest.stored_sources_file import read_stored_sources
from boathook.providers.schemes import NoProof
from boathook.service.database import Migrations, ProgressCallback, server_url
from boathook.service.doctor import buffer, cells, redis, sending, spool
from boathook.service.doctor.handlers import CheckStatus, Finding
from boathook.service.sources import KnownSources

_SUPERVISOR_CONNECTIONS: Final = 4
_MIB: Final = 1 << 20
_MIN_DISK: Final = 256 * _MIB
_LOW_DISK: Final = 2_048 * _MIB
_RESERVED_FILES: Final = 256
"""Open files a gateway needs in addition to its clients' connections."""


def check_settings(settings: Settings) -> int:
    """Check the alerts, the portal's logo and every source with its secrets; return the number of source paths.

    Raises:
        ConfigError: one of them is wrong; the message names the key.
    """
    # Most checks do not need these modules.
    from boathook.alerts.service import check_alerts

    check_alerts(settings)
    settings.portal_logo()
    if settings.uses_rabbitmq:
        read_access(settings)
    read_redis_url(settings)
    if settings.cells.name:
        settings.cells_secret()
    return len(compile_sources(settings))


async def examine_all(
    settings: Settings, *, migrations: Migrations = (), progress: ProgressCallback | None = None
) -> list[Finding]:
    """Return the findings about an installation, including the database; an unreachable database is a finding too.

    Args:
        settings: the settings.
        migrations: the loaded apps that have tables, with the folders of their migrations.
        progress: called while an embedded server starts.
    """
    try:
        async with server_url(settings, progress=progress) as url:
            database = await Database.open(url, purpose="doctor", size=2)
            try:
                return [finding async for finding in examine(settings, database, migrations=migrations)]
            finally:
                await database.close()
    except BoathookError as error:
        return [finding async for finding in examine(settings, None, str(error))]


async def examine(
    settings: Settings, database: Database | None, trouble: str = "", *, migrations: Migrations = ()
) -> AsyncIterator[Finding]:
    """Yield the findings about an installation.

    Args:
        settings: the settings.
        database: the database; None if it could not be reached.
        trouble: why there is no *database*.
        migrations: the loaded apps that have tables, with the folders of their migrations.
    """
    yield _settings(settings)
    if database is None:
        yield Finding("database", CheckStatus.FAIL, trouble, "make sure that boathook can connect to PostgreSQL")
    else:
        async for finding in _database(settings, database, migrations):
            yield finding
    yield _disk(settings.server.data_dir)
    if settings.has_spool or not settings.has_brokers:
        for finding in spool.examine(settings):
            yield finding
    async for finding in buffer.examine(settings):
        yield finding
    async for finding in redis.examine(settings):
        yield finding
    async for finding in cells.examine(settings, database):
        yield finding
    yield _files(settings)
    for finding in _sources(await _known_sources(settings, database)):
        yield finding


async def _known_sources(settings: Settings, database: Database | None) -> KnownSources:
    """Return all sources; those that a gateway of this host saved last if the database cannot be read."""
    live = LiveSettings(settings)
    if database is not None:
        with contextlib.suppress(DatabaseError):
            await live.refresh(database)
            return KnownSources(live, SecretsCache(live.current, await source_secrets.list_all(database)))
    live.set_rows(read_stored_sources(settings.server.data_dir) or ())
    return KnownSources(live, SecretsCache(live.current))


def _settings(settings: Settings) -> Finding:
    if settings.file is None:
        return Finding("settings", CheckStatus.OK, "no boathook.toml: the defaults and the environment")
    return Finding("settings", CheckStatus.OK, f"{settings.file} is valid")


async def _database(settings: Settings, database: Database, migrations: Migrations) -> AsyncIterator[Finding]:
    yield await _safety(settings, database)
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
    if settings.has_brokers:
        yield await buffer.compare(database)
    async for finding in sending.examine(settings, database):
        yield finding


async def _schema(database: Database, migrations: Migrations) -> Finding:
    try:
        missing = await list_pending(database, migrations)
    except BoathookError as error:
        return Finding(
            "schema", CheckStatus.FAIL, str(error), "correct the app's files, or install the app's release again"
        )
    if missing:
        return Finding("schema", CheckStatus.FAIL, f"lacks {', '.join(missing)}", "run `boathook migrate`")
    return Finding("schema", CheckStatus.OK, "is current")


async def _safety(settings: Settings, database: Database) -> Finding:
    try:
        notes = await check_safety(database, allow_unsafe=settings.database.allow_unsafe)
    except (DatabaseUrlRejected, UnsafeDatabase) as error:
        found, _, fix = str(error).partition(". ")
        return Finding("safety", CheckStatus.FAIL, found, fix)
    if notes:
        return Finding("safety", CheckStatus.WARN, " ".join(notes), "set database.allow_unsafe = false in production")
    return Finding("safety", CheckStatus.OK, "commits are durable")


async def _standbys(database: Database) -> Finding:
    standbys = await read_standby_health(database)
    if standbys.stalled:
        found, _, fix = describe_stall(standbys.stalled).partition(". ")
        return Finding("standbys", CheckStatus.WARN, found, fix)
    if not standbys.connected:
        return Finding("standbys", CheckStatus.OK, "none is connected; commits are on the primary only")
    if standbys.names and not (standbys.is_hidden or standbys.synchronous):
        found = f"none of the {standbys.connected} connected is one of synchronous_standby_names ({standbys.names})"
        return Finding("standbys", CheckStatus.WARN, found, "start the standby that is named: commits wait for it")
    if standbys.names:
        return Finding(
            "standbys", CheckStatus.OK, f"{standbys.connected} connected, and commits wait for {standbys.names}"
        )
    found = (
        f"{standbys.connected} connected, and commits wait for none: promoting one loses commits it has not received"
    )
    return Finding(
        "standbys", CheckStatus.WARN, found, "set synchronous_standby_names, if a failover must not lose data"
    )


async def _clock(database: Database) -> Finding:
    before = time.time()
    theirs = (await read_clock(database)).timestamp()
    skew_s = theirs - (before + time.time()) / 2
    found = f"{abs(skew_s):.1f} s {'behind' if skew_s > 0 else 'ahead of'} the database's"
    if abs(skew_s) < 2:
        return Finding("clock", CheckStatus.OK, "agrees with the database's")
    verdict = CheckStatus.WARN if abs(skew_s) < 60 else CheckStatus.FAIL
    return Finding("clock", verdict, found, "synchronise both hosts' clocks (NTP); signatures carry timestamps")


def _connections(settings: Settings, health: DatabaseHealth) -> Finding:
    """Compare what the processes of this host may open, as listed in docs/how-to/scale.md, with the server's limit."""
    server, database = settings.server, settings.database
    needed = _SUPERVISOR_CONNECTIONS
    if "gateway" in server.roles:
        more = 2 * settings.has_brokers + 9 * ("console" in server.roles)
        needed += server.gateways * (database.ingest_connections + 8 + more)
    if "worker" in server.roles:
        needed += (server.workers + 1) * (database.worker_connections + 4) + server.senders * 5
    if "keeper" in server.roles:
        needed += 3
    found = f"PostgreSQL {health.version}, {health.connections} of {health.max_connections} connections in use"
    if needed + 5 > health.max_connections:
        fix = f"raise max_connections above {needed + 5}, or lower server.workers or database.worker_connections"
        return Finding("connections", CheckStatus.WARN, f"{found}; these settings need {needed}", fix)
    return Finding("connections", CheckStatus.OK, found)


def _wal_compression(health: DatabaseHealth) -> Finding:
    found = f"wal_compression is {health.wal_compression}"
    if health.wal_compression in {"on", "pglz"}:
        found += ": compressing pages with pglz slows ingest after each checkpoint"
        return Finding("log", CheckStatus.WARN, found, f"set wal_compression = {'lz4' if health.has_lz4 else 'off'}")
    return Finding("log", CheckStatus.OK, found)


def _partitions(health: DatabaseHealth) -> Finding:
    fix = "run the keeper: `boathook serve` with the role keeper"
    if health.latest_partition is None:
        return Finding("partitions", CheckStatus.FAIL, "there is none", fix)
    ahead = (health.latest_partition - health.now.date()).days
    if ahead < 0 or health.unpartitioned_events:
        found = (
            f"the last is of the week of {health.latest_partition}; {health.unpartitioned_events} events are in none"
        )
        return Finding("partitions", CheckStatus.FAIL if ahead < -7 else CheckStatus.WARN, found, fix)
    return Finding("partitions", CheckStatus.OK, f"are made up to the week of {health.latest_partition}")


def _backlog(health: DatabaseHealth) -> Finding:
    if health.overdue or health.expired_leases:
        oldest = _ago(health.now, health.oldest_due)
        found = (
            f"{health.overdue} deliveries overdue, the oldest since {oldest}; {health.expired_leases} leases abandoned"
        )
        return Finding("backlog", CheckStatus.WARN, found, "run workers and a keeper, or more of them (server.workers)")
    return Finding("backlog", CheckStatus.OK, "nothing is overdue")


def _routes(health: DatabaseHealth) -> Finding:
    if health.unrouted:
        names = ", ".join(f"{one.recipient} ({one.number})" for one in health.unrouted[:5])
        fix = "load the app that handles them (server.app or apps.load), or ignore them when they are dead letters"
        return Finding(
            "routes", CheckStatus.WARN, f"pending deliveries to recipients without an active route: {names}", fix
        )
    return Finding("routes", CheckStatus.OK, "every pending delivery has an active recipient")


def _unhandled(counts: Mapping[str, int]) -> Finding:
    if not counts:
        return Finding("unhandled", CheckStatus.OK, "every event of the last day matched a handler")
    number = sum(counts.values())
    shown = f"{number:,} or more" if number >= MAX_COUNTED else f"{number:,}"
    sources = ", ".join(f"{source} ({of_source:,})" for source, of_source in list(counts.items())[:5])
    fix = (
        "see `boathook events list --unhandled`; once a handler matches them, run"
        " `boathook events replay --route --unhandled`"
    )
    return Finding("unhandled", CheckStatus.WARN, f"{shown} events of the last day matched no handler: {sources}", fix)


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
        found = f"{health.snapshot_by} has held one for {_ago(health.now, since)}, so vacuum cannot remove dead rows"
        return Finding("snapshots", CheckStatus.WARN, found, "end that session or its transaction")
    return Finding("snapshots", CheckStatus.OK, "none is old")


def _disk(data_dir: Path) -> Finding:
    folder = data_dir
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    found = f"{free // _MIB:,} MiB free at {folder}"
    if not os.access(folder, os.W_OK):
        return Finding(
            "disk", CheckStatus.FAIL, f"{folder} cannot be written to", "change server.data_dir or its owner"
        )
    if free < _LOW_DISK:
        return Finding("disk", CheckStatus.FAIL if free < _MIN_DISK else CheckStatus.WARN, found, "make room")
    return Finding("disk", CheckStatus.OK, found)


def _files(settings: Settings) -> Finding:
    # A gateway raises its soft limit up to the hard one.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = settings.limits.max_connections + _RESERVED_FILES
    if hard != resource.RLIM_INFINITY and hard < needed:
        fix = f"raise the limit (ulimit -n, LimitNOFILE) to {needed}, or lower limits.max_connections"
        return Finding("open files", CheckStatus.WARN, f"at most {hard}, and {needed} may be needed", fix)
    return Finding("open files", CheckStatus.OK, f"{'unlimited' if hard == resource.RLIM_INFINITY else hard} allowed")


def _sources(known: KnownSources) -> Iterator[Finding]:
    settings = known.settings
    if not settings.sources:
        remedy = "add one with `boathook sources add`, in the console, or as [sources.NAME] in boathook.toml"
        yield Finding("sources", CheckStatus.WARN, "there is none, so no request is accepted", remedy)
    compiled = 0
    for name in settings.sources:
        finding = _source(known, name)
        compiled += finding.verdict is not CheckStatus.FAIL
        yield finding
    for name, problem in known.live.problems.items():
        is_replaced = name in settings.sources
        verdict = CheckStatus.WARN if is_replaced else CheckStatus.FAIL
        fix = f"`boathook sources change {name}` or `boathook sources remove {name}`, or its page in the console"
        yield Finding(f"stored source {name}", verdict, f"is not used: {problem}", fix)
    if compiled == len(settings.sources):
        paths = compile_sources(settings, known.added)
        yield Finding("paths", CheckStatus.OK, f"{counted(len(paths), 'path')}, each of one source")
        yield from _shared_secrets(settings)


def _shared_secrets(settings: Settings) -> Iterator[Finding]:
    """Yield a finding for each secret that more than one source accepts."""
    users: dict[str, list[str]] = {}
    for name, source in settings.sources.items():
        for secret in () if source.unsigned else dict.fromkeys(settings.secrets_of(name)):
            users.setdefault(secret, []).append(name)
    for names in dict.fromkeys(tuple(names) for names in users.values() if len(names) > 1):
        found = f"{', '.join(names)} share a secret: a request signed for one is valid at the others"
        fix = "give each source a secret of its own; for one sender at several addresses, give one source several paths"
        yield Finding("secrets", CheckStatus.WARN, found, fix)


def _source(known: KnownSources, name: str) -> Finding:
    settings, check = known.settings, f"source {name}"
    try:
        verifier = compile_verifier(settings, name, added=known.added)
    except ConfigError as error:
        fix = f"correct [sources.{name}] in boathook.toml"
        if name in settings.stored:
            fix = (
                f"`boathook sources change {name}` or `boathook sources secrets add {name}`, or its page in the console"
            )
        return Finding(check, CheckStatus.FAIL, str(error), fix)
    except BoathookError as error:
        return Finding(check, CheckStatus.FAIL, str(error), f"check [sources.{name}]")
    source, recipe = settings.sources[name], verifier.recipe
    if source.unsigned:
        fix = f"verify events in your handlers with the sender's API, or narrow sources.{name}.addresses"
        fix = fix if isinstance(recipe.proof, NoProof) else "give it a secret"
        return Finding(check, CheckStatus.WARN, "accepts unverified requests (unsigned = true)", fix)
    if source.dedup_days is not None and source.dedup_days < (recipe.retries_for_days or 0.0):
        found = f"forgets events after {source.dedup_days:g} days, but {recipe.title} may resend after that"
        fix = f"set sources.{name}.dedup_days to {math.ceil(recipe.retries_for_days or 0.0) + 1} or remove it"
        return Finding(check, CheckStatus.WARN, found, fix)
    secrets = f", {counted(len(source.secrets), 'secret')}" if source.secrets else ""
    return Finding(check, CheckStatus.OK, f"{recipe.title}, {recipe.grade.value}{secrets}")


def _ago(now: datetime, since: datetime | None) -> str:
    return "" if since is None else str(timedelta(seconds=round((now - since).total_seconds())))
