"""The customers' portal in a real browser: entered by a link, used as a customer does, and shown within other pages."""

from collections.abc import Callable, Iterator

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.acceptance.conftest import BoathookProcess, shared_boathook  # noqa: F401 - a fixture
from tests.browser.conftest import ADMIN, CheckedPage, ConsoleServer, take_screenshots
from tests.browser.receiver import Receiver, open_receiver
from tests.browser.test_every_page import serious_faults
from tests.support import until

pytestmark = pytest.mark.extended("the pages are seen by the tour of every page and tested on PostgreSQL")


@pytest.fixture(scope="module")
def product() -> Iterator[Receiver]:
    """The operator's product, whose page embeds the portal."""
    with open_receiver() as product:
        product.kind = "text/html"
        yield product


@pytest.fixture(scope="module")
def console(
    shared_boathook: Callable[..., BoathookProcess],  # noqa: F811
    product: Receiver,
) -> Iterator[ConsoleServer]:
    """A boathook whose portal may be embedded in the product, under either name of this host."""
    elsewhere = product.base.replace("127.0.0.1", "localhost")
    running = shared_boathook(
        roles="gateway,worker,console,keeper",
        senders=1,
        extra=f"""
            [outbound]
            allow = ["127.0.0.0/8"]
            [console]
            embed_origins = ["{product.base}", "{elsewhere}"]
            portal_name = "Acme webhooks"
            portal_logo = "data:image/svg+xml,<svg xmlns='http://www.w3.org/2000/svg' width='40' height='20'><style>*{{}}</style></svg>"
        """,
    )
    until(lambda: httpx.get(f"{running.base}/console/sign-in").status_code == 200)
    server = ConsoleServer(running)
    server.add_operator(ADMIN, "admin")
    yield server
    server.db.close()


def make_link(console: ConsoleServer, name: str, *words: str) -> str:
    """Make an application and a link into its portal, at the command line."""
    application = console.running.cli("applications", "create", name).stdout.strip()
    return console.running.cli("applications", "portal", application, *words).stdout.strip()


def test_a_customer_manages_an_endpoint_by_a_portal_link(
    admin_page: CheckedPage, browser: Browser, console: ConsoleServer, receiver: Receiver
):
    console.running.cli("applications", "create", "Seagull Ltd", "--uid", "seagull")
    page = admin_page.go("/applications?q=seagull")
    page.get_by_role("link", name="Seagull Ltd").click()
    page.get_by_role("button", name="Create portal link").click()
    link = page.locator("main pre code").inner_text()
    take_screenshots(page, "portal-link")

    context = browser.new_context()
    customer = CheckedPage(context.new_page(), console)
    page = customer.page
    page.goto(link)
    page.wait_for_url(f"{console.base}/portal/endpoints")
    assert "bhk_" not in page.evaluate("[location.href, document.referrer, document.cookie].join()")
    expect(page.get_by_text("No endpoints yet")).to_be_visible()

    page.get_by_role("link", name="New endpoint").click()
    page.get_by_label("URL", exact=True).fill(f"{receiver.base}/customer")
    page.get_by_role("button", name="Create").click()
    take_screenshots(page, "portal-endpoint")
    page.get_by_role("button", name="Send a test").click()
    expect(page.get_by_text("thank you")).to_be_visible()
    page.get_by_role("link", name="Messages").click()
    page.locator("tbody a").first.click()
    until(lambda: (page.reload(), page.get_by_role("button", name="Send again").count())[1])
    page.get_by_role("button", name="Send again").click()
    until(lambda: len(receiver.to("/customer")) == 2)
    take_screenshots(page, "portal-message")
    page.get_by_role("link", name="Event types").click()
    expect(page.get_by_role("heading", name="Event types")).to_be_visible()
    take_screenshots(page, "portal-types")

    page.get_by_role("button", name="Sign out").click()
    page.get_by_role("dialog").get_by_role("button", name="Confirm").click()
    expect(page.get_by_text("This link is no longer valid")).to_be_visible()
    page.goto("about:blank")
    page.goto(link)
    expect(page.get_by_text("This link is no longer valid")).to_be_visible()
    customer.expected |= {"401"}
    customer.check()
    context.close()
    assert "bhk_" not in console.running.log()


