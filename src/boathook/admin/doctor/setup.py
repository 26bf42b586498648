"""Looks a set-up over: settings, clock, database, disk, spool, sources, endpoints; each finding with its remedy."""

import math
import os
import resource
import shutil
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from boathook.admin.doctor import sending, spool
from boathook.admin.doctor.finding import Finding, Verdict
from boathook.config import Settings
from boathook.domain.errors import AddressRefused, BoathookError, ConfigError, UnsafeDatabase
from boathook.inbound.gates import compile_gates, verifier_of
from boathook.inbound.providers.proofs import NoProof
from boathook.journal.database import Database, check_safety
from boathook.journal.migrations import pending
from boathook.journal.routing import MOST_COUNTED, count_unhandled
from boathook.journal.safety import stall
from boathook.journal.vitals import Vitals, read_clock, read_standbys, read_vitals

_MIB: Final = 1 << 20
_LEAST_DISK: Final = 256 * _MIB
_LITTLE_DISK: Final = 2_048 * _MIB
_FILES_BESIDES: Final = 256
"""Open files a gateway needs besides its clients' connections."""


async def examine(
    settings: Settings, database: Database | None, trouble: str = "", *, migrations: Sequence[tuple[str, Path]] = ()
) -> AsyncIterator[Finding]:
    """Yield the findings about a set-up, one by one.

    Args:
        settings: as read.
        database: connections to the journal; None where it could not be reached, with *trouble* saying why.
        trouble: why there is no *database*.
        migrations: the apps that are loaded and have tables, with the folders of their migrations.
    """
    yield _settings(settings)
    if database is None:
        yield Finding("database", Verdict.FAIL, trouble, "see that boathook can connect to PostgreSQL")
    else:
        async for finding in _database(settings, database, migrations):
            yield finding
    yield _disk(settings.server.data_dir)
    for finding in spool.examine(settings):
        yield finding
    yield _files(settings)
    for finding in _sources(settings):
        yield finding


def _settings(settings: Settings) -> Finding:
    if settings.file is None:
        return Finding("settings", Verdict.OK, "no boathook.toml: the defaults and the environment")
    return Finding("settings", Verdict.OK, f"{settings.file} is understood")


async def _database(
    settings: Settings, database: Database, migrations: Sequence[tuple[str, Path]]
) -> AsyncIterator[Finding]:
    yield await _safety(settings, database)
    yield await _standbys(database)
    yield await _clock(database)
    finding = await _schema(database, migrations)
    yield finding
    if finding.verdict is Verdict.FAIL:
        return
    vitals = await read_vitals(database)
    yield _connections(settings, vitals)
    yield _partitions(vitals)
    yield _backlog(vitals)
    yield _routes(vitals)
    yield _unhandled(await count_unhandled(database, vitals.now - timedelta(days=1)))
    yield _dead(vitals)
    yield _snapshot(vitals)
    yield await spool.compare(settings, database)
    async for finding in sending.examine(settings, database):
        yield finding


async def _schema(database: Database, migrations: Sequence[tuple[str, Path]]) -> Finding:
    try:
        lacking = await pending(database, migrations)
    except BoathookError as error:
        return Finding(
            "schema", Verdict.FAIL, str(error), "correct the app's files, or install the app's release again"
        )
    if lacking:
        return Finding("schema", Verdict.FAIL, f"lacks {', '.join(lacking)}", "run `boathook migrate`")
    return Finding("schema", Verdict.OK, "is current")


async def _safety(settings: Settings, database: Database) -> Finding:
    try:
        notes = await check_safety(database, allow_unsafe=settings.database.allow_unsafe)
    except (AddressRefused, UnsafeDatabase) as error:
        found, _, fix = str(error).partition(". ")
        return Finding("safety", Verdict.FAIL, found, fix)
    if notes:
        return Finding("safety", Verdict.WARN, " ".join(notes), "set database.allow_unsafe = false in production")
    return Finding("safety", Verdict.OK, "what is committed stays committed")


