"""Every page of the console, found by following its links, works for every role and on any screen."""

import contextlib
import re
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect
from playwright.sync_api import TimeoutError as TooLate

from boathook_console.areas import AREAS
from tests.browser.conftest import CheckedPage, ConsoleServer
from tests.browser.receiver import open_receiver
from tests.browser.sample_data import SampleData, paths_of
from tests.support import until

WORDS = ("a note about a boat", "the harbour master asks", "anna paid twice", "three ropes", "a parcel for the pier")
_IDS = re.compile(r"[a-z]+_[0-9a-z]{26,27}(_\d+)?|qtask_\w+|grp_\w+|(?<=/)\d+(?=/|$)")
_OWN_WORDS = re.compile(
    r"(?<=/event-types/)[^/?]+|(?<=/sources/)[^/?]+|(?<=/sources-senders/)[^/?]+|(?<=/sources-new/)[^/?]+|(?<=/handlers/)[^?]+"
)
_LONG = {"/console/overview/live"}
"""What is not a page."""


@pytest.fixture(scope="module")
def filled_console(console: ConsoleServer) -> Iterator[ConsoleServer]:
    with open_receiver() as receiver:
        sample_data = SampleData(console, receiver, WORDS)
        sample_data.all()
        sample_data.api.close()
        console.running.cli("sources", "add", "stored", "--provider", "github", "--generate-secret")
        until(lambda: console.ask("select count(*) from boathook.alert where state = 'firing'")[0][0])
        yield console


@pytest.fixture(scope="module")
def pages(filled_console: ConsoleServer, browser: Browser) -> list[str]:
    """One address for each kind of page."""
    page = browser.new_page()
    filled_console.sign_in(page)
    found: dict[str, str] = {}
    waiting = ["/console", "/console/account", "/console/settings", "/console/search", "/console/sources/stripe"]
    waiting += ["/console/sources/stored/edit"]
    while waiting:
        path = waiting.pop(0)
        if kind_of(path) in found or path in _LONG:
            continue
        answer = page.goto(f"{filled_console.base}{path}")
        assert answer is not None
        assert answer.status == 200, f"{path}: {answer.status}"
        if "text/html" not in answer.headers["content-type"]:
            continue
        found[kind_of(path)] = path
        waiting += [one for one in paths_of(page, filled_console.base) if kind_of(one) not in found]
    page.close()
    return list(found.values())


def kind_of(path: str) -> str:
    """Return a URL without the parts that differ between pages of one kind."""
    return _OWN_WORDS.sub("*", _IDS.sub("*", path.partition("?")[0]))


def test_every_page_that_there_is_was_found(pages: list[str]):
    """A page without a link to it cannot be found."""
    shown = {kind_of(path) for path in pages}
    areas = {
        re.sub(r"\{\w+(:\w+)?\}", "*", entry.path) for area in AREAS for entry in area.entries if entry.method == "GET"
    }
    wanted = {f"/console{path}" for path in areas if not path.endswith(_PARTS)}
    missing = {
        path for path in wanted if not any(re.fullmatch(re.escape(path).replace(r"\*", "[^/]+"), one) for one in shown)
    }
    assert missing <= _ELSEWHERE, missing - _ELSEWHERE


_PARTS = (
    "/state", "/live", "/charts", "/history", "/body", "/curl", "/payload", "/download/*", "/jobs", "/tail", "/suggestions/*",
)  # fmt: skip
"""Parts of pages, and downloads."""
_ELSEWHERE = {
    "/console/events/replay",  # once a filter is set: tests/browser/test_events.py
    "/console/apps",  # where apps have metrics: tests/postgres/operating/test_app_metrics.py
    "/console/apps/*",  # the same
    "/console/alerts/history",  # once one has recovered: tests/browser/test_alerts.py
    "/console/jobs/*",  # after bulk work has been asked for: tests/browser/test_dead_letters.py
    "/console/verify/*",  # after a check has been asked for: tests/browser/test_verify_runs.py
    "/console/applications/*/endpoints/*/tests/*",  # after a test message: tests/browser/test_endpoints.py
    "/console/applications/*/endpoints/*/tasks/*",  # after a recovery: tests/browser/test_endpoints.py
}


