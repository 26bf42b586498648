"""Receipts: one for each payment and one for each refund, at a cash desk that may be away or decline."""

import contextlib
import json
import threading
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from boathook_billing import receipts
from boathook_billing.receipts import make_request, read_operation
from boathook_billing.settings import BillingSettings, Plan, ReceiptSettings
from tests import reality
from tests.apps.billing.server import BillingServer, started, unique, wait_until
from tests.apps.cashdesk.server import CashdeskServer

MONTH = Plan(id="month", price=Decimal("990.00"), currency="RUB", days=30, title="Подписка на месяц")
DESK: dict[str, Any] = {
    "url": "https://kabinet.dreamkas.ru/api/receipts", "token": "t", "device_id": 329, "contact": "shop@example.com",
    "tax_system_code": 2, "vat_code": 11,
}  # fmt: skip
TABLE = """
[billing.receipts]
url = "{url}"
token = "{token}"
device_id = 1
contact = "shop@example.com"
tax_system_code = 2
"""


def request(kind: str = "sale", contact: str = "vera@example.com", plan: Plan = MONTH, **desk: Any) -> dict[str, Any]:
    return make_request(ReceiptSettings(**DESK | desk), plan, kind, Decimal("990.00"), contact, "billing-7e57-sale")


def test_the_request_is_that_of_dreamkas_clients():
    example = json.loads(reality.examples("dreamkas")["receipt_request_tags.json"])
    del example["attributes"]["phone"]
    assert request() == example


@pytest.mark.parametrize("mode", ["full_prepayment", "full_payment", "credit_payment"])
@pytest.mark.parametrize("subject", ["commodity", "service", "another"])
def test_every_request_has_only_fields_of_the_corpus(mode: str, subject: str):
    bodies = [
        json.dumps(
            request(kind, contact, payment_mode=mode, payment_subject=subject, tax_system_code=tax, vat_code=vat)
        )
        for kind, contact in (("sale", "vera@example.com"), ("refund", "+70000000000"))
        for tax, vat in ((1, 1), (6, 12))
    ]
    assert reality.undocumented("dreamkas", [body.encode() for body in bodies]) == set()


def test_the_codes_of_54_fz_are_those_of_the_tags():
    [position] = request(payment_mode="advance", payment_subject="payment", vat_code=7)["positions"]
    assert position["tags"] == [{"tag": 1212, "value": 10}, {"tag": 1214, "value": 3}]
    assert (position["tax"], position["type"]) == ("NDS_5", "COUNTABLE")
    assert request(contact="+70000000000")["attributes"] == {"phone": "+70000000000"}
    [own] = request(plan=MONTH.model_copy(update={"vat_code": 2, "title": None}))["positions"]
    assert (own["tax"], own["name"]) == ("NDS_0", "month")


@pytest.mark.parametrize(
    ("name", "state", "error"),
    [("operation_create.json", "PENDING", None), ("operation_update.json", "DONE", None),
     ("operation_update_error.json", "FAILED", "")],
)  # fmt: skip
def test_dreamkas_operations_are_read(name: str, state: str, error: str | None):
    operation = json.loads(reality.examples("dreamkas")[name])["data"]
    read = read_operation(operation)
    assert (read["id"], read["state"]) == (str(operation["id"]), state)
    assert (read["error"] is None) == (error is None)


def test_the_cash_desks_answer_is_read():
    answer = {"receipt": {"id": 1, "state": "PENDING"}, "operation": {"id": 7, "state": "FAILED", "error": "E: no"}}
    assert read_operation(answer) == {"id": "7", "state": "FAILED", "error": "E: no"}
    known = {"receipt": {"id": 1, "state": "DONE", "error": None}, "operation": None}
    assert read_operation(known) == {"id": None, "state": "DONE", "error": None}
    with pytest.raises(ValueError, match="not an operation"):
        read_operation({"operation": "x"})


@pytest.mark.parametrize(
    "wrong",
    [{"url": "ftp://x/receipts"}, {"url": "https://x/api"}, {"device_id": 0}, {"contact": ""}, {"tax_system_code": 7},
     {"vat_code": 13}, {"payment_subject": "thing"}, {"payment_mode": "later"}],
    ids=str,
)  # fmt: skip
def test_wrong_settings_are_refused(wrong: dict[str, Any]):
    with pytest.raises(ValidationError):
        ReceiptSettings(**DESK | wrong)


