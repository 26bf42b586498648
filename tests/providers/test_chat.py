"""Chat providers, checked against their own libraries, their documentation's vectors, and by hand."""

import hmac
import json
import re
from urllib.parse import quote, urlencode

import discord_interactions
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from msgspec.structs import replace
from slack_sdk.signature import Clock, SignatureVerifier

from boathook.domain.errors import ConfigError
from boathook.domain.model import ProofStrength
from boathook.domain.verification import Challenge, Reason, Rejected, Verified
from boathook.providers import find_recipe
from boathook.providers.chat import NO_COLON, NOT_JSON
from boathook.providers.recipe import PRINTABLE, Recipe, SignText
from boathook.testing import make_keys, sign, signed_request
from tests.providers.request_factory import NOW, URL, altered, base64_mac, hex_mac, request, verdict_of, verifier
from tests.providers.source_factory import body_key

SECRET = "a signing secret"
STAMP = str(int(NOW))
TRICKY = '{"type":"x","text":"Жуковский \\u2713 ✓","spaces" :  [ 1.0 ] }'.encode()


def refused(verdict, reason, status=401):
    assert isinstance(verdict, Rejected), verdict
    assert (verdict.reason, verdict.status) == (reason, status)


def loosened(monkeypatch, recipe: Recipe, allowed: re.Pattern[str] = PRINTABLE) -> None:
    """Take away the limits of a recipe's challenge."""
    shakes = tuple(
        replace(shake, answer=replace(shake.answer, allowed=allowed)) if isinstance(shake.answer, SignText) else shake
        for shake in recipe.handshakes
    )
    loose = replace(recipe, handshakes=shakes)
    monkeypatch.setattr("boathook.verification.source.find_recipe", lambda _name: loose)


# Slack.


class FixedClock(Clock):
    """Slack's clock, standing still."""

    def now(self) -> float:
        return NOW


def slack_headers(body: bytes, secret: str = SECRET, stamp: str = STAMP) -> dict[str, str]:
    signature = SignatureVerifier(secret).generate_signature(timestamp=stamp, body=body)
    assert signature is not None
    return {"X-Slack-Signature": signature, "X-Slack-Request-Timestamp": stamp}


@pytest.mark.judge("slack")
@pytest.mark.parametrize("body", [TRICKY, b"command=%2Fdo&trigger_id=1.2.3&text=%D0%96+x"])
def test_slack_signatures_of_its_sdk_are_accepted(body):
    verdict = verdict_of("slack", SECRET, slack_headers(body), body)
    assert isinstance(verdict, Verified), verdict
    assert verdict.grade is ProofStrength.BODY
    assert verdict.timestamp.timestamp() == NOW


@pytest.mark.judge("slack")
@pytest.mark.parametrize("body", [TRICKY, b"command=%2Fdo&trigger_id=1.2.3&text=%D0%96+x"])
def test_slack_sdk_accepts_boathooks_signatures(body):
    headers = sign("slack", SECRET, body, timestamp=NOW)
    theirs = SignatureVerifier(SECRET, FixedClock())
    assert theirs.is_valid_request(body, headers)
    assert not theirs.is_valid_request(altered(b'{"type":"plain"}'), headers)
    assert not SignatureVerifier("another", FixedClock()).is_valid_request(body, headers)


@pytest.mark.judge("slack")
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"stamp": str(int(NOW) - 301)}, Reason.TIMESTAMP_TOO_OLD),
        ({"stamp": str(int(NOW) + 301)}, Reason.TIMESTAMP_IN_FUTURE),
        ({"secret": "another"}, Reason.SIGNATURE_MISMATCH),
    ],
)
def test_slack_requests_its_sdk_rejects_are_rejected(change, reason):
    body = b'{"type":"plain"}'
    headers = slack_headers(body, **change)
    assert not SignatureVerifier(SECRET, FixedClock()).is_valid_request(body, headers)
    refused(verdict_of("slack", SECRET, headers, body), reason)


