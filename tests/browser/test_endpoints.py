"""Applications and endpoints on the console, clicked through as an operator does."""

import re

import pytest
from playwright.sync_api import Page, expect
from standardwebhooks.webhooks import Webhook

from tests.browser.conftest import CheckedPage, ConsoleServer, take_screenshots
from tests.browser.receiver import Receiver
from tests.browser.test_every_page import serious_faults
from tests.support import until

pytestmark = pytest.mark.extended("the pages are seen by the tour of every page and tested on PostgreSQL")


def make_application(admin_page: CheckedPage, name: str) -> Page:
    """Make an application by its form, and stay on its page."""
    page = admin_page.go("/applications")
    page.get_by_role("link", name="New application").click()
    page.get_by_label("Name", exact=True).fill(name)
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("heading", name=name)).to_be_visible()
    return page


def make_endpoint(page: Page, url: str) -> None:
    page.get_by_role("link", name="New endpoint").click()
    page.get_by_label("URL", exact=True).fill(url)
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("status").first).to_contain_text("Endpoint created")


def test_event_types_are_searched_and_selected_in_a_tree(admin_page: CheckedPage, console: ConsoleServer):
    for name in ("tide.high", "tide.low", "boat.left"):
        console.running.cli("event-types", "create", name)
    page = make_application(admin_page, "Jetty")
    page.get_by_role("link", name="New endpoint").click()
    expect(page.get_by_label("Description", exact=True)).to_be_hidden()
    tide, high, low, boat = (page.get_by_label(name) for name in ("tide.*", "tide.high", "tide.low", "boat.left"))
    page.get_by_label("Search event types").fill("HIGH")
    expect(high).to_be_visible()
    expect(tide).to_be_visible()
    expect(low).to_be_hidden()
    expect(boat).to_be_hidden()
    page.get_by_label("Search event types").press("Enter")  # does not submit the form
    page.get_by_label("Search event types").fill("")
    tide.check()
    expect(high).to_be_checked()
    low.uncheck()
    expect(tide).not_to_be_checked()
    expect(high).to_be_checked()
    assert tide.evaluate("one => one.indeterminate")
    assert serious_faults(page) == []
    page.get_by_label("URL", exact=True).fill(url := "http://127.0.0.1:8999/jetty")
    page.get_by_text("Advanced: ").click()
    page.get_by_label("Filter").fill("{")
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_label("Filter")).to_be_visible()
    expect(high).to_be_checked()
    page.get_by_label("Filter").fill("")
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_text("Endpoint created")).to_be_visible()
    admin_page.expected |= {"400"}
    assert console.ask("select event_types from boathook.endpoint where url = %s", url) == [(["tide.high"],)]


def agree(page: Page) -> None:
    """Confirm an irreversible action."""
    page.get_by_role("dialog").get_by_role("button", name="Confirm").click()


def test_an_endpoint_is_created_and_tested_with_a_live_result(admin_page: CheckedPage, receiver: Receiver):
    page = make_application(admin_page, "Harbour")
    make_endpoint(page, f"{receiver.base}/test")
    home = page.url
    page.get_by_role("button", name="Send a test").click()
    expect(page.get_by_text("thank you")).to_be_visible()
    expect(page.locator("#result")).to_contain_text("succeeded 200")
    assert len(receiver.to("/test")) == 1
    take_screenshots(page, "endpoint-test")
    page.goto(home)
    expect(page.get_by_role("row").filter(has_text="svix.ping")).to_have_count(1)
    assert page.get_by_role("img", name=re.compile("1 attempts succeeded and 0 failed")).is_visible()
    take_screenshots(page, "endpoint")


def test_a_secret_is_shown_and_rotated_and_both_sign(admin_page: CheckedPage, receiver: Receiver):
    page = make_application(admin_page, "Lighthouse")
    make_endpoint(page, f"{receiver.base}/secret")
    home = page.url

    def shown_secret() -> str:
        page.goto(home)
        page.get_by_role("button", name="Show the secret").click()
        agree(page)
        page.get_by_role("heading", name="Verification secret").wait_for()
        return page.locator("main pre code").inner_text()

    former = shown_secret()
    page.goto(home)
    page.get_by_role("button", name="Rotate").click()
    agree(page)
    expect(page.get_by_text("Previous secret, also used until")).to_be_visible()
    current = shown_secret()
    assert former != current
    page.goto(home)
    page.get_by_role("button", name="Send a test").click()
    expect(page.locator("#result")).to_contain_text("succeeded")
    ((_, headers, body),) = receiver.to("/secret")
    for secret in (former, current):
        Webhook(secret).verify(body.decode(), headers)


