"""Objects of Svix's API as values of actions: read, or refused by field."""

from collections.abc import Callable
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from boathook.delivery.signer import read_signer
from boathook.domain.errors import InvalidValue
from boathook_svix_import import fields
from boathook_svix_import.reader import RemoteEndpoint
from tests.support import examples
from tests.svix_server import make_private_key, make_secret

NAMES = [
    "name", "uid", "url", "description", "disabled", "channels", "eventTypes", "filterTypes", "throttleRate", "rateLimit",
    "metadata", "version", "archived", "deprecated", "schemas", "featureFlag", "featureFlags", "groupName", "filter",
    "orderBy", "concurrency", "retrySchedule", "timeoutSeconds", "auth", "createdAt", "other",
]  # fmt: skip
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.just("https://example.com/"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
WIRES = st.dictionaries(st.sampled_from(NAMES), VALUES).map(lambda wire: {"id": "x_1", "name": "a", **wire})


def named_by(read: Callable[[Any], fields.Converted[Any]], wire: dict[str, Any]) -> list[str]:
    """Return the fields that do not move, or the one for which the object is refused."""
    try:
        return list(read(wire).not_moved)
    except InvalidValue as error:
        return [str(error.where[0])]


@hypothesis.settings(max_examples=examples(500))
@hypothesis.given(WIRES)
def test_any_object_is_read_or_refused_by_field(wire: dict[str, Any]) -> None:
    for read in (fields.read_event_type, fields.read_application, fields.read_endpoint):
        assert set(named_by(read, wire)) <= set(NAMES)


@hypothesis.settings(max_examples=examples(200))
@hypothesis.given(st.dictionaries(st.text(max_size=12), st.text(max_size=12) | st.integers()))
def test_any_header_is_read_or_named(headers: dict[str, Any]) -> None:
    moved = fields.read_headers(RemoteEndpoint(wire={"id": "ep_1"}, secret=None, headers=headers))
    assert {*moved.value, *(name.removeprefix("headers.") for name in moved.not_moved)} == set(headers)


@hypothesis.settings(max_examples=examples(200))
@hypothesis.given(st.text(max_size=60) | st.sampled_from([make_secret(1), make_secret(2)[6:], make_private_key(3)]))
def test_a_secret_is_usable_or_explained(shown: str) -> None:
    secret = fields.read_secret(shown)
    if secret is None:
        assert fields.why_no_secret(shown)
    else:
        assert read_signer(secret).public


def test_forms_of_secrets() -> None:
    assert fields.read_secret(make_secret(1)) == make_secret(1)
    assert fields.read_secret(make_secret(1).removeprefix("whsec_")) == make_secret(1)
    assert fields.read_secret(make_private_key(1)) == make_private_key(1)
    for shown in (None, "", "whpk_" + make_secret(1)[6:], "whsk1_" + make_secret(1)[6:], "whsec_c2hvcnQ=", "a b"):
        assert fields.read_secret(shown) is None


@pytest.mark.parametrize(
    ("name", "value"), [("channels", "eu"), ("eventTypes", "invoice.paid"), ("disabled", "no"), ("filter", "x")]
)
def test_an_unsupported_filtering_field_is_refused(name: str, value: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        fields.read_endpoint({"id": "ep_1", "url": "https://example.com/", name: value})
    assert caught.value.where == (name,)
