"""The npm packages themselves accept valid signatures and reject invalid ones."""

import base64
import hashlib
import hmac

import pytest

SECRET = "a secret"
BODY = '{"name":"Жуковский ✓"}'.encode()
DIGEST = hmac.new(SECRET.encode(), BODY, "sha256")


@pytest.mark.parametrize("provider", ["github", "notion"])
def test_signing_libraries_accept_only_their_own_signature(judge, provider):
    signature = judge.asks(provider, "sign", secret=SECRET, body=BODY)
    assert signature == "sha256=" + DIGEST.hexdigest()
    assert judge.asks(provider, "verify", secret=SECRET, body=BODY, signature=signature) is True
    assert judge.asks(provider, "verify", secret=SECRET, body=BODY + b" ", signature=signature) is False


def test_shopify_library_reports_what_it_verified(judge):
    headers = {
        "X-Shopify-Hmac-Sha256": base64.b64encode(DIGEST.digest()).decode(),
        "X-Shopify-Topic": "orders/create",
        "X-Shopify-Shop-Domain": "a.myshopify.com",
        "X-Shopify-API-Version": "2026-10",
        "X-Shopify-Webhook-Id": "w1",
    }
    found = judge.asks("shopify", "verify", secret=SECRET, body=BODY, headers=headers)
    assert (found["valid"], found["webhookId"]) == (True, "w1")
    refused = judge.asks("shopify", "verify", secret="another", body=BODY, headers=headers)
    assert refused == {"valid": False, "reason": "invalid_hmac"}


def test_a_package_that_throws_has_refused(judge):
    assert judge.asks("linear", "verify", secret=SECRET, body=b"{}", signature="00" * 32, now=0) is False
    assert judge.refusal == "Invalid webhook signature"


def test_the_clock_of_a_package_is_the_questions(judge):
    body = b'{"webhookTimestamp":1700000000000,"type":"Issue"}'
    signature = hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
    question = {"secret": SECRET, "body": body, "signature": signature}
    assert judge.asks("linear", "verify", **question, now=1_700_000_000) is True
    assert judge.asks("linear", "verify", **question, now=1_700_000_061) is False
