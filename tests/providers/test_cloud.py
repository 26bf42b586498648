"""Clouds, identity and OpenAI, checked by the providers' packages, vectors, or requests built by hand."""

import base64
import json
import re
import time
from datetime import UTC, datetime
from typing import Any, get_args

import jwt
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from google.auth.exceptions import GoogleAuthError
from google.oauth2 import id_token
from msgspec.structs import replace
from standardwebhooks.webhooks import Webhook as StandardWebhook

from boathook.domain.errors import ConfigError
from boathook.domain.model import ProofStrength
from boathook.domain.replies import check_status
from boathook.domain.verification import Challenge, KeyRequired, Reason, Rejected, Reply, Verified
from boathook.providers import cloud, find_recipe
from boathook.testing import Keys, make_keys, sign, signed_request
from boathook.verification.verifier import Verifier
from tests.support import sampled
from tests.unit.verifier_factory import request, verifier

NOW = float(int(time.time()))
"""The present: packages and certificates have clocks of their own."""
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwMfKQ9r8GKYo="


def refusal(verdict: object) -> Reason:
    assert isinstance(verdict, Rejected), verdict
    assert verdict.status == 401
    return verdict.reason


def keys_of(verdict: Any) -> list[tuple[str, str, str]]:
    assert isinstance(verdict, Verified), verdict
    return [(item.path, item.type, item.dedup_key) for item in verdict.items]


# Okta

OKTA = json.dumps(
    {
        "eventType": "com.okta.event_hook",
        "eventId": "b5a188b9",
        "data": {
            "events": [
                {"uuid": "f790999f", "eventType": "user.session.start"},
                {"uuid": "f790999g", "eventType": "user.session.end"},
            ]
        },
    }
).encode()


@pytest.mark.judge("okta")
def test_okta_sends_its_token_and_many_events():
    # Built by hand from developer.okta.com/docs/concepts/event-hooks, "Sample Event Delivery Payload".
    okta = verifier("okta", "api-key-1")
    verdict = okta.verify(request(OKTA, {"authorization": "api-key-1"}), NOW)
    assert keys_of(verdict) == [
        ("data.events.0", "user.session.start", "item:f790999f"),
        ("data.events.1", "user.session.end", "item:f790999g"),
    ]
    assert (verdict.grade, verdict.type) == (ProofStrength.TOKEN, "batch")
    assert verdict.reply == Reply(status=200, body=b"", content_type="text/plain; charset=utf-8")
    assert "authorization" not in verdict.kept_headers
    assert refusal(okta.verify(request(OKTA, {"authorization": "api-key-2"}), NOW)) == Reason.TOKEN_MISMATCH
    assert refusal(okta.verify(request(OKTA, {}), NOW)) == Reason.TOKEN_MISSING


def test_okta_token_header_can_be_configured():
    okta = verifier("okta", "api-key-1", header="X-Api-Key")
    assert isinstance(okta.verify(request(OKTA, {"x-api-key": "api-key-1"}), NOW), Verified)
    assert refusal(okta.verify(request(OKTA, {"authorization": "api-key-1"}), NOW)) == Reason.TOKEN_MISSING
    with pytest.raises(ConfigError, match=r"sources\.test\.header"):
        verifier("okta", "api-key-1", header="X Api Key")


def test_okta_challenge_needs_no_token():
    okta = verifier("okta", "api-key-1")
    question = request(b"", {"x-okta-verification-challenge": "fV-x_9"}, method="GET")
    answer = Challenge(status=200, body=b'{"verification": "fV-x_9"}', content_type="application/json")
    assert okta.verify(question, NOW) == answer
    # Nothing but the question is answered without the token.
    assert refusal(okta.verify(request(OKTA, {}, method="GET"), NOW))
    assert refusal(okta.verify(request(OKTA, {"x-okta-verification-challenge": "fV-x_9"}), NOW))
    assert okta.methods == {"GET", "POST"}


@pytest.mark.parametrize("text", ["", "a b", "a\tb", "\x80", "x" * 513])
def test_okta_challenge_must_be_a_printable_word(text):
    question = request(b"", {"x-okta-verification-challenge": text}, method="GET")
    assert isinstance(verifier("okta", "api-key-1").verify(question, NOW), Rejected)


