"""Reveals and rotates the secrets of endpoints, changes their headers, and re-encrypts all stored secrets."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from typing import Final

import msgspec

from boathook.db import encrypted_secrets, endpoints
from boathook.db.applications import Application
from boathook.db.audit import record
from boathook.db.database import Database
from boathook.db.delivery_commands import AuditContext
from boathook.db.secret_box import SecretBox
from boathook.delivery.signer import make_ed25519_secret as make_ed25519_secret  # noqa: PLC0414 - re-exported
from boathook.delivery.signer import make_secret, read_signer
from boathook.domain.endpoints import SENSITIVE_HEADERS
from boathook.domain.errors import LimitReached, NotFound, SecretUnreadable
from boathook.service.limits import MAX_SECRET_GRACE, check_duration
from boathook.service.sending import destinations
from boathook.service.sending.endpoint_values import read_headers, read_secret
from boathook.service.sending.endpoints import complete_update, decrypt_headers, encrypt_headers, get, lock
from boathook.service.unit_of_work import UnitOfWork

_NAMED: Final = 5

ProgressCallback = Callable[[int], None]
"""Called with the number of secrets processed so far."""


class EncryptionReport(msgspec.Struct):
    """The result of checking the encrypted texts."""

    number: int = 0
    old: int = 0
    """Readable, but encrypted with another key than the first."""
    unreadable: Counter[str] = msgspec.field(default_factory=Counter)
    """Counts by reason, which names the key."""
    endpoints: list[str] = msgspec.field(default_factory=list)
    """Ids of some endpoints or source secrets that cannot be decrypted."""


async def examine(database: Database, secret_box: SecretBox) -> EncryptionReport:
    """Try to decrypt every encrypted text; change nothing."""
    report = EncryptionReport()
    async for secret in encrypted_secrets.list_all(database):
        _try_decrypt(secret_box, secret, report)
    return report


async def reencrypt(
    database: Database, secret_box: SecretBox, action: AuditContext, report: ProgressCallback | None = None
) -> EncryptionReport:
    """Re-encrypt with the first key all texts that use another key; leave unreadable texts unchanged.

    It can be interrupted and repeated. Concurrent changes are encrypted with the first key anyway.
    """
    encryption = EncryptionReport()
    async for secret in encrypted_secrets.list_all(database):
        text = _try_decrypt(secret_box, secret, encryption)
        if text is not None and not secret_box.is_current(secret.encrypted):
            await encrypted_secrets.update(database, secret, secret_box.encrypt(text, secret.context))
        if report is not None:
            report(encryption.number)
    if encryption.old:
        async with database.transaction() as connection:
            await record(
                connection, action.actor, "endpoint.reencrypt", f"{encryption.old} encrypted texts", action.note
            )
    return encryption


def _try_decrypt(
    secret_box: SecretBox, secret: encrypted_secrets.EncryptedSecret, report: EncryptionReport
) -> str | None:
    report.number += 1
    try:
        text = secret_box.open(secret.encrypted, secret.context)
    except SecretUnreadable as error:
        report.unreadable[str(error)] += 1
        if len(report.endpoints) < _NAMED:
            report.endpoints.append(secret.shown_id)
        return None
    report.old += not secret_box.is_current(secret.encrypted)
    return text


MAX_OLD_SECRETS: Final = 10
DEFAULT_GRACE: Final = timedelta(days=1)


class Headers(msgspec.Struct, frozen=True):
    """The displayable headers that are sent with each message."""

    shown: Mapping[str, str]
    sensitive: tuple[str, ...]
    """Names of the headers whose values are hidden."""


async def get_secret(work: UnitOfWork, application: Application, reference: str) -> str:
    """Return what receivers verify with: the symmetric secret, or the public key of an Ed25519 one.

    Raises:
        NotFound: there is no such endpoint.
        SecretUnreadable: the secret cannot be decrypted with the configured keys.
    """
    endpoint = await get(work, application, reference)
    encrypted = await endpoints.find_secret(work.connection, endpoint.id)
    if encrypted is None:
        raise NotFound(f"the endpoint {reference} has no secret")
    return read_signer(work.app_context.secret_box.open(encrypted, f"endpoint_secret:{endpoint.shown_id}")).public


async def reveal_secret(work: UnitOfWork, application: Application, reference: str) -> str:
    """Return the result of `get_secret` for display, and record who read it. Raises as that does."""
    secret = await get_secret(work, application, reference)
    endpoint = await get(work, application, reference)
    await record(work.connection, work.actor, "endpoint.secret.show", endpoint.shown_id)
    return secret


async def rotate_secret(
    work: UnitOfWork,
    application: Application,
    reference: str,
    *,
    secret: str | None = None,
    grace: timedelta = DEFAULT_GRACE,
) -> str:
    """Replace an endpoint's secret; the old one also signs for *grace*. Return what receivers verify with.

    Raises:
        NotFound: there is no such endpoint.
        InvalidValue: *secret* cannot sign, or the time is too long.
        LimitReached: too many former secrets are still valid.
    """
    check_duration(grace, timedelta(0), MAX_SECRET_GRACE, "gracePeriodSeconds")
    kind = work.app_context.settings.outbound.signature_type
    secret = make_secret(kind) if secret is None else read_secret(secret, "key")
    endpoint = await lock(work, application, reference)
    destinations.require_signature(endpoint.destination, "key")
    number, next_end = await endpoints.count_old_secrets(work.connection, endpoint.id)
    if number >= MAX_OLD_SECRETS and next_end is not None:
        raise LimitReached(f"{number} old secrets still sign, the maximum; the first expires at {next_end.isoformat()}")
    encrypted = work.app_context.secret_box.encrypt(secret, f"endpoint_secret:{endpoint.shown_id}")
    await endpoints.replace_secret(work.connection, endpoint.id, encrypted, grace)
    saved = await endpoints.save(work.connection, endpoint, endpoint)
    await complete_update(work, application, endpoint, saved, has_new_secret=True)
    return read_signer(secret).public


async def get_headers(work: UnitOfWork, application: Application, reference: str) -> Headers:
    """Return an endpoint's headers with sensitive values hidden. Raises NotFound, SecretUnreadable."""
    headers = decrypt_headers(work, await get(work, application, reference))
    hidden = tuple(name for name in headers if name.lower() in SENSITIVE_HEADERS)
    return Headers({name: value for name, value in headers.items() if name not in hidden}, hidden)


