"""Static tokens, and what every kind of proof has in common."""

import base64
import binascii
from typing import NamedTuple, assert_never

from boathook.domain import signing
from boathook.domain.errors import ConfigError
from boathook.inbound.facts import Facts, read_pairs
from boathook.inbound.places import Basic, Form, Header, Json, Query
from boathook.inbound.providers.proofs import Token
from boathook.inbound.verdict import Reason, Rejected, Request, SourceSpec


class Proven(NamedTuple):
    """The proof held."""

    sent_at: float | None
    """The signed moment of sending in seconds since 1970; None where none is signed."""


def refuse(reason: Reason, detail: str, *, may_reverify: bool = False) -> Rejected:
    """Return the refusal of a request whose proof does not hold."""
    return Rejected(status=401, reason=reason, detail=detail, may_reverify=may_reverify)


def secrets_of(spec: SourceSpec) -> tuple[str, ...]:
    """Return the secrets of a source that must have some.

    Raises:
        ConfigError: there is none, or one is empty.
    """
    if not spec.secrets:
        raise ConfigError(
            f"sources.{spec.name}.secrets: there is none, and {spec.provider} proves its requests with one; "
            'write secrets = ["env:NAME"], or unsigned = true to take in whatever anybody sends'
        )
    for position, secret in enumerate(spec.secrets):
        if not secret.strip():
            raise ConfigError(f"sources.{spec.name}.secrets[{position}]: the secret is empty; set it or remove it")
    return spec.secrets


class TokenCheck:
    """Checks a static token, by the fingerprints of what would be right."""

    def __init__(self, proof: Token, spec: SourceSpec) -> None:
        self._proof = proof
        self._accepted = tuple(
            signing.fingerprint(secret.encode("utf-8", "surrogatepass")) for secret in secrets_of(spec)
        )

    @property
    def evidence(self) -> frozenset[str]:
        """Nothing: what would be needed to check again is the secret itself."""
        return frozenset()

    def check(self, request: Request, _now: float) -> Proven | Rejected:
        """Check one request."""
        token = self._token_of(request)
        if token is None:
            return refuse(Reason.TOKEN_MISSING, f"there is no {self._where()}")
        found = signing.fingerprint(token)
        if any(signing.same_bytes(found, accepted) for accepted in self._accepted):
            return Proven(None)
        return refuse(Reason.TOKEN_MISMATCH, f"the {self._where()} is none of the {len(self._accepted)} configured")

    def _where(self) -> str:
        match self._proof.place:
            case Header(name=name):
                return f"token in header {name}" + (f" behind {self._proof.prefix!r}" if self._proof.prefix else "")
            case Query(name=name):
                return f"token in the query's {name}"
            case Form(name=name) | Json(path=name):
                return f"token in the body's {name}"
            case Basic(username=username):
                return f"HTTP Basic password of user {username!r}"
            case _ as never:
                assert_never(never)

    def _token_of(self, request: Request) -> bytes | None:
        match self._proof.place:
            case Header(name=name):
                value = request.headers.get(name)
                if value is None or not value.startswith(self._proof.prefix):
                    return None
                return value[len(self._proof.prefix) :].encode("latin-1", "replace")
            case Query(name=name):
                return _query_token(request.query, name)
            case Form() | Json() as place:
                text = Facts(request).text(place)
                return None if text is None else text.encode("utf-8", "surrogatepass")
            case Basic(username=username):
                return _basic_password(request.headers.get("authorization", ""), username)
            case _ as never:
                assert_never(never)


def _query_token(query: str, name: str) -> bytes | None:
    values = [value for key, value in read_pairs(query) if key == name]
    # Of a repeated parameter, which one counts differs between programs: none does here.
    return values[0].encode("utf-8", "surrogatepass") if len(values) == 1 else None


def _basic_password(value: str, username: str) -> bytes | None:
    scheme, _, encoded = value.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        user, colon, password = base64.b64decode(encoded.strip().encode("ascii"), validate=True).partition(b":")
    except (binascii.Error, UnicodeEncodeError, ValueError):
        return None
    return password if colon and user == username.encode() else None
