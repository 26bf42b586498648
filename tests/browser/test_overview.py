"""The overview as an operator sees it: the answer, figures, live over server-sent events, and charts with tables."""

import contextlib
import re
import time
from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Browser, Page, Route, expect

from boathook_console.live import MAX_READERS_PER_OPERATOR
from tests.browser.conftest import ADMIN, PASSWORD, CheckedPage, ConsoleServer
from tests.support import until

pytestmark = pytest.mark.extended("the pages are seen by the tour of every page and tested on PostgreSQL")

expect.set_options(timeout=30_000)
DRAIN_S = 20.0
"""What the settings allow for stopping."""
FORM_TOKEN = re.compile(r'name="csrf" value="([^"]+)"')


@pytest.fixture(scope="module")
def client(console: ConsoleServer) -> Iterator[httpx.Client]:
    """A signed-in HTTP client without a browser."""
    with signed_in(console) as client:
        yield client


@contextlib.contextmanager
def signed_in(console: ConsoleServer, name: str = ADMIN) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=console.base, timeout=300, headers={"origin": console.base}) as client:
        token = FORM_TOKEN.search(client.get("/console/sign-in").text)
        fields = {"name": name, "password": PASSWORD, "csrf": token[1] if token else ""}
        assert client.post("/console/sign-in", data=fields).status_code == 303
        yield client


def read_until(lines: Iterator[str], wanted: str) -> str:
    """Read a stream until a line holds *wanted*, and return that line."""
    for line in lines:
        if wanted in line:
            return line
    raise AssertionError(f"the stream ended without {wanted!r}")


def test_an_event_appears_while_the_page_is_open(console: ConsoleServer, admin_page: CheckedPage) -> None:
    page = admin_page.go("")
    expect(page.locator("#overview-link")).to_have_text("Live")
    console.post_event("overview-live-1", "payment.paid")
    expect(page.locator("#n-events")).to_contain_text("payment.paid")
    expect(page.locator("#n-sources")).to_contain_text("stripe")
    expect(page.locator("#n-system")).to_contain_text("1 keeper")


def test_a_dead_letter_appears_while_the_page_is_open(console: ConsoleServer, admin_page: CheckedPage) -> None:
    page = admin_page.go("")
    expect(page.locator("#overview-link")).to_have_text("Live")
    console.post_event("overview-dead-1", "broken.overview")
    expect(page.locator("#n-letters")).to_contain_text("this never works")
    expect(page.locator("#n-status")).to_contain_text("1 failed delivery")
    page.locator("#n-status").get_by_role("link", name="1 failed delivery").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Failed deliveries")


def test_charts_are_drawn_of_tables_that_hold_the_same_numbers(console: ConsoleServer, admin_page: CheckedPage) -> None:
    console.ask("""
        insert into boathook.metric_sample (step_s, at, host, series, totals, is_rolled_up)
        select 10, now() - interval '10 min', 'elsewhere', told, told, false
        from (
            select '{"span_s": 10, "counters": {"boathook_events_accepted_total": [[["shop"], 1250]]}}'::json as told
        ) as host
        returning 1
    """)
    page = admin_page.go("?span=hour")
    until_shown(page, "125")
    chart = page.locator('[data-chart="throughput"]')
    expect(chart.locator(".uplot canvas")).to_be_visible()
    expect(chart.locator("details tbody tr")).to_have_count(120)
    expect(chart.locator("details tbody tr", has_text="125")).to_be_hidden()
    chart.get_by_text("as a table").click()
    expect(chart.locator("details tbody tr", has_text="125")).to_be_visible()
    page.get_by_role("link", name="Week").click()
    expect(page.get_by_role("heading", name="The last week")).to_be_visible()


def until_shown(page: Page, number: str) -> None:
    """Load the page until its charts, which are kept for some seconds, hold a number."""
    cells = page.locator('[data-chart="throughput"] details td')
    until(lambda: page.reload() and number in cells.all_text_contents(), every=1)


def test_without_scripts_the_page_shows_the_same_figures(console: ConsoleServer, client: httpx.Client) -> None:
    console.post_event("overview-plain-1", "payment.plain")
    until(lambda: "payment.plain" in client.get("/console").text)
    page = client.get("/console").text
    assert "Recipients" in page
    assert "1 failed delivery" in page
    assert "As of page load" in page


def test_sender_input_is_escaped(console: ConsoleServer, admin_page: CheckedPage) -> None:
    console.post_event("overview-<img src=x onerror=alert(1)>", "payment.<script>alert(1)</script>")
    page = admin_page.go("")
    expect(page.locator("#n-events")).to_contain_text("<script>alert(1)</script>")


def test_a_stream_ends_at_sign_out(console: ConsoleServer) -> None:
    with signed_in(console) as client, client.stream("GET", "/console/overview/live") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = answer.iter_lines()
        read_until(lines, "event: state")
        token = FORM_TOKEN.search(client.get("/console").text)
        assert token is not None
        client.post("/console/sign-out", data={"csrf": token[1]})
        read_until(lines, "event: end")
        assert not [line for line in lines if line.startswith("event")]


