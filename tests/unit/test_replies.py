"""What may be replied to a sender, and what never is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boathook.domain.replies import STOP_STATUSES, Reply, check_media_type, make_reply

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


@pytest.mark.parametrize(
    ("body", "raw", "content_type"),
    [
        (b"\x00\xff", b"\x00\xff", "application/octet-stream"),
        ("Жук", "Жук".encode(), "text/plain; charset=utf-8"),
        ({"code": 0}, b'{"code":0}', "application/json"),
        (["Ж"], '["Ж"]'.encode(), "application/json"),
        (None, b"null", "application/json"),
    ],
)
def test_content_type_follows_the_body_type(body: object, raw: bytes, content_type: str) -> None:
    assert make_reply(body) == Reply(status=200, body=raw, content_type=content_type)
    assert make_reply(body, 422, "text/xml").content_type == "text/xml"


@given(JSON | st.text() | st.binary(), st.integers(-5, 700))
def test_make_reply_gives_a_sendable_reply_or_value_error(body: object, status: int) -> None:
    try:
        reply = make_reply(body, status)
    except ValueError:
        return
    assert reply.status in range(200, 600)
    assert reply.status not in STOP_STATUSES
    assert reply.status not in range(300, 400)
    assert "\n" not in reply.content_type


@given(st.text())
def test_no_media_type_breaks_a_header(text: str) -> None:
    try:
        check_media_type(text)
    except ValueError:
        return
    assert text.isascii()
    assert text.isprintable()


def test_a_senders_own_stop_statuses_are_refused_too() -> None:
    with pytest.raises(ValueError, match="409"):
        make_reply("", 409, forbidden_statuses=STOP_STATUSES | {409})
    assert make_reply("", 409).status == 409
