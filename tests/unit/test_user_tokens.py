"""The checks of a user's JSON Web Token before it may call a mount, with attacks and their mutants."""

import asyncio
import base64
import hashlib
import hmac
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jwt
import msgspec
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from boathook import config
from boathook.config import Settings
from boathook.domain.errors import ConfigError, FetchFailed, TokenRejected
from boathook.http_client.messages import HttpResponse
from boathook.service.access import signing_keys
from boathook.service.access.user_tokens import UserTokens

ISSUER, AUDIENCE, URL = "https://login.example.com/", "fleet", "https://login.example.com/jwks.json"
KEY = rsa.generate_private_key(65_537, 2_048)
OTHER = rsa.generate_private_key(65_537, 2_048)


def jwt_settings(url: str = URL, more: str = "") -> Settings:
    """Return settings that accept tokens of `ISSUER`."""
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(f'[jwt]\nissuer = "{ISSUER}"\naudience = "{AUDIENCE}"\njwks_url = "{url}"\n{more}')
        file.flush()
        return config.load(Path(file.name))


def public_jwk(key: Any, kid: str | None = "one", **more: Any) -> dict[str, Any]:
    """Return the published form of a key."""
    kind = jwt.algorithms.RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else jwt.algorithms.ECAlgorithm
    found = kind.to_jwk(key.public_key(), as_dict=True)
    found.pop("key_ops", None)
    return {**found, **({} if kid is None else {"kid": kid}), **more}


class KeyServer:
    """Stands in for the issuer's HTTP server, and counts the requests."""

    def __init__(self, *keys: dict[str, Any]) -> None:
        self.keys = list(keys)
        self.requests = 0
        self.fault: Exception | None = None

    async def request(self, _method: str, url: str, **_: Any) -> HttpResponse:
        assert url == URL
        self.requests += 1
        await asyncio.sleep(0)
        if self.fault is not None:
            raise self.fault
        return HttpResponse(200, {}, msgspec.json.encode({"keys": self.keys}))

    def close(self) -> None:
        pass


def make_tokens(server: KeyServer | None = None) -> tuple[UserTokens, KeyServer]:
    """Return a verifier, and the server that it fetches the keys from."""
    tokens = UserTokens(jwt_settings())
    tokens.close()
    server = server or KeyServer(public_jwk(KEY))
    tokens._client = server  # type: ignore[assignment]
    return tokens, server


def claims(**changes: Any) -> dict[str, Any]:
    """Return valid claims with changes; None removes one."""
    now = int(time.time())
    usual = {"iss": ISSUER, "aud": AUDIENCE, "sub": "u17", "iat": now, "exp": now + 3_600, "roles": ["viewer"]}
    return {name: value for name, value in (usual | changes).items() if value is not None}


def sign(content: dict[str, Any], key: Any = KEY, algorithm: str = "RS256", **header: Any) -> str:
    """Return a signed token."""
    return jwt.encode(content, key, algorithm, headers={"kid": "one", **header})


def forge(header: dict[str, Any], content: dict[str, Any], mac_key: bytes | None = None) -> str:
    """Return a token that no library would write."""
    signed = ".".join(_encode(json.dumps(part).encode()) for part in (header, content))
    mac = b"" if mac_key is None else hmac.new(mac_key, signed.encode(), hashlib.sha256).digest()
    return f"{signed}.{_encode(mac)}"


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def public_key(encoding: serialization.Encoding) -> bytes:
    """Return the issuer's public key, which everybody knows."""
    return KEY.public_key().public_bytes(encoding, serialization.PublicFormat.SubjectPublicKeyInfo)


