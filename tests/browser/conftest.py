"""Fixtures: a boathook process with its console and an admin, and a browser whose pages record every error.

Playwright's synchronous interface runs its own event loop in the test's thread, so tests with `admin_page` are not coroutines.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import psycopg
import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Dialog, Page, sync_playwright

from tests.acceptance.conftest import BoathookProcess, payload, shared_boathook, signed  # noqa: F401 - a fixture
from tests.browser.receiver import Receiver, open_receiver
from tests.support import until

ADMIN, PASSWORD = "anna", "a long and quiet harbour"


def chromium() -> str:
    """Return where the distribution's Chromium is; `make test` installs it while pytest collects."""
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    assert found, "there is no Chromium; run scripts/need-program chromium chromium"
    return found


class ConsoleServer:
    """A running boathook process with a console."""

    def __init__(self, running: BoathookProcess) -> None:
        self.running = running
        self.base = running.base
        self.db = psycopg.connect(running.database_url, autocommit=True)

    def add_operator(self, name: str, role: str, password: str = PASSWORD) -> None:
        """Create an operator with the command line."""
        command = ("operators", "create", name, "--role", role, "--password-stdin")
        done = subprocess.run(
            [sys.executable, "-m", "boathook", *command],
            cwd=self.running.folder,
            env=self.running.environment,
            input=f"{password}\n",
            text=True,
            capture_output=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr

    def sign_in(self, page: Page, name: str = ADMIN, password: str = PASSWORD) -> None:
        page.goto(f"{self.base}/console/sign-in")
        page.get_by_label("Name").fill(name)
        page.get_by_label("Password").fill(password)
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url(f"{self.base}/console*")

    def post_event(self, key: str, kind: str = "payment.paid", **more: Any) -> str:
        """Send a signed Stripe event and return its event id."""
        body, headers = signed(payload(key, kind, **more))
        answer = httpx.post(f"{self.base}/in/stripe", content=body, headers=headers, timeout=300)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["event_id"])

    def ask(self, sql: str, *values: Any) -> list[Any]:
        return self.db.execute(sql, values).fetchall()


class CheckedPage:
    """A browser page that records dialogs, console errors and exceptions; `check` fails if there were any."""

    def __init__(self, page: Page, server: ConsoleServer) -> None:
        self.page = page
        self.server = server
        self.faults: list[str] = []
        self.expected: set[str] = set()
        """Substrings of errors that a test causes on purpose."""
        page.on("dialog", self._dialog)
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))

    def _console(self, line: ConsoleMessage) -> None:
        if line.type == "error":
            self.faults.append(f"console: {line.text} at {line.location.get('url')}")

    def _dialog(self, dialog: Dialog) -> None:
        self.faults.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def go(self, path: str) -> Page:
        """Open a page below /console."""
        self.page.goto(f"{self.server.base}/console{path}")
        return self.page

    def check(self) -> None:
        unexpected = [fault for fault in self.faults if not any(part in fault for part in self.expected)]
        assert not unexpected, unexpected


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    with open_receiver() as receiver:
        yield receiver


@pytest.fixture(scope="module")
def console(shared_boathook: Callable[..., BoathookProcess]) -> Iterator[ConsoleServer]:  # noqa: F811
    """A boathook process with every role, the sample shop's handlers and the admin anna."""
    running = shared_boathook(
        roles="gateway,worker,console,keeper",
        senders=1,
        extra="""
            [outbound]
            allow = ["127.0.0.0/8"]
            [cells]
            name = "c1"
            secret = "whsec_YSBzZWNyZXQgdGhhdCBwcm92ZXMgbm90aGluZw=="
            [cells.members.c1]
            url = "http://127.0.0.1:9"
            accepts_new = true
        """,
    )
    until(lambda: httpx.get(f"{running.base}/console/sign-in").status_code == 200)
    server = ConsoleServer(running)
    server.add_operator(ADMIN, "admin")
    yield server
    server.db.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The Chromium of the operating system."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    """A new browser profile."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(20_000)
    yield context
    context.close()


@pytest.fixture
def anonymous_page(console: ConsoleServer, context: BrowserContext) -> Iterator[CheckedPage]:
    """A page without a session; at the end it must have recorded no error."""
    checked = CheckedPage(context.new_page(), console)
    yield checked
    checked.check()


@pytest.fixture
def admin_page(console: ConsoleServer, anonymous_page: CheckedPage) -> CheckedPage:
    """A page signed in as the admin."""
    console.sign_in(anonymous_page.page)
    return anonymous_page


@pytest.fixture
def conflict(console: ConsoleServer) -> Callable[[str], str]:
    """Send two bodies under one key, and return the conflict's id."""

    def make(key: str) -> str:
        first = console.post_event(key, "payment.conflicting", amount=100, to="anna")
        assert console.post_event(key, "payment.conflicting", amount=900, to="anna") == first
        sql = "select boathook.show_id('cfl', id) from boathook.conflict where dedup_key = %s"
        return str(until(lambda: console.ask(sql, key))[0][0])

    return make


def take_screenshots(page: Page, name: str) -> None:
    """Save screenshots of a page if BOATHOOK_TEST_SHOTS names a folder."""
    if folder := os.environ.get("BOATHOOK_TEST_SHOTS"):
        for look in ("light", "dark"):
            page.emulate_media(color_scheme=look)
            page.screenshot(path=f"{folder}/{name}-{look}.png", full_page=True)
        page.emulate_media(color_scheme="no-preference")