@pytest.mark.parametrize(
    ("scheme", "rules"),
    [
        pytest.param(
            "light", None, marks=pytest.mark.extended("judges every page that the tour of every page has seen")
        ),
        pytest.param("dark", ["color-contrast"], marks=pytest.mark.extended("differs in its colours only")),
    ],
)
def test_no_page_has_a_serious_accessibility_fault(
    filled_console: ConsoleServer, pages: list[str], browser: Browser, scheme: Any, rules: list[str] | None
):
    faults: list[str] = []
    context = browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme=scheme)
    admin_page = CheckedPage(context.new_page(), filled_console)
    filled_console.sign_in(admin_page.page)
    for path in pages:
        admin_page.page.goto(f"{filled_console.base}{path}")
        faults += [f"{path}: {fault}" for fault in serious_faults(admin_page.page, rules)]
    context.close()
    admin_page.check()
    assert not faults, "\n".join(faults)


def serious_faults(page: Page, rules: list[str] | None = None) -> list[str]:
    """Return what axe-core finds serious or worse."""
    options: dict[str, Any] = {"resultTypes": ["violations"]}
    if rules is not None:
        options["runOnly"] = {"type": "rule", "values": rules}
    found = Axe().run(page, options=options).response["violations"]
    return [
        f"{one['id']} ({one['impact']}): {one['nodes'][0]['html'][:200]}"
        for one in found
        if one["impact"] in {"serious", "critical"}
    ]


@pytest.mark.extended("the mutant of a test that stays: it shows that the test can fail")
def test_axe_detects_a_faulty_page(admin_page: CheckedPage):
    """The mutant: without its label, the search field has no accessible name."""
    page = admin_page.go("/events")
    page.evaluate("document.querySelectorAll('label').forEach(one => one.remove())")
    page.evaluate(
        "document.querySelectorAll('input').forEach(one => { one.placeholder = ''; one.removeAttribute('aria-label') })"
    )
    assert any(fault.startswith(("label", "select-name")) for fault in serious_faults(page))


@pytest.mark.extended("differs in the size of its window only")
def test_every_page_fits_a_phone_and_has_one_title(filled_console: ConsoleServer, pages: list[str], browser: Browser):
    context = browser.new_context(viewport={"width": 360, "height": 740})
    page = context.new_page()
    filled_console.sign_in(page)
    wide, headings = [], []
    for path in pages:
        page.goto(f"{filled_console.base}{path}")
        try:  # the layout may change until fonts and scripts have arrived
            page.wait_for_function("document.documentElement.scrollWidth <= 360", timeout=60_000)
        except TooLate:
            wide.append(f"{path}: {page.evaluate(_WIDEST)}")
        if page.locator("h1").count() != 1:
            headings.append(path)
    context.close()
    assert (wide, headings) == ([], [])


_WIDEST = """() => [...document.querySelectorAll('main *')].filter(one => one.getBoundingClientRect().right > 361
    && !one.closest('.scroll, pre')).map(one => one.outerHTML.slice(0, 160)).slice(-2)"""


@pytest.fixture
def reader(filled_console: ConsoleServer, browser: Browser) -> Iterator[Page]:
    """A page signed in as the admin, of no particular size."""
    context = browser.new_context()
    context.set_default_timeout(300_000)
    page = context.new_page()
    filled_console.sign_in(page)
    yield page
    context.close()


@pytest.mark.extended("differs in the size of its window only")
def test_no_cell_of_a_table_is_clipped_on_any_screen(filled_console: ConsoleServer, pages: list[str], reader: Page):
    clipped = []
    for path in pages:
        reader.goto(f"{filled_console.base}{path}")
        reader.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true })")
        for width in (375, 768, 1280):
            clipped += [f"{path} at {width}: {cell}" for cell in clipped_cells(reader, width)]
    assert not clipped, "\n".join(clipped)


def test_a_clipped_table_is_detected(filled_console: ConsoleServer, reader: Page):
    """The mutant: without the script that lays wide tables out as lists, a telephone shows their first columns only."""
    reader.goto(f"{filled_console.base}/console/events")
    assert not clipped_cells(reader, 375)
    reader.evaluate("document.querySelectorAll('.stacked').forEach(one => one.classList.remove('stacked'))")
    assert clipped_cells(reader, None)


