"""Webhooks and published messages in turn while PostgreSQL is away, some with idempotency keys, some repeated."""

import asyncio
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks.delivery_setup import SETTINGS, create_setup, make_body, make_token, settings_for
from benchmarks.environment import BenchmarkEnvironment, Server
from benchmarks.ingest import CONNECTIONS
from benchmarks.load import LoadResult, make_webhook, read_answers, run_own_client, write_requests
from benchmarks.outage import IsDrained, OutageResult, check_accepted, play_outage, spool_is_empty, wait_until
from benchmarks.publish import make_request
from boathook.db.database import Database
from boathook.db.secret_box import open_secret_box
from boathook.domain import ids
from boathook.domain.errors import AccessUnknown, ConfigError
from boathook_demo.rabbitmq import RabbitNode
from boathook_outage_publishing.access_copy import AccessCopy

_PER_SECOND: Final = 6_000
_BYTES: Final = 1024
_CYCLE: Final = 8
"""Requests of which four are messages: without a key, with a key, the same again, with another key."""
_REPEATED: Final = 1 / _CYCLE


@dataclass(frozen=True, slots=True)
class MixedOutage:
    """One outage under mixed traffic."""

    outage: OutageResult
    repeated: int
    """Accepted requests whose key was used before."""


def play_mixed_outage(
    environment: BenchmarkEnvironment,
    seconds: float,
    *,
    nodes: Sequence[RabbitNode] = (),
    more: str = "",
    is_drained: IsDrained | None = None,
) -> MixedOutage:
    """Take mixed traffic in with PostgreSQL stopped, drain it, and compare every answer with what is stored.

    Args:
        environment: whose PostgreSQL is stopped.
        seconds: for how long requests are sent.
        nodes: the brokers, if events wait there.
        more: settings for the brokers.
        is_drained: whether PostgreSQL has all; that the spool is empty if absent.

    Raises:
        ConfigError: a request was refused, something accepted is missing, or a key has two ids.
    """
    environment.report("  webhooks and messages in turn")
    setup = create_setup(environment, [])
    token = asyncio.run(make_token(setup))
    answers = environment.folder / "answers.jsonl"

    def send(corpus: Path, port: int, seconds: float) -> LoadResult:
        return check_accepted(run_own_client(corpus, port, connections=CONNECTIONS, seconds=seconds, answers=answers))

    roles = "gateway,console"
    with (
        environment.corpus() as corpus,
        environment.serve(setup.database_url, roles=roles, more=SETTINGS + more) as server,
    ):
        write_requests(Path(f"{corpus}.0"), _requests(setup.application, token, int(_PER_SECOND * seconds)))
        server.wait_until_idle()
        asyncio.run(_wait_for_copy(environment, server, setup.database_url, setup.application))
        drained = is_drained or spool_is_empty(environment.data_dir(server.port) / "spool")
        outage = play_outage(
            environment, server, setup.database_url, corpus, seconds,
            is_drained=drained, nodes=nodes, send=send, repeated=_REPEATED * 1.1,
        )  # fmt: skip
    return MixedOutage(outage, asyncio.run(_check_answers(setup.database_url, read_answers(answers))))


def mixed_figures(name: str, measured: Sequence[MixedOutage]) -> dict[str, float]:
    """Return the medians of several outages."""
    return {
        f"{name}_per_s": round(median(each.outage.taken.rate for each in measured)),
        f"{name}_p99_ms": round(median(each.outage.taken.p99_ms for each in measured), 2),
        f"{name}_drained_per_s": round(median(each.outage.drained_per_s for each in measured)),
        f"{name}_repeated": sum(each.repeated for each in measured),
    }


def _key_of(number: int) -> int | None:
    """Return the idempotency key of a request, if it has one: an odd request publishes, an even one is a webhook."""
    cycle, place = divmod(number, _CYCLE)
    return {3: 2 * cycle, 5: 2 * cycle, 7: 2 * cycle + 1}.get(place)


def _requests(application: str, token: str, count: int) -> Iterator[bytes]:
    payload = make_body(_BYTES)
    for number in range(count):
        if number % 2:
            yield make_request(application, token, payload, _key_of(number))
        else:
            yield make_webhook(number, _BYTES)


async def _wait_for_copy(environment: BenchmarkEnvironment, server: Server, url: str, application: str) -> None:
    """Wait until the server can publish to the application without PostgreSQL."""
    settings = settings_for(url, server__data_dir=str(environment.data_dir(server.port)))

    async def has_copy() -> bool:
        try:
            await AccessCopy.load(settings, open_secret_box(settings)).find_application("default", application)
        except AccessUnknown:
            return False
        return True

    await wait_until(has_copy)


async def _check_answers(url: str, answers: Iterable[tuple[int, str]]) -> int:
    """Return how many accepted requests repeated a key. Raises ConfigError as `play_mixed_outage`."""
    messages: list[str] = []
    webhooks: list[str] = []
    by_key: dict[int, list[str]] = defaultdict(list)
    for number, body in answers:
        if number % 2 == 0:
            webhooks.append(f"evt_{number:012d}")
            continue
        messages.append(json.loads(body)["id"])
        if (key := _key_of(number)) is not None:
            by_key[key].append(messages[-1])
    if any(len(set(names)) > 1 for names in by_key.values()):
        raise ConfigError("requests with one idempotency key were answered different ids")
    database = await Database.open(url, purpose="benchmark", size=1)
    try:
        lost = await database.fetchval(
            "select count(*) from unnest($1::uuid[]) as m (id) where not exists"
            " (select from boathook.event e where e.id = m.id)",
            [ids.read(ids.MESSAGE, message) for message in messages],
        )
        lost += await database.fetchval(
            "select count(*) from unnest($1::text[]) as w (key) where"
            " (select count(*) from boathook.event e where e.source = 'stripe' and e.dedup_key = w.key) <> 1",
            webhooks,
        )
        stored = await database.fetchval("select count(*) from boathook.event where origin = 'published'")
    finally:
        await database.close()
    if lost:
        raise ConfigError(f"{lost} accepted requests of mixed traffic are not stored once")
    if stored < len(set(messages)):
        raise ConfigError(f"{len(set(messages))} messages were accepted, and PostgreSQL has {stored}")
    return sum(len(names) - 1 for names in by_key.values())
