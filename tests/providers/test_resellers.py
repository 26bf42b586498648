"""Resellers of music and car-rental systems, with requests built by hand: none has a library."""

import base64
import hmac
import json

import pytest
from msgspec.structs import replace

from boathook.domain.errors import ConfigError
from boathook.domain.model import ProofStrength
from boathook.domain.verification import Rejected
from boathook.providers import find_recipe
from boathook.providers.recipe import Confidence
from boathook.testing import sign, signed_request
from tests.providers.source_factory import body_key
from tests.unit.verifier_factory import NOW, URL, request, verifier

SECRET = "webhook-hmac-key"
STAMP = str(int(NOW))
CLIPS = {"code": 200, "data": [{"clip_id": "c1", "state": "succeeded"}, {"clip_id": "c2", "state": "succeeded"}]}


def suno_request(document: object, *, task: str = "2fac9f72", stamp: str = STAMP, secret: str = SECRET):
    signature = base64.b64encode(hmac.new(secret.encode(), f"{task}.{stamp}".encode(), "sha256").digest()).decode()
    headers = {"x-webhook-signature": signature, "x-webhook-timestamp": stamp}
    return request(json.dumps(document).encode(), headers)


def song(stage: str = "complete", task: str = "2fac9f72") -> dict[str, object]:
    return {"code": 200, "msg": "ok", "data": {"callbackType": stage, "task_id": task, "data": [{"id": "e231"}]}}


def reason(verdict: object) -> str:
    assert isinstance(verdict, Rejected), verdict
    return verdict.reason


@pytest.mark.judge("suno")
def test_suno_signature_covers_task_and_timestamp():
    suno = verifier("suno", SECRET)
    verdict = suno.verify(suno_request(song()), NOW)
    assert (verdict.type, verdict.dedup_key, verdict.grade) == (
        "complete",
        "suno:2fac9f72:complete",
        ProofStrength.METADATA,
    )
    assert verdict.timestamp.timestamp() == NOW
    assert reason(suno.verify(suno_request(song(task="2fac9f73")), NOW)) == "signature_mismatch"
    assert reason(suno.verify(suno_request(song(), secret="other"), NOW)) == "signature_mismatch"
    assert suno.verify(suno_request(song()), NOW + 21 * 60).dedup_key == "suno:2fac9f72:complete"
    assert reason(suno.verify(suno_request(song()), NOW + 1_801)) == "timestamp_too_old"
    assert reason(suno.verify(suno_request(song(), stamp="17e8"), NOW)) == "timestamp_malformed"
    assert reason(suno.verify(suno_request({"code": 200}), NOW)) == "signature_missing"
    assert reason(suno.verify(request(json.dumps(song()).encode(), {}), NOW)) == "timestamp_missing"


def test_each_stage_of_a_suno_task_is_an_event():
    suno = verifier("suno", SECRET)
    keys = [suno.verify(suno_request(song(stage)), NOW).dedup_key for stage in ("text", "first", "complete", "error")]
    assert keys == [
        "suno:2fac9f72:text",
        "suno:2fac9f72:first",
        "suno:2fac9f72:complete",
        "suno:2fac9f72:error",
    ]


@pytest.mark.parametrize(
    ("document", "key", "type"),
    [
        (
            {"code": 200, "data": {"taskId": "t1", "status": "wait_validating"}},
            "suno:t1:wait_validating",
            "wait_validating",
        ),
        ({"code": 200, "data": {"taskId": "t1", "state": "success"}}, "suno:t1:success", "success"),
        ({"taskId": "t1", "data": {"callbackType": "complete"}}, "suno:t1:complete", "complete"),
    ],
)
def test_suno_other_callbacks_have_their_own_task_field(document, key, type):
    verdict = verifier("suno", SECRET).verify(suno_request(document, task="t1"), NOW)
    assert (verdict.dedup_key, verdict.type) == (key, type)


def test_suno_sends_unsigned_where_no_key_is_set():
    sent = request(json.dumps(song()).encode(), {"x-delivery-id": "d1"})
    verdict = verifier("suno", secrets=(), unsigned=True).verify(sent, NOW)
    assert (verdict.grade, verdict.dedup_key) == (ProofStrength.NONE, "d1")
    assert verdict.kept_headers["x-delivery-id"] == "d1"


