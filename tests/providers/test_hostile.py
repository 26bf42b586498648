"""Hostile requests to a source of any provider get a verdict, never an exception, and quickly."""

import functools
import json
from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from boathook.domain.model import ProofStrength
from boathook.domain.verification import Challenge, KeyRequired, Rejected, Request, Verified
from boathook.verification.check import signature_headers
from boathook.verification.tokens import ValidProof
from boathook.verification.verifier import Verifier
from tests.providers.source_factory import NOW, ProviderSource, all_sources
from tests.support import examples, too_dear

ALL = list(all_sources())
every = pytest.mark.parametrize("provider_source", ALL, ids=str)
some = settings(
    max_examples=examples(30), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
Verdicts = Verified | Challenge | KeyRequired | Rejected

ODD_HEADERS = [
    "", ",", "t=,v1=", "t=1;h1=2", "v1,", "v0=", "sha256=", "|&|", "Bearer ", "Bearer a.b.c", "\ud800", "Ⅻ", "0" * 64,
    str(int(NOW)), "https://api.paypal.com/v1/notifications/certs/CERT-x", "SHA256withRSA",
]  # fmt: skip
HEADER = st.text(st.characters(max_codepoint=255), max_size=60) | st.sampled_from(ODD_HEADERS)
SCALARS = st.none() | st.booleans() | st.integers() | st.text(max_size=6) | st.just("\ud800") | st.just(10**400)


def documents(names: list[str]) -> st.SearchStrategy[object]:
    keys = st.sampled_from(names or ["a"]) | st.text(max_size=3)
    return st.recursive(
        SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=5), max_leaves=12
    )


@functools.cache
def prepare(label: str) -> tuple[ProviderSource, Verifier, Request, st.SearchStrategy[bytes]]:
    """Return a provider's source, its genuine request, and similar bodies."""
    provider_source = next(one for one in ALL if one.label == label)
    genuine = provider_source.request(provider_source.sign_sample())
    words = sorted({word for word in _words(genuine.body) if word})
    bodies = (
        st.binary(max_size=60)
        | documents(words).map(lambda document: json.dumps(document).encode("utf-8", "surrogatepass"))
        | st.lists(st.tuples(st.sampled_from(words or ["a"]), st.text(max_size=5)), max_size=5).map(
            lambda pairs: "&".join(f"{name}={value}" for name, value in pairs).encode("utf-8", "surrogatepass")
        )
        | st.integers(0, len(genuine.body)).map(lambda end: genuine.body[:end])
    )
    return provider_source, provider_source.verifier(), genuine, bodies


def _words(body: bytes) -> list[str]:
    try:
        document = json.loads(body)
    except ValueError:
        return [pair.partition("=")[0] for pair in body.decode("utf-8", "replace").split("&")]
    words: list[str] = []
    waiting = [document]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            words += one
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one
    return words


def _headers_read(verifier: Verifier, genuine: Request) -> list[str]:
    known = verifier.reverify_headers | signature_headers(verifier.recipe.proof) | genuine.headers.keys()
    return sorted(known | {"authorization", "content-encoding"})


@every
@some
@given(data=st.data())
def test_arbitrary_headers_and_bodies_get_a_verdict(provider_source: ProviderSource, data: st.DataObject):
    _, verifier, genuine, bodies = prepare(provider_source.label)
    headers = dict(genuine.headers)
    for name in data.draw(st.lists(st.sampled_from(_headers_read(verifier, genuine)), max_size=4)):
        headers[name] = data.draw(HEADER)
    body = data.draw(st.just(genuine.body) | bodies)
    query = data.draw(st.just(genuine.query) | HEADER)
    method = data.draw(st.sampled_from([genuine.method, "POST", "GET", "HEAD"]))
    request = replace(genuine, headers=headers, body=body, query=query, method=method, client=data.draw(HEADER))
    verdict = verifier.verify(request, NOW)
    assert isinstance(verdict, Verdicts)
    if isinstance(verdict, Rejected):
        verifier.explain(request, verdict, NOW)


@every
@some
@given(data=st.data())
def test_arbitrary_signed_bodies_get_a_verdict(provider_source: ProviderSource, data: st.DataObject):
    _, standing, genuine, bodies = prepare(provider_source.label)
    verifier = _trusting(standing)
    verdict = verifier.verify(replace(genuine, body=data.draw(bodies)), NOW)
    assert isinstance(verdict, Verdicts)
    if isinstance(verdict, Verified):
        names = [(verdict.type, verdict.dedup_key), *((item.type, item.dedup_key) for item in verdict.items)]
        for type, key in names:
            assert type.isprintable()
            assert len(type) <= 200
            assert key.isprintable()
            assert len(key.encode()) < 2_000
        assert verdict.reply is None or 200 <= verdict.reply.status < 300


def _trusting(verifier: Verifier) -> Verifier:
    trusting = object.__new__(Verifier)
    trusting.__dict__ |= verifier.__dict__ | {"check": _Trust()}
    return trusting


class _Trust:
    proof_headers: frozenset[str] = frozenset()

    def check(self, _request: Request, _now: float) -> ValidProof:
        return ValidProof(None)


@every
@some
@given(data=st.data())
def test_no_forged_body_is_taken_where_the_body_is_signed(provider_source: ProviderSource, data: st.DataObject):
    _, verifier, genuine, bodies = prepare(provider_source.label)
    body = data.draw(bodies)
    if verifier.recipe.grade is not ProofStrength.BODY or body == genuine.body:
        return
    verdict = verifier.verify(replace(genuine, body=body), NOW)
    if isinstance(verdict, Verified):
        # Some senders sign what a body means and not its bytes: then it must be the same event.
        true = verifier.verify(genuine, NOW)
        assert isinstance(true, Verified)
        assert (verdict.dedup_key, verdict.items) == (true.dedup_key, true.items)


FLOODS = [
    "," * 60_000,
    "v1=" * 20_000,
    "t=1,v1=0," * 6_000,
    "a=b;" * 15_000,
    "|&" * 30_000,
    " " * 60_000,
    "9" * 60_000,
    "A" * 60_000,
    "." * 60_000,
    "v1,x " * 12_000,
    "é" * 60_000,
    "https://" + "a." * 30_000,
    "eyJhbGciOiJIUzI1NiJ9." * 3_000,
]


@pytest.mark.extended("is judged by the clock")
@every
def test_a_hostile_header_costs_a_millisecond_or_so(provider_source: ProviderSource):
    _, verifier, genuine, _ = prepare(provider_source.label)
    for name in sorted(verifier.proof_headers | signature_headers(verifier.recipe.proof)):
        for flood in FLOODS:
            request = replace(genuine, headers={**genuine.headers, name: flood})
            dear = too_dear(partial(verifier.verify, request, NOW), most=2.5)
            assert dear is None, (name, flood[:10])
