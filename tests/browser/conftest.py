"""A real boathook with its console, an admin who may sign in, and a browser that notes whatever goes wrong in it.

Playwright's plain interface runs an event loop of its own in the test's thread, so tests that use `screen` are no coroutines.
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
from tests.browser.receiver import Receiver, receiving
from tests.support import until

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
assert CHROMIUM, "there is no Chromium; run scripts/need-program chromium chromium"

ADMIN, PASSWORD = "anna", "a long and quiet harbour"


class Stand:
    """A running boathook whose console is looked at."""

    def __init__(self, running: BoathookProcess) -> None:
        self.running = running
        self.base = running.base
        self.db = psycopg.connect(running.database_url, autocommit=True)

    def add_operator(self, name: str, role: str, password: str = PASSWORD) -> None:
        """Let somebody sign in, as an admin does at a shell."""
        command = ("operators", "create", name, "--role", role, "--password-stdin")
        done = subprocess.run(
            [sys.executable, "-m", "boathook", *command],
            cwd=self.running.folder,
            env=self.running.environment,
            input=f"{password}\n",
            text=True,
            capture_output=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr

    def sign_in(self, page: Page, name: str = ADMIN, password: str = PASSWORD) -> None:
        page.goto(f"{self.base}/console/sign-in")
        page.get_by_label("Name").fill(name)
        page.get_by_label("Password").fill(password)
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url(f"{self.base}/console*")

    def post_event(self, key: str, kind: str = "payment.paid", **more: Any) -> str:
        """Send one signed event of Stripe's, and return its id."""
        body, headers = signed(payload(key, kind, **more))
        answer = httpx.post(f"{self.base}/in/stripe", content=body, headers=headers, timeout=30)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["event_id"])

    def ask(self, sql: str, *values: Any) -> list[Any]:
        return self.db.execute(sql, values).fetchall()


class Screen:
    """A page of a browser, and whatever went wrong in it."""

    def __init__(self, page: Page, stand: Stand) -> None:
        self.page = page
        self.stand = stand
        self.faults: list[str] = []
        self.expected: set[str] = set()
        """Parts of faults that a test brings about on purpose."""
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
        self.page.goto(f"{self.stand.base}/console{path}")
        return self.page

    def check(self) -> None:
        unexpected = [fault for fault in self.faults if not any(part in fault for part in self.expected)]
        assert not unexpected, unexpected


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


@pytest.fixture(scope="module")
def console(shared_boathook: Callable[..., BoathookProcess]) -> Iterator[Stand]:  # noqa: F811
    """A boathook with every role, the shop's handlers, and the admin anna."""
    running = shared_boathook(
        roles="gateway,worker,console,keeper",
        senders=1,
        extra="""
            [outbound]
            allow = ["127.0.0.0/8"]
        """,
    )
    until(lambda: httpx.get(f"{running.base}/console/sign-in").status_code == 200, timeout=60)
    stand = Stand(running)
    stand.add_operator(ADMIN, "admin")
    yield stand
    stand.db.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The distribution's Chromium."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    """A browser's profile of its own."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(30_000)
    yield context
    context.close()


@pytest.fixture
def stranger(console: Stand, context: BrowserContext) -> Iterator[Screen]:
    """A page of somebody who has not signed in; at the end, nothing may have gone wrong in it."""
    screen = Screen(context.new_page(), console)
    yield screen
    screen.check()


@pytest.fixture
def screen(console: Stand, stranger: Screen) -> Screen:
    """A page of the admin, who has signed in."""
    console.sign_in(stranger.page)
    return stranger


def shoot(page: Page, name: str) -> None:
    """Keep pictures of a page where somebody asks for them."""
    if folder := os.environ.get("BOATHOOK_TEST_SHOTS"):
        for look in ("light", "dark"):
            page.emulate_media(color_scheme=look)
            page.screenshot(path=f"{folder}/{name}-{look}.png", full_page=True)
        page.emulate_media(color_scheme="no-preference")
