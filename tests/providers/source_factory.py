"""Creates a source for every provider and scheme with its own secret, and requests signed for it."""

import functools
import hashlib
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from boathook.domain.verification import Request, SourceSpec
from boathook.providers import RECIPES
from boathook.providers.recipe import Recipe
from boathook.providers.request_reader import RequestReader
from boathook.providers.schemes import Addresses, Asymmetric, FetchedKey, Jwt, NoProof
from boathook.testing import Keys, Signed, make_keys, signed_request
from boathook.verification.keyring import KeyRing
from boathook.verification.verifier import Verifier

NOW = time.time()
PUBLIC_URL = "https://hooks.example.com"


class ProviderSource(msgspec.Struct, frozen=True):
    """A source of one provider or scheme, with its sender's secret."""

    label: str
    recipe: Recipe
    settings: Mapping[str, Any]
    secret: str
    """The secret or private key of the sender."""
    secrets: tuple[str, ...]
    """The configured secrets of the source."""
    ring: Mapping[str, bytes]
    """Public keys by the URL at which they are published."""

    def __str__(self) -> str:
        return self.label

    @property
    def url(self) -> str:
        return f"{PUBLIC_URL}/in/{self.label}"

    def verifier(self) -> Verifier:
        ring = KeyRing()
        for url, content in self.ring.items():
            ring.put(url, content, NOW)
        spec = SourceSpec(
            name=self.label,
            provider=self.recipe.name,
            secrets=self.secrets,
            public_url=PUBLIC_URL,
            options=dict(self.settings),
            unsigned=isinstance(self.recipe.proof, NoProof),
        )
        return Verifier(spec, ring)

    def sign_sample(self, word: str = "sample", at: float = NOW) -> Signed:
        """Return the provider's sample request, signed at a time; another *word* makes it another event."""
        sample = self.recipe.sample
        query = f"?{sample.query.replace('sample', word)}" if sample.query else ""
        return signed_request(
            self.recipe.name,
            self.secret,
            sample.body.replace(b"sample", word.encode()),
            url=self.url + query,
            method=sample.method,
            content_type=sample.content_type,
            headers={
                name: value if value.startswith("https:") else value.replace("sample", word)
                for name, value in sample.headers.items()
            },
            timestamp=at,
            **self.settings,
        )

    def request(self, signed: Signed) -> Request:
        """Return the request as the gateway reads it."""
        parts = urlsplit(signed.url)
        proof = self.recipe.proof
        client = proof.networks[0].partition("/")[0] if isinstance(proof, Addresses) else "192.0.2.1"
        return Request(
            method=signed.method,
            url=signed.url,
            path=parts.path,
            query=parts.query,
            headers=dict(signed.headers),
            body=signed.body,
            client=client,
        )


def _provider_source(name: str, scheme: str, recipe: Recipe) -> ProviderSource:
    label = f"{name}-{scheme}" if scheme else name
    settings: dict[str, Any] = {**recipe.sample.settings, **({"scheme": scheme} if scheme else {})}
    if not isinstance(recipe.proof, Asymmetric | Jwt) or (isinstance(recipe.proof, Jwt) and not recipe.proof.key_set):
        secret = _own_secret(label, recipe)
        secrets = () if isinstance(recipe.proof, Addresses | NoProof) else (secret,)
        return ProviderSource(label, recipe, settings, secret, secrets, {})
    keys = make_keys(name, **settings)
    selector = _key_place(recipe, settings, keys)
    if selector is None:
        return ProviderSource(label, recipe, settings, keys.private, (keys.public,), {})
    return ProviderSource(label, recipe, settings, keys.private, (), {selector: keys.public.encode()})


def _key_place(recipe: Recipe, settings: Mapping[str, Any], keys: Keys) -> str | None:
    match recipe.proof:
        case Jwt(key_set=str() as url):
            return url
        case Asymmetric(key=FetchedKey(selector=selector)):
            blank = signed_request(recipe.name, keys.private, **settings)
            request = Request(
                method="POST",
                url=PUBLIC_URL,
                path="/",
                query="",
                headers=dict(blank.headers),
                body=blank.body,
                client="",
            )
            return RequestReader(request).text(selector)
    return None


def _own_secret(label: str, recipe: Recipe) -> str:
    """Return a secret in the format of the recipe's sample that is unique to the label."""
    sample = recipe.sample.secret
    mark = hashlib.sha256(label.encode()).hexdigest()
    middle = len(sample) // 2
    return sample[:middle] + mark[: len(sample) - middle - 4].upper() + sample[-4:]


def make_sources() -> tuple[ProviderSource, ...]:
    """Return a source for every provider and scheme, with newly generated keys."""
    return tuple(
        _provider_source(recipe.name, scheme, one)
        for recipe in RECIPES
        for scheme, one in {"": recipe, **recipe.schemes}.items()
    )


@functools.cache
def all_sources() -> tuple[ProviderSource, ...]:
    """Return the sources of `make_sources`, made once per process: generating RSA keys takes long."""
    return make_sources()


def body_key(body: bytes, type: str = "unknown") -> str:
    """Return the dedup key that is made of a type and a body."""
    return "sha256:" + hashlib.sha256(type.encode() + b"\0" + body).hexdigest()
