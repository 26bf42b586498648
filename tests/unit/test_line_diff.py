"""Two texts line by line."""

import time

from hypothesis import given
from hypothesis import strategies as st

from boathook.domain.line_diff import DiffLine, SkippedLines, collapse_equal, compare, side_by_side

TEXTS = st.lists(st.sampled_from("abc"), max_size=25)


@given(TEXTS, TEXTS)
def test_both_texts_can_be_read_from_the_lines(left, right):
    lines = compare(left, right)
    assert lines is not None
    assert [one.text for one in lines if one.mark != "+"] == left
    assert [one.text for one in lines if one.mark != "-"] == right
    assert [one.left for one in lines if one.left] == list(range(1, len(left) + 1))
    assert [one.right for one in lines if one.right] == list(range(1, len(right) + 1))


@given(TEXTS, TEXTS)
def test_no_shorter_way_leads_from_one_to_the_other(left, right):
    lines = compare(left, right) or []
    lengths = [[0] * (len(right) + 1) for _ in range(len(left) + 1)]
    for x, one in enumerate(left):
        for y, other in enumerate(right):
            lengths[x + 1][y + 1] = lengths[x][y] + 1 if one == other else max(lengths[x][y + 1], lengths[x + 1][y])
    assert sum(one.mark == " " for one in lines) == lengths[-1][-1]


def test_diff_of_unrelated_texts_stops_early():
    began = time.process_time()
    assert compare(["x", "y"] * 20_000, ["z"] * 40_000) is None
    assert compare(["a", "b"] * 20_000, ["b", "a", "a"] * 15_000) is None
    assert time.process_time() - began < 10


def test_equal_lines_far_from_a_difference_are_left_out():
    lines = (
        compare([str(number) for number in range(100)], [str(number) for number in range(100) if number != 50]) or []
    )
    folded = collapse_equal(lines)
    assert folded[0] == SkippedLines(47)
    assert folded[-1] == SkippedLines(46)
    assert DiffLine("-", "50", 51, None) in folded
    assert collapse_equal(compare(["a", "b"], ["a", "b"]) or []) == [SkippedLines(2)]
    assert collapse_equal(compare(["a"], ["a"]) or []) == [DiffLine(" ", "a", 1, 1)]


def test_differences_are_aligned_side_by_side():
    rows = side_by_side(compare(["a", "b", "c", "z"], ["a", "B", "z"]) or [])
    texts = [tuple(one and one.text for one in row) for row in rows if not isinstance(row, SkippedLines)]
    assert texts == [("a", "a"), ("b", "B"), ("c", None), ("z", "z")]
