"""Shops, mail and telephony, checked by the providers' packages or requests built by hand."""

import base64
import hashlib
import hmac
import json
from urllib.parse import parse_qsl, urlencode

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from msgspec.structs import replace
from sendgrid.helpers.eventwebhook import EventWebhook
from twilio.request_validator import HMAC_SHA256, RequestValidator

from boathook import providers
from boathook.domain.errors import ConfigError
from boathook.domain.model import ProofStrength
from boathook.domain.verification import Challenge, Rejected, Reply, Verified
from boathook.providers import commerce, find_recipe
from boathook.providers.recipe import Recipe
from boathook.providers.request_reader import Header, RequestReader
from boathook.providers.schemes import SignedPart
from boathook.testing import make_keys, sign, signed_request
from tests.providers.source_factory import body_key
from tests.unit.verifier_factory import NOW, URL, request, verifier

SECRET = "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"
UNICODE = '{"id":7,"name":"Жуковский ✓"}'.encode()
BODIES = [b'{"id":7,"total":"10.00"}', b'{ "id" : 7,\n "total":"10.00" }\n', UNICODE, b"<order><id>7</id></order>"]


def base64_mac(body: bytes, secret: str = SECRET) -> str:
    return base64.b64encode(hmac.new(secret.encode(), body, "sha256").digest()).decode()


def flipped(body: bytes) -> bytes:
    return body[:5] + bytes([body[5] ^ 1]) + body[6:]


def use_mutant(monkeypatch: pytest.MonkeyPatch, recipe: Recipe) -> None:
    """Make the registry return a recipe without its safeguard."""
    monkeypatch.setitem(providers.BY_NAME, recipe.name, recipe)


def refusal(verdict: object) -> str:
    assert isinstance(verdict, Rejected), verdict
    assert verdict.status == 401
    return verdict.reason


# Shopify


def shopify_headers(body: bytes, **changes: str) -> dict[str, str]:
    return {
        "x-shopify-hmac-sha256": base64_mac(body),
        "x-shopify-topic": "orders/create",
        "x-shopify-webhook-id": "b54557e4",
        "x-shopify-event-id": "98880550",
        "x-shopify-shop-domain": "a.myshopify.com",
        "x-shopify-api-version": "2026-10",
    } | changes


@pytest.mark.judge("shopify")
@pytest.mark.parametrize("body", BODIES)
def test_shopifys_own_package_and_we_agree_about_each_request(judge, body):
    shopify = verifier("shopify", SECRET)
    ours = sign("shopify", SECRET, body, id="b54557e4", type="orders/create")
    headers = shopify_headers(body) | ours
    for sent, secret in ((body, SECRET), (flipped(body), SECRET), (body, "another")):
        found = judge.asks("shopify", "verify", secret=secret, body=sent, headers=headers)
        verdict = verifier("shopify", secret).verify(request(sent, headers), NOW)
        assert found["valid"] is isinstance(verdict, Verified)
    verdict = shopify.verify(request(body, headers), NOW)
    found = judge.asks("shopify", "verify", secret=SECRET, body=body, headers=headers)
    assert found["webhookId"] == verdict.dedup_key == "b54557e4"
    assert verdict.type == "orders/create"
    assert verdict.kept_headers["x-shopify-shop-domain"] == "a.myshopify.com"
    assert "x-shopify-hmac-sha256" not in verdict.kept_headers


def test_shopify_events_use_other_headers():
    body = b'{"topic":"Product","action":"update","handle":"prices"}'
    headers = {"shopify-hmac-sha256": base64_mac(body), "shopify-webhook-id": "w1"}
    verdict = verifier("shopify", SECRET).verify(request(body, headers), NOW)
    assert (verdict.type, verdict.dedup_key) == ("Product.update", "w1")
    assert refusal(verifier("shopify", SECRET).verify(request(flipped(body), headers), NOW)) == "signature_mismatch"


