"""Writes docs/reference/python-api.md from the docstrings of the public names."""

import ast
import dataclasses
import importlib
import inspect
import itertools
import re
import textwrap
from collections.abc import Iterator
from typing import Any, Final

import msgspec

import boathook
import boathook_pages
from boathook import testing
from boathook.django import DjangoBoathook
from boathook.fastapi import Webhooks
from boathook.handlers import sessions
from boathook.handlers.app_alerts import AppAlert
from boathook.handlers.metric_history import MetricPoint
from boathook.handlers.platform import Http, Operations
from boathook_pages import languages, sign_in, user_webhooks

HEAD: Final = """\
# Python API

{generated}

The names that can be imported from `boathook`, what running apps are lent, and the helpers of `boathook.testing`. How
they are used is described in [handlers](handlers.md), [apps](apps.md), [verify](../how-to/verify.md),
[test your handlers](../how-to/test-handlers.md), [pages of an app](../how-to/pages.md),
[FastAPI](../how-to/fastapi.md) and [Django](../how-to/django.md).
"""

MODULES: Final[dict[str, dict[str, Any]]] = {
    "boathook": {name: getattr(boathook, name) for name in boathook.__all__},
    "boathook.fastapi": {"Webhooks": Webhooks},
    "boathook.django": {"DjangoBoathook": DjangoBoathook},
    "boathook_pages": {name: getattr(boathook_pages, name) for name in boathook_pages.__all__},
    "boathook_pages.sign_in": {"SignIn": sign_in.SignIn, "User": sign_in.User},
    "boathook_pages.user_webhooks": {name: getattr(user_webhooks, name) for name in user_webhooks.__all__},
    "boathook_pages.languages": {"Languages": languages.Languages, "gettext_noop": languages.gettext_noop},
    "What running apps are lent": {
        "hook.operations": Operations,
        "hook.http": Http,
        "AppAlert": AppAlert,
        "MetricPoint": MetricPoint,
    },
    "boathook.testing": {name: getattr(testing, name) for name in testing.__all__},
    "boathook.handlers.sessions": {
        name: one
        for name, one in vars(sessions).items()
        if inspect.isfunction(one) and one.__module__.startswith(sessions.__name__) and not name.startswith("_")
    },
}
"""What the page tells of, by its headings."""

INTERNAL_MEMBERS: Final = {"bind", "platform", "published", "routes"}
"""The public members of an app's object for loading, running and testing it."""

_SECTION: Final = re.compile(r"^(Args|Raises|Returns|Yields):$")


def page(generated: str) -> str:
    """Return the page."""
    parts = [HEAD.format(generated=generated)]
    for title, names in MODULES.items():
        shown = f"`{title}`" if title.startswith("boathook") else title
        parts.append(f"\n## {shown}\n")
        for name, one in sorted(names.items()):
            if inspect.isclass(one):
                parts += _class(name, one)
            else:
                parts += _function(name, one, "###") if callable(one) else _constant(name)
    return "".join(parts)


def _class(name: str, cls: type) -> Iterator[str]:
    yield f"\n### `{name}`\n\n"
    if (dataclasses.is_dataclass(cls) and cls.__init__.__doc__ is None) or issubclass(cls, msgspec.Struct):
        yield f"```text\n{cls.__name__}{_signature(cls)}\n```\n\n"
    yield f"{markdown(inspect.getdoc(cls) or '')}\n"
    for field, text in fields(cls):
        yield f"\n- `{field}`: {text}" if text else f"\n- `{field}`"
    yield "\n" if fields(cls) else ""
    for member, value in _members(cls):
        if isinstance(value, property):
            yield f"\n#### `{name}.{member}`\n\n{markdown(inspect.getdoc(value) or '')}\n"
        else:
            yield from _function(f"{name}.{member}", value, "####")


def _members(cls: type) -> Iterator[tuple[str, Any]]:
    for name, value in vars(cls).items():
        plain = value.__func__ if isinstance(value, staticmethod | classmethod) else value
        is_told = not name.startswith("_") and not (cls is boathook.Boathook and name in INTERNAL_MEMBERS)
        if is_told and (inspect.isfunction(plain) or isinstance(plain, property)):
            yield name, plain


def fields(cls: type) -> list[tuple[str, str]]:
    """Return the public fields with their docstrings, as Markdown."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(tree, ast.ClassDef)
    found = []
    for node, below in zip(tree.body, [*tree.body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and not node.target.id.startswith("_"):
            found.append((node.target.id, markdown(_text(below))))
    return found


def _text(node: ast.stmt | None) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return inspect.cleandoc(node.value.value)
    return ""


def _function(name: str, function: Any, level: str) -> Iterator[str]:
    word = "async " if inspect.iscoroutinefunction(function) else ""
    yield f"\n{level} `{name}`\n\n```text\n{word}{name}{_signature(function)}\n```\n\n"
    yield f"{markdown(inspect.getdoc(function) or '')}\n"


def _constant(name: str) -> Iterator[str]:
    """Yield the heading of a value of `boathook`, with the docstring below it in its module."""
    module = importlib.import_module(f"boathook.{boathook._HOMES[name]}")  # noqa: SLF001 where the names are
    body = ast.parse(inspect.getsource(module)).body
    below = next(
        below
        for node, below in itertools.pairwise(body)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == name
    )
    yield f"\n### `{name}`\n\n{markdown(_text(below))}\n"


def _signature(function: Any) -> str:
    signature = inspect.signature(function)
    kept = [one for one in signature.parameters.values() if one.name not in {"self", "cls"}]
    text = str(signature.replace(parameters=kept)).replace("'", "").replace("typing.", "")
    text = re.sub(r"\b(?:\w+\.)+(?=[A-Z])|~", "", text)
    return text if len(text) < 90 else _wrapped(text)


def _wrapped(text: str) -> str:
    """Break a signature at the commas of its own parameters."""
    depth, lines, line = 0, [], ""
    inside, _, result = text[1:].rpartition(")")
    for char in inside:
        depth += (char in "([{") - (char in ")]}")
        line += char
        if char == "," and depth == 0:
            lines.append(line.strip())
            line = ""
    return "(\n" + "".join(f"    {one}\n" for one in [*lines, f"{line.strip()},"]) + f"){result}"


def markdown(doc: str) -> str:
    """Return a docstring as Markdown: its sections as lists, its literals in single backticks."""
    lines: list[str] = []
    is_listed = False
    for line in re.sub(r"``", "`", doc).splitlines():
        if match := _SECTION.match(line):
            lines += [f"**{match[1]}**", ""]
            is_listed = True
        elif is_listed and re.match(r" {4}\S", line):
            word, colon, rest = line.strip().partition(":")
            lines.append(f"- `{word}`:{rest}" if colon else f"- {line.strip()}")
        elif is_listed and line.startswith("     "):
            lines.append(f"  {line.strip()}")
        else:
            is_listed = is_listed and not line.strip()
            lines.append(line)
    return "\n".join(lines).strip()
