"""Network namespace with a DNS server for rebinding attacks; prints the sender's results as JSON.

Run as root by ``unshare --mount --net``, with one word: guarded, gate (only the check on connecting is left) or
unguarded.
"""

import asyncio
import fcntl
import json
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path

import pytest

from boathook.http_client import guard, resolver
from tests.support import eventually
from tests.unit.receivers import Receiver, open_sender

GOOD, BAD = "127.0.0.2", "127.0.0.9"
CLOSE = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
A, CNAME, AAAA = 1, 5, 28

ZONE = {
    "steady.test": [{A: [GOOD]}],
    "rebind.test": [{A: [GOOD]}, {A: [BAD]}],
    "mixed.test": [{A: [GOOD, BAD]}],
    "mixed2.test": [{A: [BAD, GOOD]}],
    "cname.test": [{CNAME: ["inner.test"], A: [BAD]}],
    "six.test": [{AAAA: ["::1"]}],
    "split.test": [{A: [GOOD], AAAA: ["::1"]}],
    "late.test": [{}, {A: [BAD]}],
    "mapped.test": [{AAAA: ["::ffff:127.0.0.9"]}],
    "translated.test": [{AAAA: ["64:ff9b::7f00:9"]}],
    "zero.test": [{A: ["0.0.0.0"]}],
}
"""The records of each name at each look-up in turn; the last one repeats. Queries for silent.test get no answer."""


def packed_name(name):
    return b"".join(bytes([len(part)]) + part.encode() for part in name.split(".")) + b"\0"


def reply(query, asked):
    name, kind, end = read_question(query)
    asked[name, kind] += 1
    rounds = ZONE.get(name, [{}])
    records = rounds[min(asked[name, kind], len(rounds)) - 1]
    answers, owner = [], name
    for alias in records.get(CNAME, []):
        answers.append((owner, CNAME, packed_name(alias)))
        owner = alias
    family = {A: socket.AF_INET, AAAA: socket.AF_INET6}.get(kind)
    if family is not None:
        answers += [(owner, kind, socket.inet_pton(family, number)) for number in records.get(kind, [])]
    head = query[:2] + struct.pack(">HHHHH", 0x8180 if records else 0x8183, 1, len(answers), 0, 0)
    body = b"".join(packed_name(n) + struct.pack(">HHIH", k, 1, 0, len(data)) + data for n, k, data in answers)
    return head + query[12:end] + body


def read_question(query):
    parts, at = [], 12
    while query[at]:
        parts.append(query[at + 1 : at + 1 + query[at]].decode().lower())
        at += 1 + query[at]
    return ".".join(parts), struct.unpack(">H", query[at + 1 : at + 3])[0], at + 5


def serve_names(server):
    asked: Counter[tuple[str, int]] = Counter()
    while True:
        query, client = server.recvfrom(512)
        if not read_question(query)[0].endswith("silent.test"):
            server.sendto(reply(query, asked), client)


def count_syns(sniffer, syns):
    while True:
        packet = sniffer.recv(128)
        if packet[0] >> 4 == 4:
            target, segment = socket.inet_ntop(socket.AF_INET, packet[16:20]), packet[(packet[0] & 15) * 4 :]
            is_tcp = packet[9] == 6
        else:
            target, segment, is_tcp = socket.inet_ntop(socket.AF_INET6, packet[24:40]), packet[40:], packet[6] == 6
        if is_tcp and segment[13] & 0x12 == 0x02:
            syns[target] += 1


def raise_loopback():
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh", b"lo", 0x1 | 0x40))  # SIOCSIFFLAGS: up, running


def set_up_network(syns):
    raise_loopback()
    with tempfile.NamedTemporaryFile("w", suffix=".conf", delete=False) as file:
        file.write("nameserver 127.0.0.1\noptions timeout:3 attempts:1\n")
    subprocess.run(["mount", "--bind", file.name, "/etc/resolv.conf"], check=True)
    Path(file.name).unlink()
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind(("127.0.0.1", 53))
    sniffer = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x0003))
    sniffer.bind(("lo", 0))
    threading.Thread(target=serve_names, args=(server,), daemon=True).start()
    threading.Thread(target=count_syns, args=(sniffer, syns), daemon=True).start()


async def run(mode):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resolver, "FRESH_S", 0.0)
        if mode != "guarded":
            patch.setattr(resolver, "find_denial_on_host", lambda *_: None)
        if mode == "unguarded":
            patch.setattr(guard, "find_denial_on_host", lambda *_: None)
        return await attempt_all()


async def attempt_all():
    syns: Counter[str] = Counter()
    seen = {}
    set_up_network(syns)
    async with Receiver((CLOSE, "close"), host=GOOD) as receiver, open_sender(allow=[f"{GOOD}/32"]) as post:
        for name in ZONE:
            # Three attempts, each with a look-up of its own.
            answers = [await post(f"http://{name}:{receiver.port}/") for _ in range(3)]
            seen[name] = [str(answer.failure or answer.status) for answer in answers]
        silent = asyncio.create_task(post.many(["http://silent.test:8080/"] * 200, timeout_s=1.0))
        others = [await post(f"http://steady.test:{receiver.port}/") for _ in range(20)]
        seen["beside silent.test"] = sorted({str(answer.failure or answer.status) for answer in others})
        seen["is silent.test waited for meanwhile"] = [str(not silent.done())]
        seen["silent.test"] = sorted({str(answer.failure) for answer in await silent})
        # The packets of all attempts have passed the sniffer once this last one's has.
        before = syns[GOOD]
        await post(f"http://{GOOD}:{receiver.port}/")
        await eventually(lambda: syns[GOOD] > before)
    return {"seen": seen, "syns": {target: count for target, count in syns.items() if target != GOOD}}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(run(sys.argv[1]))) + "\n")