@pytest.mark.parametrize(
    ("provider", "topics", "make"),
    [
        (
            "shopify",
            ("orders/create", "orders/paid"),
            lambda body, topic, key: shopify_headers(body, **{"x-shopify-topic": topic, "x-shopify-webhook-id": key}),
        ),
        (
            "woocommerce",
            ("order.created", "order.updated"),
            lambda body, topic, key: {
                "x-wc-webhook-signature": base64_mac(body),
                "x-wc-webhook-topic": topic,
                "x-wc-webhook-delivery-id": key,
            },
        ),
    ],
)
def test_one_body_under_two_topics_is_two_events(monkeypatch, provider, topics, make):
    source, body = verifier(provider, SECRET), BODIES[0]
    first, second, replayed = (
        source.verify(request(body, make(body, topic, id)), NOW)
        for topic, id in ((topics[0], "a"), (topics[1], "b"), (topics[0], "c"))
    )
    assert len({first.dedup_key, second.dedup_key, replayed.dedup_key}) == 3
    assert first.replay_material == replayed.replay_material != second.replay_material
    # Mutant: were the type no part of it, the second topic would be taken for a replay of the first and be lost.
    recipe = find_recipe(provider)
    use_mutant(monkeypatch, replace(recipe, type=replace(recipe.type, is_part_of_replay_key=False)))
    careless = verifier(provider, SECRET)
    blind = [careless.verify(request(body, make(body, topic, "d")), NOW).replay_material for topic in topics]
    assert blind[0] == blind[1]


# WooCommerce


def woocommerce_headers(body: bytes, **changes: str) -> dict[str, str]:
    return {
        "x-wc-webhook-signature": base64_mac(body),
        "x-wc-webhook-topic": "order.updated",
        "x-wc-webhook-delivery-id": "4c1d1f5d6f0c",
        "x-wc-webhook-source": "https://shop.example.com/",
    } | changes


@pytest.mark.judge("woocommerce")
def test_woocommerce_signs_as_its_source_does():
    body = BODIES[0]
    woocommerce = verifier("woocommerce", SECRET)
    verdict = woocommerce.verify(request(body, woocommerce_headers(body)), NOW)
    assert (verdict.type, verdict.dedup_key) == ("order.updated", "4c1d1f5d6f0c.7")
    assert verdict.kept_headers["x-wc-webhook-source"] == "https://shop.example.com/"
    assert refusal(woocommerce.verify(request(flipped(body), woocommerce_headers(body)), NOW)) == "signature_mismatch"
    ours = sign("woocommerce", SECRET, body)
    assert ours["x-wc-webhook-signature"] == base64_mac(body)


def test_woocommerce_keys_include_the_order_id():
    woocommerce = verifier("woocommerce", SECRET)
    bodies = (b'{"id":1}', b'{"id":2}', b'{"action":"woocommerce_add_to_cart","arg":3}')
    keys = [woocommerce.verify(request(body, woocommerce_headers(body)), NOW).dedup_key for body in bodies]
    assert keys == ["4c1d1f5d6f0c.1", "4c1d1f5d6f0c.2", "4c1d1f5d6f0c.3"]


def test_woocommerces_ping_is_answered_and_stores_nothing():
    ping = request(b"webhook_id=12", {"content-type": "application/x-www-form-urlencoded"})
    verdict = verifier("woocommerce", SECRET).verify(ping, NOW)
    assert isinstance(verdict, Challenge)
    assert (verdict.status, verdict.body) == (200, b"")
    body = b'{"webhook_id":12}'
    assert refusal(verifier("woocommerce", SECRET).verify(request(body, {}), NOW)) == "signature_missing"


# Twilio

TOKEN = "12345678901234567890123456789012"
FORMS = [
    {"MessageSid": "SM1", "MessageStatus": "delivered", "From": "+15550001000"},
    {"MessageSid": "SM1", "SmsStatus": "received", "Body": "Жуковский ✓ & = +", "Empty": ""},
    {"CallSid": "CA1", "SequenceNumber": "2", "CallStatus": "completed"},
]
FORM_TYPE = {"content-type": "application/x-www-form-urlencoded"}


