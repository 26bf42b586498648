"""The page of alerts in a browser: what fires, a silence made and ended, a channel tried, the history."""

from collections.abc import Callable, Iterator

import httpx
import pytest

from tests.acceptance.conftest import BoathookProcess, shared_boathook  # noqa: F401 - a fixture
from tests.alert_harness import QUICK, SECRET, AlertReceiver
from tests.browser.conftest import ADMIN, CheckedPage, ConsoleServer
from tests.support import until

pytestmark = pytest.mark.extended("the pages are seen by the tour of every page and tested on PostgreSQL")


@pytest.fixture(scope="module")
def alert_receiver() -> Iterator[AlertReceiver]:
    with AlertReceiver() as made:
        yield made


SETTINGS = (
    QUICK
    + """
[outbound]
allow = ["127.0.0.0/8"]
[notifications.channels.deaf]
kind = "webhook"
url = "http://127.0.0.1:47123/x"
secret = "{secret}"
min_severity = "critical"
[notifications.rules.mine]
metric = "boathook_duplicates_total"
by = ["source"]
measure = "increase"
over_s = 4.0
clear_s = 0.0
above = 1.0
summary = "<i>all of {{subject}}</i> is sent again"
"""
)


@pytest.fixture(scope="module")
def console(shared_boathook: Callable[..., BoathookProcess], alert_receiver: AlertReceiver) -> Iterator[ConsoleServer]:  # noqa: F811
    """A boathook with alerts, and the admin anna."""
    extra = SETTINGS.format(url=alert_receiver.url, secret=SECRET)
    running = shared_boathook(roles="gateway,worker,console,keeper", senders=1, extra=extra)
    until(lambda: httpx.get(f"{running.base}/console/sign-in").status_code == 200)
    server = ConsoleServer(running)
    server.add_operator(ADMIN, "admin")
    yield server
    server.db.close()


def repeat(console: ConsoleServer, key: str) -> None:
    for _ in range(5):
        console.post_event(key)


def test_a_firing_alert_is_shown_silenced_and_in_the_history(
    console: ConsoleServer, admin_page: CheckedPage, alert_receiver: AlertReceiver
) -> None:
    page = admin_page.go("/alerts")
    assert page.get_by_text("No firing alerts.").is_visible()

    def fires() -> bool:
        repeat(console, "alert_1")  # as often as it takes: on a busy machine five may not come within the rule's window
        return alert_receiver.kinds("mine")[:1] == ["firing"]

    until(fires)
    page.reload()
    row = page.locator("section[aria-labelledby=firing] tbody tr")
    if row.count():  # it fires for some seconds only
        assert "<i>all of stripe</i> is sent again" in row.inner_text()  # text, not markup
    until(lambda: alert_receiver.kinds("mine") == ["firing", "recovered"])
    page.goto(f"{console.base}/console/alerts/history")
    assert "mine" in page.locator("tbody").inner_text()


def test_a_silence_is_created_with_a_note_and_ended(console: ConsoleServer, admin_page: CheckedPage) -> None:
    page = admin_page.go("/alerts?rule=mine&subject=stripe")
    page.get_by_label("Reason").fill("the sender is told")
    page.get_by_role("button", name="Silence", exact=True).click()
    assert "Alerts of mine for stripe are silenced" in page.locator(".notice").first.inner_text()
    row = page.locator("section[aria-labelledby=silences] tbody tr").first
    assert "the sender is told" in row.inner_text()
    assert "console:anna" in row.inner_text()
    row.get_by_role("button", name="End", exact=True).click()
    assert "ended" in page.locator("section[aria-labelledby=silences] tbody tr").first.inner_text()
    assert console.ask("select count(*) from boathook.audit where action in ('alert.silence', 'alert.unsilence')") == [
        (2,)
    ]


def test_a_silence_without_a_reason_is_refused_at_its_field(admin_page: CheckedPage) -> None:
    admin_page.expected.add("status of 400")
    page = admin_page.go("/alerts")
    page.get_by_label("Reason").fill("   ")
    page.get_by_role("button", name="Silence", exact=True).click()
    assert "write a note" in page.locator(".field.wrong").inner_text()


def test_a_channel_test_reports_acceptance_or_the_error(admin_page: CheckedPage, alert_receiver: AlertReceiver) -> None:
    page = admin_page.go("/alerts")
    channels = page.locator("section[aria-labelledby=channels]")
    channels.locator("tr", has_text="ops").get_by_role("button", name="Send a test").click()
    assert "ops accepted the test message" in page.locator(".notice").first.inner_text()
    assert alert_receiver.kinds("test") == ["test"]
    channels.locator("tr", has_text="deaf").get_by_role("button", name="Send a test").click()
    assert "deaf rejected the test message" in page.locator(".notice").first.inner_text()


def test_rules_are_shown_with_their_figures_and_thresholds(admin_page: CheckedPage) -> None:
    page = admin_page.go("/alerts")
    row = page.locator("section[aria-labelledby=rules] tbody tr", has_text="mine")
    assert "increase above 1, over 4 s" in row.inner_text()
    assert "stripe" in row.inner_text()


def test_a_viewer_can_change_nothing(console: ConsoleServer, admin_page: CheckedPage) -> None:
    admin_page.expected.add("status of 403")
    console.add_operator("vera", "viewer")
    admin_page.page.context.clear_cookies()
    console.sign_in(admin_page.page, "vera")
    page = admin_page.go("/alerts")
    assert page.get_by_role("heading", name="Rules").is_visible()
    assert page.get_by_role("button", name="Send a test").count() == 0
    assert page.get_by_role("button", name="Silence", exact=True).count() == 0
    answer = page.evaluate("fetch('/console/alerts/channels/ops/test', {method: 'POST'}).then(answer => answer.status)")
    assert answer == 403


def test_without_signing_in_nothing_is_shown(console: ConsoleServer) -> None:
    answer = httpx.get(f"{console.base}/console/alerts", follow_redirects=False)
    assert answer.status_code in {303, 401}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_telephone(admin_page: CheckedPage, scheme: str) -> None:
    admin_page.page.set_viewport_size({"width": 360, "height": 800})
    admin_page.page.emulate_media(color_scheme=scheme)
    page = admin_page.go("/alerts")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