def test_a_failed_message_is_shown_and_resent(admin_page: CheckedPage, receiver: Receiver, console: ConsoleServer):
    page = make_application(admin_page, "Breakwater")
    home = page.url
    make_endpoint(page, f"{receiver.base}/again")
    endpoint = page.url
    page.goto(home)
    page.get_by_role("link", name="Publish a message").click()
    page.get_by_label("Event type").fill("tide.turned")
    page.get_by_label("Payload").fill('{"height": 4}')
    page.get_by_role("button", name="Publish").click()
    expect(page.get_by_role("heading", name="tide.turned")).to_be_visible()
    until(lambda: receiver.to("/again"))
    until(lambda: (page.reload(), page.get_by_role("button", name="Send again").count())[1])
    page.get_by_role("button", name="Send again").click()
    until(lambda: len(receiver.to("/again")) == 2)
    assert [body for _, _, body in receiver.to("/again")] == [b'{"height": 4}'] * 2
    take_screenshots(page, "message")
    page.goto(f"{endpoint}/attempts?result=succeeded")
    until(lambda: (page.reload(), page.locator("tbody tr").count())[1] == 2)
    take_screenshots(page, "attempts")
    page.locator("tbody tr a").first.click()
    expect(page.get_by_role("cell", name="webhook-signature")).to_be_visible()
    take_screenshots(page, "attempt")


def test_an_endpoint_is_disabled_enabled_and_deleted_after_confirmation(admin_page: CheckedPage, receiver: Receiver):
    page = make_application(admin_page, "Pier")
    make_endpoint(page, f"{receiver.base}/switch")
    page.get_by_role("button", name="Disable").click()
    agree(page)
    expect(page.get_by_text("Disabled by anna, in the console. Pending deliveries are kept.")).to_be_visible()
    expect(page.get_by_role("button", name="Send a test")).to_have_count(0)
    page.get_by_role("button", name="Enable").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("idle")  # no attempt in the range
    page.get_by_text("Delete this endpoint").click()
    label = page.get_by_label(re.compile(r"^Type ep_"))
    label.fill("ep_other")
    page.get_by_role("button", name="Delete").click()
    expect(page.get_by_text("Nothing was deleted")).to_be_visible()
    page.get_by_text("Delete this endpoint").click()
    label.fill(page.url.rpartition("/")[2])
    page.get_by_role("button", name="Delete").click()
    expect(page.get_by_text("No endpoints yet, so nothing is sent.")).to_be_visible()


HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(2)>',
    "javascript:alert(3)",
    "{{ 7 * 7 }}",
    "</textarea><svg onload=alert(4)>",
)


def test_hostile_names_payloads_and_responses_are_escaped(
    admin_page: CheckedPage, receiver: Receiver, console: ConsoleServer
):
    receiver.kind = "text/html"
    receiver.body = " ".join(HOSTILE).encode()
    page = make_application(admin_page, HOSTILE[1])
    home = page.url
    page.get_by_role("link", name="New endpoint").click()
    page.get_by_label("URL", exact=True).fill(f"{receiver.base}/hostile?{HOSTILE[2]}")
    page.get_by_text("Advanced: ").click()
    page.get_by_label("Description", exact=True).fill(HOSTILE[0])
    page.get_by_label("Metadata").fill(f"{HOSTILE[4]} = {HOSTILE[3]}")
    page.get_by_role("button", name="Create").click()
    endpoint = page.url
    page.get_by_role("button", name="Send a test").click()
    expect(page.locator("#result pre")).to_contain_text("<script>alert(1)</script>")
    page.goto(f"{home}/publish")
    page.get_by_label("Event type").fill("tide.turned")
    page.get_by_label("Payload").fill('{"a": "<script>alert(1)</script></code>"}')
    page.get_by_role("button", name="Publish").click()
    expect(page.locator("main pre")).to_contain_text("<script>alert(1)</script></code>")
    for path in (home, endpoint, f"{endpoint}/edit", f"{endpoint}/attempts", f"{console.base}/console/applications"):
        page.goto(path)
        assert "7 * 7" in page.content() or path != endpoint
        assert page.locator("main img, main script, main svg[onload]").count() == 0
    receiver.kind, receiver.body = "text/plain", b"thank you"


def test_everything_works_without_scripts_and_at_360_pixels(console: ConsoleServer, browser, receiver: Receiver):
    context = browser.new_context(java_script_enabled=False, viewport={"width": 360, "height": 740})
    page = context.new_page()
    console.sign_in(page)
    page.goto(f"{console.base}/console/applications/new")
    page.get_by_label("Name", exact=True).fill("Dinghy")
    page.get_by_role("button", name="Create").click()
    make_endpoint(page, f"{receiver.base}/plain")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.get_by_role("button", name="Send a test").click()
    until(lambda: (page.reload(), page.get_by_text("thank you").count())[1])
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    context.close()