def test_a_price_with_parts_of_a_kopeck_is_refused():
    plan = {"id": "month", "price": "9.999", "days": 1}
    with pytest.raises(ValidationError, match="parts of a kopeck"):
        BillingSettings.model_validate({"secret": "s", "receipts": DESK, "plans": [plan]})


def test_plans_whose_payments_have_no_receipts_are_named():
    plans = [{"id": "month", "price": "9", "days": 1}, {"id": "abroad", "price": "9", "days": 1, "currency": "EUR"}]
    settings = BillingSettings.model_validate({"secret": "s", "receipts": DESK, "plans": plans})
    [(problem, _fix)] = receipts.check_currencies(settings, True)
    assert "the plan abroad have no receipts, because it costs EUR" in problem
    assert not [*receipts.check_currencies(settings.model_copy(update={"receipts": None}), True)]


class FakeDesk:
    """A cash desk on loopback: counts the receipts that it makes, one for each external id."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.receipts: dict[str, int] = {}
        self.outcome: tuple[str, str | None] = ("SUCCESS", None)
        self.status = 200
        self.base = ""

    def answer(self, path: str, body: bytes) -> dict[str, Any]:
        if path == "/api/receipts":
            asked = json.loads(body)
            self.requests.append(asked)
            self.receipts.setdefault(asked["externalId"], len(self.receipts) + 1)
            return {"id": str(self.receipts[asked["externalId"]]), "status": "PENDING"}
        status, error = self.outcome
        data = {"error": {"code": "E", "message": error}} if error else {"receiptId": "1"}
        return {"id": path.rpartition("/")[2], "status": status, "data": data}

    @contextlib.contextmanager
    def running(self) -> Iterator["FakeDesk"]:
        desk = self

        class Handler(BaseHTTPRequestHandler):
            def respond(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                is_known = self.headers["authorization"] == "Bearer desk-token"
                status = desk.status if is_known else 401
                found = desk.answer(self.path, body) if status == 200 else {"status": status, "message": "no"}
                content = json.dumps(found).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = respond  # noqa: N815 - names of http.server

            def log_message(self, *_arguments: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.base = f"http://127.0.0.1:{server.server_port}/api/receipts"
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()


@pytest.fixture(scope="module")
def desk() -> Iterator[FakeDesk]:
    with FakeDesk().running() as running:
        yield running


@pytest.fixture(autouse=True)
def available(desk: FakeDesk) -> None:
    desk.outcome, desk.status = ("SUCCESS", None), 200


@pytest.fixture(scope="module")
def shop(desk: FakeDesk, tmp_path_factory, admin_url, pg_template) -> Iterator[BillingServer]:
    table = TABLE.format(url=desk.base, token="desk-token")
    with started(tmp_path_factory.mktemp("receipts"), admin_url, pg_template, billing=table) as running:
        yield running


def rows(shop: BillingServer, payment: str) -> list[dict[str, Any]]:
    return shop.rows(
        "select r.* from billing.receipts r join billing.payments p on p.id = r.payment_id"
        " where p.external_payment_id = %s order by r.id",
        payment,
    )


def states(shop: BillingServer, payment: str) -> list[tuple[str, str]]:
    return [(row["kind"], row["state"]) for row in rows(shop, payment)]


def issued(desk: FakeDesk, shop: BillingServer, payment: str) -> Counter[str]:
    """Return how many receipts the desk has made for a payment, by their external id."""
    ids = {row["external_id"] for row in rows(shop, payment)}
    return Counter(request["externalId"] for request in desk.requests if request["externalId"] in ids)


def test_a_payment_and_its_refund_have_one_receipt_each_however_often_they_are_reported(
    shop: BillingServer, desk: FakeDesk
):
    email, payment = shop.user(), unique("pay")
    for _ in range(3):
        shop.send_payment(payment, email=email)
    shop.await_applied(payment)
    wait_until(lambda: states(shop, payment) == [("sale", "DONE")])
    for _ in range(3):
        shop.send_payment(payment, "refunded", email=email)
    wait_until(lambda: states(shop, payment) == [("sale", "DONE"), ("refund", "DONE")])
    wait_until(shop.is_idle)
    sale, refund = rows(shop, payment)
    assert issued(desk, shop, payment) == {sale["external_id"]: 1, refund["external_id"]: 1}
    assert sale["request"]["attributes"] == refund["request"]["attributes"] == {"email": email}
    assert [row["request"]["total"]["priceSum"] for row in (sale, refund)] == [99_000, 99_000]


def test_partial_refunds_have_receipts_of_their_own(shop: BillingServer):
    email, payment = shop.user(), unique("pay")
    shop.send_payment(payment, email=email)
    for number, amount in (("1", "100.00"), ("2", "50.50"), ("2", "50.50")):
        shop.send_payment(payment, "refunded", email=email, refund_id=number, refund_amount=amount)
    wait_until(lambda: Counter(states(shop, payment)) == {("sale", "DONE"): 1, ("refund", "DONE"): 2})
    assert sorted(row["amount"] for row in rows(shop, payment)) == [Decimal("50.50"), Decimal(100), Decimal(990)]


@contextlib.contextmanager
def held(shop: BillingServer, handler: str) -> Iterator[None]:
    """Keep the deliveries to a handler that are stored in this block from being due; `release` makes them due."""
    shop.rows(
        "create function billing.hold() returns trigger language plpgsql as"
        " $$ begin new.due_at := now() + interval '1 day'; return new; end $$"
    )
    shop.rows(
        "create trigger hold before insert on boathook.delivery for each row"
        f" when (new.recipient = 'handler:billing.{handler}') execute function billing.hold()"
    )
    try:
        yield
    finally:
        shop.rows("drop function billing.hold() cascade")


def release(shop: BillingServer, handler: str) -> None:
    shop.rows(f"update boathook.delivery set due_at = now() where recipient = 'handler:billing.{handler}'")


def test_a_success_between_the_two_handlers_of_a_partial_refund_adds_no_receipt(shop: BillingServer):
    email, payment = shop.user(), unique("pay")
    wait_until(shop.is_idle)
    with held(shop, "record"):
        shop.send_payment(payment, "refunded", email=email, refund_id="1", refund_amount="100.00")
        shop.await_payment(payment, status="REFUNDED")  # by `apply`
    shop.send_payment(payment, email=email)
    wait_until(lambda: Counter(states(shop, payment)) == {("sale", "DONE"): 1, ("refund", "DONE"): 1})
    release(shop, "record")
    wait_until(shop.is_idle)
    assert Counter(row["amount"] for row in rows(shop, payment)) == {Decimal(990): 1, Decimal(100): 1}


def test_a_refund_that_arrives_first_has_the_receipt_of_its_sale_first(shop: BillingServer, desk: FakeDesk):
    email, payment = shop.user(), unique("pay")
    shop.send_payment(payment, "refunded", email=email)
    wait_until(lambda: states(shop, payment) == [("sale", "DONE"), ("refund", "DONE")])
    shop.send_payment(payment, email=email)
    wait_until(shop.is_idle)
    assert states(shop, payment) == [("sale", "DONE"), ("refund", "DONE")]
    kinds = [request["type"] for request in desk.requests if request["externalId"] in issued(desk, shop, payment)]
    assert kinds == ["SALE", "REFUND"]


def test_a_payment_of_an_unknown_user_has_its_receipt_and_one_of_a_wrong_amount_has_none(shop: BillingServer):
    waiting, wrong, failed = unique("pay"), unique("pay"), unique("pay")
    shop.send_payment(waiting, email=None)
    shop.send_payment(wrong, email=shop.user(), amount="1.00")
    shop.send_payment(failed, "failed", email=shop.user())
    wait_until(lambda: states(shop, waiting) == [("sale", "DONE")])
    assert rows(shop, waiting)[0]["request"]["attributes"] == {"email": "shop@example.com"}
    shop.await_payment(wrong, problem="AMOUNT_MISMATCH")
    shop.await_payment(failed, status="FAILED")
    assert states(shop, wrong) == states(shop, failed) == []


def test_receipts_wait_while_the_cash_desk_is_unavailable(shop: BillingServer, desk: FakeDesk):
    desk.status = 503
    payment = unique("pay")
    shop.send_payment(payment, email=shop.user())
    shop.await_applied(payment)
    wait_until(lambda: shop.rows("select from boathook.delivery where code = 'FetchFailed' and attempts > 0"))
    assert states(shop, payment) == [("sale", "PENDING")]
    desk.status = 200
    wait_until(lambda: states(shop, payment) == [("sale", "DONE")])


def test_a_declined_receipt_is_a_dead_letter_and_is_issued_again_under_a_new_id(shop: BillingServer, desk: FakeDesk):
    desk.outcome = ("ERROR", "the drive is full")
    payment = unique("pay")
    shop.send_payment(payment, email=shop.user())
    wait_until(lambda: states(shop, payment) == [("sale", "FAILED")])
    [row] = rows(shop, payment)
    assert row["error"] == "E: the drive is full"
    wait_until(lambda: shop.rows("select from boathook.delivery where state = 'dead' and code = 'RECEIPT_FAILED'"))
    shop.await_metric("billing_receipts", state="FAILED")
    listed = shop.listing("billing", "receipts", "list", "--state", "FAILED")
    assert [found["error"] for found in listed if found["external_payment_id"] == payment] == ["E: the drive is full"]
    desk.outcome = ("SUCCESS", None)
    shop.cli("billing", "receipts", "reissue", str(row["id"]))
    wait_until(lambda: states(shop, payment) == [("sale", "DONE")])
    assert rows(shop, payment)[0]["external_id"] == f"{row['external_id']}#2" in desk.receipts
    refused = shop.cli("billing", "receipts", "reissue", str(row["id"]), check=False)
    assert (refused.returncode, "no failed receipt" in refused.stderr) == (1, True)


def test_a_request_that_the_cash_desk_refuses_fails_with_its_answer(shop: BillingServer, desk: FakeDesk):
    desk.status = 400
    payment = unique("pay")
    shop.send_payment(payment, email=shop.user())
    wait_until(lambda: states(shop, payment) == [("sale", "FAILED")])
    assert rows(shop, payment)[0]["error"].startswith("the cash desk answers 400: ")


def test_mutant_without_the_unique_key_a_payment_has_several_receipts(monkeypatch, shop: BillingServer):
    """The constraint is what makes it one."""
    assert "on conflict (payment_id, kind, refund_id) do nothing" in receipts.SQL["add"]
    payment = unique("pay")
    shop.send_payment(payment, email=shop.user())
    wait_until(lambda: states(shop, payment) == [("sale", "DONE")])
    shop.rows("alter table billing.receipts drop constraint receipts_payment_id_kind_refund_id_key")
    try:
        twice = (
            "insert into billing.receipts (payment_id, kind, external_id, amount, request)"
            " select payment_id, kind, external_id || 'x', amount, request from billing.receipts r where r.external_id = %s"
        )
        shop.rows(twice, rows(shop, payment)[0]["external_id"])
        assert len(states(shop, payment)) == 2
        shop.rows("delete from billing.receipts where external_id like '%%x'")
    finally:
        shop.rows("alter table billing.receipts add unique (payment_id, kind, refund_id)")


def test_receipts_are_issued_by_the_app_cashdesk(tmp_path, admin_url, pg_template):
    for name in ("desk", "shop"):
        (tmp_path / name).mkdir()
    with CashdeskServer.started(tmp_path / "desk", admin_url, pg_template) as cashdesk:
        token = json.loads(cashdesk.cli("cashdesk", "users", "add", "shop", "--json").stdout)["token"]
        headers = {"authorization": f"Bearer {token}"}
        with httpx.Client(base_url=f"{cashdesk.base}/cabinet/api/", headers=headers, timeout=300) as http:
            device = http.post("devices", json={"serial": "1", "model": "M", "name": "D"}).json()["id"]
            http.post("shifts", json={"device_id": device, "cashier": "Anna"}).raise_for_status()
            table = TABLE.format(url=f"{cashdesk.base}/cabinet/api/receipts", token=token)
            with started(tmp_path / "shop", admin_url, pg_template, billing=table) as shop:
                email, payment = shop.user(), unique("pay")
                shop.send_payment(payment, email=email)
                shop.send_payment(payment, "refunded", email=email)
                wait_until(lambda: states(shop, payment) == [("sale", "DONE"), ("refund", "DONE")])
            sale, refund = http.get("receipts").json()["data"]
    assert [(found["kind"], found["state"], found["total"]) for found in (sale, refund)] == [
        ("sale", "DONE", 99_000), ("refund", "DONE", 99_000),
    ]  # fmt: skip
    assert (sale["email"], sale["tax_mode"], sale["payment"]) == (email, "SIMPLE", "card")
    assert sale["items"] == [
        {
            "product_id": None, "name": "month", "price": 99_000, "quantity": 1, "vat": "none",
            "tags": [{"tag": 1212, "value": 4}, {"tag": 1214, "value": 4}],
        }
    ]  # fmt: skip
