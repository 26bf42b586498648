"""Builds recipes for tests, and verifiers of sources that use them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from boathook.domain.model import ProofStrength
from boathook.providers.recipe import Recipe, Sample
from boathook.providers.schemes import Hmac, Proof, SignatureHeaders
from boathook.verification.verifier import SourceSpec, Verifier

SIGNED = Hmac(headers=(SignatureHeaders(signature="x-sig"),))


def recipe(proof: Proof = SIGNED, **fields: Any) -> Recipe:
    given = {"name": "made-up", "title": "Made-up", "docs": "https://example.com", "grade": ProofStrength.BODY} | fields
    return Recipe(proof=proof, sample=given.pop("sample", Sample(body=b"{}")), **given)


def source(made: Recipe, *secrets: str, **spec: Any) -> Verifier:
    """Return the verifier of a source with this recipe."""
    with registered(made):
        return Verifier(SourceSpec(name="test", provider=made.name, secrets=secrets, **spec))


@contextmanager
def registered(made: Recipe) -> Iterator[None]:
    with patch("boathook.verification.source.find_recipe", lambda _name: made):
        yield
