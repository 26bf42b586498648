"""Office providers, checked by their libraries, documented vectors, and requests built by hand."""

import base64
import hashlib
import json
import time
from datetime import UTC, datetime

import pytest
from hubspot.exceptions import InvalidSignatureTimestampError
from hubspot.utils.signature import Signature
from msgspec.structs import replace

from boathook.domain.errors import ConfigError
from boathook.domain.model import ProofStrength
from boathook.domain.verification import Challenge, Reason, Rejected, SourceSpec, Verified
from boathook.providers import find_recipe
from boathook.testing import sign, signed_request
from boathook.verification.verifier import Verifier
from tests.providers.request_factory import NOW, URL, altered, base64_mac, hex_mac, request, verdict_of, verifier
from tests.providers.source_factory import body_key

SECRET = "a signing secret"
MOMENT = datetime.fromtimestamp(NOW, UTC).isoformat().replace("+00:00", "Z")


def refused(verdict, reason, status=401):
    assert isinstance(verdict, Rejected), verdict
    assert (verdict.reason, verdict.status) == (reason, status)


# Those without code of their vendors: signed by hand, as their documentation says.

BODIES = {
    "dropbox": b'{"list_folder":{"accounts":["dbid:AAH4f99T0taONIb-OurWxbNQ6ywGRopQngc"]},"delta":{"users":[12345678]}}',
    "intercom": b'{"type":"notification_event","topic":"contact.created","id":"notif_1","data":{"item":{"id":"1"}}}',
    "zendesk": '{"type":"zen:event-type:user.created","id":"2b24ef10","zendesk_event_version":"2022-06-20","x":"✓"}'.encode(),
    "docusign": b'{"event":"envelope-completed","retryCount":0,"generatedDateTime":"2025-05-30T18:03:50.4233752Z",'
    b'"data":{"envelopeId":"a70a5ef2"}}',
    "typeform": '{"event_id":"LtWXD3crgy","event_type":"form_response","form_response":{"token":"Ж"}}'.encode(),
    "calendly": b'{"event":"invitee.created","created_at":"2020-11-23T17:51:19.000000Z","payload":'
    b'{"uri":"https://api.calendly.com/scheduled_events/1/invitees/2"}}',
    "xero": b'{"events":[{"resourceId":"717f2bfc","eventDateUtc":"2017-06-21T01:15:39.902","eventType":"CREATE",'
    b'"eventCategory":"CONTACT","tenantId":"c2cc9b6e"}],"lastEventSequence":1,"firstEventSequence":1,"entropy":"S0m3"}',
}


def by_hand(provider: str, body: bytes, secret: str = SECRET, at: float = NOW) -> dict[str, str]:
    """The headers required by a provider's documentation."""
    stamp, moment = str(int(at)), datetime.fromtimestamp(at, UTC).isoformat().replace("+00:00", "Z")
    match provider:
        case "dropbox":  # https://www.dropbox.com/developers/reference/webhooks
            return {"x-dropbox-signature": hex_mac(secret, body)}
        case "intercom":  # https://developers.intercom.com/docs/webhooks/webhook-notifications
            return {"x-hub-signature": "sha1=" + hex_mac(secret, body, algorithm="sha1")}
        case "zendesk":  # https://developer.zendesk.com/documentation/webhooks/verifying/
            return {
                "x-zendesk-webhook-signature": base64_mac(secret, moment, body),
                "x-zendesk-webhook-signature-timestamp": moment,
            }
        case "docusign":  # https://developers.docusign.com/platform/webhooks/connect/validate
            return {"x-docusign-signature-1": base64_mac(secret, body)}
        case "typeform":  # https://www.typeform.com/developers/webhooks/secure-your-webhooks/
            return {"typeform-signature": "sha256=" + base64_mac(secret, body)}
        case "calendly":  # https://developer.calendly.com/api-docs/overview/webhooks/webhook-signatures
            return {"calendly-webhook-signature": f"t={stamp},v1=" + hex_mac(secret, f"{stamp}.", body)}
        case "xero":  # https://developer.xero.com/documentation/webhooks/configuring-your-server
            return {"x-xero-signature": base64_mac(secret, body)}
    raise AssertionError(provider)


