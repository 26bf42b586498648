"""Requests edited by `boathook trigger`: boathook reads the requested type and fields."""

import json

import pytest
from msgspec.structs import replace

from boathook.domain.errors import ConfigError
from boathook.domain.verification import Verified
from boathook.providers import find_recipe
from boathook.providers.schemes import NoProof
from boathook.testing import Signed, signed_request
from boathook.verification.provider_signer import edit_request, find_id
from tests.providers.source_factory import NOW, ProviderSource, all_sources

SIGNABLE = [one for one in all_sources() if not isinstance(one.recipe.proof, NoProof) and one.secrets]
NO_TYPE = {
    one.label for one in SIGNABLE if not one.recipe.type.selectors and not (one.recipe.items and one.recipe.items.type.selectors)
}  # fmt: skip


def blank(source: ProviderSource) -> Signed:
    sample = source.recipe.sample
    query = f"?{sample.query}" if sample.query else ""
    return Signed(sample.method, source.url + query, dict(sample.headers), sample.body)


def sign(source: ProviderSource, request: Signed) -> Signed:
    return signed_request(
        source.recipe.name, source.secret, request.body, url=request.url, method=request.method,
        content_type=source.recipe.sample.content_type, headers=request.headers, timestamp=NOW, **source.settings,
    )  # fmt: skip


@pytest.mark.parametrize("source", [one for one in SIGNABLE if one.label not in NO_TYPE], ids=str)
def test_a_type_that_is_set_is_the_type_that_is_read(source: ProviderSource) -> None:
    was = source.verifier().verify(source.request(sign(source, blank(source))), NOW)
    assert isinstance(was, Verified), was
    wanted = "trigger.tested"
    edited = edit_request(source.recipe, blank(source), type=wanted)
    verdict = source.verifier().verify(source.request(sign(source, edited)), NOW)
    assert isinstance(verdict, Verified), verdict
    types = {item.type for item in verdict.items} or {verdict.type}
    assert any(
        wanted.startswith(type.removesuffix(".")) or type.endswith(wanted) or wanted in type for type in types
    ), types


@pytest.mark.parametrize("name", sorted(NO_TYPE))
def test_a_provider_without_event_types_is_explained(name: str) -> None:
    source = next(one for one in SIGNABLE if one.label == name)
    with pytest.raises(ConfigError, match="no event type that can be set"):
        edit_request(source.recipe, blank(source), type="a.b")


def test_fields_are_set_as_json_by_their_path() -> None:
    stripe = find_recipe("stripe")
    request = Signed(
        "POST", "http://a/in/stripe", {}, b'{"id": "1", "data": {"object": {"amount": 1, "lines": [{"n": 1}]}}}'
    )
    fields = {"data.object.amount": 500, "data.object.lines.0.n": 2, "data.new.deep": ["x"], "live": True}
    edited = json.loads(edit_request(stripe, request, fields=fields).body)
    assert edited["data"]["object"] == {"amount": 500, "lines": [{"n": 2}]}
    assert (edited["data"]["new"], edited["live"], edited["id"]) == ({"deep": ["x"]}, True, "1")


@pytest.mark.parametrize(
    ("body", "path"), [(b"a=1", "b"), (b'{"a": 1}', "a.b"), (b'{"a": []}', "a.0.b"), (b'{"a": [1]}', "a.x.y")]
)
def test_a_field_that_cannot_be_set_is_named(body: bytes, path: str) -> None:
    with pytest.raises(ConfigError, match=f"{path} cannot be set"):
        edit_request(find_recipe("stripe"), Signed("POST", "http://a", {}, body), fields={path: 1})


def test_an_unedited_request_is_unchanged() -> None:
    for source in SIGNABLE:
        assert edit_request(source.recipe, blank(source)) == replace(blank(source))


def test_a_type_without_an_action_drops_that_of_the_sample() -> None:
    github = find_recipe("github")
    sample = Signed("POST", "http://a/in/github", dict(github.sample.headers), github.sample.body)
    assert "action" in json.loads(sample.body)
    edited = edit_request(github, sample, type="push")
    assert (edited.headers["x-github-event"], "action" in json.loads(edited.body)) == ("push", False)


def test_an_id_is_set_where_the_sender_states_it() -> None:
    stripe, nameless = find_recipe("stripe"), find_recipe("hmac")
    edited = edit_request(stripe, Signed("POST", "http://a/in/stripe", {}, b"{}"), id="evt_7")
    assert (json.loads(edited.body), find_id(stripe, edited)) == ({"id": "evt_7"}, "evt_7")
    with pytest.raises(ConfigError, match="contain no event id; change the body to get a distinct event"):
        edit_request(nameless, edited, id="7")
    with pytest.raises(ConfigError, match="the body has no place for it"):
        edit_request(stripe, Signed("POST", "http://a/in/stripe", {}, b"[]"), id="7")
