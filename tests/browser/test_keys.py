"""Keys of the API on the console: the token is seen once, and nowhere else."""

import httpx
import pytest

from tests.browser.conftest import CheckedPage, ConsoleServer

pytestmark = pytest.mark.extended("the pages are seen by the tour of every page and tested on PostgreSQL")


def make(admin_page: CheckedPage, name: str) -> str:
    page = admin_page.go("/keys")
    page.get_by_label("Name", exact=True).fill(name)
    page.get_by_label("Expires").select_option(label="in 30 days")
    page.get_by_role("button", name="Create key").click()
    page.get_by_role("heading", name=name).wait_for()
    return page.locator("main pre").inner_text()


def test_a_key_is_made_used_and_revoked(admin_page: CheckedPage, console: ConsoleServer):
    token = make(admin_page, "backend")
    assert token.startswith("bhk_")

    def ask() -> int:
        return httpx.get(f"{console.base}/api/v1/app", headers={"authorization": f"Bearer {token}"}).status_code

    assert ask() == 200
    page = admin_page.go("/keys")
    page.get_by_role("row").filter(has_text="backend").get_by_role("button", name="Revoke").click()
    page.get_by_role("button", name="Confirm").click()
    page.get_by_text("is revoked.").wait_for()
    assert ask() == 401


def test_the_token_is_in_no_address_no_cookie_no_cache_and_no_log(admin_page: CheckedPage, console: ConsoleServer):
    answers = []
    admin_page.page.on("response", lambda answer: answers.append(answer))  # noqa: PLW0108 - Playwright marks what it calls
    token = make(admin_page, "secretive")
    shown = [answer for answer in answers if answer.request.method == "POST"]
    assert [answer.headers["cache-control"] for answer in shown] == ["no-store"]
    assert all(token not in answer.url for answer in answers)
    assert all(token not in cookie["value"] for cookie in admin_page.page.context.cookies())
    page = admin_page.go("/keys")
    assert token not in page.content()
    page.go_back()
    assert token not in console.running.log()
    assert console.ask("select count(*) from boathook.audit where note like %s", f"%{token}%") == [(0,)]


def test_a_key_for_one_application_needs_one_that_is_there(admin_page: CheckedPage):
    admin_page.expected.add("400")
    page = admin_page.go("/keys")
    page.get_by_label("Name", exact=True).fill("of acme")
    page.get_by_label("Scope").select_option(label="one application")
    page.get_by_label("Application", exact=True).fill("nobody")
    page.get_by_role("button", name="Create key").click()
    page.get_by_text("unknown application nobody").wait_for()
    assert page.get_by_label("Name", exact=True).input_value() == "of acme"


def test_portal_keys_are_listed_separately(admin_page: CheckedPage, console: ConsoleServer):
    token = make(admin_page, "for the portal")
    with httpx.Client(base_url=f"{console.base}/api/v1", headers={"authorization": f"Bearer {token}"}) as api:
        assert api.post("/app", json={"name": "Acme", "uid": "acme-of-keys"}).status_code == 201
        opened = api.post("/auth/app-portal-access/acme-of-keys", json={"sessionId": "visitor-7"})
        assert opened.status_code == 200, opened.text
    assert "visitor-7" not in admin_page.go("/keys").content()
    assert "visitor-7" in admin_page.go("/keys?portal=yes").content()
