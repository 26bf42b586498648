"""`eventually` and `until`: any exception is forgiven until the deadline, and the last one is shown then."""

import pytest

from tests.support import eventually, until


def predicate(*outcomes: object):
    """Return a function that raises or returns one outcome after the other, and the last one for ever."""
    left = list(outcomes)

    def look() -> object:
        outcome = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    return look


async def test_exceptions_count_as_false():
    look = (IndexError("empty"), AssertionError("not yet"), 0, "found")
    assert await eventually(predicate(*look)) == "found"
    assert until(predicate(*look), every=0.001) == "found"


async def test_the_last_exception_is_shown_at_the_deadline():
    with pytest.raises(AssertionError, match=r"not true within 0\.05 s: KeyError: 'id'") as caught:
        await eventually(predicate(IndexError("empty"), KeyError("id")), timeout=0.05)
    assert isinstance(caught.value.__cause__, KeyError)
    with pytest.raises(AssertionError, match=r"not true within 0\.05 s$"):
        until(predicate(0), timeout=0.05)