@pytest.mark.judge("slack")
def test_slack_the_example_of_its_documentation():
    """Source: https://docs.slack.dev/authentication/verifying-requests-from-slack."""
    body = (
        b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V"
        b"&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text="
        b"&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN"
        b"&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c"
    )
    headers = {
        "X-Slack-Signature": "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503",
        "X-Slack-Request-Timestamp": "1531420618",
    }
    source = verifier("slack", "8f742231b10e8888abcd99yyyzzz85a5")
    verdict = source.verify(request(headers, body), 1_531_420_618.0)
    assert isinstance(verdict, Verified), verdict
    assert verdict.type == "/webhook-collect"
    assert verdict.dedup_key == "398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c"
    refused(source.verify(request(headers, altered(body)), 1_531_420_618.0), Reason.SIGNATURE_MISMATCH)


def test_slack_names_events_commands_and_clicks():
    click = urlencode({"payload": json.dumps({"type": "block_actions", "trigger_id": "1.2.click", "actions": []})})
    closed = urlencode({"payload": json.dumps({"type": "view_closed", "view": {"id": "V1"}})})
    for body, key, type in (
        (b'{"type":"event_callback","event_id":"Ev1","event":{"type":"message"}}', "Ev1", "message"),
        (b'{"type":"app_rate_limited","minute_rate_limited":1518467820}', None, "app_rate_limited"),
        (b"command=%2Fdeploy&trigger_id=1.2.command", "1.2.command", "/deploy"),
        (click.encode(), "1.2.click", "block_actions"),
        (closed.encode(), None, "view_closed"),
    ):
        verdict = verdict_of("slack", SECRET, slack_headers(body), body)
        assert isinstance(verdict, Verified), verdict
        assert verdict.type == type
        assert verdict.dedup_key == (key or body_key(body, verdict.type))


def test_slack_replies_are_not_visible_in_a_channel():
    body = b"command=%2Fdeploy&trigger_id=1.2.3"
    reply = verdict_of("slack", SECRET, slack_headers(body), body).reply
    assert (reply.status, reply.body) == (200, b"")
    event = b'{"type":"event_callback","event_id":"Ev1","event":{"type":"message"}}'
    assert verdict_of("slack", SECRET, slack_headers(event), event).reply is None


def test_slack_challenge_is_echoed_only_if_signed():
    body = b'{"type":"url_verification","token":"t","challenge":"3eZbrw1aBm2rZgRNFdxV2595E9CY3gmdALWMmHkvFXO7tYXAYM8P"}'
    verdict = verdict_of("slack", SECRET, slack_headers(body), body)
    assert isinstance(verdict, Challenge), verdict
    assert (verdict.status, verdict.body) == (200, b"3eZbrw1aBm2rZgRNFdxV2595E9CY3gmdALWMmHkvFXO7tYXAYM8P")
    refused(verdict_of("slack", SECRET, {}, body), Reason.SIGNATURE_MISSING)


def test_slack_certificate_check_is_answered_unsigned():
    verdict = verdict_of("slack", SECRET, {}, b"ssl_check=1&token=abc")
    assert isinstance(verdict, Challenge), verdict
    assert (verdict.status, verdict.body) == (200, b"")
    refused(verdict_of("slack", SECRET, {}, b"ssl_check=0&command=%2Fdeploy"), Reason.SIGNATURE_MISSING)


# Discord.

DISCORD_KEY = Ed25519PrivateKey.generate()
DISCORD_PUBLIC = DISCORD_KEY.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw).hex()
COMMAND = b'{"application_id":"1","id":"771825006014889984","token":"t","type":2,"version":1,"data":{"name":"blep"}}'
DISCORD_EVENT = (
    b'{"version":1,"application_id":"1234560123453231555","type":1,"event":{"type":"ENTITLEMENT_CREATE",'
    b'"timestamp":"2024-10-18T18:41:21.109604","data":{"id":"1"}}}'
)