async def _standbys(database: Database) -> Finding:
    standbys = await read_standbys(database)
    if standbys.stalled:
        found, _, fix = stall(standbys.stalled).partition(". ")
        return Finding("standbys", Verdict.WARN, found, fix)
    if not standbys.connected:
        return Finding("standbys", Verdict.OK, "none is connected; what is committed is on the primary alone")
    if standbys.names and not (standbys.is_hidden or standbys.synchronous):
        found = f"none of the {standbys.connected} connected is one of synchronous_standby_names ({standbys.names})"
        return Finding("standbys", Verdict.WARN, found, "start the one that is named: commits wait for it")
    if standbys.names:
        return Finding("standbys", Verdict.OK, f"{standbys.connected} connected, and commits wait for {standbys.names}")
    found = f"{standbys.connected} connected, and commits wait for none: promoting one loses what it has not got yet"
    return Finding("standbys", Verdict.WARN, found, "set synchronous_standby_names, if a failover may lose nothing")


async def _clock(database: Database) -> Finding:
    before = time.time()
    theirs = (await read_clock(database)).timestamp()
    skew_s = theirs - (before + time.time()) / 2
    found = f"{abs(skew_s):.1f} s {'behind' if skew_s > 0 else 'ahead of'} the database's"
    if abs(skew_s) < 2:
        return Finding("clock", Verdict.OK, "agrees with the database's")
    verdict = Verdict.WARN if abs(skew_s) < 60 else Verdict.FAIL
    return Finding("clock", verdict, found, "synchronise both hosts' clocks (NTP); signatures carry timestamps")


def _connections(settings: Settings, vitals: Vitals) -> Finding:
    needed = settings.server.gateways * (settings.database.intake_connections + 2)
    needed += (settings.server.workers + 1) * (settings.database.worker_connections + 2) + 4
    found = f"PostgreSQL {vitals.version}, {vitals.connections} of {vitals.most_connections} connections in use"
    if needed + 5 > vitals.most_connections:
        fix = f"raise max_connections above {needed + 5}, or lower server.workers or database.worker_connections"
        return Finding("connections", Verdict.WARN, f"{found}; these settings need {needed}", fix)
    return Finding("connections", Verdict.OK, found)


def _partitions(vitals: Vitals) -> Finding:
    fix = "run the keeper: `boathook serve` with the role keeper"
    if vitals.latest_partition is None:
        return Finding("partitions", Verdict.FAIL, "there is none", fix)
    ahead = (vitals.latest_partition - vitals.now.date()).days
    if ahead < 0 or vitals.strays:
        found = f"the last is for the week of {vitals.latest_partition}; {vitals.strays} events are in none"
        return Finding("partitions", Verdict.FAIL if ahead < -7 else Verdict.WARN, found, fix)
    return Finding("partitions", Verdict.OK, f"are made up to the week of {vitals.latest_partition}")


def _backlog(vitals: Vitals) -> Finding:
    if vitals.overdue or vitals.abandoned:
        oldest = _ago(vitals.now, vitals.oldest_due)
        found = f"{vitals.overdue} deliveries overdue, the oldest since {oldest}; {vitals.abandoned} leases abandoned"
        return Finding("backlog", Verdict.WARN, found, "run workers and a keeper, or more of them (server.workers)")
    return Finding("backlog", Verdict.OK, "nothing is overdue")


def _routes(vitals: Vitals) -> Finding:
    if vitals.unrouted:
        names = ", ".join(f"{one.recipient} ({one.number})" for one in vitals.unrouted[:5])
        fix = (
            "load the app that handles them (server.app or apps.load), or decide about them once they are dead letters"
        )
        return Finding("routes", Verdict.WARN, f"owed to recipients that no active route names: {names}", fix)
    return Finding("routes", Verdict.OK, "everything owed has its recipient")


def _unhandled(counts: Mapping[str, int]) -> Finding:
    if not counts:
        return Finding("unhandled", Verdict.OK, "every event of the last day matched a handler")
    number = sum(counts.values())
    shown = f"{number:,} or more" if number >= MOST_COUNTED else f"{number:,}"
    sources = ", ".join(f"{source} ({of_source:,})" for source, of_source in list(counts.items())[:5])
    fix = (
        "see `boathook events list --unhandled`; once a handler matches them, run"
        " `boathook events replay --route --unhandled`"
    )
    return Finding("unhandled", Verdict.WARN, f"{shown} events of the last day matched no handler: {sources}", fix)


def _dead(vitals: Vitals) -> Finding:
    if vitals.dead:
        return Finding(
            "dead letters", Verdict.WARN, f"{vitals.dead} wait for a decision", "look at `boathook dead list`"
        )
    return Finding("dead letters", Verdict.OK, "none")


