"""Compares the senders' record with the stored events and the handlers' effects.

It uses none of boathook's counters; it compares the responses that senders got with the stored rows.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from boathook.db.database import Database
from boathook.db.statements import load
from boathook.domain import ids
from boathook_demo.handlers import APPLICATION
from boathook_demo.sample_events import SenderLog, SentEvent
from boathook_demo.traffic import PROVIDERS

SQL = load(__file__)

States = dict[str, Counter[str]]
"""Numbers of deliveries by source (empty for published events, `ENDPOINTS` for those to endpoints) and state."""
ENDPOINTS = "sent"


async def create_tables(database: Database) -> None:
    """Create the tables of the demo's handlers."""
    await database.execute(SQL["create_tables"])


async def count_states(database: Database) -> tuple[States, int]:
    """Return the deliveries of the demo's own events by source and state, and the number of published events."""
    states: States = defaultdict(Counter)
    for row in await database.fetch(SQL["count_states"], list(PROVIDERS), APPLICATION):
        states[row["source"]][row["state"]] = row["number"]
    return states, await database.fetchval(SQL["count_published"], APPLICATION)


async def count_open(database: Database) -> int:
    """Return the number of open deliveries, without those that an app delays on purpose."""
    return int(await database.fetchval(SQL["count_open"], list(PROVIDERS), APPLICATION))


async def read_delivered(database: Database) -> dict[str, set[str]]:
    """Return the ids of the messages delivered to endpoints, by recipient."""
    delivered: dict[str, set[str]] = defaultdict(set)
    for row in await database.fetch(SQL["list_delivered"]):
        delivered[row["recipient"]].add(ids.show(ids.MESSAGE, row["event_id"]))
    return delivered


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """The state of the store at the end."""

    events: dict[tuple[str, str], list[tuple[str, bytes]]]
    """Id and SHA-256 of the body of each stored event, by source and dedup key."""
    effects: Counter[tuple[str, str]]
    """By the sender's id and handler."""
    conflicts: Counter[tuple[str, str]]
    mails: Counter[str]


async def read_stored(database: Database, mailbox: Path) -> Stored:
    """Read everything that is compared."""
    events: dict[tuple[str, str], list[tuple[str, bytes]]] = defaultdict(list)
    for row in await database.fetch(SQL["list_received"]):
        events[row["source"], row["dedup_key"]].append((ids.show(ids.EVENT, row["id"]), row["body_sha256"]))
    effects = {(row["event_key"], row["handler"]): row["number"] for row in await database.fetch(SQL["count_effects"])}
    conflicts = {
        (row["source"], row["dedup_key"]): row["number"] for row in await database.fetch(SQL["count_conflicts"])
    }
    return Stored(
        events=events,
        effects=Counter(effects),
        conflicts=Counter(conflicts),
        mails=_count_mails(mailbox),
    )


def _count_mails(mailbox: Path) -> Counter[str]:
    lines = mailbox.read_text(encoding="utf-8").splitlines() if mailbox.exists() else []
    return Counter(line.split()[0] for line in lines)


def compare(sender_log: SenderLog, database_state: Stored) -> list[str]:
    """Return one sentence for each difference; an empty list if everything matches."""
    differences = list(sender_log.unexpected)
    handlers = defaultdict(set)
    for key, handler in database_state.effects:
        handlers[key].add(handler)
    for sent in sender_log.sent.values():
        differences += _compare_event(sent, database_state)
        differences += _compare_effects(sent, database_state, handlers[sent.sample.key])
        differences += _compare_mails(sent, database_state, may_repeat=sender_log.had_outage)
    for address, bodies in sender_log.forged.items():
        genuine = sender_log.sent.get(address)
        for event_id, sha256 in database_state.events.get(address, ()):
            if sha256 in bodies or genuine is None:
                differences.append(f"{event_id} is stored, but {address[0]} {address[1]} was forged")
    return differences


def _compare_event(sent: SentEvent, database_state: Stored) -> Iterator[str]:
    name = f"{sent.sample.source} {sent.sample.key}"
    events = database_state.events.get((sent.sample.source, sent.sample.key), [])
    if not sent.is_acknowledged:
        yield f"{name} was never answered 2xx"
        return
    if len(events) != 1:
        yield f"{name} was answered 2xx and is stored {_times(len(events))}"
        return
    if sent.is_buffered and events[0][0] not in sent.event_ids:
        yield f"{name} is stored as {events[0][0]}, which no answer named"
    if not sent.is_buffered and sent.event_ids != {events[0][0]}:
        yield f"{name} is stored as {events[0][0]}, but was answered {', '.join(sorted(sent.event_ids))}"
    if events[0][1] != sent.sha256:
        yield f"{name} is stored with other bytes than were sent first"
    if sent.is_buffered:
        return
    if sent.accepted > 1 or (sent.accepted == 0 and not sent.is_uncertain):
        yield f"{name} was answered as new {_times(sent.accepted)}"
    if not sent.is_uncertain and database_state.conflicts[sent.sample.source, sent.sample.key] != sent.conflicts:
        yield f"{name} was answered as a conflict {_times(sent.conflicts)}, but recorded a different number of times"


def _compare_effects(sent: SentEvent, database_state: Stored, handlers: set[str]) -> Iterator[str]:
    if not sent.is_acknowledged:
        return
    name = f"{sent.sample.source} {sent.sample.key}"
    for handler in sent.sample.effects:
        if (number := database_state.effects[sent.sample.key, handler]) != 1:
            yield f"{handler} has had its effect for {name} {_times(number)}"
    for handler in sorted(handlers - set(sent.sample.effects)):
        yield f"{handler} must leave no effect for {name}, but has"


def _compare_mails(sent: SentEvent, database_state: Stored, *, may_repeat: bool) -> Iterator[str]:
    is_mailed = "remind" in sent.sample.effects
    number = database_state.mails[sent.sample.key]
    if sent.is_acknowledged and number != is_mailed and not (may_repeat and is_mailed and number > 1):
        yield f"the mail for {sent.sample.source} {sent.sample.key} was sent {_times(number)}"


def _times(number: int) -> str:
    return {0: "not at all", 1: "once", 2: "twice"}.get(number, f"{number} times")