@pytest.mark.parametrize(
    ("headers", "key"),
    [
        ({"x-delivery-id": "d1", "x-webhook-id": "w1"}, "d1"),
        ({"x-delivery-id": "", "x-webhook-id": "w1"}, "w1"),
        ({"x-webhook-id": "w1"}, "w1"),
        ({}, "suno:2fac9f72:complete"),
    ],
)
def test_a_suno_delivery_is_named_by_its_headers_else_by_task_and_stage(headers, key):
    suno = verifier("suno", SECRET)
    sent = suno_request(song())
    verdict = suno.verify(replace(sent, headers=dict(sent.headers) | headers), NOW)
    assert (verdict.dedup_key, verdict.kept_headers) == (key, {**verdict.kept_headers, **headers})


def test_no_unsigned_header_takes_the_name_of_another_tasks_event():
    suno = verifier("suno", SECRET)
    sent = suno_request(song())
    squatting = replace(sent, headers=dict(sent.headers) | {"x-delivery-id": "suno:other:complete"})
    other = suno.verify(suno_request(song(task="other"), task="other"), NOW)
    assert other.dedup_key == "suno:other:complete"
    assert suno.verify(squatting, NOW).dedup_key == "id:id:suno:other:complete"


def test_a_suno_replay_with_another_delivery_id_has_the_same_replay_key():
    suno = verifier("suno", SECRET)
    sent = suno_request(song())
    first = suno.verify(replace(sent, headers=dict(sent.headers) | {"x-delivery-id": "d1"}), NOW)
    second = suno.verify(replace(sent, headers=dict(sent.headers) | {"x-delivery-id": "d2"}), NOW)
    assert first.dedup_key != second.dedup_key
    assert first.replay_material == second.replay_material == sent.body


@pytest.mark.parametrize("scheme", ["hmac", "token"])
def test_suno_keys_are_equal_in_every_scheme(scheme):
    made = signed_request("suno", SECRET, json.dumps(song()).encode(), timestamp=NOW, scheme=scheme)
    verdict = verifier("suno", SECRET, scheme=scheme).verify(
        request(made.body, dict(made.headers), query=made.url.partition("?")[2]), NOW
    )
    assert (verdict.type, verdict.dedup_key) == ("complete", "suno:2fac9f72:complete")


@pytest.mark.judge("suno")
def test_suno_sign_equals_a_manual_signature():
    made = signed_request("suno", SECRET, json.dumps(song()).encode(), timestamp=NOW)
    assert made.headers["x-webhook-signature"] == suno_request(song()).headers["x-webhook-signature"]
    assert made.headers["x-webhook-timestamp"] == STAMP


@pytest.mark.judge("suno-musicapi")
def test_musicapi_signature_covers_timestamp_and_body():
    body = json.dumps(CLIPS).encode()
    signature = "sha256=" + hmac.new(SECRET.encode(), STAMP.encode() + b"." + body, "sha256").hexdigest()
    headers = {
        "x-webhook-signature": signature,
        "x-webhook-timestamp": STAMP,
        "x-webhook-id": "w1",
        "x-webhook-event": "song.completed",
    }
    source = verifier("suno-musicapi", SECRET)
    verdict = source.verify(request(body, headers), NOW)
    assert (verdict.type, verdict.dedup_key, verdict.grade) == ("song.completed", "w1", ProofStrength.BODY)
    assert verdict.replay_material == STAMP.encode() + b"." + body
    assert reason(source.verify(request(body[:-1] + b" }", headers), NOW)) == "signature_mismatch"
    assert reason(source.verify(request(body, headers), NOW + 301)) == "timestamp_too_old"
    assert sign("suno-musicapi", SECRET, body, timestamp=NOW)["x-webhook-signature"] == signature


@pytest.mark.judge("suno-sunoapi")
def test_sunoapi_com_signs_the_body():
    body = json.dumps(CLIPS).encode()
    headers = {"x-signature": hmac.new(SECRET.encode(), body, "sha256").hexdigest()}
    source = verifier("suno-sunoapi", SECRET)
    verdict = source.verify(request(body, headers), NOW)
    assert (verdict.type, verdict.dedup_key) == ("succeeded", body_key(body, "succeeded"))
    assert reason(source.verify(request(body + b" ", headers), NOW)) == "signature_mismatch"
    assert sign("suno-sunoapi", SECRET, body)["x-signature"] == headers["x-signature"]


def test_undocumented_proofs_are_marked():
    for name in ("rentprog", "umnico"):
        assert find_recipe(name).confidence["proof"] is Confidence.MEMORY
    assert find_recipe("suno-sunoapi").confidence["proof"] is Confidence.SECONDARY
    assert "proof" not in find_recipe("suno").confidence