every = pytest.mark.parametrize(
    "provider",
    [
        pytest.param("dropbox", marks=pytest.mark.judge("dropbox")),
        pytest.param("intercom", marks=pytest.mark.judge("intercom")),
        pytest.param("zendesk", marks=pytest.mark.judge("zendesk")),
        pytest.param("docusign", marks=pytest.mark.judge("docusign")),
        pytest.param("typeform", marks=pytest.mark.judge("typeform")),
        pytest.param("calendly", marks=pytest.mark.judge("calendly")),
        pytest.param("xero", marks=pytest.mark.judge("xero")),
    ],
)


@every
def test_a_manual_signature_is_accepted(provider):
    body = BODIES[provider]
    verdict = verdict_of(provider, SECRET, by_hand(provider, body), body)
    assert isinstance(verdict, Verified), verdict
    assert verdict.grade is ProofStrength.BODY


@every
def test_sign_equals_a_manual_signature(provider):
    body = BODIES[provider]
    ours = sign(provider, SECRET, body, timestamp=NOW)
    theirs = by_hand(provider, body)
    assert {name: ours[name] for name in theirs} == theirs


@every
def test_one_bit_another_secret_or_no_signature_is_refused(provider):
    body = BODIES[provider]
    refused(verdict_of(provider, SECRET, by_hand(provider, body), altered(body)), Reason.SIGNATURE_MISMATCH)
    refused(verdict_of(provider, SECRET, by_hand(provider, body, "another"), body), Reason.SIGNATURE_MISMATCH)
    refused(verdict_of(provider, SECRET, {}, body), Reason.SIGNATURE_MISSING)


@pytest.mark.parametrize("provider", ["zendesk", "calendly"])
@pytest.mark.parametrize(
    ("skew_s", "reason"), [(-301, Reason.TIMESTAMP_TOO_OLD), (301, Reason.TIMESTAMP_IN_FUTURE), (-299, None)]
)
def test_signed_timestamps_are_valid_for_five_minutes(provider, skew_s, reason):
    body = BODIES[provider]
    verdict = verdict_of(provider, SECRET, by_hand(provider, body, at=NOW + skew_s), body)
    assert getattr(verdict, "reason", None) == reason


@pytest.mark.parametrize(
    ("provider", "key", "type"),
    [
        ("intercom", "notif_1", "contact.created"),
        ("zendesk", "2022-06-20.2b24ef10", "zen:event-type:user.created"),
        ("docusign", "a70a5ef2.envelope-completed.2025-05-30T18:03:50.4233752Z", "envelope-completed"),
        ("typeform", "LtWXD3crgy", "form_response"),
        (
            "calendly",
            "https://api.calendly.com/scheduled_events/1/invitees/2.invitee.created.2020-11-23T17:51:19.000000Z",
            "invitee.created",
        ),
    ],
)
def test_events_are_named(provider, key, type):
    verdict = verdict_of(provider, SECRET, by_hand(provider, BODIES[provider]), BODIES[provider])
    assert (verdict.dedup_key, verdict.type) == (key, type)


@pytest.mark.parametrize(("provider", "statuses"), [("typeform", {404, 410}), ("intercom", {410})])
def test_statuses_that_would_switch_the_sender_off_are_known(provider, statuses):
    assert find_recipe(provider).stop_statuses == statuses


# Dropbox.


def asks(provider: str, method: str, query: str = ""):
    return verifier(provider, SECRET).verify(request({}, method=method, url=f"{URL}{query}"), NOW)


def test_dropbox_challenge_is_echoed():
    verdict = asks("dropbox", "GET", "?challenge=abc123")
    assert isinstance(verdict, Challenge), verdict
    assert (verdict.status, verdict.body, verdict.content_type) == (200, b"abc123", "text/plain; charset=utf-8")


@pytest.mark.parametrize("challenge", ["%3Cscript%3E", "a%20b", "a" * 300, "%D0%96", "a%0d%0ab"])
def test_dropbox_challenge_with_markup_is_refused(challenge):
    refused(asks("dropbox", "GET", f"?challenge={challenge}"), Reason.CHALLENGE_REFUSED, 400)


