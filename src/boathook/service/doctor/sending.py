"""Checks the requirements of sending: secrets, endpoints and allowed networks."""

from collections.abc import AsyncIterator, Sequence
from ipaddress import ip_address
from typing import Final

from boathook.config import Settings
from boathook.db.database import Database
from boathook.db.health import SendingHealth, read_sending_health
from boathook.db.secret_box import FILE_NAME, open_secret_box
from boathook.domain.errors import ConfigError
from boathook.domain.plurals import counted
from boathook.service import endpoint_secrets
from boathook.service.doctor.handlers import CheckStatus, Finding

_METADATA: Final = (ip_address("169.254.169.254"), ip_address("fd00:ec2::254"))
"""Addresses at which clouds return credentials to any client inside their network."""
_WIDE: Final = {4: 8, 6: 32}
"""Networks of outbound.allow with a shorter prefix than this are too wide."""
_NAMED: Final = 3


async def examine(settings: Settings, database: Database) -> AsyncIterator[Finding]:
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
        return Finding(check, CheckStatus.FAIL, f"are encrypted, and the key is not there: {file} is missing", fix)
    try:
        found = await endpoint_secrets.examine(database, open_secret_box(settings))
    except ConfigError as error:
        return Finding(check, CheckStatus.FAIL, str(error), "correct outbound.encryption_keys")
    if is_file and sending.hosts > 1 and not found.unreadable:
        fix = f'set outbound.encryption_keys on all hosts, such as to ["file:{file}"]'
        hosts = f"boathook runs on {sending.hosts} hosts, and the key is a file of this one"
        return Finding(check, CheckStatus.WARN, hosts, fix)
    return _encrypted(check, found)


def _encrypted(check: str, found: endpoint_secrets.EncryptionReport) -> Finding:
    if found.unreadable:
        reasons = "; ".join(found.unreadable)
        names = _names(found.endpoints)
        fix = f"add the missing key to outbound.encryption_keys, or give these others: {names}"
        return Finding(check, CheckStatus.FAIL, f"{found.unreadable.total()} cannot be read: {reasons}", fix)
    if found.old:
        fix = "run `boathook endpoints reencrypt`; then the old key may go"
        return Finding(check, CheckStatus.WARN, f"{found.old} of {found.number} are encrypted with an old key", fix)
    return Finding(check, CheckStatus.OK, f"all {found.number} can be read")


def _endpoints(sending: SendingHealth) -> Finding:
    if sending.disabled:
        fix = "fix them with their owners, then run `boathook endpoints enable`"
        names = _names(sending.disabled)
        found = f"{len(sending.disabled)} of {sending.endpoints} failed permanently and are disabled: {names}"
        return Finding("endpoints", CheckStatus.WARN, found, fix)
    return Finding("endpoints", CheckStatus.OK, f"{sending.endpoints}, none disabled")


def _breakers(sending: SendingHealth) -> Finding:
    if sending.paused:
        fix = "check their attempts: `boathook deliveries list --recipient endpoint:ID`, then `deliveries show`"
        found = f"paused, as they keep failing: {counted(len(sending.paused), 'endpoint')}, {_names(sending.paused)}"
        return Finding("breakers", CheckStatus.WARN, found, fix)
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
