"""Diagnoses an installation: its settings, disk and sources; other modules diagnose what it runs on."""

import contextlib
import math
import os
import resource
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

from boathook.config import Settings
from boathook.config.faults import is_secret
from boathook.db.database import Database
from boathook.domain.errors import BoathookError, ConfigError, DatabaseError, FetchFailed
from boathook.domain.plurals import counted
from boathook.domain.signing import describe_variable, variable_name
from boathook.ingest.sources import compile_sources, compile_verifier, configured_spec, source_spec
from boathook.providers.schemes import NoProof
from boathook.service.database import Migrations, ProgressCallback, server_url
from boathook.service.operating.doctor import database as database_checks
from boathook.service.operating.doctor import packages, spool
from boathook.service.operating.doctor.handlers import CheckStatus, Finding
from boathook.service.operating.source_list import read_stored
from boathook.service.receiving.sources import KnownSources, read_saved
from boathook.verification.source import check_secret_forms

_NOT_SETTINGS: Final = frozenset({"extra", "file", "origins", "unknown_variables"})
"""What is not judged: the sections of apps, and where settings come from."""
_MIB: Final = 1 << 20
_MIN_DISK: Final = 256 * _MIB
_LOW_DISK: Final = 2_048 * _MIB
_RESERVED_FILES: Final = 256
_DAY_S: Final = 86_400
"""Open files a gateway needs in addition to its clients' connections."""


def check_settings(settings: Settings) -> int:
    """Check everything that the settings refer to, and every source with its secrets; return the number of its paths.

    Raises:
        ConfigError: one of them is wrong; the message names the key.
    """
    _check_references(settings)
    for name in settings.sources:
        check_secret_forms(configured_spec(settings, name))
    return len(compile_sources(settings))


def _check_references(settings: Settings) -> None:
    # Most checks do not need these modules.
    from boathook.alerts.service import check_alerts

    settings.database_url()
    settings.encryption_keys()
    check_alerts(settings)
    settings.resolve(settings.outbound.proxy, "outbound.proxy")
    packages.check(settings)


def examine_settings(settings: Settings) -> Iterator[Finding]:
    """Yield what is valid in the settings, and probably not meant."""
    for sentence in settings.unknown_variables.values():
        yield Finding("settings", CheckStatus.WARN, sentence, "correct its name or unset it")
    written: list[str] = []
    for key, text in _secret_texts(settings):
        if name := variable_name(text):
            yield Finding("settings", CheckStatus.WARN, f"{key}: {describe_variable(name)}", "correct it")
        elif settings.is_in_file(key):
            written.append(key)
    if written:
        warning = f"secrets are written out in {settings.file}: {', '.join(written)}"
        yield Finding("settings", CheckStatus.WARN, warning, 'write "env:NAME" or "file:PATH", and the secret there')
    for key, variable in _variables(settings):
        value = os.environ.get(variable, "")
        if fault := _surplus(value):
            sentence = f"{key}: the value of the environment variable {variable} {fault}"
            yield Finding("settings", CheckStatus.WARN, sentence, "set it to the secret alone")
    if settings.server.production and not settings.database.url:
        warning = "server.production is true, but PostgreSQL is the embedded one, which is for development"
        yield Finding("settings", CheckStatus.WARN, warning, "set database.url to a PostgreSQL with backups")


