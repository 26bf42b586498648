"""The settings that tell requests of senders without ids apart: headers, an object, a window."""

from typing import Any

import pytest
from pydantic import ValidationError

from boathook.config import load
from boathook.config.sources import SourceSettings
from boathook.config.stored_sources import read_stored_source
from boathook.domain.embedded_text import find_scalar
from boathook.domain.errors import ConfigError
from boathook.domain.filters import Router
from boathook.domain.json_document import parse
from boathook.domain.verification import Verified
from boathook.ingest.event_builder import EventBuilder
from boathook.ingest.sources import dedup_days_by_source, dedup_windows_by_source
from boathook.verification.verifier import Verifier
from tests import reality
from tests.unit.verifier_factory import NOW, request, verifier

HEADERS = ("x-webhook-id", "x-event-id", "x-delivery-id", "x-timestamp")
BODY = b'{"event":"car_update","payload":{"id":5,"state":"free"}}'


def source(**more: Any) -> Verifier:
    return verifier("rentprog", "t", dedup_headers=HEADERS, dedup_object="payload.id", **more)


def verified(body: bytes = BODY, by: Verifier | None = None, /, **headers: str) -> Verified:
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    verdict = (by or source()).verify(request(body, named, query="token=t"), NOW)
    assert isinstance(verdict, Verified), verdict
    return verdict


@pytest.mark.parametrize("name", HEADERS)
def test_each_header_that_is_present_tells_requests_apart(name: str):
    header = name.replace("-", "_")
    one, same, other, without = (verified(**{header: text} if text else {}) for text in ("1", "1", "2", ""))
    assert one.dedup_key == same.dedup_key
    assert len({one.dedup_key, other.dedup_key, without.dedup_key}) == 3
    assert one.kept_headers[name] == "1"


def test_the_values_of_headers_do_not_run_into_each_other():
    assert verified(x_event_id="12").dedup_key != verified(x_event_id="1", x_delivery_id="2").dedup_key
    assert verified(x_event_id="1").dedup_key != verified(x_delivery_id="1").dedup_key


def test_without_the_headers_the_key_is_as_it_was():
    assert verified().dedup_key == verified(BODY, verifier("rentprog", "t")).dedup_key


def test_an_id_of_the_sender_counts_alone():
    by = verifier("token", header="x-token", id_path="id", dedup_headers=("x-timestamp",))
    keys = {
        by.verify(request(b'{"id":"e1"}', {"x-token": "static token", "x-timestamp": stamp}), NOW).dedup_key
        for stamp in ("1", "2")
    }
    assert keys == {"e1"}


@pytest.mark.parametrize("name", ["authorization", "x-token"])
def test_a_header_with_a_secret_is_refused(name: str):
    with pytest.raises(ConfigError, match=rf"sources\.test\.dedup_headers: {name} is part of the proof"):
        verifier("token", header="x-token", dedup_headers=(name,))


@pytest.mark.parametrize("name", sorted(reality.examples("rentprog")))
def test_the_object_of_each_real_request_is_found(name: str):
    body = reality.examples("rentprog")[name]
    about = verified(body).dedup_object
    assert about is not None
    assert about.encode() in body
    assert about.isdigit()


@pytest.mark.parametrize(
    ("text", "id"),
    [
        ('{"id"=>5}', "5"),
        ('{"a"=>{"id"=>1}, "b"=>[1, {"id"=>2}], :id=>"x,y"}', "x,y"),
        ('{a: "id=>9", at: Tue, 25 Jan 2027 10:00:00 +0400, id: 7}', "7"),
        ('{"car"=>#<Car id: 3>, "id"=>"8"}', "8"),
        ('{"id"=>nil}', None),
        ('{"id"=>[1, 2]}', None),
        ('{"other"=>5}', None),
        ('{"id": 6, "x": null}', "6"),
        ("id=>5", None),
        ("", None),
        ('{"id"=>', None),
        ('{"id"=>"a', None),
        ('{"' + '\\"' * 200_000 + "\\", None),
        ("{" * 200_000 + "}" * 200_000, None),
        ("{" * 5_000 + '"id"=>1', None),
        (']]]}}}, "id"=>1}', None),
    ],
)
def test_a_path_goes_on_inside_a_text(text: str, id: str | None):
    assert find_scalar({"payload": text}, ("payload", "id")) == id


def test_a_path_goes_on_inside_nested_texts_and_objects():
    assert find_scalar({"a": '{"b"=>{"c"=>4}}'}, ("a", "b", "c")) == "4"
    assert find_scalar(parse(b'{"a":{"b":[{"c":4}]}}'), ("a", "b", "0", "c")) == "4"
    assert find_scalar({"a": "text"}, ("a",)) == "text"


def test_a_request_without_the_object_has_its_key_only():
    assert verified(b'{"event":"car_update"}').dedup_object is None


async def never() -> Router:
    raise AssertionError


def test_events_of_an_object_share_its_hash_and_no_body_is_remembered():
    builder = EventBuilder(Router((), 1), never)
    by = source()
    bodies = [BODY, BODY.replace(b"free", b"rented"), BODY.replace(b"5", b"6")]
    one, other, third = (builder.event("fleet", verified(body, by), body, "application/json", NOW) for body in bodies)
    assert one.object_hash == other.object_hash != third.object_hash
    assert one.key_hash != other.key_hash
    assert one.replay_hash is None


def settings(**more: Any) -> Any:
    return load(None, {"sources": {"shop": {"provider": "hmac", "secrets": ["x"], "header": "x-sig", **more}}})


def test_a_window_takes_the_place_of_days():
    both = settings(dedup_days=5, dedup_window_s=60)
    assert dedup_windows_by_source(both) == {"shop": 60}
    assert dedup_days_by_source(both) == {"shop": pytest.approx(60 / 86_400)}
    assert dedup_windows_by_source(settings(dedup_days=5)) == {}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"dedup_window_s": 0}, "dedup_window_s"),
        ({"dedup_headers": ["x y"]}, "not the name of a header"),
        ({"dedup_object": "id", "repeated_body": "refuse"}, "dedup_object expects bodies to come again"),
    ],
)
def test_what_cannot_be_is_refused(keys: dict[str, Any], message: str):
    with pytest.raises(ValidationError, match=message):
        SourceSettings.model_validate({"provider": "hmac", **keys})


def test_a_wrong_path_and_a_window_of_decades_are_refused():
    with pytest.raises(ConfigError, match=r"sources\.test\.dedup_object: 'a\.\.b' is not a dotted path"):
        verifier("rentprog", "t", dedup_object="a..b")
    with pytest.raises(ConfigError, match=r"sources\.test\.dedup_object: .* sends batches"):
        verifier("whatsapp", "t", dedup_object="id", verify_token="v")
    with pytest.raises(ConfigError, match=r"sources\.shop\.dedup_window_s"):
        read_stored_source("shop", {"provider": "hmac", "dedup_window_s": 2e9})
