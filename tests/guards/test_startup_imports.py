"""Slow modules that processes must not import at their start."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main

from boathook.cli import app
from boathook.cli.commands import COMMAND_ENTRIES
from tests.support import sampled

HEAVY = {
    "attr", "boathook.providers", "cryptography", "cryptography.x509", "fastapi", "jsonschema",
    "jwt", "pycurl", "pydantic", "pygments", "rich", "sqlalchemy", "structlog", "typer", "uvicorn",
}  # fmt: skip
RECIPES = "boathook.providers"
USUAL = {"attr", "pydantic", "pygments", "rich", "structlog"}
"""The settings, and the log with what it brings along."""
ROLES = {
    "boathook": set(),
    "boathook.server.child, boathook.delivery.handler_executor, boathook.server.loading": USUAL,
    "boathook.server.child, boathook.delivery.handler_executor, boathook.service.app_platform": USUAL
    | {"cryptography", "pycurl"},
    "boathook.server.child, boathook.delivery.keeper, boathook.server.loading": USUAL | {"cryptography"},
    "boathook.server.child, boathook.delivery.sender, boathook.delivery.http_executor": USUAL
    | {"cryptography", "pycurl"},
    "boathook.server.child, boathook.server.gateway": USUAL | {"cryptography", "pycurl", "uvicorn", RECIPES},
    "boathook.cli": {"typer"},
    "boathook.cli, boathook.server.supervisor": USUAL | {"cryptography", "typer", RECIPES},
}
"""Besides these, which each cannot do without."""
ALSO = {
    "config": {"apps"},
    "dead_letters": {"events"},
}
"""Modules of commands that another command's module builds on."""
SLOW_FOR_HELP = {
    "boathook.http_client.client", "boathook.service.operating.recipient_stats", "boathook.service.sending.attempts",
    "boathook.service.sending.endpoint_values", "boathook.service.sending.messages", "fastapi", "httptools", "idna",
    "jwt", "pycurl", "sqlalchemy", "uvicorn", RECIPES,
}  # fmt: skip
"""Modules that the help of a command does not import, besides those of `NEEDED_BY_HELP`."""
NEEDED_BY_HELP = {
    "check": {RECIPES},
    "dead": {RECIPES},
    "deliveries": {RECIPES},
    "endpoints": {"boathook.service.sending.endpoint_values", "boathook.service.sending.messages"},
    "events": {RECIPES},
    "sources": {RECIPES},
    "top": {"boathook.service.operating.recipient_stats"},
    "trigger": {RECIPES},
}
MODULES = {entry.place.partition(":")[0] for entry in COMMAND_ENTRIES.values()}


def loaded_by(code: str) -> set[str]:
    code = f"import sys; {code}; print(*sys.modules)"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


@pytest.mark.parametrize("modules", sampled(ROLES, keep=2))
def test_no_unneeded_module_is_imported(modules: str) -> None:
    assert HEAVY & loaded_by(f"import {modules}") <= ROLES[modules]


def test_the_pytest_plugin_costs_next_to_nothing_where_it_is_not_used() -> None:
    plugin = loaded_by("import boathook.testing.plugin") - loaded_by("import pytest, datetime, pathlib, typing")
    assert plugin == {"boathook", "boathook.testing", "boathook.testing.plugin"}


def test_mutant_an_unneeded_import_is_detected() -> None:
    assert HEAVY & loaded_by("import boathook, rich") > ROLES["boathook"]


@pytest.mark.extended("starts processes of its own; signals and exit codes stay")
def test_verification_modules_are_imported_when_sources_are_compiled() -> None:
    code = (
        "from boathook import config; from boathook.ingest.sources import compile_sources;"
        "compile_sources(config.load(overrides={'sources.a': %r}))"
    )
    shared = loaded_by(code % {"provider": "github", "secrets": ["x" * 40]})
    public = loaded_by(code % {"provider": "paypal", "webhook_id": "w"})
    assert not {"cryptography.x509", "jwt"} & shared
    assert "cryptography.x509" in public