def _snapshot(vitals: Vitals) -> Finding:
    if vitals.held_up_by:
        names = ", ".join(vitals.held_up_by[:5])
        return Finding("snapshots", Verdict.WARN, f"cleaning up is held up by {names}", "end or drop them")
    since = vitals.snapshot_since
    if since is not None and vitals.now - since > timedelta(minutes=5):
        found = f"{vitals.snapshot_by} has held one for {_ago(vitals.now, since)}, so the queue cannot be cleaned up"
        return Finding("snapshots", Verdict.WARN, found, "end that session, or its transaction")
    return Finding("snapshots", Verdict.OK, "none is old")


def _disk(data_dir: Path) -> Finding:
    folder = data_dir
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    found = f"{free // _MIB:,} MiB free at {folder}"
    if not os.access(folder, os.W_OK):
        return Finding("disk", Verdict.FAIL, f"{folder} cannot be written to", "change server.data_dir or its owner")
    if free < _LITTLE_DISK:
        return Finding("disk", Verdict.FAIL if free < _LEAST_DISK else Verdict.WARN, found, "make room")
    return Finding("disk", Verdict.OK, found)


def _files(settings: Settings) -> Finding:
    # A gateway raises its own limit as far as this one.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = settings.limits.max_connections + _FILES_BESIDES
    if hard != resource.RLIM_INFINITY and hard < needed:
        fix = f"raise the limit (ulimit -n, LimitNOFILE) to {needed}, or lower limits.max_connections"
        return Finding("open files", Verdict.WARN, f"at most {hard}, and {needed} may be needed", fix)
    return Finding("open files", Verdict.OK, f"{'unlimited' if hard == resource.RLIM_INFINITY else hard} allowed")


def _sources(settings: Settings) -> Iterator[Finding]:
    if not settings.sources:
        remedy = "add [sources.NAME] to boathook.toml"
        yield Finding("sources", Verdict.WARN, "there is none, so no request is accepted", remedy)
    compiled = 0
    for name in settings.sources:
        finding = _source(settings, name)
        compiled += finding.verdict is not Verdict.FAIL
        yield finding
    if compiled == len(settings.sources):
        paths = compile_gates(settings)
        yield Finding("paths", Verdict.OK, f"{_counted(len(paths), 'path')}, each of one source")
        yield from _shared_secrets(settings)


def _shared_secrets(settings: Settings) -> Iterator[Finding]:
    """Yield a finding for each secret that proves requests to more than one source."""
    users: dict[str, list[str]] = {}
    for name, source in settings.sources.items():
        for secret in () if source.unsigned else dict.fromkeys(settings.secrets_of(name)):
            users.setdefault(secret, []).append(name)
    for names in dict.fromkeys(tuple(names) for names in users.values() if len(names) > 1):
        found = f"{', '.join(names)} share one: what is signed for one of them may pass at another"
        fix = "give each source a secret of its own; for one sender at several addresses, give one source several paths"
        yield Finding("secrets", Verdict.WARN, found, fix)


def _source(settings: Settings, name: str) -> Finding:
    check = f"source {name}"
    try:
        verifier = verifier_of(settings, name)
    except ConfigError as error:
        return Finding(check, Verdict.FAIL, str(error), f"correct [sources.{name}] in boathook.toml")
    except BoathookError as error:
        return Finding(check, Verdict.FAIL, str(error), f"look at [sources.{name}]")
    source, recipe = settings.sources[name], verifier.recipe
    if source.unsigned:
        fix = f"let your handlers ask the sender whether it is true, or narrow sources.{name}.addresses"
        fix = fix if isinstance(recipe.proof, NoProof) else "give it a secret"
        return Finding(check, Verdict.WARN, "takes anybody's requests (unsigned = true)", fix)
    if source.dedup_days is not None and source.dedup_days < (recipe.retries_for_days or 0.0):
        found = f"forgets events after {source.dedup_days:g} days, but {recipe.title} may send one again after more"
        fix = f"set sources.{name}.dedup_days to {math.ceil(recipe.retries_for_days or 0.0) + 1} or remove it"
        return Finding(check, Verdict.WARN, found, fix)
    secrets = f", {_counted(len(source.secrets), 'secret')}" if source.secrets else ""
    return Finding(check, Verdict.OK, f"{recipe.title}, {recipe.grade.value}{secrets}")


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _ago(now: datetime, moment: datetime | None) -> str:
    return "" if moment is None else str(timedelta(seconds=round((now - moment).total_seconds())))
