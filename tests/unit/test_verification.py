"""`verify` and `boathook.testing` as used by their users, by the documentation's code, and their errors."""

import email.message
import json
import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.datastructures import Headers as StarletteHeaders
from werkzeug.datastructures import EnvironHeaders, MultiDict
from werkzeug.datastructures import Headers as WerkzeugHeaders

from boathook import verify
from boathook.domain.errors import ConfigError, FetchFailed
from boathook.domain.model import ProofStrength
from boathook.providers import RECIPES, find_recipe
from boathook.providers.schemes import NoProof
from boathook.testing import make_keys, sign, signed_request
from boathook.verification.keyring import KeyRing
from boathook.verification.library import Verification
from tests.providers.source_factory import NOW, PUBLIC_URL, ProviderSource, all_sources

PAGE = Path(__file__).parents[2] / "docs/how-to/verify.md"
PROGRAMS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
BODY = b'{"id":"evt_1","type":"invoice.paid"}'
SECRET = "whsec_of_the_shop"
ALL = list(all_sources())


def signature(**more: Any) -> dict[str, str]:
    return sign("stripe", SECRET, BODY, **more)


@dataclass
class Shop:
    """Names that the documentation's program expects in its application."""

    secret: str = "whsec_..."
    stored: list[tuple[str, bytes]] = field(default_factory=list)
    answers: list[tuple[bytes, int, str]] = field(default_factory=list)

    def run(self, body: bytes, headers: dict[str, str]) -> None:
        def respond(body: bytes, status: int, content_type: str) -> None:
            self.answers.append((body, status, content_type))

        program = re.sub(r"^return ", "", PROGRAMS[0], flags=re.MULTILINE)
        around = {
            "request": SimpleNamespace(headers=headers),
            "raw_body": body,
            "log": logging.getLogger("shop"),
            "store_once": lambda key, body: self.stored.append((key, body)),
            "Response": respond,
        }
        exec(compile(program, str(PAGE), "exec"), around)


class TestThePage:
    def test_there_are_two_programs(self):
        assert len(PROGRAMS) == 2

    def test_its_first_program_stores_an_event_and_answers(self):
        shop = Shop()
        shop.run(BODY, sign("stripe", shop.secret, BODY))
        assert shop.stored == [("evt_1", BODY)]
        assert [status for _, status, _ in shop.answers] == [200]

    def test_its_first_program_refuses_a_forgery_and_logs_why(self, caplog: pytest.LogCaptureFixture):
        shop = Shop()
        shop.run(BODY, sign("stripe", "whsec_wrong", BODY))
        assert shop.stored == []
        assert shop.answers == [(b'{"ok":false}', 401, "application/json")]
        assert "the signature does not match the body" in caplog.text

    def test_its_second_program_makes_requests_that_are_genuine(self):
        made: dict[str, Any] = {"body": BODY}
        exec(compile(PROGRAMS[1], str(PAGE), "exec"), made)
        assert verify("stripe", "whsec_test", made["headers"], BODY).event is not None
        sent = made["sent"]
        assert verify("discord", made["keys"].public, sent.headers, sent.body, sent.url).event is not None

    def test_each_whole_program_it_names_is_there(self):
        named = re.findall(r"\]\(\.\./\.\./(examples/\w+\.py)\)", PAGE.read_text(encoding="utf-8"))
        assert len(named) == 3
        assert all((PAGE.parents[2] / path).is_file() for path in named)


