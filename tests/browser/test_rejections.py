"""Rejected requests on the console: diagnosed, shown as bytes, verified again once fixed; and the audit of it."""

import json
import re
import time

import httpx
import pytest
from playwright.sync_api import expect

from tests.acceptance.conftest import payload, signed
from tests.browser.conftest import CheckedPage, ConsoleServer
from tests.support import until

pytestmark = pytest.mark.extended("the pages are seen by the tour of every page and tested on PostgreSQL")


def refuse(console: ConsoleServer, body: bytes, headers: dict[str, str]) -> str:
    """Send a request that is refused; return its rejection's id."""
    mark = console.ask("select count(*) from boathook.rejection")[0][0]
    answer = httpx.post(f"{console.base}/in/stripe", content=body, headers=headers, timeout=300)
    assert answer.status_code == 401, answer.text
    until(lambda: console.ask("select count(*) from boathook.rejection")[0][0] > mark)
    return str(console.ask("select boathook.show_id('rej', id) from boathook.rejection order by id desc limit 1")[0][0])


@pytest.fixture
def reformatted_body(console: ConsoleServer) -> str:
    """A request whose JSON was reformatted by a proxy."""
    body, headers = signed(payload("laid-out-anew"))
    return refuse(console, json.dumps(json.loads(body), indent=4).encode(), headers)


def test_a_changed_body_is_recognized_with_a_remedy(admin_page: CheckedPage, reformatted_body: str):
    page = admin_page.go("/rejections/requests?source=stripe&reason=signature_mismatch")
    page.locator(f"a[href$='{reformatted_body}']").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Rejected: signature mismatch")
    expect(page.locator("main")).to_contain_text("a proxy parsed and rewrote it")
    expect(page.locator("main")).to_contain_text("Pass the body on byte for byte")
    expect(page.locator("pre")).to_contain_text('"laid-out-anew"')
    page.get_by_role("link", name="hex", exact=True).click()
    expect(page.locator("pre")).to_contain_text("7b 0a 20 20")


def test_a_rejected_body_is_downloaded_unchanged(
    admin_page: CheckedPage, console: ConsoleServer, reformatted_body: str
):
    page = admin_page.go(f"/rejections/{reformatted_body}")
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").click()
    body = console.ask("select body from boathook.rejection where boathook.show_id('rej', id) = %s", reformatted_body)[
        0
    ][0]
    assert download.value.path().read_bytes() == body
    answer = page.request.get(f"{console.base}/console/rejections/{reformatted_body}/body")
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_late_unsigned_and_forged_requests_are_distinguished(admin_page: CheckedPage, console: ConsoleServer):
    late = refuse(console, *signed(payload("late"), at=time.time() - 7_200))
    page = admin_page.go(f"/rejections/{late}")
    expect(page.locator("main")).to_contain_text("it is a late copy of a valid request, or the clocks differ")
    expect(page.locator("main")).to_contain_text("Synchronize this machine's clock")
    bare = refuse(console, b"{}", {"content-type": "application/json"})
    expect(admin_page.go(f"/rejections/{bare}").locator("main")).to_contain_text("The signature's header is missing")
    forged = refuse(console, *signed(payload("forged"), secret="whsec_another_of_the_tests"))
    expect(admin_page.go(f"/rejections/{forged}").locator("main")).to_contain_text("Copy the signing secret")


def test_verifying_again_with_the_wrong_secret_stays_rejected(
    admin_page: CheckedPage, console: ConsoleServer, reformatted_body: str
):
    page = admin_page.go(f"/rejections/{reformatted_body}")
    page.get_by_role("button", name="Verify again").click()
    expect(page.get_by_role("status").first).to_contain_text("Still refused: signature_mismatch")


