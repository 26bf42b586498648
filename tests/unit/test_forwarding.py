"""Requests forwarded to a developer's server, and the listener's memory of seen events."""

from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from boathook.domain import ids
from boathook.domain.errors import ConfigError
from boathook.service.operating.event_feed import FeedEvent
from boathook.testing import signed_request
from boathook.verification.verifier import Request, SourceSpec, Verified, Verifier
from boathook_dev.event_feed import SeenEvents
from boathook_dev.forwarding import SigningOptions, request_for

NOW = datetime.now(UTC)
LOCAL = "http://localhost:3000/hook"


def heard(**more: Any) -> FeedEvent:
    values: dict[str, Any] = {
        "id": ids.show(ids.EVENT, ids.make(1, 2)), "source": "s", "application": None, "type": "t", "origin": "received",
        "accepted_at": NOW, "provider": "stripe", "options": {}, "dedup_key": "k", "headers": {},
        "content_type": "application/json", "body": b'{"id": "evt_1", "type": "t"}',
    }  # fmt: skip
    return FeedEvent(**values | more)


def verdict_on(request: Any, provider: str, secret: str, **options: Any) -> Any:
    parts = urlsplit(request.url)
    spec = SourceSpec(
        name="s", provider=provider, secrets=(secret,), options=options, public_url="http://localhost:3000"
    )
    return Verifier(spec).verify(
        Request(
            method=request.method, url=request.url, path=parts.path, query=parts.query, body=request.body,
            headers=dict(request.headers), client="127.0.0.1",
        ),
        datetime.now(UTC).timestamp(),
    )  # fmt: skip


STANDARD = ("whsec_c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0", "whsec_b3RoZXIgb3RoZXIgb3RoZXIgb3RoZXIg")


@pytest.mark.parametrize("provider", ["stripe", "github", "slack", "shopify", "twilio", "standard-webhooks"])
def test_a_resigned_event_passes_local_verification(provider):
    secret, theirs = STANDARD if provider == "standard-webhooks" else ("local-secret", "their-secret")
    original = signed_request(provider, theirs, url=LOCAL)
    proven = verdict_on(original, provider, theirs)
    assert isinstance(proven, Verified)
    kept = dict(proven.kept_headers)
    event = heard(provider=provider, body=original.body, headers=kept, content_type=original.headers["content-type"])
    request = request_for(event, LOCAL, SigningOptions(secret, None, {}))
    assert request.body == original.body
    again = verdict_on(request, provider, secret)
    assert isinstance(again, Verified)
    assert again.dedup_key == proven.dedup_key
    assert not isinstance(verdict_on(request, provider, theirs), Verified)


def test_a_get_event_is_forwarded_by_get_and_signed_in_the_query():
    original = signed_request("robokassa", "their-secret", url=LOCAL, scheme="get")
    query = urlsplit(original.url).query
    event = heard(
        provider="robokassa",
        options={"scheme": "get"},
        body=query.encode(),
        content_type="application/x-www-form-urlencoded",
    )
    request = request_for(event, LOCAL, SigningOptions("local-secret", None, {}))
    assert (request.method, request.body, "content-type" in event.headers) == ("GET", b"", False)
    told, before = dict(parse_qsl(urlsplit(request.url).query)), dict(parse_qsl(query))
    assert {name for name in told if told[name] != before[name]} == {"SignatureValue"}
    assert isinstance(verdict_on(request, "robokassa", "local-secret", scheme="get"), Verified)


def test_headers_that_the_client_writes_are_left_out():
    request = request_for(heard(headers={"host": "x", "content-length": "7", "x-kept": "y"}), LOCAL, None)
    assert request.headers == {"x-kept": "y", "content-type": "application/json"}


def test_a_deleted_source_needs_an_explicit_provider():
    with pytest.raises(ConfigError, match="--provider"):
        request_for(heard(provider=None), LOCAL, SigningOptions("s", None, {}))
    assert "stripe-signature" in request_for(heard(provider=None), LOCAL, SigningOptions("s", "stripe", {})).headers


def test_seen_events_are_deduplicated_and_old_ones_dropped():
    memory = SeenEvents()
    early, late = (ids.make(int(at.timestamp() * 1000), 1) for at in (NOW, NOW + timedelta(minutes=5)))
    assert [memory.is_new(one) for one in (early, early)] == [True, False]
    assert memory.is_new(late)
    assert memory.latest == late
    assert memory.is_new(early), "it is long forgotten, as no gateway tells of it again"
