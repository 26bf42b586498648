"""Verifies JSON Web Tokens (RFC 7519): the signature with PyJWT, the timestamps against the time of receipt.

The recipe decides which algorithms are accepted, never the token (RFC 8725, section 3.1). One check uses either shared
secrets or key sets, never both, so that a public key cannot be used as a secret.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from jwt import PyJWK, PyJWKError, PyJWS
from jwt.algorithms import HMACAlgorithm
from jwt.exceptions import PyJWTError

from boathook.domain.errors import ConfigError
from boathook.domain.json_document import UNREADABLE, parse
from boathook.domain.verification import KeyRequired, Reason, Rejected, Request, SourceSpec
from boathook.providers.options import CREDENTIAL_HEADERS
from boathook.providers.request_reader import RequestReader
from boathook.providers.schemes import MAX_SIGNATURES, TOLERANCE_S, Jwt
from boathook.verification.keyring import KeyRing
from boathook.verification.public_keys import MIN_RSA_BITS
from boathook.verification.signed_content import TimestampWindow
from boathook.verification.tokens import ValidProof, reject, required_secrets

MAX_TOKEN: Final = 8_192
REFETCH_S: Final = 60.0
"""A key set is fetched again for an unknown key id, but not within this interval, because forged ids cost nothing."""
_MAX_KEYS: Final = 32
_MAX_TIMESTAMP: Final = 1e11
"""Upper bound in seconds since 1970 for a plausible timestamp; it also excludes NaN and infinity."""
_SHARED: Final = {"HS256": HMACAlgorithm.SHA256, "HS384": HMACAlgorithm.SHA384, "HS512": HMACAlgorithm.SHA512}
_PUBLIC: Final = frozenset({"RS256"})


class AnyKeyLength(HMACAlgorithm):
    """HMAC that accepts short secrets: the sender chose them, and a warning for each request would be noise."""

    def check_key_length(self, _key: Any) -> None:
        """Accept any length."""


class _NamedKey(NamedTuple):
    kid: str | None
    key: PyJWK


class JwtCheck:
    """Checks the token of requests to one source.

    Raises:
        ConfigError: a secret is missing, empty, or a public key where a shared secret is expected.
    """

    def __init__(self, proof: Jwt, spec: SourceSpec, settings: Mapping[str, str], ring: KeyRing) -> None:
        allowed = _PUBLIC if proof.key_set else frozenset(_SHARED)
        if not proof.algorithms or not allowed.issuperset(proof.algorithms):
            raise ConfigError(f"sources.{spec.name}.provider: {proof.algorithms} do not match the source's keys")
        self._proof = proof
        self._settings = settings
        self._ring = ring
        self._secrets = () if proof.key_set else _read_secrets(spec)
        self._leeway_s = TimestampWindow(spec, TOLERANCE_S).tolerance_s
        self._algorithms = list(proof.algorithms)
        self._jws = PyJWS(algorithms=self._algorithms)
        for name in _SHARED.keys() & proof.algorithms:
            self._jws.unregister_algorithm(name)
            self._jws.register_algorithm(name, AnyKeyLength(_SHARED[name]))

    @property
    def proof_headers(self) -> frozenset[str]:
        """The token's header, unless it holds credentials, which are never stored."""
        return frozenset({self._proof.header}) - CREDENTIAL_HEADERS

    def check(self, request: Request, now: float) -> ValidProof | KeyRequired | Rejected:
        """Check one request received at *now*, in seconds since 1970."""
        token = self._token_of(request)
        if isinstance(token, Rejected):
            return token
        keys = self._keys_for(token, now)
        if isinstance(keys, KeyRequired | Rejected):
            return keys
        claims = self._claims_of(token, keys)
        if isinstance(claims, Rejected):
            return claims
        return (
            self._check_times(claims, now)
            or self._check_claims(claims, request)
            or ValidProof(_numeric_date(claims, "iat"))
        )

    def _token_of(self, request: Request) -> str | Rejected:
        value = request.headers.get(self._proof.header)
        if value is None:
            return reject(Reason.SIGNATURE_MISSING, f"there is no header {self._proof.header}")
        prefix = self._proof.prefix
        if value[: len(prefix)].lower() != prefix.lower():
            detail = f"header {self._proof.header} does not begin with {prefix!r}"
            return reject(Reason.SIGNATURE_MISSING, detail)
        token = value[len(prefix) :].strip()
        if len(token) > MAX_TOKEN:
            return reject(Reason.SIGNATURE_MALFORMED, f"the token is longer than {MAX_TOKEN} characters")
        return token

    def _keys_for(self, token: str, now: float) -> tuple[str | PyJWK, ...] | KeyRequired | Rejected:
        """Return the keys to try: the source's secrets, or those of the issuer's set with the token's key id."""
        try:
            header = self._jws.get_unverified_header(token)
        except (PyJWTError, ValueError, TypeError, RecursionError):
            return reject(Reason.SIGNATURE_MALFORMED, "the token is not a JSON Web Token")
        if header.get("alg") not in self._algorithms:
            algorithms = " or ".join(self._algorithms)
            return reject(Reason.UNKNOWN_SCHEME, f"the token is not signed with {algorithms}")
        url = self._proof.key_set
        if url is None:
            return self._secrets
        content = self._ring.get(url, now)
        if content is None:
            return KeyRequired(url=url)
        keys = read_key_set(content)
        if not keys:
            return reject(Reason.KEY_UNAVAILABLE, "the issuer's key set contains no usable key")
        kid = header.get("kid")
        matching = tuple(key.key for key in keys if kid is None or key.kid == kid)
        if matching:
            return matching[:MAX_SIGNATURES]
        if self._ring.is_older(url, REFETCH_S, now):
            return KeyRequired(url=url)
        return reject(Reason.SIGNATURE_MISMATCH, "the token names a key that is not in the issuer's set")

    def _claims_of(self, token: str, keys: tuple[str | PyJWK, ...]) -> dict[str, Any] | Rejected:
        for key in keys:
            try:
                payload = self._jws.decode(token, key=key, algorithms=self._algorithms)
            except (PyJWTError, ValueError, TypeError, RecursionError):
                continue
            claims = parse(payload)
            if claims is UNREADABLE or not isinstance(claims, dict):
                return reject(
                    Reason.SIGNATURE_MALFORMED, "the token's signature is valid, but its claims cannot be read"
                )
            return claims
        return reject(
            Reason.SIGNATURE_MISMATCH, f"the token's signature matches none of {len(keys)} keys", may_reverify=True
        )

    def _check_times(self, claims: Mapping[str, Any], now: float) -> Rejected | None:
        for name in ("exp", "nbf", "iat"):
            if name in claims and _numeric_date(claims, name) is None:
                return reject(Reason.TIMESTAMP_MALFORMED, f"the token's {name} is not a number of seconds since 1970")
        expires, starts, issued = (_numeric_date(claims, name) for name in ("exp", "nbf", "iat"))
        if expires is None and self._proof.must_expire:
            return reject(Reason.TIMESTAMP_MISSING, "the token has no exp, so it would never expire")
        if expires is not None and now > expires + self._leeway_s:
            detail = f"the token expired {now - expires:.0f} s ago"
            return reject(Reason.TIMESTAMP_TOO_OLD, detail, may_reverify=True)
        if max(starts or 0.0, issued or 0.0) > now + self._leeway_s:
            detail = "the token's issue or start time is in the future by this machine's clock"
            return reject(Reason.TIMESTAMP_IN_FUTURE, detail, may_reverify=True)
        return None

    def _check_claims(self, claims: Mapping[str, Any], request: Request) -> Rejected | None:
        issuers = self._proof.issuers
        if issuers and claims.get("iss") not in issuers:
            return reject(Reason.SIGNATURE_MISMATCH, f"the token's issuer is not {' or '.join(issuers)}")
        try:
            trouble = self._proof.check_claims(claims, RequestReader(request, self._settings))
        except Exception as error:  # noqa: BLE001 - whatever was sent, it is rejected
            trouble = f"the token's claims cannot be read ({type(error).__name__})"
        return None if trouble is None else reject(Reason.SIGNATURE_MISMATCH, trouble, may_reverify=True)


