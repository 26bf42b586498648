"""Dead letters of this app: who sees them, who decides them, and which are tried again by themselves.

A handler's own attempts come first, by its retry policy. What is dead after them is replayed by a schedule that is
measured in hours, as its cause is seldom a moment's, and is then left to people.
"""

import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from boathook import Boathook, BoathookError, Transaction

MOST: Final = 5_000
"""Dead letters looked at in one round."""
_OLDEST_DAYS: Final = 7_300.0
"""Nothing is older, and no id tells of a moment before 1970."""
_PAGE: Final = 200
_ID: Final = re.compile(r"dlv_0[0-7][0-9a-hjkmnp-tv-z]{25}_[0-9]{1,4}")
"""128 bits in Crockford's base 32, and which of its event's deliveries it is."""


@dataclass(frozen=True, slots=True)
class Missing:
    """There is no such dead letter of this app's."""


@dataclass(frozen=True, slots=True)
class NotDead:
    """The delivery is in another state, which is no longer, or not yet, for people to decide."""

    state: str


@dataclass(frozen=True, slots=True)
class Decided:
    """It was done."""


Decision = Missing | NotDead | Decided


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What one look at the dead letters came to."""

    fresh: Sequence[Any]
    """Deliveries that were not dead at any look before."""
    replayed: Sequence[str]
    given_up: Sequence[str]
    """Those that are left to people from now on."""


def is_id(text: str) -> bool:
    """Return whether *text* is written as the ids of dead letters are."""
    return bool(_ID.fullmatch(text))


async def list_dead(
    hook: Boathook,
    *,
    source: str | None = None,
    type: str | None = None,
    after: str | None = None,
    limit: int = 50,
) -> list[dict[str, Any]]:
    """Return a page of dead letters, those of the newest events first, each with what is planned for it."""
    rows = await hook.desk.deliveries(
        recipient=_ours(hook), state="dead", source=source, type=type, after=after, limit=limit
    )
    async with hook.transaction() as tx:
        plans = await _plans(tx, [row.id for row in rows])
    return [asdict(row) | plans.get(row.id, _NO_PLAN) for row in rows]


async def replay(hook: Boathook, id: str) -> Decision:
    """Let a dead letter be handled again."""
    found = await _find(hook, id)
    if found is not None:
        return found
    return Decided() if await hook.desk.replay([id], note="replayed by the owner") else NotDead("being handled")


async def ignore(hook: Boathook, id: str, note: str) -> Decision:
    """Settle a dead letter as ignored; it keeps its record."""
    found = await _find(hook, id)
    if found is not None:
        return found
    return Decided() if await hook.desk.ignore([id], note=note) else NotDead("being handled")


async def ignore_old(hook: Boathook, *, days: float) -> list[str]:
    """Settle as ignored whatever has been dead for more than so many days; return which."""
    until = datetime.now(UTC) - timedelta(days=min(days, _OLDEST_DAYS))
    old = [row.id async for row in _all_dead(hook, until=until) if row.ended_at and row.ended_at < until]
    return await hook.desk.ignore(old, note=f"cleaned up: dead for more than {days:g} days") if old else []


async def look_after(hook: Boathook) -> Round:
    """Plan, replay and give up dead letters, as the schedule says."""
    dead = [row async for row in _all_dead(hook)]
    async with hook.transaction() as tx:
        seen = await _take_in(tx, dead, hook.settings.dead_retry_s) if dead else []
        # Counted before it is done: what a crash in between loses is one replay, not the count.
        due = await _take_due(tx)
    fresh = {row["delivery_id"] for row in seen if row["is_fresh"]}
    return Round(
        fresh=[row for row in dead if row.id in fresh],
        replayed=await hook.desk.replay(due, note="replayed by itself") if due else [],
        given_up=[row["delivery_id"] for row in seen if row["is_given_up"]],
    )


def _ours(hook: Boathook) -> str:
    return f"handler:{hook.name}.*"


async def _all_dead(hook: Boathook, until: datetime | None = None) -> AsyncIterator[Any]:
    after, seen = None, 0
    while seen < MOST:
        page = await hook.desk.deliveries(recipient=_ours(hook), state="dead", until=until, after=after, limit=_PAGE)
        for row in page:
            yield row
        if len(page) < _PAGE:
            return
        after, seen = page[-1].id, seen + len(page)


async def _find(hook: Boathook, id: str) -> Missing | NotDead | None:
    """Return why a letter cannot be decided; None where it can."""
    if not is_id(id):
        return Missing()
    try:
        found = (await hook.desk.delivery(id))["delivery"]
    except BoathookError as error:
        if error.name not in {"NotFound", "InvalidValue"}:
            raise
        return Missing()
    if not found.recipient.startswith(f"handler:{hook.name}."):
        return Missing()
    return None if found.state == "dead" else NotDead(found.state)


_TAKE_IN: Final = """
insert into fleet.dead_retry as kept (delivery_id, recipient, next_at, given_up_at)
select id, recipient, now() + make_interval(secs => ($3::float8[])[1]),
    case when cardinality($3::float8[]) = 0 then now() end
from unnest($1::text[], $2::text[]) as dead (id, recipient)
on conflict (delivery_id) do update set
    last_seen_at = now(),
    next_at = case
        when kept.next_at is null and kept.given_up_at is null
        then now() + make_interval(secs => ($3::float8[])[kept.replays + 1])
        else kept.next_at
    end,
    given_up_at = case
        when kept.next_at is null and kept.replays >= cardinality($3::float8[])
        then coalesce(kept.given_up_at, now())
        else kept.given_up_at
    end
returning delivery_id, first_seen_at = now() as is_fresh, coalesce(given_up_at = now(), false) as is_given_up
"""


async def _take_in(tx: Transaction, dead: Sequence[Any], waits: Sequence[float]) -> Sequence[Any]:
    return await tx.fetch(_TAKE_IN, [row.id for row in dead], [row.recipient for row in dead], list(waits))


async def _take_due(tx: Transaction) -> list[str]:
    rows = await tx.fetch(
        "update fleet.dead_retry set replays = replays + 1, next_at = null where next_at <= now() returning delivery_id"
    )
    return [row["delivery_id"] for row in rows]


_NO_PLAN: Final = {"replays_by_itself": 0, "next_replay_at": None, "given_up_at": None}


async def _plans(tx: Transaction, ids: Sequence[str]) -> dict[str, dict[str, Any]]:
    rows = await tx.fetch(
        "select delivery_id, replays, next_at, given_up_at from fleet.dead_retry where delivery_id = any($1)", list(ids)
    )
    return {
        row["delivery_id"]: {
            "replays_by_itself": row["replays"],
            "next_replay_at": row["next_at"],
            "given_up_at": row["given_up_at"],
        }
        for row in rows
    }
