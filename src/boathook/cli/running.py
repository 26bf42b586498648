"""Commands that run boathook, and look after a set-up: serve, migrate, doctor, demo, bench, send."""

import operator
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from boathook.cli import show
from boathook.cli.options import read_pairs
from boathook.cli.session import Misused, action, err, journal, out, run, server_url, session
from boathook.config import Settings
from boathook.domain import ids
from boathook.domain.errors import BoathookError, ConfigError
from boathook.domain.model import Duplicate, Receipt
from boathook.journal.database import Database

if TYPE_CHECKING:
    from boathook.admin.doctor import Finding

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]

_FEWEST_EVENTS = 2_000
"""In fewer there is not something of everything."""
_PAGE_COLUMNS = (
    show.Column("page", operator.itemgetter("page"), is_whole=True),
    *(show.Column(title, operator.itemgetter(f"{title}_ms")) for title in ("p50", "p95", "max", "first")),
)


def serve(
    ctx: typer.Context,
    app: Annotated[
        str | None, typer.Option(metavar="MODULE:ATTR", help="Your handlers: the Boathook object in a module.")
    ] = None,
    role: Annotated[
        str | None, typer.Option(help="Which parts to run, separated by commas: gateway, worker, keeper.")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Worker processes.")] = None,
    gateways: Annotated[int | None, typer.Option(min=1, help="Gateway processes on the one port.")] = None,
    bind: Annotated[str | None, typer.Option(help="Address and port, such as 0.0.0.0:8080.")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65_535, help="Port in place of the one in server.bind.")
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Folder of the embedded PostgreSQL and the metrics.")] = None,
) -> None:
    """
    Run boathook: the gateway that takes requests in, the workers that run handlers, the keeper that looks after both.

    Without database.url it starts a PostgreSQL of its own. SIGTERM and Ctrl-C stop it after what was begun is done.
    """
    from boathook import server

    settings = session(ctx).plain_settings(
        server__app=app,
        server__roles=[part.strip() for part in role.split(",") if part.strip()] if role else None,
        server__workers=workers,
        server__gateways=gateways,
        server__bind=bind,
        server__port=port,
        server__data_dir=str(data_dir.absolute()) if data_dir else None,
    )
    raise typer.Exit(server.serve(settings))


def migrate(
    ctx: typer.Context,
    only_pre: Annotated[
        bool,
        typer.Option("--only-pre", help="Only what is safe while the older boathook still runs; no app's tables."),
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; exit with 1 if something is lacking.")
    ] = False,
) -> None:
    """Bring the database's schema up to date, and the tables of the apps that apps.load names; safe to repeat."""
    from boathook.journal import migrations
    from boathook.server import load_apps, migrations_of

    settings = session(ctx).plain_settings()
    folders = migrations_of(load_apps(settings))

    async def work() -> list[str]:
        async with server_url(settings, may_create=not check) as url:
            if check:
                return await migrations.pending(url, folders)
            return await migrations.migrate(url, folders, only_pre=only_pre)

    names = run(work())
    for name in names:
        out.print(f"{'lacks' if check else 'applied'} {name}", markup=False)
    if not names:
        out.print("the schema is current")
    raise typer.Exit(1 if check and names else 0)


def check_up(ctx: typer.Context, as_json: Json = False) -> None:
    """Look the set-up over: settings, clock, database, disk, sources. Exits with 1 if something must be mended."""
    from boathook.admin import doctor

    async def work() -> bool:
        settings, migrations, findings = _look_at_apps(session(ctx).plain_settings())
        try:
            async with server_url(settings) as url:
                database = await Database.open(url, purpose="doctor", size=2)
                try:
                    found = doctor.examine(settings, database, migrations=migrations)
                    findings += [finding async for finding in found]
                finally:
                    await database.close()
        except BoathookError as error:
            findings += [finding async for finding in doctor.examine(settings, None, str(error))]
        findings += _look_at_handlers(settings)
        _print_findings(findings, as_json=as_json)
        return any(finding.verdict is doctor.Verdict.FAIL for finding in findings)

    raise typer.Exit(1 if run(work()) else 0)


def _look_at_handlers(settings: Settings) -> "list[Finding]":
    """Return what is wrong with the handlers, if there are any: whether they load, and what they name."""
    if not settings.server.app and not settings.apps.load:
        return []
    from boathook.admin.doctor import Finding, Verdict, examine_handlers
    from boathook.server import load_hooks

    try:
        hooks = load_hooks(settings)
    except ConfigError as error:
        return [Finding("handlers", Verdict.FAIL, str(error), "correct that; boathook does not start without them")]
    routes = [
        route
        for some in hooks.routes(timeout_s=settings.worker.timeout_s, retries=settings.retry_defaults()).values()
        for route in some
    ]
    found = f"{len(hooks.handlers)} can be loaded, each for a source that is there"
    return list(examine_handlers(settings, routes)) or [Finding("handlers", Verdict.OK, found)]


def _look_at_apps(settings: Settings) -> "tuple[Settings, list[tuple[str, Path]], list[Finding]]":
    """Return the settings with the apps' sources, where the apps' migrations are, and what is wrong with the apps."""
    if not settings.apps.load:
        return settings, [], []
    from boathook.admin.doctor import Finding, Verdict
    from boathook.server import migrations_of, with_apps

    try:
        whole, loaded = with_apps(settings)
    except ConfigError as error:
        return settings, [], [Finding("apps", Verdict.FAIL, str(error), "correct that, or remove it from apps.load")]
    names = ", ".join(hook.name for hook in loaded)
    return whole, migrations_of(loaded), [Finding("apps", Verdict.OK, f"{names} can be loaded")]


def _print_findings(findings: "list[Finding]", *, as_json: bool) -> None:
    width = max(len(finding.check) for finding in findings)
    for finding in findings:
        if as_json:
            show.print_json(finding)
            continue
        line = show.text(finding.verdict) + Text(
            f"{'':{5 - len(finding.verdict)}}{finding.check:<{width}}  ", style="bold"
        )
        out.print(line + show.text(finding.found), soft_wrap=True)
        if finding.fix:
            out.print(Text(f"{'':{width + 7}}→ {finding.fix}", style="dim"), soft_wrap=True)


def demo(
    seconds: Annotated[float | None, typer.Option(min=1, help="Stop by itself after so long.")] = None,
    data_dir: Annotated[Path, typer.Option(help="The demo's own folder; emptied at the start.")] = Path(
        ".boathook-demo"
    ),
    port: Annotated[
        int, typer.Option(min=0, max=65_535, help="Where to serve; the next free one if it is taken.")
    ] = 8080,
) -> None:
    """
    Start everything on an embedded PostgreSQL and play a few minutes of real life at it, with real signatures.

    Exits with 0 only if the books balance at the end.
    """
    from boathook.demo import run_demo

    raise typer.Exit(run_demo(seconds=seconds, data_dir=data_dir, port=port, console=out))


def bench(
    ctx: typer.Context,
    name: Annotated[
        str,
        typer.Argument(help="ingest, duplicates, handle, latency, deliver, fanout, isolation, both, spool or console."),
    ],
    seconds: Annotated[float, typer.Option(min=0.5, help="How long one measurement lasts.")] = 6.0,
    events: Annotated[
        int, typer.Option(min=_FEWEST_EVENTS, help="How many events are stored for the console to look at.")
    ] = 100_000,
    as_json: Json = False,
) -> None:
    """
    Measure boathook against its own ceiling and against the server people write first, all in one run.

    Makes databases of its own: on database.url, whose role must be allowed to, or on an embedded PostgreSQL.
    """
    try:
        from boathook import bench as benches
    except ImportError as error:
        raise ConfigError(f"the bench needs {error.name}: pip install 'boathook[bench,embedded]'") from None
    url = session(ctx).settings().database_url()
    figures = benches.run(name, seconds=seconds, events=events, database_url=url, report=_report_bench)
    if as_json:
        show.print_json(figures)
    else:
        if pages := figures.pop("pages", None):
            show.print_rows(pages, _PAGE_COLUMNS, as_json=False, plain=dict)
        show.facts({key.replace("_", " "): _figure(value) for key, value in figures.items()})


def _report_bench(message: str) -> None:
    err.print(message, style="dim", markup=False)


def _figure(value: Any) -> object:
    return (
        f"{value:,.3g}"
        if isinstance(value, float) and abs(value) < 1_000
        else f"{value:,.0f}"
        if isinstance(value, float)
        else value
    )


def send(
    ctx: typer.Context,
    application: Annotated[str, typer.Option(help="The application it is for: its id or uid.")],
    type: Annotated[str, typer.Option(help="What happened, such as invoice.paid.")],
    data: Annotated[str, typer.Option(help="The payload as JSON; @FILE reads a file, - reads standard input.")] = "{}",
    key: Annotated[
        str | None, typer.Option("--id", "--key", help="Your own id: two sendings with one id are one message.")
    ] = None,
    channel: Annotated[
        list[str] | None,
        typer.Option(help="Endpoints with channels get it only under one of theirs; may be given again."),
    ] = None,
    tag: Annotated[list[str] | None, typer.Option(help="Kept with it, to find it by; may be given again.")] = None,
    header: Annotated[
        list[str] | None, typer.Option(metavar="NAME: VALUE", help="Kept with it; may be given again.")
    ] = None,
    deliver_at: Annotated[
        datetime | None, typer.Option(parser=show.read_moment, metavar="TIME", help="Not before: ISO 8601.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Publish one message for an application: its endpoints get it, and handlers of the application."""
    from boathook.admin import operations
    from boathook.handlers.outbox import Message

    message = Message(
        application=application,
        type=type,
        payload=_read_data(data),
        content_type="application/json",
        id=key,
        channels=channel or (),
        tags=tag or (),
        headers=read_pairs("--header", header or [], ":"),
        deliver_at=deliver_at,
    )
    settings = session(ctx).settings()

    async def work() -> Receipt:
        async with journal(settings) as database:
            return await operations.send(database, settings, action(), message)

    _print_receipt(run(work()), as_json=as_json)


def _print_receipt(receipt: Receipt, *, as_json: bool) -> None:
    event_id, message_id = ids.show(ids.EVENT, receipt.event_id), ids.show(ids.MESSAGE, receipt.event_id)
    is_duplicate = isinstance(receipt, Duplicate)
    if as_json:
        show.print_json({"message_id": message_id, "event_id": event_id, "duplicate": is_duplicate})
    else:
        out.print(f"{message_id}{' (a duplicate: it was there already)' if is_duplicate else ''}", markup=False)


def _read_data(data: str) -> bytes:
    if data == "-":
        return sys.stdin.buffer.read()
    if not data.startswith("@"):
        return data.encode()
    try:
        return Path(data[1:]).read_bytes()
    except OSError as error:
        raise Misused(f"cannot read {data[1:]}: {error.strerror}") from None