@lru_cache(maxsize=16)
def read_key_set(content: bytes) -> tuple[_NamedKey, ...]:
    """Return the RSA signature keys of a JWK set (RFC 7517); other kinds of keys and weak ones are skipped."""
    document = parse(content)
    entries = document.get("keys") if isinstance(document, dict) else None
    keys = entries[:_MAX_KEYS] if isinstance(entries, list) else []
    return tuple(named_key for key in keys if isinstance(key, dict) and (named_key := _read_jwk(key)) is not None)


def _read_jwk(jwk: dict[str, Any]) -> _NamedKey | None:
    if jwk.get("kty") != "RSA" or jwk.get("use", "sig") != "sig" or jwk.get("alg", "RS256") != "RS256":
        return None
    kid = jwk.get("kid")
    try:
        key = PyJWK(jwk, algorithm="RS256")
    except (PyJWKError, PyJWTError, ValueError, TypeError):
        return None
    if not isinstance(key.key, RSAPublicKey) or key.key.key_size < MIN_RSA_BITS:
        return None
    return _NamedKey(kid if isinstance(kid, str) else None, key)


def _read_secrets(spec: SourceSpec) -> tuple[str, ...]:
    for position, secret in enumerate(required_secrets(spec)):
        if "-----BEGIN" in secret:
            location = f"sources.{spec.name}.secrets[{position}]"
            raise ConfigError(f"{location}: this is a PEM key, but {spec.provider} signs with a shared secret")
    return spec.secrets


def _numeric_date(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _MAX_TIMESTAMP:
        return float(value)
    return None
