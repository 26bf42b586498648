"""Events and conflicts on the console of a real boathook, in a real browser."""

import hashlib
import hmac
import json
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.acceptance.conftest import SECRET
from tests.browser.conftest import CheckedPage, ConsoleServer
from tests.support import until

pytestmark = pytest.mark.extended("the pages are seen by the tour of every page and tested on PostgreSQL")

HOSTILE = "<img src=x onerror=alert(1)></code><script>alert(2)</script>\"'&{{7*7}}"


def wait_for_state(server: ConsoleServer, event: str, state: str) -> None:
    """Wait until the event's delivery has this state."""

    def is_reached() -> bool:
        sql = """select state from boathook.delivery where event_id = boathook.read_id('evt', %s)
                 union all select state from boathook.delivery_archive where event_id = boathook.read_id('evt', %s)"""
        return [row[0] for row in server.ask(sql, event, event)] == [state]

    until(is_reached)


def send(server: ConsoleServer, body: bytes) -> str:
    """Send bytes, signed as Stripe signs, and return the event's id."""
    stamp = int(time.time())
    mac = hmac.new(SECRET.encode(), f"{stamp}.".encode() + body, hashlib.sha256).hexdigest()
    headers = {"stripe-signature": f"t={stamp},v1={mac}", "content-type": "application/json"}
    answer = httpx.post(f"{server.base}/in/stripe", content=body, headers=headers, timeout=300)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["event_id"])


def rows(page: Page) -> list[str]:
    found: list[str] = page.locator("#found tbody tr").evaluate_all("rows => rows.map(row => row.dataset.id)")
    return found


def await_rows(page: Page, *events: str) -> None:
    """Wait until the list has exactly these events in this order."""
    shown = page.locator("#found tbody tr")
    expect(shown).to_have_count(len(events))
    for position, event in enumerate(events):
        expect(shown.nth(position)).to_have_attribute("data-id", event)


