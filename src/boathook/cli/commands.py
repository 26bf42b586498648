"""The list of commands, each imported only when it is called, and shell completion."""

import importlib
import os
from collections import UserDict
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final

import msgspec
import typer
import typer.core
import typer.main

from boathook.domain.errors import InvalidMessage, InvalidValue


def example(*lines: str) -> str:
    """Return the examples at the end of a command's help."""
    return "\n\n".join(f"Example: {line}" for line in lines)


class CommandEntry(msgspec.Struct, frozen=True):
    """One entry of the list of commands: a command or a group."""

    place: str
    """The module, in this package if its name has no dot, and its function, or the typer app of a group."""
    line: str
    """Its one-sentence help: the first sentence of the function's docstring, or the help of the group."""
    epilog: str | None = None
    """The epilog of a command; the commands of a group define their own."""
    title: str = "Operating"
    """The title of the help under which a package's command is listed."""


COMMANDS_GROUP: Final = "boathook.commands"
"""The group of entry points by which optional packages declare commands: each names its `CommandEntry`."""

_OPERATING: Final[Mapping[str, CommandEntry]] = {
    "serve": CommandEntry(
        "serve:serve",
        "Run boathook: the gateway, the workers and the keeper.",
        example("boathook serve --app shop:hook --port 8080"),
    ),
    "migrate": CommandEntry(
        "serve:migrate",
        "Bring the database's schema up to date, and the tables of the apps that apps.load names; safe to repeat.",
        example("boathook migrate"),
    ),
    "check": CommandEntry(
        "check:check",
        "Check the store: every delivery of every accepted event is pending or finished exactly once.",
        example("boathook check --deep --json"),
    ),
    "doctor": CommandEntry(
        "serve:check_up",
        "Diagnose the installation: settings, clock, database, disk, sources.",
        example("boathook doctor --json"),
    ),
    "top": CommandEntry(
        "top:top",
        "Show live statistics: rates, latencies, backlog by age, spool and hosts.",
        example("boathook top", "boathook top --url https://hooks.example.com --once --json"),
    ),
    "config": CommandEntry("config:settings_app", "Settings."),
    "spool": CommandEntry("spool:spool", "Events on disk that wait for PostgreSQL."),
    "alerts": CommandEntry("alerts:alerts", "Alerts: list, silence and test them."),
    "jobs": CommandEntry("jobs:jobs", "Bulk jobs: replays, and other actions on many objects."),
    "dashboards": CommandEntry(
        "config:print_dashboards",
        "Print the Grafana dashboards, one JSON document per line, or write them to a folder.",
        example("boathook dashboards --out /var/lib/grafana/dashboards"),
    ),
    "keys": CommandEntry("keys:keys", "API keys."),
    "operators": CommandEntry("operators:operators", "Operators of the console."),
    "completion": CommandEntry(
        "commands:print_script",
        "Print the completion script of a shell.",
        example("boathook completion bash >> ~/.bashrc"),
    ),
}
_RECEIVING: Final[Mapping[str, CommandEntry]] = {
    "trigger": CommandEntry(
        "sources:trigger",
        "Send a running boathook signed requests of a source, as its sender would.",
        example("boathook trigger stripe payment_intent.succeeded --set data.object.amount=500 --times 3"),
    ),
    "sources": CommandEntry("sources:sources", "Sources: where requests arrive."),
    "events": CommandEntry("events:events", "Accepted events."),
    "deliveries": CommandEntry("events:deliveries", "Deliveries: one event for one recipient."),
    "dead": CommandEntry("dead_letters:dead", "Dead letters: deliveries that failed permanently."),
    "rejections": CommandEntry("rejections:rejections", "Rejected requests."),
    "conflicts": CommandEntry(
        "rejections:conflicts",
        "Requests with a stored key and a different body, or the same content and a different key.",
    ),
}
_SENDING: Final[Mapping[str, CommandEntry]] = {
    "send": CommandEntry(
        "serve:send",
        "Publish one message to the endpoints and handlers of an application.",
        example("boathook send --application acme --type invoice.paid --data '{\"id\": 7}'"),
    ),
    "applications": CommandEntry("applications:applications", "Applications: the tenants that you send webhooks to."),
    "endpoints": CommandEntry("endpoints:endpoints", "Endpoints: the URLs that receive an application's messages."),
    "event-types": CommandEntry("event_types:event_types", "Event types of messages."),
}
_APPS: Final = "Apps"
COMMAND_GROUPS: Final[Mapping[str, Mapping[str, CommandEntry]]] = {
    "Getting started": {},
    "Receiving and handling": _RECEIVING,
    "Sending": _SENDING,
    "Operating": _OPERATING,
    _APPS: {"apps": CommandEntry("apps:apps", "Apps loaded by apps.load, such as billing.")},
}
"""The commands by name, under the titles of the help, in its order; optional packages add theirs."""
COMMAND_ENTRIES: Final[Mapping[str, CommandEntry]] = {
    name: entry for group in COMMAND_GROUPS.values() for name, entry in group.items()
}


