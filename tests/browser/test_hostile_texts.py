"""More than four hundred hostile texts in every field that senders can fill: no page executes one."""

import re
from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Browser, Page

from tests.browser.conftest import CheckedPage, ConsoleServer
from tests.browser.hostile_texts import PAYLOADS
from tests.browser.receiver import open_receiver
from tests.browser.sample_data import SampleData, paths_of

pytestmark = pytest.mark.extended("the pages are seen by the tour of every page and tested on PostgreSQL")

_MAX_PAGES = 150


@pytest.fixture(scope="module")
def attacked(console: ConsoleServer) -> Iterator[ConsoleServer]:
    with open_receiver() as receiver:
        sample_data = SampleData(console, receiver, PAYLOADS)
        sample_data.all()
        while sample_data.used < 2 * len(PAYLOADS):
            sample_data.receive()
            sample_data.refuse()
            sample_data.conflict()
        sample_data.api.close()
        yield console


def test_no_page_executes_hostile_texts(attacked: ConsoleServer, admin_page: CheckedPage):
    before = reports(attacked)
    waiting, seen = ["/console"], set[str]()
    admin_page.page.add_init_script("window.ran = 0")
    while waiting and len(seen) < _MAX_PAGES:
        path = waiting.pop(0)
        if path in seen or path == "/console/overview/live":
            continue
        seen.add(path)
        admin_page.page.goto(f"{attacked.base}{path}")
        assert admin_page.page.evaluate("window.ran") == 0, path
        assert planted(admin_page.page) == [], path
        waiting += [one for one in paths_of(admin_page.page, attacked.base) if one not in seen]
    assert len(seen) > 80
    assert reports(attacked) == before


def planted(page: Page) -> list[str]:
    """Return the elements of a page that only a hostile text could have created."""
    found: list[str] = page.evaluate("""() => [...document.querySelectorAll('*')]
        .filter(one => [...one.attributes].some(({name}) => /^(on|hx-on|data-hx-on)/.test(name))
            || /^(javascript|data|vbscript):/i.test(one.href?.baseVal ?? one.href ?? one.src ?? '')
            || ['IFRAME', 'OBJECT', 'EMBED', 'MARQUEE', 'MATH', 'BASE', 'PORTAL', 'X'].includes(one.tagName))
        .map(one => one.outerHTML.slice(0, 200))""")
    return found


def reports(server: ConsoleServer) -> float:
    page = httpx.get(f"{server.base}/metrics").text
    return sum(float(one) for one in re.findall(r"^boathook_csp_reports_total (\S+)", page, re.MULTILINE))


def test_without_both_safeguards_they_run(browser: Browser):
    """The mutant: as markup and without the policy, many of the same texts do run; with the policy alone, none."""
    assert ran(browser, {}) > 60
    assert ran(browser, {"content-security-policy": "default-src 'none'; script-src 'self'; frame-src 'none'"}) == 0


def ran(browser: Browser, headers: dict[str, str]) -> int:
    """Return how many of the texts run where they are put into a page as they are."""
    context = browser.new_context()
    page = context.new_page()
    texts = iter(PAYLOADS)
    page.route("**/*", lambda route: route.fulfill(
        content_type="text/html", headers=headers, body=f"<!doctype html><p>{next(texts)}</p>"))  # fmt: skip
    runs = 0
    for _ in PAYLOADS[:120]:
        page.goto("http://hostile.test/", wait_until="domcontentloaded")
        runs += page.evaluate("window.ran === 1")
    context.close()
    return runs