@pytest.mark.judge("twilio")
@pytest.mark.parametrize("fields", FORMS)
@pytest.mark.parametrize(
    ("settings", "algorithm"), [({}, None), ({"scheme": "shared-key"}, HMAC_SHA256)], ids=["token", "shared-key"]
)
def test_twilio_and_we_accept_each_others_forms(fields, settings, algorithm):
    judge, body = RequestValidator(TOKEN), urlencode(fields).encode()
    theirs = {"x-twilio-signature": judge.compute_signature(URL, fields, algorithm)} | FORM_TYPE
    twilio = verifier("twilio", TOKEN, **settings)
    assert isinstance(twilio.verify(request(body, theirs), NOW), Verified)
    ours = sign("twilio", TOKEN, body, url=URL, content_type=FORM_TYPE["content-type"], **settings)
    assert judge.validate(URL, fields, ours["x-twilio-signature"], algorithm)
    for sent, url, secret in (
        (flipped(body), URL, TOKEN),
        (body + b"&More=1", URL, TOKEN),
        (body, URL + "?a=1", TOKEN),
        (body, URL, "0" * 32),
    ):
        fields_sent = dict(parse_qsl(sent.decode(), keep_blank_values=True))
        assert not RequestValidator(secret).validate(url, fields_sent, ours["x-twilio-signature"], algorithm)
        verdict = verifier("twilio", secret, **settings).verify(request(sent, theirs, url=url), NOW)
        assert refusal(verdict) == "signature_mismatch"


@pytest.mark.judge("twilio")
def test_twilio_repeated_values_are_signed_once():
    fields = [("MediaUrl", "b"), ("MediaUrl", "a"), ("MediaUrl", "b"), ("MessageSid", "MM1")]

    class Several(dict):
        def getlist(self, name):
            return [value for key, value in fields if key == name]

    signature = RequestValidator(TOKEN).compute_signature(URL, Several(fields))
    sent = request(urlencode(fields).encode(), {"x-twilio-signature": signature} | FORM_TYPE)
    assert isinstance(verifier("twilio", TOKEN).verify(sent, NOW), Verified)


@pytest.mark.judge("twilio")
@pytest.mark.parametrize("port", [":443", ":8443"])
def test_twilio_may_sign_the_address_with_its_port_or_without(port):
    fields = FORMS[0]
    plain, ported = URL, URL.replace("example.com", "example.com" + port)
    theirs = RequestValidator(TOKEN)
    for url, signed in ((plain, ported), (ported, plain), (ported, ported)):
        header = {"x-twilio-signature": theirs.compute_signature(signed, fields)} | FORM_TYPE
        sent = request(urlencode(fields).encode(), header, url=url)
        agreed = theirs.validate(url, fields, header["x-twilio-signature"])
        assert isinstance(verifier("twilio", TOKEN).verify(sent, NOW), Verified) is agreed


def twilio_get(query: str, signed: str, *, body: bytes = b"", method: str = "GET"):
    signature = RequestValidator(TOKEN).compute_signature(f"{URL}?{signed}", {})
    sent = request(body, {"x-twilio-signature": signature}, url=f"{URL}?{query}", query=query)
    return verifier("twilio", TOKEN).verify(replace(sent, method=method), NOW)


@pytest.mark.judge("twilio")
def test_twilio_by_get_signs_the_url_alone():
    query = "ToCountry=US&MessageSid=SM1&Body=hello+there&SmsStatus=received&From=%2B15550001000"
    verdict = twilio_get(query, query)
    assert (verdict.type, verdict.dedup_key, verdict.query) == ("received", "SM1.received", query.encode())
    for sent in (query.replace("hello", "hullo"), query.replace("+", "%20"), "a=1&" + query):
        assert refusal(twilio_get(sent, query)) == "signature_mismatch"


@pytest.mark.judge("twilio")
@pytest.mark.parametrize("body", [b"MessageSid=SM2", b"[1]"])
def test_a_twilio_request_by_get_with_a_body_is_not_covered_by_its_url(body):
    assert isinstance(twilio_get("MessageSid=SM1", "MessageSid=SM1", body=body), Rejected)