# Auth0


@pytest.mark.judge("auth0")
def test_auth0_streams_arrays_and_objects():
    # Built by hand from auth0.com/docs/customize/log-streams/custom-log-streams.
    auth0 = verifier("auth0", "Bearer abc")
    headers = {"authorization": "Bearer abc"}
    log = {"log_id": "90020", "data": {"log_id": "90020", "type": "s"}}
    batch = auth0.verify(request(json.dumps([log, log | {"log_id": "90021"}]).encode(), headers), NOW)
    assert keys_of(batch) == [("0", "s", "item:90020"), ("1", "s", "item:90021")]
    single = auth0.verify(request(json.dumps(log).encode(), headers), NOW)
    assert (single.dedup_key, single.type, single.items) == ("90020", "s", ())
    assert refusal(auth0.verify(request(b"[]", {"authorization": "abc"}), NOW)) == Reason.TOKEN_MISMATCH


def test_auth0_json_lines_are_one_event():
    body = b'{"log_id":"1","data":{"type":"s"}}\n{"log_id":"2","data":{"type":"f"}}'
    verdict = verifier("auth0", "abc").verify(request(body, {"authorization": "abc"}), NOW)
    assert (verdict.type, verdict.items) == ("unknown", ())
    assert verdict.dedup_key.startswith("sha256:")


# OpenAI


@pytest.mark.judge("openai")
def test_the_event_types_of_openai_are_those_of_its_package():
    from openai.types.webhooks import UnwrapWebhookEvent

    union, *_ = get_args(UnwrapWebhookEvent)
    theirs = {get_args(event.model_fields["type"].annotation)[0] for event in get_args(union)}
    ours = {f"{first}.{rest}" for first, rests in find_recipe("openai").type.rests.items() for rest in rests}
    # The package has this one on its own, outside the union.
    assert ours - theirs == {"safety_identifier.blocked"}
    assert theirs <= ours


@pytest.mark.judge("openai")
def test_openai_signatures_agree_with_its_package():
    from openai import InvalidWebhookSignatureError, OpenAI

    client = OpenAI(api_key="none").webhooks
    body = b'{"id":"evt_1","type":"response.completed","data":{"id":"resp_1"}}'
    now = int(time.time())
    ours = sign("openai", SECRET, body, timestamp=now, id="wh_1")
    client.verify_signature(body, ours, secret=SECRET)
    with pytest.raises(InvalidWebhookSignatureError):
        client.verify_signature(body + b" ", ours, secret=SECRET)
    theirs = {
        "webhook-id": "wh_1",
        "webhook-timestamp": str(now),
        "webhook-signature": StandardWebhook(SECRET).sign("wh_1", datetime.fromtimestamp(now, UTC), body.decode()),
    }
    openai = verifier("openai", SECRET)
    verdict = openai.verify(request(body, theirs), now)
    assert (verdict.dedup_key, verdict.type, verdict.replay_material) == ("wh_1", "response.completed", None)
    assert refusal(openai.verify(request(body + b" ", theirs), now)) == Reason.SIGNATURE_MISMATCH
    assert refusal(openai.verify(request(body, theirs), now + 301)) == Reason.TIMESTAMP_TOO_OLD


@pytest.mark.judge("openai")
def test_a_vector_of_openais_own_tests():
    # github.com/openai/openai-python, tests/lib/test_webhooks.py
    secret, moment = "whsec_RdvaYFYUXuIFuEbvZHwMfYFhUf7aMYjYcmM24+Aj40c=", 1_750_861_210
    body = (
        b'{"id": "evt_685c059ae3a481909bdc86819b066fb6", "object": "event", "created_at": 1750861210, '
        b'"type": "response.completed", "data": {"id": "resp_123"}}'
    )
    headers = {
        "webhook-signature": "v1,gUAg4R2hWouRZqRQG4uJypNS8YK885G838+EHb4nKBY=",
        "webhook-timestamp": str(moment),
        "webhook-id": "wh_685c059ae39c8190af8c71ed1022a24d",
    }
    assert isinstance(verifier("openai", secret).verify(request(body, headers), moment), Verified)
    ours = sign("openai", secret, body, timestamp=moment, id="wh_685c059ae39c8190af8c71ed1022a24d")
    assert ours["webhook-signature"] == headers["webhook-signature"]


