"""The checks of an identity provider's token before a user may sign in."""

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import jwt
import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from boathook import config
from boathook.config import Settings
from boathook.domain.errors import FetchFailed
from boathook.domain.model import Role
from boathook.http_client.client import Client
from boathook.http_client.messages import HttpResponse
from boathook.service.access.identity_provider import AuthorizationRequest, ProvidedIdentity
from boathook_oidc.provider import OidcProvider, OidcRejected
from boathook_oidc.settings import find_table

ISSUER, CLIENT = "https://login.example.com", "boathook"
KEY = rsa.generate_private_key(65_537, 2_048)
OTHER = rsa.generate_private_key(65_537, 2_048)


def _settings() -> Settings:
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(f"""
            [console]
            oidc_issuer = "{ISSUER}"
            oidc_client_id = "{CLIENT}"
            oidc_client_secret = "secret"
            oidc_roles = {{ ops = "operator", platform = "admin" }}
        """)
        file.flush()
        return config.load(Path(file.name), {})


SETTINGS = _settings()


class Stub:
    """Answers as a provider does."""

    use = "sig"
    """What the provider's key is for."""

    def __init__(self, token: str, issuer: str = ISSUER) -> None:
        public = jwt.algorithms.RSAAlgorithm.to_jwk(KEY.public_key(), as_dict=True)
        self.pages: dict[str, Any] = {
            "/.well-known/openid-configuration": {
                "issuer": issuer,
                "authorization_endpoint": f"{ISSUER}/authorize",
                "token_endpoint": f"{ISSUER}/token",
                "jwks_uri": f"{ISSUER}/keys",
            },
            "/keys": {"keys": [{**public, "kid": "one", "use": self.use}]},
            "/token": {"id_token": token, "access_token": "any"},
        }

    async def request(self, method: str, url: str, **_: Any) -> HttpResponse:
        page = self.pages.get(url.removeprefix(ISSUER))
        return HttpResponse(404 if page is None else 200, {}, msgspec.json.encode(page))


def claims(**changes: Any) -> dict[str, Any]:
    now = int(time.time())
    all_ = {
        "iss": ISSUER, "aud": CLIENT, "sub": "17", "iat": now, "exp": now + 86_400, "nonce": "expected",
        "email": "ada@example.com", "email_verified": True, "groups": ["ops"],
    } | changes  # fmt: skip
    return {name: value for name, value in all_.items() if value is not None}


def sign(content: dict[str, Any], key: Any = KEY, algorithm: str = "RS256", kid: str | None = "one") -> str:
    return jwt.encode(content, key, algorithm, headers={"kid": kid} if kid else {})


async def complete_login(token: str, issuer: str = ISSUER, userinfo: dict[str, Any] | None = None) -> ProvidedIdentity:
    table = find_table(SETTINGS)
    assert table is not None
    provider = OidcProvider(SETTINGS, table)
    provider.close()
    stub = Stub(token, issuer)
    if userinfo is not None:
        stub.pages["/.well-known/openid-configuration"]["userinfo_endpoint"] = f"{ISSUER}/userinfo"
        stub.pages["/userinfo"] = userinfo
    provider._client = cast("Client", stub)
    return await provider.complete_login(
        AuthorizationRequest(nonce="expected"), "code", "https://hooks.example.com/return"
    )


async def test_a_valid_token_identifies_the_operator():
    person = await complete_login(sign(claims()))
    assert (person.subject, person.name, person.role) == (f"{ISSUER} 17", "ada@example.com", Role.OPERATOR)
    assert person.is_name_verified
    assert not (await complete_login(sign(claims(email_verified=None)))).is_name_verified


@pytest.mark.parametrize("algorithm", ["RS256", "RS512", "PS256"])
async def test_a_key_without_an_algorithm_fits_all_of_its_kind(algorithm: str):
    assert (await complete_login(sign(claims(), algorithm=algorithm))).role is Role.OPERATOR


async def test_a_key_is_used_only_with_its_own_algorithm(monkeypatch: pytest.MonkeyPatch):
    to_jwk = jwt.algorithms.RSAAlgorithm.to_jwk
    monkeypatch.setattr(jwt.algorithms.RSAAlgorithm, "to_jwk", lambda *a, **k: {**to_jwk(*a, **k), "alg": "RS256"})
    assert (await complete_login(sign(claims()))).role is Role.OPERATOR
    with pytest.raises(OidcRejected):
        await complete_login(sign(claims(), algorithm="RS512"))


