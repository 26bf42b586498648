"""Remembers which interesting states a run has reached: a simulation that never reaches them proves nothing."""

from collections import Counter

REACHED: Counter[str] = Counter()


def sometimes(what: str, *, if_: bool = True) -> None:
    """Say that *what* happened, in words that `EXPECTED` of the runner holds."""
    if if_:
        REACHED[what] += 1