# Amazon SNS

TOPIC = "arn:aws:sns:eu-central-1:123456789012:orders"
HOST = "https://sns.eu-central-1.amazonaws.com/"
CERTIFICATE = HOST + "SimpleNotificationService-0123456789abcdef0123456789abcdef.pem"
MOMENT = datetime.fromtimestamp(NOW, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
NOTIFICATION = {
    "Type": "Notification",
    "MessageId": "22b80b92",
    "TopicArn": TOPIC,
    "Subject": "Жуковский ✓",
    "Message": '{"a":1}\nline',
    "Timestamp": MOMENT,
    "SigningCertURL": CERTIFICATE,
    "UnsubscribeURL": HOST + "?Action=Unsubscribe&SubscriptionArn=x",
}
CONFIRMATION = {
    "Type": "SubscriptionConfirmation",
    "MessageId": "165545c9",
    "Token": "2336412f37fb",
    "TopicArn": TOPIC,
    "Message": "You have chosen to subscribe to the topic.",
    "SubscribeURL": f"{HOST}?Action=ConfirmSubscription&TopicArn={TOPIC}&Token=2336412f37fb",
    "Timestamp": MOMENT,
    "SigningCertURL": CERTIFICATE,
}


@pytest.fixture(scope="module")
def sns_keys() -> Keys:
    return make_keys("sns", topic_arn=TOPIC)


def sns(sns_keys: Keys, **changes: Any) -> Verifier:
    """A source with the certificate in its key ring."""
    judged = verifier("sns", secrets=(), **{"topic_arn": TOPIC} | changes)
    judged.ring.put(CERTIFICATE, sns_keys.public.encode(), NOW)
    return judged


def sign_by_hand(keys: Keys, message: dict[str, Any], version: str = "2", **changes: Any) -> bytes:
    """Sign as docs.aws.amazon.com/sns/latest/dg/sns-verify-signature-of-message.html says, by cryptography alone."""
    message = message | {"SignatureVersion": version} | changes
    names = ["Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type"]
    if message["Type"] == "Notification":
        names = ["Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type"]
    text = "".join(f"{name}\n{message[name]}\n" for name in names if name in message)
    private = serialization.load_pem_private_key(keys.private.encode(), None)
    assert isinstance(private, rsa.RSAPrivateKey)
    digest = hashes.SHA1() if version == "1" else hashes.SHA256()
    signature = private.sign(text.encode(), padding.PKCS1v15(), digest)
    return json.dumps(message | {"Signature": base64.b64encode(signature).decode()}).encode()


@pytest.mark.judge("sns")
@pytest.mark.parametrize("version", ["1", "2"])
@pytest.mark.parametrize("subject", sampled([{}, {"Subject": None}], keep=1))
def test_sns_signatures_are_accepted_by_amazons_package_and_boathook(judge, sns_keys, version, subject):
    message = {name: value for name, value in (NOTIFICATION | subject).items() if value is not None}
    body = sign_by_hand(sns_keys, message, version)
    assert judge.asks("sns", "verify", body=body, certificate=sns_keys.public) is True
    verdict = sns(sns_keys).verify(request(body, {"x-amz-sns-topic-arn": TOPIC}), NOW)
    assert isinstance(verdict, Verified)
    assert (verdict.dedup_key, verdict.type, verdict.grade) == ("22b80b92", "Notification", ProofStrength.BODY)
    assert verdict.timestamp == datetime.fromtimestamp(NOW, UTC)


@pytest.mark.judge("sns")
@pytest.mark.parametrize("version", ["1", "2"])
def test_amazons_package_accepts_what_we_sign(judge, sns_keys, version):
    blank = json.dumps(NOTIFICATION | {"SignatureVersion": version}).encode()
    ours = signed_request("sns", sns_keys.private, blank, timestamp=NOW, topic_arn=TOPIC)
    assert judge.asks("sns", "verify", body=ours.body, certificate=sns_keys.public) is True
    altered = ours.body.replace(b'"22b80b92"', b'"22b80b93"')
    assert judge.asks("sns", "verify", body=altered, certificate=sns_keys.public) is False
    assert judge.refusal == "The message signature is invalid."
    assert refusal(sns(sns_keys).verify(request(altered, {}), NOW)) == Reason.SIGNATURE_MISMATCH
    assert isinstance(sns(sns_keys).verify(request(ours.body, {}), NOW), Verified)


@pytest.mark.parametrize("name", ["Message", "MessageId", "Subject", "Timestamp", "Type"])
def test_every_signed_part_of_a_message_counts(sns_keys, name):
    document = json.loads(sign_by_hand(sns_keys, NOTIFICATION))
    other = {"Timestamp": MOMENT.replace("Z", "0Z"), "Type": "UnsubscribeConfirmation"}.get(name, "other")
    altered = json.dumps(document | {name: other}).encode()
    # A confirmation also needs fields that a notification has not.
    reason = Reason.SIGNATURE_MISSING if name == "Type" else Reason.SIGNATURE_MISMATCH
    assert refusal(sns(sns_keys).verify(request(altered, {}), NOW)) == reason


@pytest.mark.parametrize(
    "changes",
    [
        {"SignatureVersion": "3"},
        {"SignatureVersion": 2.5},
        {"Signature": "no base64!"},
        {"Signature": None},
        {"Type": "Other"},
        {"Type": ["Notification"]},
        {"Message": ["unhashable"]},
    ],
)
def test_odd_messages_are_refused_and_raise_nothing(sns_keys, changes):
    altered = json.dumps(json.loads(sign_by_hand(sns_keys, NOTIFICATION)) | changes).encode()
    assert refusal(sns(sns_keys).verify(request(altered, {}), NOW))


def test_sns_raw_message_delivery_is_unsigned_and_refused(sns_keys):
    raw = {"x-amz-sns-message-type": "Notification", "x-amz-sns-rawdelivery": "true"}
    for body in (b'{"a":1}', b"[]", b"plain", json.dumps({"Timestamp": MOMENT}).encode()):
        assert refusal(sns(sns_keys).verify(request(body, raw), NOW))


def test_a_foreign_sns_topic_is_refused(sns_keys):
    foreign = sign_by_hand(sns_keys, NOTIFICATION, TopicArn=TOPIC.replace("123456789012", "666666666666"))
    assert "topic_arn" in sns(sns_keys).verify(request(foreign, {}), NOW).detail
    several = sns(sns_keys, topic_arn=f"arn:aws:sns:eu-central-1:1:a, {TOPIC}")
    assert isinstance(several.verify(request(sign_by_hand(sns_keys, NOTIFICATION), {}), NOW), Verified)
    with pytest.raises(ConfigError, match=r"sources\.test\.topic_arn"):
        verifier("sns", secrets=())


def test_mutant_without_the_topic_any_customer_of_amazon_could_send(sns_keys, monkeypatch):
    foreign_topic = TOPIC.replace("123456789012", "666666666666")
    foreign = sign_by_hand(sns_keys, NOTIFICATION, TopicArn=foreign_topic)

    def careless(reader: Any, secret: str) -> Any:
        return cloud.state_sns(replace(reader, settings={"topic_arn": f"{TOPIC},{foreign_topic}"}), secret)

    mutant = replace(cloud.SNS, proof=replace(cloud.SNS.proof, read_signed_parts=careless))
    monkeypatch.setattr("boathook.verification.source.find_recipe", lambda _name: mutant)
    assert isinstance(sns(sns_keys).verify(request(foreign, {}), NOW), Verified)


STRANGE_ADDRESSES = [
    "http://sns.eu-central-1.amazonaws.com/SimpleNotificationService-0123456789abcdef.pem",
    "https://sns.eu-central-1.amazonaws.com.evil.example/SimpleNotificationService-0123456789abcdef.pem",
    "https://evil.example/SimpleNotificationService-0123456789abcdef.pem",
    "https://sns.eu-central-1.amazonaws.com:8443/SimpleNotificationService-0123456789abcdef.pem",
    "https://sns.eu-central-1.amazonaws.com@evil.example/SimpleNotificationService-0123456789abcdef.pem",
    "https://sns.eu-central-1.amazonaws.com/a/SimpleNotificationService-0123456789abcdef.pem",
    "https://sns.eu-central-1.amazonaws.com/?Action=GetTopicAttributes&x=.pem",
    # Objects in a bucket that any AWS customer may name "sns".
    "https://sns.s3-eu-west-1.amazonaws.com/SimpleNotificationService-0123456789abcdef.pem",
    "https://sns.s3.amazonaws.com/SimpleNotificationService-0123456789abcdef.pem",
]


@pytest.mark.parametrize("address", STRANGE_ADDRESSES)
def test_certificates_are_fetched_from_amazons_own_addresses_only(sns_keys, address):
    forged = sign_by_hand(sns_keys, NOTIFICATION, SigningCertURL=address)
    assert refusal(sns(sns_keys).verify(request(forged, {}), NOW))


@pytest.mark.parametrize("region", ["us-east-1", "ap-southeast-2", "us-gov-west-1", "us-iso-east-1", "mx-central-1"])
@pytest.mark.parametrize("end", ["", ".cn"])
def test_an_unknown_sns_certificate_is_requested(sns_keys, region, end):
    address = CERTIFICATE.replace("eu-central-1", region).replace(".com/", f".com{end}/")
    body = sign_by_hand(sns_keys, NOTIFICATION, SigningCertURL=address)
    assert sns(sns_keys).verify(request(body, {}), NOW) == KeyRequired(url=address)


def test_mutant_a_looser_pattern_fetches_the_key_from_a_foreign_bucket(sns_keys, monkeypatch):
    """The pattern that Amazon's own package has."""
    loose = re.compile(r"https://sns\.[a-zA-Z0-9\-]{3,}\.amazonaws\.com(\.cn)?/.*\.pem")
    key = replace(cloud.SNS.proof.key, pattern=loose)
    mutant = replace(cloud.SNS, proof=replace(cloud.SNS.proof, key=key))
    monkeypatch.setattr("boathook.verification.source.find_recipe", lambda _name: mutant)
    bucket = "https://sns.s3-eu-west-1.amazonaws.com/SimpleNotificationService-0123456789abcdef.pem"
    forged = sign_by_hand(sns_keys, NOTIFICATION, SigningCertURL=bucket)
    assert sns(sns_keys).verify(request(forged, {}), NOW) == KeyRequired(url=bucket)


@pytest.mark.judge("sns")
def test_a_subscription_is_confirmed_by_a_visit(judge, sns_keys):
    body = sign_by_hand(sns_keys, CONFIRMATION)
    assert judge.asks("sns", "verify", body=body, certificate=sns_keys.public) is True
    verdict = sns(sns_keys).verify(request(body, {}), NOW)
    assert isinstance(verdict, Challenge)
    assert (verdict.status, verdict.visit) == (200, CONFIRMATION["SubscribeURL"])
    altered = json.dumps(json.loads(body) | {"Token": "2336412f37fc"}).encode()
    assert refusal(sns(sns_keys).verify(request(altered, {}), NOW)) == Reason.SIGNATURE_MISMATCH


@pytest.mark.parametrize(
    "address",
    [
        "http://169.254.169.254/latest/meta-data/",
        f"https://evil.example/?Action=ConfirmSubscription&TopicArn={TOPIC}&Token=2336",
        f"https://sns.s3-eu-west-1.amazonaws.com/?Action=ConfirmSubscription&TopicArn={TOPIC}&Token=2336",
        HOST + "?Action=Unsubscribe&SubscriptionArn=x",
        f"{HOST}?Action=ConfirmSubscription&TopicArn={TOPIC}&Token=2336&AuthenticateOnUnsubscribe=true",
    ],
)
def test_only_amazons_confirmation_urls_are_requested(sns_keys, address):
    verdict = sns(sns_keys).verify(request(sign_by_hand(sns_keys, CONFIRMATION, SubscribeURL=address), {}), NOW)
    assert isinstance(verdict, Rejected)
    assert (verdict.status, verdict.reason) == (400, Reason.CHALLENGE_REFUSED)


def test_the_end_of_a_subscription_is_an_event_and_not_undone(sns_keys):
    body = sign_by_hand(sns_keys, CONFIRMATION, Type="UnsubscribeConfirmation")
    verdict = sns(sns_keys).verify(request(body, {}), NOW)
    assert isinstance(verdict, Verified)
    assert verdict.type == "UnsubscribeConfirmation"


def test_a_message_of_long_ago_is_refused(sns_keys):
    judged, body = sns(sns_keys), sign_by_hand(sns_keys, NOTIFICATION)
    judged.ring.put(CERTIFICATE, sns_keys.public.encode(), NOW + 86_401)
    assert refusal(judged.verify(request(body, {}), NOW + 86_401)) == Reason.TIMESTAMP_TOO_OLD


# Google Pub/Sub

AUDIENCE = "https://hooks.example.com/in/pubsub"
EMAIL = "push@project.iam.gserviceaccount.com"
CERTS = "https://www.googleapis.com/oauth2/v3/certs"
PUSH = b'{"message":{"messageId":"2070443601311540","data":"e30="},"subscription":"projects/a/subscriptions/b"}'


@pytest.fixture(scope="module")
def google_keys() -> Keys:
    return make_keys("pubsub", audience=AUDIENCE, email=EMAIL)


def pubsub(google_keys: Keys, now: float, **changes: Any) -> Verifier:
    """A source with Google's key set in its key ring."""
    judged = verifier("pubsub", secrets=(), **{"audience": AUDIENCE, "email": EMAIL} | changes)
    judged.ring.put(CERTS, google_keys.public.encode(), now)
    return judged


def google_token(google_keys: Keys, now: float, **changes: Any) -> dict[str, str]:
    claims = {
        "iss": "https://accounts.google.com",
        "aud": AUDIENCE,
        "email": EMAIL,
        "email_verified": True,
        "sub": "1",
        "iat": int(now),
        "exp": int(now) + 3_600,
    }
    kid = json.loads(google_keys.public)["keys"][0]["kid"]
    token = jwt.encode(claims | changes, google_keys.private, algorithm="RS256", headers={"kid": kid})
    return {"authorization": f"Bearer {token}"}


class GooglesAnswer:
    """What Google's certificate address would answer its own package: certificates by key id."""

    status = 200

    def __init__(self, google_keys: Keys) -> None:
        (key,) = json.loads(google_keys.public)["keys"]
        pem = jwt.PyJWK(key).key.public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        self.data = json.dumps({key["kid"]: pem.decode()}).encode()

    def __call__(self, *_args: Any, **_settings: Any) -> "GooglesAnswer":
        return self


@pytest.mark.judge("pubsub")
def test_googles_own_package_accepts_our_tokens_and_we_pyjwts(google_keys):
    now = time.time()
    ours = signed_request("pubsub", google_keys.private, PUSH, timestamp=now, audience=AUDIENCE, email=EMAIL)
    token = ours.headers["authorization"].removeprefix("Bearer ")
    claims = id_token.verify_oauth2_token(token, GooglesAnswer(google_keys), audience=AUDIENCE)
    assert (claims["email"], claims["email_verified"]) == (EMAIL, True)
    with pytest.raises((ValueError, GoogleAuthError)):
        id_token.verify_oauth2_token(token, GooglesAnswer(google_keys), audience="another")
    verdict = pubsub(google_keys, now).verify(request(PUSH, google_token(google_keys, now)), now)
    assert (verdict.dedup_key, verdict.grade, verdict.volatile) == (
        "2070443601311540",
        ProofStrength.TOKEN,
        ("deliveryAttempt",),
    )
    assert "authorization" not in verdict.kept_headers


def test_pubsub_key_set_is_requested_from_google(google_keys):
    judged = verifier("pubsub", secrets=(), audience=AUDIENCE, email=EMAIL)
    assert judged.verify(request(PUSH, google_token(google_keys, NOW)), NOW) == KeyRequired(url=CERTS)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"email": "push@stranger.iam.gserviceaccount.com"}, Reason.SIGNATURE_MISMATCH),
        ({"email": None}, Reason.SIGNATURE_MISMATCH),
        ({"email_verified": "true"}, Reason.SIGNATURE_MISMATCH),
        ({"aud": "https://elsewhere.example.com"}, Reason.SIGNATURE_MISMATCH),
        ({"iss": "https://evil.example"}, Reason.SIGNATURE_MISMATCH),
        ({"exp": int(NOW) - 301}, Reason.TIMESTAMP_TOO_OLD),
    ],
)
def test_other_peoples_google_tokens_are_refused(google_keys, changes, reason):
    judged = pubsub(google_keys, NOW)
    assert isinstance(judged.verify(request(PUSH, google_token(google_keys, NOW)), NOW), Verified)
    assert refusal(judged.verify(request(PUSH, google_token(google_keys, NOW, **changes)), NOW)) == reason


