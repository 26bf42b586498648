"""Sources with a schema: rejections after verification, the response's detail, and nothing before it."""

import hashlib
import hmac
import json
import subprocess
import sys

import pytest

import boathook
from boathook.config import load
from boathook.domain.errors import ConfigError
from boathook.domain.verification import Challenge, Reason, Rejected, Request, SourceSpec, Verified
from boathook.ingest.responses import error_response
from boathook.ingest.sources import compile_verifier
from boathook.verification import verifier as verifying
from boathook.verification.tokens import ValidProof
from boathook.verification.verifier import Verifier

SCHEMA = {
    "type": "object",
    "required": ["id", "amount"],
    "properties": {"id": {"type": "string"}, "amount": {"type": "number", "minimum": 0, "multipleOf": 0.01}},
}
GOOD = {"id": "p1", "amount": 19.99}
NOW = 1_700_000_000.0


def spec(**changes):
    options = {"header": "X-Signature", "id_path": "id"}
    given = {"name": "pay", "provider": "hmac", "secrets": ("secret",), "options": options, "schema": SCHEMA}
    return SourceSpec(**(given | changes))


def request(body, *, secret="secret", method="POST"):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    proof = hmac.new(secret.encode(), content, hashlib.sha256).hexdigest()
    return Request(
        method=method, url="http://h/in/pay", path="/in/pay", query="", headers={"x-signature": proof}, body=content,
        client="192.0.2.1",
    )  # fmt: skip


def judge(body, **changes):
    return Verifier(spec(**changes)).verify(request(body), NOW)


def test_a_matching_body_gives_the_same_event_as_without_a_schema():
    with_schema, without = judge(GOOD), judge(GOOD, schema=None)
    assert isinstance(with_schema, Verified)
    assert with_schema == without


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        (GOOD | {"amount": -1}, "amount: -1 is less than the minimum of 0"),
        ({"id": "p1"}, "'amount' is a required property"),
        (GOOD | {"id": 7}, "id: 7 is not of type 'string'"),
        ([], "[] is not of type 'object'"),
        (b"{", "the body is not JSON"),
        (b"", "the body is not JSON"),
        (b"\xff\xfe{}", "the body is not JSON"),
        (b'{"amount": NaN, "id": "1"}', "the body is not JSON"),
        (b"[" * 100_000, "the body is not JSON"),
    ],
)
def test_a_signed_body_that_does_not_match_gets_400_with_the_field(body, detail):
    verdict = judge(body)
    assert verdict == Rejected(
        status=400, reason=Reason.BODY_INVALID, detail=detail, may_reverify=True, public_detail=detail
    )


def test_the_body_is_not_parsed_before_its_signature_is_verified(monkeypatch):
    looks = []

    def parse(body: bytes) -> dict:
        looks.append(body)
        return {}

    monkeypatch.setattr(verifying, "parse", parse)
    verifier = Verifier(spec())
    for body in (GOOD, b"{", {"id": "p1", "amount": -1}):
        refused = verifier.verify(request(body, secret="forged"), NOW)
        assert (refused.status, refused.reason, refused.public_detail) == (401, Reason.SIGNATURE_MISMATCH, "")
    assert looks == []
    verifier.verify(request(GOOD), NOW)
    assert len(looks) == 1


def test_mutant_without_the_signature_check_the_schema_leaks(monkeypatch):
    verifier = Verifier(spec())
    monkeypatch.setattr(verifier.check, "check", lambda *_: ValidProof(id=None, sent_at=None))
    refused = verifier.verify(request({"amount": -1}, secret="forged"), NOW)
    assert (refused.status, refused.public_detail) == (400, "'id' is a required property")


def test_an_unsigned_source_reveals_no_schema_error():
    refused = judge({"id": "p1"}, unsigned=True, secrets=())
    assert (refused.reason, refused.detail, refused.public_detail) == (
        Reason.BODY_INVALID, "'amount' is a required property", "",
    )  # fmt: skip


def test_a_json_only_provider_is_checked_by_the_schema():
    secret = "whsec_x"
    verifier = Verifier(SourceSpec(name="s", provider="stripe", secrets=(secret,), schema=SCHEMA))
    stamp = int(NOW)

    def send(body):
        proof = hmac.new(secret.encode(), b"%d.%s" % (stamp, body), hashlib.sha256).hexdigest()
        return verifier.verify(
            Request(method="POST", url="", path="", query="", headers={"stripe-signature": f"t={stamp},v1={proof}"},
                    body=body, client=""), NOW,
        )  # fmt: skip

    assert send(b"no json").reason is Reason.BODY_INVALID
    assert send(b'{"id": "evt_1", "type": "x"}').detail == "'amount' is a required property"
    assert isinstance(send(b'{"id": "evt_1", "type": "x", "amount": 1}'), Verified)


def test_handshakes_are_not_checked():
    verifier = Verifier(SourceSpec(name="s", provider="slack", secrets=("k",), schema={"required": ["never"]}))
    body = b'{"type": "url_verification", "challenge": "abc"}'
    proof = hmac.new(b"k", b"v0:%d:%s" % (NOW, body), hashlib.sha256).hexdigest()
    headers = {
        "x-slack-signature": f"v0={proof}", "x-slack-request-timestamp": str(int(NOW)),
        "content-type": "application/json",
    }  # fmt: skip
    verdict = verifier.verify(
        Request(method="POST", url="", path="", query="", headers=headers, body=body, client=""), NOW
    )
    assert isinstance(verdict, Challenge)


