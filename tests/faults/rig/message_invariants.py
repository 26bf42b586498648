"""The invariants C1 to C3 for messages that are published by the API.

An answer to a publisher names a message, so the ids of the answers are compared with what is stored. There is one
documented exception: a request whose idempotency key was used before an outage may be answered an id of its own. That
message is not stored, and `message.duplicate` reports it.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from tests.faults.rig.history import FAULT, Confirmed, Marked, Published
from tests.faults.rig.invariants import Case, Violation, is_ok, is_refusal


@dataclass(frozen=True, slots=True)
class _Messages:
    """What publishers have sent and were answered."""

    requests: dict[int, Published] = field(default_factory=dict)
    """By number."""
    answers: dict[str, int] = field(default_factory=dict)
    """By the id of each message that was answered 2xx, the number of its first request."""
    statuses: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    """By payload, every answer; 0 for none."""
    late: set[str] = field(default_factory=set)
    """Messages whose key was first used before the fault that preceded their answer."""


def _read(case: Case) -> _Messages:
    messages, faults = _Messages(), 0
    first_used: dict[str, int] = {}
    answered: dict[int, int] = {}
    for fact in case.history:
        match fact:
            case Marked():
                faults += fact.what.startswith(FAULT)
            case Published():
                messages.requests[fact.number] = fact
                first_used.setdefault(fact.key, faults)
            case Confirmed():
                answered[fact.number] = fact.status
                if is_ok(fact.status):
                    messages.answers.setdefault(fact.message, fact.number)
                    key = messages.requests[fact.number].key
                    if key and first_used[key] < faults:
                        messages.late.add(fact.message)
    for number, request in messages.requests.items():
        messages.statuses[request.sha].append(answered.get(number, 0))
    return messages


def no_lost_message(case: Case) -> Iterator[Violation]:
    """C1: the message of every 2xx is stored or in the spool."""
    messages, stored = _read(case), {event.message for event in case.store.events}
    safe = stored | {record.message for record in case.spool}
    for message in messages.answers:
        is_reported = message in messages.late and case.store.reported.get(message) in stored
        if message not in safe and not is_reported:
            yield Violation("C1", message, "its id was answered 2xx, and it is neither stored nor in the spool")


def no_phantom_message(case: Case) -> Iterator[Violation]:
    """C2: a message that was refused each time is not stored."""
    statuses = _read(case).statuses
    for event in case.store.events:
        if event.message and statuses.get(event.sha) and all(map(is_refusal, statuses[event.sha])):
            yield Violation("C2", event.message, "stored although every request with it was refused")


def single_message(case: Case) -> Iterator[Violation]:
    """C3: all requests with one idempotency key are one message, and are answered its id."""
    messages = _read(case)
    answered: dict[str, set[str]] = defaultdict(set)
    for message, number in messages.answers.items():
        key = messages.requests[number].key
        if key and not (message in messages.late and message in case.store.reported):
            answered[key].add(message)
    for key, names in answered.items():
        if len(names) > 1:
            yield Violation("C3", key, f"was answered {len(names)} ids: {', '.join(sorted(names))}")
    keys = {request.sha: request.key for request in messages.requests.values() if request.key}
    copies = Counter(event.sha for event in case.store.events if event.message and event.sha in keys)
    for sha, count in copies.items():
        if count > 1:
            yield Violation("C3", keys[sha], f"its message is stored {count} times")


MESSAGE_CHECKS: Final[tuple[Callable[[Case], Iterator[Violation]], ...]] = (
    no_lost_message,
    no_phantom_message,
    single_message,
)
