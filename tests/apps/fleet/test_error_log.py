"""Whatever a request's body is, the error log can store it."""

import json

import pytest

from boathook_fleet.log import to_jsonb

REPLACED = "\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        ("a\0b\0\0", f"a{REPLACED}b{REPLACED}{REPLACED}"),
        ("\\u0000", "\\u0000"),
        ("\\\\u0000", "\\\\u0000"),
        ("\\\0", f"\\{REPLACED}"),
        ({"\0k": ["\\"]}, {f"{REPLACED}k": ["\\"]}),
        ("\ud800", "?"),
    ],
    ids=ascii,
)
def test_a_body_is_stored_as_jsonb_takes_it(value: object, stored: object):
    assert json.loads(to_jsonb(json.dumps(value).encode())) == stored


@pytest.mark.parametrize("body", [b"", b"\xff\0", b"[" * 100_000, b'{"a": 1e999}', b"NaN"], ids=lambda body: body[:9])
def test_a_body_that_is_no_json_is_stored_as_a_text(body: bytes):
    stored = json.loads(to_jsonb(body))
    assert isinstance(stored, str)
    assert "\0" not in stored


def test_a_long_body_is_stored_by_its_beginning():
    assert json.loads(to_jsonb(json.dumps(["x" * 5_000]).encode(), 1_000)).startswith('["xxx')