async def reveal_headers(work: UnitOfWork, application: Application, reference: str) -> Headers:
    """Return the result of `get_headers` for display, and record who read it. Raises as that does."""
    headers = await get_headers(work, application, reference)
    endpoint = await get(work, application, reference)
    await record(work.connection, work.actor, "endpoint.headers.show", endpoint.shown_id)
    return headers


async def set_headers(work: UnitOfWork, application: Application, reference: str, headers: Mapping[str, str]) -> None:
    """Replace all of an endpoint's headers. Raises NotFound, InvalidValue."""
    endpoint = await lock(work, application, reference)
    if headers:
        destinations.require_field(endpoint.destination, "headers")
    changed = encrypt_headers(work, endpoint, read_headers(headers))
    await complete_update(work, application, endpoint, await endpoints.save(work.connection, endpoint, changed))


async def change_headers(
    work: UnitOfWork,
    application: Application,
    reference: str,
    headers: Mapping[str, str | None],
    removed: Collection[str] = (),
) -> None:
    """Set some of an endpoint's headers, and remove those that are None or in *removed*.

    Names are case-insensitive; the latest spelling is kept. Raises NotFound, InvalidValue, SecretUnreadable.
    """
    endpoint = await lock(work, application, reference)
    if headers:
        destinations.require_field(endpoint.destination, "headers")
    added = read_headers({name: value for name, value in headers.items() if value is not None})
    touched = {name.lower() for name in (*headers, *removed)}
    present = decrypt_headers(work, endpoint)
    untouched = {name: value for name, value in present.items() if name.lower() not in touched}
    merged = read_headers(untouched | added)
    changed = endpoint if merged == present else encrypt_headers(work, endpoint, merged)
    await complete_update(work, application, endpoint, await endpoints.save(work.connection, endpoint, changed))