def discord_headers(body: bytes, stamp: str = STAMP, key: Ed25519PrivateKey = DISCORD_KEY) -> dict[str, str]:
    return {"X-Signature-Ed25519": key.sign(stamp.encode() + body).hex(), "X-Signature-Timestamp": stamp}


@pytest.mark.judge("discord")
@pytest.mark.parametrize("body", [COMMAND, DISCORD_EVENT, TRICKY])
def test_discord_library_accepts_boathooks_signatures(body):
    keys = make_keys("discord")
    headers = sign("discord", keys.private, body, timestamp=NOW)
    signature, stamp = headers["x-signature-ed25519"], headers["x-signature-timestamp"]
    assert discord_interactions.verify_key(body, signature, stamp, keys.public)
    assert not discord_interactions.verify_key(altered(body), signature, stamp, keys.public)
    assert not discord_interactions.verify_key(body, signature, stamp, DISCORD_PUBLIC)


@pytest.mark.judge("discord")
@pytest.mark.parametrize("body", [COMMAND, DISCORD_EVENT, TRICKY])
def test_discord_verdicts_agree_with_its_library(body):
    headers = discord_headers(body)
    signature = headers["X-Signature-Ed25519"]
    assert discord_interactions.verify_key(body, signature, STAMP, DISCORD_PUBLIC)
    assert isinstance(verdict_of("discord", DISCORD_PUBLIC, headers, body), Verified)
    for wrong, public, sent in (
        (headers, DISCORD_PUBLIC, altered(body)),
        (headers | {"X-Signature-Timestamp": str(int(NOW) - 1)}, DISCORD_PUBLIC, body),
        (discord_headers(body, key=Ed25519PrivateKey.generate()), DISCORD_PUBLIC, body),
        (headers | {"X-Signature-Ed25519": "00" * 64}, DISCORD_PUBLIC, body),
    ):
        stamp = wrong["X-Signature-Timestamp"]
        assert not discord_interactions.verify_key(sent, wrong["X-Signature-Ed25519"], stamp, public)
        refused(verdict_of("discord", public, wrong, sent), Reason.SIGNATURE_MISMATCH)


@pytest.mark.judge("discord")
def test_discord_the_vector_of_another_registry():
    """Source: github.com/webhook-co/webhook, packages/webhooks-spec, bespoke/discord.test.ts."""
    public = "79b5562e8fe654f94078b112e8a98ba7901f853ae695bed7e0e3910bad049664"
    headers = {
        "X-Signature-Ed25519": "50db4086e890c41c26b539f0dd95af18b4d8b03d2f4203964d238b4946943ee2"
        "cc6fd52c47ddb355d267086a8c4e299d1054d3d655dba6e0f237a779f634800d",
        "X-Signature-Timestamp": "1610000000",
    }
    source = verifier("discord", public)
    assert isinstance(source.verify(request(headers, b'{"type":1}'), 1_610_000_000.0), Verified)
    refused(source.verify(request(headers, b'{"type":2}'), 1_610_000_000.0), Reason.SIGNATURE_MISMATCH)


@pytest.mark.parametrize(
    ("body", "status", "answer"),
    [
        (b'{"application_id":"1","id":"1","token":"t","type":1,"version":1}', 200, b'{"type":1}'),
        (b'{"version":1,"application_id":"1","type":0}', 204, b""),
    ],
)
def test_discord_pings_are_answered_only_if_signed(body, status, answer):
    verdict = verdict_of("discord", DISCORD_PUBLIC, discord_headers(body), body)
    assert isinstance(verdict, Challenge), verdict
    assert (verdict.status, verdict.body, verdict.content_type) == (status, answer, "application/json")
    bad = discord_headers(body, key=Ed25519PrivateKey.generate())
    refused(verdict_of("discord", DISCORD_PUBLIC, bad, body), Reason.SIGNATURE_MISMATCH)
    refused(verdict_of("discord", DISCORD_PUBLIC, {}, body), Reason.TIMESTAMP_MISSING)


