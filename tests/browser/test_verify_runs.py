"""Consistency checks in the console."""

import pytest

from tests.browser.conftest import CheckedPage, ConsoleServer
from tests.support import until

pytestmark = pytest.mark.extended("the pages are seen by the tour of every page and tested on PostgreSQL")


def check(admin_page: CheckedPage) -> str:
    page = admin_page.go("/verify")
    page.get_by_role("button", name="Start check").click()
    page.wait_for_url("**/console/verify/qtask_*")
    return page.url


def test_the_books_are_checked_and_the_balance_is_shown(admin_page: CheckedPage, console: ConsoleServer):
    console.post_event("checked-1")
    check(admin_page)
    page = admin_page.page
    page.get_by_text("The store is consistent").wait_for(timeout=60_000)
    row = page.get_by_role("row").filter(has_text="received")
    assert int(row.get_by_role("cell").inner_text().replace("\u202f", "")) >= 1
    admin_page.go("/verify").get_by_text("consistent").first.wait_for()


def test_a_broken_rule_is_shown_with_examples_and_a_remedy(admin_page: CheckedPage, console: ConsoleServer):
    event_id = console.post_event("checked-2")
    until(
        lambda: console.ask(
            "select 1 from boathook.delivery_archive o join boathook.event e on e.id = o.event_id "
            "where e.dedup_key = 'checked-2'"
        )
    )
    with console.db.transaction():
        console.ask("select 1")
        console.db.execute(
            "delete from boathook.delivery_archive o using boathook.event e "
            "where e.id = o.event_id and e.dedup_key = 'checked-2'"
        )
    check(admin_page)
    page = admin_page.page
    page.get_by_text("The store is inconsistent").wait_for(timeout=60_000)
    text = page.get_by_role("main").inner_text()
    assert event_id.removeprefix("evt_") in text
    assert "Fix:" in text


def test_only_one_check_is_made_at_a_time_and_it_can_be_stopped(admin_page: CheckedPage, console: ConsoleServer):
    console.db.execute(
        "insert into boathook.task (id, organization, kind, request, place, updated_at) values "
        "(gen_random_uuid(), '(store)', 'store.verify', '{\"is_deep\": false}', '{\"by\": \"somebody\"}', now() + interval '1 h')"
    )
    page = admin_page.go("/verify")
    assert page.get_by_role("button", name="Start check").is_disabled()
    page.get_by_role("row").filter(has_text="running").get_by_role("link").click()
    page.get_by_role("button", name="Stop").click()
    page.get_by_text("stopped by console:anna").wait_for()
    assert admin_page.go("/verify").get_by_role("button", name="Start check").is_enabled()