def test_batches_are_checked_as_whole_bodies():
    sample = {"events": [{"id": "EV1", "resource_type": "payments", "action": "x"}]}
    body = json.dumps(sample).encode()
    headers = {"webhook-signature": hmac.new(b"k", body, hashlib.sha256).hexdigest()}
    sent = Request(method="POST", url="", path="", query="", headers=headers, body=body, client="")

    def check(schema):
        return Verifier(SourceSpec(name="s", provider="gocardless", secrets=("k",), schema=schema)).verify(sent, NOW)

    assert len(check({"required": ["events"]}).items) == 1
    refused = check({"properties": {"events": {"items": {"required": ["amount"]}}}})
    assert refused.detail == "events.0: 'amount' is a required property"


def test_an_error_response_with_detail_is_always_json():
    nasty = 'a"b\\c</script>\n\x00\ud800\u2028'
    verdict = judge(b'{"id": "p1", "amount": ' + json.dumps(nasty).encode() + b"}")
    answer = error_response(400, verdict.reason, "req_1", public_detail=verdict.public_detail)
    public_detail = json.loads(answer.body)
    assert public_detail["detail"] == verdict.detail
    assert list(public_detail) == ["ok", "error", "detail", "request_id"]
    assert b'"detail"' not in error_response(401, "x", "req_1").body


# Settings.


def settings(tmp_path, text):
    (tmp_path / "boathook.toml").write_text(
        '[sources.pay]\nprovider = "hmac"\nsecrets = ["secret"]\nheader = "X-Signature"\n' + text
    )
    return load(tmp_path / "boathook.toml")


def test_a_schema_is_read_inline_or_from_a_file(tmp_path, monkeypatch):
    (tmp_path / "payment.json").write_text(json.dumps(SCHEMA))
    monkeypatch.chdir("/")
    for text in ("schema = 'payment.json'", "[sources.pay.schema]\nrequired = ['amount']"):
        read = settings(tmp_path, text)
        verdict = compile_verifier(read, "pay").verify(request({"id": "p1"}), NOW)
        assert verdict.detail == "'amount' is a required property"
    monkeypatch.setenv("BOATHOOK_SOURCES_PAY_SCHEMA", "payment.json")
    assert settings(tmp_path, "").schema_of("pay") == SCHEMA


def test_settings_with_a_schema_survive_being_handed_to_a_child_process(tmp_path):
    read = settings(tmp_path, "[sources.pay.schema]\nrequired = ['amount']\n")
    again = type(read).model_validate_json(read.model_dump_json())
    assert again == read
    assert again.schema_of("pay") == {"required": ["amount"]}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("schema = 5", r"sources\.pay\.schema: must be a table that is a JSON Schema"),
        ("schema = ''", r"sources\.pay\.schema: must be a table that is a JSON Schema"),
        ("schema = 'none.json'", r"sources\.pay\.schema: cannot read .*none.json"),
        ("schema = 'broken.json'", r"sources\.pay\.schema: broken.json is not JSON"),
        ("schema = {properties = {a = {minimum = 'x'}}}", r"sources\.pay\.schema: properties\.a\.minimum: 'x' is not"),
        ("schema = {'$ref' = 'https://h/s.json'}", r"sources\.pay\.schema: \$ref .* leads out of the schema"),
        ("schema = {pattern = '(a)\\1'}", r"sources\.pay\.schema: pattern .* back-references"),
    ],
)
def test_an_invalid_schema_is_reported_at_start(tmp_path, text, complaint):
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(ConfigError, match=complaint):
        compile_verifier(settings(tmp_path, text), "pay")


def test_scheme_is_not_mistaken_for_a_misspelt_schema(tmp_path):
    with pytest.raises(ConfigError, match="no such setting"):
        compile_verifier(settings(tmp_path, "scheme = 'x'"), "pay")


# The library.


def test_library_verify_checks_the_schema_after_the_signature():
    def ask(body, secret="secret", schema=SCHEMA):
        sent = request(body)
        return boathook.verify("hmac", secret, sent.headers, sent.body, header="X-Signature", schema=schema)

    assert ask(GOOD).outcome == "event"
    refused = ask(GOOD | {"amount": -1})
    assert (refused.reason, refused.reply.status) == (Reason.BODY_INVALID, 400)
    assert json.loads(refused.reply.body) == {"ok": False, "detail": "amount: -1 is less than the minimum of 0"}
    assert ask({"amount": -1}, secret="other").reply.status == 401
    with pytest.raises(ConfigError, match=r"^schema: minimum: "):
        ask(GOOD, schema={"minimum": "x"})
    with pytest.raises(ConfigError, match=r"^schema: it cannot be written as JSON"):
        ask(GOOD, schema={"minimum": object()})


def test_without_a_schema_nothing_is_imported_for_it():
    code = (
        "import sys; from boathook.verification.verifier import Verifier; from boathook.domain.verification import SourceSpec;"
        "make = lambda **more: Verifier(SourceSpec(name='p', provider='hmac', secrets=('s',), options={'header': 'x'}, **more));"
        "make(); assert 'jsonschema' not in sys.modules; make(schema={}); assert 'jsonschema' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