# Car rental: the settings define the proof

PRESETS = ["rentprog", "umnico"]
BOOKING = b'{"event":"booking_update","type":"message.incoming","payload":{"id":1}}'
TYPES = {"rentprog": "booking_update", "umnico": "message.incoming"}


@pytest.mark.judge("rentprog")
@pytest.mark.judge("umnico")
@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize(
    ("settings", "headers", "query"),
    [
        ({}, {}, "token=geheim"),
        ({"query": "key"}, {}, "key=geheim"),
        ({"header": "X-Api-Key"}, {"x-api-key": "geheim"}, ""),
        ({"header": "Authorization", "prefix": "Bearer "}, {"authorization": "Bearer geheim"}, ""),
        ({"username": "bob"}, {"authorization": "Basic " + base64.b64encode(b"bob:geheim").decode()}, ""),
    ],
    ids=["by itself", "query", "header", "bearer", "basic"],
)
def test_preset_token_location_can_be_configured(name, settings, headers, query):
    source = verifier(name, "geheim", **settings)
    verdict = source.verify(request(BOOKING, headers, query=query), NOW)
    assert (verdict.type, verdict.grade) == (TYPES[name], ProofStrength.TOKEN)
    assert verdict.dedup_key.startswith("sha256:")
    other = verifier(name, "other", **settings)
    assert reason(other.verify(request(BOOKING, headers, query=query), NOW)) == "token_mismatch"
    assert reason(source.verify(request(BOOKING, {}), NOW)) == "token_missing"


@pytest.mark.parametrize("name", PRESETS)
def test_presets_hide_the_token_of_the_address(name):
    assert verifier(name, "geheim").secret_query == "token"
    assert verifier(name, "geheim", query="key").secret_query == "key"
    assert verifier(name, "geheim", header="X-Api-Key").secret_query is None


@pytest.mark.parametrize("name", PRESETS)
def test_presets_sign_as_the_generic_provider(name):
    settings = {"scheme": "hmac", "header": "X-Sig", "prefix": "sha256=", "id_path": "payload.id"}
    signature = "sha256=" + hmac.new(b"geheim", BOOKING, "sha256").hexdigest()
    source = verifier(name, "geheim", **settings)
    verdict = source.verify(request(BOOKING, {"x-sig": signature}), NOW)
    assert (verdict.type, verdict.dedup_key, verdict.grade) == (TYPES[name], "1", ProofStrength.BODY)
    assert reason(source.verify(request(BOOKING + b" ", {"x-sig": signature}), NOW)) == "signature_mismatch"
    assert sign(name, "geheim", BOOKING, **settings)["x-sig"] == signature


@pytest.mark.parametrize("name", PRESETS)
def test_presets_accept_unsigned_requests_only_if_configured(name):
    with pytest.raises(ConfigError, match=r"sources\.test\.secrets"):
        verifier(name, secrets=())
    verdict = verifier(name, secrets=(), unsigned=True).verify(request(BOOKING, {}), NOW)
    assert (verdict.grade, verdict.type) == (ProofStrength.NONE, TYPES[name])


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"header": "X-A", "query": "b"}, r"sources\.test\.header: set the location of the token"),
        ({"prefix": "Bearer "}, r"sources\.test\.prefix"),
        ({"scheme": "rsa"}, r'sources\.test\.scheme: .*"hmac"'),
        ({"scheme": "hmac", "query": "key"}, r"sources\.test\.query: .*no such setting"),
        ({"template": "{body}"}, r"sources\.test\.template: .*no such setting"),
    ],
)
def test_presets_refuse_settings_that_contradict(name, settings, message):
    with pytest.raises(ConfigError, match=message):
        verifier(name, "geheim", **settings)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"event":"car_update"}', "car_update"),
        (b'{"entity":"car","action":"update"}', "car.update"),
        (b'{"model":"client"}', "client"),
        (b'{"payload":{}}', "unknown"),
    ],
)
def test_rentprogs_shapes_of_old_and_of_today_name_their_type(body, expected):
    assert verifier("rentprog", "t").verify(request(body, {}, query="token=t"), NOW).type == expected


def test_a_preset_takes_only_json():
    verdict = verifier("rentprog", "t").verify(request(b"a=1", {}, query="token=t"), NOW)
    assert (verdict.status, verdict.reason) == (400, "body_malformed")


def test_the_address_of_a_preset_carries_its_token():
    made = signed_request("rentprog", "geheim", url=URL)
    assert made.url == URL + "?token=geheim"
