"""The cabinet's pages in a real browser: used as a shop does, and attacked without an account."""

import os
import re
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import httpx
import pytest
from playwright.async_api import ConsoleMessage, Dialog, Page, async_playwright

from boathook_cashdesk.receiver import Receiver
from tests.apps.cashdesk.conftest import cabinet, receiver  # noqa: F401 - fixtures
from tests.apps.cashdesk.server import ALL, NONE, Cabinet, Client, wait_until_delivered
from tests.browser.conftest import chromium
from tests.sender_harness import Reply, Sink
from tests.support import eventually

pytestmark = pytest.mark.extended("the pages are seen by the tour of every page and tested on PostgreSQL")

XSS = (
    "<script>alert(1)</script>",
    '"><img/src=x/onerror=alert(2)>',
    "{{7*7}}",
    "javascript:alert(3)",
)


class CheckedPage:
    """A browser page that records dialogs, console errors and exceptions."""

    def __init__(self, page: Page, base: str) -> None:
        self.page = page
        self.base = base
        self.faults: list[str] = []
        page.on("dialog", self._dialog)
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))

    def _console(self, line: ConsoleMessage) -> None:
        if line.type == "error":
            self.faults.append(f"console: {line.text}")

    async def _dialog(self, dialog: Dialog) -> None:
        self.faults.append(f"dialog: {dialog.message}")
        await dialog.dismiss()

    async def log_in(self, shop: Client) -> None:
        await self.page.goto(f"{self.base}/cabinet/")
        await self.page.get_by_label("Token").fill(shop.token)
        await self.page.get_by_role("button", name="Sign in").click()
        await self.page.get_by_role("heading", name="Webhooks").wait_for()


@pytest.fixture
async def plain_page(cabinet: Cabinet) -> AsyncIterator[CheckedPage]:  # noqa: F811
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        # Without scripts, as the pages must work so; the test's own evaluations still run.
        page = await browser.new_page(java_script_enabled=False)
        yield CheckedPage(page, cabinet.running.base)
        await browser.close()


@pytest.fixture
async def scripted_page(cabinet: Cabinet) -> AsyncIterator[CheckedPage]:  # noqa: F811
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        yield CheckedPage(await browser.new_page(), cabinet.running.base)
        await browser.close()


async def test_webhooks_are_created_changed_tested_and_deleted(
    cabinet: Cabinet,  # noqa: F811
    receiver: Receiver,  # noqa: F811
    plain_page: CheckedPage,
):
    shop, page = await cabinet.client("Tea & Co"), plain_page.page
    await plain_page.log_in(shop)
    assert await page.get_by_text("There are none yet.").is_visible()

    await page.get_by_role("link", name="New webhook").click()
    await page.get_by_label("URL").fill(f"{receiver.base}/browser")
    await page.get_by_label("products").check()
    await page.get_by_label("shifts").check()
    await page.get_by_role("button", name="Create").click()
    await page.get_by_text("The webhook was created.").wait_for()
    (made,) = (await shop.do("GET", "webhooks"))["data"]
    assert made["types"] == NONE | {"products": True, "shifts": True}
    assert made["active"] is True

    await page.get_by_role("button", name="Show the secret").click()
    secret = await page.locator("code.secret").inner_text()
    assert secret == (await shop.do("GET", f"webhooks/{made['id']}/secret"))["secret"]
    receiver.secrets["/browser"] = secret

    await page.get_by_role("button", name="Send a test event").click()
    await page.get_by_text("A test event is on its way").wait_for()
    await wait_until_delivered(cabinet, shop.user)
    assert receiver.tests["/browser"] == 1
    await page.reload()
    if folder := os.environ.get("BOATHOOK_TEST_SHOTS"):
        await page.screenshot(path=f"{folder}/cabinet.png", full_page=True)
    assert await page.locator("table.attempts .good").inner_text() == "204"

    await page.get_by_label("shifts").uncheck()
    await page.get_by_label("receipts").check()
    await page.get_by_role("button", name="Save").click()
    await page.get_by_text("The changes were saved.").wait_for()
    assert (await shop.do("GET", f"webhooks/{made['id']}"))["types"] == NONE | {"products": True, "receipts": True}

    await page.get_by_role("link", name="Cabinet").first.click()
    await page.get_by_role("button", name="Deactivate").click()
    await page.get_by_text("inactive").wait_for()
    assert (await shop.do("GET", f"webhooks/{made['id']}"))["active"] is False
    await page.get_by_role("button", name="Activate").click()
    await page.get_by_role("button", name="Deactivate").wait_for()
    assert (await shop.do("GET", f"webhooks/{made['id']}"))["sending"] is True

    await page.get_by_role("link", name="Delete").click()
    await page.get_by_role("heading", name="Delete this webhook?").wait_for()
    await page.get_by_role("button", name="Delete").click()
    await page.get_by_text("There are none yet.").wait_for()
    assert (await shop.do("GET", "webhooks"))["data"] == []

    await page.get_by_role("button", name="Sign out").click()
    await page.get_by_role("heading", name="Sign in").wait_for()
    await page.goto(f"{plain_page.base}/cabinet/webhooks/new")
    await page.get_by_role("heading", name="Sign in").wait_for()
    assert plain_page.faults == []


