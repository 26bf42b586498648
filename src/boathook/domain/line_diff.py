"""Compares two texts line by line, in bounded time for any input.

Computes the minimal edit script by Eugene W. Myers (An O(ND) Difference Algorithm and Its Variations, 1986), up to a
maximum number of changed lines: larger diffs are of no use to a reader.
"""

from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Final

import msgspec

MAX_CHANGES: Final = 400
"""Maximum number of removed and added lines."""
CONTEXT_LINES: Final = 3
"""Number of unchanged lines shown before and after a difference."""


class DiffLine(msgspec.Struct, frozen=True):
    """A line of one text or of both."""

    mark: str
    """``-`` if only the first text has the line, ``+`` if only the second has it, a space if both have it."""
    text: str
    left: int | None
    """Its line number in the first text, from 1; None if the first text lacks it."""
    right: int | None


class SkippedLines(msgspec.Struct, frozen=True):
    """A run of unchanged lines that is not shown."""

    number: int


def compare(left: Sequence[str], right: Sequence[str]) -> list[DiffLine] | None:
    """Return all lines of both texts in order; None if they differ in more than `MAX_CHANGES` lines."""
    head = _alike(left, right)
    tail = _alike(left[head:][::-1], right[head:][::-1])
    moves = _find(left[head : len(left) - tail], right[head : len(right) - tail])
    if moves is None:
        return None
    return list(_written(left, right, " " * head + moves + " " * tail))


def collapse_equal(lines: Sequence[DiffLine], around: int = CONTEXT_LINES) -> list[DiffLine | SkippedLines]:
    """Return *lines* without runs of unchanged lines, except those near differences."""
    indexes = {
        index for at, line in enumerate(lines) if line.mark != " " for index in range(at - around, at + around + 1)
    }
    folded: list[DiffLine | SkippedLines] = []
    gap = 0
    for index, line in enumerate(lines):
        if index not in indexes:
            gap += 1
            continue
        folded += _left_out(lines, index, gap)
        gap = 0
        folded.append(line)
    return folded + _left_out(lines, len(lines), gap)


def side_by_side(
    lines: Sequence[DiffLine | SkippedLines],
) -> list[tuple[DiffLine | None, DiffLine | None] | SkippedLines]:
    """Return the lines in two columns; in each run of differences, removed and added lines are paired in order."""
    rows: list[tuple[DiffLine | None, DiffLine | None] | SkippedLines] = []
    removed: list[DiffLine] = []
    added: list[DiffLine] = []
    for line in lines:
        if isinstance(line, DiffLine) and line.mark == "-":
            removed.append(line)
        elif isinstance(line, DiffLine) and line.mark == "+":
            added.append(line)
        else:
            rows += _pair_lines(removed, added)
            removed, added = [], []
            rows.append((line, line) if isinstance(line, DiffLine) else line)
    return rows + _pair_lines(removed, added)


def _left_out(lines: Sequence[DiffLine], end: int, number: int) -> list[DiffLine | SkippedLines]:
    """Return the marker for *number* unchanged lines before *end*; a single line is kept, as a marker is no shorter."""
    return [SkippedLines(number)] if number > 1 else list(lines[end - number : end])


def _pair_lines(
    removed: Sequence[DiffLine], added: Sequence[DiffLine]
) -> list[tuple[DiffLine | None, DiffLine | None] | SkippedLines]:
    return [
        (removed[index] if index < len(removed) else None, added[index] if index < len(added) else None)
        for index in range(max(len(removed), len(added)))
    ]


def _alike(left: Sequence[str], right: Sequence[str]) -> int:
    """Return the number of equal lines at the start of both."""
    return sum(1 for _ in takewhile(lambda both: both[0] == both[1], zip(left, right, strict=False)))


def _find(left: Sequence[str], right: Sequence[str]) -> str | None:
    """Return the marks of the shortest edit script from *left* to *right*; None if it has too many changes."""
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