def test_discord_event_is_distinguished_from_a_ping():
    verdict = verdict_of("discord", DISCORD_PUBLIC, discord_headers(DISCORD_EVENT), DISCORD_EVENT)
    assert isinstance(verdict, Verified), verdict
    assert verdict.type == "ENTITLEMENT_CREATE"
    assert verdict.dedup_key == body_key(DISCORD_EVENT, verdict.type)
    assert (verdict.reply.status, verdict.reply.body) == (204, b"")


def test_discord_names_interactions():
    verdict = verdict_of("discord", DISCORD_PUBLIC, discord_headers(COMMAND), COMMAND)
    assert (verdict.dedup_key, verdict.type) == ("771825006014889984", "2.blep")


def test_discord_takes_late_retries_but_no_later_ones():
    assert isinstance(
        verdict_of("discord", DISCORD_PUBLIC, discord_headers(COMMAND, str(int(NOW) - 600)), COMMAND), Verified
    )
    old = discord_headers(COMMAND, str(int(NOW) - 901))
    refused(verdict_of("discord", DISCORD_PUBLIC, old, COMMAND), Reason.TIMESTAMP_TOO_OLD)


# Telegram.

UPDATE = b'{"update_id":10000,"message":{"message_id":1,"date":1441645532,"text":"/start"}}'


@pytest.mark.judge("telegram")
def test_telegram_takes_its_token_and_no_other():
    """Source: https://core.telegram.org/bots/api#setwebhook."""
    verdict = verdict_of("telegram", SECRET, {"X-Telegram-Bot-Api-Secret-Token": SECRET}, UPDATE)
    assert isinstance(verdict, Verified), verdict
    assert (verdict.grade, verdict.dedup_key, verdict.type) == (ProofStrength.TOKEN, "10000", "message")
    assert not any("secret" in name for name in verdict.kept_headers)
    for headers, reason in (
        ({"X-Telegram-Bot-Api-Secret-Token": SECRET + "x"}, Reason.TOKEN_MISMATCH),
        ({"X-Telegram-Bot-Api-Secret-Token": ""}, Reason.TOKEN_MISMATCH),
        ({}, Reason.TOKEN_MISSING),
    ):
        refused(verdict_of("telegram", SECRET, headers, UPDATE), reason)


@pytest.mark.judge("telegram")
def test_telegram_sign_sets_its_secret_header():
    assert sign("telegram", SECRET, UPDATE)["x-telegram-bot-api-secret-token"] == SECRET


@pytest.mark.parametrize(
    ("body", "type"),
    [
        (b'{"update_id":1,"callback_query":{"id":"1"}}', "callback_query"),
        (b'{"a_kind_of_tomorrow":{},"update_id":1}', "a_kind_of_tomorrow"),
        (b'{"update_id":1}', "unknown"),
    ],
)
def test_telegram_updates_are_named_by_their_key(body, type):
    assert verdict_of("telegram", SECRET, {"X-Telegram-Bot-Api-Secret-Token": SECRET}, body).type == type


# VK.

NEWS = b'{"group_id":1,"type":"message_new","event_id":"e1","v":"5.199","object":{},"secret":"a signing secret"}'


@pytest.mark.judge("vk")
def test_vk_takes_its_secret_in_the_body_and_answers_ok():
    """Source: https://dev.vk.com/api/callback/getting-started."""
    verdict = verdict_of("vk", SECRET, {}, NEWS, confirmation="1a2b3c4d")
    assert isinstance(verdict, Verified), verdict
    assert (verdict.grade, verdict.dedup_key, verdict.type) == (ProofStrength.TOKEN, "e1", "message_new")
    assert (verdict.reply.status, verdict.reply.body) == (200, b"ok")
    for body, reason in (
        (NEWS.replace(b"signing", b"sighing"), Reason.TOKEN_MISMATCH),
        (b'{"type":"message_new","event_id":"e1"}', Reason.TOKEN_MISSING),
        (b'{"type":"message_new","event_id":"e1","secret":{"a":1}}', Reason.TOKEN_MISSING),
        (b"not JSON", Reason.TOKEN_MISSING),
    ):
        refused(verdict_of("vk", SECRET, {}, body, confirmation="1a2b3c4d"), reason)


