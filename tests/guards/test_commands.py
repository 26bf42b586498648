"""What every command of the command line has: an example, JSON, but for the few that have a reason, a bar where it takes long."""

import inspect
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from boathook.cli import app
from boathook.cli.app_commands import with_package_commands

WITHOUT_JSON = {
    "serve": "runs until it is stopped; log.format sets the form of its lines",
    "dev": "runs until it is stopped, for a reader at a terminal",
    "demo": "runs until it is stopped, for a reader at a terminal",
    "mcp": "speaks the protocol on standard input and output",
    "alerts rules": "prints a file for Prometheus",
    "apps sample": "prints a configuration file",
    "config schema": "prints a JSON document anyway",
    "completion": "prints a script for a shell",
    "dashboards": "prints JSON documents anyway",
}
"""Commands without --json, each with the reason."""
LONG = {
    "check", "spool drain", "events replay", "dead replay", "dead ignore", "dead purge", "endpoints reencrypt",
}  # fmt: skip
"""Commands that may take minutes and print nothing before their end."""


def commands(group: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    group = group or typer.main.get_command(with_package_commands(app, None))
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


ALL = dict(commands())


def options(command: Any) -> set[str]:
    return {name for parameter in command.params for name in getattr(parameter, "opts", ())}


def lacking_json(found: dict[str, Any]) -> list[str]:
    return [name for name, command in found.items() if "--json" not in options(command)]


def module_of(command: Any) -> str:
    return inspect.getsource(sys.modules[inspect.unwrap(command.callback).__module__])


def test_every_command_prints_json():
    assert lacking_json(ALL) == [name for name in ALL if name in WITHOUT_JSON]
    assert WITHOUT_JSON.keys() <= ALL.keys()


def test_mutant_a_command_without_json_is_found():
    bare = typer.Typer()
    bare.command("list")(lambda: None)
    bare.command("other")(lambda: None)
    assert lacking_json(dict(commands(typer.main.get_command(bare)))) == ["list", "other"]


@pytest.mark.parametrize("name", sorted(LONG))
def test_long_work_shows_how_far_it_is(name):
    assert "Progress(" in module_of(ALL[name])


def test_every_command_has_help_and_an_example():
    silent = [
        name for name, command in ALL.items() if not command.help or "Example: boathook" not in (command.epilog or "")
    ]
    assert silent == []
