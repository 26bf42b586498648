"""Commands that show how boathook is set up: sources, providers, settings, alert rules."""

import asyncio
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from boathook.admin import told_secrets
from boathook.admin.shown_settings import all_settings
from boathook.admin.trial import Step, try_source
from boathook.cli import apps, show, source_secrets
from boathook.cli.session import action, err, journal, out, session
from boathook.cli.show import Column
from boathook.config import Settings
from boathook.domain.errors import ConfigError
from boathook.domain.model import Grade
from boathook.inbound.gates import compile_gates, verifier_of
from boathook.inbound.providers import RECIPES, find
from boathook.telemetry import ALERT_RULES, dashboards

sources = typer.Typer(no_args_is_help=True, help="Where requests arrive.")
sources.add_typer(source_secrets.secrets, name="secrets")
settings_app = typer.Typer(no_args_is_help=True, help="The settings.")

Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]

_SOURCES = (
    Column("name", lambda one: one["name"]),
    Column("provider", lambda one: one["provider"]),
    Column("proof", lambda one: show.grade(one["grade"]) if one["grade"] else "not ready"),
    Column("secrets", lambda one: one["secrets"]),
    Column("paths", lambda one: " ".join(one["paths"]), may_wrap=True),
)
_WIDEST = max(len(recipe.name) for recipe in RECIPES)


@sources.command("list", epilog="Example: boathook sources list --json")
def list_sources(ctx: typer.Context, as_json: Json = False) -> None:
    """List the sources of the settings."""
    settings = session(ctx).settings()
    _print([_describe(settings, name) for name in settings.sources], _SOURCES, as_json)


@sources.command("show", epilog="Example: boathook sources show stripe")
def show_source(
    ctx: typer.Context, name: Annotated[str, typer.Argument(help="The source's name.")], as_json: Json = False
) -> None:
    """Show one source with every setting of its own, and whether it is ready. Secrets are never shown."""
    settings = session(ctx).settings()
    if name not in settings.sources:
        known = ", ".join(sorted(settings.sources)) or "none"
        raise ConfigError(f"there is no source {name!r}; the settings have {known}")
    ready = _trouble(settings, name) or "yes"
    one = {**all_settings(settings)["sources"][name], **_describe(settings, name), "ready": ready}
    given = {key: value for key, value in one.items() if value not in (None, [], False, "")}
    if as_json:
        show.print_json(one)
    else:
        show.facts(
            {key: " ".join(map(str, value)) if isinstance(value, list) else value for key, value in given.items()}
        )


@sources.command("providers", epilog="Example: boathook sources providers --json")
def list_providers(as_json: Json = False) -> None:
    """List the senders boathook knows by name, what their proof covers, and where they document it.

    `hmac` and `token` are for all others. With --json also settings, time limits and retry habits.
    """
    for recipe in RECIPES:
        if as_json:
            show.print_json(recipe.describe())
        else:
            # No table, which would break the addresses where they are to be copied.
            line = show.text(f"{recipe.name:<{_WIDEST}}  {recipe.grade.value:<13}  {recipe.docs}")
            out.print(line, soft_wrap=True)


@sources.command("test", epilog="Example: boathook sources test stripe")
def try_one(
    ctx: typer.Context, name: Annotated[str, typer.Argument(help="The source's name.")], as_json: Json = False
) -> None:
    """Send the running boathook a request such as the source's sender makes, and a forged one.

    The genuine one becomes an event, and your handlers get it. Exits with 1 if either is judged wrongly.
    """
    steps = asyncio.run(_try(session(ctx).settings(), name))
    for step in steps:
        if as_json:
            show.print_json(asdict(step))
        else:
            mark = Text("ok  ", style="green") if step.ok else Text("FAIL", style="bold red")
            out.print(mark, show.text(f" {step.what}: {step.found}"), sep="", soft_wrap=True)
    if not all(step.ok for step in steps):
        raise typer.Exit(1)


@sources.command("secret", epilog="Example: boathook sources secret notion")
def show_secret(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="The source's name.")],
    forget: Annotated[bool, typer.Option("--forget", help="Remove it, so that the sender can tell another.")] = False,
) -> None:
    """Print the secret that a sender such as Notion has told boathook by itself; from then on it counts.

    Paste it where the sender asks for it. If the sender refuses it, somebody else told it: forget it and begin anew.
    """
    settings = session(ctx).settings()
    secret = asyncio.run(_secret(settings, name, forget=forget))
    out.print(show.text(secret or f"{name}: forgotten"), soft_wrap=True)