def dropbox(now: float):
    body = BODIES["dropbox"]
    return verifier("dropbox", SECRET).verify(request(by_hand("dropbox", body), body), now)


def test_equal_dropbox_notifications_are_separate_events():
    first, next_one = dropbox(NOW), dropbox(NOW + 1)
    assert first.type == "list_folder"
    assert first.dedup_key != next_one.dedup_key
    assert first.replay_material is next_one.replay_material is None


def test_mutant_with_the_body_as_its_key_the_next_change_would_be_lost(monkeypatch):
    recipe = find_recipe("dropbox")
    once = replace(recipe, id=replace(recipe.id, is_repeatable=False))
    monkeypatch.setattr("boathook.verification.source.find_recipe", lambda _name: once)
    assert dropbox(NOW).dedup_key == dropbox(NOW + 1).dedup_key


# Notion.

CREATED = '{"id":"367cba44","type":"page.created","attempt_number":1,"entity":{"id":"Ж"}}'.encode()
TOKEN = "secret_tMrlL1qK5vuQAh1b6cZGhFChZTSYJlce98V0pYn7yBl"
SIGNED = "x-notion-signature"


@pytest.mark.judge("notion")
def test_notion_signatures_of_its_package_are_accepted(judge):
    signature = judge.asks("notion", "sign", secret=TOKEN, body=CREATED)
    verdict = verdict_of("notion", TOKEN, {SIGNED: signature}, CREATED)
    assert isinstance(verdict, Verified), verdict
    assert (verdict.dedup_key, verdict.type, verdict.volatile) == ("367cba44", "page.created", ("attempt_number",))


@pytest.mark.judge("notion")
def test_notion_package_accepts_boathooks_signatures(judge):
    signature = sign("notion", TOKEN, CREATED)[SIGNED]
    assert judge.asks("notion", "verify", secret=TOKEN, body=CREATED, signature=signature) is True


@pytest.mark.judge("notion")
@pytest.mark.parametrize("change", ["body", "secret", "prefix", "missing"])
def test_notion_requests_its_package_rejects_are_rejected(judge, change):
    signature = judge.asks("notion", "sign", secret=TOKEN, body=CREATED)
    body = altered(CREATED) if change == "body" else CREATED
    secret = "another" if change == "secret" else TOKEN
    sent = {"prefix": signature.removeprefix("sha256="), "missing": None}.get(change, signature)
    assert judge.asks("notion", "verify", secret=secret, body=body, signature=sent) is False
    headers = {} if sent is None else {SIGNED: sent}
    assert isinstance(verdict_of("notion", secret, headers, body), Rejected)


def notion_handshake(*secrets: str, token: str = TOKEN, **headers: str):
    body = json.dumps({"verification_token": token}).encode()
    return verifier("notion", *secrets).verify(request(headers, body), NOW)


def test_notion_token_is_captured_once():
    told = notion_handshake()
    assert isinstance(told, Challenge), told
    assert (told.status, told.body, told.capture) == (200, b"", TOKEN)
    refused(notion_handshake(TOKEN, token="secret_of_a_stranger"), Reason.SIGNATURE_MISSING)


def test_notion_is_refused_before_its_token_is_captured():
    verdict = verifier("notion").verify(request({SIGNED: "sha256=" + hex_mac(TOKEN, CREATED)}, CREATED), NOW)
    assert isinstance(verdict, Rejected), verdict
    assert verdict.status == 401


@pytest.mark.parametrize("token", ["", "short", "with spaces in the midst of it", "a" * 300, 'quote"quote"quote"'])
def test_notion_tokens_are_such_as_notion_makes(token):
    assert not isinstance(notion_handshake(token=token), Challenge)


# Intercom.


def test_intercom_checks_that_the_endpoint_exists():
    verdict = asks("intercom", "HEAD")
    assert isinstance(verdict, Challenge), verdict
    assert (verdict.status, verdict.body) == (200, b"")
    assert isinstance(asks("intercom", "GET"), Rejected)


# Zendesk.


def zendesk(body: bytes, **headers: str):
    return verdict_of("zendesk", SECRET, by_hand("zendesk", body) | headers, body)


