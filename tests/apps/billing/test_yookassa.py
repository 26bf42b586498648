"""YooKassa's notifications: confirmed by its API, never believed."""

import asyncio
import base64
import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from boathook import HTTP_DEFAULTS, Dead, Ignore, Retry
from boathook.handlers.platform import HttpResponse
from boathook_billing import yookassa
from boathook_billing.app import hook
from boathook_billing.payload import Status, read_notice
from boathook_billing.settings import BillingSettings, YooKassaSettings
from boathook_billing.yookassa import read_notification
from tests import reality
from tests.apps.billing.server import BillingServer, started, unique, wait_until

EXAMPLES = reality.examples("yookassa")
KEYS = {"shop_id": "100500", "secret_key": "test_key"}
BASIC = "Basic " + base64.b64encode(b"100500:test_key").decode()
PAYMENT = json.loads(EXAMPLES["payment_succeeded.json"])["object"]
REFUND = json.loads(EXAMPLES["refund_succeeded.json"])["object"]
CANCELED = json.loads(EXAMPLES["payment_canceled.json"])["object"]
Answers = dict[str, tuple[int, Any]]


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("payment_waiting_for_capture.json", ("payment", PAYMENT["id"], "waiting_for_capture")),
        ("payment_succeeded.json", ("payment", PAYMENT["id"], "succeeded")),
        ("payment_canceled.json", ("payment", CANCELED["id"], "canceled")),
        ("refund_succeeded.json", ("refund", REFUND["id"], "succeeded")),
    ],
)
def test_each_notification_is_read(name: str, wanted: tuple[str, str, str]):
    notified = read_notification(EXAMPLES[name])
    assert (notified.kind, notified.id, notified.status) == wanted


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{}", b'{"event": "payment"}', b'{"event": "payment.succeeded", "object": {}}',
     b'{"event": "payment.succeeded", "object": {"id": "../me"}}', b'{"event": 1, "object": {"id": "x"}}',
     b'{"event": "payment.succeeded", "object": {"id": ""}}'],
)  # fmt: skip
def test_a_body_that_is_no_notification_is_an_error_that_names_the_field(body: bytes):
    with pytest.raises(ValueError, match=r"the body|event|object\.id|Expecting"):
        read_notification(body)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_notification_or_an_error(body: bytes):
    with contextlib.suppress(ValueError):
        read_notification(b'{"event": "payment.succeeded", "object": {"id": "a"}, "x": ' + body)


class FakePlatform:
    """A platform whose HTTP client answers like YooKassa's API."""

    def __init__(self, answers: Answers) -> None:
        self.answers, self.asked = answers, list[tuple[str, str]]()
        self.http = self

    def resolve(self, reference: str, key: str) -> str:
        return reference

    async def request(self, method: str, url: str, *, headers: dict[str, str], **_options: Any) -> HttpResponse:
        path = url.removeprefix("https://api.yookassa.ru/v3/")
        self.asked.append((method, path))
        assert headers["authorization"] == BASIC
        status, document = self.answers.get(path, (404, json.loads(EXAMPLES["api_error.json"])))
        return HttpResponse(status, {}, document if isinstance(document, bytes) else json.dumps(document).encode())


def confirm(monkeypatch: pytest.MonkeyPatch, body: bytes, answers: Answers) -> tuple[Any, list[dict[str, Any]]]:
    """Handle a notification; return the handler's result and what it published."""
    published = list[dict[str, Any]]()

    async def publish(_tx: object, *, application: str, type: str, payload: bytes) -> None:
        assert application == "billing-yookassa"
        published.append({"type": type, **json.loads(payload)})

    monkeypatch.setattr(hook, "publish", publish)
    hook.bind(BillingSettings(yookassa=YooKassaSettings(**KEYS)), FakePlatform(answers))
    try:
        event: Any = SimpleNamespace(body=body, dedup_key="key")
        result = asyncio.run(yookassa.confirm(event, None))
    finally:
        hook.bind(None, None)
    return result, published


def forged() -> bytes:
    """Return the notification of a payment that was never paid, as an attacker would write it."""
    return EXAMPLES["payment_succeeded.json"].replace(b'"value":"990.00"', b'"value":"9900.00"')


def pending() -> dict[str, Any]:
    return {**PAYMENT, "status": "pending", "paid": False}


def test_the_api_is_believed_and_not_the_notification(monkeypatch):
    result, published = confirm(monkeypatch, forged(), {f"payments/{PAYMENT['id']}": (200, PAYMENT)})
    assert result is None
    assert published == [
        {
            "type": "payment.succeeded", "external_payment_id": PAYMENT["id"], "status": "succeeded", "amount": "990.00",
            "currency": "RUB", "email": "vera@example.com", "plan_id": "month", "paid_at": PAYMENT["captured_at"],
            "event_id": "key",
        }
    ]  # fmt: skip