def clipped_cells(page: Page, width: int | None) -> list[str]:
    """Return the table cells that are not fully visible at that screen width, or at the current one."""
    if width is not None:
        page.set_viewport_size({"width": width, "height": 900})
    page.evaluate(_TWO_FRAMES)
    found: list[str] = page.evaluate(_CLIPPED)
    return found


_TWO_FRAMES = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
_CLIPPED = """() => [...document.querySelectorAll('main :is(td, th)')].filter(cell => {
    const at = cell.getBoundingClientRect();
    if (!at.width || cell.closest('.stacked > table > thead')) return false;
    const place = (cell.closest('.scroll') ?? document.documentElement).getBoundingClientRect();
    const cuts = (one) => /hidden|clip/.test(getComputedStyle(one).overflowX) && !one.matches('.hidden');
    return at.right > place.right + 1 || at.left < place.left - 1 || at.right > innerWidth + 1
        || cell.scrollWidth > cell.clientWidth + 1
        || [...cell.querySelectorAll('*')].some(one => cuts(one) && one.scrollWidth > one.clientWidth + 1);
}).map(cell => cell.outerHTML.slice(0, 160))"""


DECISIVE_COLUMNS = {
    "/console/events": ("Time", "Type", "From", "Deliveries"),
    "/console/handlers": ("Handler", "Health"),
    "/console/dead": ("Failure", "Deliveries"),
    "/console/dead/letters": ("Failure", "Type", "Failed"),
    "/console/rejections": ("Cause", "Stored"),
    "/console/sources": ("Source", "Accepted", "Rejected"),
    "/console/alerts": ("Alert", "Severity", "Since"),
    "/console/applications/*/endpoints": ("Endpoint", "Health (24 h)"),
    "/console/applications/*/endpoints/*/attempts": ("When", "Type", "Result", "Status"),
}
"""The columns of a page that an operator decides by: none may be out of sight."""
FONTS = ("Inter", "DejaVu Sans", "Liberation Sans")
WINDOWS = (390, 1280, 1440)


@pytest.mark.extended("differs in the size of its window only")
def test_important_columns_are_visible_with_any_font(filled_console: ConsoleServer, pages: list[str], reader: Page):
    """DejaVu is much wider than Inter, which the console brings along; a system without Inter may have any."""
    fonts = [font for font in FONTS if font == "Inter" or is_installed(font)]
    assert set(DECISIVE_COLUMNS) <= {kind_of(path) for path in pages}
    faults = []
    for path in pages:
        reader.goto(f"{filled_console.base}{path}")
        for font in fonts:
            reader.evaluate("font => document.documentElement.style.setProperty('--font', `'${font}'`)", font)
            for width in WINDOWS:
                reader.set_viewport_size({"width": width, "height": 900})
                reader.evaluate(_TWO_FRAMES)
                found = reader.evaluate(_OUT_OF_SIGHT, list(DECISIVE_COLUMNS.get(kind_of(path), ())))
                faults += [f"{path} in {font} at {width}: {one}" for one in found]
    assert not faults, "\n".join(faults)


@pytest.mark.extended("the mutant of a test that stays: it shows that the test can fail")
def test_a_hidden_important_column_is_detected(filled_console: ConsoleServer, reader: Page):
    reader.set_viewport_size({"width": 1280, "height": 900})
    reader.goto(f"{filled_console.base}/console/events")
    wanted = list(DECISIVE_COLUMNS["/console/events"])
    assert reader.evaluate(_OUT_OF_SIGHT, wanted) == []
    assert reader.evaluate(_OUT_OF_SIGHT, ["Weather"]) == ["no column Weather"]
    reader.evaluate(
        "document.querySelectorAll('main td:nth-child(4)').forEach(cell => { cell.style.display = 'none' })"
    )
    assert reader.evaluate(_OUT_OF_SIGHT, wanted)


def is_installed(font: str) -> bool:
    """Return whether the system has a font."""
    program = shutil.which("fc-match")
    return program is not None and font in subprocess.check_output([program, font, "family"], text=True, timeout=60)