def test_zendesk_key_is_the_invocation_id():
    body = b'{"id":"35436","type":"incident"}'
    verdict = zendesk(body, **{"x-zendesk-webhook-invocation-id": "01GQ"})
    assert verdict.dedup_key == "01GQ"
    # The header is not signed, so what is signed is remembered against its coming back under another.
    assert verdict.replay_material is not None
    assert verdict.replay_material.endswith(body)
    assert zendesk(body).dedup_key == body_key(body, zendesk(body).type)


def test_zendesk_bodies_need_not_be_json():
    assert isinstance(zendesk(b"<ticket>1</ticket>"), Verified)
    assert isinstance(zendesk(b""), Verified)


# HubSpot.

HUBSPOT_BODY = (
    '[{"eventId":1,"subscriptionId":12345,"portalId":62515,"occurredAt":1564113600000,"subscriptionType":'
    '"contact.creation","attemptNumber":0,"objectId":123,"changeSource":"Ж"},{"eventId":1,"subscriptionId":12345,'
    '"portalId":62515,"occurredAt":1564113600001,"subscriptionType":"contact.deletion","attemptNumber":0,"objectId":123}]'
).encode()


def hubspot_headers(version: str, body: bytes = HUBSPOT_BODY, secret: str = SECRET, at: float = NOW) -> dict[str, str]:
    stamp = str(int(at * 1000))
    signature = Signature.get_signature(secret, body.decode(), version, URL, "POST", stamp)
    if version == "v3":
        return {"x-hubspot-signature-v3": signature, "x-hubspot-request-timestamp": stamp}
    return {"x-hubspot-signature": signature, "x-hubspot-signature-version": version}


def hubspot(version: str, headers, body: bytes = HUBSPOT_BODY, secret: str = SECRET):
    return verdict_of("hubspot", secret, headers, body, **({} if version == "v3" else {"scheme": version}))


def hubspot_library_accepts(version: str, headers, body: bytes = HUBSPOT_BODY, secret: str = SECRET) -> bool:
    signature = headers.get("x-hubspot-signature-v3") or headers["x-hubspot-signature"]
    stamp = headers.get("x-hubspot-request-timestamp")
    try:
        return Signature.is_valid(signature, secret, body.decode(), URL, "POST", version, stamp)
    except InvalidSignatureTimestampError:
        return False


versions = pytest.mark.parametrize("version", ["v1", "v2", "v3"])


@pytest.mark.judge("hubspot")
@versions
def test_hubspot_signatures_of_its_library_are_accepted(version):
    headers = hubspot_headers(version)
    assert hubspot_library_accepts(version, headers)
    verdict = hubspot(version, headers)
    assert isinstance(verdict, Verified), verdict
    assert (verdict.timestamp is not None) == (version == "v3")


@pytest.mark.judge("hubspot")
@versions
def test_hubspot_library_accepts_boathooks_signatures(version):
    settings = {} if version == "v3" else {"scheme": version}
    signed = signed_request("hubspot", SECRET, HUBSPOT_BODY, url=URL, timestamp=time.time(), **settings)
    assert signed.url == URL
    assert hubspot_library_accepts(version, signed.headers)
    assert not hubspot_library_accepts(version, signed.headers, secret="another")


@pytest.mark.judge("hubspot")
@versions
def test_hubspot_requests_its_library_rejects_are_rejected(version):
    body = HUBSPOT_BODY.replace(b"12345", b"12346")
    assert not hubspot_library_accepts(version, hubspot_headers(version), body)
    refused(hubspot(version, hubspot_headers(version), body), Reason.SIGNATURE_MISMATCH)
    wrong = hubspot_headers(version, secret="another")
    assert not hubspot_library_accepts(version, wrong)
    refused(hubspot(version, wrong), Reason.SIGNATURE_MISMATCH)


HUBSPOT_DECODED = "https://hooks.example.com/in/test?src=hs:app/v3&x=(a)&y=?@!$'*,;&z=%20%26%3D+%25"
HUBSPOT_SENT = (
    "https://hooks.example.com/in/test?src=hs%3aapp%2Fv3&x=%28a%29&y=%3F%40%21%24%27%2A%2C%3B&z=%20%26%3D+%25"
)


