"""Dead letters in the console: described, replayed, ignored with a note, purged, and in bulk after a preview."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from boathook.domain import ids
from tests.browser.conftest import CheckedPage, ConsoleServer
from tests.support import until

pytestmark = pytest.mark.extended("the pages are seen by the tour of every page and tested on PostgreSQL")

MakeDead = Callable[..., list[str]]

# Turns a successful delivery into a dead letter, so that its handler succeeds when it is replayed.
KILL = """
    with gone as (
        delete from boathook.delivery_archive o where event_id = %(event)s returning o.*
    )
    insert into boathook.delivery (event_id, ordinal, recipient, state, attempts, code, error, dead_at)
    select event_id, ordinal, recipient, 'dead', attempts, 'KeyError', %(error)s, now() from gone
"""
STATE = """
    select state from boathook.delivery where event_id = %(event)s
    union all select state from boathook.delivery_archive where event_id = %(event)s
"""


def event_of(dead_letter: str):
    return ids.read_delivery(dead_letter)[0]


def state_of(console: ConsoleServer, dead_letter: str) -> str:
    rows = console.db.execute(STATE, {"event": event_of(dead_letter)}).fetchall()
    return str(rows[0][0]) if rows else "gone"


@pytest.fixture
def make_dead(console: ConsoleServer) -> MakeDead:
    """Turn deliveries of payments into dead letters with an error; return their ids."""

    def make(name: str, number: int = 1) -> list[str]:
        events = [console.post_event(f"{name}-{place}") for place in range(number)]
        dead_letters = [event.replace("evt_", "dlv_") + "_0" for event in events]
        until(lambda: all(state_of(console, one) == "succeeded" for one in dead_letters))
        for place, dead_letter in enumerate(dead_letters):
            error = f"KeyError: '{place}' while {name} was done"
            console.db.execute(KILL, {"event": event_of(dead_letter), "error": error})
        return dead_letters

    return make


def open_group(admin_page: CheckedPage, name: str) -> Page:
    page = admin_page.go("/dead")
    page.get_by_role("link", name=f"while {name} was done").click()
    return page


def test_failures_are_described_in_one_sentence_and_grouped(admin_page: CheckedPage, make_dead: MakeDead):
    make_dead("alpha", 3)
    page = admin_page.go("/dead?code=KeyError")
    row = page.get_by_role("row").filter(has_text="while alpha was done")
    expect(row).to_contain_text("3 deliveries to handler:pay failed with KeyError: '*' while alpha was done")
    expect(row.get_by_role("cell").nth(1)).to_have_text("3")
    expect(row).to_contain_text("payment.paid")
    expect(row.get_by_role("img", name="3 in the last 24 hours, at most 3 in one hour")).to_be_visible()
    row.get_by_role("link").first.click()
    expect(page.get_by_role("table").get_by_role("link")).to_have_count(3)
    for number in range(3):
        expect(page.get_by_role("table").get_by_text(f"alpha-{number}", exact=True)).to_be_visible()
    page.get_by_role("link", name="See the newest failed delivery").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("failed at its only attempt, with KeyError:")
    page.goto(f"{admin_page.server.base}/console/dead?recipient=nobody")
    expect(page.get_by_text("No groups match.")).to_be_visible()


def test_one_dead_letter_is_replayed(admin_page: CheckedPage, console: ConsoleServer, make_dead: MakeDead):
    (dead_letter,) = make_dead("bravo")
    page = admin_page.go(f"/dead/{dead_letter}")
    expect(page.get_by_text("Read the traceback, fix the handler")).to_be_visible()
    page.get_by_role("button", name="Replay").click()
    expect(page.get_by_role("status").first).to_contain_text("1 failed delivery queued for replay.")
    until(lambda: state_of(console, dead_letter) == "succeeded")
    page.reload()
    expect(page.get_by_role("heading", level=1)).to_contain_text("This delivery is succeeded")
    expect(page.locator("main")).to_contain_text("console:anna dead.replay")


def test_selected_dead_letters_are_ignored_with_a_note_that_is_required(
    admin_page: CheckedPage, console: ConsoleServer, make_dead: MakeDead
):
    dead_letters = make_dead("charlie", 3)
    page = open_group(admin_page, "charlie")
    for dead_letter in dead_letters[:2]:
        page.get_by_label(f"Select {dead_letter}").check()
    page.get_by_role("button", name="Ignore selected").click()
    expect(page.get_by_text("Nothing changed: write a note")).to_be_visible()
    for dead_letter in dead_letters[:2]:
        page.get_by_label(f"Select {dead_letter}").check()
    page.locator("#selected-note").fill("refunded by hand")
    page.get_by_role("button", name="Ignore selected").click()
    expect(page.get_by_text("2 failed deliveries ignored.")).to_be_visible()
    assert [state_of(console, dead_letter) for dead_letter in dead_letters] == ["ignored", "ignored", "dead"]
    notes = console.ask("select note from boathook.delivery_archive where event_id = %s", event_of(dead_letters[0]))
    assert notes == [("refunded by hand",)]
    page.goto(f"{console.base}/console/dead/{dead_letters[0]}")
    expect(page.locator("main")).to_contain_text("refunded by hand")


def test_all_shown_are_ticked_at_once(admin_page: CheckedPage, make_dead: MakeDead):
    make_dead("delta", 3)
    page = open_group(admin_page, "delta")
    page.get_by_role("button", name="Select all").click()
    expect(page.locator("input[name=id]:checked")).to_have_count(3)
    page.get_by_role("button", name="Clear selection").click()
    expect(page.locator("input[name=id]:checked")).to_have_count(0)


def test_keys_select_replay_and_ignore_but_not_while_typing(
    admin_page: CheckedPage, console: ConsoleServer, make_dead: MakeDead
):
    dead_letters = make_dead("juliett", 3)
    page = admin_page.go("/dead?code=KeyError")
    expect(page.locator("main kbd").first).to_be_visible()
    page.get_by_role("link", name="while juliett was done").focus()
    page.keyboard.press("r")
    expect(page.get_by_role("heading", level=1)).to_have_text("Replay 3 failed deliveries?")
    page.go_back()
    page.get_by_role("link", name="while juliett was done").focus()
    page.keyboard.press("e")
    expect(page.locator("#ignore-note")).to_be_visible()
    page.keyboard.press("x")  # no row has the focus: the first one is selected
    page.keyboard.press("j")
    page.keyboard.press("x")
    expect(page.locator("input[name=id]:checked")).to_have_count(2)
    page.keyboard.press("e")
    page.keyboard.type("rex")  # letters in a field are text
    expect(page.locator("#selected-note")).to_have_value("rex")
    expect(page.locator("input[name=id]:checked")).to_have_count(2)
    page.keyboard.press("Enter")
    expect(page.get_by_text("2 failed deliveries ignored.")).to_be_visible()
    page.keyboard.press("j")
    page.keyboard.press("r")
    expect(page.get_by_text("1 failed delivery queued for replay.")).to_be_visible()
    expect(page.get_by_role("heading", level=1)).to_have_text("Failed deliveries")  # its group is gone
    until(lambda: sorted(state_of(console, one) for one in dead_letters) == ["ignored", "ignored", "succeeded"])


def test_a_group_is_rehearsed_then_run_with_a_progress_bar(
    admin_page: CheckedPage, console: ConsoleServer, make_dead: MakeDead
):
    dead_letters = make_dead("echo", 4)
    page = open_group(admin_page, "echo")
    page.get_by_role("link", name="Replay all 4").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Replay 4 failed deliveries?")
    expect(page.get_by_text("Nothing has been replayed yet.")).to_be_visible()
    assert {state_of(console, dead_letter) for dead_letter in dead_letters} == {"dead"}
    page.get_by_label("Maximum per second").fill("fast")
    admin_page.expected.add("400")
    page.get_by_role("button", name="Replay 4").click()
    expect(page.get_by_text("write a number")).to_be_visible()
    page.get_by_label("Maximum per second").fill("2")
    page.get_by_label("Note").fill("deployed the cure")
    page.get_by_role("button", name="Replay 4").click()
    expect(page.get_by_role("progressbar")).to_be_visible()
    expect(page.locator("#job")).to_contain_text("4 of 4 replayed")
    expect(page.locator("#results.good")).to_have_text("4 replayed: 4 succeeded")
    expect(page.locator("#job .state-finished")).to_have_text("finished")
    assert {state_of(console, dead_letter) for dead_letter in dead_letters} == {"succeeded"}


def test_bulk_work_can_be_stopped(admin_page: CheckedPage, console: ConsoleServer, make_dead: MakeDead):
    dead_letters = make_dead("foxtrot", 3)
    page = open_group(admin_page, "foxtrot")
    page.get_by_role("link", name="Replay all 3").click()
    page.get_by_label("Maximum per second").fill("0.01")
    page.get_by_role("button", name="Replay 3").click()
    expect(page.locator("#job")).to_contain_text("1 of 3 replayed")
    page.get_by_role("button", name="Stop").click()
    expect(page.locator("#job")).to_contain_text("stopped by console:anna")
    assert sorted(state_of(console, dead_letter) for dead_letter in dead_letters)[:2] == ["dead", "dead"]


def test_a_letter_that_dies_again_is_marked_for_escalation(admin_page: CheckedPage, console: ConsoleServer):
    event = console.post_event("golf", "broken.thing")
    dead_letter = event.replace("evt_", "dlv_") + "_0"
    until(lambda: state_of(console, dead_letter) == "dead")
    page = admin_page.go(f"/dead/{dead_letter}")
    expect(page.get_by_text("Escalate")).to_have_count(0)
    page.get_by_role("button", name="Replay").click()
    until(
        lambda: (
            console.ask(
                "select replays from boathook.delivery where event_id = %s and state = 'dead'", event_of(dead_letter)
            )
            == [(1,)]
        )
    )
    page.reload()
    expect(page.get_by_role("alert")).to_contain_text("Escalate: it failed again after a replay.")
    expect(page.get_by_text("Traceback").first).to_be_visible()
    page.get_by_role("link", name="Group").click()
    expect(page.get_by_role("alert")).to_contain_text("1 dead letter failed again after a replay")
    row = admin_page.go("/dead").get_by_role("row").filter(has_text="this never works")
    expect(row).to_contain_text("Escalate")


def test_a_bulk_replay_after_which_all_fail_again_does_not_end_green(admin_page: CheckedPage, console: ConsoleServer):
    events = [console.post_event(f"again-{place}", "broken.again") for place in range(10)]
    dead_letters = [event.replace("evt_", "dlv_") + "_0" for event in events]
    until(lambda: {state_of(console, one) for one in dead_letters} == {"dead"})
    # Earlier tests may have left letters in the same group.
    ((number,),) = console.ask(
        "select count(*) from boathook.delivery where recipient = 'handler:broken' and state = 'dead'"
    )
    page = admin_page.go(f"/dead/{dead_letters[0]}")
    page.get_by_role("link", name="Group").click()
    page.get_by_role("link", name="Replay all").click()
    page.get_by_role("button", name="Replay 1").click()
    expect(page.locator("#job .badge.bad").first).to_have_text("failed again")
    expect(page.locator("#results.bad")).to_contain_text(
        f"{number} replayed: 0 succeeded, {number} failed again with the same cause"
    )
    expect(page.locator("#job .state-finished")).to_have_count(0)
    page.get_by_role("link", name="Bulk jobs").click()
    expect(page.locator("main .state-finished")).to_have_count(0)


def test_a_purge_needs_the_word_and_an_admin(admin_page: CheckedPage, console: ConsoleServer, make_dead: MakeDead):
    (dead_letter,) = make_dead("hotel")
    page = admin_page.go(f"/dead/{dead_letter}")
    page.locator("summary", has_text="Purge").click()
    page.get_by_label("Type purge to confirm").fill("yes")
    admin_page.expected.add("400")
    page.get_by_role("button", name="Purge").click()
    expect(page.get_by_text("type purge to confirm", exact=True)).to_be_visible()
    page.get_by_label("Type purge to confirm").fill("purge")
    page.get_by_role("button", name="Purge").click()
    expect(page.get_by_text("1 failed delivery purged.")).to_be_visible()
    assert state_of(console, dead_letter) == "gone"


def test_a_viewer_can_read_but_not_replay(anonymous_page: CheckedPage, console: ConsoleServer, make_dead: MakeDead):
    (dead_letter,) = make_dead("india")
    console.add_operator("vera", "viewer")
    console.sign_in(anonymous_page.page, "vera")
    page = anonymous_page.go(f"/dead/{dead_letter}")
    expect(page.get_by_role("heading", level=1)).to_contain_text("failed at its only attempt")
    expect(page.get_by_role("button", name="Replay")).to_have_count(0)
    token = page.locator("meta[name=csrf-token]").get_attribute("content") or ""
    answer = page.request.post(
        f"{console.base}/console/dead/{dead_letter}/replay", form={"csrf": token}, headers={"origin": console.base}
    )
    assert answer.status == 403
    assert state_of(console, dead_letter) == "dead"
