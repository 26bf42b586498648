"""Signs operators in through an identity provider: OpenID Connect Core 1.0, code flow, with PKCE (RFC 7636).

Only an ID token is trusted that the provider signed with a published key, for this client and this login attempt.
"""

import base64
import hashlib
import secrets
import time
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote_plus, urlencode

import msgspec

from boathook.config import Settings
from boathook.domain.errors import FetchFailed, InvalidState, TokenRejected
from boathook.domain.model import Role
from boathook.http_client.client import Client
from boathook.http_client.messages import HttpResponse
from boathook.service.access.identity_provider import AuthorizationRequest, IdentityProvider, ProvidedIdentity
from boathook.service.access.signing_keys import SigningKeys, read_groups
from boathook_oidc.settings import OidcTable, find_table, resolve_secret

_KEPT_S: Final = 3_600.0
_LEEWAY_S: Final = 60
_MAX_BYTES: Final = 262_144
_MAX_CLAIM_LENGTH: Final = 200


class OidcRejected(InvalidState):
    """The provider, or the claims it returned, do not allow the login."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "oidc_refused")


def open_provider(settings: Settings) -> "OidcProvider | None":
    """Return the provider of the settings; None if there is none. Raises ConfigError as `OidcProvider` does."""
    table = find_table(settings)
    return None if table is None else OidcProvider(settings, table)


class OidcProvider(IdentityProvider):
    """The identity provider of the settings; one per process.

    Args:
        settings: all settings.
        table: those of the provider.

    Raises:
        ConfigError: the client's secret or the proxy cannot be read.
    """

    def __init__(self, settings: Settings, table: OidcTable) -> None:
        self._table = table
        self._secret = resolve_secret(settings, table)
        self.name = table.oidc_issuer.replace("https://", "")
        proxy = settings.resolve(settings.outbound.proxy, "outbound.proxy")
        self._client = Client(settings.outbound.model_copy(update={"proxy": proxy}))
        self._metadata: Mapping[str, Any] = {}
        self._metadata_until = 0.0
        self._keys = SigningKeys(self._fetch_keys)

    def close(self) -> None:
        """Abort the requests in progress."""
        self._client.close()

    async def authorization_url(self, attempt: AuthorizationRequest, return_to: str) -> str:
        """Return the provider's login page. Raises FetchFailed, or OidcRejected if its metadata is invalid."""
        metadata = await self._fetch_metadata()
        challenge = base64.urlsafe_b64encode(hashlib.sha256(attempt.verifier.encode()).digest()).rstrip(b"=").decode()
        query = {
            "response_type": "code",
            "client_id": self._table.oidc_client_id,
            "redirect_uri": return_to,
            "scope": "openid profile email",
            "state": attempt.state,
            "nonce": attempt.nonce,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        page = metadata["authorization_endpoint"]
        return f"{page}{'&' if '?' in page else '?'}{urlencode(query)}"

    async def complete_login(self, attempt: AuthorizationRequest, code: str, return_to: str) -> ProvidedIdentity:
        """Return the user who returned with *code*.

        Raises:
            FetchFailed: the provider could not be reached.
            OidcRejected: it does not confirm the user, or returns too few claims.
        """
        tokens = await self._redeem(attempt, code, return_to)
        claims = await self._read(str(tokens.get("id_token", "")), attempt.nonce)
        claim_names = {self._table.oidc_name_claim, self._table.oidc_role_claim} - {""}
        if not claim_names <= claims.keys():
            claims = {**await self._fetch_userinfo(str(tokens.get("access_token", "")), str(claims["sub"])), **claims}
        return self._person(claims)

    async def _redeem(self, attempt: AuthorizationRequest, code: str, return_to: str) -> Mapping[str, Any]:
        metadata = await self._fetch_metadata()
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": return_to,
            "code_verifier": attempt.verifier,
        }
        headers = {"content-type": "application/x-www-form-urlencoded", "accept": "application/json"}
        methods = metadata.get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
        if not self._secret or "client_secret_basic" not in methods:
            form |= {"client_id": self._table.oidc_client_id}
            form |= {"client_secret": self._secret} if self._secret else {}
        else:
            pair = f"{quote_plus(self._table.oidc_client_id)}:{quote_plus(self._secret)}"
            headers["authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        url = metadata["token_endpoint"]
        return _object(
            await self._client.request(
                "POST", url, headers=headers, body=urlencode(form).encode(), max_bytes=_MAX_BYTES
            ),
            "exchange the code",
        )

    async def _read(self, token: str, nonce: str) -> dict[str, Any]:
        """Return the claims of an ID token. Raises OidcRejected."""
        issuer = (await self._fetch_metadata())["issuer"]
        try:
            claims = await self._keys.decode(
                token,
                audience=self._table.oidc_client_id,
                issuer=issuer,
                required=("exp", "iat", "aud", "iss", "sub"),
                leeway_s=_LEEWAY_S,
            )
        except TokenRejected as error:
            raise OidcRejected(f"the identity provider's token {error}") from None
        if not secrets.compare_digest(str(claims.get("nonce", "")).encode(), nonce.encode()):
            raise OidcRejected("the identity provider's token belongs to another attempt; sign in again")
        if claims.get("azp", self._table.oidc_client_id) != self._table.oidc_client_id:
            raise OidcRejected("the identity provider's token was issued for another application")
        return claims

    async def _fetch_keys(self) -> Mapping[str, Any]:
        url = (await self._fetch_metadata())["jwks_uri"]
        return _object(await self._client.request("GET", url, max_bytes=_MAX_BYTES), "read its keys")

    async def _fetch_userinfo(self, token: str, subject: str) -> Mapping[str, Any]:
        """Return the claims that are not in the ID token; empty if the provider offers none."""
        url = (await self._fetch_metadata()).get("userinfo_endpoint")
        if not isinstance(url, str) or not token:
            return {}
        headers = {"authorization": f"Bearer {token}", "accept": "application/json"}
        claims = _object(await self._client.request("GET", url, headers=headers, max_bytes=_MAX_BYTES), "ask who it is")
        return claims if claims.get("sub") == subject else {}

    async def _fetch_metadata(self) -> Mapping[str, Any]:
        """Return the provider's metadata (OpenID Connect Discovery 1.0)."""
        if self._metadata and time.monotonic() < self._metadata_until:
            return self._metadata
        issuer = self._table.oidc_issuer
        answer = await self._client.request("GET", f"{issuer}/.well-known/openid-configuration", max_bytes=_MAX_BYTES)
        metadata = _object(answer, "read its configuration")
        if str(metadata.get("issuer", "")).rstrip("/") != issuer:
            raise OidcRejected(
                f"console.oidc_issuer is {issuer}, but the provider's issuer is {metadata.get('issuer')!r:.200}"
            )
        for name in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
            if not isinstance(metadata.get(name), str):
                raise OidcRejected(f"the identity provider's configuration has no {name}")
        self._metadata, self._metadata_until = metadata, time.monotonic() + _KEPT_S
        return metadata

    def _person(self, claims: Mapping[str, Any]) -> ProvidedIdentity:
        table = self._table
        name = claims.get(table.oidc_name_claim)
        if not isinstance(name, str) or not 0 < len(name) <= _MAX_CLAIM_LENGTH:
            raise OidcRejected(
                f"the identity provider's token lacks the claim of console.oidc_name_claim, {table.oidc_name_claim!r}"
            )
        is_verified = claims.get("email_verified") in {True, "true"}  # Amazon Cognito writes a text
        if table.oidc_name_claim == "email" and "email_verified" in claims and not is_verified:
            raise OidcRejected(f"the identity provider has not verified the e-mail address {name!r}")
        is_proven = table.oidc_name_claim != "email" or is_verified
        return ProvidedIdentity(
            f"{claims['iss']} {claims['sub']}", name, self._role(claims), bool(table.oidc_roles), is_proven
        )

    def _role(self, claims: Mapping[str, Any]) -> Role | None:
        groups = read_groups(claims, self._table.oidc_role_claim)
        granted = {role for group, role in self._table.oidc_roles.items() if group in groups}
        if self._table.oidc_default_role:
            granted.add(self._table.oidc_default_role)
        return next((role for role in reversed(Role) if role in granted), None)


def _object(answer: HttpResponse, action: str) -> Mapping[str, Any]:
    """Return the JSON object of a response. Raises FetchFailed, whose message never contains the provider's text."""
    if answer.status != 200:
        raise FetchFailed(f"the identity provider refused to {action}: status {answer.status}", status=answer.status)
    try:
        document = msgspec.json.decode(answer.body)
    except (msgspec.DecodeError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise FetchFailed(f"the identity provider's answer is not a JSON object: the request was to {action}")
    return document