def test_a_token_under_another_key_or_algorithm_is_refused(google_keys):
    judged = pubsub(google_keys, NOW)
    other = make_keys("pubsub", audience=AUDIENCE, email=EMAIL)
    assert refusal(judged.verify(request(PUSH, google_token(other, NOW)), NOW)) == Reason.SIGNATURE_MISMATCH
    for algorithm, key in (("none", None), ("HS256", "a secret of at least 32 bytes, as PyJWT wants them")):
        token = jwt.encode({"aud": AUDIENCE}, key, algorithm=algorithm)
        verdict = judged.verify(request(PUSH, {"authorization": f"Bearer {token}"}), NOW)
        assert refusal(verdict) == Reason.UNKNOWN_SCHEME


def test_mutant_without_the_account_any_google_customer_could_push(google_keys, monkeypatch):
    foreign = google_token(google_keys, NOW, email="push@stranger.iam.gserviceaccount.com")
    mutant = replace(cloud.PUBSUB, proof=replace(cloud.PUBSUB.proof, check_claims=lambda _claims, _facts: None))
    monkeypatch.setattr("boathook.verification.source.find_recipe", lambda _name: mutant)
    assert isinstance(pubsub(google_keys, NOW).verify(request(PUSH, foreign), NOW), Verified)


@pytest.mark.parametrize("missing", ["audience", "email"])
def test_pubsub_needs_audience_and_account(missing):
    settings = {"audience": AUDIENCE, "email": EMAIL}
    del settings[missing]
    with pytest.raises(ConfigError, match=rf"sources\.test\.{missing}"):
        verifier("pubsub", secrets=(), **settings)