def _variables(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield the keys of secrets in environment variables, with the names of the variables."""
    configured = settings.with_sources(settings.configured_sources)
    for key, text in configured.texts(without=_NOT_SETTINGS):
        if is_secret(key) and text.startswith("env:"):
            yield key, text.removeprefix("env:")


def _surplus(value: str) -> str:
    """Return what surrounds a secret in a variable by mistake; empty if nothing does."""
    if value != value.strip():
        return "begins or ends with white space"
    return "is in quotes" if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'" else ""


def _secret_texts(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield the dotted keys and texts of secrets that are written out, without those of stored sources."""
    configured = settings.with_sources(settings.configured_sources)
    for key, text in configured.texts(without=_NOT_SETTINGS):
        if text and is_secret(key) and not text.startswith(("env:", "file:")):
            yield key, text


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
    for finding in _settings(settings):
        yield finding
    if database is None:
        yield Finding("database", CheckStatus.FAIL, trouble, "make sure that boathook can connect to PostgreSQL")
    else:
        async for finding in database_checks.examine(settings, database, migrations):
            yield finding
    yield _disk(settings.server.data_dir)
    if settings.has_spool or not settings.has_package_buffer:
        for finding in spool.examine(settings):
            yield finding
    async for finding in packages.examine(settings, None):
        yield finding
    async for finding in _user_tokens(settings):
        yield finding
    yield _files(settings)
    for finding in _sources(await _known_sources(settings, database)):
        yield finding


async def _known_sources(settings: Settings, database: Database | None) -> KnownSources:
    if database is not None:
        with contextlib.suppress(DatabaseError):
            return await read_stored(settings, database)
    return read_saved(settings)


def _settings(settings: Settings) -> Iterator[Finding]:
    place = f"{settings.file}" if settings.file else "no boathook.toml: the defaults and the environment"
    try:
        _check_references(settings)
    except ConfigError as error:
        yield Finding("settings", CheckStatus.FAIL, str(error), "correct the setting; boathook does not start with it")
    else:
        yield Finding("settings", CheckStatus.OK, f"{place} is valid" if settings.file else place)
    yield from examine_settings(settings)


async def _user_tokens(settings: Settings) -> AsyncIterator[Finding]:
    """Yield the finding about the keys of the users' issuer; none if no token of users is accepted."""
    if not settings.jwt.is_on:
        return
    from boathook.service.access.user_tokens import UserTokens  # loads the HTTP client and cryptography

    try:
        tokens = UserTokens(settings)
        try:
            number = await tokens.count_keys()
        finally:
            tokens.close()
    except (FetchFailed, ConfigError) as error:
        fix = "see that jwt.jwks_url is right; a private address needs outbound.allow. Users' tokens are answered 503"
        yield Finding("jwt", CheckStatus.FAIL, f"{settings.jwt.jwks_url}: {error}", fix)
        return
    if not number:
        text = f"{settings.jwt.jwks_url} has no key that can verify a token: RSA of 2,048 bits, EC or Ed25519"
        yield Finding("jwt", CheckStatus.FAIL, text, "see that jwt.jwks_url is the issuer's key set")
        return
    text = f"{settings.jwt.jwks_url} has {counted(number, 'key')} for the tokens of users"
    yield Finding("jwt", CheckStatus.OK, text)


def _disk(data_dir: Path) -> Finding:
    folder = data_dir
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    text = f"{free // _MIB:,} MiB free at {folder}"
    if not os.access(folder, os.W_OK):
        return Finding(
            "disk", CheckStatus.FAIL, f"{folder} cannot be written to", "change server.data_dir or its owner"
        )
    if free < _LOW_DISK:
        return Finding("disk", CheckStatus.FAIL if free < _MIN_DISK else CheckStatus.WARN, text, "make room")
    return Finding("disk", CheckStatus.OK, text)


def _files(settings: Settings) -> Finding:
    # A gateway raises its soft limit up to the hard one.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = settings.limits.max_connections + _RESERVED_FILES
    if hard != resource.RLIM_INFINITY and hard < needed:
        fix = f"raise the limit (ulimit -n, LimitNOFILE) to {needed}, or lower limits.max_connections"
        return Finding("open files", CheckStatus.WARN, f"at most {hard}, and {needed} may be needed", fix)
    return Finding("open files", CheckStatus.OK, f"{'unlimited' if hard == resource.RLIM_INFINITY else hard} allowed")


def _sources(sources: KnownSources) -> Iterator[Finding]:
    settings = sources.settings
    if not settings.sources:
        remedy = "add one with `boathook sources add`, in the console, or as [sources.NAME] in boathook.toml"
        yield Finding("sources", CheckStatus.WARN, "there is none, so no request is accepted", remedy)
    compiled = 0
    for name in settings.sources:
        finding = _source(sources, name)
        compiled += finding.verdict is not CheckStatus.FAIL
        yield finding
    for name, problem in sources.live.problems.items():
        is_replaced = name in settings.sources
        verdict = CheckStatus.WARN if is_replaced else CheckStatus.FAIL
        fix = f"`boathook sources change {name}` or `boathook sources remove {name}`, or its page in the console"
        yield Finding(f"stored source {name}", verdict, f"is not used: {problem}", fix)
    if compiled == len(settings.sources):
        paths = compile_sources(settings, sources.added)
        yield Finding("paths", CheckStatus.OK, f"{counted(len(paths), 'path')}, each of one source")
        yield from _shared_secrets(settings)


def _shared_secrets(settings: Settings) -> Iterator[Finding]:
    """Yield a finding for each secret that more than one source accepts."""
    users: dict[str, list[str]] = {}
    for name, source in settings.sources.items():
        for secret in () if source.unsigned else dict.fromkeys(settings.secrets_of(name)):
            users.setdefault(secret, []).append(name)
    for names in dict.fromkeys(tuple(names) for names in users.values() if len(names) > 1):
        text = f"{', '.join(names)} share a secret: a request signed for one is valid at the others"
        fix = "give each source a secret of its own; for one sender at several addresses, give one source several paths"
        yield Finding("secrets", CheckStatus.WARN, text, fix)


def _source(sources: KnownSources, name: str) -> Finding:
    settings, check = sources.settings, f"source {name}"
    try:
        check_secret_forms(source_spec(settings, name, sources.added))
        verifier = compile_verifier(settings, name, added=sources.added)
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
    retries_days = recipe.retries_for_days or 0.0
    if source.dedup_window_s is not None and source.dedup_window_s < retries_days * _DAY_S:
        text = f"forgets events after {source.dedup_window_s:g} s, but {recipe.title} may resend after that"
        fix = f"set sources.{name}.dedup_window_s to {math.ceil(retries_days + 1) * _DAY_S:.0f} or remove it"
        return Finding(check, CheckStatus.WARN, text, fix)
    if source.dedup_window_s is None and source.dedup_days is not None and source.dedup_days < retries_days:
        text = f"forgets events after {source.dedup_days:g} days, but {recipe.title} may resend after that"
        fix = f"set sources.{name}.dedup_days to {math.ceil(retries_days) + 1} or remove it"
        return Finding(check, CheckStatus.WARN, text, fix)
    secrets = f", {counted(len(source.secrets), 'secret')}" if source.secrets else ""
    return Finding(check, CheckStatus.OK, f"{recipe.title}, {recipe.grade.value}{secrets}")
