"""Random sequences of sending operations; see `tests.simulation.operation_sequences`."""

import json
import random
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any, Final, NamedTuple
from uuid import UUID

import asyncpg

from boathook.db.database import Connection
from boathook.db.endpoint_deliveries import (
    SQL,
    BreakerRules,
    ClaimedEndpointDelivery,
    EndpointClaimLimit,
    EndpointDeliveryStore,
    FailureSummary,
    FinishedEndpointDelivery,
    _columns,
    dead_letter_undeliverable,
)
from boathook.db.endpoints import DisabledEndpoint
from boathook.db.secret_box import SecretBox
from boathook.domain import ids
from boathook.domain.endpoints import recipient_of
from boathook.domain.policy import Complete, DeadLetter, RetryAt
from tests.simulation.databases import FakeDatabase, RealDatabase
from tests.simulation.operation_sequences import FUTURE, PAST, Op, Player
from tests.simulation.tables import Endpoint, Transaction

ENDPOINTS: Final = tuple(UUID(int=number) for number in (1, 2, 3))
NAMES: Final = tuple(recipient_of(ids.show(ids.ENDPOINT, key)) for key in ENDPOINTS)
_VAULT: Final = SecretBox(["a key of nobody but this simulation"])
_RETRY: Final = (None, '{"max_attempts": 3, "max_age_s": 86400}', None)
_RULES: Final = BreakerRules(2, 3600.0, 7200.0, 0.0)
_ALLOWED: Final = {"free": "null", "full": "now() + interval '1 hour'"}
_DUMP: Final = """
select json_build_object(
    'endpoint', (select json_agg(json_build_array(id, is_disabled, disabled_because, revision) order by id) from boathook.endpoint),
    'health', (select coalesce(json_agg(json_build_array(endpoint_id, failures, failing_since is not null,
        last_failed_at is not null, open_until > now(), pauses, allowed_at > now() + interval '30 minutes') order by endpoint_id), '[]')
        from boathook.endpoint_health))
"""


class RealSendingDatabase(RealDatabase):
    """A real PostgreSQL database with endpoints."""

    async def open(self) -> None:
        await self.database.execute("truncate boathook.application cascade")
        application = (
            "insert into boathook.application (id, organization, name, is_operational) values ($1, 'o', 'a', true)"
        )
        await self.database.execute(application, UUID(int=9))
        for key, retry in zip(ENDPOINTS, _RETRY, strict=True):
            await self.database.execute(
                "insert into boathook.endpoint (id, application_id, url, retry) values ($1, $2, 'https://x.example', $3)",
                key, UUID(int=9), retry,
            )  # fmt: skip
            await self.database.execute(
                "insert into boathook.endpoint_secret (endpoint_id, encrypted) values ($1, $2)", key, _encrypt(key)
            )

    async def rest(self, *, is_over: bool) -> None:
        until = "timestamptz '2020-01-01 00:00Z'" if is_over else "now() + interval '1 hour'"
        await self.database.execute(
            f"update boathook.endpoint_health set open_until = {until} where open_until is not null"
        )

    async def meter(self, how: str) -> None:
        await self.database.execute(f"update boathook.endpoint_health set allowed_at = {_ALLOWED[how]}")

    async def enable(self) -> None:
        await self.database.execute(
            "update boathook.endpoint set is_disabled = false, disabled_because = null, disabled_at = null, "
            "revision = revision + 1 where is_disabled"
        )

    async def dump(self) -> dict[str, Any]:
        return {**await super().dump(), **json.loads(await self.database.fetchval(_DUMP))}


class FakeSendingDatabase(FakeDatabase):
    """The fake database with endpoints."""

    async def open(self) -> None:
        for key, name, retry in zip(ENDPOINTS, NAMES, _RETRY, strict=True):
            endpoint = Endpoint(key, "https://x.example", name, retry=retry, encrypted=_encrypt(key))
            self._server.tables.committed["endpoint"][key] = endpoint
            if retry is not None:
                self._server.tables.policies[name] = retry

    def _alter(self, table: str, **columns: Any) -> None:
        t = Transaction(self._server.tables)
        for key, row in list(self._server.tables.committed[table].items()):
            t.put(table, key, row._replace(**columns))
        t.commit()

    async def rest(self, *, is_over: bool) -> None:
        t = Transaction(self._server.tables)
        for key, row in list(self._server.tables.committed["health"].items()):
            if row.open_until is not None:
                t.put("health", key, row._replace(open_until=PAST if is_over else self._soon()))
        t.commit()

    def _soon(self) -> datetime:
        return self._server.clock() + timedelta(hours=1)

    async def meter(self, how: str) -> None:
        self._alter("health", allowed_at=None if how == "free" else self._soon())

    async def enable(self) -> None:
        t = Transaction(self._server.tables)
        for key, row in list(self._server.tables.committed["endpoint"].items()):
            if row.is_disabled:
                t.put(
                    "endpoint", key, row._replace(is_disabled=False, disabled_because=None, revision=row.revision + 1)
                )
        t.commit()

    async def dump(self) -> dict[str, Any]:
        tables, now = self._server.tables.committed, self._server.clock()
        return {
            **await super().dump(),
            "endpoint": [[str(key), e.is_disabled, e.disabled_because, e.revision] for key, e in sorted(tables["endpoint"].items())],
            "health": [
                [
                    str(key), h.failures, h.failing_since is not None, h.last_failed_at is not None,
                    None if h.open_until is None else h.open_until > now, h.pauses,
                    None if h.allowed_at is None else h.allowed_at > now + timedelta(minutes=30),
                ]
                for key, h in sorted(tables["health"].items())
            ],
        }  # fmt: skip