@pytest.mark.judge("vk")
def test_vk_sign_puts_the_secret_into_the_body():
    signed = signed_request("vk", SECRET, NEWS.replace(b"a signing secret", b"-"), confirmation="1a2b3c4d")
    assert json.loads(signed.body)["secret"] == SECRET


@pytest.mark.parametrize("secret", [b"", b',"secret":"a signing secret"'])
def test_vk_confirmation_is_answered_without_the_secret(secret):
    body = b'{"type":"confirmation","group_id":1' + secret + b"}"
    verdict = verdict_of("vk", SECRET, {}, body, confirmation="1a2b3c4d")
    assert isinstance(verdict, Challenge), verdict
    assert (verdict.status, verdict.body) == (200, b"1a2b3c4d")


def test_vk_needs_the_confirmation():
    with pytest.raises(ConfigError, match=r"sources\.test\.confirmation"):
        verifier("vk", SECRET)


# Meta.

CHANGE = '{"field":"permissions","value":{"verb":"granted","target_ids":["1"]}}'
MESSAGING = '{"sender":{"id":"1"},"recipient":{"id":"2"},"timestamp":1763700000123,"message":{"mid":"m1","text":"hi"}}'


def meta(body: bytes, secret: str = SECRET):
    headers = {"X-Hub-Signature-256": "sha256=" + hex_mac(secret, body)}
    return verdict_of("meta", SECRET, headers, body, verify_token="meatyhamhock")


def entry(*changes: str, id: str = "7", time: int = 1, key: str = "changes") -> str:
    return f'{{"id":"{id}","time":{time},"{key}":[{",".join(changes)}]}}'


def meta_body(*entries: str, object: str = "user") -> bytes:
    return f'{{"object":"{object}","entry":[{",".join(entries)}]}}'.encode()


@pytest.mark.judge("meta")
def test_meta_manual_signature_is_accepted_with_escapes():
    """Source: https://developers.facebook.com/docs/graph-api/webhooks/getting-started."""
    body = meta_body(entry(CHANGE.replace("granted", "\\u00e4\\u00f6 \\/")))
    assert isinstance(meta(body), Verified)
    refused(meta(body, "another"), Reason.SIGNATURE_MISMATCH)
    headers = {"X-Hub-Signature-256": "sha256=" + hex_mac(SECRET, body)}
    refused(verdict_of("meta", SECRET, headers, altered(body), verify_token="x"), Reason.SIGNATURE_MISMATCH)
    unescaped = json.dumps(json.loads(body), ensure_ascii=False).encode()
    refused(verdict_of("meta", SECRET, headers, unescaped, verify_token="x"), Reason.SIGNATURE_MISMATCH)


@pytest.mark.judge("meta")
def test_meta_sign_equals_a_manual_signature():
    body = meta_body(entry(CHANGE))
    ours = sign("whatsapp", SECRET, body, verify_token="x")["x-hub-signature-256"]
    assert ours == "sha256=" + hmac.new(SECRET.encode(), body, "sha256").hexdigest()


def test_meta_batches_are_split_into_items():
    body = meta_body(entry(CHANGE, CHANGE.replace("1", "2")), entry(MESSAGING, key="messaging"), object="page")
    verdict = meta(body)
    assert [(item.path, item.type) for item in verdict.items] == [
        ("entry.0.changes.0", "permissions"),
        ("entry.0.changes.1", "permissions"),
        ("entry.1.messaging.0", "message"),
    ]
    assert verdict.type == "batch"
    assert len({item.dedup_key for item in verdict.items}) == 3


def test_meta_item_keys_depend_on_time_and_id():
    keys = [
        meta(meta_body(entry(CHANGE, id=person, time=moment))).items[0].dedup_key
        for person, moment in (("7", 1), ("7", 2), ("8", 1), ("7", 1))
    ]
    assert len(set(keys)) == 3
    assert keys[0] == keys[3]