class TestEverySender:
    @pytest.mark.parametrize("provider_source", ALL, ids=str)
    def test_verify_accepts_signatures_made_for_testing(self, provider_source: ProviderSource):
        if isinstance(provider_source.recipe.proof, NoProof):
            with pytest.raises(ConfigError, match=f"{provider_source.recipe.name} does not sign"):
                verify(provider_source.recipe.name, "", {}, b"")
            return
        signed = provider_source.sign_sample()
        result = verify(
            provider_source.recipe.name, provider_source.secrets, signed.headers, signed.body, signed.url, method=signed.method,
            client=provider_source.request(signed).client, now=NOW, keys=provider_source.ring, **provider_source.settings,
        )  # fmt: skip
        assert result, result.detail
        assert result.outcome == "event"
        assert result.event is not None
        assert result.event.grade is provider_source.recipe.grade
        assert result.event.dedup_key
        assert 200 <= result.reply.status < 300

    @pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
    def test_its_sample_is_made_by_name_alone(self, recipe: Any):
        try:
            secret = make_keys(recipe.name, **recipe.sample.settings).private
        except ConfigError:
            secret = recipe.sample.secret
        signed = signed_request(recipe.name, secret)
        assert signed.method in {"GET", "POST"}
        assert signed.url.startswith("http")
        assert all(name == name.lower() for name in signed.headers)

    def test_a_handshake_is_answered_and_is_no_event(self):
        body = json.dumps({"type": "url_verification", "challenge": "abc"}).encode()
        result = verify("slack", SECRET, sign("slack", SECRET, body), body)
        assert (result.outcome, result.event, result.reply.body) == ("handshake", None, b"abc")
        question = f"{PUBLIC_URL}/in/x?crc_token=abc"
        asked = verify("x", SECRET, {}, b"", question, method="get")
        assert asked.outcome == "handshake"
        assert json.loads(asked.reply.body)["response_token"].startswith("sha256=")

    def test_a_handshake_secret_is_returned(self):
        told = verify("notion", [], {}, b'{"verification_token":"secret_0123456789abcdef"}')
        assert (told.outcome, told.capture) == ("handshake", "secret_0123456789abcdef")

    def test_a_batch_has_items(self):
        body = b'{"events":[{"id":"EV1","resource_type":"payments","action":"paid"}]}'
        result = verify("gocardless", SECRET, sign("gocardless", SECRET, body), body)
        assert result.event is not None
        assert [(item.path, item.type) for item in result.event.items] == [("events.0", "payments.paid")]

    def test_keys_given_to_one_call_are_trusted_by_no_other(self, monkeypatch: pytest.MonkeyPatch):
        provider_source = next(one for one in ALL if one.label == "paypal")
        signed = provider_source.sign_sample()

        def fail(*_: Any, **__: Any) -> bytes:
            raise FetchFailed("there is no network")

        def judge(**keys: Any) -> Verification:
            return verify("paypal", "", signed.headers, signed.body, now=NOW, **provider_source.settings, **keys)

        monkeypatch.setattr("boathook.http_client.fetch.Fetcher.fetch_sync", fail)
        assert judge(keys=provider_source.ring)
        refused = judge()
        assert (refused.reason, refused.reply.status) == ("key_unavailable", 503)
        assert judge(keys={}).detail == "there is no network"

    def test_mutant_a_shared_key_ring_is_trusted_by_every_call(self, monkeypatch: pytest.MonkeyPatch):
        provider_source = next(one for one in ALL if one.label == "paypal")
        signed, shared = provider_source.sign_sample(), KeyRing()
        for url, content in provider_source.ring.items():
            shared.put(url, content, NOW)
        monkeypatch.setattr("boathook.verification.library.KEY_RING", shared)
        # A tolerance no other test has, so that the verifier is compiled anew.
        assert verify("paypal", "", signed.headers, signed.body, now=NOW, tolerance_s=299.0, **provider_source.settings)


def _message(given: dict[str, str]) -> email.message.Message:
    message = email.message.Message()
    for name, text in given.items():
        message[name] = text
    return message


def _django_headers(given: dict[str, str]) -> Any:
    from django.http.request import HttpHeaders

    return HttpHeaders({"HTTP_" + name.upper().replace("-", "_"): text for name, text in given.items()})


HEADERS: dict[str, Callable[[dict[str, str]], Any]] = {
    "dict": dict,
    "capitals": lambda given: {name.upper(): text for name, text in given.items()},
    "pairs": lambda given: list(given.items()),
    "ASGI": lambda given: [(name.encode(), text.encode()) for name, text in given.items()],
    "bytes": lambda given: {name.encode(): text.encode() for name, text in given.items()},
    "generator": lambda given: ((name, text) for name, text in given.items()),
    "Starlette": StarletteHeaders,
    "Django": _django_headers,
    "Flask": lambda given: EnvironHeaders(
        {"HTTP_" + name.upper().replace("-", "_"): text for name, text in given.items()}
    ),
    "Werkzeug": WerkzeugHeaders,
    "multidict": MultiDict,
    "email": _message,
}


