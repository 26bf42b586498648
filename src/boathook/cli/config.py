"""Commands for settings, and the Grafana dashboards."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from boathook import config
from boathook.cli import apps, output
from boathook.cli.context import cli_context, err, out
from boathook.cli.options import Json
from boathook.cli.output import say
from boathook.domain.errors import ConfigError
from boathook.domain.plurals import counted
from boathook.observability import DASHBOARDS
from boathook.service.shown_settings import all_settings

settings_app = typer.Typer(no_args_is_help=True, help="Settings.")


@settings_app.command("show", epilog="Example: boathook config show --json")
def show_settings(ctx: typer.Context, as_json: Json = False) -> None:
    """Show the effective settings from defaults, file, environment and flags. Secrets are never shown."""
    settings = cli_context(ctx).settings()
    effective = all_settings(settings) | apps.tables(settings)
    if as_json:
        output.print_json({"file": settings.file, **effective})
        return
    for table, keys in effective.items():
        for name, inner in keys.items() if table in {"sources", "mounts"} else [("", keys)]:
            quoted = json.dumps(name) if "/" in name else name
            out.print(Text(f"[{table}.{quoted}]" if name else f"[{table}]", style="bold"))
            for key, value in inner.items():
                if value is not None:
                    out.print(Text(f"{key} = {json.dumps(value, ensure_ascii=False)}"), soft_wrap=True)
            out.print()


@settings_app.command("schema", epilog="Example: boathook config schema > boathook.schema.json")
def print_schema() -> None:
    """Print the JSON Schema of boathook.toml, by which editors complete and check it."""
    sys.stdout.write(config.schema())


@settings_app.command("check", epilog="Example: boathook --config boathook.toml config check")
def check_settings(ctx: typer.Context, as_json: Json = False) -> None:
    """Validate the settings, sources, secrets and handlers without starting anything."""
    from boathook.server import check_mounts, load_hooks, with_apps
    from boathook.service.operating import doctor

    settings, loaded = with_apps(cli_context(ctx).plain_settings())
    hooks = load_hooks(settings)
    paths = doctor.check_settings(settings)
    check_mounts({owner: hook.manifest.mounts for owner, hook in hooks.owners.items()}, settings)
    routes = [
        route
        for some in hooks.routes(timeout_s=settings.worker.timeout_s, retries=settings.retry_defaults()).values()
        for route in some
    ]
    findings = [
        *doctor.examine_settings(settings),
        *doctor.examine_loaded(settings, hooks.owners),
        *doctor.examine_handlers(settings, routes),
    ]
    is_valid = all(finding.verdict is not doctor.CheckStatus.FAIL for finding in findings)
    counts = {"sources": len(settings.sources), "paths": paths, "handlers": len(hooks.handlers), "apps": len(loaded)}
    if as_json:
        output.print_json({"file": settings.file, "is_valid": is_valid, **counts, "findings": findings})
    else:
        for finding in findings:
            err.print(output.text(f"{finding.verdict}: {finding.found}; {finding.fix}"), soft_wrap=True)
    if not is_valid:
        raise typer.Exit(1)
    if not as_json:
        origin = settings.file or "the defaults and the environment"
        summary = f"{counted(len(settings.sources), 'source')} on {counted(paths, 'path')}"
        summary += f", {counted(len(hooks.handlers), 'handler')}"
        say(f"{origin}: valid; {summary}" + (f", {counted(len(loaded), 'app')}" if loaded else ""))


def print_dashboards(
    to: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Write one file per dashboard into this folder.")
    ] = None,
) -> None:
    """Print the Grafana dashboards, one JSON document per line, or write them to a folder."""
    for name, file in DASHBOARDS.items():
        text = file.read_text(encoding="utf-8")
        if to is None:
            sys.stdout.write(json.dumps(json.loads(text), separators=(",", ":")) + "\n")
            continue
        try:
            to.mkdir(parents=True, exist_ok=True)
            (to / f"boathook-{name}.json").write_text(text, encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"--out: cannot write to {to}: {error.strerror}") from None
        say(to / f"boathook-{name}.json")
