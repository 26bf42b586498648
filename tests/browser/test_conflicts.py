"""Conflicts on the console: compared with the first event, and accepted as an event of their own, once."""

from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import CheckedPage, ConsoleServer

pytestmark = pytest.mark.extended("the pages are seen by the tour of every page and tested on PostgreSQL")


def test_a_conflict_is_compared_with_the_first_event(
    console: ConsoleServer, admin_page: CheckedPage, conflict: Callable[[str], str]
):
    name = conflict("conflict-1")
    page = admin_page.go("/conflicts/requests")
    link = page.get_by_title(name)
    expect(link).to_have_text(f"cfl_…{name[-6:]}")
    link.click()
    expect(page.locator(".notice.warn")).to_contain_text("The key is the same, the body is not")
    expect(page.locator("td.gone")).to_have_text('\N{MINUS SIGN}   "amount": 100,')
    expect(page.locator("td.come")).to_have_text('+   "amount": 900,')
    page.get_by_role("link", name="Unified").click()
    expect(page.locator("tr.gone")).to_contain_text('"amount": 100')
    page.locator("dl.facts a").first.click()
    expect(page.locator(".notice.warn")).to_contain_text("1 request conflicts with this event")


def test_a_conflict_is_accepted_once(console: ConsoleServer, admin_page: CheckedPage, conflict: Callable[[str], str]):
    name = conflict("conflict-accepted")
    page = admin_page.go(f"/conflicts/{name}")
    other_tab = page.context.new_page()
    other_tab.goto(page.url)
    page.get_by_label("Note").fill("the customer ordered twice")
    page.get_by_role("button", name="Accept as a new event").click()
    said = page.get_by_role("status").first
    expect(said).to_contain_text("Accepted as evt_")
    ((event, origin),) = console.ask(
        "select boathook.show_id('evt', e.id), e.origin from boathook.conflict c join boathook.event e on e.id = c.accepted_as"
        " where boathook.show_id('cfl', c.id) = %s",
        name,
    )
    assert origin == "accepted_conflict"
    expect(said).to_contain_text(event)
    expect(page.get_by_role("button", name="Accept as a new event")).to_have_count(0)
    # The other tab still shows the button.
    other_tab.get_by_role("button", name="Accept as a new event").click()
    expect(other_tab.get_by_role("status").first).to_contain_text(f"It was accepted before as {event}.")
    assert console.ask("select count(*) from boathook.event where origin = 'accepted_conflict'") == [(1,)]
    page.get_by_role("link", name=event).click()
    expect(page.locator("main")).to_contain_text('"amount": 900')
    page.goto(f"{console.base}/console/audit?action=conflict.accept")
    expect(page.get_by_role("row").filter(has_text=name)).to_contain_text("the customer ordered twice")


def test_a_viewer_cannot_accept_a_conflict(
    console: ConsoleServer, anonymous_page: CheckedPage, conflict: Callable[[str], str]
):
    name = conflict("conflict-viewed")
    console.add_operator("vito", "viewer")
    console.sign_in(anonymous_page.page, "vito")
    page = anonymous_page.go(f"/conflicts/{name}")
    expect(page.get_by_label("Facts", exact=True)).to_contain_text("not accepted")
    expect(page.get_by_role("button", name="Accept as a new event")).to_have_count(0)
    token = page.locator("meta[name=csrf-token]").get_attribute("content") or ""
    url = f"{console.base}/console/conflicts/{name}/accept"
    refused = page.request.post(url, form={"csrf": token}, headers={"origin": console.base})
    assert refused.status == 403
    assert console.ask("select accepted_as from boathook.conflict where boathook.show_id('cfl', id) = %s", name) == [
        (None,)
    ]