_OUT_OF_SIGHT = """(wanted) => {
    const faults = document.documentElement.scrollWidth > innerWidth ? ['the page is wider than its window'] : [];
    const tables = [...document.querySelectorAll('main table')].map(table => [table,
        [...table.tHead?.rows[0]?.cells ?? []].map(cell => cell.textContent.trim())]);
    for (const name of wanted) {
        const found = tables.filter(([_, titles]) => titles.includes(name));
        if (!found.length) faults.push(`no column ${name}`);
        for (const [table, titles] of found) {
            for (const row of table.tBodies[0].rows) {
                const cell = row.cells[titles.indexOf(name)];
                if (!cell || !cell.textContent.trim() || cell.closest('details:not([open])')) continue;
                const at = cell.getBoundingClientRect();
                if (!at.width || at.left < 0 || at.right > innerWidth) faults.push(`${name}: ${cell.outerHTML.slice(0, 120)}`);
            }
        }
    }
    return faults;
}"""


def test_the_bare_address_leads_to_the_console(filled_console: ConsoleServer, reader: Page):
    reader.goto(f"{filled_console.base}/")
    assert reader.url == f"{filled_console.base}/console"


@pytest.mark.extended("the tour of every page stays")
def test_firing_alerts_are_on_the_overview_and_in_the_navigation(filled_console: ConsoleServer, reader: Page):
    reader.goto(f"{filled_console.base}/console")
    told = reader.get_by_role("region", name="Firing alerts")
    told.get_by_role("link", name="has new dead letters").first.click()
    reader.get_by_role("heading", level=1, name="Failed deliveries").wait_for()
    link = reader.get_by_role("navigation", name="Console").get_by_role("link", name="Alerts")

    def is_counted() -> bool:
        reader.reload()
        ((number,),) = filled_console.ask("select count(*) from boathook.alert where state in ('firing', 'clearing')")
        return link.inner_text().split() == ["Alerts", str(number), "firing"]

    until(is_counted)
    assert "bad" in (link.locator(".badge").get_attribute("class") or "")
    reader.goto(f"{filled_console.base}/console/settings")
    alerts = reader.get_by_role("banner").get_by_role("link", name="firing alerts")
    number = alerts.inner_text().split()[0]
    assert reader.title().startswith(f"({number}) ")
    alerts.click()
    reader.get_by_role("heading", level=1, name="Alerts").wait_for()


@pytest.mark.extended("the tour of every page stays")
def test_the_keys_lead_everywhere(admin_page: CheckedPage):
    page = admin_page.go("")
    for key, heading in (("e", "Events"), ("d", "Failed deliveries"), ("s", "Sources"), ("u", "Audit")):
        found = page.get_by_role("heading", level=1, name=heading)
        page.wait_for_load_state()
        while not found.is_visible():  # on a busy machine more time may lie between two keys than the page allows
            page.keyboard.press("g")
            page.keyboard.press(key)
            with contextlib.suppress(TooLate):
                found.wait_for(timeout=5_000)
    page.keyboard.press("?")
    page.get_by_role("heading", name="Keyboard shortcuts", exact=True).wait_for()
    page.keyboard.press("Escape")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"


def test_the_command_palette_finds_pages_and_ids(filled_console: ConsoleServer, reader: Page):
    checked = CheckedPage(reader, filled_console)
    checked.go("/events")
    options = reader.get_by_role("listbox", name="Results").get_by_role("option")
    box = reader.get_by_role("combobox", name="Page, source")
    reader.get_by_role("searchbox", name="Search pages").focus()
    reader.keyboard.press("Control+k")
    options.first.wait_for()
    assert serious_faults(reader) == []
    reader.keyboard.press("Escape")
    assert reader.evaluate("document.activeElement.id") == "jump"

    reader.keyboard.press("Control+k")
    box.fill("strip")
    options.filter(has_text="stripe").first.wait_for()
    chosen = [box.get_attribute("aria-activedescendant")]
    for key in ("ArrowDown", "ArrowUp"):
        reader.keyboard.press(key)
        chosen.append(box.get_attribute("aria-activedescendant"))
    assert chosen[0] == chosen[2] != chosen[1]
    assert reader.locator("#palette-list [aria-selected=true]").inner_text().startswith("stripe")
    reader.keyboard.press("Enter")
    reader.wait_for_url(f"{filled_console.base}/console/sources/stripe")

    ((event,),) = filled_console.ask("select boathook.show_id('evt', id) from boathook.event order by id limit 1")
    reader.keyboard.press("Control+k")
    box.fill(event)
    reader.keyboard.press("Enter")  # before the options are there
    reader.wait_for_url(f"{filled_console.base}/console/events/{event}")
    checked.check()