def package_entries(word: str | None) -> dict[str, CommandEntry]:
    """Return the commands of optional packages, also of unused ones.

    Args:
        word: a command's name; None for all of boathook's distribution, as the help lists them.
    """
    from importlib.metadata import PackageNotFoundError, distribution, entry_points

    try:
        points = distribution("boathook").entry_points.select(group=COMMANDS_GROUP)
    except PackageNotFoundError:  # run from its source without being installed
        return {}
    if word is not None:
        points = points.select(name=word) or entry_points(group=COMMANDS_GROUP, name=word)
    return {point.name: point.load() for point in points}


def _first_paragraph(command: Any) -> str:
    return (command.help or "").partition("\n\n")[0]


class CommandGroup(typer.core.TyperGroup):
    """A group that lists its commands with their whole first sentence; typer's own cuts it at the terminal's width."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write each command and what it does."""
        rows = [(name, _first_paragraph(self.get_command(ctx, name))) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


_OTHER_NAMES: Final = {
    "gracePeriodSeconds": "grace", "timeoutSeconds": "timeout_s", "expiry": "expires", "after": "expire_others",
    "key": "secret", "retrySchedule": "retry", "lifetime": "expires",
}  # fmt: skip
"""The parameters of commands that are called otherwise than the fields of the service, by the field."""


class Command(typer.core.TyperCommand):
    """A command whose errors about a value name the option or the argument that gave it, not the service's field."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command.

        Raises:
            UsageError: the value of an option is invalid, or the command runs on the host only.
        """
        if ctx.obj is not None and ctx.obj.is_remote and not getattr(self.callback, "runs_remotely", False):
            from boathook.cli.context import SERVER_VARIABLE, UsageError

            raise UsageError(
                f"`{ctx.command_path}` runs on the host only; leave out --server and --profile,"
                f" and unset {SERVER_VARIABLE}"
            )
        try:
            return super().invoke(ctx)
        except InvalidValue as error:
            self._complain(ctx, error.where, str(error))
            raise
        except InvalidMessage as error:
            self._complain(ctx, [error.field], error.reason)
            raise

    def _complain(self, ctx: Any, path: Sequence[str | int], reason: str) -> None:
        from boathook.cli.context import option_error

        parameters = {_plain(param.name or ""): param for param in self.params}
        candidates = []
        for place in reversed(range(len(path))):
            field = str(path[place])
            parameter = parameters.get(_plain(field)) or parameters.get(_plain(_OTHER_NAMES.get(field, "")))
            if parameter is not None:
                candidates.append((parameter, path[place + 1 :]))
        # A key of a source can be given by an option of its own, or within another one.
        present = [each for each in candidates if ctx.params.get(each[0].name)]
        for parameter, rest in (present or candidates)[:1]:
            raise option_error(_label(parameter), rest, reason)


def _plain(name: str) -> str:
    return name.replace("_", "").lower()


def _label(parameter: Any) -> str:
    """Return the option as it is written, or the argument as the help shows it."""
    if parameter.param_type_name == "argument":
        return str(parameter.metavar or parameter.name.upper()).strip("[]").removesuffix("...")
    return next(str(name) for name in parameter.opts if name.startswith("--"))


def complete_group(group: typer.Typer) -> typer.Typer:
    """Give a group, and the groups in it, boathook's help and errors; return it."""
    group.info.cls = CommandGroup
    for command in group.registered_commands:
        command.cls = Command
    for nested in group.registered_groups:
        if nested.typer_instance is not None:
            complete_group(nested.typer_instance)
    return group


class Root(typer.core.TyperGroup):
    """The root of the command line: lists commands without importing them, and imports only the called one."""

    PACKAGE_ENTRIES: ClassVar[Mapping[str, CommandEntry]] = {}
    """The commands of optional packages."""

    def __init__(self, *, commands: Mapping[str, Any] | None = None, **rest: Any) -> None:
        super().__init__(**rest)
        self._loading = _LazyCommands({**COMMAND_ENTRIES, **self.PACKAGE_ENTRIES, **(commands or {})})
        self.commands = self._loading

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - typer's interface
        """Return the names of the commands."""
        return list(self.commands)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands under their titles; the commands of apps come last."""
        titles = {name: title for title, group in COMMAND_GROUPS.items() for name in group}
        titles |= {name: entry.title for name, entry in self.PACKAGE_ENTRIES.items()}
        rows: dict[str, list[tuple[str, str]]] = {title: [] for title in COMMAND_GROUPS}
        for name in self.list_commands(ctx):
            rows[titles.get(name, _APPS)].append((name, _first_paragraph(self.get_command(ctx, name))))
        for title, lines in rows.items():
            with formatter.section(title):
                formatter.write_dl(lines)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002 - typer's interface
        """Return the command for help and completion; None if there is none."""
        match self._loading.data.get(cmd_name):
            case CommandEntry(line=line):
                return typer.core.TyperCommand(cmd_name, help=line)
            case command:
                return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the name of the command in *args*, the imported command, and the remaining arguments."""
        name, _, rest = super().resolve_command(ctx, args)
        return name, self.commands[name] if name is not None else None, rest


class _LazyCommands(UserDict[str, Any]):
    """The commands by name; built-in ones are imported on access."""

    def __getitem__(self, name: str) -> Any:
        command = self.data[name]
        if isinstance(command, CommandEntry):
            command = self.data[name] = _load(name, command)
        return command


_GLOBAL_OPTIONS: Final = {
    "--config": "--config",
    "-c": "--config",
    **{name: name for name in ("--data-dir", "--server", "--api-key", "--profile")},
}


def hoist_global_options(arguments: Sequence[str]) -> list[str]:
    """Move the global options that take a value to the front, where typer expects them."""
    hoisted: list[str] = []
    rest: list[str] = []
    words = iter(arguments)
    for word in words:
        name, equals, _ = word.partition("=")
        if word == "--":
            rest += [word, *words]
        elif name not in _GLOBAL_OPTIONS:
            rest.append(word)
        else:
            hoisted += [word] if equals else [word, *([value] if (value := next(words, None)) is not None else [])]
    return [*hoisted, *rest]


def parse_global_options(arguments: Sequence[str]) -> tuple[Path | None, str | None]:
    """Return the configuration file, if given, and the first command word."""
    config, words = None, iter(hoist_global_options(arguments))
    for word in words:
        name, equals, value = word.partition("=")
        if name in _GLOBAL_OPTIONS:
            value = value if equals else next(words, "")
            config = Path(value) if _GLOBAL_OPTIONS[name] == "--config" and value else config
        elif not word.startswith("-"):
            return config, word
    return config, None


def _load(name: str, entry: CommandEntry) -> Any:
    module, _, attribute = entry.place.partition(":")
    command = getattr(importlib.import_module(module if "." in module else f"boathook.cli.{module}"), attribute)
    # Wrapped in its own app, as typer creates commands only from an app.
    alone = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None)
    if isinstance(command, typer.Typer):
        alone.add_typer(complete_group(command), name=name)
    else:
        alone.command(name, cls=Command, epilog=entry.epilog)(command)
    return typer.main.get_group(alone).commands[name]


