"""How fast messages are published by the API, against taking in webhooks of the same size."""

import asyncio
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.bare_clients import urls
from benchmarks.delivery_setup import SETTINGS, TYPE, DeliverySetup, create_setup, make_body, make_token
from benchmarks.environment import BenchmarkEnvironment, Server, read_cpu
from benchmarks.ingest import CONNECTIONS
from benchmarks.load import LoadResult, prepare, run_load, write_requests
from boathook.domain.errors import ConfigError

_PER_SECOND: Final = 15_000
_ROUNDS: Final = 3
_BODY_BYTES: Final = 1024
_UNUSED_PORT: Final = 18_999
"""Nothing is sent: no sender runs."""


@dataclass(frozen=True, slots=True)
class _Measured:
    load: LoadResult
    product_us: float
    """Processor microseconds a request, of all processes of boathook."""
    postgres_us: float | None
    """The same of PostgreSQL; None where it is not the environment's own."""


def publish(environment: BenchmarkEnvironment, seconds: float) -> dict[str, Any]:
    """Publish over kept connections to one endpoint and to 200, with and without an idempotency key.

    Each is measured on one server in turn with webhooks of the same size, which one handler receives.
    """
    single = create_setup(environment, urls(_UNUSED_PORT, 1))
    many = create_setup(environment, urls(_UNUSED_PORT, 200))
    few_seconds = max(1.0, seconds / 2)
    rounds = [_measure_round(environment, single, number, seconds) for number in range(_ROUNDS)]
    with environment.serve(many.database_url, roles="gateway,console", more=SETTINGS) as server:
        fanout = _publish(environment, server, many, 0, few_seconds, per_second=_PER_SECOND // 20)
    pairs = [
        (plain.load.rate / ingest.load.rate, keyed.load.rate / ingest.load.rate) for ingest, plain, keyed in rounds
    ]
    figures: dict[str, Any] = {
        "ratio_to_ingest": round(median(plain for plain, _ in pairs), 3),
        "keyed_ratio_to_ingest": round(median(keyed for _, keyed in pairs), 3),
    }
    kinds = ("ingest", "publish", "publish_keyed")
    for kind, measured in zip(kinds, zip(*rounds, strict=True), strict=True):
        figures |= _figures(kind, measured)
    figures |= _figures("publish_200_endpoints", [fanout])
    everything = [*(one for each in rounds for one in each), fanout]
    return figures | {
        "connections": CONNECTIONS,
        "body_bytes": _BODY_BYTES,
        "refused": sum(one.load.refused for one in everything),
        "broken": sum(one.load.broken for one in everything),
    }


def _figures(kind: str, measured: Sequence[_Measured]) -> dict[str, Any]:
    figures: dict[str, Any] = {
        f"{kind}_per_s": round(median(one.load.rate for one in measured)),
        f"{kind}_p50_ms": round(median(one.load.p50_ms for one in measured), 2),
        f"{kind}_p99_ms": round(median(one.load.p99_ms for one in measured), 2),
        f"{kind}_product_us": round(median(one.product_us for one in measured), 1),
    }
    postgres = [one.postgres_us for one in measured if one.postgres_us is not None]
    return figures | ({f"{kind}_postgres_us": round(median(postgres), 1)} if postgres else {})


def _measure_round(
    environment: BenchmarkEnvironment, setup: DeliverySetup, number: int, seconds: float
) -> tuple[_Measured, _Measured, _Measured]:
    environment.report(f"round {number + 1} of {_ROUNDS}")
    with environment.serve(setup.database_url, roles="gateway,console", more=SETTINGS) as server:
        measures: list[Callable[[], _Measured]] = [
            functools.partial(_ingest, environment, server, number, seconds),
            functools.partial(_publish, environment, server, setup, 2 * number, seconds),
            functools.partial(_publish, environment, server, setup, 2 * number + 1, seconds, is_keyed=True),
        ]
        # In turn forwards and backwards, as the machine and the tables change meanwhile.
        order = [0, 1, 2] if number % 2 == 0 else [2, 1, 0]
        found = {place: measures[place]() for place in order}
    return found[0], found[1], found[2]


def _ingest(environment: BenchmarkEnvironment, server: Server, number: int, seconds: float) -> _Measured:
    with environment.corpus() as corpus:
        count = int(_PER_SECOND * seconds)
        environment.report("  webhooks")
        prepare(corpus, count, parts=1, first=number * count, size=_BODY_BYTES)
        return _drive(environment, server, corpus, seconds)


def _publish(
    environment: BenchmarkEnvironment,
    server: Server,
    setup: DeliverySetup,
    number: int,
    seconds: float,
    *,
    is_keyed: bool = False,
    per_second: int = _PER_SECOND,
) -> _Measured:
    token = asyncio.run(make_token(setup))
    with environment.corpus() as corpus:
        environment.report(f"  messages to {len(setup.recipients)} endpoints{', with a key each' * is_keyed}")
        count = int(per_second * seconds)
        first = number * count
        payload = make_body(_BODY_BYTES - len(make_request_body(b"")))
        requests = (
            make_request(setup.application, token, payload, first + at if is_keyed else None) for at in range(count)
        )
        write_requests(Path(f"{corpus}.0"), requests)
        return _drive(environment, server, corpus, seconds)


def make_request_body(payload: bytes, deliver_at: datetime | None = None) -> bytes:
    """Return the body of a request that publishes a message."""
    later = b"" if deliver_at is None else b',"deliverAt":"%s"' % deliver_at.isoformat().encode()
    return b'{"eventType":"%s","payload":%s%s}' % (TYPE.encode(), payload, later)


def make_request(
    application: str, token: str, payload: bytes, key: int | None = None, deliver_at: datetime | None = None
) -> bytes:
    """Return the HTTP request that publishes a message."""
    body = make_request_body(payload, deliver_at)
    lines = [
        f"POST /api/v1/app/{application}/msg HTTP/1.1",
        "host: 127.0.0.1",
        f"authorization: Bearer {token}",
        "content-type: application/json",
        f"content-length: {len(body)}",
    ]
    if key is not None:
        lines.append(f"idempotency-key: key-{key}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def _drive(environment: BenchmarkEnvironment, server: Server, corpus: Path, seconds: float) -> _Measured:
    server.wait_until_idle()
    before = read_cpu(environment, server)
    load = run_load(corpus, server.port, connections=CONNECTIONS, seconds=seconds)
    after = read_cpu(environment, server)
    if not load.requests:
        raise ConfigError("no request of the benchmark was answered")
    used = after.since(before, load.requests)
    return _Measured(load, used.gateway, used.postgres)