def _encrypt(key: UUID) -> bytes:
    return _VAULT.encrypt("whsec_c2VjcmV0", f"endpoint_secret:{ids.show(ids.ENDPOINT, key)}")


def draw_sends(seed: int, length: int) -> list[Op]:
    """Return a random sequence."""
    rng = random.Random(f"sends {seed}")
    return [_draw(rng) for _ in range(length)]


def _draw(rng: random.Random) -> Op:
    some = tuple(rng.randrange(12) for _ in range(rng.randint(1, 3)))
    kind = rng.choices(
        ("append", "claim", "renew", "give back", "settle", "hold", "release", "lapse", "reap", "unblock", "replay dead",
         "replay event", "wake", "due", "judge", "heal", "take probes", "release probes", "rest", "tokens", "disable", "enable",
         "barred", "load"),
        (10, 12, 2, 2, 9, 4, 4, 2, 3, 1, 3, 2, 2, 3, 5, 2, 4, 2, 3, 2, 2, 3, 1, 1),
    )[0]  # fmt: skip
    chosen = tuple(sorted(rng.sample(range(3), rng.randint(1, 3))))
    match kind:
        case "append":
            return kind, tuple(_draw_event(rng) for _ in range(rng.randint(1, 3))), True
        case "claim":
            wants = tuple(
                (n, rng.choice((1, 2, 100)), rng.choice((None, None, 1, 2)), rng.random() < 0.4) for n in chosen
            )
            return kind, rng.choice(("w1", "w2")), wants
        case "settle" | "hold":
            return kind, some, tuple(rng.choice(("ok", "ok", "past", "future", "dead")) for _ in some)
        case "release" | "rest":
            return kind, rng.random() < 0.7
        case "reap":
            return kind, rng.random() < 0.3
        case "replay dead":
            return kind, rng.choice((1, 100)), rng.choice((None, NAMES[0]))
        case "replay event" | "wake":
            return kind, some[0]
        case "due":
            return kind, rng.choice((1, 2, 100))
        case "judge":
            flags = tuple(
                (rng.randint(1, 2), rng.random() < 0.2, rng.random() < 0.8, rng.random() < 0.4) for _ in chosen
            )
            return kind, chosen, flags
        case "tokens":
            return kind, chosen, rng.choice(("free", "full")), rng.randint(1, 5)
        case "disable":
            return kind, chosen[0], rng.random() < 0.8
        case "barred":
            return kind, rng.choice((-3600.0, 3600.0))
        case "heal" | "take probes" | "load":
            return kind, chosen
        case _:
            return kind, some


def _draw_event(rng: random.Random) -> tuple[int, bool, tuple[tuple[str, str | None], ...], int | None]:
    recipients = rng.sample(NAMES, rng.randint(0, 2))
    owed = tuple((name, rng.choice((None, "k1", "k2")) if name != NAMES[0] else None) for name in recipients)
    return rng.randrange(20), False, owed, None


class Claimed(NamedTuple):
    """A claim, named as those of workers are."""

    claim: ClaimedEndpointDelivery