@pytest.mark.judge("hubspot")
@pytest.mark.parametrize("signed", [HUBSPOT_DECODED, HUBSPOT_SENT], ids=["decoded", "as sent"])
def test_hubspot_signs_the_decoded_url(signed):
    """By the table of its documentation; its library signs the URL that it is given.

    https://developers.hubspot.com/docs/apps/developer-platform/build-apps/authentication/request-validation
    """
    stamp = str(int(NOW * 1000))
    signature = Signature.get_signature(SECRET, HUBSPOT_BODY.decode(), "v3", signed, "POST", stamp)
    headers = {"x-hubspot-signature-v3": signature, "x-hubspot-request-timestamp": stamp}
    hubspot_source = verifier("hubspot", SECRET)
    sent = request(headers, HUBSPOT_BODY, url=HUBSPOT_SENT)
    assert isinstance(hubspot_source.verify(sent, NOW), Verified)
    for other in (HUBSPOT_SENT.replace("v3", "v4"), HUBSPOT_SENT.replace("%20", "+"), HUBSPOT_SENT.replace("%26", "&")):
        changed = request(headers, HUBSPOT_BODY, url=other)
        refused(hubspot_source.verify(changed, NOW), Reason.SIGNATURE_MISMATCH)


@pytest.mark.judge("hubspot")
def test_hubspot_old_requests_are_refused():
    old = hubspot_headers("v3", at=NOW - 301)
    assert not hubspot_library_accepts("v3", old)
    refused(hubspot("v3", old), Reason.TIMESTAMP_TOO_OLD)


@pytest.mark.judge("hubspot")
def test_hubspot_v1_the_example_of_its_documentation():
    """Source: https://legacydocs.hubspot.com/docs/faq/v1-request-validation."""
    body = (
        b'[{"eventId":1,"subscriptionId":12345,"portalId":62515,"occurredAt":1564113600000,"subscriptionType":'
        b'"contact.creation","attemptNumber":0,"objectId":123,"changeSource":"CRM","changeFlag":"NEW","appId":54321}]'
    )
    headers = {"X-HubSpot-Signature": "232db2615f3d666fe21a8ec971ac7b5402d33b9a925784df3ca654d05f4817de"}
    verdict = hubspot("v1", headers, body, "yyyyyyyy-yyyy-yyyy-yyyy-yyyyyyyyyyyy")
    assert isinstance(verdict, Verified), verdict
    refused(hubspot("v1", headers, altered(body), "yyyyyyyy-yyyy-yyyy-yyyy-yyyyyyyyyyyy"), Reason.SIGNATURE_MISMATCH)