_ASKS: Final = "_BOATHOOK_COMPLETE"
"""A shell's completion script calls boathook with this variable and the words typed so far; typer reads both."""
_WORDS: Final = "_TYPER_COMPLETE_ARGS"


class Shell(StrEnum):
    """A shell for which completion is supported."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


_SCRIPTS: Final = {
    Shell.BASH: f"""\
_boathook() {{
    local IFS=$'\\n'
    COMPREPLY=($(COMP_WORDS="${{COMP_WORDS[*]}}" COMP_CWORD=$COMP_CWORD {_ASKS}=complete_bash "$1" 2>/dev/null))
}}
complete -o default -F _boathook boathook""",
    Shell.ZSH: f"""\
#compdef boathook
_boathook() {{
    eval "$({_WORDS}="${{words[1,$CURRENT]}}" {_ASKS}=complete_zsh boathook 2>/dev/null)"
}}
compdef _boathook boathook""",
    Shell.FISH: f"""\
function __boathook
    {_ASKS}=complete_fish _TYPER_COMPLETE_FISH_ACTION=$argv[1] {_WORDS}=(commandline -cp) boathook 2>/dev/null
end
complete --command boathook --no-files --arguments '(__boathook get-args)' --condition '__boathook is-args'""",
}


def print_script(
    shell: Annotated[Shell, typer.Argument(help="bash, zsh or fish.", show_default=False)],
) -> None:
    """
    Print the completion script of a shell.

    `boathook --install-completion` puts such a script where the shell in use reads it.
    """
    print(_SCRIPTS[shell])


def completion_words(environment: Mapping[str, str] = os.environ) -> list[str] | None:
    """Return the words typed so far if a shell requests completions; None if a command is run."""
    if _ASKS not in environment:
        return None
    written = environment.get("COMP_WORDS") or environment.get(_WORDS, "")
    return written.split()[1:]