COMMANDS = """
import json, os, sys
import boathook.cli
from boathook.cli.commands import Root

if sys.argv[1]:
    Root.list_commands = lambda self, ctx: [name for name, _ in self.commands.items()]
loaded = {}
for words in json.load(sys.stdin):
    read, write = os.pipe()
    if os.fork() == 0:
        sys.stdout = open(os.devnull, "w")
        boathook.cli._run([*words, "--help"])
        with os.fdopen(write, "w") as pipe:
            json.dump(list(sys.modules), pipe)
        os._exit(0)
    os.close(write)
    loaded[" ".join(words)] = json.load(os.fdopen(read))
    os.wait()
json.dump(loaded, sys.stdout)
"""
"""Asks each command for its help, in a process of its own, and tells what each has imported."""


def loaded_by_help(commands: list[list[str]], mutant: str = "") -> dict[str, set[str]]:
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS, mutant],
        input=json.dumps(commands),
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    return {words: set(names) for words, names in json.loads(done.stdout).items()}


def modules_of_commands(commands: list[list[str]], mutant: str = "") -> dict[str, set[str]]:
    prefix = "boathook.cli."
    return {
        words: MODULES & {name.split(".")[2] for name in names if name.startswith(prefix)}
        for words, names in loaded_by_help(commands, mutant).items()
    }


@pytest.mark.extended("starts a process for every command")
def test_a_command_imports_its_own_module_alone() -> None:
    for name, modules in modules_of_commands([[name] for name in COMMAND_ENTRIES]).items():
        own = COMMAND_ENTRIES[name].place.partition(":")[0]
        assert modules - {"commands"} <= {own} | ALSO.get(own, set()), name


def slow_for_help(loaded: dict[str, set[str]]) -> dict[str, set[str]]:
    """Return the slow modules that each command's help imports without need."""
    slow = {name: SLOW_FOR_HELP & modules - NEEDED_BY_HELP.get(name, set()) for name, modules in loaded.items()}
    return {name: modules for name, modules in slow.items() if modules}


@pytest.mark.extended("starts a process for every command")
def test_the_help_of_a_command_imports_no_slow_module() -> None:
    assert slow_for_help(loaded_by_help([[], *([name] for name in COMMAND_ENTRIES)])) == {}


def test_the_help_of_some_groups_imports_no_slow_module() -> None:
    assert slow_for_help(loaded_by_help([["deliveries"], ["keys"]])) == {}


def test_mutant_a_slow_module_is_detected() -> None:
    assert slow_for_help({"keys": {"idna", "json"}, "sources": {RECIPES}}) == {"keys": {"idna"}}


def test_listing_commands_reads_settings_only_if_there_are_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in [name for name in os.environ if name.startswith("BOATHOOK_")]:
        monkeypatch.delenv(variable)
    monkeypatch.chdir(tmp_path)
    assert "boathook_console.settings" not in loaded_by_help([[]])[""]
    monkeypatch.setenv("BOATHOOK_SERVER__PORT", "8081")
    assert "boathook_console.settings" in loaded_by_help([[]])[""]
    monkeypatch.delenv("BOATHOOK_SERVER__PORT")
    (tmp_path / "boathook.toml").touch()
    assert "boathook_console.settings" in loaded_by_help([[]])[""]


def test_listing_commands_imports_none_of_them() -> None:
    assert modules_of_commands([[]]) == {"": {"commands"}}


@pytest.mark.extended("the mutant of a test that stays: it shows that the test can fail")
def test_mutant_a_list_that_imports_commands_is_detected() -> None:
    assert modules_of_commands([[]], "all") == {"": MODULES}


def test_the_command_list_matches_each_commands_help() -> None:
    group = typer.main.get_command(app)
    for name, entry in COMMAND_ENTRIES.items():
        command = group.commands[name]  # type: ignore[attr-defined]
        assert command.name == name
        assert command.get_short_help_str(1000) == entry.line
