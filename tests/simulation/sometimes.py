"""Records which rare states a run has reached; a simulation that never reaches them proves nothing."""

from collections import Counter
from typing import Final

REACHED: Counter[str] = Counter()

EXPECTED: Final = frozenset(
    {
        "a caller gave up on a silent server",
        "a claim was given back",
        "a conflict was recorded",
        "a connection was lost after a commit",
        "a connection was lost before a commit",
        "a dead letter let the next of its order key go on",
        "a dead letter was ignored",
        "a delivery waited",
        "a duplicate came while its event was being handled",
        "a gateway was stopped with a full spool",
        "a lease that was being ended was not renewed",
        "a limited recipient was being claimed by another worker",
        "a process died at claim.after_commit",
        "a process died at handler.after_commit",
        "a process died at handler.before_commit",
        "a process died in the middle of a disk call",
        "a row changed between a claim's snapshot and its lock",
        "a segment that nobody had ended was drained",
        "a session was ended for an idle transaction",
        "a stale commit was refused",
        "a stale failure was refused",
        "a statement waited for a lock",
        "a sync failed",
        "a torn tail was passed over",
        "a transaction was sacrificed",
        "a write was torn by a power cut",
        "an event was replayed",
        "an event was taken while catching_up",
        "an event was taken while draining",
        "an event was taken while spooling",
        "an unanswered commit turned out not to have happened",
        "an unanswered commit turned out to have happened",
        "dead letters were replayed",
        "events routed by outdated routes were refused",
        "the disk was full",
        "the keeper passed by a lease that was being ended",
        "the spool began another segment",
    }
)
"""Reached within some hundred seeds."""

SENDING: Final = frozenset(
    {
        "a breaker closed",
        "a breaker's probe failed",
        "a claim was given back",
        "a disabled endpoint was enabled again",
        "a paused endpoint was probed",
        "a process died at send.after_claim",
        "a process died at send.after_response",
        "a process died at send.after_settle",
        "a process died at send.before_settle",
        "a rate held a sender back",
        "an endpoint that was gone was disabled",
        "an endpoint took a message and answered too late",
        "an endpoint took a message twice, because its sender broke down",
        "an endpoint was paused or disabled between the look and the claim",
        "another sender had the probe",
        "the answer of an endpoint came too late for its lease",
        "the answer of an endpoint that took a message was lost",
    }
)
"""Reached by sending within some hundred seeds."""

RARE: Final = frozenset(
    {
        "a blocked head of a line was freed by the keeper",
        "a replay met a zombie",
        "a stale wait was refused",
        "a statement waited too long for a lock",
        "an attempt that would have been the last was woken",
    }
)
"""Reached within some thousand seeds."""


def sometimes(what: str, *, if_: bool = True) -> None:
    """Say that *what* happened."""
    if if_:
        REACHED[what] += 1
