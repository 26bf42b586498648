"""HTTP attempts: the request, its record, and the classified response."""

import json
import time
from email.utils import formatdate

import pytest
import svix.webhooks

from boathook.delivery.http_attempt import (
    RequestTarget,
    build_request,
    classify_response,
    collect_secrets,
    read_message_headers,
    recorded_headers,
)
from boathook.delivery.response_redaction import redact
from boathook.delivery.signer import make_ed25519_secret, make_secret, read_signer
from boathook.domain.policy import Failure, Success
from boathook.http_client.messages import OutgoingRequest, RequestResult, TransportFailure
from tests.unit.receivers import outbound

SECRET, OLD = make_secret(), make_secret()


def target(**fields):
    return RequestTarget(**({"url": "https://a.test/x", "signers": (read_signer(SECRET),), "timeout_s": 7.0} | fields))


def composed(where, **settings):
    letterhead = read_message_headers(outbound(**settings))
    body = b'{"a":1}'
    return build_request(
        letterhead, where, message_id="msg_1", timestamp=int(time.time()), body=body, content_type="application/json"
    )


def answered(status, **headers):
    request = OutgoingRequest(url="https://a.test/", headers=(), body=b"", timeout_s=1.0)
    return RequestResult(request, status, {k.replace("_", "-"): v for k, v in headers.items()}, b"", 0.1, None, "")


@pytest.mark.parametrize("prefixes", [("webhook",), ("svix",), ("webhook", "svix")])
def test_a_request_is_signed_by_all_secrets_under_all_names(prefixes):
    where = target(signers=(read_signer(SECRET), read_signer(make_ed25519_secret()), read_signer(OLD)))
    request = composed(where, header_prefixes=prefixes)
    headers = dict(request.headers)
    assert (request.url, request.body, request.timeout_s) == ("https://a.test/x", b'{"a":1}', 7.0)
    for prefix in prefixes:
        assert headers[f"{prefix}-id"] == "msg_1"
        assert [part.split(",")[0] for part in headers[f"{prefix}-signature"].split()] == ["v1", "v1a", "v1"]
    assert {name.split("-")[0] for name in headers} == {"user", "content", *prefixes}
    for secret in (SECRET, OLD):
        svix.webhooks.Webhook(secret).verify(request.body.decode(), headers)


def test_the_current_secret_signs_first():
    request = composed(target(signers=(read_signer(SECRET), read_signer(OLD))))
    headers = dict(request.headers)
    first = headers["webhook-signature"].split()[0]
    assert first == read_signer(SECRET).sign("msg_1", int(headers["webhook-timestamp"]), request.body)


def test_the_user_agent_can_be_configured():
    assert dict(composed(target()).headers)["user-agent"].startswith("boathook/")
    assert dict(composed(target(), user_agent="Acme 1").headers)["user-agent"] == "Acme 1"


@pytest.mark.parametrize(
    "name", ["webhook-id", "Webhook-Signature", "svix-timestamp", "User-Agent", "content-type", "Host"]
)
def test_endpoint_headers_cannot_replace_reserved_ones(name):
    with pytest.raises(ValueError, match=name):
        target(headers={name: "x"})


@pytest.mark.parametrize(
    ("fields", "header", "basic"),
    [
        ({"headers": {"Authorization": "X y"}}, "X y", None),
        ({"headers": {"Authorization": "X y"}, "basic": ("a", "b")}, None, ("a", "b")),
        ({"headers": {"Authorization": "X y"}, "bearer": "t"}, "Bearer t", None),
        ({"basic": ("a", "b"), "bearer": "t"}, "Bearer t", None),
    ],
)
def test_authorization_is_sent_once(fields, header, basic):
    request = composed(target(**fields))
    found = [value for name, value in request.headers if name.lower() == "authorization"]
    assert (found, request.basic) == ([header] if header else [], basic)


def test_the_record_of_a_request_shows_no_secret():
    where = target(
        url="https://ann:urlpass1@a.test/",
        headers={
            "X-Shop": "canary-5",
            "X-Api-Key": "canary-1",
            "x-my-Token": "canary-2",
            "Cookie": "canary-3",
            "a": "b",
        },
        bearer="canary-4",
    )
    record = recorded_headers(composed(where), where)
    pairs = json.loads(record)
    assert ["X-Shop", "[custom]"] in pairs
    assert ["a", "[custom]"] in pairs
    assert ["webhook-id", "msg_1"] in pairs
    assert [value for name, value in pairs if name.lower() == "authorization"] == ["[redacted]"]
    assert "canary" not in record
    assert "urlpass1" not in record
    assert ["authorization", "[redacted]"] in json.loads(
        recorded_headers(composed(target(basic=("a", "b"))), target(basic=("a", "b")))
    )