async def _secret(settings: Settings, name: str, *, forget: bool) -> str | None:
    async with journal(settings) as database:
        if forget:
            await told_secrets.forget_secret(database, settings, name, action())
            return None
        return await told_secrets.show_secret(database, settings, name, action())


async def _try(settings: Settings, name: str) -> list[Step]:
    try:
        return [step async for step in try_source(settings, name)]
    except ConnectionError:
        raise ConfigError(f"nothing answers at {settings.server.bind}; start `boathook serve` first") from None


@settings_app.command("show", epilog="Example: boathook config show --json")
def show_settings(ctx: typer.Context, as_json: Json = False) -> None:
    """Show every setting in force, from defaults, file, environment and flags. Secrets are never shown."""
    settings = session(ctx).settings()
    shown = all_settings(settings) | apps.tables(settings)
    if as_json:
        show.print_json({"file": settings.file, **shown})
        return
    for table, keys in shown.items():
        for name, inner in keys.items() if table == "sources" else [("", keys)]:
            out.print(Text(f"[{table}.{name}]" if name else f"[{table}]", style="bold"))
            for key, value in inner.items():
                if value is not None:
                    out.print(Text(f"{key} = {json.dumps(value, ensure_ascii=False)}"), soft_wrap=True)
            out.print()


@settings_app.command("check", epilog="Example: boathook --config boathook.toml config check")
def check_settings(ctx: typer.Context) -> None:
    """Check the settings, every source with its secrets, and that your handlers can be loaded; start nothing."""
    from boathook.admin.doctor.finding import Verdict
    from boathook.admin.doctor.handlers import examine
    from boathook.dispatch.alarms.service import check_alarms
    from boathook.server import load_hooks, with_apps

    settings, loaded = with_apps(session(ctx).plain_settings())
    hooks = load_hooks(settings)
    handlers = len(hooks.handlers)
    settings.database_url()
    check_alarms(settings)
    paths = compile_gates(settings)
    where = settings.file or "the defaults and the environment"
    counts = f"{len(settings.sources)} sources on {len(paths)} paths, {handlers} handlers"
    if loaded:
        counts += f", {len(loaded)} apps"
    routes = [
        route
        for some in hooks.routes(timeout_s=settings.worker.timeout_s, retries=settings.retry_defaults()).values()
        for route in some
    ]
    findings = list(examine(settings, routes))
    for finding in findings:
        err.print(show.text(f"{finding.verdict}: {finding.found}; {finding.fix}"), soft_wrap=True)
    if any(finding.verdict is Verdict.FAIL for finding in findings):
        raise typer.Exit(1)
    out.print(show.text(f"{where}: understood; {counts}"), soft_wrap=True)


def _describe(settings: Settings, name: str) -> dict[str, Any]:
    source = settings.sources[name]
    return {
        "name": name,
        "provider": source.provider,
        "paths": [f"/in/{name}", *source.paths],
        "secrets": len(source.secrets),
        "unsigned": source.unsigned,
        "grade": _grade(settings, name),
        "docs": _docs(source.provider),
    }


def _grade(settings: Settings, name: str) -> str | None:
    """Return what the proof of a source covers; None where its settings are wrong."""
    try:
        recipe = verifier_of(settings, name).recipe
    except ConfigError:
        return None
    return (Grade.NONE if settings.sources[name].unsigned else recipe.grade).value


def _docs(provider: str) -> str | None:
    try:
        return find(provider).docs
    except ConfigError:
        return None


def _trouble(settings: Settings, name: str) -> str | None:
    try:
        verifier_of(settings, name)
    except ConfigError as error:
        return f"no: {error}"
    return None


def _print(rows: list[dict[str, Any]], columns: tuple[Column, ...], as_json: bool) -> None:
    if not as_json:
        out.print(show.table(columns, rows))
        return
    for row in rows:
        show.print_json(row)


def print_dashboards(
    to: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Write each into a file of this folder.")
    ] = None,
) -> None:
    """Print the dashboards for Grafana, one JSON document a line, or write them into a folder."""
    for name in dashboards.NAMES:
        text = dashboards.read(name)
        if to is None:
            sys.stdout.write(json.dumps(json.loads(text), separators=(",", ":")) + "\n")
            continue
        try:
            to.mkdir(parents=True, exist_ok=True)
            (to / f"boathook-{name}.json").write_text(text, encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"--out: cannot write to {to}: {error.strerror}") from None
        out.print(str(to / f"boathook-{name}.json"), soft_wrap=True, markup=False)


def print_alerts() -> None:
    """Print the alert rules for Prometheus."""
    sys.stdout.write(ALERT_RULES.read_text(encoding="utf-8"))
