"""The log line of an attempt: every field of it, and no e-mail address in any."""

import json
import re
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from boathook_billing.event_log import without_emails
from tests.apps.billing.server import MONTH, BillingServer, payload, sign, unique, wait_until

FIELDS = {
    "request_id", "provider", "event_id", "dedup_key", "attempt", "external_event_id", "external_payment_id",
    "incoming_status", "mapped_status", "amount", "currency", "event_age_s", "payment_id", "user_id",
    "payment_status_before", "payment_status_after", "subscription_end_before", "subscription_end_after",
    "applied_before", "applied_after", "is_late", "result", "error_code", "error_message", "duration_ms",
}  # fmt: skip


def line(server: BillingServer, response: httpx.Response) -> dict[str, Any]:
    """Return the line of the attempt to apply what a request reported."""

    def search() -> dict[str, Any] | None:
        lines = [text for text in server.log().splitlines() if '"event":"payment_event"' in text]
        return next((told for text in lines if (told := json.loads(text))["request_id"] == request_id), None)

    request_id = response.json()["request_id"]
    return wait_until(search)


def test_the_line_of_a_refused_payment_names_code_and_cause(server: BillingServer):
    told = line(server, server.send_payment(unique("pay"), email=server.user(), amount="9.90"))
    assert told.keys() >= FIELDS
    assert (told["result"], told["error_code"]) == ("refused", "AMOUNT_MISMATCH")
    assert told["error_message"] == "paid were 9.90 RUB, but month costs 990.00 RUB"


def test_no_field_has_an_email_address_even_if_the_provider_makes_ids_of_it(server: BillingServer):
    address = server.user()
    payment, event = f"{address}/{unique('order')}", f"{address}:{unique('evt')}"
    told = line(server, server.send_payment(payment, email=address, event_id=event))
    assert "@" not in json.dumps(told)
    assert told["dedup_key"].startswith("sha256:")
    assert told["external_event_id"] == told["dedup_key"]


def test_no_line_of_the_log_has_the_email_of_an_event_without_an_id(server: BillingServer):
    email, payment = server.user(), unique("pay")
    body = payload(external_payment_id=payment, status="paid", email=email, **MONTH)
    answer = server.post(body, x_signature=sign(body)).json()
    server.await_applied(payment)
    wait_until(lambda: answer["request_id"] in server.log())
    wait_until(lambda: f'"external_payment_id":"{payment}"' in server.log())
    assert email not in server.log()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("evt_1", "evt_1"),
        ("Key (lower(email))=(anna@example.com) already exists.", "Key (lower(email))=(sha256:*) already exists."),
        ("order:Anna@Example.com:7", "order:sha256:*:7"),
        ("anna%40example.com", "sha256:*"),
        ("from anna@example.com to eva@example.com", "from sha256:* to sha256:*"),
    ],
)
def test_a_hash_stands_for_each_address(text: str, shown: str):
    assert re.sub("sha256:[0-9a-f]{16}", "sha256:*", without_emails({"text": text})["text"]) == shown


def test_equal_addresses_have_equal_hashes():
    told = without_emails({"one": "anna@example.com", "other": "ANNA%40example.com", "number": 7, "none": None})
    assert told["one"] == told["other"]
    assert (told["number"], told["none"]) == (7, None)


@given(st.emails(), st.text(max_size=20), st.text(max_size=20))
def test_any_address_in_any_text_is_replaced(address: str, before: str, after: str):
    assert address not in without_emails({"text": f"{before} {address} {after}"})["text"]
