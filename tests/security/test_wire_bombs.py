"""Bodies that are small on the wire and large behind it: each is refused at the cost of a plain request or so."""

import bz2
import functools
import gzip
import lzma
import random
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import pytest

from tests.security.gateway_client import Gateway, gateway, post, proof, read_all, statuses

MIB = 1 << 20
MAX_RSS = 32 * MIB
MAX_BODY = MIB
MAX_CPU = 20.0
"""Times the processor time of a plain request with a body of the largest size."""


@dataclass(frozen=True)
class Bomb:
    """A signed body with its encoding, and the allowed statuses."""

    name: str
    encoding: bytes
    body: bytes
    statuses: tuple[int, ...] = (413,)


def _raw(body: bytes) -> bytes:
    machine = zlib.compressobj(9, wbits=-15)
    return machine.compress(body) + machine.flush()


def _with_name(body: bytes) -> bytes:
    """A gzip member whose head announces a name of 60,000 letters."""
    packed = gzip.compress(body)
    return packed[:3] + b"\x08" + packed[4:10] + b"n" * 60_000 + b"\x00" + packed[10:]


def _empty_blocks(count: int) -> bytes:
    """A deflate stream of stored blocks that hold nothing, and never end."""
    return b"\x78\x9c" + b"\x00\x00\x00\xff\xff" * count