def test_a_read_only_customer_has_no_forms(console: ConsoleServer, anonymous_page: CheckedPage, receiver: Receiver):
    link = make_link(console, "Cormorant", "--read-only")
    name = console.running.listing("applications", "list")[-1]["id"]
    console.running.cli("endpoints", "create", "-a", name, "--url", f"{receiver.base}/look")
    page = anonymous_page.page
    page.goto(link)
    page.get_by_role("link", name=f"{receiver.base}/look").click()
    expect(page.get_by_role("heading", name=f"{receiver.base}/look")).to_be_visible()
    main = page.get_by_role("main")
    assert main.get_by_role("button").all_inner_texts() == ["Copy"]
    assert main.locator("form").count() == 0


def test_the_portal_uses_the_theme_of_its_link(console: ConsoleServer, anonymous_page: CheckedPage):
    page = anonymous_page.page
    page.goto(make_link(console, "Puffin", "--theme", "dark", "--colour", "ff8800"))
    page.wait_for_url(f"{console.base}/portal/endpoints")
    assert page.locator("html").get_attribute("data-theme") == "dark"
    button = page.get_by_role("link", name="New endpoint")
    assert button.evaluate("one => getComputedStyle(one).backgroundColor") == "rgb(255, 136, 0)"
    take_screenshots(page, "portal-orange")


def test_a_theme_is_forced_by_the_link_else_it_is_that_of_the_system(
    console: ConsoleServer, anonymous_page: CheckedPage
):
    page = anonymous_page.page
    page.goto(f"{console.base}/console/sign-in")
    page.evaluate("localStorage.setItem('boathook-theme', 'dark')")  # chosen in the console, on the same origin
    link = make_link(console, "Fulmar", "--theme", "light")
    page.goto(link)
    page.wait_for_url(f"{console.base}/portal/endpoints")
    assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "light"
    page.evaluate("localStorage.clear()")
    for scheme in ("dark", "light"):
        page.emulate_media(color_scheme=scheme)
        page.goto("about:blank")
        page.goto(make_link(console, f"Fulmar {scheme}"))
        page.wait_for_url(f"{console.base}/portal/endpoints")
        assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == scheme


def test_the_portal_has_its_name_and_logo_and_no_serious_fault(
    console: ConsoleServer, anonymous_page: CheckedPage, receiver: Receiver
):
    page = anonymous_page.page
    console.running.cli("event-types", "create", "tide.high")
    page.goto(make_link(console, "Skua"))
    page.wait_for_url(f"{console.base}/portal/endpoints")
    assert page.title().endswith("· Acme webhooks")
    assert page.get_by_role("banner").locator("img").evaluate("one => one.complete && one.naturalWidth") == 40
    page.get_by_role("link", name="New endpoint").click()
    page.get_by_label("URL", exact=True).fill(f"{receiver.base}/skua")
    page.get_by_role("button", name="Create").click()
    page.get_by_text("Python", exact=True).click()
    expect(page.get_by_text("from standardwebhooks import Webhook")).to_be_visible()
    page.get_by_text("Rust", exact=True).click()
    expect(page.get_by_text("from standardwebhooks import Webhook")).to_be_hidden()
    take_screenshots(page, "portal-verify")
    pages = [page.url, *(f"{console.base}/portal/{path}" for path in ("endpoints/new", "event-types/tide.high"))]
    faults = []
    for path in pages:
        page.goto(path)
        faults += [f"{path}: {fault}" for fault in serious_faults(page)]
    assert not faults, "\n".join(faults)


def embed(product: Receiver, link: str) -> None:
    product.body = (
        f'<!doctype html><title>Product</title><iframe src="{link}" width="900" height="700"></iframe>'.encode()
    )


def test_the_portal_works_within_a_page_of_the_same_site(
    console: ConsoleServer, anonymous_page: CheckedPage, product: Receiver
):
    embed(product, make_link(console, "Tern"))
    page = anonymous_page.page
    page.goto(product.base)
    frame = page.frame_locator("iframe")
    expect(frame.get_by_text("No endpoints yet")).to_be_visible()
    frame.get_by_role("link", name="New endpoint").click()
    frame.get_by_label("URL", exact=True).fill("http://127.0.0.1:8999/tern")
    frame.get_by_role("button", name="Create").click()
    expect(frame.get_by_text("Endpoint created")).to_be_visible()
    anonymous_page.expected |= {"Blocked autofocusing"}


