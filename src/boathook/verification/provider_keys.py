"""Generates key pairs in the senders' formats, and signs with their private keys."""

import base64
import functools
import json
import warnings
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Final

import jwt
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.x509.oid import NameOID

from boathook.domain.redaction import RedactedStruct
from boathook.providers.schemes import Asymmetric, ConfiguredKey, Jwt, PublicKeyFormat, SignatureAlgorithm

_KEY_ID: Final = "boathook-testing"

_Private = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey


class Keys(RedactedStruct, frozen=True):
    """A key pair."""

    hidden_fields: ClassVar[frozenset[str]] = frozenset({"private"})

    private: str
    """PEM, PKCS #8; the secret to pass to `sign` and `signed_request`."""
    public: str
    """In the format of the source's ``secrets``; for senders whose key is fetched, the content of their key URL: a
    certificate in PEM, or a JWK set."""


def make_keys(proof: Asymmetric | Jwt, scheme: SignatureAlgorithm) -> Keys:
    """Return a new key pair for one kind of proof."""
    private = _generate(scheme)
    pem = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    if isinstance(proof, Jwt):
        return Keys(pem.decode(), _key_set(private))
    return Keys(pem.decode(), _public(private, proof))


def sign(scheme: SignatureAlgorithm, private_pem: str, message: bytes) -> bytes:
    """Return a signature over *message*.

    Raises:
        ValueError: the key is not the PEM of a private key of this scheme.
    """
    private = _load(private_pem)
    match private, scheme:
        case rsa.RSAPrivateKey(), SignatureAlgorithm.RSA_SHA1:
            return private.sign(message, padding.PKCS1v15(), hashes.SHA1())  # noqa: S303 - as the sender does
        case rsa.RSAPrivateKey(), SignatureAlgorithm.RSA_SHA256:
            return private.sign(message, padding.PKCS1v15(), hashes.SHA256())
        case ec.EllipticCurvePrivateKey(), SignatureAlgorithm.ECDSA_SHA256:
            return private.sign(message, ec.ECDSA(hashes.SHA256()))
        case ed25519.Ed25519PrivateKey(), SignatureAlgorithm.ED25519:
            return private.sign(message)
        case _:
            raise ValueError(f"this private key cannot sign with {scheme}")


def write_token(proof: Jwt, secret: str, claims: Mapping[str, Any]) -> str:
    """Return a JSON Web Token that holds *claims*, signed with a shared secret or a private key in PEM."""
    with warnings.catch_warnings():
        # The sender chooses the length of its secrets.
        warnings.simplefilter("ignore", jwt.warnings.InsecureKeyLengthWarning)
        return jwt.encode(dict(claims), secret, algorithm=proof.algorithms[0], headers={"kid": _KEY_ID})


@functools.lru_cache(maxsize=16)
def _load(pem: str) -> object:
    # Checking the numbers of an RSA key takes longer than signing with it.
    try:
        return serialization.load_pem_private_key(pem.encode(), password=None)
    except (ValueError, TypeError):
        raise ValueError("the secret is not a private key in PEM; create one with boathook.testing.make_keys") from None


def _generate(scheme: SignatureAlgorithm) -> _Private:
    match scheme:
        case SignatureAlgorithm.RSA_SHA1 | SignatureAlgorithm.RSA_SHA256:
            return rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
        case SignatureAlgorithm.ECDSA_SHA256:
            return ec.generate_private_key(ec.SECP256R1())
        case SignatureAlgorithm.ED25519:
            return ed25519.Ed25519PrivateKey.generate()


def _public(private: _Private, proof: Asymmetric) -> str:
    if not isinstance(proof.key, ConfiguredKey):
        return _certificate(private)
    public = private.public_key()
    match proof.key.text:
        case PublicKeyFormat.PEM:
            return public.public_bytes(
                serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
            ).decode()
        case PublicKeyFormat.SPKI:
            der = public.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
            return base64.b64encode(der).decode()
        case PublicKeyFormat.HEX:
            return _raw(public).hex()
        case PublicKeyFormat.STANDARD:
            return "whpk_" + base64.b64encode(_raw(public)).decode()


def _raw(public: object) -> bytes:
    assert isinstance(public, ed25519.Ed25519PublicKey)
    return public.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)


def _certificate(private: _Private) -> str:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "boathook testing")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=30))
        .sign(private, None if isinstance(private, ed25519.Ed25519PrivateKey) else hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _key_set(private: _Private) -> str:
    assert isinstance(private, rsa.RSAPrivateKey)
    key = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(private.public_key()))
    return json.dumps({"keys": [{**key, "kid": _KEY_ID, "use": "sig", "alg": "RS256"}]})
