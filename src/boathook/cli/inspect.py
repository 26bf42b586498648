"""Commands that show how boathook is set up: sources, providers, settings, alert rules."""

import asyncio
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from boathook.cli import apps, output, source_secrets
from boathook.cli.context import action, cli_context, err, open_database, out
from boathook.cli.output import Column
from boathook.config import Settings
from boathook.domain.errors import ConfigError
from boathook.observability import dashboards
from boathook.service import handshake_secrets
from boathook.service import sources as source_views
from boathook.service.shown_settings import all_settings
from boathook.service.source_trial import SourceTestStep, run_source_test

sources = typer.Typer(no_args_is_help=True, help="Sources: where requests arrive.")
sources.add_typer(source_secrets.secrets, name="secrets")
settings_app = typer.Typer(no_args_is_help=True, help="Settings.")

Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object per line.")]

_SOURCES = (
    Column("name", lambda one: one["name"]),
    Column("provider", lambda one: one["provider"]),
    Column("proof", lambda one: output.grade(one["grade"]) if one["grade"] else "not ready"),
    Column("secrets", lambda one: one["secrets"]),
    Column("paths", lambda one: " ".join(one["paths"]), may_wrap=True),
)


@sources.command("list", epilog="Example: boathook sources list --json")
def list_sources(ctx: typer.Context, as_json: Json = False) -> None:
    """List the sources of the settings."""
    settings = cli_context(ctx).settings()
    _print([_describe(settings, source_views.view_of(settings, name)) for name in settings.sources], _SOURCES, as_json)


@sources.command("show", epilog="Example: boathook sources show stripe")
def show_source(
    ctx: typer.Context, name: Annotated[str, typer.Argument(help="The source's name.")], as_json: Json = False
) -> None:
    """Show one source, its settings and whether it is ready. Secrets are never shown."""
    settings = cli_context(ctx).settings()
    if name not in settings.sources:
        known = ", ".join(sorted(settings.sources)) or "none"
        raise ConfigError(f"unknown source {name!r}; configured: {known}")
    view = source_views.view_of(settings, name)
    ready = f"no: {view.trouble}" if view.trouble else "yes"
    one = {**all_settings(settings)["sources"][name], **_describe(settings, view), "ready": ready}
    given = {key: value for key, value in one.items() if value not in (None, [], False, "")}
    if as_json:
        output.print_json(one)
    else:
        output.print_fields(
            {key: " ".join(map(str, value)) if isinstance(value, list) else value for key, value in given.items()}
        )


@sources.command("providers", epilog="Example: boathook sources providers --json")
def list_providers(as_json: Json = False) -> None:
    """List the supported providers, what their signature covers, and their documentation.

    Use `hmac` or `token` for other senders. --json adds settings, timeouts and retry schedules.
    """
    recipes = source_views.list_providers()
    widest = max(len(recipe.name) for recipe in recipes)
    for recipe in recipes:
        if as_json:
            output.print_json(recipe.describe())
        else:
            # No table, which would break the addresses where they are to be copied.
            line = output.text(f"{recipe.name:<{widest}}  {recipe.grade.value:<13}  {recipe.docs}")
            out.print(line, soft_wrap=True)


@sources.command("test", epilog="Example: boathook sources test stripe")
def try_one(
    ctx: typer.Context, name: Annotated[str, typer.Argument(help="The source's name.")], as_json: Json = False
) -> None:
    """Send the running boathook a valid and a forged request of a source.

    The valid request becomes an event that your handlers receive. Exits with 1 if either result is wrong.
    """
    steps = asyncio.run(_try(cli_context(ctx).settings(), name))
    for step in steps:
        if as_json:
            output.print_json(asdict(step))
        else:
            mark = Text("ok  ", style="green") if step.ok else Text("FAIL", style="bold red")
            out.print(mark, output.text(f" {step.what}: {step.found}"), sep="", soft_wrap=True)
    if not all(step.ok for step in steps):
        raise typer.Exit(1)


@sources.command("secret", epilog="Example: boathook sources secret notion")
def show_secret(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="The source's name.")],
    forget: Annotated[bool, typer.Option("--forget", help="Delete it, so that the sender can send another.")] = False,
) -> None:
    """Print and activate the secret that a sender such as Notion sent in its handshake.

    Paste it where the sender asks for it. If the sender rejects it, another client sent it: delete it and start again.
    """
    settings = cli_context(ctx).settings()
    secret = asyncio.run(_secret(settings, name, forget=forget))
    out.print(output.text(secret or f"{name}: deleted"), soft_wrap=True)


async def _secret(settings: Settings, name: str, *, forget: bool) -> str | None:
    async with open_database(settings) as database:
        if forget:
            await handshake_secrets.forget_secret(database, settings, name, action())
            return None
        return await handshake_secrets.show_secret(database, settings, name, action())


async def _try(settings: Settings, name: str) -> list[SourceTestStep]:
    try:
        return [step async for step in run_source_test(settings, name)]
    except ConnectionError:
        raise ConfigError(f"no response from {settings.server.bind}; start `boathook serve` first") from None


@settings_app.command("show", epilog="Example: boathook config show --json")
def show_settings(ctx: typer.Context, as_json: Json = False) -> None:
    """Show the effective settings from defaults, file, environment and flags. Secrets are never shown."""
    settings = cli_context(ctx).settings()
    shown = all_settings(settings) | apps.tables(settings)
    if as_json:
        output.print_json({"file": settings.file, **shown})
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
    """Validate the settings, sources, secrets and handlers without starting anything."""
    from boathook.server import load_hooks, with_apps
    from boathook.service import doctor

    settings, loaded = with_apps(cli_context(ctx).plain_settings())
    hooks = load_hooks(settings)
    handlers = len(hooks.handlers)
    settings.database_url()
    paths = doctor.check_settings(settings)
    where = settings.file or "the defaults and the environment"
    counts = f"{len(settings.sources)} sources on {paths} paths, {handlers} handlers"
    if loaded:
        counts += f", {len(loaded)} apps"
    routes = [
        route
        for some in hooks.routes(timeout_s=settings.worker.timeout_s, retries=settings.retry_defaults()).values()
        for route in some
    ]
    findings = list(doctor.examine_handlers(settings, routes))
    for finding in findings:
        err.print(output.text(f"{finding.verdict}: {finding.found}; {finding.fix}"), soft_wrap=True)
    if any(finding.verdict is doctor.CheckStatus.FAIL for finding in findings):
        raise typer.Exit(1)
    out.print(output.text(f"{where}: valid; {counts}"), soft_wrap=True)


def _describe(settings: Settings, view: source_views.SourceView) -> dict[str, Any]:
    provider = source_views.find_provider(view.provider)
    return {
        "name": view.name,
        "provider": view.provider,
        "paths": list(view.paths),
        "secrets": len(settings.sources[view.name].secrets),
        "unsigned": view.is_unsigned,
        "grade": None if view.grade is None else view.grade.value,
        "docs": None if provider is None else provider.docs,
    }


def _print(rows: list[dict[str, Any]], columns: tuple[Column, ...], as_json: bool) -> None:
    if not as_json:
        out.print(output.table(columns, rows))
        return
    for row in rows:
        output.print_json(row)


def print_dashboards(
    to: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Write one file per dashboard into this folder.")
    ] = None,
) -> None:
    """Print the Grafana dashboards, one JSON document per line, or write them to a folder."""
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
