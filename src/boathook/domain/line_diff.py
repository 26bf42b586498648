"""Compares two texts line by line, in bounded time whatever the lines are.

The fewest lines that must be taken away and added are found as Eugene W. Myers describes (An O(ND) Difference
Algorithm and Its Variations, 1986), up to so many: where more differ, nobody reads how.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

MAX_CHANGES: Final = 400
"""Lines that may be taken away and added."""
CONTEXT_LINES: Final = 3
"""Equal lines that are shown before and after a difference."""


@dataclass(frozen=True, slots=True)
class DiffLine:
    """A line of one text or of both."""

    mark: str
    """``-`` where only the first has it, ``+`` where only the second has it, a space where both have it."""
    text: str
    left: int | None
    """Its number in the first text, from 1; None where that lacks it."""
    right: int | None


@dataclass(frozen=True, slots=True)
class SkippedLines:
    """Equal lines that are left out."""

    number: int


def compare(left: Sequence[str], right: Sequence[str]) -> list[DiffLine] | None:
    """Return all lines of both in order; None where they differ in more than `MAX_CHANGES` lines."""
    head = _alike(left, right)
    tail = _alike(left[head:][::-1], right[head:][::-1])
    moves = _find(left[head : len(left) - tail], right[head : len(right) - tail])
    if moves is None:
        return None
    return list(_written(left, right, " " * head + moves + " " * tail))


def collapse_equal(lines: Sequence[DiffLine], around: int = CONTEXT_LINES) -> list[DiffLine | SkippedLines]:
    """Return *lines* with runs of equal ones left out, but for those around differences."""
    kept = {place for at, line in enumerate(lines) if line.mark != " " for place in range(at - around, at + around + 1)}
    folded: list[DiffLine | SkippedLines] = []
    gap = 0
    for place, line in enumerate(lines):
        if place not in kept:
            gap += 1
            continue
        folded += _left_out(lines, place, gap)
        gap = 0
        folded.append(line)
    return folded + _left_out(lines, len(lines), gap)


def side_by_side(
    lines: Sequence[DiffLine | SkippedLines],
) -> list[tuple[DiffLine | None, DiffLine | None] | SkippedLines]:
    """Return the same side by side: of each run of differences, the first lines of both stand next to each other."""
    rows: list[tuple[DiffLine | None, DiffLine | None] | SkippedLines] = []
    gone: list[DiffLine] = []
    come: list[DiffLine] = []
    for line in lines:
        if isinstance(line, DiffLine) and line.mark == "-":
            gone.append(line)
        elif isinstance(line, DiffLine) and line.mark == "+":
            come.append(line)
        else:
            rows += _beside(gone, come)
            gone, come = [], []
            rows.append((line, line) if isinstance(line, DiffLine) else line)
    return rows + _beside(gone, come)


def _left_out(lines: Sequence[DiffLine], end: int, number: int) -> list[DiffLine | SkippedLines]:
    """Return what stands for so many lines before *end*: to say that one is left out takes as much room as the line."""
    return [SkippedLines(number)] if number > 1 else list(lines[end - number : end])


def _beside(
    gone: Sequence[DiffLine], come: Sequence[DiffLine]
) -> list[tuple[DiffLine | None, DiffLine | None] | SkippedLines]:
    return [
        (gone[place] if place < len(gone) else None, come[place] if place < len(come) else None)
        for place in range(max(len(gone), len(come)))
    ]


def _alike(left: Sequence[str], right: Sequence[str]) -> int:
    """Return how many lines both begin with."""
    return sum(1 for _ in takewhile(lambda both: both[0] == both[1], zip(left, right, strict=False)))


def _find(left: Sequence[str], right: Sequence[str]) -> str | None:
    """Return the marks of the shortest way from *left* to *right*; None where it is too long."""
    furthest = {1: 0}
    trace: list[dict[int, int]] = []
    for cost in range(min(MAX_CHANGES, len(left) + len(right)) + 1):
        trace.append(dict(furthest))
        for diagonal in range(-cost, cost + 1, 2):
            x = _step(furthest, diagonal, cost)
            y = x - diagonal
            while x < len(left) and y < len(right) and left[x] == right[y]:
                x, y = x + 1, y + 1
            furthest[diagonal] = x
            if x >= len(left) and y >= len(right):
                return _trace_back(trace, len(left), len(right))
    return None


def _step(furthest: dict[int, int], diagonal: int, cost: int) -> int:
    is_down = diagonal == -cost or (diagonal != cost and furthest[diagonal - 1] < furthest[diagonal + 1])
    return furthest[diagonal + 1] if is_down else furthest[diagonal - 1] + 1


def _trace_back(trace: Sequence[dict[int, int]], x: int, y: int) -> str:
    marks: list[str] = []
    for cost in range(len(trace) - 1, 0, -1):
        furthest, diagonal = trace[cost], x - y
        is_down = diagonal == -cost or (diagonal != cost and furthest[diagonal - 1] < furthest[diagonal + 1])
        before = diagonal + 1 if is_down else diagonal - 1
        from_x = furthest[before]
        after = from_x if is_down else from_x + 1
        marks += " " * (x - after)
        marks.append("+" if is_down else "-")
        x, y = from_x, from_x - before
    marks += " " * x
    return "".join(reversed(marks))


def _written(left: Sequence[str], right: Sequence[str], marks: str) -> Iterator[DiffLine]:
    x = y = 0
    for mark in marks:
        text = right[y] if mark == "+" else left[x]
        x, y = x + (mark != "+"), y + (mark != "-")
        yield DiffLine(mark, text, None if mark == "+" else x, None if mark == "-" else y)
