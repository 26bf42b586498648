"""The documentation is correct: generated pages are current, and every name, link and example exists."""

import ast
import functools
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

import boathook
from benchmarks.__main__ import BENCHMARKS
from boathook import cli, config, testing
from boathook.domain.model import TRANSITIONS
from boathook.handlers.platform import Http, Operations
from boathook.service import catalogue
from scripts import write_docs

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SITE = ROOT / "mkdocs.yml"
AT_THE_ROOT = [ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "CHANGELOG", "SECURITY")]
PAGES = [*AT_THE_ROOT, *sorted(DOCS.rglob("*.md"))]
BLOB = "https://github.com/boathook/boathook/blob/main/"
"""How the README names files of the repository, as package indexes show it without them."""
OWN_METRICS = {metric.name for metric in write_docs.own_metrics()}
"""Those of boathook itself, whatever apps this process has loaded."""
METRIC_NAME = re.compile(r"boathook_\w+_(total|seconds|rows)")
FOR_BOATHOOK = {"hook.bind", "hook.routes", "hook.published"}
"""The public members of an app's object for loading, running and testing it."""
BLOCK = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def generated() -> dict[Path, str]:
    """Every generated page; making them imports the whole API, which not each process of a run has to."""
    return write_docs.pages()


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def read(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, made as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_generated_pages_are_up_to_date(generated):
    old = [name_of(page) for page, text in generated.items() if page.read_text(encoding="utf-8") != text]
    assert old == [], "run make docs"


def test_every_benchmark_is_on_the_page_on_performance():
    page = (DOCS / "explanation/performance.md").read_text(encoding="utf-8")
    assert [name for name in BENCHMARKS if f"| {name} |" not in page and f"benchmarks {name}`" not in page] == []


def test_no_page_of_a_removed_provider_is_left(generated):
    assert set((DOCS / "reference/providers").iterdir()) == {
        page for page in generated if page.parent.name == "providers"
    }


class TestEverythingIsDocumented:
    def test_every_setting(self):
        tables = config.all_sections()
        keys = {f"{table}.{key}" for table, content in tables.items() for key in content}
        assert [key for key in sorted(keys) if f"`{key}`" not in read("reference/configuration.md")] == []

    def test_every_key_of_a_source(self):
        documented = read("reference/configuration.md").partition("## `[sources.NAME]`")[2]
        assert [key for key in source_keys() if f"| `{key}` |" not in documented] == []

    def test_everything_that_an_app_can_declare_and_use(self):
        told = read("reference/apps.md") + read("reference/handlers.md")
        lent = {"hook.operations": Operations, "hook.http": Http, "hook": boathook.Boathook}
        names = {f"{place}.{name}" for place, cls in lent.items() for name in vars(cls) if not name.startswith("_")}
        assert [name for name in sorted(names - FOR_BOATHOOK) if not re.search(rf"\b{name}\b", told)] == []

    def test_every_command_with_its_help(self):
        page = read("reference/cli.md")
        for name, command in write_docs.commands():
            assert re.search(rf"^## `{re.escape(name)}[ `]", page, re.MULTILINE), name
            assert command.help, f"{name} says nothing in its help"

    def test_every_operation_with_commands_and_routes_that_exist(self):
        page = read("reference/operations.md")
        assert re.findall(r"^\| `([\w.]+)` \|", page, re.MULTILINE) == [each.name for each in catalogue.load()]
        assert set(re.findall(r"`(boathook [\w -]+)`", page)) <= {name for name, _ in write_docs.commands()}
        from scripts import docs_http

        routes = {(method, re.sub(r"{\w+}", "{}", path)) for method, path in docs_http.routes()}
        listed = re.findall(r"\| `([A-Z]+) (/[^`]+)` \|", page)
        paths = {(method, f"/api/v1{path}".partition("?")[0]) for method, path in listed}
        assert {(method, re.sub(r"{\w+}", "{}", path)) for method, path in paths} <= routes

    def test_every_metric_that_the_code_counts(self):
        page = read("reference/metrics.md")
        missing = {name for name in counted_names() if f"| `{name}` |" not in page}
        assert missing == set()

    def test_every_metric_of_the_table_is_counted_somewhere(self):
        assert OWN_METRICS - counted_names() == set()

    def test_every_route_of_the_api(self):
        told = set(re.findall(r"^`([A-Z]+) (/\S+)`$", read("reference/api.md"), re.MULTILINE))
        from scripts import docs_http

        assert told == docs_http.routes()

    def test_every_public_name_with_its_docstring(self):
        headings = set(re.findall(r"^### `([\w.]+)`$", read("reference/python-api.md"), re.MULTILINE))
        assert set(boathook.__all__) | set(testing.__all__) <= headings

    def test_every_public_name(self):
        pages = "".join(
            (DOCS / page).read_text(encoding="utf-8") for page in ("reference/handlers.md", "how-to/verify.md")
        )
        assert [name for name in boathook.__all__ if f"`{name}" not in pages] == []


def source_keys() -> set[str]:
    """Return the keys of a source as they are written."""
    return {field.alias or name for name, field in config.SourceSettings.model_fields.items()}


@functools.cache
def counted_names() -> set[str]:
    """Return every metric name in the code, except in the table itself."""
    names: set[str] = set()
    for path in (ROOT / "src").rglob("*.py"):
        if path.name != "metrics.py":
            names.update(
                node.value
                for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
                if isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and (node.value in OWN_METRICS or METRIC_NAME.fullmatch(node.value))
            )
    return names


def test_the_architecture_page_draws_the_legal_moves():
    drawn = re.findall(r"^    (\w+) --> (\w+)", read("explanation/architecture.md"), re.MULTILINE)
    assert len(drawn) == len(set(drawn))
    assert set(drawn) == {(str(state), str(move)) for state, moves in TRANSITIONS.items() for move in moves}


def is_group(line: str) -> bool:
    """Return whether a command line names a group of commands and none of them."""
    command: Any = typer.main.get_command(cli.app)
    words = line.split()[1:]
    if words[0] not in command.commands:
        return False  # a command of an app
    for word in words:
        if not hasattr(command, "commands") or word not in command.commands:
            break
        command = command.commands[word]
    return hasattr(command, "commands") and not command.invoke_without_command


def test_a_command_group_is_distinguished_from_a_command():
    assert is_group("boathook config")
    assert not is_group("boathook config show --json")


def test_the_upgrade_page_names_the_existing_migration_kinds():
    posts = list((ROOT / "src/boathook/db/migrations").glob("*_post_*.sql"))
    assert ("All up to now are *pre*." in read("how-to/upgrade.md")) is (not posts)


def test_readme_links_are_absolute():
    targets = re.findall(r"\]\(([^)\s]+)\)", BLOCK.sub("", (ROOT / "README.md").read_text(encoding="utf-8")))
    assert len(targets) > 30
    assert [target for target in targets if not target.startswith("https://")] == []


def pages_of(nav: Any) -> Iterator[str]:
    """Yield the pages that a navigation names, as often as it does."""
    match nav:
        case str():
            yield nav
        case list() | dict():
            for part in nav.values() if isinstance(nav, dict) else nav:
                yield from pages_of(part)


def test_the_site_names_each_page_once():
    named = list(pages_of(yaml.load(SITE.read_text(encoding="utf-8"), _Site).get("nav")))
    assert [page for page, number in Counter(named).items() if number > 1] == []
    assert len(named) > 30


class _Site(yaml.SafeLoader):
    """Reads mkdocs.yml without its tags for Python functions."""


_Site.add_multi_constructor("tag:yaml.org,2002:python/", lambda _loader, _suffix, _node: None)


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=name_of)
def test_a_command_in_a_sentence_does_something(page):
    """A group of commands, such as `boathook config`, only shows its help."""
    prose = BLOCK.sub("", re.sub(r"^#.*$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE))
    assert [line for line in re.findall(r"`(boathook [a-z][^`]*)`", prose) if is_group(line)] == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
class TestEachPage:
    def test_its_links_lead_somewhere(self, page):
        prose = BLOCK.sub("", page.read_text(encoding="utf-8"))
        for target in re.findall(r"\]\(([^)\s]+)\)", prose):
            if re.match(r"https?:|mailto:", target) and not target.startswith(BLOB):
                continue
            path, _, anchor = target.partition("#")
            folder = ROOT if path.startswith(BLOB) else page.parent
            there = (folder / path.removeprefix(BLOB)).resolve() if path else page
            assert there.exists(), f"{target} does not exist"
            assert not anchor or anchor in anchors(there), f"{target}: no such heading"