@pytest.mark.parametrize("shape", ["{}", '<p title="{}">', '{{"echo":"{}"}}', "{0} and {0}"])
def test_secrets_that_a_receiver_writes_back_are_blotted_out(shape):
    where = target(
        url="https://ann:urlpass1@a.test/",
        headers={"X-Api-Key": "canary-1/ü+", "X-Plain": "shown", "X-Shop": "canary-5"},
        basic=("bob", "canary-2"),
        bearer="canary-3",
        client_certificate=("-----BEGIN CERTIFICATE-----", "-----BEGIN KEY-----\nMIGHcanary4\n-----END KEY-----"),
    )
    secrets = collect_secrets(where)
    for echoed in (
        SECRET,
        SECRET[6:],
        "canary-1/ü+",
        json.dumps("canary-1/ü+")[1:-1],
        "canary-2",
        "Ym9iOmNhbmFyeS0y",
        "canary-3",
        "MIGHcanary4",
        "urlpass1",
        "canary-5",
    ):
        found = redact(shape.format(echoed).encode(), secrets)
        assert b"[redacted]" in found
        assert echoed.encode() not in found
    assert redact(b"nothing but what is shown", secrets) == b"nothing but what is shown"


def test_a_secret_that_the_cap_cuts_in_two_is_blotted_out():
    found = redact(b"x" * 50 + SECRET[:20].encode(), collect_secrets(target()))
    assert found == b"x" * 50 + b"[redacted]"


def test_mutant_without_it_a_receivers_echo_would_be_recorded():
    assert SECRET.encode() in redact(SECRET.encode(), ())


def test_nothing_secret_shows_in_a_repr():
    where = target(headers={"a": "canary"}, basic=("u", "canary"), bearer="canary", url="https://u:canary@a.test/")
    assert "canary" not in repr(where)


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_2xx_is_success_with_any_headers(status):
    assert classify_response(answered(status, webhook_delivery="disable", retry_after="5")) == Success()


@pytest.mark.parametrize(
    ("answer", "code", "is_final"),
    [
        (answered(300), "HTTP_300", False),
        (answered(308), "HTTP_308", False),
        (answered(400), "HTTP_400", False),
        (answered(404), "HTTP_404", False),
        (answered(500), "HTTP_500", False),
        (answered(410), "GONE", True),
        (answered(500, webhook_delivery=" Disable "), "GONE", True),
        (answered(400, webhook_delivery="abort-message"), "ABORTED", True),
        (answered(400, webhook_delivery="other"), "HTTP_400", False),
    ],
)
def test_other_statuses_are_failures(answer, code, is_final):
    match classify_response(answer):
        case Failure() as failure:
            assert (failure.code, failure.is_final) == (code, is_final)
            assert str(answer.status) in failure.error
        case other:
            pytest.fail(str(other))


@pytest.mark.parametrize("failure", list(TransportFailure))
def test_a_transport_failure_keeps_its_code(failure):
    request = OutgoingRequest(url="https://a.test/", headers=(), body=b"", timeout_s=1.0)
    found = classify_response(RequestResult(request, 0, {}, b"", 0.1, failure, "why"))
    assert found == Failure(code=failure.value, error="why")


@pytest.mark.parametrize("status", [429, 503, 500, 404])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("120", 120.0),
        ("0", 0.0),
        ("1.5", 1.5),
        (" 7 ", 7.0),
        ("", None),
        ("-5", None),
        ("soon", None),
        ("nan", None),
        ("1e999", None),
        ("Wed, 99 Foo 2026", None),
        ("٣", None),
        ("9" * 400, None),
    ],
)
def test_retry_after_in_seconds(status, text, expected):
    assert classify_response(answered(status, retry_after=text)).retry_after_s == expected


def test_retry_after_as_a_date(monkeypatch):
    monkeypatch.setattr(time, "time", lambda: 1_000_000_000.0)
    for offset, expected in ((90, 90.0), (-90, 0.0)):
        date = formatdate(1_000_000_000 + offset, usegmt=True)
        assert classify_response(answered(503, retry_after=date)).retry_after_s == expected


@pytest.mark.parametrize("form", ["%a, %d %b %Y %H:%M:%S -0000", "%a %b %d %H:%M:%S %Y"])
def test_retry_after_as_a_date_without_a_zone_is_in_utc(monkeypatch, form):
    date = time.strftime(form, time.gmtime(1_000_000_090))
    monkeypatch.setattr(time, "time", lambda: 1_000_000_000.0)
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "America/New_York")
        time.tzset()
        failure = classify_response(answered(503, retry_after=date))
    time.tzset()
    assert failure.retry_after_s == 90.0