@pytest.mark.extended("the tour of every page stays")
def test_a_row_opens_beside_its_list_by_keyboard(filled_console: ConsoleServer, admin_page: CheckedPage):
    # htmx logs a refresh of an event's deliveries that the reload below interrupts.
    admin_page.expected |= {"htmx:afterRequest", "htmx:sendAbort"}
    page = admin_page.go("/events")
    listed = page.url
    page.locator("main tbody tr").first.wait_for()
    page.keyboard.press("j")
    page.keyboard.press("j")
    second = page.locator("main tbody a[data-drawer]").nth(1)
    expect(second).to_be_focused()
    address = filled_console.base + str(second.get_attribute("href"))
    page.keyboard.press("Enter")
    drawer = page.get_by_role("dialog")
    expect(drawer.get_by_role("heading", level=1)).to_be_visible()
    assert page.url == address
    expect(drawer).to_be_focused()
    assert serious_faults(page) == []
    page.keyboard.press("Escape")
    expect(drawer).to_be_hidden()
    expect(second).to_be_focused()
    assert page.url == listed
    # Back and forward, and a reload of the address that the drawer has shown.
    page.go_forward()
    expect(drawer).to_be_visible()
    page.locator("main tbody a[data-drawer]").first.click()
    expect(drawer.get_by_role("link", name="Open as a page")).to_have_attribute(
        "href", re.compile(r"/console/events/evt_")
    )
    expect(page).not_to_have_url(address)
    page.reload()
    expect(drawer).to_be_hidden()
    page.get_by_role("main").get_by_role("heading", level=1).wait_for()
    page.go_back()
    expect(page.get_by_role("heading", level=1, name="Events")).to_be_visible()
    assert page.url == listed


@pytest.mark.extended("differs in the size of its window only")
def test_a_row_is_a_plain_link_on_a_narrow_screen(filled_console: ConsoleServer, reader: Page):
    reader.set_viewport_size({"width": 900, "height": 900})
    for path in ("/console/events", "/console/dead/letters"):
        reader.goto(f"{filled_console.base}{path}")
        reader.locator("main tbody a[data-drawer]").first.click()
        reader.wait_for_url(re.compile(f"{path.removesuffix('/letters')}/(evt|dlv)_"))
        expect(reader.get_by_role("dialog")).to_be_hidden()


@pytest.mark.extended("the tour of every page stays")
def test_nothing_moves_when_the_overview_is_updated(filled_console: ConsoleServer, admin_page: CheckedPage):
    page = admin_page.go("")
    expect(page.locator("#overview-link")).to_have_text("Live")
    page.evaluate(_WATCH_SHIFTS)
    for n in range(5):
        filled_console.post_event(f"evt_still_{n}")
    until(lambda: page.locator("#overview [id^='n-']:not(h2, [data-is-old])").count())
    page.evaluate(_TWO_FRAMES)
    shifts = page.evaluate("shifts")
    assert sum(shift["value"] for shift in shifts) < MAX_SHIFT, shifts
    # The mutant: a part that takes room above the others moves them.
    page.evaluate(_MOVE_ALL)
    until(lambda: sum(shift["value"] for shift in page.evaluate("shifts")) > MAX_SHIFT)


MAX_SHIFT = 0.01
"""A tenth of what counts as good for a whole visit (web.dev/articles/cls)."""
_MOVE_ALL = """() => {
    const part = document.createElement('p');
    part.style.height = '200px';
    document.getElementById('overview').prepend(part);
}"""
_WATCH_SHIFTS = """() => {
    for (const part of document.querySelectorAll('#overview [id^="n-"]')) part.dataset.isOld = 'yes';
    window.shifts = [];
    new PerformanceObserver(list => {
        for (const one of list.getEntries()) {
            shifts.push({ value: one.value, parts: one.sources.map(source => source.node?.outerHTML?.slice(0, 160)) });
        }
    }).observe({ type: 'layout-shift' });
}"""
