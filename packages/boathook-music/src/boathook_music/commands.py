"""The commands: ``boathook music ...``."""

import json
from dataclasses import asdict
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from boathook import BoathookError, Transaction
from boathook_app_tools import simulation
from boathook_app_tools.import_commands import add_import, add_views
from boathook_app_tools.terminal import Json, ask, print_json, print_rows, say
from boathook_music import files, jobs, lookup, owner_tables, sending, status, tracks
from boathook_music.app import gettext, hook, settings
from boathook_music.cleaning import Report
from boathook_music.delivery_log import log as delivery_log
from boathook_music.kinds import Kind as FileKind
from boathook_music.links import links
from boathook_music.stages import Status
from boathook_music.tracks import NewTrack
from boathook_pages.languages import gettext_noop

Task = Annotated[str, typer.Argument(metavar="TASK", help="The id that the reseller gave the task.")]
_SHOWN: Final = ("id", "received_at", "standing", "task_id", "stage", "result", "attempts", "code", "note")
_FILE_SHOWN: Final = ("task_id", "clip_id", "kind", "state", "key", "size", "error_code", "error")

app = typer.Typer(no_args_is_help=True, help="Songs, their callbacks and their files.")
tracks_app = typer.Typer(no_args_is_help=True, help="Songs that were ordered.")
files_app = typer.Typer(no_args_is_help=True, help="Audio and covers.")
app.add_typer(tracks_app, name="tracks")
app.add_typer(files_app, name="files")
hook.commands(app)
delivery_log.add_commands(app, _SHOWN)
add_import(hook, app, owner_tables.IMPORT)
add_views(hook, app, owner_tables.VIEWS)


@tracks_app.command("add", epilog='Example: boathook music tracks add 2fac9f72 --title "Iron Man" --owner anna')
def add_track(
    task: Task,
    owner: Annotated[str, typer.Option(help="The song's owner: any text of your choice.")] = "",
    title: Annotated[str, typer.Option(help="Its title.")] = "",
    prompt: Annotated[str, typer.Option(help="What was asked for, as JSON.")] = "{}",
    application: Annotated[str, typer.Option(help="The application to which its events are sent.")] = "",
    as_json: Json = False,
) -> None:
    """Register a track; callbacks that wait for it are applied immediately."""
    try:
        parameters = json.loads(prompt)
    except (ValueError, RecursionError):
        text = gettext("--prompt: this is not JSON; write an object such as '%(example)s'", example='{"style": "rock"}')
        raise BoathookError(text) from None
    track = NewTrack(task_id=task, owner=owner, title=title, prompt=parameters, application=application)
    if problem := tracks.problem_of(track):
        raise BoathookError(problem)

    async def work(tx: Transaction) -> dict[str, Any]:
        is_new = await tracks.register(tx, track)
        row = await tracks.shown(tx, task)
        assert row is not None
        return {"is_new": is_new, **row}

    row = ask(hook, work)
    if as_json:
        print_json(row)
        return
    text = gettext_noop("%(task)s added: %(status)s")
    if not row["is_new"]:
        text = gettext_noop("%(task)s already exists: %(status)s")
    say(gettext(text, task=task, status=row["status"]))


@tracks_app.command("list", epilog="Example: boathook music tracks list --status failed --json")
def list_tracks(
    state: Annotated[Status | None, typer.Option("--status", help="Only with this status.")] = None,
    owner: Annotated[str | None, typer.Option(help="Only of this owner.")] = None,
    overdue: Annotated[
        bool, typer.Option("--overdue", help="Only unfinished ones without news for overdue_s.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Maximum rows.")] = 50,
    as_json: Json = False,
) -> None:
    """List tracks, newest first."""
    overdue_s = settings().overdue_s if overdue else None
    rows = ask(hook, lambda tx: tracks.listed(tx, status=state, owner=owner, overdue_s=overdue_s, limit=limit))
    print_rows(rows, as_json=as_json)


@tracks_app.command("show", epilog="Example: boathook music tracks show 2fac9f72")
def show_track(task: Task) -> None:
    """Show a track with its clips, files and callbacks, as JSON."""
    row = ask(hook, lambda tx: tracks.shown(tx, task))
    if row is None:
        raise BoathookError(_unknown(task))
    print_json(row)


