"""Sources and event types on the console, as an admin meets them in a browser."""

import json
import time

import httpx
import pytest
from playwright.sync_api import expect

from boathook.providers import RECIPES
from boathook.testing import sign
from tests.acceptance.conftest import payload
from tests.browser.conftest import CheckedPage, ConsoleServer
from tests.support import until

pytestmark = pytest.mark.extended("the pages are seen by the tour of every page and tested on PostgreSQL")

ADDED = "whsec_an added secret, quite long"


def post_signed(console: ConsoleServer, key: str, secret: str) -> int:
    body = json.dumps(payload(key, "payment.paid")).encode()
    headers = {**sign("stripe", secret, body), "content-type": "application/json"}
    return httpx.post(f"{console.base}/in/stripe", content=body, headers=headers, timeout=300).status_code


def test_sources_are_listed_with_their_events(admin_page: CheckedPage, console: ConsoleServer):
    event_id = console.post_event("listed-1")
    assert post_signed(console, "listed-2", "whsec_wrong") == 401
    page = admin_page.go("/sources")
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name="stripe", exact=True))
    assert "body signed" in row.inner_text()
    until(lambda: page.reload() and row.locator("time").count() == 2)
    row.get_by_role("link", name="stripe", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("stripe")
    assert "payment.paid" in page.get_by_role("main").inner_text()
    assert event_id.startswith("evt_")


def test_set_up_instructions_name_our_address_and_where_the_secret_is(admin_page: CheckedPage):
    page = admin_page.go("/sources/stripe")
    text = page.get_by_role("main").inner_text()
    assert "/in/stripe" in text
    assert "Workbench" in text
    assert "whsec_acceptance" not in page.content()


@pytest.mark.parametrize("provider", ["stripe", "meta", "yookassa", "hmac", "mollie"])
def test_a_sender_that_is_not_set_up_yet_has_instructions_too(admin_page: CheckedPage, provider: str):
    page = admin_page.go(f"/sources-senders/{provider}")
    assert f"/in/{provider}" in page.get_by_role("main").inner_text()


def test_all_senders_are_listed(admin_page: CheckedPage):
    page = admin_page.go("/sources-senders")
    assert page.get_by_role("row").count() == len(RECIPES) + 1


def test_the_test_button_shows_each_step(admin_page: CheckedPage, console: ConsoleServer):
    page = admin_page.go("/sources/stripe")
    page.get_by_role("button", name="Send a test request").click()
    page.get_by_role("heading", name="stripe: test succeeded").wait_for()
    text = page.get_by_role("main").inner_text()
    assert "a valid sample is accepted" in text
    assert "a forged sample is rejected" in text
    assert "401" in text
    event_id = page.get_by_role("main").get_by_role("link", name="evt_").inner_text()
    kept = console.ask("select headers ->> 'user-agent' from boathook.event order by id desc limit 1")
    assert event_id
    assert kept == [("boathook-test",)]


def test_a_secret_is_rotated_without_a_restart(admin_page: CheckedPage, console: ConsoleServer):
    assert post_signed(console, "rotated-1", ADDED) == 401
    page = admin_page.go("/sources/stripe")
    page.get_by_label("Secret", exact=True).fill(ADDED)
    page.get_by_label("Label").fill("of the winter")
    page.get_by_role("button", name="Add the secret").click()
    page.get_by_text("Secret added").wait_for()
    assert ADDED not in page.content()
    until(lambda: post_signed(console, "rotated-1", ADDED) == 200)
    row = page.get_by_role("row").filter(has_text="of the winter")
    row.get_by_label("When ssec").select_option(label="expire now")
    row.get_by_role("button", name="Set").click()
    page.get_by_role("status").filter(has_text="expires at").wait_for()
    until(lambda: post_signed(console, f"rotated-{time.monotonic()}", ADDED) == 401)
    assert console.post_event("rotated-3")
    page.get_by_role("row").filter(has_text="of the winter").get_by_role("button", name="Remove").click()
    page.get_by_role("button", name="Confirm").click()
    page.get_by_text("removed. Every gateway").wait_for()
    actions = [one for (one,) in console.ask("select action from boathook.audit where subject = 'stripe' order by id")]
    assert actions[-3:] == ["source.secret.add", "source.secret.expire", "source.secret.remove"]


def test_an_invalid_secret_is_shown_at_its_field(admin_page: CheckedPage):
    admin_page.expected.add("400")
    page = admin_page.go("/sources/stripe")
    page.get_by_label("Secret", exact=True).fill("whsec_acceptance")
    page.get_by_role("button", name="Add the secret").click()
    page.get_by_text("it is already one of this source's secrets").wait_for()
    assert page.get_by_label("Secret", exact=True).get_attribute("aria-invalid") == "true"


def test_only_admins_can_change_secrets(anonymous_page: CheckedPage, console: ConsoleServer):
    console.add_operator("otto", "operator")
    console.sign_in(anonymous_page.page, "otto")
    page = anonymous_page.go("/sources/stripe")
    page.get_by_text("Managing secrets requires the role admin.").wait_for()
    token = page.locator("meta[name=csrf-token]").get_attribute("content")
    answer = page.request.post(
        f"{console.base}/console/sources/stripe/secrets",
        form={"csrf": str(token), "secret": "whsec_of an operator"},
        headers={"origin": console.base},
    )
    assert answer.status == 403
    assert console.ask("select count(*) from boathook.source_secret where added_by = %s", "console:otto") == [(0,)]


SCHEMA = '{"type": "object", "required": ["id"], "properties": {"id": {"type": "integer"}}, "examples": [{"id": 1}]}'


def test_an_event_type_is_made_checked_changed_and_archived(admin_page: CheckedPage):
    page = admin_page.go("/event-types")
    page.get_by_role("link", name="Create event type").click()
    page.get_by_label("Name", exact=True).fill("boat.launched")
    page.get_by_label("Description").fill("A boat is in the water <script>alert(1)</script>")
    page.get_by_label("Schema").fill(SCHEMA)
    page.get_by_label("Example payload").fill('{"id": "seven"}')
    admin_page.expected.add("400")
    page.get_by_role("button", name="Only check the schema").click()
    page.get_by_text("does not match the schema").wait_for()
    page.get_by_label("Example payload").fill('{"id": 7}')
    page.get_by_role("button", name="Only check the schema").click()
    page.get_by_text("the example matches").wait_for()
    page.get_by_role("button", name="Save").click()
    page.get_by_role("heading", name="boat.launched").wait_for()
    assert '"required"' in page.get_by_role("main").inner_text()
    page.get_by_role("link", name="Edit").click()
    page.get_by_label("Group").fill("boats")
    page.get_by_label("Deprecated").check()
    page.get_by_role("button", name="Save").click()
    page.get_by_text("This event type is deprecated.").wait_for()
    page.get_by_role("button", name="Archive").click()
    page.get_by_role("button", name="Confirm").click()
    page.get_by_text("Event type archived:").first.wait_for()
    assert page.goto(f"{admin_page.server.base}/console/event-types")
    assert page.get_by_role("link", name="boat.launched").count() == 0


def test_an_openapi_import_is_previewed_and_applied(admin_page: CheckedPage, console: ConsoleServer):
    document = "openapi: 3.1.0\nwebhooks:\n  boat.sold:\n    post:\n      description: A boat has a new owner\n"
    page = admin_page.go("/event-types-import")
    page.get_by_role("textbox", name="Document").fill(document)
    page.get_by_role("button", name="Preview changes").click()
    page.get_by_role("listitem").filter(has_text="boat.sold").wait_for()
    assert console.ask("select count(*) from boathook.event_type where name = 'boat.sold'") == [(0,)]
    page.get_by_role("button", name="Import", exact=True).click()
    page.get_by_text("1 event types created or updated.").wait_for()
    assert console.ask("select description from boathook.event_type where name = 'boat.sold'") == [
        ("A boat has a new owner",)
    ]


def test_settings_are_shown_without_their_secrets(admin_page: CheckedPage, console: ConsoleServer):
    page = admin_page.go("/settings")
    text = page.get_by_role("main").inner_text()
    assert "sources.stripe.secrets" in text
    assert "(hidden)" in text
    assert "whsec_acceptance" not in page.content()
    assert console.base.rpartition(":")[2] in text
