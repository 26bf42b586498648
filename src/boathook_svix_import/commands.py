"""Commands that import the configuration of another system."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Final
from urllib.parse import urlsplit

import typer

from boathook.cli import output
from boathook.cli.commands import example
from boathook.cli.context import UsageError, actor, cli_context, err, open_app_context, out, run
from boathook.cli.options import Json, read_json
from boathook.cli.output import Progress
from boathook.domain.model import DEFAULT_ORGANIZATION
from boathook.service.limits import MAX_SECRET_GRACE

if TYPE_CHECKING:
    from boathook.config import Settings
    from boathook_svix_import.endpoints import Options
    from boathook_svix_import.report import ImportIssue, Report

importing = typer.Typer(no_args_is_help=True, help="Import the configuration of another system.")

_MAX_GRACE_S: Final = int(MAX_SECRET_GRACE.total_seconds())


@importing.callback()
def choose() -> None:
    """Import the configuration of another system."""


@importing.command(
    "svix",
    epilog=example(
        "boathook import svix --from https://api.eu.svix.com --token env:SVIX_TOKEN --dry-run",
        "boathook import svix --from https://hooks.example.com --token file:token.txt --secrets @keys.json --delete",
    ),
)
def import_svix(
    ctx: typer.Context,
    url: Annotated[str, typer.Option("--from", metavar="URL", help="The server, such as https://api.eu.svix.com.")],
    reference: Annotated[
        str,
        typer.Option(
            "--token",
            metavar="REFERENCE",
            help="An API token of the environment: env:NAME, file:PATH or the token itself.",
        ),
    ] = "env:SVIX_TOKEN",
    organization: Annotated[str, typer.Option(help="The organization to import into.")] = DEFAULT_ORGANIZATION,
    disabled: Annotated[
        bool,
        typer.Option("--disabled", help="Create endpoints disabled, and leave existing ones enabled or disabled."),
    ] = False,
    grace: Annotated[
        int,
        typer.Option(min=0, max=_MAX_GRACE_S, help="Seconds that a replaced secret stays valid."),
    ] = 86_400,
    secrets: Annotated[
        str | None,
        typer.Option(
            metavar="JSON", help="Secrets that the server does not return, by endpoint id; @FILE reads a file."
        ),
    ] = None,
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete imported objects that the server no longer has.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing; print what would be done.")] = False,
    as_json: Json = False,
) -> None:
    """
    Import event types, applications, endpoints and secrets from a Svix API server.

    Safe to repeat: differences are updated and nothing is duplicated. Exits with 1 if something failed.
    """
    from boathook_svix_import.endpoints import Options

    settings = cli_context(ctx).settings()
    options = Options(
        organization=organization,
        actor=actor(),
        is_dry_run=dry_run,
        deletes=delete,
        is_disabled=disabled,
        grace=timedelta(seconds=grace),
        secrets=_read_secrets(secrets),
    )
    report = run(_import(settings, _read_url(url), settings.resolve(reference, "--token"), options))
    if as_json:
        output.print_json({"dry_run": dry_run, **report.plain()})
    else:
        _print(report, is_dry_run=dry_run)
    if report.failed:
        raise typer.Exit(1)


async def _import(settings: "Settings", url: str, token: str, options: "Options") -> "Report":
    from boathook_svix_import.importer import SvixImporter
    from boathook_svix_import.reader import SvixClient

    reader = SvixClient(settings, url, token, say=_say)
    try:
        async with open_app_context(settings) as app_context:
            with Progress("applications") as progress:
                return await SvixImporter(app_context, reader, options, progress).run()
    finally:
        reader.close()


def _say(message: str) -> None:
    err.print(output.text(message), style="yellow", soft_wrap=True)


def _read_url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
        raise UsageError(f"--from: write an address such as https://api.eu.svix.com, not {text!r}")
    return text


def _read_secrets(text: str | None) -> Mapping[str, str]:
    secrets = {} if text is None else read_json("--secrets", text)
    if not isinstance(secrets, dict) or not all(isinstance(value, str) for value in secrets.values()):
        raise UsageError('--secrets: write an object such as {"ep_2abc": "whsk_..."}')
    return secrets


def _print(report: "Report", *, is_dry_run: bool) -> None:
    for change in report.changes:
        fields = f": {', '.join(change.fields)}" if change.fields else ""
        out.print(output.text(f"{change.outcome}  {change.object}{fields}"), soft_wrap=True)
    for kind, counts in report.plain()["counts"].items():
        summary = ", ".join(f"{number:,} {outcome}" for outcome, number in counts.items())
        out.print(f"{kind}s: {summary or 'none'}", markup=False)
    _print_findings("cannot move", report.not_moved)
    if report.gone:
        out.print(f"no longer on the server, kept here; use --delete to delete ({len(report.gone):,}):", markup=False)
        for name in report.gone:
            out.print(output.text(f"  {name}"), soft_wrap=True)
    _print_findings("failed", report.failed)
    if is_dry_run:
        out.print("dry run: nothing was changed")
    elif not report.changes:
        out.print("nothing changed")


def _print_findings(title: str, findings: "Sequence[ImportIssue]") -> None:
    if findings:
        out.print(f"{title} ({len(findings):,}):", markup=False)
    for finding in findings:
        location = f"{finding.object}, {finding.field}" if finding.field else finding.object
        out.print(output.text(f"  {location}: {finding.reason}"), soft_wrap=True)
