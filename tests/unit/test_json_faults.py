"""Why a body is no JSON that every receiver can read: the real cause, in words for its author."""

import pytest

from boathook.domain.json_document import UNREADABLE, describe_fault, parse


@pytest.mark.parametrize(
    ("body", "cause"),
    [
        (b'{"v":"\\ud800"}', "the escape \\ud800 is half of a surrogate pair"),
        (b'{"v":"\\uDFFF x"}', "the escape \\uDFFF is half of a surrogate pair"),
        (b'{"v":"\\ud800\\ud800"}', "the escape \\ud800 is half"),
        (b'{"\\udc00\\ud800":1}', "the escape \\udc00 is half"),
        (b'{"v":1e309}', "the number 1e309 is out of the range"),
        (b'{"v":[-1E+400]}', "the number -1E+400 is out of the range"),
        (b'{"v":' + b"9" * 5_000 + b"}", f"the number {'9' * 40}… is out of the range"),
        (b'{"v":"\xff"}', "not UTF-8 at byte 6"),
        (b'{"v":"\xed\xa0\x80"}', "not UTF-8 at byte 6"),
        (b'{"v":', "not JSON: Expecting value"),
        (b'{"v":NaN}', "not JSON: NaN is not JSON"),
        (b"[" * 200 + b"]" * 200, "nests deeper than 128 levels"),
    ],
)
def test_the_cause_is_named(body, cause):
    assert cause in describe_fault(body)


@pytest.mark.parametrize("body", [b'{"v":"\\ud83d\\udca9"}', b'{"v":"\\\\ud800"}', b'{"v":"\\\\\\"\\\\ud800"}'])
def test_pairs_and_escaped_backslashes_are_no_fault(body):
    assert parse(body) is not UNREADABLE
    assert "surrogate" not in describe_fault(body)