def test_mutant_that_believes_the_notification_is_noticed(monkeypatch):
    async def believe(_keys: object, _kind: str, _id: str) -> Any:
        return json.loads(forged())["object"]

    monkeypatch.setattr(yookassa, "fetch", believe)
    with pytest.raises(AssertionError):
        test_the_api_is_believed_and_not_the_notification(monkeypatch)


@pytest.mark.parametrize(
    ("name", "answer", "status"),
    [
        ("payment_waiting_for_capture.json", {**PAYMENT, "status": "waiting_for_capture"}, Status.RECEIVED),
        ("payment_waiting_for_capture.json", PAYMENT, Status.SUCCEEDED),
        ("payment_canceled.json", CANCELED, Status.FAILED),
    ],
)
def test_the_statuses_of_a_payment_are_the_apps(monkeypatch, name, answer, status):
    _result, published = confirm(monkeypatch, EXAMPLES[name], {f"payments/{answer['id']}": (200, answer)})
    [fields] = published
    assert read_notice(json.dumps(fields).encode()).status is status


def test_a_refund_is_that_of_its_payment(monkeypatch):
    part = {**json.loads(EXAMPLES["api_refund.json"]), "amount": {"value": "100.50", "currency": "RUB"}}
    payment = json.loads(EXAMPLES["api_payment.json"])
    answers = {f"refunds/{REFUND['id']}": (200, part), f"payments/{PAYMENT['id']}": (200, payment)}
    _result, [fields] = confirm(monkeypatch, EXAMPLES["refund_succeeded.json"], answers)
    notice = read_notice(json.dumps(fields).encode())
    assert (notice.status, notice.external_payment_id) == (Status.REFUNDED, PAYMENT["id"])
    assert (str(notice.amount), notice.refund_id, str(notice.refund_amount)) == ("990.00", REFUND["id"], "100.50")


@pytest.mark.parametrize(
    ("answers", "code"),
    [
        ({}, "YOOKASSA_UNKNOWN"),
        ({f"payments/{PAYMENT['id']}": (401, {})}, "YOOKASSA_CREDENTIALS"),
        ({f"payments/{PAYMENT['id']}": (403, {})}, "YOOKASSA_CREDENTIALS"),
        ({f"payments/{PAYMENT['id']}": (200, {**PAYMENT, "id": "other"})}, "BROKEN_PAYLOAD"),
        ({f"payments/{PAYMENT['id']}": (200, {"id": PAYMENT["id"], "status": "succeeded"})}, "BROKEN_PAYLOAD"),
        ({f"payments/{PAYMENT['id']}": (200, b"<html>")}, "BROKEN_PAYLOAD"),
    ],
)
def test_what_the_api_does_not_confirm_is_a_dead_letter(monkeypatch, answers: Answers, code: str):
    result, published = confirm(monkeypatch, EXAMPLES["payment_succeeded.json"], answers)
    assert isinstance(result, Dead)
    assert (result.code, published) == (code, [])


def test_an_answer_that_is_older_than_the_notification_is_asked_for_again(monkeypatch):
    answers = {f"payments/{PAYMENT['id']}": (200, pending())}
    result, published = confirm(monkeypatch, EXAMPLES["payment_succeeded.json"], answers)
    assert result == Retry(code="YOOKASSA_BEHIND", dependency="yookassa")
    assert published == []


def test_other_objects_are_ignored_without_a_request(monkeypatch):
    body = b'{"type":"notification","event":"payout.succeeded","object":{"id":"po-1"}}'
    result, published = confirm(monkeypatch, body, {})
    assert result == Ignore("OTHER_EVENT: payout")
    assert published == []


@pytest.mark.parametrize("status", [429, 500, 503])
def test_an_unavailable_api_is_asked_again(monkeypatch, status: int):
    with pytest.raises(Exception, match=str(status)) as raised:
        confirm(monkeypatch, EXAMPLES["payment_succeeded.json"], {f"payments/{PAYMENT['id']}": (status, {})})
    assert HTTP_DEFAULTS[0](raised.value)


def test_one_of_both_providers_is_needed_and_their_names_differ():
    with pytest.raises(ValidationError, match=r"secret is missing.*\[billing\.yookassa\]"):
        BillingSettings()
    with pytest.raises(ValidationError, match="name the other one"):
        BillingSettings(secret="s", provider="yookassa", yookassa=YooKassaSettings(**KEYS))


