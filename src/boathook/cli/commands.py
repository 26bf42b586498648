"""Which commands there are, and where: a command's module is imported when that command is called, and no other."""

import importlib
from collections import UserDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import typer
import typer.core
import typer.main


def example(*lines: str) -> str:
    """Return the examples at the end of a command's help."""
    return "\n\n".join(f"Example: {line}" for line in lines)


@dataclass(frozen=True, slots=True)
class Entry:
    """One command, or a group of them, as the list of commands shows it."""

    place: str
    """The module in this package, and in it the function, or the typer app of a group."""
    line: str
    """Its help in one sentence: the first of the function's docstring, or the help of the group."""
    epilog: str | None = None
    """Of a function; the commands of a group have theirs where they are written."""


ENTRIES: Final[Mapping[str, Entry]] = {
    "serve": Entry(
        "running:serve",
        "Run boathook: the gateway that takes requests in, the workers that run handlers,"
        " the keeper that looks after both.",
        example("boathook serve --app shop:hook --port 8080"),
    ),
    "migrate": Entry(
        "running:migrate",
        "Bring the database's schema up to date, and the tables of the apps that apps.load names; safe to repeat.",
        example("boathook migrate"),
    ),
    "verify": Entry(
        "books:verify",
        "Check the books: every accepted event is owed or ended exactly once, and nothing else is stored.",
        example("boathook verify --deep --json"),
    ),
    "doctor": Entry(
        "running:check_up",
        "Look the set-up over: settings, clock, database, disk, sources.",
        example("boathook doctor --json"),
    ),
    "demo": Entry(
        "running:demo",
        "Start everything on an embedded PostgreSQL and play a few minutes of real life at it, with real signatures.",
        example("boathook demo --seconds 20"),
    ),
    "bench": Entry(
        "running:bench",
        "Measure boathook against its own ceiling and against the server people write first, all in one run.",
        example("boathook bench ingest --json"),
    ),
    "send": Entry(
        "running:send",
        "Publish one message for an application: its endpoints get it, and handlers of the application.",
        example("boathook send --application acme --type invoice.paid --data '{\"id\": 7}'"),
    ),
    "listen": Entry(
        "listen:listen",
        "Show events as they are accepted, and send them on to a server on your machine, signed anew.",
        example("boathook listen --url https://hooks.example.com --forward-to localhost:3000/hook --secret env:LOCAL"),
    ),
    "top": Entry(
        "top:top",
        "Show what goes on: sources and recipients with rates, latencies, backlog by age, spool, hosts.",
        example("boathook top", "boathook top --url https://hooks.example.com --once --json"),
    ),
    "alerts": Entry(
        "setup:print_alerts",
        "Print the alert rules for Prometheus.",
        example("boathook alerts > /etc/prometheus/rules/boathook.yml"),
    ),
    "dashboards": Entry(
        "setup:print_dashboards",
        "Print the dashboards for Grafana, one JSON document a line, or write them into a folder.",
        example("boathook dashboards --out /var/lib/grafana/dashboards"),
    ),
    "completion": Entry(
        "completion:print_script",
        "Print the script that lets a shell complete boathook's commands and options by the tab key.",
        example("boathook completion bash >> ~/.bashrc"),
    ),
    "sources": Entry("setup:sources", "Where requests arrive."),
    "events": Entry("decisions:events", "What was accepted."),
    "deliveries": Entry("listings:deliveries", "What is or was owed: one event for one recipient."),
    "dead": Entry("decisions:dead", "Deliveries that were given up, for a person to decide."),
    "rejections": Entry("decisions:rejections", "Requests that were refused at the gate."),
    "conflicts": Entry("conflicts:conflicts", "Requests with an event's key and another body, or the other way round."),
    "applications": Entry("applications:applications", "Whom we send webhooks to."),
    "endpoints": Entry("endpoints:endpoints", "Where an application's messages go."),
    "event-types": Entry("event_types:event_types", "What messages may be about."),
    "import": Entry("importing:importing", "Bring the set-up of another system over."),
    "keys": Entry("keys:keys", "Who may use the API."),
    "operators": Entry("operators:operators", "Who may sign in to the console."),
    "spool": Entry("spool:spool", "Events that wait on disk while PostgreSQL is away."),
    "alarms": Entry("alarms:alarms", "What operators are told of."),
    "config": Entry("setup:settings_app", "The settings."),
    "apps": Entry("apps:apps", "Whole systems that apps.load names, such as boathook.apps.billing."),
}
"""By name, in the order in which help lists them."""


class Root(typer.core.TyperGroup):
    """The root of the command line: it lists commands without importing them, and imports the one that is called."""

    def __init__(self, *, commands: Mapping[str, Any] | None = None, **rest: Any) -> None:
        super().__init__(**rest)
        self._loading = _Loading({**ENTRIES, **(commands or {})})
        self.commands = self._loading

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - typer's interface
        """Return the names of the commands."""
        return list(self.commands)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002 - typer's interface
        """Return what help and completion show of a command; None where there is none."""
        match self._loading.data.get(cmd_name):
            case Entry(line=line):
                return typer.core.TyperCommand(cmd_name, help=line)
            case command:
                return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that *args* begin with, loaded, and the rest of them."""
        name, _, rest = super().resolve_command(ctx, args)
        return name, self.commands[name] if name is not None else None, rest


class _Loading(UserDict[str, Any]):
    """The commands by name, each of ours loaded when it is looked up."""

    def __getitem__(self, name: str) -> Any:
        found = self.data[name]
        if isinstance(found, Entry):
            found = self.data[name] = _load(name, found)
        return found


def read_opening(arguments: Sequence[str]) -> tuple[Path | None, str | None]:
    """Return the configuration file given, which stands first, and the first command word."""
    rest, config = list(arguments), None
    if len(rest) > 1 and rest[0] in {"--config", "-c"}:
        config, rest = rest[1], rest[2:]
    elif rest and rest[0].startswith("--config="):
        config, rest = rest[0].partition("=")[2], rest[1:]
    return Path(config) if config else None, next((word for word in rest if not word.startswith("-")), None)


def _load(name: str, entry: Entry) -> Any:
    module, _, attribute = entry.place.partition(":")
    found = getattr(importlib.import_module(f"boathook.cli.{module}"), attribute)
    # In an app of its own, as typer makes commands only of what stands in one.
    alone = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None)
    if isinstance(found, typer.Typer):
        alone.add_typer(found, name=name)
    else:
        alone.command(name, epilog=entry.epilog)(found)
    return typer.main.get_group(alone).commands[name]