def test_mutant_without_the_entry_around_it_a_second_grant_would_be_lost(monkeypatch):
    recipe = find_recipe("meta")
    assert recipe.items is not None
    bare = replace(recipe, items=replace(recipe.items, around={}))
    monkeypatch.setattr("boathook.verification.source.find_recipe", lambda _name: bare)
    first, second = (meta(meta_body(entry(CHANGE, time=moment))).items[0] for moment in (1, 2))
    assert first.dedup_key == second.dedup_key


@pytest.mark.parametrize("key", ["messaging", "standby"])
def test_meta_a_message_sent_again_in_another_batch_is_the_same(key):
    """An entry's time is that of sending: https://developers.facebook.com/docs/graph-api/webhooks/getting-started."""
    once, again = (meta(meta_body(entry(MESSAGING, time=moment, key=key))).items for moment in (1, 2))
    assert [item.path for item in once] == [f"entry.0.{key}.0"]
    assert once[0].dedup_key == again[0].dedup_key
    later = meta(meta_body(entry(MESSAGING.replace("123,", "124,"), time=1, key=key))).items
    assert later[0].dedup_key != once[0].dedup_key


def test_meta_a_body_of_another_shape_is_one_event():
    verdict = meta(b'{"object":"user","entry":[{"id":"1","time":1,"changed_fields":["photos"]}]}')
    assert isinstance(verdict, Verified), verdict
    assert (verdict.items, verdict.type) == ((), "user")


def meta_challenge(query: str, method: str = "GET"):
    source = verifier("meta", SECRET, verify_token="meatyhamhock")
    return source.verify(request({}, method=method, url=f"{URL}?{query}"), NOW)


QUESTION = "hub.mode=subscribe&hub.challenge=1158201444&hub.verify_token=meatyhamhock"


def test_meta_challenge_is_echoed_unsigned():
    verdict = meta_challenge(QUESTION)
    assert isinstance(verdict, Challenge), verdict
    assert (verdict.status, verdict.body, verdict.content_type) == (200, b"1158201444", "text/plain; charset=utf-8")


@pytest.mark.parametrize(
    ("query", "status"),
    [
        (QUESTION.replace("meatyhamhock", "another"), 401),
        (QUESTION.replace("&hub.verify_token=meatyhamhock", ""), 401),
        (QUESTION + "&hub.verify_token=meatyhamhock", 401),
        (QUESTION.replace("1158201444", quote("<script>alert(1)</script>")), 400),
        (QUESTION.replace("1158201444", "1" * 300), 400),
    ],
)
def test_meta_challenge_needs_the_token_and_no_markup(query, status):
    refused(meta_challenge(query), Reason.CHALLENGE_REFUSED, status)


@pytest.mark.parametrize(
    ("query", "method"),
    [(QUESTION.replace("subscribe", "unsubscribe"), "GET"), ("", "GET"), (QUESTION, "POST")],
)
def test_meta_other_unsigned_requests_are_refused(query, method):
    refused(meta_challenge(query, method), Reason.SIGNATURE_MISSING)


def test_meta_signed_get_is_no_event():
    source = verifier("meta", SECRET, verify_token="meatyhamhock")
    headers = {"X-Hub-Signature-256": "sha256=" + hex_mac(SECRET, b"{}")}
    assert isinstance(source.verify(request(headers, b"{}", method="GET"), NOW), Rejected)


# X.

POSTED = b'{"for_user_id":"2244994945","tweet_create_events":[{"id_str":"1"}]}'
OAUTH2, LEGACY = "X-Twitter-Webhooks-Signature-OAuth2", "X-Twitter-Webhooks-Signature"


def x_signature(secret: str, body: bytes | str) -> str:
    return "sha256=" + base64_mac(secret, body)