class TestHeaders:
    @pytest.mark.parametrize("made", HEADERS.values(), ids=HEADERS.keys())
    def test_those_of_any_framework_are_read(self, made: Callable[[dict[str, str]], Any]):
        assert verify("stripe", SECRET, made(signature()), BODY).outcome == "event"
        assert verify("stripe", SECRET, made(signature()), BODY + b" ").outcome == "rejected"

    def test_repeated_headers_are_joined(self):
        pairs = [*signature().items(), ("stripe-signature", "v1=00")]
        assert verify("stripe", SECRET, pairs, BODY).outcome == "event"

    @pytest.mark.parametrize("given", [None, "stripe-signature: t=1,v1=00", b"stripe-signature: x"])
    def test_invalid_headers_raise_type_error(self, given: Any):
        with pytest.raises(TypeError, match="headers: pass a mapping, or pairs"):
            verify("stripe", SECRET, given, BODY)

    @pytest.mark.parametrize("value", [None, 5, ["t=1,v1=00"]])
    def test_a_value_that_is_no_text_is_named(self, value: Any):
        with pytest.raises(TypeError, match="headers: x-odd must be text, not"):
            verify("stripe", SECRET, {"X-Odd": value}, BODY)

    @pytest.mark.parametrize(
        "text", ["", "\ud800", "\x00", "t=1,v1=" + "0" * 100_000, "🂡", "t=" + "9" * 400 + ",v1=00"]
    )
    def test_hostile_values_are_refused_and_raise_nothing(self, text: str):
        assert verify("stripe", SECRET, {"Stripe-Signature": text}, BODY).reply.status == 401


class TestBody:
    @pytest.mark.parametrize("made", [bytes, bytearray, memoryview])
    def test_any_bytes_like_body_is_accepted(self, made: Callable[[bytes], Any]):
        assert verify("stripe", SECRET, signature(), made(BODY)).outcome == "event"

    @pytest.mark.parametrize("body", [BODY.decode(), json.loads(BODY), None, 5])
    def test_a_parsed_or_decoded_body_raises_type_error(self, body: Any):
        with pytest.raises(TypeError, match="body: pass the raw bytes as received, not"):
            verify("stripe", SECRET, signature(), body)

    def test_no_body_is_a_body(self):
        assert verify("github", SECRET, sign("github", SECRET, b""), b"").outcome == "event"
        assert verify("stripe", SECRET, sign("stripe", SECRET, b""), b"").reply.status == 400


class TestSecrets:
    @pytest.mark.parametrize("secrets", [[SECRET], ("whsec_other", SECRET), ["", SECRET]])
    def test_any_of_several_may_have_signed(self, secrets: Any):
        assert verify("stripe", secrets, signature(), BODY)

    @pytest.mark.parametrize("secrets", ["", [], [""], ()])
    def test_missing_secrets_are_a_config_error(self, secrets: Any):
        with pytest.raises(ConfigError, match=r"^secrets: there is none, but stripe signs its requests with one"):
            verify("stripe", secrets, signature(), BODY)

    def test_a_blank_secret_is_a_config_error(self):
        with pytest.raises(ConfigError, match=r"^secrets\[0\]: the secret is empty"):
            verify("stripe", "  ", signature(), BODY)

    @pytest.mark.parametrize("secrets", [None, [None], SECRET.encode(), [SECRET.encode()]])
    def test_non_string_secrets_raise_type_error(self, secrets: Any):
        with pytest.raises(
            TypeError, match=r"secrets: pass a string or a list of strings; None means that a variable is not set"
        ):
            verify("stripe", secrets, signature(), BODY)

    def test_a_malformed_secret_is_a_config_error(self):
        with pytest.raises(ConfigError, match=r"^secrets\[0\]: the secret must be hexadecimal") as caught:
            verify("adyen", "not so secret", {}, BODY)
        assert "not so secret" not in str(caught.value)

    def test_one_nothing_is_checked_against_is_refused(self):
        with pytest.raises(ConfigError, match=r"^secrets: PayPal signs with keys that boathook fetches"):
            verify("paypal", SECRET, {}, BODY, webhook_id="1")