class SendPlayer(Player):
    """Plays sequences of sending."""

    _probes: Mapping[UUID, datetime] = MappingProxyType({})

    async def play(self, ops: list[Op], expected: list[Any] | None = None) -> None:
        """Create the endpoints, then play the whole sequence."""
        await self._target.open()  # type: ignore[attr-defined]
        await super().play(ops, expected)

    def _sends(self, worker: str = "w1") -> EndpointDeliveryStore:
        return EndpointDeliveryStore(self._target.database, worker=worker)

    async def _claim(self, worker: str, wants: tuple[Any, ...]) -> Any:
        found = await self._sends(worker).claim(
            [
                EndpointClaimLimit(NAMES[n], slots, maximum=most, endpoint_id=ENDPOINTS[n], is_probe=is_probe)
                for n, slots, most, is_probe in wants
            ],
            lease_s=300,
        )
        found.sort(key=lambda one: (one.event_id, one.ordinal))
        self._works += [Claimed(delivery) for delivery in found]  # type: ignore[misc]
        return [
            (str(s.event_id), s.ordinal, s.fence, s.attempt, s.is_manual, s.is_ordered, str(s.endpoint_id), s.revision,
             s.is_unhealthy, s.is_probe, s.body)
            for s in found
        ]  # fmt: skip

    def _ended(self, numbers: Sequence[int], outcomes: Sequence[str]) -> list[FinishedEndpointDelivery]:
        ended = {}
        for number, outcome in zip(numbers, outcomes, strict=True):
            for work in self._chosen((number,)):
                ended[work.claim] = self._end_of(work.claim, outcome)
        return list(ended.values())

    def _end_of(self, delivery: ClaimedEndpointDelivery, outcome: str) -> FinishedEndpointDelivery:
        due = {"past": PAST, "future": FUTURE}.get(outcome)
        move = RetryAt(due, "HTTP_500", "it's down") if due is not None else DeadLetter("GONE", "no more")
        return FinishedEndpointDelivery(
            delivery, Complete() if outcome == "ok" else move, UUID(int=self._entropy.getrandbits(120)), "https://x.example", 200,
            1, "[]", b"", datetime.now(UTC),
        )  # fmt: skip

    async def _settle(self, numbers: tuple[int, ...], outcomes: tuple[str, ...]) -> Any:  # type: ignore[override]
        ended = self._ended(numbers, outcomes)
        return await self._sends().settle(ended) if ended else None

    async def _hold(self, numbers: tuple[int, ...], outcomes: tuple[str, ...]) -> Any:  # type: ignore[override]
        ended = self._ended(numbers, outcomes)
        if self._held is not None or not ended:
            return None
        lent = self._target.database.acquire()
        connection = await lent.__aenter__()
        self._held = (lent, connection)
        await connection.execute("begin")
        try:
            rows = await connection.fetch(SQL["settle_endpoint_deliveries"], *_columns(ended), "w1")
        except asyncpg.PostgresError:
            await connection.execute("rollback")
            raise
        return sorted((row["position"], row["recipient"], row["freed_key"]) for row in rows)

    async def _due(self, most: int) -> Any:
        await self._target.arrange()
        page = await self._sends().find_due("", most)
        return page.after, [(d.recipient, d.is_disabled_or_deleted, d.rate, d.open_until is None) for d in page.due]

    async def _judge(self, chosen: tuple[int, ...], flags: tuple[Any, ...]) -> Any:
        failures = [
            FailureSummary(
                endpoint_id=ENDPOINTS[n],
                failed=number,
                is_after_success=after,
                is_endpoint_fault=theirs,
                is_probe=probe,
            )
            for n, (number, after, theirs, probe) in zip(chosen, flags, strict=True)
        ]
        found = await self._sends().update_health(failures, _RULES, lambda: 0.5)
        return [
            (str(key), h.open_until is None, h.pauses, bool(h.should_disable), h.has_opened, h.has_closed)
            for key, h in sorted(found.items())
        ]

    async def _heal(self, chosen: tuple[int, ...]) -> Any:
        return sorted(map(str, await self._sends().mark_healthy([ENDPOINTS[n] for n in chosen])))

    async def _take_probes(self, chosen: tuple[int, ...]) -> Any:
        self._probes = await self._sends().take_probes([ENDPOINTS[n] for n in chosen], timeout_s=1, hold_s=3600)
        return sorted(map(str, self._probes))

    async def _release_probes(self, _numbers: tuple[int, ...]) -> Any:
        return await self._sends().release_probes(self._probes, after_s=-60) if self._probes else None

    async def _rest(self, is_over: bool) -> None:
        await self._target.rest(is_over=is_over)  # type: ignore[attr-defined]

    async def _tokens(self, chosen: tuple[int, ...], how: str, number: int) -> Any:
        keys = [ENDPOINTS[n] for n in chosen]
        await self._target.meter(how)  # type: ignore[attr-defined]
        found = await self._sends().take_tokens([(key, number, 30) for key in keys])
        await self._sends().return_tokens([(key, 1, 30) for key in keys])
        await self._target.meter(how)  # type: ignore[attr-defined]
        return [(str(key), taken, next_s > 60) for key, (taken, next_s) in sorted(found.items())]

    async def _disable(self, n: int, is_current: bool) -> Any:
        async def nothing(_connection: Connection, disabled: DisabledEndpoint, _since: datetime) -> None:
            assert disabled.endpoint_id == ENDPOINTS[n]

        found = await self._sends().load([ENDPOINTS[n]], _VAULT)
        revision = found[ENDPOINTS[n]].revision - (not is_current)
        return await self._sends().disable(ENDPOINTS[n], "gone", revision=revision, then=nothing)

    async def _enable(self, _numbers: tuple[int, ...]) -> None:
        await self._target.enable()  # type: ignore[attr-defined]

    async def _barred(self, max_age_s: float) -> Any:
        return await dead_letter_undeliverable(self._target.database, max_age_s=max_age_s)

    async def _load(self, chosen: tuple[int, ...]) -> Any:
        found = await self._sends().load([ENDPOINTS[n] for n in chosen], _VAULT)
        return [
            (str(key), one.url, one.revision, one.secrets, one.policy is None) for key, one in sorted(found.items())
        ]