def test_copy_works_without_the_clipboard_of_secure_pages(console: ConsoleServer, admin_page: CheckedPage):
    event = console.post_event("copied", "payment.copied")
    admin_page.page.add_init_script("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    page = admin_page.go(f"/events/{event}")
    button = page.locator(".copied button[data-copy]").first
    text = page.locator(".copied code").first.text_content()
    button.click()
    expect(button).to_have_text("Copied")
    page.evaluate("document.execCommand = () => false")
    expect(button).to_have_text("Copy")
    button.click()
    expect(button).to_have_text("Selected: copy it with the keyboard")
    assert page.evaluate("String(getSelection())") == text


def test_a_phone_shows_what_the_account_menu_and_anchors_lead_to(admin_page: CheckedPage):
    page = admin_page.page
    page.set_viewport_size({"width": 390, "height": 700})
    admin_page.go("/alerts#silence")
    assert page.locator(".who summary").aria_snapshot().strip(), "the menu has a name"
    expect(page.locator(".who summary .name")).to_have_css("position", "absolute")
    bar = page.locator(".topbar").bounding_box()
    card = page.locator("#silence").bounding_box()
    assert bar is not None
    assert card is not None
    assert card["y"] >= bar["y"] + bar["height"], "the form is below the bar"


def test_an_event_is_found_by_id_delivery_key_and_text(console: ConsoleServer, admin_page: CheckedPage):
    event = console.post_event("find-me", "payment.found", note="a word like zanzibar")
    for words in (event, event.replace("evt_", "msg_"), "find-me"):
        page = admin_page.go("")
        page.keyboard.press("/")
        page.keyboard.type(words)
        page.keyboard.press("Enter")
        page.wait_for_url(f"**/console/events/{event}")
        expect(page.get_by_role("heading", level=1)).to_have_text("payment.found")
    admin_page.go(f"/events?q=dlv{event[3:]}_0")
    expect(admin_page.page.get_by_text("Showing only delivery 0")).to_be_visible()
    page = admin_page.go("/events")
    page.keyboard.press("/")
    expect(page.locator("#q")).to_be_focused()
    page.keyboard.type("zanzibar")
    page.keyboard.press("Enter")
    expect(page.locator("#found")).to_be_visible()
    await_rows(page, event)


def test_filters_are_in_the_url_and_narrow_the_list(console: ConsoleServer, admin_page: CheckedPage):
    fine = console.post_event("filter-1", "payment.filtered")
    dead = console.post_event("filter-2", "broken.filtered")
    wait_for_state(console, dead, "dead")
    wait_for_state(console, fine, "succeeded")
    page = admin_page.go("/events")
    page.get_by_text("Filters and range").click()
    page.get_by_label("Type", exact=True).fill("*.filtered")
    page.get_by_label("Source", exact=True).select_option("stripe")
    page.get_by_role("button", name="Search").click()
    await_rows(page, dead, fine)
    page.get_by_label("Delivery state").select_option("dead")
    page.get_by_role("button", name="Search").click()
    await_rows(page, dead)
    assert "state=dead" in page.url
    expect(page.get_by_text("there are no older ones")).to_be_visible()
    page.goto(page.url.replace("since=", "since=tomorrowish"))
    admin_page.expected.add("400")
    expect(page.get_by_text("use 2h, 7d or 2026-01-31T12:00")).to_be_visible()


def test_paging_leads_to_older_events(console: ConsoleServer, admin_page: CheckedPage):
    events = [console.post_event(f"page-{number}", "payment.paged") for number in range(55)]
    page = admin_page.go("/events?type=payment.paged")
    first = rows(page)
    page.get_by_role("link", name="Older").click()
    page.wait_for_url("**below=**")
    assert first + rows(page) == events[::-1]


def test_the_live_tail_adds_rows_without_moving_the_focus(console: ConsoleServer, admin_page: CheckedPage):
    first = console.post_event("tail-1", "payment.tailed")
    page = admin_page.go("/events?type=payment.tailed")
    page.get_by_role("button", name="Live tail").click()
    page.locator(f"tr[data-id={first}] a").focus()
    place = "document.activeElement.getBoundingClientRect().top"
    page.set_viewport_size({"width": 1280, "height": 400})
    page.evaluate("document.body.style.minHeight = '3000px'; document.activeElement.scrollIntoView()")
    before = page.evaluate(place)
    second = console.post_event("tail-2", "payment.tailed")
    expect(page.locator(f"tr[data-id={second}]")).to_be_attached()
    await_rows(page, second, first)
    until(lambda: abs(page.evaluate(place) - before) < 2)
    expect(page.locator(f"tr[data-id={second}] .badge")).to_have_text("succeeded")


def test_the_live_tail_does_not_disturb_scrolling(console: ConsoleServer, admin_page: CheckedPage):
    first = console.post_event("scroll-1", "payment.scrolled")
    page = admin_page.go("/events?type=payment.scrolled")
    page.evaluate(
        """document.body.style.minHeight = '3000px';
        window.frames_due = [];
        window.requestAnimationFrame = (callback) => frames_due.push(callback);
        scrollTo(0, 0)"""
    )
    page.locator(f"tr[data-id={first}] a").focus()
    page.get_by_role("button", name="Live tail").evaluate("(button) => button.click()")
    second = console.post_event("scroll-2", "payment.scrolled")
    expect(page.locator(f"tr[data-id={second}]")).to_be_attached()
    assert page.evaluate("scrollBy(0, 100); frames_due.length") > 0
    place = page.evaluate("scrollY")
    assert page.evaluate("frames_due.splice(0).forEach((callback) => callback()); scrollY") == place


def test_times_are_local_or_utc_and_a_custom_range_is_typed_in_the_same(console: ConsoleServer, browser: Browser):
    context = browser.new_context(timezone_id="Asia/Kolkata")
    page = CheckedPage(context.new_page(), console)
    event = console.post_event("zoned", "payment.zoned")
    console.sign_in(page.page)
    page.go("/events?type=payment.zoned")
    time = page.page.locator(f"tr[data-id={event}] time")
    at = datetime.fromisoformat(str(time.get_attribute("datetime"))).astimezone(UTC)
    local = at + timedelta(hours=5, minutes=30)
    milliseconds = f".{at.microsecond // 1000:03}"
    expect(time).to_contain_text(f"{local:%H:%M:%S}{milliseconds}")
    page.page.get_by_role("button", name="Local time").click()
    expect(time).to_contain_text(f"{at:%H:%M:%S}{milliseconds}")
    page.page.get_by_role("button", name="UTC").click()
    for form in ("%Y-%m-%dT%H:%M", "%Y-%m-%d %H:%M"):
        page.go("/events?type=payment.zoned&custom=yes")
        page.page.get_by_label("Since").fill(f"{local:{form}}")
        page.page.get_by_role("button", name="Search").click()
        page.page.wait_for_url(f"**since={at:%Y-%m-%dT%H}%3A{at:%M}%3A00.000Z**")
        assert rows(page.page) == [event]
    page.go("/dead/letters?type=none")
    page.page.get_by_label("Failed since").fill(f"{local:%Y-%m-%d %H:%M}")
    page.page.get_by_label("Failed since").press("Enter")
    page.page.wait_for_url(f"**since={at:%Y-%m-%dT%H}%3A{at:%M}%3A00.000Z**")
    heading = page.page.locator(".overview-table thead th").first

    def is_local() -> bool:
        page.go("")
        return heading.count() > 0 and heading.text_content() == "From (GMT+5:30)"

    until(is_local)
    context.close()
    page.check()


def test_important_event_columns_stay_visible(console: ConsoleServer, admin_page: CheckedPage):
    console.post_event("wide-" + "x" * 200, "payment.wide." + "y" * 100)
    page = admin_page.go("/events?type=payment.wide*")
    for width in (390, 1280, 1440):
        page.set_viewport_size({"width": width, "height": 900})
        page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        cells = page.locator("#found tbody tr").first.locator("td")
        for number in range(4):
            box = cells.nth(number).bounding_box()
            assert box is not None
            assert box["x"] >= 0, (width, number)
            assert box["x"] + box["width"] <= width, (width, number)


def test_an_event_shows_its_story_and_its_bytes(console: ConsoleServer, admin_page: CheckedPage, tmp_path: Path):
    event = console.post_event("story", "flaky.story", amount=12)
    wait_for_state(console, event, "succeeded")
    page = admin_page.go(f"/events/{event}")
    timeline = page.locator(".timeline")
    expect(timeline).to_contain_text("ConnectionError")
    expect(timeline).to_contain_text("attempts 1 to 2 of delivery 0")
    expect(timeline).to_contain_text("attempt 3 of delivery 0 to handler:flaky")
    timeline.get_by_text("Traceback").first.click()
    expect(timeline.get_by_text("the bank is away").first).to_be_visible()
    expect(page.get_by_text("body signed")).to_be_visible()
    expect(page.locator("[data-kind=pretty]")).to_contain_text('"amount": 12')
    page.get_by_role("link", name="Hex").click()
    expect(page.locator("[data-kind=hex]")).to_contain_text("00000000  7b")
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").click()
    download.value.save_as(tmp_path / "body")
    stored = console.ask("select body from boathook.event where id = boathook.read_id('evt', %s)", event)[0][0]
    assert (tmp_path / "body").read_bytes() == bytes(stored)


def test_a_body_is_downloaded_as_a_file_that_nothing_opens(console: ConsoleServer, admin_page: CheckedPage):
    event = console.post_event("attachment", "payment.attached")
    answer = admin_page.page.request.get(f"{console.base}/console/events/{event}/body")
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"] == f'attachment; filename="{event}.bin"'
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_an_event_is_replayed_to_one_and_to_all_with_a_note(console: ConsoleServer, admin_page: CheckedPage):
    event = console.post_event("again", "payment.again")
    wait_for_state(console, event, "succeeded")
    page = admin_page.go(f"/events/{event}")
    page.get_by_text("Replay", exact=True).click()
    page.locator("#note-0").fill("the shop had lost it")
    page.get_by_role("button", name="Replay to handler:pay").click()
    expect(page.locator(".notice.good")).to_contain_text("handler:pay has a new delivery")
    expect(page.locator("#history")).to_contain_text("delivery.replay by console:anna")
    expect(page.locator("#history")).to_contain_text("the shop had lost it")
    ended = "select count(*) from boathook.delivery_archive where event_id = boathook.read_id('evt', %s)"
    until(lambda: console.ask(ended, event)[0][0] == 2)
    page.goto(f"{console.base}/console/events/{event}")
    page.get_by_text("Replay to all recipients").click()
    page.locator("#note-all").fill("once more")
    page.get_by_role("button", name="Replay to all").click()
    expect(page.locator(".notice.good")).to_contain_text("1 delivery replayed")
    until(lambda: console.ask(ended, event)[0][0] == 3)


def match_also(server: ConsoleServer, types: str) -> None:
    """Have the handler match more types, as a later release would."""
    server.db.execute(
        "update boathook.route set types = array_append(types, %s) where recipient = 'handler:pay' and position = 0",
        (types,),
    )


def test_an_unhandled_event_is_listed_and_rerouted(console: ConsoleServer, admin_page: CheckedPage):
    event = console.post_event("lost", "refunnd.made")
    page = admin_page.go("/events?state=unhandled")
    expect(page.locator(f"#found tr[data-id={event}] .badge")).to_have_text("unhandled")
    page = admin_page.go(f"/events/{event}")
    expect(page.locator("#history")).to_contain_text("No handler matched this event")
    page.get_by_role("button", name="Route with current handlers").click()
    expect(page.locator(".notice.bad")).to_contain_text("No delivery added")
    page.get_by_label("Handler (empty: all that match)").fill("pai")
    page.get_by_role("button", name="Route with current handlers").click()
    expect(page.locator(".notice.bad")).to_contain_text("did you mean handler:pay?")
    match_also(console, "refunnd.*")
    page.locator("#route-note").fill("the typo is mended")
    page.get_by_role("button", name="Route with current handlers").click()
    expect(page.locator(".notice.good")).to_contain_text("1 delivery added")
    expect(page.locator("#history")).to_contain_text("the typo is mended; to handler:pay")
    wait_for_state(console, event, "succeeded")


def test_all_unhandled_events_of_a_filter_are_routed_again(console: ConsoleServer, admin_page: CheckedPage):
    events = [console.post_event(f"lost-{number}", "payuot.made") for number in range(3)]
    other = console.post_event("lost-other", "mandate.made")
    match_also(console, "*.made")
    page = admin_page.go("/events?state=unhandled&type=payuot.*")
    expect(page.locator("#found tbody tr")).to_have_count(3)
    page.locator("#route-note").fill("mended")
    page.get_by_role("button", name="Route with current handlers").click()
    page.wait_for_url("**/console/jobs/*")
    expect(page.locator("#job")).to_contain_text("finished", timeout=60_000)
    expect(page.locator("#job")).to_contain_text("3 deliveries added")
    for event in events:
        wait_for_state(console, event, "succeeded")
    page = admin_page.go("/events?state=unhandled")
    await_rows(page, other)
    page = admin_page.go("")
    page.locator("#n-status").get_by_role("link", name="1 unhandled event").click(timeout=60_000)
    page.wait_for_url("**/console/events?state=unhandled")


def test_a_page_keeps_up_with_an_event_that_is_being_handled(console: ConsoleServer, admin_page: CheckedPage):
    event = console.post_event("watched", "slow.watched", seconds=4)
    page = admin_page.go(f"/events/{event}")
    expect(page.locator("#deliveries ~ .scroll .badge").first).to_have_text("succeeded", timeout=30_000)
    assert "hx-get" not in (page.locator("#history").evaluate("one => one.outerHTML"))[:300]


def test_a_viewer_cannot_replay(console: ConsoleServer, anonymous_page: CheckedPage):
    event = console.post_event("viewed", "payment.viewed")
    wait_for_state(console, event, "succeeded")
    console.add_operator("vic", "viewer")
    console.sign_in(anonymous_page.page, "vic")
    page = anonymous_page.go(f"/events/{event}")
    expect(page.get_by_text("Replay", exact=True)).to_have_count(0)
    token = page.locator("meta[name=csrf-token]").get_attribute("content")
    for path in ("replay", "route", "curl"):
        answer = page.request.post(
            f"{console.base}/console/events/{event}/{path}", form={"csrf": str(token)}, headers={"origin": console.base}
        )
        assert answer.status == 403


def test_a_command_of_curl_is_offered_for_every_shell(console: ConsoleServer, admin_page: CheckedPage):
    event = console.post_event("curl", "payment.curled", note="it's \\ odd")
    page = admin_page.go(f"/events/{event}/curl")
    expect(page.locator("[data-kind=curl]")).to_contain_text("--data-raw '{")
    expect(page.locator("[data-kind=curl]")).to_contain_text("it'\\''s \\\\ odd")
    page.get_by_role("link", name="fish").click()
    expect(page.locator("[data-kind=curl]")).to_contain_text("it\\'s \\\\\\\\ odd")
    page.get_by_role("link", name="other: curl config file").click()
    expect(page.locator("[data-kind=curl]")).to_contain_text('request = "POST"')


def test_header_secrets_are_masked_and_revealing_is_audited(console: ConsoleServer, admin_page: CheckedPage):
    event = console.post_event("masked", "payment.masked")
    headers = '{"x-api-key": "hush", "user-agent": "shop"}'
    console.db.execute(
        "update boathook.event set headers = %s where id = boathook.read_id('evt', %s)", [headers, event]
    )
    page = admin_page.go(f"/events/{event}")
    assert "hush" not in page.content()
    page.goto(f"{page.url}/curl?shell=fish")
    assert "hush" not in page.content()
    page.get_by_role("button", name="Show headers").click()
    expect(page.locator("[data-kind=curl]")).to_contain_text("x-api-key: hush")
    audit = console.ask("select actor, action from boathook.audit where subject = %s", event)
    assert audit == [("console:anna", "event.reveal_headers")]


@pytest.mark.parametrize(
    ("name", "body", "says"),
    [
        ("doubled keys", b'{"id":"odd-1","type":"payment.odd","a":{"b":1,"b":2}}', "a.b"),
        ("numbers", b'{"id":"odd-2","type":"payment.odd","n":1234567890123456789.0123456789}', "1234567890123456789.0123456789"),
        ("deep", b'{"id":"odd-3","type":"payment.odd","d":' + b"[" * 100 + b"]" * 100 + b"}", "deeper than 32 levels"),
        ("markup", json.dumps({"id": "odd-4", "type": "payment.odd", "x": HOSTILE}).encode(), "<img src=x onerror"),
        ("huge", b'{"id":"odd-5","type":"payment.odd","x":"' + b"y" * 400_000 + b'"}', "Truncated"),
    ],
)  # fmt: skip
def test_odd_payloads_are_shown_as_they_are(
    console: ConsoleServer, admin_page: CheckedPage, name: str, body: bytes, says: str
):
    page = admin_page.go(f"/events/{send(console, body)}")
    expect(page.locator("main")).to_contain_text(says)


def test_binary_is_shown_in_hex(console: ConsoleServer, admin_page: CheckedPage):
    event = console.post_event("binary", "payment.binary")
    console.db.execute(
        "update boathook.event set body = %s, body_sha256 = sha256(%s) where id = boathook.read_id('evt', %s)",
        [b"\x00\xff\x1bNUL", b"\x00\xff\x1bNUL", event],
    )
    page = admin_page.go(f"/events/{event}")
    expect(page.locator("[data-kind=hex]")).to_contain_text("00 ff 1b 4e 55 4c")


def test_hostile_errors_and_answers_are_text_only(console: ConsoleServer, admin_page: CheckedPage):
    event = console.post_event("hostile", "broken.hostile")
    wait_for_state(console, event, "dead")
    console.db.execute(
        """update boathook.attempt set error = %s, traceback = %s, url = 'https://x.example/' || %s, status = 500,
               response = convert_to(%s, 'UTF8'), request_headers = json_build_array(json_build_array('x-a', %s::text))
           where event_id = boathook.read_id('evt', %s) and number = 1""",
        [HOSTILE] * 5 + [event],
    )
    console.db.execute(
        "update boathook.event set type = %s, dedup_key = %s where id = boathook.read_id('evt', %s)",
        [HOSTILE, HOSTILE, event],
    )
    page = admin_page.go(f"/events/{event}")
    expect(page.get_by_role("heading", level=1)).to_have_text(HOSTILE)
    page.get_by_text("Request and response").first.click()
    expect(page.locator("[data-kind=response]").first).to_have_text(HOSTILE)
    assert page.locator("main img, main script").count() == 0
    assert page.locator("a[href*='x.example']").count() == 0
    expect(admin_page.go("/events?state=dead").locator("#found")).to_contain_text(HOSTILE)


def test_pages_fit_a_narrow_screen_and_keys_suffice(console: ConsoleServer, admin_page: CheckedPage, conflict):
    name = conflict("conflict-2")
    event = console.ask(
        "select boathook.show_id('evt', event_id) from boathook.conflict where dedup_key = 'conflict-2'"
    )[0][0]
    page = admin_page.page
    page.set_viewport_size({"width": 360, "height": 740})
    for path in (
        "/events",
        f"/events/{event}",
        f"/events/{event}/curl",
        "/conflicts",
        "/conflicts/requests",
        f"/conflicts/{name}",
    ):
        admin_page.go(path)
        wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, path
    page.set_viewport_size({"width": 1280, "height": 900})
    admin_page.go("/events?type=payment.conflicting")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url("**/console/events/evt_*")