def test_with_the_right_secret_rejections_are_accepted(admin_page: CheckedPage, console: ConsoleServer):
    first, *others = (
        refuse(console, *signed(payload(f"new-{n}"), secret="whsec_rotated_of_the_tests")) for n in range(3)
    )
    page = admin_page.go(f"/rejections/{first}")
    expect(page.locator("main")).to_contain_text("Most likely the secret of this source is not the one")
    token = page.locator("meta[name=csrf-token]").get_attribute("content") or ""
    added = page.request.post(
        f"{console.base}/console/sources/stripe/secrets",
        form={"csrf": token, "secret": "whsec_rotated_of_the_tests"},
        headers={"origin": console.base},
    )
    assert added.ok, added.text()
    page.reload()
    expect(page.locator("main")).to_contain_text("With the current secrets it is valid: it is an event payment.paid.")
    page.get_by_role("button", name="Verify again").click()
    expect(page.get_by_role("status").first).to_contain_text("Verified: accepted as evt_")
    page.goto(f"{console.base}/console/rejections?source=stripe")
    page.get_by_role("button", name="Verify all of stripe again").click()
    expect(page.locator("main")).to_contain_text(re.compile(r"(\d+) of \1 verified again"))
    accepted = console.ask(
        "select count(*) from boathook.rejection where event_id is not null and boathook.show_id('rej', id) = any (%s)",
        [first, *others],
    )
    assert accepted == [(3,)]
    page.goto(f"{console.base}/console/audit?action=rejection.accept")
    expect(page.get_by_role("link", name=first)).to_be_visible()


def test_markup_of_senders_is_shown_as_text(admin_page: CheckedPage, console: ConsoleServer):
    hostile = b"<script>document.title = 'owned'</script><img src=x onerror=alert(1)>"
    found = refuse(
        console, hostile, {"stripe-signature": "t=1,v1=<b>x</b>", "content-type": "text/html<svg onload=alert(1)>"}
    )
    page = admin_page.go(f"/rejections/{found}")
    expect(page.locator("pre")).to_contain_text("<script>document.title = 'owned'</script>")
    assert "Rejected:" in page.title()  # behind the number of firing alerts, if there are any
    admin_page.go("/rejections/requests")


class TestAudit:
    def test_audit_entries_are_found_and_linked(self, admin_page: CheckedPage, console: ConsoleServer):
        event = console.post_event("audited", "broken.audited")
        dead_letter = event.replace("evt_", "dlv_") + "_0"
        until(
            lambda: (
                console.ask("select state from boathook.delivery where boathook.show_id('evt', event_id) = %s", event)
                == [("dead",)]
            )
        )
        page = admin_page.go(f"/dead/{dead_letter}")
        page.locator("summary", has_text="Ignore").click()
        page.get_by_label("Reason").fill("=a formula")
        page.get_by_role("button", name="Ignore", exact=True).click()
        page.goto(f"{console.base}/console/audit?actor=console:anna&action=dead.*")
        row = page.get_by_role("row").filter(has_text=dead_letter)
        expect(row).to_contain_text("dead.ignore")
        row.get_by_role("link", name=dead_letter).click()
        expect(page.get_by_role("heading", level=1)).to_contain_text("ignored")
        page.goto(f"{console.base}/console/audit?subject={dead_letter}")
        for name, holds in (
            ("CSV", f"dead.ignore,{dead_letter},'=a formula"),
            ("JSON lines", f'"subject":"{dead_letter}"'),
        ):
            with page.expect_download() as download:
                page.get_by_role("link", name=name).click()
            assert holds in download.value.path().read_text()

    def test_the_audit_page_shows_how_far_it_is_sealed(self, admin_page: CheckedPage, console: ConsoleServer):
        until(lambda: console.ask("select count(*) > 0 from boathook.audit where sealed_as is not null") == [(True,)])
        expect(admin_page.go("/audit").get_by_text("Sealed up to entry")).to_be_visible()

    def test_an_invalid_time_is_reported(self, admin_page: CheckedPage):
        expect(admin_page.go("/audit?since=soon").get_by_role("alert")).to_contain_text("invalid time 'soon'")
        expect(admin_page.go("/rejections/requests?until=soon").get_by_role("alert")).to_contain_text(
            "invalid time 'soon'"
        )
        expect(admin_page.go("/dead/letters?since=soon").get_by_role("alert")).to_contain_text("invalid time 'soon'")
