"""The docs site is built whole or not at all, and needs nothing from elsewhere: opened from a disk, its search works."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, TimeoutError  # noqa: A004 - Playwright's own, as this is what it raises

pytestmark = pytest.mark.extended("builds the documentation as a site")

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
WORDS = {
    "getting started": ["tutorial/quickstart"],
    "install": ["tutorial/quickstart"],
    "ngrok": ["how-to/listen"],
    "tunnel": ["how-to/listen"],
    "fastapi": ["how-to/fastapi", "how-to/verify"],
    "django": ["how-to/django", "how-to/move-from-a-view"],
    "celery": ["explanation/boathook-or-celery"],
    "retry": ["reference/handlers", "how-to/sending"],
    "log level": ["how-to/monitor", "reference/configuration"],
    "delete a customer's data": ["how-to/delete-data"],
}
"""What newcomers search for, and the pages of which one is to be among the first results."""
MAX_RESULTS = 3
RESULT = ".md-search-result__item > .md-search-result__link"
PAGES = (
    f"""[...new Set([...document.querySelectorAll("{RESULT}")].map(link => link.pathname))].slice(0, {MAX_RESULTS})"""
)
"""The first pages that are found, each once, however many of its sections are."""


def build(config: Path, site: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", config, "--site-dir", site],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make docs` builds it."""
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT / "mkdocs.yml", folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_page_is_on_it_and_in_its_navigation(site):
    pages = {path.relative_to(DOCS).with_suffix(".html") for path in DOCS.rglob("*.md")}
    assert [str(page) for page in sorted(pages) if not (site / page).exists()] == []
    index = (site / "index.html").read_text()
    providers = {page.relative_to("reference") for page in pages if page.parts[:2] == ("reference", "providers")}
    assert len(providers) > 50
    listing = (site / "reference/providers.html").read_text()
    assert [page for page in providers if f'href="{page}"' not in listing] == []
    assert 'href="how-to/upgrade.html"' in index


def test_files_that_pages_lead_to_are_on_it(site):
    led = {target for page in site.rglob("*.html") for target in re.findall(r'href="([^"#?]*)', page.read_text())}
    assert any(target.endswith("tests/unit/test_spool.py.txt") for target in led)
    for page in site.rglob("*.html"):
        for target in re.findall(r'<a [^>]*href="([^"#?:]+)["#?]', page.read_text()):
            if page.name != "404.html":
                assert (page.parent / target).exists(), f"{page.relative_to(site)} leads to {target}"


def test_the_site_loads_no_external_resources(site):
    fetched = re.compile(r'<(?:script|img|iframe|link)\b[^>]*(?:src|href)="(https?:)?//[^"]*"')
    assert [page.name for page in site.rglob("*.html") if fetched.search(page.read_text())] == []


def test_search_works_on_a_page_that_is_opened_from_a_disk(site, context: BrowserContext):
    page = context.new_page()
    asked: list[str] = []
    faults: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda line: faults.append(line.text) if line.type == "error" else None)
    page.goto((site / "how-to/upgrade.html").as_uri())
    page.locator("input[name=query]").press_sequentially("spool drain")  # it listens to keys
    found = page.locator(".md-search-result__link")
    found.first.wait_for(state="attached")
    targets = [link.get_attribute("href") or "" for link in found.all()]
    assert any("back-up.html" in target or "spool.html" in target for target in targets)
    assert [url for url in asked if not url.startswith("file:")] == []
    assert faults == []


def test_search_finds_pages_by_common_words(site, context: BrowserContext):
    page = context.new_page()
    page.goto((site / "index.html").as_uri())
    field = page.locator("input[name=query]")
    missed: dict[str, list[str]] = {}
    for words, places in WORDS.items():
        field.fill("")
        field.press_sequentially(words)
        try:
            page.wait_for_function(
                f"places => {PAGES}.some(path => places.some(place => path.endsWith(place)))",
                arg=[f"{place}.html" for place in places],
                timeout=20_000,
            )
        except TimeoutError:
            missed[words] = page.evaluate(PAGES)
    assert missed == {}


def test_each_page_is_there_as_markdown_and_listed_for_programs(site):
    listed = re.findall(r"^- \[[^]]+\]\(([^)]+)\): \S", (site / "llms.txt").read_text(), re.MULTILINE)
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    assert sorted(listed) == sorted(pages)
    for place in listed:
        text = (site / place).read_text()
        assert text.startswith(("# ", "---")), place
        for target in re.findall(r"\]\(([^)\s#:]+)[)#]", re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
            assert ((site / place).parent / target).exists(), f"{place} leads to {target}"


@pytest.mark.parametrize(
    "wrong", ["[gone](gone.md)", "[elsewhere](index.md#nowhere)"], ids=["a page that is not there", "an anchor"]
)
def test_mutant_a_link_that_leads_nowhere_fails_the_build(wrong, tmp_path):
    pages = tmp_path / "docs"
    pages.mkdir()
    config = tmp_path / "mkdocs.yml"
    config.write_text(f"INHERIT: {ROOT / 'mkdocs.yml'}\ndocs_dir: {pages}\nnav: [index.md]\nhooks: []\n")
    (pages / "index.md").write_text("# Home\n\n[here](#home)\n")
    assert build(config, tmp_path / "site").returncode == 0
    (pages / "index.md").write_text(f"# Home\n\n{wrong}\n")
    assert build(config, tmp_path / "site").returncode != 0