@pytest.mark.judge("hubspot")
def test_hubspot_v2_the_example_of_its_documentation():
    """Source: https://legacydocs.hubspot.com/docs/faq/v2-request-validation."""
    headers = {"X-HubSpot-Signature": "9569219f8ba981ffa6f6f16aa0f48637d35d728c7e4d93d0d52efaa512af7900"}
    sent = request(headers, b'{"example_field":"example_value"}', url="https://www.example.com/webhook_uri")
    source = verifier("hubspot", "yyyyyyyy-yyyy-yyyy-yyyy-yyyyyyyyyyyy", scheme="v2")
    assert isinstance(source.verify(sent, NOW), Verified)
    refused(source.verify(replace(sent, url="https://www.example.com/webhook_urj"), NOW), Reason.SIGNATURE_MISMATCH)


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_hubspot_length_extension_gives_no_event(version):
    """With a plain SHA-256 over secret and body an attacker could compute the hash of a longer body (length extension)."""
    head = SECRET if version == "v1" else f"{SECRET}POST{URL}"
    bits = (len(head) + len(HUBSPOT_BODY)) * 8
    padding = b"\x80" + b"\x00" * (-(bits // 8 + 9) % 64) + bits.to_bytes(8, "big")
    forged = HUBSPOT_BODY + padding + b',{"eventId":2}]'
    headers = {"x-hubspot-signature": hashlib.sha256(head.encode() + forged).hexdigest()}
    refused(hubspot(version, headers, forged), Reason.BODY_MALFORMED, 400)


def test_hubspot_retried_items_have_the_same_keys():
    first = hubspot("v3", hubspot_headers("v3"))
    assert [(item.path, item.type) for item in first.items] == [("0", "contact.creation"), ("1", "contact.deletion")]
    assert (first.type, len({item.dedup_key for item in first.items})) == ("batch", 2)
    retry = HUBSPOT_BODY.replace(b'"attemptNumber":0', b'"attemptNumber":3')
    again = hubspot("v3", hubspot_headers("v3", retry), retry)
    assert again.dedup_key != first.dedup_key
    assert [(item.dedup_key, item.digest) for item in again.items] == [
        (item.dedup_key, item.digest) for item in first.items
    ]


def test_hubspot_needs_a_public_url():
    with pytest.raises(ConfigError, match=r"sources\.test\.public_url"):
        Verifier(SourceSpec(name="test", provider="hubspot", secrets=(SECRET,)))


# Docusign.


def test_docusign_any_signature_header_may_match():
    body = BODIES["docusign"]
    foreign_signatures = {f"X-DocuSign-Signature-{number}": base64_mac("another", body) for number in range(1, 16)}
    refused(verdict_of("docusign", SECRET, foreign_signatures, body), Reason.SIGNATURE_MISMATCH)
    for number in (1, 2, 16):
        headers = foreign_signatures | {f"X-DocuSign-Signature-{number}": base64_mac(SECRET, body)}
        assert isinstance(verdict_of("docusign", SECRET, headers, body), Verified), number


def test_docusign_may_still_send_xml():
    body = b'<?xml version="1.0"?><DocuSignEnvelopeInformation/>'
    assert isinstance(verdict_of("docusign", SECRET, by_hand("docusign", body), body), Verified)


def test_docusign_keys_include_the_recipient():
    keys = set()
    for recipient in (b"1", b"2"):
        body = BODIES["docusign"].replace(b'"envelopeId"', b'"recipientId":"' + recipient + b'","envelopeId"')
        keys.add(verdict_of("docusign", SECRET, by_hand("docusign", body), body).dedup_key)
    assert len(keys) == 2


# Calendly.


def test_calendly_reads_its_header_in_any_order():
    body, stamp = BODIES["calendly"], str(int(NOW))
    header = f"v1={hex_mac(SECRET, f'{stamp}.', body)},t={stamp}"
    assert isinstance(verdict_of("calendly", SECRET, {"Calendly-Webhook-Signature": header}, body), Verified)


# Xero.

INTENT = b'{ "events" : [], "lastEventSequence" : 0 , "firstEventSequence" : 0 , "entropy" : "S0m3r4Nd0mt3xt" }'


@pytest.mark.judge("xero")
def test_xero_intends_to_be_received_and_to_be_refused():
    """Source: https://developer.xero.com/documentation/webhooks/configuring-your-server."""
    right = base64_mac(SECRET, INTENT)
    verdict = verdict_of("xero", SECRET, {"x-xero-signature": right}, INTENT)
    assert isinstance(verdict, Challenge), verdict
    assert (verdict.status, verdict.body) == (200, b"")
    for wrong in (base64_mac("another", INTENT), base64.b64encode(b"\x00" * 32).decode(), "?"):
        verdict = verdict_of("xero", SECRET, {"x-xero-signature": wrong}, INTENT)
        refused(verdict, Reason.SIGNATURE_MISMATCH)


def test_xero_expects_an_empty_reply():
    verdict = verdict_of("xero", SECRET, by_hand("xero", BODIES["xero"]), BODIES["xero"])
    assert (verdict.reply.status, verdict.reply.body) == (200, b"")
    assert find_recipe("xero").has_empty_error_body


def test_xero_items_are_one_by_one():
    events = json.loads(BODIES["xero"])["events"]
    body = json.dumps({"events": [*events, *events, events[0] | {"eventType": "UPDATE"}], "entropy": "x"}).encode()
    verdict = verdict_of("xero", SECRET, by_hand("xero", body), body)
    assert [(item.path, item.type) for item in verdict.items] == [
        ("events.0", "CONTACT.CREATE"),
        ("events.2", "CONTACT.UPDATE"),
    ]