@pytest.mark.parametrize(
    ("attributes", "type"),
    [({"eventType": "OBJECT_FINALIZE"}, "OBJECT_FINALIZE"), ({"ce-type": "a.b.c"}, "a.b.c"), ({}, "unknown")],
)
def test_pubsubs_types_are_attributes(google_keys, attributes, type):
    body = json.dumps({"message": {"messageId": "1", "attributes": attributes}, "deliveryAttempt": 2}).encode()
    verdict = pubsub(google_keys, NOW).verify(request(body, google_token(google_keys, NOW)), NOW)
    assert verdict.type == type


def test_unwrapped_messages_of_pubsub_are_named_by_header(google_keys):
    headers = google_token(google_keys, NOW) | {"x-goog-pubsub-message-id": "m7"}
    verdict = pubsub(google_keys, NOW).verify(request(b"not JSON", headers), NOW)
    assert verdict.dedup_key == "m7"
    # Their attributes are headers, and what was published may look like a wrapped message.
    sent = request(PUSH, headers | {"eventtype": "OBJECT_FINALIZE"})
    verdict = pubsub(google_keys, NOW).verify(sent, NOW)
    assert (verdict.dedup_key, verdict.type) == ("m7", "OBJECT_FINALIZE")


def test_equal_pubsub_messages_without_an_id_are_both_events(google_keys):
    """Without metadata, a second message equals a repeated one."""
    judged, headers = pubsub(google_keys, NOW), google_token(google_keys, NOW)
    first, second = (judged.verify(request(b"tick", headers), moment) for moment in (NOW, NOW + 1))
    assert first.dedup_key != second.dedup_key
    assert (first.replay_material, second.replay_material) == (None, None)
    wrapped = [judged.verify(request(PUSH, headers), moment) for moment in (NOW, NOW + 1)]
    assert wrapped[0].dedup_key == wrapped[1].dedup_key


