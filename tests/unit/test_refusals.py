"""What a gateway refuses before verification leaves a bounded trace for operators, and tells the sender nothing more."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from boathook.config import default_settings
from boathook.db.rejections import NewRejection
from boathook.domain import json_document
from boathook.domain.model import NewEvent, Receipt
from boathook.domain.verification import HEAD_REASONS, Reason, Rejected, Request
from boathook.http.limits import ByteBudget, RateLimiter
from boathook.ingest import intake as intake_module
from boathook.ingest import quarantine as quarantine_module
from boathook.ingest.content_encoding import Decoder
from boathook.ingest.pipeline import MAX_BODY_IN_LOOP
from boathook.ingest.quarantine import Quarantine
from boathook.ingest.sources import largest_body
from boathook.observability import meters
from tests.support import eventually
from tests.unit.test_direct import Side, chunked, request

MIB = 1 << 20


class KeptSide(Side):
    """A gateway in memory that keeps its rejections in a list."""

    def __init__(self, *, is_direct: bool = True, unverified: int | None = None, **more: Any) -> None:
        super().__init__(is_direct=is_direct, **more)
        self.kept: list[NewRejection] = []
        self.quarantine = Quarantine(self._write, per_second=100)
        self.pipeline.quarantine = self.pipeline.heads.quarantine = self.quarantine
        self.registry.on_refusal = self.pipeline.note_refusal
        if unverified is not None:
            self.pipeline.unverified = self.registry.unverified = ByteBudget(unverified)

    async def _write(self, batch: Sequence[NewRejection]) -> None:
        self.kept += batch

    async def refuse(self, piece: bytes, answers: int = 1) -> tuple[str, NewRejection]:
        """Send one request; return the output and the only rejection."""
        await self.intake.start()
        text = await self.talk([piece], answers)
        await self.quarantine.drain()
        (rejection,) = self.kept
        await self.intake.drain()
        return text, rejection


LARGE_HEAD = b"POST /in/github HTTP/1.1\r\nHost: a\r\n" + b"".join(b"X-%d: %s\r\n" % (n, b"y" * 900) for n in range(40))
REFUSALS: dict[str, tuple[bytes, int, Reason, str, str]] = {
    "announced as too large": (
        request(length=3_000), 413, Reason.BODY_TOO_LARGE, "github",
        "the body has 3,000 bytes; max_body is 2,000 bytes (sources.github.max_body); github sends up to 25 MB",
    ),
    "chunked, and too large": (
        chunked(b"x" * 3_000), 413, Reason.BODY_TOO_LARGE, "github",
        ("the body has more than 2,000 bytes; max_body is 2,000 bytes (sources.github.max_body); "
        "github sends up to 25 MB"),
    ),
    "an encoding": (
        request(headers=("Content-Encoding: gzip",)), 415, Reason.CONTENT_ENCODING, "github",
        "Content-Encoding 'gzip' is not accepted by source github; add it to content_encodings",
    ),
    "an unknown encoding": (
        request(headers=("Content-Encoding: br",)), 415, Reason.CONTENT_ENCODING, "github",
        "Content-Encoding 'br' is not accepted by source github; boathook decodes gzip and deflate",
    ),
    "a method": (
        request(method="GET", body=b""), 405, Reason.METHOD_NOT_ALLOWED, "github",
        "method GET is not allowed by source github; it accepts POST",
    ),
    "a path": (
        request("/in/GitHub?token=abc"), 404, Reason.UNKNOWN_PATH, "",
        "no source has this path; upper case; did you mean /in/github",
    ),
    "a path with a token": (
        request("/in/github/9f8a7c6b5d4e?key=abc"), 404, Reason.UNKNOWN_PATH, "",
        "no source has this path; it is below a source's path; did you mean /in/github",
    ),
    "an escaped letter": (
        request("/in/gith%75"), 400, Reason.UNKNOWN_PATH, "", "no source has this path; did you mean /in/github",
    ),
    "a large head": (
        LARGE_HEAD + b"\r\n", 431, Reason.HEAD_TOO_LARGE, "github",
        "the request head is larger than limits.max_head (large_head)",
    ),
    "two lengths": (
        request(headers=("Content-Length: 7",)), 400, Reason.REQUEST_MALFORMED, "github",
        "the request is not valid HTTP (content_length)",
    ),
    "an unknown method": (
        request(method="FETCH"), 501, Reason.REQUEST_MALFORMED, "github", "the request is not valid HTTP (method)",
    ),
    "an expectation": (
        request(headers=("Expect: 200-ok",)), 417, Reason.REQUEST_MALFORMED, "github",
        "the request is not valid HTTP (expectation)",
    ),
    "a malformed head at another path": (
        request("/in/githb", headers=("Content-Length: 7",)), 400, Reason.UNKNOWN_PATH, "",
        "no source has this path, and the request is not valid HTTP (content_length); did you mean /in/github",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSALS)
async def test_a_refused_request_leaves_its_head_with_the_likely_cause(name: str) -> None:
    piece, status, reason, source, detail = REFUSALS[name]
    counted = meters.counter("boathook_rejections_total", source=source, reason=reason).value
    text, rejection = await KeptSide().refuse(piece)
    assert text.startswith(f"HTTP/1.1 {status} ")
    assert (rejection.status, rejection.reason, rejection.source) == (status, reason, source)
    assert rejection.detail in {detail, detail.replace("content_length", "malformed")}
    assert rejection.body == b""
    assert reason in HEAD_REASONS
    assert meters.counter("boathook_rejections_total", source=source, reason=reason).value == counted + 1
    # The sender is told nothing of that.
    for word in ("did you mean", "max_body", "github", "content_encodings"):
        assert word not in text.partition("\r\n\r\n")[2]


async def test_the_head_has_the_announced_size_and_no_token() -> None:
    _, rejection = await KeptSide().refuse(
        request("/in/github/9f8a7c6b5d4e?key=abc&9f8a", length=700, headers=("Authorization: Bearer abc",))
    )
    assert rejection.url == "http://a/in/github/...?key=...&..."
    assert rejection.body_size == 700
    stored = json.loads(rejection.headers)
    assert stored.keys() == {"content-type", "authorization"}
    assert stored["authorization"].startswith("sha256:")


async def test_a_known_source_keeps_its_path_and_the_headers_of_its_signature_but_no_query_value() -> None:
    _, rejection = await KeptSide().refuse(request("/in/github/?token=abc", length=3_000))
    assert rejection.url == "http://a/in/github/?token=..."
    assert {"x-github-event", "x-hub-signature-256"} <= json.loads(rejection.headers).keys()


async def test_a_request_over_the_rate_leaves_its_head() -> None:
    side = KeptSide(rate=0.001)
    await side.intake.start()
    assert "429" in await side.talk([request(key="1"), request(key="2")], 2)
    await side.quarantine.drain()
    assert [one.reason for one in side.kept] == [Reason.CLIENT_RATE]
    await side.intake.drain()


@pytest.mark.parametrize("is_direct", [False, True])
async def test_a_slow_body_leaves_its_head(is_direct: bool) -> None:
    side = KeptSide(is_direct=is_direct)
    await side.intake.start()
    connection, wire = side.connect()
    connection.data_received(request(body=b"x" * 1_000)[:-400])
    await asyncio.sleep(0)
    connection.check(asyncio.get_running_loop().time() + 1_000)
    assert b" 408 " in wire.written
    await side.quarantine.drain()
    (rejection,) = side.kept
    assert (rejection.source, rejection.reason, rejection.body_size) == ("github", Reason.SLOW_REQUEST, 600)
    await side.intake.drain()


async def test_bytes_behind_an_answered_request_are_not_taken_for_one_of_its_source() -> None:
    side = KeptSide()
    await side.intake.start()
    assert "400" in await side.talk([request(), b"\x00\x01\x02 not HTTP\r\n\r\n"], 2)
    await side.quarantine.drain()
    assert side.kept == []
    await side.intake.drain()


async def test_a_trailing_slash_is_accepted() -> None:
    for is_direct in (False, True):
        side = KeptSide(is_direct=is_direct)
        await side.intake.start()
        assert "200" in await side.talk([request("/in/github/")], 1)
        assert len(side.store.rows) == 1
        await side.intake.drain()


@pytest.mark.parametrize("is_direct", [False, True])
async def test_a_source_that_was_removed_meanwhile_is_a_path_of_none(is_direct: bool) -> None:
    side = KeptSide(is_direct=is_direct)
    compiled = side.pipeline.by_name["github"]

    async def find_it_removed() -> None:
        side.pipeline.set_sources({})

    compiled.ensure_fresh, compiled.fresh_until = find_it_removed, 0.0
    text, rejection = await side.refuse(request("/in/github?key=abc"))
    assert text.startswith("HTTP/1.1 404 ")
    assert (rejection.source, rejection.reason) == ("", Reason.UNKNOWN_PATH)
    assert rejection.url == "http://a/in/github?key=..."
    assert rejection.body_size == len(b'{"a": 1}')


# Memory of unverified bodies


async def test_bodies_that_wait_for_their_verification_are_limited_together() -> None:
    side = KeptSide(unverified=1_500)
    await side.intake.start()
    first, kept_open = side.connect()
    first.data_received(request(key="1", body=b'"' + b"x" * 1_000 + b'"')[:-1])
    assert side.pipeline.unverified.used == 1_001
    text = await side.talk([request(key="2", body=b'"' + b"y" * 1_000 + b'"')], 1)
    assert text.startswith("HTTP/1.1 503 ")
    assert "retry-after: 1" in text
    first.data_received(b'"')
    await eventually(lambda: b"HTTP/1.1 200 " in kept_open.written)
    assert side.pipeline.unverified.used == 0
    await side.quarantine.drain()
    assert [(one.source, one.status, one.reason) for one in side.kept] == [("github", 503, Reason.UNVERIFIED_BYTES)]
    assert "200" in await side.talk([request(key="3", body=b'"' + b"y" * 1_000 + b'"')], 1)
    await side.intake.drain()


async def test_so_are_those_that_the_application_reads() -> None:
    side = KeptSide(is_direct=False, unverified=1_500)
    await side.intake.start()
    first, kept_open = side.connect()
    first.data_received(request(key="1", body=b'"' + b"x" * 1_000 + b'"')[:-1])
    await eventually(lambda: side.pipeline.unverified.used == 1_001)
    text = await side.talk([request(key="2", body=b'"' + b"y" * 1_000 + b'"')], 1)
    assert text.startswith("HTTP/1.1 503 ")
    assert "retry-after: 1" in text
    first.data_received(b'"')
    await eventually(lambda: b"HTTP/1.1 200 " in kept_open.written)
    await eventually(lambda: side.pipeline.unverified.used == 0)
    await side.intake.drain()


@pytest.mark.parametrize("is_direct", [False, True])
async def test_a_client_that_leaves_gives_its_bytes_back(is_direct: bool) -> None:
    side = KeptSide(is_direct=is_direct, unverified=1_500)
    await side.intake.start()
    connection, _ = side.connect()
    connection.data_received(request(body=b"x" * 1_000)[:-1])
    await eventually(lambda: side.pipeline.unverified.used == 999)
    connection.connection_lost(None)
    await eventually(lambda: side.pipeline.unverified.used == 0)
    await side.intake.drain()


async def test_a_large_body_has_time_to_arrive() -> None:
    side = KeptSide()
    connection, wire = side.connect()
    loop = asyncio.get_running_loop()
    limits = side.registry.limits
    rate = 100_000
    connection.data_received(b"POST /elsewhere HTTP/1.1\r\nHost: a\r\nContent-Length: 26214400\r\n\r\n")
    started = loop.time()
    for second in range(25, 260, 25):
        connection._body_size = rate * second
        connection.check(started + second)
        assert not wire.written
    connection.check(started + limits.body_timeout_s * 30)
    assert b" 408 " in wire.written


# The event loop


class CountingExecutor:
    """Runs what it is given at once, and counts it."""

    def __init__(self) -> None:
        self.submitted: list[str] = []

    def submit(self, function: Any, *args: Any) -> Any:
        from concurrent.futures import Future

        self.submitted.append(function.func.__name__)
        done: Future[Any] = Future()
        done.set_result(function(*args))
        return done


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (100, []),
        (MAX_BODY_IN_LOOP - 2, []),
        (MAX_BODY_IN_LOOP, ["verify", "_build"]),
        (MIB - 2, ["verify", "_build"]),
    ],
)
async def test_a_thread_verifies_large_bodies_and_builds_their_events(size: int, expected: list[str]) -> None:
    side = KeptSide()
    executor = side.pipeline._threads = CountingExecutor()  # type: ignore[assignment]
    side.pipeline.by_name["github"].max_body = 2 * MIB
    await side.intake.start()
    assert "200" in await side.talk([request(body=b'"' + b"x" * size + b'"')], 1)
    assert executor.submitted == expected
    assert len(side.store.rows) == 1
    await side.intake.drain()


# The quarantine


def add(quarantine: Quarantine, source: str, reason: Reason, number: int) -> bool:
    from boathook.domain import ids

    sent = Request(method="POST", url="/", path="/", query="", headers={}, body=b"", client="192.0.2.1")
    if not quarantine.admit(source, reason):
        return False
    verdict = Rejected(status=401, reason=reason, detail="", may_reverify=False)
    quarantine.add(ids.make(number, number), source, sent, verdict, frozenset())
    return True


def flood(quarantine: Quarantine) -> tuple[int, bool, bool]:
    """Return how many rejections of no source are queued, and whether there is room for others afterwards."""
    kept = sum(add(quarantine, "", Reason.UNKNOWN_PATH, n) for n in range(3_000))
    return (
        kept,
        add(quarantine, "github", Reason.SIGNATURE_MISMATCH, 1),
        add(quarantine, "github", Reason.BODY_TOO_LARGE, 1),
    )


async def test_a_flood_of_unknown_paths_takes_no_room_from_sources() -> None:
    quarantine = Quarantine(KeptSide()._write, per_second=1e9)
    assert flood(quarantine) == (100, True, True)


async def test_the_flood_is_seen_without_the_bound_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quarantine_module, "MAX_WAITING_OF_NO_SOURCE", 10_000)
    monkeypatch.setattr(Quarantine, "_has_room", lambda self, *_: len(self._waiting) < quarantine_module.MAX_WAITING)
    quarantine = Quarantine(KeptSide()._write, per_second=1e9)
    assert flood(quarantine) == (1_000, False, False)


async def test_a_flood_of_heads_takes_no_rate_from_failed_signatures() -> None:
    quarantine = Quarantine(KeptSide()._write, per_second=10)
    assert sum(add(quarantine, "github", Reason.METHOD_NOT_ALLOWED, n) for n in range(1_000)) < 100
    assert add(quarantine, "github", Reason.SIGNATURE_MISMATCH, 1)


async def test_the_flood_of_heads_is_seen_where_all_share_one_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    original = RateLimiter.wait_s
    monkeypatch.setattr(RateLimiter, "wait_s", lambda self, _, now: original(self, "", now))
    quarantine = Quarantine(KeptSide()._write, per_second=10)
    assert sum(add(quarantine, "github", Reason.METHOD_NOT_ALLOWED, n) for n in range(1_000)) < 100
    assert not add(quarantine, "github", Reason.SIGNATURE_MISMATCH, 1)


# Limits


@pytest.mark.parametrize(
    ("configured", "documented", "expected"),
    [
        (None, None, (MIB, "limits.max_body")),
        (77, 25 * MIB, (77, "sources.shop.max_body")),
        (99 * MIB, 25 * MIB, (99 * MIB, "sources.shop.max_body")),
        (None, 14 * MIB, (14 * MIB, "the sender's documented maximum")),
        (None, 25 * MIB, (25 * MIB, "the sender's documented maximum")),
        (None, 35 * MIB, (25 * MIB, "limits.max_provider_body")),
        (None, 200_000, (MIB, "limits.max_body")),
    ],
)
def test_the_largest_body_of_a_source(
    configured: int | None, documented: int | None, expected: tuple[int, str]
) -> None:
    assert largest_body(default_settings().limits, "shop", configured, documented) == expected


def test_a_batch_that_compresses_well_is_decoded() -> None:
    import gzip

    limits = default_settings().limits
    body = b'{"event": "delivered", "email": "user@example.com"}' * 40_000
    packed = gzip.compress(body)
    assert len(body) > 200 * len(packed)
    decoder = Decoder("gzip", max_decoded=limits.max_decoded, max_ratio=limits.max_ratio)
    assert decoder(packed) == body
    bomb = decoder(gzip.compress(b"0" * (limits.max_decoded + 1)))
    assert isinstance(bomb, Rejected)
    assert (bomb.status, bomb.reason) == (413, Reason.DECODED_TOO_LARGE)
    limited = Decoder("gzip", max_decoded=limits.max_decoded, max_ratio=20)(packed)
    assert isinstance(limited, Rejected)


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 1_000_000])
def test_the_depth_of_a_body_is_the_same_in_pieces(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_document, "PIECE", piece)
    text = '{"a\\\\": "]}[{\\"\\\\\\\\", "b\\"": "\\\\\\""}'
    for depth in (json_document.MAX_DEPTH - 2, json_document.MAX_DEPTH - 1, json_document.MAX_DEPTH):
        body = (f"[{text}," * depth + text + "]" * depth).encode()
        assert json_document.is_too_deep(body) == (depth >= json_document.MAX_DEPTH)
        assert (json_document.parse(body) is json_document.UNREADABLE) == (depth >= json_document.MAX_DEPTH)


@pytest.mark.parametrize(("max_bytes", "expected"), [(10_000, [1, 7]), (250, [1, 2, 2, 2, 1]), (1, [1] * 8)])
async def test_a_commit_has_a_bounded_number_of_bytes(
    max_bytes: int, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake_module, "MAX_COMMIT_BYTES", max_bytes)
    side = KeptSide()
    lengths: list[int] = []
    append = side.store.append

    async def count_and_append(batch: Sequence[NewEvent], *, within_s: float | None = None) -> list[Receipt]:
        lengths.append(len(batch))
        return await append(batch, within_s=within_s)

    monkeypatch.setattr(side.store, "append", count_and_append)
    side.store.may_commit.clear()
    await side.intake.start()
    body = b'"' + b"x" * 98 + b'"'
    talks = [asyncio.create_task(side.talk([request(key="0", body=body)], 1))]
    await side.store.has_begun.wait()
    talks += [asyncio.create_task(side.talk([request(key=str(number), body=body)], 1)) for number in range(1, 8)]
    await eventually(lambda: side.intake.waiting == 7)
    side.store.may_commit.set()
    assert all("HTTP/1.1 200" in text for text in await asyncio.gather(*talks))
    assert lengths == expected
    await side.intake.drain()