@pytest.mark.judge("twilio")
@pytest.mark.parametrize(
    ("sent", "signed"),
    [
        ("City=Forli%27&Caller=sip%3Aa%40b", "City=Forli'&Caller=sip:a@b"),
        ("City=Forli%27&Caller=sip%3Aa%40b", "City=Forli%27&Caller=sip%3Aa%40b"),
        ("City=Forli%27&Caller=sip%3Aa%40b", "City=Forli'&Caller=sip%3Aa%40b"),
        ("City=Forli'", "City=Forli%27"),
        ("City=Forli'", "City=Forli'"),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_twilio_signs_a_quote_escaped_or_not(sent, signed, method):
    """twilio/twilio-node #1059, #621 and #1183, twilio/twilio-ruby #528."""
    fields = "" if method == "GET" else "MessageSid=SM1"
    signature = RequestValidator(TOKEN).compute_signature(f"{URL}?{signed}", dict(parse_qsl(fields)))
    genuine = request(fields.encode(), {"x-twilio-signature": signature} | FORM_TYPE, url=f"{URL}?{sent}", query=sent)
    twilio, genuine = verifier("twilio", TOKEN), replace(genuine, method=method)
    assert isinstance(twilio.verify(genuine, NOW), Verified)
    changed = replace(genuine, url=f"{URL}?{sent}".replace("Forli", "Forly"))
    assert refusal(twilio.verify(changed, NOW)) == "signature_mismatch"


@pytest.mark.judge("twilio")
def test_a_copy_of_a_twilio_request_with_other_escapes_is_the_same_event():
    first, copy = (twilio_get(query, "City=Forli'") for query in ("City=Forli%27", "City=Forli'"))
    assert first.replay_material == copy.replay_material is not None


def twilio_json(body: bytes, judge: RequestValidator, **changes: object):
    query = "x=1&bodySHA256=" + hashlib.sha256(body).hexdigest()
    url = f"{URL}?{query}"
    header = {"x-twilio-signature": judge.compute_signature(url, {})}
    assert judge.validate(url, body.decode(), header["x-twilio-signature"])
    return request(body, header, **({"url": url, "query": query} | changes))


@pytest.mark.judge("twilio")
def test_twilios_json_is_covered_by_its_hash_in_the_address():
    judge, twilio = RequestValidator(TOKEN), verifier("twilio", TOKEN)
    body = (
        '[{"id":"EZ1","type":"com.twilio.messaging.message.sent","data":{"to":"Ж"}},{"id":"EZ2","type":"t"}]'.encode()
    )
    sent = twilio_json(body, judge)
    verdict = twilio.verify(sent, NOW)
    assert [(item.path, item.type, item.dedup_key.endswith("EZ1")) for item in verdict.items] == [
        ("0", "com.twilio.messaging.message.sent", True),
        ("1", "t", False),
    ]
    assert not judge.validate(sent.url, flipped(body).decode(), sent.headers["x-twilio-signature"])
    assert isinstance(twilio.verify(replace(sent, body=flipped(body)), NOW), Rejected)


@pytest.mark.parametrize(
    "body",
    [b"", b"&&&", b"[1]", b"{}", b"&".join([b"a=1"] * 2_000)],
    ids=["nothing", "no fields", "array", "object", "too many fields"],
)
@pytest.mark.parametrize("query", ["", "bodySHA256=" + "0" * 64, "bodySHA256=é", "bodySHA256=1&bodySHA256=2"])
def test_twilio_uncovered_bodies_are_refused(monkeypatch, body, query):
    url = f"{URL}?{query}" if query else URL
    header = {"x-twilio-signature": RequestValidator(TOKEN).compute_signature(url, {})}
    sent = request(body, header, url=url, query=query)
    assert isinstance(verifier("twilio", TOKEN).verify(sent, NOW), Rejected)
    # Mutant: with only the address and the fields stated, any such body would pass under a captured signature.
    careless = replace(
        commerce.TWILIO.proof,
        read_signed_parts=lambda reader, _secret: (
            SignedPart(Header("x-twilio-signature"), reader.request.url.encode()),
        ),
    )
    use_mutant(monkeypatch, replace(commerce.TWILIO, proof=careless))
    assert isinstance(verifier("twilio", TOKEN).verify(sent, NOW), Verified)


@pytest.mark.parametrize(
    ("fields", "key", "type"),
    [
        (FORMS[0], "SM1.delivered", "delivered"),
        (FORMS[1], "SM1.received", "received"),
        (FORMS[2], "CA1.2.completed", "completed"),
        ({"RecordingSid": "RE1", "RecordingStatus": "completed", "CallSid": "CA1"}, "RE1.completed", "completed"),
        ({"EventType": "onMessageAdded", "ConversationSid": "CH1"}, None, "onMessageAdded"),
        ({"CallSid": "CA1", "CallStatus": "in-progress", "Digits": "1"}, None, "in-progress"),
    ],
)
def test_twilios_events_are_named_by_signed_fields(fields, key, type):
    body = urlencode(fields).encode()
    verdict = verifier("twilio", TOKEN).verify(request(body, sign("twilio", TOKEN, body, url=URL)), NOW)
    assert verdict.type == type
    assert verdict.dedup_key == (key or body_key(body, type))
    assert verdict.reply == Reply(status=200, body=b"<Response/>", content_type="text/xml")


def test_twilio_needs_a_public_url():
    with pytest.raises(ConfigError, match=r"sources\.test\.public_url"):
        verifier("twilio", TOKEN, public_url="")


# SendGrid

BATCH = [
    {"event": "delivered", "sg_event_id": "ZGVsaXZlcmVk", "email": "a@example.com", "timestamp": 1},
    {"event": "open", "sg_event_id": "b3Blbg", "email": "a@example.com", "timestamp": 2},
    {"event": "processed", "email": "a@example.com", "timestamp": 3},
]


@pytest.fixture(scope="module")
def sendgrid_key():
    private = ec.generate_private_key(ec.SECP256R1())
    der = private.public_key().public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return private, base64.b64encode(der).decode()


def sendgrid_request(private, body: bytes, stamp: int):
    signature = private.sign(str(stamp).encode() + body, ec.ECDSA(hashes.SHA256()))
    return request(
        body,
        {
            "x-twilio-email-event-webhook-signature": base64.b64encode(signature).decode(),
            "x-twilio-email-event-webhook-timestamp": str(stamp),
        },
    )


@pytest.mark.judge("sendgrid")
def test_sendgrids_own_package_and_we_agree_about_each_request(sendgrid_key):
    private, public = sendgrid_key
    body = json.dumps(BATCH).encode() + b"\r\n"
    sent = sendgrid_request(private, body, int(NOW))
    another = make_keys("sendgrid").public
    for changed, key in (
        (sent, public),
        (replace(sent, body=flipped(body)), public),
        (replace(sent, headers={**sent.headers, "x-twilio-email-event-webhook-timestamp": str(int(NOW) + 1)}), public),
        (sent, another),
    ):
        agreed = EventWebhook(key).verify_signature(
            changed.body.decode(),
            changed.headers["x-twilio-email-event-webhook-signature"],
            changed.headers["x-twilio-email-event-webhook-timestamp"],
        )
        verdict = verifier("sendgrid", key).verify(changed, NOW)
        assert isinstance(verdict, Verified) is agreed
    assert isinstance(verifier("sendgrid", public).verify(sent, NOW), Verified)


@pytest.mark.judge("sendgrid")
def test_sendgrids_own_package_accepts_what_we_sign():
    keys, body = make_keys("sendgrid"), json.dumps(BATCH).encode()
    ours = sign("sendgrid", keys.private, body, timestamp=NOW)
    stamp = ours["x-twilio-email-event-webhook-timestamp"]
    signature = ours["x-twilio-email-event-webhook-signature"]
    assert EventWebhook(keys.public).verify_signature(body.decode(), signature, stamp)
    assert not EventWebhook(keys.public).verify_signature(flipped(body).decode(), signature, stamp)


def test_sendgrid_batches_are_deduplicated_by_item(sendgrid_key):
    private, public = sendgrid_key
    sendgrid = verifier("sendgrid", public)
    first = sendgrid.verify(sendgrid_request(private, json.dumps(BATCH).encode(), int(NOW)), NOW)
    again = sendgrid.verify(sendgrid_request(private, json.dumps(BATCH[:0:-1]).encode(), int(NOW)), NOW)
    assert [item.type for item in first.items] == ["delivered", "open", "processed"]
    assert [item.path for item in first.items] == ["0", "1", "2"]
    assert first.type == "batch"
    assert [item.dedup_key for item in again.items] == [item.dedup_key for item in reversed(first.items[1:])]
    assert len({item.dedup_key for item in first.items}) == 3


def test_sendgrids_window_spans_its_retries_and_no_more(sendgrid_key):
    private, public = sendgrid_key
    sent = sendgrid_request(private, b"[]", int(NOW))
    assert isinstance(verifier("sendgrid", public).verify(sent, NOW + 86_400), Verified)
    assert refusal(verifier("sendgrid", public).verify(sent, NOW + 90_001)) == "timestamp_too_old"
    assert refusal(verifier("sendgrid", public, tolerance_s=300).verify(sent, NOW + 301)) == "timestamp_too_old"


# Mailgun

MAILGUN_KEY = "key-0123456789abcdef"


def mailgun_body(
    token: str = "a" * 50,
    *,
    event: str = "delivered",
    mail: str = "m1@mg.example.com",
    key: str = MAILGUN_KEY,
    **more: str,
) -> bytes:
    stamp = str(int(NOW))
    signature = hmac.new(key.encode(), (stamp + token).encode(), "sha256").hexdigest()
    return json.dumps(
        {
            "signature": {"token": token, "timestamp": stamp, "signature": signature} | more,
            "event-data": {
                "event": event,
                "id": "CPgfbmQMTCKtHW6uIWtuVe",
                "timestamp": 1521472262.908181,
                "message": {"headers": {"message-id": mail}},
                "severity": "permanent",
            },
        }
    ).encode()


@pytest.mark.judge("mailgun")
def test_mailgun_signature_covers_timestamp_and_token():
    mailgun = verifier("mailgun", MAILGUN_KEY)
    verdict = mailgun.verify(request(mailgun_body(), {}), NOW)
    assert (verdict.type, verdict.dedup_key, verdict.grade) == (
        "delivered",
        "CPgfbmQMTCKtHW6uIWtuVe.m1@mg.example.com",
        ProofStrength.METADATA,
    )
    assert verdict.timestamp.timestamp() == NOW
    other_token = mailgun_body().replace(b"aaa", b"bbb", 1)
    assert refusal(mailgun.verify(request(other_token, {}), NOW)) == "signature_mismatch"
    assert refusal(mailgun.verify(request(mailgun_body(key="key-other"), {}), NOW)) == "signature_mismatch"
    assert refusal(mailgun.verify(request(mailgun_body(), {}), NOW + 43_201)) == "timestamp_too_old"
    assert refusal(mailgun.verify(request(b'{"event-data":{}}', {}), NOW)) == "timestamp_missing"
    assert isinstance(mailgun.verify(request(b"token=1", {}), NOW), Rejected)


def test_mailgun_replay_key_is_its_token():
    mailgun = verifier("mailgun", MAILGUN_KEY)
    genuine, forged, other = (
        mailgun.verify(request(body, {}), NOW)
        for body in (mailgun_body(), mailgun_body(event="failed"), mailgun_body("c" * 50))
    )
    assert genuine.type != forged.type
    assert genuine.replay_material == forged.replay_material != other.replay_material
    assert genuine.replay_material is not None


def test_mailgun_keys_include_the_message_id():
    mailgun = verifier("mailgun", MAILGUN_KEY)
    bodies = (mailgun_body(), mailgun_body("c" * 50), mailgun_body("d" * 50, mail="m2@mg.example.com"))
    first, again, another = (mailgun.verify(request(body, {}), NOW).dedup_key for body in bodies)
    assert first == again != another


@pytest.mark.judge("mailgun")
def test_mailguns_subaccounts_are_proven_by_the_parents_key():
    parent = hmac.new(b"key-parent", (str(int(NOW)) + "a" * 50).encode(), "sha256").hexdigest()
    body = mailgun_body(**{"parent-signature": parent})
    assert isinstance(verifier("mailgun", "key-parent", scheme="parent").verify(request(body, {}), NOW), Verified)
    assert isinstance(verifier("mailgun", MAILGUN_KEY).verify(request(body, {}), NOW), Verified)
    assert refusal(verifier("mailgun", "key-parent").verify(request(body, {}), NOW)) == "signature_mismatch"


def test_mailgun_sign_equals_a_manual_signature():
    made = signed_request("mailgun", MAILGUN_KEY, timestamp=NOW)
    signature = json.loads(made.body)["signature"]
    signed = (signature["timestamp"] + signature["token"]).encode()
    assert signature["signature"] == hmac.new(MAILGUN_KEY.encode(), signed, "sha256").hexdigest()


# Postmark

BASIC = {"authorization": "Basic " + base64.b64encode(b"postmark:geheim").decode()}


@pytest.mark.judge("postmark")
def test_postmark_is_verified_by_basic_auth():
    body = find_recipe("postmark").sample.body
    postmark = verifier("postmark", "geheim")
    verdict = postmark.verify(request(body, BASIC), NOW)
    assert (verdict.type, verdict.grade) == ("Delivery", ProofStrength.TOKEN)
    assert refusal(verifier("postmark", "other").verify(request(body, BASIC), NOW)) == "token_mismatch"
    assert refusal(postmark.verify(request(body, {}), NOW)) == "token_missing"


@pytest.mark.parametrize(
    ("settings", "headers", "query"),
    [
        (
            {"username": "bob", "password": "geheim", "secrets": ()},
            {"authorization": "Basic " + base64.b64encode(b"bob:geheim").decode()},
            "",
        ),
        ({"header": "X-Token"}, {"x-token": "geheim"}, ""),
        ({"header": "Authorization", "prefix": "Bearer "}, {"authorization": "Bearer geheim"}, ""),
        ({"query": "key"}, {}, "key=geheim"),
    ],
)
def test_postmark_token_may_be_in_a_header_or_the_query(settings, headers, query):
    body = find_recipe("postmark").sample.body
    source = verifier("postmark", "geheim", **settings)
    assert isinstance(source.verify(request(body, headers, query=query), NOW), Verified)
    assert refusal(source.verify(request(body, {"x-token": "other"}), NOW)) in {"token_missing", "token_mismatch"}


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({"RecordType": "Bounce", "ID": 4323372036854775807, "MessageID": "m"}, "Bounce.4323372036854775807"),
        (
            {"RecordType": "Delivery", "MessageID": "m", "Recipient": "a@b.c", "DeliveredAt": "t"},
            "Delivery.m.a@b.c.t",
        ),
        ({"RecordType": "Open", "MessageID": "m", "Recipient": "a@b.c", "ReceivedAt": "t"}, "Open.m.a@b.c.t"),
        (
            {"RecordType": "Click", "MessageID": "m", "Recipient": "a@b.c", "ReceivedAt": "t", "OriginalLink": "l"},
            "Click.m.a@b.c.t.l",
        ),
        (
            {"RecordType": "SubscriptionChange", "MessageID": "m", "Recipient": "a@b.c", "ChangedAt": "t"},
            "SubscriptionChange.m.a@b.c.t",
        ),
        ({"MessageStream": "inbound", "MessageID": "m", "Date": "d", "From": "a@b.c"}, "inbound.m.d.a@b.c"),
    ],
)
def test_postmark_keys_depend_on_the_record_type(fields, key):
    verdict = verifier("postmark", "geheim").verify(request(json.dumps(fields).encode(), BASIC), NOW)
    assert verdict.dedup_key == key
    assert verdict.type == fields.get("RecordType", "inbound")