async def test_a_key_for_encryption_signs_no_token(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Stub, "use", "enc")
    with pytest.raises(OidcRejected, match="a key that it does not publish"):
        await complete_login(sign(claims()))


async def test_operators_sign_in_right_after_the_machine_has_booted(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(time, "monotonic", lambda: 20.0)
    assert (await complete_login(sign(claims()))).role is Role.OPERATOR


async def test_the_highest_group_role_applies():
    assert (await complete_login(sign(claims(groups=["ops", "platform"])))).role is Role.ADMIN
    assert (await complete_login(sign(claims(groups="platform")))).role is Role.ADMIN
    assert (await complete_login(sign(claims(groups=["sales"])))).role is None
    assert (await complete_login(sign(claims(groups={"ops": 1})))).role is None


async def test_userinfo_completes_the_token():
    person = await complete_login(sign(claims(groups=None)), userinfo={"sub": "17", "groups": ["platform"]})
    assert (person.subject, person.role) == (f"{ISSUER} 17", Role.ADMIN)


@pytest.mark.parametrize("subject", ["18", "", None, 17, ["17"]])
async def test_userinfo_of_another_subject_is_not_used(subject: Any):
    """OpenID Connect Core 1.0, section 5.3.2: if the subjects differ, the claims must not be used."""
    foreign = {"sub": subject, "groups": ["platform"], "email": "eve@example.com"}
    assert (await complete_login(sign(claims(groups=None)), userinfo=foreign)).role is None
    with pytest.raises(OidcRejected, match="lacks the claim"):
        await complete_login(sign(claims(email=None)), userinfo=foreign)


async def test_mutant_without_the_subject_another_user_is_an_admin(monkeypatch: pytest.MonkeyPatch):
    fetch = OidcProvider._fetch_userinfo

    async def fetch_any(provider: OidcProvider, token: str, _subject: str) -> Mapping[str, Any]:
        return await fetch(provider, token, "18")

    monkeypatch.setattr(OidcProvider, "_fetch_userinfo", fetch_any)
    foreign = {"sub": "18", "groups": ["platform"]}
    assert (await complete_login(sign(claims(groups=None)), userinfo=foreign)).role is Role.ADMIN


@pytest.mark.parametrize(
    "change",
    [
        {"nonce": "another"}, {"nonce": None}, {"aud": "another"}, {"aud": None}, {"iss": "https://evil.example"}, {"iss": None},
        {"exp": int(time.time()) - 400}, {"exp": None}, {"iat": int(time.time()) + 4_000}, {"sub": None}, {"azp": "another"},
        {"email": None}, {"email": 7}, {"email": ""},
    ],
)  # fmt: skip
async def test_a_token_for_another_login_is_rejected(change: dict[str, Any]):
    with pytest.raises(OidcRejected):
        await complete_login(sign(claims(**change)))


@pytest.mark.parametrize(
    "token",
    [
        sign(claims(), OTHER),
        sign(claims(), "a shared secret of more than thirty-two bytes", "HS256"),
        jwt.encode(claims(), None, "none"),
        sign(claims(), kid="two"),
        "", "a.b.c", "nonsense",
        sign(claims())[:-6] + "AAAAAA",
    ],
)  # fmt: skip
async def test_a_token_not_signed_by_the_provider_is_rejected(token: str):
    with pytest.raises(OidcRejected):
        await complete_login(token)


async def test_a_provider_with_another_issuer_is_refused():
    with pytest.raises(OidcRejected, match="but the provider's issuer is"):
        await complete_login(sign(claims()), issuer="https://other.example")


@pytest.mark.own_process
async def test_a_non_object_response_is_reported(monkeypatch: pytest.MonkeyPatch):
    async def answer(*_: Any, **__: Any) -> HttpResponse:
        return HttpResponse(200, {}, b"[" * 100_000)

    monkeypatch.setattr(Stub, "request", answer)
    with pytest.raises(FetchFailed, match="not a JSON object"):
        await complete_login("")
