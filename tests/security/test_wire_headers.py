"""Hostile signatures, stamps and ids in the headers of every sender: refused, never a fault, and few of them tried.

What any text at all does to the verifiers is in tests/providers/test_hostile.py; here it is a list, as bytes on the wire,
through the whole of the ingest application.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import time_machine

from boathook.domain import signing
from boathook.domain.filters import Router
from boathook.domain.model import Accepted, NewEvent
from boathook.domain.verification import Request
from boathook.ingest.app import IngestApp
from boathook.ingest.event_builder import EventBuilder
from boathook.ingest.event_writer import ReceiptWaiter
from boathook.ingest.pipeline import IngestPipeline
from boathook.ingest.sources import CompiledSource
from boathook.observability import meters
from boathook.providers import schemes
from boathook.providers.schemes import MAX_SIGNATURES
from boathook.verification import asymmetric, signed_content
from boathook.verification.check import signature_headers
from boathook.verification.public_keys import is_valid_signature as fits_key
from tests.providers.source_factory import NOW, ProviderSource, all_sources
from tests.support import sampled

ALL = list(all_sources())
every = pytest.mark.parametrize("provider_source", ALL, ids=str)

MOMENTS = (
    b"nan", b"-nan", b"inf", b"-inf", b"Infinity", b"1e9", b"1E9", b"1e400", b"-0", b"+0", b"0", b"-1", b"00000000000",
    b"0x5f5e100", b"1_700_000_000", b"1700000000.5", b" 1700000000", b"1700000000 ", b"9" * 11, b"9" * 19, b"9" * 400,
    b"9" * 5_000, b"18446744073709551616", b"-9223372036854775809", "\u0661\u0667\u0660\u0660\u0660\u0660\u0660\u0660\u0660\u0660".encode(), "\uff11\uff17\uff10\uff10\uff10\uff10\uff10\uff10\uff10\uff10".encode(),
    b"\xb2\xb3\xb9", b"\xbd", b"now", b"true", b"null", b"[]", b"2026-11-21T18:00:00Z", b"2026-11-21", b"0000-00-00T00:00:00Z",
    b"9999-12-31T23:59:59-23:59", b"10000-01-01T00:00:00Z", b"2026-02-30T00:00:00Z", b"2026-11-21T18:00:00+99:99",
)  # fmt: skip
IDS = (
    b".", b"..", b"a.b", b"msg_1.1700000000.", b"", b" ", b"\x00", b"\xff\xfe", b"'", b'"', b"%00", b"%0d%0a", b"../../x",
    b"\xe2\x80\xae", b"\xf0\x9f\x92\xa9", b"\xed\xa0\x80", b"{id}", b"${jndi:x}", b"a" * 8_000, b"\t", b"a,b", b"a;b",
)  # fmt: skip
SIGNATURES = (
    b"", b" ", b",", b",,", b"=", b"v1", b"v1=", b"v1,", b"v1,=", b"v1,a,b", b"v1a,", b"t=", b"t=,v1=", b"t=1,t=2,v1=0", b"t=1 v1=0",
    b"sha256", b"sha256=", b"sha256=zz", b"sha1=" + b"0" * 40, b"sha256=" + b"0" * 63, b"0" * 64, b"0" * 65, b"z" * 64,
    b"\xff" * 64, "\uff10".encode() * 64, b"AAAA", b"AAA", b"A===", b"====", b"+/+/", b"-_-_", b"Basic", b"Basic ", b"Basic !!!!",
    b"Basic Og==", b"Bearer", b"Bearer a", b"Bearer a.b", b"Bearer ..", b"Bearer e30.e30.", b"Bearer eyJhbGciOiJub25lIn0.e30.",
    b"keyId=,signature=", b'keyId="a",algorithm="none",signature=""', b"ts=1;h1=0", b"ts;h1", b"v0=", b"(", b"{}", b"[]", b"null",
    b"https://", b"https://[", b"http://127.0.0.1/", b"file:///etc/passwd", b"\\", b"%", b"%00", b"a" * 8_000, b"," * 8_000,
)  # fmt: skip
FLOODS = tuple(
    join.join([b"v1" + mark + b"00" * 8] * 10_000) for join in (b",", b" ", b";", b"&") for mark in (b"=", b",")
)
CORPUS = (*MOMENTS, *IDS, *SIGNATURES, *FLOODS)


@pytest.fixture(autouse=True)
def frozen_clock() -> Iterator[None]:
    """Set the clock to the time of collection, when the requests were signed."""
    with time_machine.travel(NOW):
        yield


class Takes:
    """Says that everything is stored."""

    def put(self, event: NewEvent, waiter: ReceiptWaiter) -> None:
        waiter.set_result(Accepted(event.id))


async def _nobody(_scope: Any, _receive: Any, _send: Any) -> None:
    raise AssertionError


def app_of(provider_source: ProviderSource) -> IngestApp:
    verifier = provider_source.verifier()
    count = meters.counter("boathook_events_accepted_total", source=provider_source.label)
    compiled = CompiledSource(
        source=provider_source.label, verifier=verifier, is_unsigned=False, methods=verifier.methods, max_body=1 << 20,
        max_body_key="limits.max_body",
        encodings=frozenset(), max_decoded=1 << 23, max_ratio=20, public_url="https://hooks.example.com", rate=None,
        accepted=count, duplicates=count, skew_s=count,
        acknowledged=meters.histogram("boathook_ack_seconds", source=provider_source.label),
    )  # fmt: skip
    router = Router((), 0)

    async def read_router() -> Router:
        return router

    pipeline = IngestPipeline({"/in": compiled}, Takes(), EventBuilder(router, read_router), quarantine=None)
    return IngestApp(pipeline, others=_nobody)


async def answered(app: IngestApp, request: Request, headers: dict[str, bytes]) -> int:
    """Return the status that a request with these headers is answered."""
    told: list[int] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": request.body, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        told.append(message.get("status", 0))

    scope = {
        "type": "http",
        "path": "/in",
        "raw_path": request.path.encode(),
        "query_string": request.query.encode(),
        "method": request.method,
        "headers": [(name.encode(), value) for name, value in headers.items()],
        "client": (request.client, 1),
    }
    await app(scope, receive, send)
    return told[0]


def hostile(
    provider_source: ProviderSource, values: Sequence[bytes] = CORPUS
) -> Iterator[tuple[Request, str, dict[str, bytes]]]:
    """Yield the genuine request with each header that is read for its proof replaced by each of *values* and a flood."""
    genuine = provider_source.request(provider_source.sign_sample(at=NOW))
    plain = {name: value.encode("latin-1", "replace") for name, value in genuine.headers.items()}
    verifier = provider_source.verifier()
    for name in sorted(verifier.reverify_headers | signature_headers(verifier.recipe.proof) | {"authorization"}):
        for value in (*values, *(join.join([plain.get(name, b"")[:-1] + b"0"] * 10_000) for join in (b",", b" "))):
            yield genuine, name, plain | {name: value}


async def faults(provider_source: ProviderSource) -> set[tuple[str, bytes]]:
    """Return the hostile headers that are answered as if something here were broken."""
    app = app_of(provider_source)
    found = set()
    for request, name, headers in hostile(provider_source):
        if await answered(app, request, headers) >= 500:
            found.add((name, headers[name][:60]))
    return found


@pytest.mark.parametrize("provider_source", sampled(ALL, keep=20), ids=str)
async def test_no_hostile_header_causes_a_server_error(provider_source: ProviderSource):
    genuine = provider_source.request(provider_source.sign_sample(at=NOW))
    plain = {name: value.encode("latin-1", "replace") for name, value in genuine.headers.items()}
    assert await answered(app_of(provider_source), genuine, plain) < 300
    assert await faults(provider_source) == set()


async def test_mutant_a_naive_timestamp_parser_causes_server_errors(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(signed_content, "parse_timestamp", lambda text, _unit: float(int(text)))
    provider_source = next(provider_source for provider_source in ALL if provider_source.label == "slack")
    assert {name for name, _ in await faults(provider_source)} == {"x-slack-request-timestamp"}


async def most_tried(provider_source: ProviderSource, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return the most signatures that were compared with one right answer."""
    tried: Counter[object] = Counter()
    same = signing.equal_constant_time

    def compare(left: str, right: str) -> bool:
        tried[left] += 1
        return same(left, right)

    def check(key: Any, scheme: Any, signature: bytes, signed: bytes) -> bool:
        tried[id(key), signed] += 1
        return fits_key(key, scheme, signature, signed)

    monkeypatch.setattr(signing, "equal_constant_time", compare)
    monkeypatch.setattr(asymmetric, "is_valid_signature", check)
    app, most = app_of(provider_source), 0
    for request, _, headers in hostile(provider_source, FLOODS):
        tried.clear()
        await answered(app, request, headers)
        most = max(most, *tried.values(), 0)
    return most


@every
async def test_at_most_sixteen_signatures_are_tried(provider_source: ProviderSource, monkeypatch: pytest.MonkeyPatch):
    assert await most_tried(provider_source, monkeypatch) <= MAX_SIGNATURES == 16


async def test_mutant_without_the_limit_all_signatures_are_tried(monkeypatch: pytest.MonkeyPatch):
    provider_source = next(provider_source for provider_source in ALL if provider_source.label == "stripe")
    monkeypatch.setattr(schemes, "MAX_SIGNATURES", 1_000_000)
    assert await most_tried(provider_source, monkeypatch) > 16