async def test_an_invalid_form_shows_the_error_and_keeps_its_values(cabinet: Cabinet, plain_page: CheckedPage):  # noqa: F811
    shop, page = await cabinet.client(), plain_page.page
    await plain_page.log_in(shop)
    await page.get_by_role("link", name="New webhook").click()
    await page.get_by_label("URL").fill("http://10.0.0.1/hooks")
    await page.get_by_label("devices").check()
    await page.get_by_role("button", name="Create").click()
    assert "may not be reached" in await page.get_by_role("alert").inner_text()
    assert await page.get_by_label("URL").input_value() == "http://10.0.0.1/hooks"
    assert await page.get_by_label("devices").is_checked()
    assert (await shop.do("GET", "webhooks"))["data"] == []


async def test_customer_input_is_escaped(cabinet: Cabinet, scripted_page: CheckedPage):  # noqa: F811
    """Names, addresses, answers of receivers and addresses of pages: shown as they are, never run."""
    page = scripted_page.page
    async with Sink(lambda _: Reply(400, body="".join(XSS).encode())).open() as evil:
        shop = await cabinet.client(XSS[0] + XSS[1])
        await scripted_page.log_in(shop)
        assert XSS[0] + XSS[1] in await page.locator("header").inner_text()
        made = [
            await shop.do("POST", "webhooks", {"url": f"{evil.base}/?q={payload}", "types": ALL}) for payload in XSS
        ]
        await shop.do("POST", f"webhooks/{made[0]['id']}/test")
        await eventually(lambda: evil.requests)
        for webhook, payload in zip(made, XSS, strict=True):
            await page.goto(f"{scripted_page.base}/cabinet/webhooks/{webhook['id']}?done={payload}")
            assert await page.get_by_label("URL").input_value() == webhook["url"]
            assert await page.locator("main script, main img").count() == 0
        first = f"{scripted_page.base}/cabinet/webhooks/{made[0]['id']}"
        is_shown: Any = await eventually(partial(shows_answer, page, first))
        assert is_shown
        await page.goto(f"{scripted_page.base}/cabinet/")
        for payload in XSS:
            assert await page.get_by_role("link", name=f"{evil.base}/?q={payload}", exact=True).count() == 1
    assert await page.evaluate("document.scripts.length") == 0
    assert scripted_page.faults == []


async def shows_answer(page: Page, url: str) -> bool:
    await page.goto(url)
    return "".join(XSS) in await page.locator("table.attempts").inner_text(timeout=1_000)


async def test_scripts_are_refused_by_the_browser_itself(cabinet: Cabinet, scripted_page: CheckedPage):  # noqa: F811
    """Mutant: even with markup in a page, the content security policy keeps it from running."""
    await scripted_page.log_in(await cabinet.client())
    await scripted_page.page.evaluate(
        "() => { const s = document.createElement('script'); s.textContent = 'alert(9)'; document.body.append(s); }"
    )
    assert any("Content Security Policy" in fault for fault in scripted_page.faults)
    assert not any(fault.startswith("dialog") for fault in scripted_page.faults)


