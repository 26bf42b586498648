"""JSON laid out by its words alone."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boathook.domain.json_text import MAX_DEPTH, MAX_LENGTH, FormattedJson, InvalidJson, format_json

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def laid(text: str, **more: bool) -> FormattedJson:
    found = format_json(text, **more)
    assert isinstance(found, FormattedJson), found
    return found


@given(VALUES, st.booleans())
def test_it_is_what_python_would_write(value, is_shy):
    text = json.dumps(value, ensure_ascii=is_shy)
    assert laid(text).text == json.dumps(value, ensure_ascii=is_shy, indent=2)


@given(st.text(alphabet='{}[],:"\\ 0123456789.eE+-truefalsn\nux\x00é', max_size=30))
def test_it_takes_for_json_what_python_does(text):
    def refuse(constant: str) -> None:
        raise ValueError(constant)

    try:
        json.loads(text, parse_constant=refuse)
    except ValueError:
        assert isinstance(format_json(text), InvalidJson)
    else:
        assert laid(text).text


@pytest.mark.parametrize(
    "number", ["123456789012345678901234567890.10", "1e400", "-0.0", "1E+2", "0.1000000000000000000001"]
)
def test_numbers_beyond_double_precision_are_shown_as_sent(number):
    assert laid(f'{{"n":{number}}}').text == f'{{\n  "n": {number}\n}}'


def test_doubled_keys_are_both_shown_and_named():
    found = laid('{"a":1,"b":[{"x":1},{"x":1,"x":2}],"\\u0061":3}')
    assert found.doubled == ("b.1.x", "a")
    assert found.text.count('"x"') == 3
    assert '"\\u0061": 3' in found.text


def test_ten_thousand_levels_are_laid_out_without_filling_memory():
    found = laid("[" * 10_000 + "]" * 10_000)
    assert found.is_deep
    assert len(found.text) < 10 * 10_000
    assert laid("[" * MAX_DEPTH + "]" * MAX_DEPTH).is_deep is False


def test_output_that_would_fill_memory_is_cut():
    found = laid("[" * MAX_DEPTH + "1," * 100_000, is_whole=False)
    assert found.is_cut
    assert len(found.text) < MAX_LENGTH + 1_000


@pytest.mark.parametrize("cut", range(1, 38))
def test_the_beginning_of_a_longer_text_may_end_anywhere(cut):
    text = '{"name":"a\\u00e9b","list":[true,12.5]}'
    found = laid(text[:cut], is_whole=False)
    assert found.is_cut
    assert found.text.replace("\n", "").replace(" ", "") == text[:cut]


def test_invalid_json_reports_its_position():
    assert format_json('{"a":1,}') == InvalidJson("} found where key was expected", 7)
    assert isinstance(format_json('{"a":1', is_whole=True), InvalidJson)