def test_postmark_trace_id_is_the_key_if_present():
    sample = find_recipe("postmark").sample.body
    postmark = verifier("postmark", "geheim")
    bodies = (sample, sample.replace(b"Delivery", b"Open"))
    keys = [
        postmark.verify(request(body, BASIC | {"x-pm-webhook-trace-id": trace}), NOW).dedup_key
        for body, trace in zip(bodies, ("t1", "t2"), strict=True)
    ]
    assert keys == ["t1", "t2"]


# What they do with our answers


@pytest.mark.parametrize(
    ("provider", "statuses"),
    [
        ("mailgun", {406}),
        ("postmark", {400, 403, 404, 405, 406, 410, 413, 415, 422}),
        ("resend", {410}),
    ],
)
def test_statuses_that_stop_a_sender_are_known(provider, statuses):
    assert find_recipe(provider).stop_statuses == statuses


def test_part_readers_never_raise():
    for recipe in commerce.RECIPES:
        read_signed_parts = getattr(recipe.proof, "read_signed_parts", None)
        if read_signed_parts is None:
            continue
        for body in (b"", b"null", b"[]", b'{"signature":[]}', b"\xff=\xfe", b'{"signature":{"token":"\\ud800"}}'):
            stated = read_signed_parts(RequestReader(request(body, {}, query="bodySHA256=%ff")), "")
            assert isinstance(stated, str | tuple)
