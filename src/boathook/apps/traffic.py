"""What the simulators of apps are made of, without any I/O: a made-up request, and histories told side by side."""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

Step = TypeVar("Step")


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """One request."""

    method: str = "POST"
    path: str
    headers: Mapping[str, str]
    body: bytes
    expect: int = 200
    """The status it should be answered with."""


def tell_in_turns(histories: Sequence[Sequence[Step]], dice: random.Random) -> Iterator[Step]:
    """Yield the steps of all histories, mixed, each history in its own order."""
    turns = [number for number, history in enumerate(histories) for _ in history]
    dice.shuffle(turns)
    rest = [iter(history) for history in histories]
    for number in turns:
        yield next(rest[number])