class TestForgery:
    """Another site's page submits the form with the browser's cookie; the form must be rejected."""

    @pytest.fixture
    async def logged_in(self, cabinet: Cabinet) -> AsyncIterator[tuple[Client, httpx.AsyncClient, str]]:  # noqa: F811
        shop = await cabinet.client()
        base = cabinet.running.base
        async with httpx.AsyncClient(base_url=base, headers={"origin": base}) as http:
            answer = await http.post("/cabinet/sign-in", data={"token": shop.token})
            assert answer.status_code == 303
            cookie = answer.headers["set-cookie"].lower()
            assert all(word in cookie for word in ("httponly", "samesite=strict", "path=/cabinet"))
            page = (await http.get("/cabinet/webhooks/new")).text
            csrf = re.search(r'name="csrf" value="([0-9a-f]+)"', page)
            assert csrf is not None
            yield shop, http, csrf[1]

    async def test_a_form_of_our_own_counts(self, logged_in: tuple[Client, httpx.AsyncClient, str]):
        shop, http, csrf = logged_in
        answer = await http.post("/cabinet/webhooks/new", data={"csrf": csrf, "url": "https://a.example/"})
        assert answer.status_code == 303
        assert len((await shop.do("GET", "webhooks"))["data"]) == 1

    @pytest.mark.parametrize(
        ("origin", "token"),
        [
            ("own", ""), ("own", "0" * 64), ("own", "é"), ("https://evil.example", "own"), ("null", "own"),
            ("", "own"), ("http://127.0.0.1:1", "own"),
        ],
    )  # fmt: skip
    async def test_others_do_not(self, logged_in: tuple[Client, httpx.AsyncClient, str], origin: str, token: str):
        shop, http, csrf = logged_in
        made = await shop.do("POST", "webhooks", {"url": "https://a.example/", "types": {}})
        headers = {"origin": str(http.base_url) if origin == "own" else origin}
        form = {"csrf": csrf if token == "own" else token, "url": "https://evil.example/", "active": "no"}
        for path in (
            "new",
            *(f"{made['id']}{what}" for what in ("", "/active", "/delete", "/test", "/secret", "/replay")),
        ):
            answer = await http.post(f"/cabinet/webhooks/{path}", data=form, headers=headers)
            assert answer.status_code == 403, path
        assert (await http.post("/cabinet/sign-out", data=form, headers=headers)).status_code == 403
        assert (await shop.do("GET", "webhooks"))["data"] == [made]

    async def test_a_cross_origin_login_is_refused(self, cabinet: Cabinet):  # noqa: F811
        shop = await cabinet.client()
        async with httpx.AsyncClient(base_url=cabinet.running.base) as http:
            for headers in ({"origin": "https://evil.example"}, {}):
                answer = await http.post("/cabinet/sign-in", data={"token": shop.token}, headers=headers)
                assert answer.status_code == 403
                assert "set-cookie" not in answer.headers

    async def test_anothers_webhook_is_not_there(
        self,
        cabinet: Cabinet,  # noqa: F811
        logged_in: tuple[Client, httpx.AsyncClient, str],
    ):
        _, http, csrf = logged_in
        other = await cabinet.client()
        theirs = await other.do("POST", "webhooks", {"url": "https://theirs.example/", "types": {}})
        for path in ("", "/delete"):
            answer = await http.get(f"/cabinet/webhooks/{theirs['id']}{path}")
            assert answer.status_code == 404
            assert "theirs.example" not in answer.text
        for path in ("", "/active", "/delete", "/test", "/secret", "/replay"):
            form = {"csrf": csrf, "url": "https://evil.example/", "delivery": "dlv_x"}
            assert (await http.post(f"/cabinet/webhooks/{theirs['id']}{path}", data=form)).status_code == 404
        assert (await other.do("GET", "webhooks"))["data"] == [theirs]

    async def test_a_session_ends_with_the_logout(self, logged_in: tuple[Client, httpx.AsyncClient, str]):
        _, http, csrf = logged_in
        session = http.cookies["cashdesk_session"]
        assert (await http.post("/cabinet/sign-out", data={"csrf": csrf})).status_code == 303
        http.cookies.set("cashdesk_session", session)
        assert (await http.get("/cabinet/")).headers["location"] == "/cabinet/sign-in"


async def test_pages_have_security_headers(cabinet: Cabinet):  # noqa: F811
    async with httpx.AsyncClient(base_url=cabinet.running.base) as http:
        answer = await http.get("/cabinet/sign-in")
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["cache-control"] == "no-store"
        links = re.findall(r'(?:href|src)="([^"#]+)"', answer.text)
        assert links
        for link in links:
            assert link.startswith("/cabinet/"), "nothing comes from elsewhere"
            assert (await http.get(link, follow_redirects=True)).status_code == 200