class FakeApi:
    """YooKassa's API on loopback: answers with the objects that it was given, or with an error."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.outage = False
        self.base = ""

    @contextlib.contextmanager
    def running(self) -> Iterator["FakeApi"]:
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                found = api.objects.get(self.path.removeprefix("/v3/"))
                status = 503 if api.outage else 200 if found else 404
                if self.headers["authorization"] != BASIC:
                    status = 401
                body = json.dumps(found).encode() if status == 200 else EXAMPLES["api_error.json"]
                self.send_response(status)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_arguments: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.base = f"http://127.0.0.1:{server.server_port}/v3"
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()


@pytest.fixture(scope="module")
def api() -> Iterator[FakeApi]:
    with FakeApi().running() as running:
        yield running


@pytest.fixture(scope="module")
def shop(api: FakeApi, tmp_path_factory, admin_url, pg_template) -> Iterator[BillingServer]:
    table = f'[billing.yookassa]\nshop_id = "100500"\nsecret_key = "test_key"\napi_url = "{api.base}"\n'
    near = '[sources.payments-yookassa]\naddresses = ["127.0.0.1"]\n'
    with started(tmp_path_factory.mktemp("yookassa"), admin_url, pg_template, billing=table, extra=near) as running:
        yield running


def notify(shop: BillingServer, event: str, about: dict[str, Any]) -> int:
    body = json.dumps({"type": "notification", "event": event, "object": about})
    return httpx.post(f"{shop.base}/webhooks/yookassa", content=body, timeout=300).status_code


def payment(api: FakeApi, email: str, status: str = "succeeded", **changes: Any) -> dict[str, Any]:
    """Return a new payment, which the API has, too."""
    about = {**PAYMENT, "id": unique("pay"), "status": status, "metadata": {"email": email}, **changes}
    api.objects[f"payments/{about['id']}"] = about
    return about


def test_a_payment_goes_through_its_statuses_and_is_applied_and_refunded_once(shop: BillingServer, api: FakeApi):
    email = shop.user()
    paid = payment(api, email, "waiting_for_capture")
    assert notify(shop, "payment.waiting_for_capture", paid) == 200
    shop.await_payment(paid["id"], status="RECEIVED", provider="yookassa")
    api.objects[f"payments/{paid['id']}"] = {**paid, "status": "succeeded"}
    assert [notify(shop, "payment.succeeded", {**paid, "status": "succeeded"}) for _ in range(3)] == [200] * 3
    shop.await_applied(paid["id"])
    refund = {**REFUND, "id": unique("refund"), "payment_id": paid["id"]}
    api.objects[f"refunds/{refund['id']}"] = refund
    assert notify(shop, "refund.succeeded", refund) == 200
    row = shop.await_payment(paid["id"], status="REFUNDED")
    wait_until(lambda: (shop.payment(paid["id"]) or {})["reversed_at"])
    assert (row["amount"], row["currency"], row["plan_id"]) == (990, "RUB", "month")
    assert (shop.subscription(email) or {})["payments_applied"] == 0


def test_a_forged_notification_changes_nothing_and_is_a_dead_letter(shop: BillingServer):
    id = unique("forged")
    assert notify(shop, "payment.succeeded", {**PAYMENT, "id": id}) == 200
    wait_until(lambda: shop.rows("select from boathook.delivery where state = 'dead' and code = 'YOOKASSA_UNKNOWN'"))
    assert shop.payment(id) is None


def test_a_payment_notified_during_an_outage_of_the_api_is_applied_after_it(shop: BillingServer, api: FakeApi):
    email = shop.user()
    paid = payment(api, email)
    api.outage = True
    try:
        assert notify(shop, "payment.succeeded", paid) == 200
        wait_until(lambda: shop.rows("select from boathook.delivery where code = 'FetchFailed' and attempts > 0"))
    finally:
        api.outage = False
    shop.await_applied(paid["id"])
    assert shop.metric("webhook_requests_total", provider="yookassa", http_code="200") > 0


def test_both_providers_have_payments_of_the_same_id(shop: BillingServer, api: FakeApi):
    email = shop.user()
    paid = payment(api, email)
    shop.send_payment(paid["id"], email=email)
    assert notify(shop, "payment.succeeded", paid) == 200
    wait_until(lambda: (shop.subscription(email) or {"payments_applied": 0})["payments_applied"] == 2)
    rows = shop.rows("select provider from billing.payments where external_payment_id = %s order by 1", paid["id"])
    assert [row["provider"] for row in rows] == ["tilda", "yookassa"]


def test_a_notification_from_another_address_is_refused(tmp_path, admin_url, pg_template):
    table = '[billing.yookassa]\nshop_id = "1"\nsecret_key = "k"\n'
    with started(tmp_path, admin_url, pg_template, billing=table) as shop:
        assert notify(shop, "payment.succeeded", PAYMENT) == 401
        assert not shop.rows("select from boathook.event")
        shop.await_metric("billing_webhooks_invalid_signature_total", provider="yookassa")
