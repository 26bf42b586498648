"""Describes dead letters: the cause, whether a replay is enough, and the next step."""

import re
from typing import Final

from boathook.db.dead_letter_groups import MAX_LETTERS, DeadLetterGroup
from boathook.domain.policy import CONNECTION_LOST

_LONGEST: Final = 300
_STATUS: Final = re.compile(r"HTTP_(\d{3})")

_ENDS: Final = {
    "TIMEOUT": "by timeout",
    "LEASE_LOST": "as its worker vanished while it ran",
    "HANDLER_MISUSE": "as the handler broke its contract with boathook",
    CONNECTION_LOST: "as its connection to PostgreSQL was lost",
    "DNS": "as the endpoint's name could not be resolved",
    "CONNECT": "as nothing could be reached at the endpoint's address",
    "TLS": "as no safe connection to the endpoint could be made",
    "PROXY": "as the proxy could not be used",
    "BLOCKED": "as the endpoint's address may not be dialled",
    "URL": "as the endpoint's address cannot be dialled",
    "SEND": "as the connection to the endpoint broke",
    "READ": "as the endpoint broke off before it answered",
    "GONE": "as the endpoint said that it wants no more messages",
    "ABORTED": "as the endpoint said that it does not want this message",
}

_ADVICE: Final = {
    "TIMEOUT": "Find out what it waited for. Make the handler or the receiver quicker, or give it a longer timeout, "
    "then replay one dead letter first.",
    "LEASE_LOST": "Something ended the worker while it ran: look in its log and at the memory it may use. Replay one "
    "dead letter and watch it.",
    "HANDLER_MISUSE": "Correct the handler as the message says, deploy it, then replay.",
    CONNECTION_LOST: "Nothing of it was stored. Once PostgreSQL is steady again, replay.",
    "SECRET_UNREADABLE": "Restore the encryption key of the secret, or give the endpoint a new secret, then replay.",
    "GONE": "The receiver asked to stop. If that was a mistake, enable the endpoint and replay; otherwise ignore it "
    "with a note.",
    "ABORTED": "The receiver rejects this message. Ask its owner why; ignore it with a note if that is correct.",
    "CONTENT_GONE": "The message's content was deleted, so it cannot be sent. Ignore it with a note.",
    "CANCELED": "It was canceled. Replay it only if that was a mistake; otherwise ignore it with a note.",
    "BLOCKED": "Only public addresses are dialled. Correct the endpoint's URL, or add its network to outbound.allow.",
    "URL": "Correct the endpoint's URL, then replay.",
    "DNS": "Check the endpoint's URL and your resolver. Once the name resolves, replay.",
    "TLS": "Have the receiver renew or repair its certificate, then replay.",
}
_UNREACHED: Final = frozenset({"CONNECT", "PROXY", "SEND", "READ"})


def describe_failure(recipient: str, attempts: int, code: str | None, error: str | None) -> str:
    """Return in one sentence what failed, without a full stop."""
    times = {0: "failed before the first attempt", 1: "failed at its only attempt"}.get(
        attempts, f"failed {attempts} times"
    )
    return f"{recipient} {times}, {_end(code or 'UNKNOWN', attempts, error or '')}"


def _end(code: str, attempts: int, error: str) -> str:
    last = "last " if attempts > 1 else ""
    words = " ".join(error.split())
    words = words if len(words) <= _LONGEST else f"{words[: _LONGEST - 1]}…"
    if found := _STATUS.fullmatch(code):
        return f"{last}with the answer HTTP {found[1]}"
    if code in _ENDS:
        return last + _ENDS[code]
    if not words:
        return f"{last}with {code}"
    return f"{last}with {words}" if words.startswith(code) else f"{last}with {code}: {words}"


def describe_group(group: DeadLetterGroup) -> str:
    """Return one sentence about the common failure of a group, without the parts that differ."""
    end = _end(group.code, 1, group.shape)
    letters = "1 delivery" if group.number == 1 else f"{format_count(group.number)} deliveries"
    return f"{letters} to {group.recipient} failed {end}"


def format_count(number: int) -> str:
    """Return a number of letters as it is shown; one that was not counted to its end with a plus."""
    return f"{number:,}".replace(",", "\N{NARROW NO-BREAK SPACE}") + ("+" if number >= MAX_LETTERS else "")


def advise(recipient: str, code: str | None) -> str:
    """Return what to do next about a dead letter."""
    code = code or ""
    if code in _ADVICE:
        return _ADVICE[code]
    if found := _STATUS.fullmatch(code):
        return _advise_on_status(int(found[1]))
    if code in _UNREACHED:
        return "See whether the receiver is up and reachable from here. Then replay one dead letter, then all."
    if recipient.startswith("endpoint:"):
        return "Read what the receiver answered, ask its owner to fix it, then replay."
    return "Read the traceback, correct the handler or its data, deploy it, then replay one dead letter first."


def _advise_on_status(status: int) -> str:
    if status in {401, 403}:
        return "The receiver does not trust the request: compare the endpoint's secret with its own, then replay."
    if status == 404:
        return "The endpoint's URL does not exist: correct it, then replay."
    if status == 429:
        return "Too many requests: give the endpoint a lower rate, then replay at that rate."
    if 300 <= status < 400:
        return "Redirects are not followed: give the endpoint the address it redirects to, then replay."
    if status >= 500:
        return (
            "The receiver failed: ask its owner what went wrong. When it works again, replay one dead letter, then all."
        )
    return "The receiver refuses this request: compare what it expects with the event's type and body, then replay."


def escalation_reasons(group: DeadLetterGroup) -> list[str]:
    """Return why a group needs a fix instead of another replay; empty if nothing says so."""
    reasons = []
    if group.again:
        reasons.append(f"{_count(group.again)} failed again after a replay")
    if group.since_replay and group.replayed_at is not None:
        since = group.replayed_at.strftime("%Y-%m-%d %H:%M UTC")
        reasons.append(f"{_count(group.since_replay)} failed since {group.replayed_by} replayed them all on {since}")
    return reasons


def delivery_escalation_reason(replays: int) -> str:
    """Return why a dead letter needs more than another replay; empty where nothing says so."""
    if not replays:
        return ""
    times = "a replay" if replays == 1 else f"{replays} replays"
    return f"it failed again after {times}"


def _count(number: int) -> str:
    return "1 dead letter" if number == 1 else f"{format_count(number)} dead letters"
