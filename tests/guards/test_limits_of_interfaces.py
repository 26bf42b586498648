"""Limits of stored values are in the tables of fields, not in an interface, where the others would not have them.

An interface may limit what it alone reads: pages of lists, queries and files. Those places are listed with the reason.
"""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import boathook

ROOT: Final = Path(boathook.__file__).parents[1]
INTERFACES: Final = (
    "boathook/api",
    "boathook/cli",
    "boathook_console",
    "boathook_dev",
    "boathook_pages",
    "boathook_portal",
)
KEYWORDS: Final = frozenset({"ge", "gt", "le", "lt", "max_length", "min_length", "max", "min"})
CALLS: Final = frozenset({"Field", "Query", "Path", "Option", "Argument"})
_PAGES: Final = "the size of a page or a query"
_BODY: Final = "bytes that are read of a request"
_RUN: Final = "how this command runs; nothing is stored"
ALLOWED: Final[Mapping[str, tuple[int, str]]] = {
    "api/applications.py": (1, "the number of sessions in one request"),
    "api/derived.py": (1, "parts of a request"),
    "api/event_types.py": (1, "event types of one import"),
    "api/events.py": (2, "a filter of deliveries; those of events are read from their table"),
    "api/messages.py": (1, "ids of one request"),
    "api/pages.py": (1, _PAGES),
    "api/route.py": (1, _BODY),
    "api/tasks.py": (2, "endpoints and a filter of one request"),
    "api/time_ranges.py": (1, _PAGES),
    "cli/alerts.py": (1, _PAGES),
    "cli/apps.py": (1, _PAGES),
    "cli/options.py": (1, _PAGES),
    "cli/remote.py": (2, "the file of profiles, and the parts of a path"),
    "cli/serve.py": (3, _RUN),
    "cli/sources.py": (1, _RUN),
    "cli/top.py": (1, _RUN),
    "boathook_console/alerts.py": (1, _PAGES),
    "boathook_console/event_types.py": (2, _PAGES),
    "boathook_console/keys.py": (1, _PAGES),
    "boathook_console/rejections.py": (1, _PAGES),
    "boathook_console/settings.py": (1, "a setting"),
    "boathook_console/shared/endpoint_lists.py": (1, _PAGES),
    "boathook_dev/demo.py": (2, _RUN),
    "boathook_dev/dev.py": (1, _RUN),
    "boathook_dev/developer.py": (1, _RUN),
    "boathook_dev/event_feed.py": (1, _RUN),
    "boathook_dev/listen.py": (2, _RUN),
    "boathook_portal/logo.py": (1, "the file of a setting"),
    "boathook_pages/kit/api.py": (2, _BODY),
    "boathook_pages/security.py": (1, _BODY),
    "boathook_pages/sign_in/users.py": (1, "the names of an app's users, which this package stores"),
    "boathook_console/shared/site.py": (1, _BODY),
}
"""The number of limits in a module that are not of a stored value, or that service has too, with the reason."""


def limits(text: str) -> Iterator[str]:
    """Yield the limits of values in a module: keywords of declared fields, and comparisons of a length."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            keywords = {word.arg for word in node.keywords} & KEYWORDS
            if name in CALLS and keywords:
                yield ast.unparse(node)
        if isinstance(node, ast.Compare) and any(isinstance(part, (ast.Gt, ast.GtE)) for part in node.ops):
            left, right = node.left, node.comparators[0]
            is_length = isinstance(left, ast.Call) and getattr(left.func, "id", "") == "len"
            if is_length and not (isinstance(right, ast.Constant) and right.value in {0, 1}):
                yield ast.unparse(node)


def places() -> dict[str, list[str]]:
    """Return the limits in each module of the interfaces."""
    files = [file for name in INTERFACES for file in sorted((ROOT / name).rglob("*.py"))]
    found = {
        file.relative_to(ROOT).as_posix().removeprefix("boathook/"): list(limits(file.read_text(encoding="utf-8")))
        for file in files
    }
    return {name: texts for name, texts in found.items() if texts}


def test_no_interface_has_a_limit_of_a_stored_value():
    by_module = places()
    assert {name: (len(texts), texts) for name, texts in by_module.items()} == {
        name: (number, by_module.get(name)) for name, (number, _) in ALLOWED.items()
    }


def test_mutant_a_limit_in_an_interface_is_found():
    planted = """
class KeyIn(Input):
    name: str = Field(max_length=200)

def create(name, rate: Annotated[int, typer.Option(max=1_000)]):
    if len(name) > 200:
        raise InvalidValue("too long", "name")
"""
    assert len(list(limits(planted))) == 3