SIZING = """<!doctype html><title>Product</title><iframe src="{link}" width="900"></iframe>
<script>addEventListener("message", ({{ data, source }}) => {{
  if (data?.type === "svix.iframe-resizer-height" && typeof data.payload?.height === "number")
    document.querySelector("iframe").style.height = `${{data.payload.height}}px`;
}});</script>"""
"""What svix-react does with fullSize."""


def test_svix_react_sets_the_portals_look_and_height(
    console: ConsoleServer, anonymous_page: CheckedPage, product: Receiver
):
    link, _, token = make_link(console, "Auk").partition("#")
    look = "darkMode=true&primaryColor=%23ff8800&fontFamily=Georgia&icon=https%3A%2F%2Fcdn.example.com%2Flogo.svg"
    product.body = SIZING.format(link=f"{link}?{look}#{token}").encode()
    page = anonymous_page.page
    picture = '<svg xmlns="http://www.w3.org/2000/svg" width="24" height="24"/>'
    page.route(
        "https://cdn.example.com/logo.svg", lambda route: route.fulfill(body=picture, content_type="image/svg+xml")
    )
    page.goto(product.base)
    frame = page.frame_locator("iframe")
    expect(frame.get_by_text("No endpoints yet")).to_be_visible()
    assert frame.locator("html").get_attribute("data-theme") == "dark"
    assert "Georgia" in frame.locator("html").evaluate("one => getComputedStyle(one).fontFamily")
    assert frame.locator(".brand img").evaluate("one => one.complete && one.naturalWidth") == 24
    short = until(lambda: fits(page))
    frame.get_by_role("link", name="New endpoint").click()
    expect(frame.get_by_label("URL", exact=True)).to_be_visible()
    until(lambda: fits(page) > short)
    frame.get_by_role("link", name="Endpoints", exact=True).first.click()
    until(lambda: fits(page) == short)
    anonymous_page.expected |= {"Blocked autofocusing"}


def fits(page: Page) -> int:
    """Return the height of the page's frame, once it is that of the portal within it; else 0."""
    height = page.locator("iframe").evaluate("one => one.clientHeight")
    inside = (
        page.frame_locator("iframe").locator("body").evaluate("one => Math.ceil(one.getBoundingClientRect().height)")
    )
    return int(height) if height == inside else 0


def test_without_third_party_cookies_a_new_tab_is_offered(
    console: ConsoleServer, anonymous_page: CheckedPage, product: Receiver
):
    embed(product, make_link(console, "Gannet"))
    page = anonymous_page.page
    page.goto(product.base.replace("127.0.0.1", "localhost"))
    apart = page.frame_locator("iframe").get_by_role("link", name="Open in a new tab")
    expect(apart).to_be_visible()
    with page.context.expect_page() as opened:
        apart.click()
    opened.value.wait_for_url(f"{console.base}/portal/endpoints")
    expect(opened.value.get_by_text("No endpoints yet")).to_be_visible()
    anonymous_page.expected |= {"401", "Blocked autofocusing"}


def test_a_page_that_is_not_named_cannot_show_the_portal(console: ConsoleServer, anonymous_page: CheckedPage):
    with open_receiver() as evil:
        evil.kind = "text/html"
        embed(evil, make_link(console, "Shag"))
        page = anonymous_page.page
        page.goto(evil.base)
        until(lambda: anonymous_page.faults)
    assert "frame-ancestors" in anonymous_page.faults[0]
    anonymous_page.expected |= {"frame-ancestors"}


def test_the_console_is_never_shown_within_another_page(
    console: ConsoleServer, anonymous_page: CheckedPage, product: Receiver
):
    embed(product, f"{console.base}/console/sign-in")
    anonymous_page.page.goto(product.base)
    until(lambda: anonymous_page.faults)
    anonymous_page.expected |= {"frame-ancestors", "X-Frame-Options", "ERR_BLOCKED_BY_RESPONSE"}
