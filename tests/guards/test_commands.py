"""What every command of the command line has: an example, JSON where it lists, a bar where it takes long."""

import inspect
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from boathook.cli import app

LISTS = frozenset({"list", "providers", "groups", "history", "status", "inspect", "stats", "show"})
"""Names of commands that show what there is."""
LONG = {
    "check", "spool drain", "events replay", "dead replay", "dead ignore", "dead purge", "endpoints reencrypt",
}  # fmt: skip
"""Commands that may take minutes and print nothing before their end."""


def commands(group: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    group = group or typer.main.get_command(app)
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


ALL = dict(commands())


def options(command: Any) -> set[str]:
    return {name for parameter in command.params for name in getattr(parameter, "opts", ())}


def lacking_json(found: dict[str, Any]) -> list[str]:
    return [name for name, command in found.items() if name.split()[-1] in LISTS and "--json" not in options(command)]


def module_of(command: Any) -> str:
    return inspect.getsource(sys.modules[inspect.unwrap(command.callback).__module__])


def test_every_listing_prints_json():
    assert lacking_json(ALL) == []


def test_mutant_a_listing_without_json_is_found():
    bare = typer.Typer()
    bare.command("list")(lambda: None)
    bare.command("other")(lambda: None)
    assert lacking_json(dict(commands(typer.main.get_command(bare)))) == ["list"]


@pytest.mark.parametrize("name", sorted(LONG))
def test_long_work_shows_how_far_it_is(name):
    assert "Progress(" in module_of(ALL[name])


def test_every_command_says_what_it_does_and_shows_an_example():
    silent = [
        name for name, command in ALL.items() if not command.help or "Example: boathook" not in (command.epilog or "")
    ]
    assert silent == []