@tracks_app.command("ask", epilog="Example: boathook music tracks ask 2fac9f72")
def ask_for_track(task: Task) -> None:
    """Ask the reseller for a track's state now."""
    result = hook.run(lookup.ask_now(task))
    if result == "applied":
        say(gettext("%(task)s is updated", task=task))
    else:
        say(gettext("the reseller has no news of %(task)s", task=task))


@tracks_app.command("delete", epilog="Example: boathook music tracks delete 2fac9f72")
def delete_track(task: Task) -> None:
    """Mark a track as deleted; cleaning removes its files."""
    if not ask(hook, lambda tx: tracks.mark_deleted(tx, task)):
        raise BoathookError(gettext("there is no track %(task)r, or it is deleted already", task=task))
    say(gettext("%(task)s is deleted; the next cleanup removes its files", task=task))


@tracks_app.command("archive", epilog="Example: boathook music tracks archive 2fac9f72")
def archive_track(
    task: Task, undo: Annotated[bool, typer.Option("--undo", help="Take it out of the archive.")] = False
) -> None:
    """Archive a track: cleaning keeps its files, and the reseller is not asked for it."""
    if not ask(hook, lambda tx: tracks.archive(tx, task, is_archived=not undo)):
        raise BoathookError(_unknown(task))
    say(gettext("%(task)s is no longer archived", task=task) if undo else gettext("%(task)s is archived", task=task))


@files_app.command("list", epilog="Example: boathook music files list --state failed")
def list_files(
    state: Annotated[files.State | None, typer.Option(help="Only in this state.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Maximum rows.")] = 50,
    as_json: Json = False,
) -> None:
    """List files, those wanted last first; with `--json`, stored ones have a link that works for an hour at most."""

    async def work(tx: Transaction) -> list[dict[str, Any]]:
        return await links.with_links(tx, await files.listed(tx, state=state, limit=limit))

    rows = ask(hook, work)
    print_rows(rows, as_json=as_json, columns=_FILE_SHOWN)


@files_app.command("retry", epilog="Example: boathook music files retry 2fac9f72 e231 audio")
def retry_file(
    task: Task,
    clip: Annotated[str, typer.Argument(metavar="CLIP", help="The clip's id.")],
    kind: Annotated[FileKind, typer.Argument(metavar="KIND", help="audio or cover.")],
) -> None:
    """Fetch a failed or missing file again."""
    file = f"{task}/{clip}"
    if not ask(hook, lambda tx: files.request_again(tx, task, clip, kind)):
        text = gettext_noop("no %(kind)s of %(file)s failed or is missing; see `boathook music files list`")
        raise BoathookError(gettext(text, kind=kind, file=file))
    say(gettext("the %(kind)s of %(file)s is fetched again", kind=kind, file=file))


@app.command("status", epilog="Example: boathook music status")
def show_status() -> None:
    """Show waiting callbacks, overdue tracks, open files and the reseller's credits, as JSON."""
    print_json(ask(hook, status.read))


@app.command("cleanup", epilog="Example: boathook music cleanup --dry-run")
def clean_up(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing, only count.")] = False,
    as_json: Json = False,
) -> None:
    """Clean up storage: remove unused objects, and fetch missing files again."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), disable=as_json, transient=True) as progress:
        bar = progress.add_task("objects", total=None)

        def notify(report: Report) -> None:
            progress.update(bar, completed=report.seen)

        async def work() -> Report | None:
            async with hook.transaction() as tx:
                total = await tx.fetchval("select count(*) from music.file where state = 'stored'")
            progress.update(bar, total=total or None)
            return await jobs.clean(is_dry=dry_run, notify=notify)

        report = hook.run(work())
    assert report is not None
    print_rows([{"dry_run": dry_run, **asdict(report)}], as_json=as_json)


@app.command("simulate", epilog="Example: boathook music simulate --url http://127.0.0.1:8080 --count 20")
def simulate(
    url: simulation.Url = simulation.HERE,
    count: Annotated[int, typer.Option(min=1, max=10_000, help="How many songs to make up.")] = 20,
    seed: simulation.Seed = None,
    wait: simulation.Wait = simulation.WAIT_S,
    as_json: Json = False,
) -> None:
    """Send simulated callbacks, serve their files, and check the results."""
    simulation.finish(hook.run(sending.simulate(url, count=count, seed=seed, wait_s=wait)), as_json=as_json)


def _unknown(task: str) -> str:
    return gettext("there is no track %(task)r; see `boathook music tracks list`", task=task)
