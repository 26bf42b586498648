"""The time of a rejection reveals nothing of the secret: comparisons are in constant time, also measured."""

import ast
import hmac
import math
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

import boathook
from boathook.domain import signing
from boathook.domain.verification import Rejected, Request
from boathook.providers.schemes import FieldMac, Hmac, Token
from boathook.verification.verifier import Verifier
from tests.providers.source_factory import NOW, ProviderSource, all_sources
from tests.unit.verifier_factory import signed, verifier

SOURCE = Path(boathook.__file__).parent
MAX_T = 4.5
TELLING = ("signature", "token", "digest", "mac", "expected", "given", "proof", "secret", "fingerprint", "password")
INNOCENT = {
    "captured == secrets": "both are the owner's own: whether a told secret has changed",
    "candidates != secrets": "both are the owner's own: whether there are other spellings of a secret",
    "stored_secrets != self._added.known": "both are the owner's own: whether a stored secret has changed",
    "name != self.secret_query": "the name of a query's parameter, which is no secret",
    "name in secret": "the name of a query's parameter, which is no secret",
    "name == self.signature": "the name of a scheme, such as v1",
    "names.signature in headers": "the name of a header, which is no secret",
    "count == MAX_SIGNATURES": "numbers",
    "claim != expected": "a claim of a token whose signature has been verified",
    "value == expected": "a value of an event and that of a filter",
    "tokens == request.wanted": "numbers of tokens of a rate",
}
"""Comparisons that are called like those of proofs and are none, and why."""
COMPARING = ("ingest", "verification", "providers", "domain")
"""The packages that compare what was sent with what is expected."""


def comparisons(code: str) -> set[str]:
    """Return comparisons with ``==``, ``!=`` or ``in`` whose operands are named like proofs or secrets."""
    found = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Compare) and any(isinstance(op, ast.Eq | ast.NotEq | ast.In) for op in node.ops):
            operands = [node.left, *node.comparators]
            plain = [operand for operand in operands if not isinstance(operand, ast.Constant)]
            if len(plain) > 1 and any(word in name for name in map(_name, plain) for word in TELLING):
                found.add(ast.unparse(node))
    return found


def _name(node: ast.AST) -> str:
    """Return what an operand is called; nothing for one that is computed."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name.lower()
        case ast.Subscript(value=value):
            return _name(value)
        case _:
            return ""


def test_no_proof_is_compared_in_a_time_that_depends_on_it():
    found = {
        text for room in COMPARING for path in (SOURCE / room).rglob("*.py") for text in comparisons(path.read_text())
    }
    assert found - INNOCENT.keys() == set()
    assert INNOCENT.keys() - found == set()


@pytest.mark.parametrize("code", ["a.signature == b", "given in expected", "token != self._token", "mac[0] == right"])
def test_a_planted_comparison_is_found(code: str):
    assert comparisons(code)


SHARED = [
    provider_source
    for provider_source in all_sources()
    if isinstance(provider_source.recipe.proof, Hmac | FieldMac | Token)
]


def watch(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, object]]:
    """Have the pairs noted that are compared in constant time."""
    pairs: list[tuple[object, object]] = []
    compare = hmac.compare_digest

    def watched(left: str, right: str) -> bool:
        pairs.append((left, right))
        return compare(left, right)

    monkeypatch.setattr(hmac, "compare_digest", watched)
    return pairs


@pytest.mark.parametrize("provider_source", SHARED, ids=str)
def test_every_shared_secret_is_compared_in_constant_time(
    provider_source: ProviderSource, monkeypatch: pytest.MonkeyPatch
):
    genuine, source, pairs = (
        provider_source.request(provider_source.sign_sample()),
        provider_source.verifier(),
        watch(monkeypatch),
    )
    source.verify(genuine, NOW)
    assert pairs
    assert all(len(str(left)) == len(str(right)) for left, right in pairs)


def test_mutant_a_plain_comparison_is_not_recorded(monkeypatch: pytest.MonkeyPatch):
    provider_source = next(provider_source for provider_source in SHARED if provider_source.label == "stripe")
    pairs = watch(monkeypatch)
    monkeypatch.setattr(signing, "equal_constant_time", lambda left, right: left == right)
    provider_source.verifier().verify(provider_source.request(provider_source.sign_sample()), NOW)
    assert pairs == []


# Measured: two kinds of wrong requests take the same time, by Welch's t-test of many turns.


def wrong_at(place: int, number: int) -> Request:
    """Return a request whose signature is wrong at one character."""
    sent = signed("github", b'{"n":%d}' % number)
    value = sent.headers["x-hub-signature-256"]
    place = place if place < 0 else len("sha256=") + place
    other = "0" if value[place] != "0" else "1"
    changed = value[:place] + other + (value[place + 1 :] if place != -1 else "")
    return replace(sent, headers={**sent.headers, "x-hub-signature-256": changed})


def of_delivery(name: str, number: int) -> Request:
    """Return a request that is signed wrongly, under an id."""
    sent = wrong_at(5, number)
    return replace(sent, headers={**sent.headers, "x-github-delivery": f"{name}-{number:06d}"})


PAIRS: dict[str, tuple[Callable[[int], Request], Callable[[int], Request]]] = {
    "first or last character": (lambda n: wrong_at(0, n), lambda n: wrong_at(-1, n)),
    "one id or another": (lambda n: of_delivery("seen-before", n), lambda n: of_delivery("never--seen", n)),
}


def t_of(source: Verifier, kinds: tuple[Callable[[int], Request], Callable[[int], Request]], turns: int) -> float:
    """Return Welch's t of the times that two kinds of requests take.

    The sample is of requests, each with the median of its turns: where one happens to lie in memory makes all its turns
    a little faster or slower alike, so that they are no independent measurements of its kind. They are made in any order
    for the same reason.
    """
    plan = [(kind, make, number) for number in range(200) for kind, make in enumerate(kinds)]
    random.shuffle(plan)
    pool: list[tuple[int, Request, list[int]]] = [(kind, make(number), []) for kind, make, number in plan]
    clock, verify = time.perf_counter_ns, source.verify
    for _ in range(turns // len(pool)):
        random.shuffle(pool)
        for _, request, spent in pool:
            started = clock()
            verify(request, NOW)
            spent.append(clock() - started)
    assert all(isinstance(verify(request, NOW), Rejected) for _, request, _ in pool)
    left, right = ([statistics.median(spent) for kind, _, spent in pool if kind == one] for one in (0, 1))
    return welch(left, right)


def welch(left: list[float], right: list[float]) -> float:
    spread = statistics.variance(left) / len(left) + statistics.variance(right) / len(right)
    return (statistics.fmean(left) - statistics.fmean(right)) / math.sqrt(spread)


def _early_exit(left: str, right: str) -> bool:
    return len(left) == len(right) and all(one == other for one, other in zip(left, right, strict=True))


def test_mutant_a_comparison_that_ends_early_is_found_by_the_clock(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(signing, "equal_constant_time", _early_exit)
    found = [abs(t_of(verifier("github"), PAIRS["first or last character"], 4_000)) for _ in range(3)]
    assert max(found) > MAX_T


@pytest.mark.soak
@pytest.mark.parametrize("name", PAIRS)
def test_comparison_times_do_not_differ_in_a_million_rounds(name: str):
    found = []
    for _ in range(3):
        found.append(abs(t_of(verifier("github"), PAIRS[name], 1_000_000)))
        if found[-1] < MAX_T:
            return
    raise AssertionError(found)