PLAIN: dict[str, Callable[[int], bytes]] = {
    "zeros": lambda size: b"\x00" * size,
    "spaces": lambda size: b" " * (size - 2) + b"{}",
    "brackets": lambda size: b"[" * size,
    "numbers": lambda size: b"[" + b"1," * (size // 2) + b"1]",
    "text": lambda size: b'{"a":"' + b"x" * size + b'"}',
}


@functools.cache
def largest() -> Bomb:
    return Bomb("gzip of 100 MiB zeros", b"gzip", gzip.compress(b"\x00" * 100 * MIB, 1))


@functools.cache
def bombs() -> tuple[Bomb, ...]:
    """A hundred of them, the same in every run."""
    dice = random.Random(20)
    made = []
    for name, write in PLAIN.items():
        for size in (9, 12, 20, 30):  # what fits into limits.max_decoded is no bomb: ordinary batches compress as well
            plain = write(size * MIB)
            packed, flat = gzip.compress(plain, 1), zlib.compress(plain, 1)
            made += [
                Bomb(f"gzip of {size} MiB {name}", b"gzip", packed),
                Bomb(f"deflate of {size} MiB {name}", b"deflate", flat),
                Bomb(f"gzip twice of {size} MiB {name}", b"gzip", gzip.compress(packed), (413, 400, 200)),
            ]
    made.append(largest())
    tail = gzip.compress(b" " * 9 * MIB)
    dense = b"".join(dice.randbytes(24) + bytes(400) for _ in range(9 * MIB // 424))
    small = gzip.compress(b'{"id":"evt_bomb"}')
    made += [
        Bomb("one that nearly keeps to the ratio", b"deflate", zlib.compress(dense)),
        Bomb("raw deflate", b"deflate", _raw(b" " * 9 * MIB), (400,)),
        Bomb("raw deflate as gzip", b"gzip", _raw(b" " * 9 * MIB), (400,)),
        Bomb("gzip as deflate", b"deflate", tail, (400,)),
        Bomb("a bomb behind a small member", b"gzip", small + tail, (400,)),
        Bomb("a thousand members", b"gzip", small * 1_000, (400,)),
        Bomb("a member behind a bomb", b"gzip", tail + small, (413,)),
        Bomb("a small member and rubbish", b"gzip", small + b"\x00" * 60_000, (400,)),
        Bomb("a bomb that is cut short", b"gzip", tail[:-4], (413,)),
        Bomb("a small member that is cut short", b"gzip", small[:-4], (400,)),
        Bomb("a wrong checksum", b"gzip", small[:-8] + b"\x00" * 8, (400,)),
        Bomb("a wrong length", b"gzip", small[:-4] + b"\xff" * 4, (400,)),
        Bomb("a long name in the head", b"gzip", _with_name(b" " * 9 * MIB), (413,)),
        Bomb("a body full of a name", b"gzip", _with_name(b"")[:50_000], (400,)),
        Bomb("empty blocks without end", b"deflate", _empty_blocks(200_000), (400,)),
        Bomb("a preset dictionary", b"deflate", b"\x78\xbb\x00\x00\x00\x01" + b"x" * 100, (400,)),
        Bomb("nothing", b"gzip", b"", (400,)),
        Bomb("rubbish", b"gzip", dice.randbytes(60_000), (400,)),
        Bomb("a head and rubbish", b"gzip", small[:10] + dice.randbytes(60_000), (400, 413)),
        Bomb(
            "a zip in a zip in a zip",
            b"gzip",
            functools.reduce(lambda b, _: gzip.compress(b), range(50), tail),
            (200, 400, 413),
        ),
    ]
    packed = zlib.compress(b" " * 9 * MIB)
    for word in (b"br", b"zstd", b"compress", b"x-compress", b"bzip2", b"xz", b"gzip, gzip", b"deflate, gzip", b"gzip;q=1",
                 b"gzip,br", b"GZIP, identity", b"gzip\tgzip", b"gzip,", b"none", b"*", b"exi", b"pack200-gzip"):  # fmt: skip
        made.append(Bomb(f"announced as {word.decode()!r}", word, packed, (415,)))
    made += [
        Bomb("bzip2 as bzip2", b"bzip2", bz2.compress(b" " * 9 * MIB), (415,)),
        Bomb("lzma as lzma", b"lzma", lzma.compress(b" " * 9 * MIB), (415,)),
        Bomb("bzip2 as gzip", b"gzip", bz2.compress(b" " * 9 * MIB), (400,)),
        Bomb("lzma as deflate", b"deflate", lzma.compress(b" " * 9 * MIB), (400,)),
    ]
    return tuple(made)


def sent(bomb: Bomb) -> bytes:
    head = b"Content-Encoding: %s\r\nConnection: close\r\n" % bomb.encoding
    return post("/in/packed", bomb.body, head + proof(bomb.body))


@pytest.fixture(scope="module")
def shared() -> Iterator[Gateway]:
    with gateway() as one:
        for _ in range(3):  # what a body of the largest size costs once is no bomb's doing
            body = b'{"id":"evt_large","text":"' + b"x" * (MAX_BODY - 40) + b'"}'
            one.ask(post("/in/packed", body, b"Connection: close\r\n" + proof(body)))
        yield one


@pytest.mark.extended("needs thousands of rows, objects or connections")
def test_there_are_a_hundred_bombs_of_different_bytes():
    assert len(bombs()) >= 100
    assert len({(bomb.encoding, bomb.body) for bomb in bombs()}) == len(bombs())


def test_each_bomb_is_refused_and_costs_no_memory(shared: Gateway):
    before, wrong = shared.peak, {}
    for bomb in bombs():
        assert len(bomb.body) <= MAX_BODY, bomb.name
        found = statuses(shared.ask(sent(bomb)))
        if len(found) != 1 or found[0] not in bomb.statuses:
            wrong[bomb.name] = found
    assert wrong == {}
    assert shared.peak - before <= MAX_RSS


@pytest.mark.extended("the mutant of a test that stays: it shows that the test can fail")
def test_mutant_without_the_cap_a_bomb_fills_the_memory():
    with gateway(mutant="no cap on decoding") as one:
        before = one.peak
        one.ask(sent(largest()))
        assert one.peak - before > MAX_RSS


def test_no_bomb_costs_more_time_than_some_plain_requests(shared: Gateway):
    worst = sorted(bombs(), key=lambda bomb: -len(bomb.body))[:20]
    assert any(_times_plain(shared, worst) <= MAX_CPU for _ in range(3))


@pytest.mark.extended("the mutant of a test that stays: it shows that the test can fail")
def test_mutant_without_the_cap_a_bomb_costs_far_more_time():
    with gateway(mutant="no cap on decoding") as one:
        assert any(_times_plain(one, [largest()]) > MAX_CPU for _ in range(3))


def _times_plain(one: Gateway, some: list[Bomb]) -> float:
    """Return how many times the processor time of as many plain requests the bombs take."""
    body = b'{"id":"evt_unit","text":"' + b"x" * (MAX_BODY - 40) + b'"}'
    plain = [post("/in/packed", body, b"Connection: close\r\n" + proof(body))] * 20
    return (_cost(one, map(sent, some)) / len(some)) / (_cost(one, plain) / len(plain))


def _cost(one: Gateway, wires: Iterable[bytes]) -> float:
    before = one.cpu_s
    for wire in wires:
        one.ask(wire)
    return max(one.cpu_s - before, 0.01)


CHUNKED = b"POST /in/open HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
FLOODS = {
    "chunks of one byte": CHUNKED + b"1\r\nx\r\n" * 100_000,
    "chunks of one byte, to their end": CHUNKED + b"1\r\nx\r\n" * 20_000 + b"0\r\n\r\n",
    "an extension without end": CHUNKED + b"1;" + b"e" * 2_000_000,
    "extensions of 10,000 bytes": CHUNKED + (b"1;" + b"e" * 10_000 + b"\r\nx\r\n") * 200,
    "an extension with a value without end": CHUNKED + b'1;a="' + b"e" * 2_000_000,
    "a size without end": CHUNKED + b"0" * 2_000_000,
    "trailers without end": CHUNKED + b"1\r\nx\r\n0\r\n" + b"a: b\r\n" * 300_000,
    "one trailer without end": CHUNKED + b"1\r\nx\r\n0\r\na: " + b"b" * 2_000_000,
    "more chunks than the largest body": CHUNKED + (b"10000\r\n" + b"x" * 65_536 + b"\r\n") * 40,
    "one chunk larger than the largest body": CHUNKED + b"400000\r\n" + b"x" * 4_194_304 + b"\r\n0\r\n\r\n",
    "a length of a terabyte": post("/in/open", b"x" * 100_000, length=1 << 40),
    "a length beyond 64 bits": post("/in/open", b"x" * 100_000, length=1 << 70),
    "headers without end": b"POST /in/open HTTP/1.1\r\n" + b"a: b\r\n" * 300_000,
    "a header without end": b"POST /in/open HTTP/1.1\r\na: " + b"b" * 2_000_000,
    "a header's name without end": b"POST /in/open HTTP/1.1\r\n" + b"b" * 2_000_000,
    "a target without end": b"POST /" + b"b" * 2_000_000,
    "empty lines without end": b"\r\n" * 1_000_000,
}


@pytest.mark.parametrize("name", FLOODS)
def test_endless_requests_are_cut_off_without_using_memory(shared: Gateway, name: str):
    before = shared.peak
    assert statuses(shared.ask(FLOODS[name])) in ([400], [413], [431])
    assert shared.peak - before <= MAX_RSS


@pytest.mark.extended("the mutant of a test that stays: it shows that the test can fail")
def test_mutant_without_the_cap_chunks_of_one_byte_are_all_read():
    with gateway(mutant="no cap on chunks") as one:
        assert statuses(one.ask(FLOODS["chunks of one byte, to their end"])) == [200]


def test_a_body_shorter_than_its_length_is_not_stored(shared: Gateway):
    with shared.connect() as client:
        client.sendall(post("/in/open", b'{"id":"evt_short"}', length=500))
        client.shutdown(1)
        assert 200 not in statuses(read_all(client))
    assert not any(b"evt_short" in body for body in shared.stored().values())