def test_a_stream_does_not_keep_a_session_from_running_out(console: ConsoleServer) -> None:
    console.add_operator("idle", "viewer")
    with signed_in(console, "idle") as client, client.stream("GET", "/console/overview/live") as answer:
        lines = answer.iter_lines()
        read_until(lines, "event: state")
        console.ask("""
            update boathook.operator_session set seen_at = now() - interval '90 days'
            where operator_id = (select id from boathook.operator where name = 'idle') returning 1
        """)
        read_until(lines, "event: end")


def test_live_endpoints_require_a_session(console: ConsoleServer) -> None:
    for path in ("live", "state", "charts"):
        headers = {"accept": "text/event-stream"}
        assert httpx.get(f"{console.base}/console/overview/{path}", headers=headers).status_code == 401


def test_a_reader_that_does_not_read_blocks_no_other(console: ConsoleServer, client: httpx.Client) -> None:
    with client.stream("GET", "/console/overview/live"), client.stream("GET", "/console/overview/live") as second:
        lines = second.iter_lines()
        read_until(lines, "event: state")
        console.post_event("overview-slow-1", "payment.slow_reader")
        read_until(lines, "payment.slow_reader")


def test_a_disconnecting_reader_is_not_logged_as_a_fault(console: ConsoleServer, admin_page: CheckedPage) -> None:
    page = admin_page.go("")
    expect(page.locator("#overview-link")).to_have_text("Live")
    page.goto("about:blank")
    with signed_in(console) as client, client.stream("GET", "/console/overview/live") as answer:
        read_until(answer.iter_lines(), "event: state")
    assert httpx.get(f"{console.base}/healthz").status_code == 200
    assert "application_fault" not in console.running.log()


def test_too_many_readers_of_an_operator_get_503(console: ConsoleServer, client: httpx.Client) -> None:
    assert client.head("/console/overview/live").status_code == 200
    held = []
    with contextlib.ExitStack() as stack:
        for _ in range(MAX_READERS_PER_OPERATOR):
            reading = stack.enter_context(client.stream("GET", "/console/overview/live")).iter_lines()
            read_until(reading, "event: state")
            held.append(reading)  # an unreferenced one closes its connection
        refused = client.get("/console/overview/live")
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        assert "Acknowledgement" in client.get("/console/overview/state").text


def test_the_page_reconnects_after_a_restart(console: ConsoleServer, admin_page: CheckedPage) -> None:
    admin_page.expected |= {"Failed to load resource", "overview/live"}
    page = admin_page.go("")
    expect(page.locator("#overview-link")).to_have_text("Live")
    began = time.monotonic()
    assert console.running.stop() == 0
    assert time.monotonic() - began < DRAIN_S, "the open stream held the gateway up"
    console.running.start()
    console.post_event("overview-again-1", "payment.again")
    expect(page.locator("#n-events")).to_contain_text("payment.again", timeout=60_000)


def test_open_sections_stay_open_on_updates(console: ConsoleServer, admin_page: CheckedPage) -> None:
    page = admin_page.page
    admin_page.expected |= {"Failed to load resource", "overview/live"}
    with signed_in(console) as client:
        changed = client.get("/console/overview/state").text.replace("System: 1 host", "System: 7 hosts")
    page.route("**/overview/live", lambda route: route.fulfill(status=503))
    page.route("**/overview/state", lambda route: route.fulfill(body=changed, content_type="text/html"))
    page.goto(f"{console.base}/console", wait_until="commit")
    page.locator("#n-system summary").click()
    page.locator("#overview-more > summary").click()
    expect(page.locator("#n-system summary")).to_contain_text("System: 7 hosts")
    expect(page.locator("#n-system")).to_have_attribute("open", "")
    expect(page.locator('[data-chart="backlog"] .overview-plot')).to_be_visible()


def test_charts_opened_before_the_script_runs_stay_open(console: ConsoleServer, admin_page: CheckedPage) -> None:
    page = admin_page.page
    held: list[Route] = []
    page.route("**/overview*.js*", lambda route: held.append(route))  # noqa: PLW0108 - it takes no built-in function
    page.goto(f"{console.base}/console", wait_until="commit")
    page.locator("#overview-more > summary").click()
    until(lambda: bool(held))
    held[0].continue_()
    expect(page.locator("#overview-link")).to_have_text("Live", timeout=60_000)
    expect(page.locator("#overview-more")).to_have_attribute("open", "")


def test_the_sidebar_collapses_and_stays_so(admin_page: CheckedPage) -> None:
    page = admin_page.go("")
    sidebar = page.get_by_role("navigation", name="Console")
    wide = sidebar.bounding_box()
    page.get_by_role("button", name="Collapse").click()
    page.reload()
    narrow = sidebar.bounding_box()
    assert wide is not None
    assert narrow is not None
    assert (wide["width"], narrow["width"]) == (224, 56)
    sidebar.get_by_role("link", name="Failed deliveries").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Failed deliveries")


def test_on_a_phone_the_sidebar_opens_without_scripts(console: ConsoleServer, browser: Browser) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 844}, java_script_enabled=False)
    page = context.new_page()
    console.sign_in(page)
    sidebar = page.get_by_role("navigation", name="Console")
    expect(sidebar).to_be_hidden()
    page.get_by_role("button", name="Menu").click()
    sidebar.get_by_role("link", name="Sources").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Sources")
    context.close()