# Microsoft Graph


def graph_body(*states: str | None, **changes: Any) -> bytes:
    notices = [
        {"subscriptionId": "s1", "changeType": "updated", "resource": "me/drive/root", "clientState": read_signed_parts}
        | changes
        for read_signed_parts in states
    ]
    return json.dumps({"value": notices}).encode()


@pytest.mark.judge("microsoft-graph")
def test_graph_puts_its_token_into_every_notice():
    # Built by hand from learn.microsoft.com/graph/change-notifications-delivery-webhooks.
    graph = verifier("graph", "state-1")
    verdict = graph.verify(request(graph_body("state-1", "state-1", id="n1"), {}), NOW)
    assert keys_of(verdict) == [("value.0", "updated", "item:n1")]
    assert (verdict.grade, verdict.type) == (ProofStrength.TOKEN, "updated")
    assert verdict.reply == Reply(status=202, body=b"", content_type="text/plain; charset=utf-8")
    for states in (("state-1", "state-2"), ("state-2",), ("state-1", None), ()):
        assert refusal(graph.verify(request(graph_body(*states), {}), NOW))


def test_graph_lifecycle_notifications_are_typed_by_their_event():
    body = graph_body("state-1", lifecycleEvent="reauthorizationRequired")
    verdict = verifier("graph", "state-1").verify(request(body, {}), NOW)
    assert [item.type for item in verdict.items] == ["reauthorizationRequired"]