@pytest.mark.judge("x")
@pytest.mark.parametrize(
    "headers",
    [
        {OAUTH2: x_signature(SECRET, POSTED)},
        {LEGACY: x_signature(SECRET, POSTED)},
        {OAUTH2: x_signature("the other secret of a move", POSTED), LEGACY: x_signature(SECRET, POSTED)},
    ],
    ids=["OAuth 2.0", "OAuth 1.0", "both"],
)
def test_x_manual_signature_is_accepted_in_either_header(headers):
    """Source: https://docs.x.com/x-api/webhooks/introduction."""
    verdict = verdict_of("x", SECRET, headers, POSTED)
    assert isinstance(verdict, Verified), verdict
    assert verdict.type == "tweet_create_events"
    refused(verdict_of("twitter", SECRET, headers, altered(POSTED)), Reason.SIGNATURE_MISMATCH)
    refused(verdict_of("x", "another", headers, POSTED), Reason.SIGNATURE_MISMATCH)


@pytest.mark.judge("x")
def test_x_sign_equals_a_manual_signature():
    ours = sign("x", SECRET, POSTED)
    assert x_signature(SECRET, POSTED) in {ours.get(OAUTH2.lower()), ours.get(LEGACY.lower())}


def test_x_activities_are_named_by_their_type_and_matches_by_their_key():
    for body, type in (
        (b'{"data":{"event_type":"profile.update.bio","filter":{"user_id":"1"},"payload":{}}}', "profile.update.bio"),
        (b'{"for_user_id":"1","apps":{},"users":{},"direct_message_events":[]}', "direct_message_events"),
        (b'{"user_event":{"revoke":{}}}', "user_event"),
    ):
        assert verdict_of("x", SECRET, {OAUTH2: x_signature(SECRET, body)}, body).type == type


def x_key(**data: object) -> str:
    body = json.dumps({"data": {"event_type": "post.create", "event_uuid": "2080761390344937796", **data}}).encode()
    return verdict_of("x", SECRET, {OAUTH2: x_signature(SECRET, body)}, body).dedup_key


def test_x_activity_keys_depend_on_id_and_filter():
    """Source: https://docs.x.com/x-api/activity/event-payloads."""
    first = x_key(filter={"user_id": "1"}, payload={"public_metrics": {"like_count": 0}})
    assert first == x_key(filter={"user_id": "1"}, payload={"public_metrics": {"like_count": 9}})
    others = [
        x_key(filter={"user_id": "2"}),
        x_key(filter={"keyword": "OpenAI"}),
        x_key(filter={"user_id": "1"}, event_type="post.mention.create"),
        x_key(filter={"user_id": "1"}, event_uuid="-7953119945885597316"),
        x_key(),
    ]
    assert len({first, *others}) == 6


def x_challenge(token: str):
    url = f"{URL}?crc_token={quote(token, safe='')}&nonce=abc"
    return verifier("x", SECRET).verify(request({}, method="GET", url=url), NOW)


@pytest.mark.judge("x")
@pytest.mark.parametrize(
    "token", ["challenge_string", "ZTM4NzYwOTctOTFjMS00Mzg1LTk5NTgtMmYyYmM0NmU5NzQx", "9c1f", "a+b/c="]
)
def test_x_challenge_is_answered_with_its_mac(token):
    verdict = x_challenge(token)
    assert isinstance(verdict, Challenge), verdict
    assert json.loads(verdict.body) == {"response_token": x_signature(SECRET, token)}
    assert verdict.content_type == "application/json"


@pytest.mark.parametrize(
    "token",
    [
        "{}",
        "[]",
        POSTED.decode(),
        '"a"',
        "true",
        "false",
        "null",
        "0",
        "-1",
        "12345",
        "1e5",
        "1E-5",
        "1.5",
        " 1",
        "a" * 300,
        "",
    ],
)
def test_x_is_signed_nothing_that_could_be_an_event(token):
    assert not isinstance(x_challenge(token), Challenge)


def test_mutant_a_challenge_resembling_json_forges_an_event(monkeypatch):
    loosened(monkeypatch, find_recipe("x"))
    stolen = json.loads(x_challenge(POSTED.decode()).body)["response_token"]
    assert isinstance(verdict_of("x", SECRET, {OAUTH2: stolen}, POSTED), Verified)


