"""Gateway process on real sockets that shows what it has stored; for the tests test_wire_*.

Arguments: the bound socket's descriptor, then JSON: `sources`, `limits`, `trusted_proxies`, and `mutant`, the name of
the safeguard that is removed. `GET /seen` lists the stored events, `GET /macs` counts the computed signatures,
`GET /echo/WORD` returns the word, and `GET /wide` returns a long body.
"""

import asyncio
import json
import socket
import sys
import zlib
from functools import partialmethod
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import uvloop

from boathook.config import load
from boathook.domain import signing
from boathook.domain.filters import Router
from boathook.domain.model import Accepted, Duplicate, NewEvent, Receipt
from boathook.http import connection, limits
from boathook.http.connection import ConnectionRegistry
from boathook.http.limits import ConnectionLimiter, RateLimiter
from boathook.http.listener import Listener
from boathook.ingest import content_encoding
from boathook.ingest.app import IngestApp
from boathook.ingest.direct import DirectIngest
from boathook.ingest.event_builder import EventBuilder
from boathook.ingest.event_writer import ReceiptWaiter
from boathook.ingest.pipeline import IngestPipeline
from boathook.ingest.sources import compile_sources
from boathook.observability import log


class MemoryIntake:
    """Keeps the first event of each key in memory."""

    def __init__(self) -> None:
        self.stored: dict[UUID, NewEvent] = {}

    def put(self, event: NewEvent, waiter: ReceiptWaiter) -> None:
        waiter.set_result(self._store(event))

    def _store(self, event: NewEvent) -> Receipt:
        first = self.stored.setdefault(event.key_hash, event)
        if first is event:
            return Accepted(event.id)
        return Duplicate(first.id, conflict=first.body_sha256 != event.body_sha256)

    def events(self) -> list[dict[str, Any]]:
        return [
            {"key": event.dedup_key, "body": event.body[:4_000].hex(), "size": len(event.body)}
            for event in self.stored.values()
        ]


class InspectionApp:
    """Serves the paths that are not a source's."""

    def __init__(self, memory: MemoryIntake) -> None:
        self._memory = memory
        self.macs = 0

    async def __call__(self, scope: dict[str, Any], _receive: Any, send: Any) -> None:
        match scope["path"].split("/"):
            case ["", "seen"]:
                status, text = 200, json.dumps(self._memory.events())
            case ["", "macs"]:
                status, text = 200, json.dumps(self.macs)
            case ["", "wide"]:
                status, text = 200, "w" * 60_000
            case ["", "echo", word]:
                status, text = 200, word
            case _:
                status, text = 404, "{}"
        headers = [(b"content-type", b"text/plain")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": text.encode()})


def count_macs(inspection: InspectionApp) -> None:
    """Count every signature that is computed."""
    digest = signing.HmacKey.digest

    def counted(self: signing.HmacKey, chunks: Any) -> bytes:
        inspection.macs += 1
        return digest(self, chunks)

    signing.HmacKey.digest = counted  # type: ignore[method-assign]


def apply_mutant(name: str) -> None:
    """Remove one safeguard."""
    patch = pytest.MonkeyPatch().setattr
    match name:
        case "":
            return
        case "no deadlines":
            patch(connection.Connection, "check", lambda _self, _now: None)
        case "no end of flushing":
            patch(connection.Connection, "_has_unread_answer", lambda _self: False)
        case "no judge of heads":
            patch(connection, "head_error", lambda _watched, _version: None)
        case "lenient parser":
            patch(connection, "head_error", lambda _watched, _version: None)
            patch(
                connection.Connection,
                "connection_made",
                partialmethod(_leniently, connection.Connection.connection_made),
            )
        case "no cap on decoding":
            patch(content_encoding.Decoder, "__call__", _decode_all)
        case "no cap on chunks":
            patch(connection, "MAX_CHUNKS", sys.maxsize)
            patch(connection, "CHUNK_FRAMING_BYTES", sys.maxsize)
        case "no rate":
            patch(limits.RateLimiter, "wait_s", lambda _self, _key, _now: 0.0)
        case _:
            raise ValueError(name)


def _leniently(self: connection.Connection, made: Any, transport: Any) -> None:
    made(self, transport)
    self.parser.set_dangerous_leniencies(
        lenient_headers=True,
        lenient_chunked_length=True,
        lenient_optional_lf_after_cr=True,
        lenient_optional_cr_before_lf=True,
        lenient_optional_crlf_after_chunk=True,
        lenient_spaces_after_chunk_size=True,
    )


def _decode_all(self: content_encoding.Decoder, body: bytes) -> bytes:
    self.decoded = zlib.decompress(body, wbits=zlib.MAX_WBITS | 32)
    return self.decoded


async def main() -> None:
    options = json.loads(sys.argv[2])
    named = {
        "limits": options["limits"],
        "sources": options["sources"],
        "server.trusted_proxies": options["trusted_proxies"],
    }
    settings = load(Path("/dev/null"), named)
    log.configure("error", "json")
    apply_mutant(options["mutant"])
    router = Router((), 1)

    async def read_router() -> Router:
        return router

    bounds, memory = settings.limits, MemoryIntake()
    inspection = InspectionApp(memory)
    count_macs(inspection)
    pipeline = IngestPipeline(
        compile_sources(settings),
        memory,
        EventBuilder(router, read_router),
        quarantine=None,
        client_rate=RateLimiter(bounds.client_rate, bounds.client_burst) if bounds.client_rate else None,
        trusted_proxies=settings.server.trusted_proxies,
    )
    app = IngestApp(pipeline, others=inspection, has_proxies=bool(settings.server.trusted_proxies))
    connections = ConnectionLimiter(bounds.max_connections, bounds.max_connections_per_client)
    registry = ConnectionRegistry(app, bounds, connections, settings.server.trusted_proxies)
    registry.direct = DirectIngest(pipeline)
    listener = Listener(registry)
    await listener.start(socket.socket(fileno=int(sys.argv[1])))
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main())
