"""Validates and normalizes the values of an endpoint.

Each check names the field as the API does and raises `InvalidValue`.
"""

import json
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

from boathook.config import Settings
from boathook.db import event_types
from boathook.delivery.signer import read_signer
from boathook.domain.endpoints import OPERATIONAL_TYPES, check_header
from boathook.domain.errors import InvalidValue
from boathook.domain.policy import RETRY_PRESETS, read_retry
from boathook.http_client.addresses import find_denial, read_address
from boathook.service.common_fields import Credential, Password, UserName
from boathook.service.fields import check_value, check_values
from boathook.service.limits import field
from boathook.service.sending.endpoint_fields import NewEndpoint
from boathook.service.unit_of_work import UnitOfWork

_MAX_HEADERS: Final = 50
_MAX_HEADER_BYTES: Final = 16_384
"""Total characters of names and values; headers are sent and recorded with each attempt."""
MAX_PEM: Final = 65_536
"""Maximum characters of a certificate with its chain, and of its key."""

Values = dict[str, Any]


async def read_values(
    work: UnitOfWork, values: Mapping[str, Any], *, is_operational: bool = False, known_types: Collection[str] = ()
) -> Values:
    """Return the columns of an endpoint for the given values, which have the names of `NewEndpoint`.

    Args:
        work: the unit of work.
        values: the values by name.
        is_operational: whether the endpoint receives operational webhooks, which have their own event types.
        known_types: event types that may be archived or missing, such as those that the endpoint has already.

    Raises:
        InvalidValue: a value is invalid.
    """
    check_values(NewEndpoint, values)
    columns: Values = dict(values)
    if "url" in values:
        columns["url"] = read_url(work.app_context.settings, values["url"])[0]
    for name in ("event_types", "channels"):
        if name in values:
            columns[name] = tuple(dict.fromkeys(values[name] or ())) or None
    if "retry" in values:
        columns |= _read_retry(values["retry"])
    if columns.get("event_types") is not None:
        added = [name for name in columns["event_types"] if name not in known_types]
        await _check_types(work, added, is_operational=is_operational)
    return columns


def read_url(settings: Settings, url: str, *location: str) -> tuple[str, tuple[str, str] | None]:
    """Return a URL in its normal form, and the user name and password that it contained.

    Host names are not resolved here, because they may resolve to another address later. A host that is a number, in any
    form that the resolver accepts, and ``localhost`` are checked immediately.
    """
    outbound = settings.outbound
    with field(*(location or ("url",))):
        address = read_address(url, ports=frozenset(outbound.ports), require_https=outbound.require_https)
        denials = {number: find_denial(number, outbound.allow) for number in _fixed_addresses(address.host)}
        if denials and all(denials.values()):
            number, reason = next(iter(denials.items()))
            raise ValueError(
                f"the address {number} may not be reached: {reason}; add its network to outbound.allow to allow it"
            )
    parts = urlsplit(address.url)
    return urlunsplit(parts._replace(netloc=parts.netloc.lower())), address.user


def _fixed_addresses(host: str) -> tuple[str, ...]:
    """Return the addresses that a host stands for whatever the resolver says; empty for other names.

    Names that end in localhost are loopback: https://www.rfc-editor.org/rfc/rfc6761#section-6.3
    """
    if host.rstrip(".").split(".")[-1].lower() == "localhost":
        return ("127.0.0.1", "::1")
    try:
        addresses = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except (OSError, UnicodeError):
        return ()
    return (str(addresses[0][4][0]),)


async def _check_types(work: UnitOfWork, names: Sequence[str], *, is_operational: bool) -> None:
    plain = [name for name in names if "*" not in name]
    if is_operational:
        missing = [name for name in plain if name not in OPERATIONAL_TYPES]
    else:
        missing = await event_types.list_missing(work.connection, work.organization, plain)
    if missing:
        raise InvalidValue(f"there is no event type {', '.join(missing)}; create it first", "eventTypes")


def _read_retry(value: str | Sequence[float] | None) -> Values:
    if value is None:
        return {"retry": None, "retry_name": None}
    name = value if isinstance(value, str) and value in RETRY_PRESETS else None
    return {"retry": read_retry(value), "retry_name": name}


def read_secret(secret: str, *location: str) -> str:
    """Return a secret that can sign. Raises InvalidValue."""
    with field(*location):
        read_signer(secret)
    return secret


def read_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return headers that may be sent. Raises InvalidValue."""
    seen: set[str] = set()
    for name, value in headers.items():
        with field("headers", name):
            check_header(name, value)
            if name.lower() in seen:
                raise ValueError(f"the header {name} is given twice")
        seen.add(name.lower())
    if len(headers) > _MAX_HEADERS:
        raise InvalidValue(f"an endpoint has at most {_MAX_HEADERS} headers", "headers")
    if sum(len(name) + len(value) for name, value in headers.items()) > _MAX_HEADER_BYTES:
        raise InvalidValue(f"all headers together have at most {_MAX_HEADER_BYTES:,} characters", "headers")
    return dict(headers)


def read_auth(settings: Settings, auth: Mapping[str, Any]) -> dict[str, Any]:
    """Return how requests to an endpoint authenticate: any of basic, oauth2 and mtls. Raises InvalidValue."""
    checks: dict[str, Callable[[Mapping[str, str]], Mapping[str, str]]] = {
        "basic": _read_basic,
        "oauth2": lambda value: _read_oauth(settings, value),
        "mtls": read_pair,
    }
    if "basic" in auth and "oauth2" in auth:
        raise InvalidValue("set basic or oauth2, not both: they use the same header", "auth")
    return {kind: dict(check(auth[kind])) for kind, check in checks.items() if kind in auth}


_TOKEN_URL: Final = ("auth", "oauth2", "tokenUrl")


def _read_basic(value: Mapping[str, str]) -> Mapping[str, str]:
    check_value(UserName, value["username"], "auth", "basic", "username")
    check_value(Password, value["password"], "auth", "basic", "password")
    return value


def _read_oauth(settings: Settings, value: Mapping[str, str]) -> Mapping[str, str]:
    for name in ("clientId", "clientSecret"):
        check_value(Credential, value[name], "auth", "oauth2", name)
    return {**value, "tokenUrl": read_url(settings, value["tokenUrl"], *_TOKEN_URL)[0]}


def read_pair(value: Mapping[str, str]) -> Mapping[str, str]:
    """Return a certificate and its key. Raises InvalidValue if either is invalid or they do not match."""
    # Few endpoints have certificates, and this import is slow; the gateway imports it at start.
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key
    from cryptography.x509 import load_pem_x509_certificates

    for name in ("certificate", "key"):
        if len(value[name]) > MAX_PEM:
            raise InvalidValue(f"a PEM text has at most {MAX_PEM:,} characters", "auth", "mtls", name)
    try:
        certificate = load_pem_x509_certificates(value["certificate"].encode())[0]
        # Primality tests of a large key take a minute. The key must match the certificate anyway.
        key = load_pem_private_key(value["key"].encode(), None, unsafe_skip_rsa_key_validation=True)
    except (ValueError, TypeError) as error:
        message = f"use unencrypted PEM texts for the certificate and its key: {_first_line(error)}"
        raise InvalidValue(message, "auth", "mtls") from None
    form = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    if certificate.public_key().public_bytes(*form) != key.public_key().public_bytes(*form):
        raise InvalidValue("the key does not belong to the certificate", "auth", "mtls", "key")
    return value


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0][:120]


def dump(value: Mapping[str, Any]) -> str:
    """Return headers or auth as JSON text for encryption."""
    return json.dumps(value, separators=(",", ":"))