def test_two_equal_graph_notifications_without_an_id_are_both_events():
    graph = verifier("graph", "state-1")
    first, second = (graph.verify(request(graph_body("state-1"), {}), moment) for moment in (NOW, NOW + 1))
    assert keys_of(first) != keys_of(second)
    assert first.dedup_key != second.dedup_key


def test_graph_checks_that_the_endpoint_exists():
    graph = verifier("graph", "state-1")
    text = "Validation: Testing client application reachability for subscription Request-Id: 522a8e7e"
    question = request(b"", {}, query="validationToken=" + text.replace(" ", "%20"))
    answer = Challenge(status=200, body=text.encode(), content_type="text/plain; charset=utf-8")
    assert graph.verify(question, NOW) == answer
    for odd in ("%0d%0aSet-Cookie:a", "%D0%96", "x" * 4_097):
        assert isinstance(graph.verify(request(b"", {}, query="validationToken=" + odd), NOW), Rejected)
    # Whatever brings notices is judged by its proof: no sender can make them be answered and lost by adding a challenge.
    both = request(graph_body("state-1"), {}, query="validationToken=abc")
    assert isinstance(graph.verify(both, NOW), Verified)
    assert isinstance(graph.verify(replace(both, body=graph_body("state-2")), NOW), Rejected)