PEM, DER = public_key(serialization.Encoding.PEM), public_key(serialization.Encoding.DER)
MODULUS = KEY.public_key().public_numbers().n.to_bytes(256)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Move the monotonic clock forward."""
    offset = [0.0]
    real = time.monotonic

    def advance(seconds: float) -> None:
        offset[0] += seconds

    monkeypatch.setattr(time, "monotonic", lambda: real() + offset[0])
    return advance


async def test_a_valid_token_identifies_its_user():
    tokens, _ = make_tokens()
    user = await tokens.verify(sign(claims()))
    assert (user.subject, user.groups) == ("u17", frozenset({"viewer"}))
    assert 3_600 < user.valid_for_s <= 3_611


async def test_elliptic_keys_and_lists_of_audiences_are_accepted():
    key = ec.generate_private_key(ec.SECP256R1())
    tokens, _ = make_tokens(KeyServer(public_jwk(KEY, "other"), public_jwk(key)))
    token = sign(claims(aud=["shop", AUDIENCE]), key, "ES256")
    assert (await tokens.verify(token)).subject == "u17"


@pytest.mark.parametrize(
    ("roles", "groups"),
    [
        ("viewer", {"viewer"}),
        (["a", 7, None, "b"], {"a", "b"}),
        ({"viewer": True}, set()),
        (None, set()),
        (True, set()),
    ],
)
async def test_the_claim_with_roles_is_a_text_or_a_list(roles: Any, groups: set[str]):
    tokens, _ = make_tokens()
    assert (await tokens.verify(sign(claims(roles=roles)))).groups == groups


FORGED = {
    "alg none": lambda: forge({"alg": "none", "kid": "one"}, claims()),
    "alg None": lambda: forge({"alg": "None", "kid": "one"}, claims()),
    "no alg": lambda: forge({"kid": "one"}, claims()),
    "HS256 with the public key": lambda: forge({"alg": "HS256", "kid": "one"}, claims(), MODULUS),
    "HS256 with the public key as DER": lambda: forge({"alg": "HS256", "kid": "one"}, claims(), DER),
    "HS256 with the public key as PEM": lambda: forge({"alg": "HS256", "kid": "one"}, claims(), PEM),
    "another key": lambda: sign(claims(), OTHER),
    "its own key in the header": lambda: sign(claims(), OTHER, jwk=public_jwk(OTHER)),
    "its own key set in the header": lambda: sign(claims(), OTHER, jku="https://evil.example/keys"),
    "another issuer": lambda: sign(claims(iss="https://login.example.com")),
    "no issuer": lambda: sign(claims(iss=None)),
    "another audience": lambda: sign(claims(aud="shop")),
    "an audience that contains it": lambda: sign(claims(aud="fleets")),
    "no audience": lambda: sign(claims(aud=None)),
    "no exp": lambda: sign(claims(exp=None)),
    "expired": lambda: sign(claims(exp=int(time.time()) - 11)),
    "a huge exp": lambda: forge_signed('"exp": 1e400'),
    "not yet valid": lambda: sign(claims(nbf=int(time.time()) + 600)),
    "issued in the future": lambda: sign(claims(iat=int(time.time()) + 600)),
    "no subject": lambda: sign(claims(sub=None)),
    "an empty subject": lambda: sign(claims(sub="")),
    "a subject of several lines": lambda: sign(claims(sub="u17\napi:key_1")),
    "a subject that is a number": lambda: sign(claims(sub=17)),
    "a critical header": lambda: sign(claims(), crit=["exp"]),
    "an altered signature": lambda: sign(claims())[:-8] + "AAAAAAAA",
    "an altered claim": lambda: _replace_claims(sign(claims()), claims(roles=["admin"])),
    "too long": lambda: sign(claims(more="x" * 9_000)),
    "nonsense": lambda: "a.b.c",
    "a key id that is a list": lambda: forge({"alg": "RS256", "kid": ["one"]}, claims()),
    "nested": lambda: "[" * 5_000,
}


def forge_signed(fragment: str) -> str:
    """Return a token whose claims have this JSON text, signed with the right key."""
    content = json.dumps(claims(exp=None))[:-1] + f", {fragment}}}"
    return jwt.PyJWS().encode(content.encode(), KEY, "RS256", headers={"kid": "one"})


def _replace_claims(token: str, content: dict[str, Any]) -> str:
    header, _, signature = token.split(".")
    return f"{header}.{_encode(json.dumps(content).encode())}.{signature}"


@pytest.mark.parametrize("name", FORGED)
async def test_a_forged_or_foreign_token_is_rejected(name: str):
    tokens, _ = make_tokens()
    with pytest.raises(TokenRejected):
        await tokens.verify(FORGED[name]())


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("another issuer", {"verify_iss": False}),
        ("another audience", {"verify_aud": False}),
        ("expired", {"verify_exp": False}),
        ("not yet valid", {"verify_nbf": False}),
        ("an altered claim", {"verify_signature": False}),
    ],
)
async def test_mutants_without_a_check_accept_the_token(name: str, change: dict[str, bool], monkeypatch):
    decode: Any = jwt.decode

    def decode_less(*arguments: Any, options: dict[str, Any], **more: Any) -> dict[str, Any]:
        claims: dict[str, Any] = decode(*arguments, options={**options, **change}, **more)
        return claims

    monkeypatch.setattr(jwt, "decode", decode_less)
    tokens, _ = make_tokens()
    assert (await tokens.verify(FORGED[name]())).subject == "u17"


async def test_mutant_with_symmetric_algorithms_accepts_the_public_key_as_a_secret(monkeypatch):
    """The set would have to publish a symmetric key, which is what confusing the two comes to."""
    secret = {"kty": "oct", "k": _encode(MODULUS), "kid": "one"}
    token = FORGED["HS256 with the public key"]()
    tokens, _ = make_tokens(KeyServer(secret))
    with pytest.raises(TokenRejected, match="an algorithm that is not accepted"):
        await tokens.verify(token)
    monkeypatch.setattr(signing_keys, "ALGORITHMS", (*signing_keys.ALGORITHMS, "HS256"))
    assert (await tokens.verify(token)).subject == "u17"


async def test_a_weak_key_is_not_used(monkeypatch):
    weak = rsa.generate_private_key(65_537, 1_024)
    tokens, _ = make_tokens(KeyServer(public_jwk(weak)))
    with pytest.warns(jwt.warnings.InsecureKeyLengthWarning):
        token = sign(claims(), weak)
    with pytest.raises(TokenRejected, match="does not publish"):
        await tokens.verify(token)


# Fetching keys


async def test_unknown_key_ids_fetch_the_keys_once_a_minute(clock: Callable[[float], None]):
    tokens, server = make_tokens()
    await tokens.verify(sign(claims()))
    for n in range(50):
        with pytest.raises(TokenRejected, match="does not publish"):
            await tokens.verify(sign(claims(), OTHER, kid=f"unknown {n}"))
    assert server.requests == 1, "they were fetched a moment ago"
    clock(61)
    server.keys.append(public_jwk(OTHER, "new"))
    results = await asyncio.gather(*(tokens.verify(sign(claims(), OTHER, kid="new")) for _ in range(20)))
    assert {user.subject for user in results} == {"u17"}
    assert server.requests == 2, "concurrent calls share a request"


async def test_mutant_without_the_interval_each_forged_id_is_a_request(monkeypatch):
    monkeypatch.setattr(signing_keys, "REFETCH_S", -1.0)
    tokens, server = make_tokens()
    for n in range(5):
        with pytest.raises(TokenRejected):
            await tokens.verify(sign(claims(), OTHER, kid=f"unknown {n}"))
    assert server.requests >= 5


async def test_a_key_that_is_no_longer_published_is_soon_refused(clock: Callable[[float], None]):
    tokens, server = make_tokens()
    token = sign(claims())
    await tokens.verify(token)
    server.keys = [public_jwk(OTHER, "two")]
    await tokens.verify(token)
    clock(601)
    with pytest.raises(TokenRejected, match="does not publish"):
        await tokens.verify(token)


async def test_an_issuer_that_is_away_is_asked_every_ten_seconds_and_missed_after_an_hour(
    clock: Callable[[float], None],
):
    tokens, server = make_tokens()
    token = sign(claims())
    await tokens.verify(token)
    server.fault = FetchFailed("https://login.example.com did not answer")
    clock(601)
    for _ in range(20):
        await tokens.verify(token)
    assert server.requests == 2
    clock(3_100)
    for _ in range(5):
        with pytest.raises(FetchFailed, match="did not answer"):
            await tokens.verify(token)
    assert server.requests == 3
    server.fault = None
    clock(11)
    await tokens.verify(token)


@pytest.mark.parametrize("body", [b"", b"[]", b'{"keys": 7}', b'{"keys": []}', b"{}", b"[" * 10_000])
async def test_a_document_that_is_no_key_set_is_reported(body: bytes):
    tokens, server = make_tokens()

    async def answer(*_: Any, **__: Any) -> HttpResponse:
        return HttpResponse(200, {}, body)

    server.request = answer  # type: ignore[method-assign]
    with pytest.raises(FetchFailed):
        await tokens.verify(sign(claims()))


@pytest.mark.parametrize(
    "url",
    ["https://127.0.0.1/keys", "https://169.254.169.254/latest/meta-data", "https://[::1]/keys", "https://10.0.0.7/k"],
)
async def test_keys_on_a_private_address_are_not_fetched(url: str):
    tokens = UserTokens(jwt_settings(url))
    try:
        with pytest.raises(FetchFailed, match="a blocked address"):
            await tokens.verify(sign(claims()))
    finally:
        tokens.close()


# Settings


@pytest.mark.parametrize(
    ("toml", "words"),
    [
        ('[jwt]\nissuer = "a"', "jwt: audience: is empty; set issuer, audience and jwks_url, or none of them"),
        ('[jwt]\nissuer = "a"\naudience = "b"\njwks_url = "http://login.example.com/k"', "jwks_url: must begin with https://"),
        ('[mounts."/x"]\nroles = { a = "reader" }', "mounts./x.roles: needs jwt.issuer"),
        ('[mounts."/x"]\nroles = { a = "admin" }', "mounts./x.roles.a: must be 'reader' or 'operator'"),
        ('[mounts."/x"]\norigins = ["*"]', "would let every website in"),
        ('[mounts."/x"]\norigins = ["null"]', "must be an origin"),
        ('[mounts."/x"]\norigins = ["https://*.example.com"]', "is a pattern"),
        ('[mounts."/x"]\norigins = ["https://a.test/"]', "without a path"),
        ('[mounts."/x"]\norigins = ["https://A.test"]', "browsers write this origin as https://a.test"),
        ('[mounts."/x"]\norigins = ["https://a.test:443"]', "browsers write this origin as https://a.test"),
        ('[mounts."/x"]\norigin = "https://a.test"', "mounts./x.origin: is not a setting"),
        ('[mounts."x"]\norigins = []', "must be the path that an app mounts"),
        ('[mounts."/x/../y"]\norigins = []', "must be the path that an app mounts"),
        ("[mounts]\norigins = []", 'use [mounts."/PATH"]'),
        ("mounts = 7", 'write [mounts."/PATH"]'),
    ],
)  # fmt: skip
def test_wrong_settings_are_named(tmp_path: Path, toml: str, words: str):
    file = tmp_path / "boathook.toml"
    file.write_text(toml)
    with pytest.raises(ConfigError) as caught:
        config.load(file)
    assert words in str(caught.value)
    assert "boathook.toml" in str(caught.value)


async def test_keys_are_counted_if_they_can_verify_a_token():
    short = public_jwk(rsa.generate_private_key(65_537, 1_024), "short")
    of_encryption = public_jwk(OTHER, "two", use="enc")
    curve = public_jwk(ec.generate_private_key(ec.SECP256R1()), "three")
    unknown = {"kty": "??", "kid": "four"}
    symmetric = {"kty": "oct", "k": "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXM", "kid": "five", "alg": "HS256"}
    for keys, number in (([short, of_encryption, unknown, symmetric, public_jwk(KEY), curve], 2), ([short], 0)):
        tokens, _ = make_tokens(KeyServer(*keys))
        assert await tokens.count_keys() == number


async def test_keys_that_cannot_be_fetched_are_not_counted():
    tokens, server = make_tokens()
    server.fault = FetchFailed("refused")
    with pytest.raises(FetchFailed, match="refused"):
        await tokens.count_keys()
