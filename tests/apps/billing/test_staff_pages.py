"""The support page, as staff use it in a browser, in both languages."""

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.apps.billing.server import ROLES, BillingServer, started, unique, wait_until

STAFF = "/billing/staff"


class Browser:
    """A browser of somebody who may be signed in."""

    def __init__(self, shop: BillingServer, language: str = "en") -> None:
        self.base, self.headers = shop.base, {"origin": shop.base, "accept-language": language}
        self.cookies = httpx.Cookies()

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        headers = self.headers | options.pop("headers", {})
        with httpx.Client(base_url=self.base + STAFF, headers=headers, cookies=self.cookies, timeout=300) as http:
            response = http.request(method, path, **options)
            self.cookies = http.cookies
        return response

    def sign_in(self, name: str, password: str) -> httpx.Response:
        return self.request("POST", "/sign-in", data={"name": name, "password": password})

    def read(self, path: str = "/", **query: str) -> str:
        response = self.request("GET", path, params=query or None)
        assert response.status_code == 200, response.text
        return response.text

    def post(self, path: str, status: int = 200, **form: str) -> str:
        token = re.search(r'name="csrf" value="([0-9a-f]+)"', self.read())
        assert token is not None
        response = self.request("POST", path, data={"csrf": token[1], **form}, follow_redirects=True)
        assert response.status_code == status, response.text
        return response.text


def add_staff(shop: BillingServer, *roles: str) -> tuple[str, str]:
    """Add a member of the staff; return name and password."""
    name = unique("staff")
    options = [word for role in roles for word in ("--role", role)]
    made = json.loads(shop.cli("billing", "staff", "add", name, *options, "--json").stdout)
    return name, made["password"]


@pytest.fixture(scope="module")
def shop(tmp_path_factory, admin_url, pg_template) -> Iterator[BillingServer]:
    folder = tmp_path_factory.mktemp("staff")
    zone = 'time_zone = "Europe/Moscow"\n'
    with started(folder, admin_url, pg_template, billing=zone, roles=f"{ROLES},console") as running:
        yield running


@pytest.fixture(scope="module")
def account(shop: BillingServer) -> tuple[str, str]:
    return add_staff(shop, "support")


@pytest.fixture
def staff(shop: BillingServer, account: tuple[str, str]) -> Browser:
    browser = Browser(shop)
    assert browser.sign_in(*account).status_code == 303
    return browser


def test_a_payment_is_found_by_email_and_by_id_and_shows_its_history(shop: BillingServer, staff: Browser):
    email, payment, event = shop.user(), unique("pay"), unique("evt")
    shop.send_payment(payment, "pending", email=email)
    shop.send_payment(payment, email=email, event_id=event)
    shop.await_end(event, "succeeded")
    for text in (payment, email.upper()):
        page = staff.read(q=text)
        assert page.count(f">{payment}</a>") == 1
    assert payment not in staff.read(q=unique("other"))
    number = (shop.payment(payment) or {})["id"]
    page = staff.read(f"/payments/{number}")
    for part in (email, "990.00 RUB", "handler:billing.apply", "succeeded", "active", "+0300"):
        assert part in page
    assert page.index("received") < page.index("paid</strong>")


def test_a_waiting_payment_is_applied_to_a_user_who_is_created(shop: BillingServer, staff: Browser):
    payment, email = unique("pay"), f"{unique('new')}@example.com"
    shop.send_payment(payment, email=None)
    number = shop.await_payment(payment, problem="UNLINKED_PAYMENT")["id"]
    assert payment in staff.read(waiting="yes")
    assert "there is no user" in staff.post(f"/payments/{number}/link", 400, email=email)
    assert "resumes" in staff.post(f"/payments/{number}/link", email=email, create="yes")
    shop.await_applied(payment)
    assert "linked" in staff.read(f"/payments/{number}")
    assert payment not in staff.read(waiting="yes")


def test_a_noted_refund_takes_the_days_back_once(shop: BillingServer, staff: Browser):
    email, payment = shop.user(), unique("pay")
    shop.send_payment(payment, email=email)
    number = shop.await_applied(payment)["id"]
    assert "the payment was 990" in staff.post(f"/payments/{number}/refund", 400, note="x", amount="990.01")
    staff.post(f"/payments/{number}/refund", note="by bank transfer", amount="")
    wait_until(lambda: (shop.payment(payment) or {})["reversed_at"])
    assert (shop.subscription(email) or {})["payments_applied"] == 0
    page = staff.read(f"/payments/{number}")
    assert "by bank transfer" in page
    assert f"{STAFF}/payments/{number}/refund" not in page
    assert "nothing to refund" in staff.post(f"/payments/{number}/refund", 400, note="again")
    done = shop.cli("billing", "refund", payment, "--note", "again", check=False)
    assert (done.returncode, "nothing to refund" in done.stderr) == (1, True)


def test_a_refund_by_command_is_that_of_the_page(shop: BillingServer):
    email, payment = shop.user(), unique("pay")
    shop.send_payment(payment, email=email)
    shop.await_applied(payment)
    assert "is being refunded" in shop.cli("billing", "refund", payment, "--note", "cash", "--amount", "1").stdout
    wait_until(lambda: (shop.payment(payment) or {})["reversed_at"])
    [note] = shop.rows("select author, action, text from billing.payment_notes n join billing.payments p"
                       " on p.id = n.payment_id where p.external_payment_id = %s", payment)  # fmt: skip
    assert (note["author"], note["action"], note["text"]) == ("command", "refunded", "cash")


def test_notes_are_shown_escaped_with_their_author(shop: BillingServer, staff: Browser, account: tuple[str, str]):
    payment = unique("pay")
    shop.send_payment(payment, email=shop.user())
    number = shop.await_applied(payment)["id"]
    page = staff.post(f"/payments/{number}/note", note="<script>alert(1)</script>")
    assert "&lt;script&gt;" in page
    assert account[0] in page
    assert staff.post("/payments/999999999/note", 404, note="x")


def test_the_page_is_in_the_language_of_the_browser(shop: BillingServer, account: tuple[str, str]):
    browser = Browser(shop, "ru,en;q=0.5")
    browser.sign_in(*account)
    payment = unique("pay")
    shop.send_payment(payment, email=None)
    number = shop.await_payment(payment, problem="UNLINKED_PAYMENT")["id"]
    page = browser.read(f"/payments/{number}")
    assert '<html lang="ru"' in page
    assert all(word in page for word in ("Платежи", "без пользователя", "Привязать и зачесть", "1 попытка"))


def test_only_support_sees_payments_and_no_form_comes_from_elsewhere(shop: BillingServer, account: tuple[str, str]):
    assert Browser(shop).request("GET", "/").status_code == 303
    other = Browser(shop)
    other.sign_in(*add_staff(shop))
    assert other.request("GET", "/").status_code == 403
    staff = Browser(shop)
    staff.sign_in(*account)
    number = shop.rows("select id from billing.payments limit 1")[0]["id"]
    forged = staff.request("POST", f"/payments/{number}/note", data={"note": "x"})
    assert forged.status_code == 403
    elsewhere = staff.request(
        "POST", f"/payments/{number}/note", data={"note": "x"}, headers={"origin": "https://evil.example"}
    )
    assert elsewhere.status_code == 403
    assert not shop.rows("select from billing.payment_notes where text = 'x'")