class TestArguments:
    def test_an_unknown_provider_gets_a_suggestion(self):
        with pytest.raises(ConfigError, match=r"^provider: there is no provider 'strip'; perhaps stripe"):
            verify("strip", SECRET, {}, BODY)

    def test_aliases_and_capitals_are_understood(self):
        assert find_recipe("whatsapp").name == "meta"
        assert verify("Stripe", SECRET, signature(), BODY)

    @pytest.mark.parametrize(
        ("provider", "settings", "words"),
        [
            ("meta", {}, "^verify_token: required by "),
            ("meta", {"verify_token": None}, "^verify_token: required by "),
            ("meta", {"verify_token": {"a": 1}}, "^verify_token: .*pass text"),
            ("stripe", {"foo": 1}, "^foo: the provider stripe has no such setting"),
            ("stripe", {"unsigned": True}, "^unsigned: the provider stripe has no such setting"),
            ("jira", {"scheme": "conect"}, '^scheme: unknown scheme .conect.; use "connect"'),
            ("hmac", {"header": ["X-A"]}, "^header: write text"),
            ("stripe", {"tolerance_s": 0}, "^tolerance_s: 0 would accept no request"),
            ("stripe", {"tolerance_s": float("inf")}, "^tolerance_s: inf would accept"),
        ],
    )
    def test_a_wrong_setting_is_named_as_the_argument_it_is(self, provider: str, settings: Any, words: str):
        with pytest.raises(ConfigError, match=words):
            verify(provider, SECRET, {}, BODY, **settings)

    @pytest.mark.parametrize("provider", ["square", "twilio", "hubspot"])
    def test_an_address_that_is_signed_must_be_given(self, provider: str):
        with pytest.raises(ConfigError, match=r"^url: .* signs the URL"):
            verify(provider, SECRET, {}, BODY)

    @pytest.mark.parametrize(
        "url", ["", "/in/x", "http://[::1", "https://h/%zz?a=%", "\x00", "https://h/" + "a" * 90_000]
    )
    def test_an_odd_url_does_not_raise(self, url: str):
        assert verify("stripe", SECRET, signature(), BODY, url)
        assert not verify("github", SECRET, {}, BODY, url)

    def test_now_may_be_given(self):
        old = signature(timestamp=1_000_000)
        assert verify("stripe", SECRET, old, BODY).reason == "timestamp_too_old"
        assert verify("stripe", SECRET, old, BODY, now=1_000_200)
        assert verify("stripe", SECRET, signature(timestamp=time.time() - 500), BODY, tolerance_s=600)

    def test_an_unknown_client_is_in_no_network(self):
        body = b'{"event":"payment.succeeded","object":{"id":"1"}}'
        unknown: Any = None
        for client in (unknown, "", "not an address", "192.0.2.1"):
            assert verify("yookassa", "", {}, body, client=client).reason == "address_not_allowed"
        event = verify("yookassa", "", {}, body, client="185.71.76.1").event
        assert event is not None
        assert event.grade is ProofStrength.ADDRESS

    def test_all_rejections_have_the_same_reply(self):
        replies = {
            verify("stripe", SECRET, given, BODY).reply
            for given in ({}, {"Stripe-Signature": "x"}, sign("stripe", "whsec_wrong", BODY), signature(timestamp=5))
        }
        assert len(replies) == 1


class TestSign:
    def test_signing_outside_of_headers_needs_signed_request(self):
        for provider, where in (("robokassa", "body"), ("adyen", "body")):
            recipe = find_recipe(provider)
            with pytest.raises(
                ValueError, match=f"puts its signature into the {where}; send what signed_request returns"
            ):
                sign(provider, recipe.sample.secret, recipe.sample.body, content_type=recipe.sample.content_type)

    def test_make_keys_is_refused_for_shared_secret_providers(self):
        with pytest.raises(ConfigError, match="Stripe signs with a shared secret"):
            make_keys("stripe")

    def test_an_unknown_setting_is_refused(self):
        with pytest.raises(ConfigError, match="no such setting"):
            sign("stripe", SECRET, BODY, heder="x")
