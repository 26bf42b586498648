"""The sender's own record: what was sent, what was answered, and what should not have been."""

import hashlib
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from boathook.demo.letters import Letter
from boathook.outbound.loopback import Answer

_KEPT_WAITS = 5_000


class Reply(StrEnum):
    """What an answer says became of a request."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    CONFLICT = "conflict"
    REJECTED = "rejected"
    GREETED = "greeted"
    """A handshake was answered."""
    UNANSWERED = "unanswered"
    """No answer, or one that says to come back later."""
    ODD = "odd"


def read_reply(letter: Letter, answer: Answer | None) -> Reply:
    """Return what *answer* says."""
    if answer is None or answer.status >= 500 or answer.status == 429:
        return Reply.UNANSWERED
    if answer.status == 401:
        return Reply.REJECTED
    if challenge := letter.payload.get("challenge"):
        return Reply.GREETED if answer.status == 200 and challenge.encode() in answer.body else Reply.ODD
    said = answer.json if answer.status == 200 else {}
    if not isinstance(said, dict) or "event_id" not in said:
        return Reply.ODD
    if said.get("conflict"):
        return Reply.CONFLICT
    return Reply.DUPLICATE if said.get("duplicate") else Reply.ACCEPTED


@dataclass(slots=True)
class Sent:
    """Everything that was genuinely sent under one id."""

    letter: Letter
    sha256: bytes
    """Of the body that was sent first."""
    event_ids: set[str] = field(default_factory=set)
    """As answered; there should be one."""
    accepted: int = 0
    """Answers that said the event is new; there should be one."""
    conflicts: int = 0
    is_uncertain: bool = False
    """Whether a request broke off, so that its event may have been stored without an answer."""

    @property
    def is_acknowledged(self) -> bool:
        """Whether boathook has answered that it has the event."""
        return bool(self.event_ids)


class Tally:
    """Counts by source, and the record of every genuine id."""

    def __init__(self, sources: Iterable[str]) -> None:
        self.replies: dict[str, Counter[Reply]] = {source: Counter() for source in sources}
        self.sent: dict[tuple[str, str], Sent] = {}
        self.forged: dict[tuple[str, str], set[bytes]] = {}
        """SHA-256 of the bodies that were sent with a wrong signature, by source and id."""
        self.surprises: list[str] = []
        self.waits_s: deque[float] = deque(maxlen=_KEPT_WAITS)

    @property
    def answered(self) -> int:
        """Requests that got an answer."""
        return sum(counter.total() - counter[Reply.UNANSWERED] for counter in self.replies.values())

    def total(self, reply: Reply) -> int:
        """Return how often *reply* was given, over all sources."""
        return sum(counter[reply] for counter in self.replies.values())

    def note_forgery(self, letter: Letter) -> None:
        """Remember what is about to be sent with a wrong signature."""
        self.forged.setdefault((letter.source, letter.key), set()).add(hashlib.sha256(letter.body).digest())

    def note_sending(self, letter: Letter) -> None:
        """Remember what is about to be sent genuinely."""
        sha256 = hashlib.sha256(letter.body).digest()
        self.sent.setdefault((letter.source, letter.key), Sent(letter, sha256))

    def note_answer(self, letter: Letter, answer: Answer | None, *, is_forged: bool = False) -> Reply:
        """Remember what came back, and return what it says."""
        reply = read_reply(letter, answer)
        self.replies[letter.source][reply] += 1
        if answer is not None and reply in {Reply.ACCEPTED, Reply.DUPLICATE, Reply.CONFLICT}:
            self.waits_s.append(answer.seconds)
        if is_forged:
            self._expect_refusal(letter, reply, answer)
        elif letter.key:
            self._file(self.sent[letter.source, letter.key], reply, answer)
        elif reply not in {Reply.GREETED, Reply.UNANSWERED}:
            self._wonder(letter, reply, answer)
        return reply

    def _expect_refusal(self, letter: Letter, reply: Reply, answer: Answer | None) -> None:
        if reply not in {Reply.REJECTED, Reply.UNANSWERED}:
            self._wonder(letter, reply, answer, "a forgery")

    def _file(self, sent: Sent, reply: Reply, answer: Answer | None) -> None:
        match reply:
            case Reply.ACCEPTED | Reply.DUPLICATE | Reply.CONFLICT:
                assert answer is not None
                sent.event_ids.add(answer.json["event_id"])
                sent.accepted += reply is Reply.ACCEPTED
                sent.conflicts += reply is Reply.CONFLICT
            case Reply.UNANSWERED:
                sent.is_uncertain = True
            case _:
                self._wonder(sent.letter, reply, answer)

    def _wonder(self, letter: Letter, reply: Reply, answer: Answer | None, what: str = "a genuine request") -> None:
        status = "nothing" if answer is None else f"{answer.status} {answer.body[:80]!r}"
        self.surprises.append(f"{what} for {letter.source} {letter.key} was answered {status} ({reply})")

    def wait_ms(self, share: float) -> float:
        """Return a quantile of the latest acknowledged requests' waits, in milliseconds."""
        waits = sorted(self.waits_s)
        return waits[min(len(waits) - 1, int(len(waits) * share))] * 1e3 if waits else 0.0