# All of them


@pytest.mark.parametrize("name", ["okta", "auth0", "openai", "sns", "pubsub", "microsoft-graph"])
def test_samples_bring_ids_and_types(name, google_keys, sns_keys):
    recipe = find_recipe(name)
    fetched = {"sns": sns_keys, "pubsub": google_keys}.get(name)
    secret = fetched.private if fetched else recipe.sample.secret
    sent = signed_request(name, secret, timestamp=NOW)
    judged = verifier(name, secrets=() if fetched else (secret,), **recipe.sample.settings)
    judged.ring.put(CERTS, google_keys.public.encode(), NOW)
    judged.ring.put(HOST + "SimpleNotificationService-0123456789abcdef.pem", sns_keys.public.encode(), NOW)
    verdict = judged.verify(request(sent.body, dict(sent.headers)), NOW)
    assert isinstance(verdict, Verified)
    assert verdict.type != "unknown"
    named = [item.dedup_key for item in verdict.items] or [verdict.dedup_key]
    assert all("boathook-sample" in key for key in named)


def test_names_and_aliases():
    for alias, name, recipe in (
        ("amazon-sns", "sns", cloud.SNS),
        ("google-pubsub", "pubsub", cloud.PUBSUB),
        ("graph", "microsoft-graph", cloud.MICROSOFT_GRAPH),
    ):
        assert find_recipe(alias) is find_recipe(name)
        assert find_recipe(name).proof == recipe.proof


@pytest.mark.parametrize(("name", "final"), [("okta", {400, 404, 410, 429}), ("sns", {400, 403, 404, 410})])
def test_statuses_that_stop_a_sender_are_refused(name, final):
    stops = find_recipe(name).stop_statuses
    assert final <= stops
    for status in final:
        with pytest.raises(ValueError, match="stop sending"):
            check_status(status, stops)
    assert (429 in stops) == (name == "okta")


def test_the_certificate_of_our_testing_keys_is_one(sns_keys):
    assert x509.load_pem_x509_certificate(sns_keys.public.encode()).public_key().key_size >= 2_048
