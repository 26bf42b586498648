"""Adds the commands ``import`` and ``views`` to an app's group."""

from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from boathook import Boathook
from boathook_app_tools import compatibility_views, table_import
from boathook_app_tools.compatibility_views import Views
from boathook_app_tools.table_import import Import, Report
from boathook_app_tools.terminal import Json, ask, print_json, print_rows, say

_Schema = Annotated[str, typer.Option(metavar="NAME", help="The schema with your tables.")]
_ViewSchema = Annotated[str, typer.Option(metavar="NAME", help="The schema for the views.")]


def add_import(hook: Boathook, app: typer.Typer, plan: Import) -> None:
    """Add ``boathook NAME import``."""

    @app.command("import", epilog=f"Example: boathook {plan.app} import --schema public --dry-run")
    def import_tables(
        schema: _Schema = "public",
        dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing; count and report.")] = False,
        batch: Annotated[int, typer.Option(min=1, max=10_000, help="Rows of one transaction.")] = table_import.BATCH,
        as_json: Json = False,
    ) -> None:
        """Import your own tables; run it again to bring what is new or has changed.

        Rows that cannot be imported are listed with their key and column, and the command ends with 1.
        """
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        with Progress(*columns, console=Console(stderr=True), disable=as_json, transient=True) as progress:
            bars: dict[str, TaskID] = {}

            def notify(table: str, rows: int, total: int) -> None:
                if table not in bars:
                    bars[table] = progress.add_task(table, total=total)
                progress.update(bars[table], completed=rows, total=total)

            report = hook.run(
                table_import.run(hook.transaction, plan, schema=schema, batch=batch, is_dry=dry_run, notify=notify)
            )
        _show(report, is_dry=dry_run, as_json=as_json)
        if report.rejected:
            raise typer.Exit(1)


def _show(report: Report, *, is_dry: bool, as_json: bool) -> None:
    counts = [{"table": table, **asdict(counts)} for table, counts in report.counts.items()]
    rejected = [asdict(row) for row in report.rejected]
    if as_json:
        for kind, rows in (("counts", counts), ("rejected", rejected)):
            for row in rows:
                print_json({"kind": kind, "dry_run": is_dry, **row})
        for table, column in report.ignored_columns:
            print_json({"kind": "ignored_column", "dry_run": is_dry, "table": table, "column": column})
        for note in report.notes:
            print_json({"kind": "note", "dry_run": is_dry, "text": note})
        return
    print_rows(counts, as_json=False)
    if rejected:
        say(f"\n{len(rejected)} rows are not imported:".strip())
        print_rows(rejected, as_json=False)
    if report.ignored_columns:
        say(f"columns that are not read: {', '.join('.'.join(pair) for pair in report.ignored_columns)}")
    for note in report.notes:
        say(note)
    if is_dry:
        say("dry run: nothing has been changed")


def add_views(hook: Boathook, app: typer.Typer, views: Views) -> None:
    """Add ``boathook NAME views create`` and ``views drop``."""
    group = typer.Typer(no_args_is_help=True, help="Views of this app's tables under the names that you had.")
    app.add_typer(group, name="views")

    @group.command("create", epilog=f"Example: boathook {views.app} views create --schema public")
    def create(schema: _ViewSchema = "public", as_json: Json = False) -> None:
        """Create the views, or create them again; a table or another's view of the same name is never replaced."""
        names = ask(hook, lambda tx: compatibility_views.create(tx, views, schema))
        _list(schema, names, "created", as_json=as_json)

    @group.command("drop", epilog=f"Example: boathook {views.app} views drop --schema public")
    def drop(schema: _ViewSchema = "public", as_json: Json = False) -> None:
        """Drop the views that were created here."""
        names = ask(hook, lambda tx: compatibility_views.drop(tx, views, schema))
        _list(schema, names, "dropped", as_json=as_json)


def _list(schema: str, names: list[str], result: str, *, as_json: bool) -> None:
    if as_json:
        for name in names:
            print_json({"schema": schema, "name": name, "result": result})
        return
    say(f"{result} in {schema}: {', '.join(names) or 'nothing'}")