@pytest.mark.parametrize("text", ["1", "-12", "1e9", "0E0", "true", "false", "null", "2e-3"])
def test_the_challenge_pattern_excludes_all_json(text):
    json.loads(text)
    assert NOT_JSON.fullmatch(text) is None


# Zoom.

STARTED = b'{"event":"meeting.started","event_ts":1658940994914,"payload":{"object":{"id":"1","uuid":"a=="}}}'


def zoom_headers(body: bytes, secret: str = SECRET, stamp: str = STAMP) -> dict[str, str]:
    return {"x-zm-signature": "v0=" + hex_mac(secret, f"v0:{stamp}:", body), "x-zm-request-timestamp": stamp}


def zoom_challenge(token: str, secret: str = SECRET):
    body = json.dumps({"payload": {"plainToken": token}, "event_ts": 1, "event": "endpoint.url_validation"}).encode()
    return verdict_of("zoom", secret, zoom_headers(body, secret), body)


@pytest.mark.judge("zoom")
def test_zoom_manual_signature_is_accepted():
    """Source: https://developers.zoom.us/docs/api/webhooks/#verify-webhook-events."""
    verdict = verdict_of("zoom", SECRET, zoom_headers(STARTED), STARTED)
    assert isinstance(verdict, Verified), verdict
    assert verdict.type == "meeting.started"
    for headers, body, reason in (
        (zoom_headers(STARTED), altered(STARTED), Reason.SIGNATURE_MISMATCH),
        (zoom_headers(STARTED, "another"), STARTED, Reason.SIGNATURE_MISMATCH),
        (zoom_headers(STARTED, stamp=str(int(NOW) - 301)), STARTED, Reason.TIMESTAMP_TOO_OLD),
    ):
        refused(verdict_of("zoom", SECRET, headers, body), reason)


@pytest.mark.judge("zoom")
def test_zoom_sign_equals_a_manual_signature():
    ours = sign("zoom", SECRET, STARTED, timestamp=NOW)
    assert {name: ours[name] for name in zoom_headers(STARTED)} == zoom_headers(STARTED)


@pytest.mark.judge("zoom")
def test_zoom_the_challenge_of_other_code():
    """Source: github.com/elastic/beats, the tests of its http_endpoint input."""
    verdict = zoom_challenge("qgg8vlvZRS6UYooatFL8Aw", "secretValueTest")
    assert isinstance(verdict, Challenge), verdict
    assert json.loads(verdict.body) == {
        "plainToken": "qgg8vlvZRS6UYooatFL8Aw",
        "encryptedToken": "70c1f2e2e6ca2d39297490d1f9142c7d701415ea8e6151f6562a08fa657a40ff",
    }
    assert (verdict.status, verdict.content_type) == (200, "application/json")


def test_zoom_challenge_needs_a_signature():
    body = b'{"event":"endpoint.url_validation","payload":{"plainToken":"abc"}}'
    refused(verdict_of("zoom", SECRET, {}, body), Reason.SIGNATURE_MISSING)


@pytest.mark.parametrize("token", ["v0:1658940994:{}", "a:b", '{"a"', "a b", "", "a" * 300, "ключ"])
def test_zoom_is_signed_nothing_that_could_be_a_request(token):
    refused(zoom_challenge(token), Reason.CHALLENGE_REFUSED, 400)


def test_mutant_a_challenge_with_colons_would_forge_an_event(monkeypatch):
    text = f"v0:{STAMP}:" + STARTED.decode()
    assert NO_COLON.fullmatch(text) is None
    loosened(monkeypatch, find_recipe("zoom"))
    stolen = json.loads(zoom_challenge(text).body)["encryptedToken"]
    forged = {"x-zm-signature": f"v0={stolen}", "x-zm-request-timestamp": STAMP}
    assert isinstance(verdict_of("zoom", SECRET, forged, STARTED), Verified)
