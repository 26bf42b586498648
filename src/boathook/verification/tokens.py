"""Checks static tokens and source addresses, and holds what all checks share."""

import base64
import binascii
from collections.abc import Iterator, Sequence
from ipaddress import ip_network
from typing import NamedTuple, assert_never

from boathook.domain import signing
from boathook.domain.errors import ConfigError
from boathook.domain.json_document import UNREADABLE, parse, scalar_text
from boathook.domain.signing import PRIVATE_PREFIX, PUBLIC_PREFIX
from boathook.domain.verification import Reason, Rejected, Request, SourceSpec
from boathook.http.limits import Network, is_within
from boathook.providers.request_reader import (
    BasicPassword,
    Form,
    Header,
    Json,
    Query,
    expand_path,
    form_of,
    read_form_field,
    read_pairs,
    single_value,
)
from boathook.providers.schemes import Token


class ValidProof(NamedTuple):
    """The proof is valid."""

    sent_at: float | None
    """The signed time of sending in seconds since 1970; None if none is signed."""
    once: Sequence[bytes] = ()
    """The signed bytes in pieces, if the sender never signs the same bytes for two events; otherwise empty."""
    id: str | None = None
    """The event id covered by the proof, if any; other headers may hold an unsigned id."""


def reject(reason: Reason, detail: str, *, may_reverify: bool = False) -> Rejected:
    """Return the rejection of a request whose proof is not valid."""
    return Rejected(status=401, reason=reason, detail=detail, may_reverify=may_reverify)


def describe_secrets(count: int) -> str:
    """Describe how many secrets were tried, for the operator."""
    return "the source's secret" if count == 1 else f"any of the source's {count} secrets"


def required_secrets(spec: SourceSpec) -> tuple[str, ...]:
    """Return the secrets of a source that requires at least one.

    Raises:
        ConfigError: there is none, or one is empty or a sender's private key.
    """
    if not spec.secrets:
        raise ConfigError(
            f"sources.{spec.name}.secrets: there is none, but {spec.provider} signs its requests with one; "
            'write secrets = ["env:NAME"], or unsigned = true to accept every request'
        )
    for position, secret in enumerate(spec.secrets):
        if _is_blank(secret):
            raise ConfigError(f"sources.{spec.name}.secrets[{position}]: the secret is empty; set or remove it")
        if secret.strip().removeprefix("v1a,").startswith(PRIVATE_PREFIX):
            raise ConfigError(
                f"sources.{spec.name}.secrets[{position}]: this is a private signing key ({PRIVATE_PREFIX}), which "
                f"only the sender may have; copy the sender's public key, which begins with {PUBLIC_PREFIX}, and set "
                'scheme = "v1a"'
            )
    return spec.secrets


def _is_blank(secret: str) -> bool:
    """Return whether a secret holds nothing that an attacker would have to guess."""
    # A key of NULs signs like an empty one, and files can be all NULs after a power failure. A bare prefix can be what
    # a template leaves of an unset variable.
    content = secret.strip().removeprefix(signing.VERSION_PREFIX).removeprefix(signing.STANDARD_PREFIX)
    return not any(char.isprintable() and not char.isspace() for char in content)


class TokenCheck:
    """Checks a static token by comparing fingerprints.

    A token in the body is stored with the event, because bodies are stored byte for byte.
    """

    def __init__(self, proof: Token, spec: SourceSpec) -> None:
        self._proof = proof
        self._accepted = tuple(
            signing.fingerprint(secret.encode("utf-8", "surrogatepass")) for secret in required_secrets(spec)
        )

    @property
    def proof_headers(self) -> frozenset[str]:
        """Empty: checking again would need the secret itself."""
        return frozenset()

    def check(self, request: Request, _now: float) -> ValidProof | Rejected:
        """Check one request."""
        is_any = False
        # One by one, so that the first wrong token ends the check, however many there are.
        for token in self._tokens_of(request):
            if token is None:
                return reject(Reason.TOKEN_MISSING, f"there is no {self._where()}")
            fingerprint = signing.fingerprint(token)
            if not any(signing.equal_bytes_constant_time(fingerprint, accepted) for accepted in self._accepted):
                secrets = describe_secrets(len(self._accepted))
                return reject(Reason.TOKEN_MISMATCH, f"the {self._where()} does not match {secrets}")
            is_any = True
        return ValidProof(None) if is_any else reject(Reason.TOKEN_MISSING, f"there is no {self._where()}")

    def _where(self) -> str:
        match self._proof.selector:
            case Header(name=name):
                return f"token in header {name}" + (f" after {self._proof.prefix!r}" if self._proof.prefix else "")
            case Query(name=name):
                return f"token in the query's {name}"
            case Form(name=name):
                return f"token in the body's {name}"
            case Json(path=path):
                return f"token in the body's {path}" + (" of each element" if "*" in path else "")
            case BasicPassword(username=username):
                return f"HTTP Basic password of user {username!r}"
            case _ as never:
                assert_never(never)

    def _tokens_of(self, request: Request) -> Iterator[bytes | None]:
        """Yield the tokens that must be valid; None for a missing one."""
        prefix = self._proof.prefix
        match self._proof.selector:
            case Header(name=name):
                yield _behind(prefix, request.headers.get(name), "latin-1")
            case Query(name=name):
                yield _behind(prefix, single_value(read_pairs(request.query), name))
            case Form() as selector:
                yield _behind(prefix, scalar_text(read_form_field(form_of(request), selector)))
            case Json(path=path):
                document = parse(request.body)
                matches = iter(()) if document is UNREADABLE else expand_path(document, path)
                yield from (_behind(prefix, scalar_text(value)) for _, value in matches)
            case BasicPassword(username=username):
                yield _basic_password(request.headers.get("authorization", ""), username)
            case _ as never:
                assert_never(never)


def _behind(prefix: str, text: str | None, encoding: str = "utf-8") -> bytes | None:
    if text is None or not text.startswith(prefix):
        return None
    return text[len(prefix) :].encode(encoding, "replace" if encoding == "latin-1" else "surrogatepass")


def _basic_password(value: str, username: str) -> bytes | None:
    scheme, _, encoded = value.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        user, colon, password = base64.b64decode(encoded.strip().encode("ascii"), validate=True).partition(b":")
    except (binascii.Error, UnicodeEncodeError, ValueError):
        return None
    return password if colon and user == username.encode() else None


class AddressCheck:
    """Checks that requests to one source come from allowed addresses; the source's ``addresses`` override the recipe's.

    Raises:
        ConfigError: an entry is not a network.
    """

    def __init__(self, spec: SourceSpec, networks: Sequence[str] = ()) -> None:
        self._networks = tuple(_network(spec, text) for text in spec.addresses or networks)

    @property
    def proof_headers(self) -> frozenset[str]:
        """Empty: the address is stored with every rejection."""
        return frozenset()

    def check(self, request: Request, _now: float) -> ValidProof | Rejected:
        """Check one request."""
        if is_within(request.client, self._networks):
            return ValidProof(None)
        address = ascii(request.client[:60])
        return reject(
            Reason.ADDRESS_NOT_ALLOWED,
            f"the sender's address {address} is in none of the {len(self._networks)} allowed networks; "
            "behind a proxy, add the proxy to server.trusted_proxies",
            may_reverify=True,
        )


def _network(spec: SourceSpec, text: str) -> Network:
    try:
        return ip_network(text.strip())
    except ValueError:
        raise ConfigError(
            f"sources.{spec.name}.addresses: {text!r} is neither an address nor a network; "
            "use one such as 192.0.2.7, 192.0.2.0/24 or 2001:db8::/32, without host bits"
        ) from None
