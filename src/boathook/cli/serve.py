"""Commands that run boathook and maintain an installation: serve, migrate, doctor, send."""

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec.structs import replace
from rich.text import Text

from boathook.cli import output
from boathook.cli.context import (
    action,
    cli_context,
    err,
    open_database,
    out,
    run,
    startup_progress,
)
from boathook.cli.options import Json, read_bytes, read_pairs
from boathook.config import Settings
from boathook.domain import ids
from boathook.domain.errors import ConfigError, DatabaseUnavailable, DatabaseUrlRejected
from boathook.domain.model import Accepted, Duplicate, Receipt
from boathook.service.elsewhere import noun_of_homes

if TYPE_CHECKING:
    from boathook.service.operating.doctor import Finding


def serve(
    ctx: typer.Context,
    app: Annotated[
        str | None, typer.Option(metavar="MODULE:ATTR", help="Your handlers: module:attribute of the Boathook object.")
    ] = None,
    role: Annotated[
        str | None, typer.Option(help="Roles to run, separated by commas: gateway, worker, keeper.")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Worker processes.")] = None,
    gateways: Annotated[int | None, typer.Option(min=1, help="Gateway processes.")] = None,
    bind: Annotated[str | None, typer.Option(help="Address and port, such as 0.0.0.0:8080.")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65_535, help="Port, overriding the one in server.bind.")
    ] = None,
) -> None:
    """
    Run boathook: the gateway, the workers and the keeper.

    Without database.url it starts an embedded PostgreSQL. SIGTERM and Ctrl-C stop it after the work in progress.
    """
    from boathook import server

    settings = cli_context(ctx).plain_settings(
        server__app=app,
        server__roles=[part.strip() for part in role.split(",") if part.strip()] if role else None,
        server__workers=workers,
        server__gateways=gateways,
        server__bind=bind,
        server__port=port,
    )
    raise typer.Exit(server.serve(settings))


def migrate(
    ctx: typer.Context,
    only_pre: Annotated[
        bool,
        typer.Option(
            "--only-pre", help="Only migrations that are safe while the older version still runs; no app tables."
        ),
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; exit with 1 if migrations are missing.")
    ] = False,
    as_json: Json = False,
) -> None:
    """
    Bring the database's schema up to date, and the tables of the apps that apps.load names; safe to repeat.

    It also prepares what optional packages need, such as the queues of brokers: run it while all brokers run.
    """
    from boathook.config.packages import resolve
    from boathook.server import load_apps, migrations_of
    from boathook.service import database

    settings = cli_context(ctx).plain_settings()
    folders = migrations_of(load_apps(settings))

    async def work() -> list[str]:
        if check:
            return await database.list_pending(settings, folders, progress=startup_progress())
        return await database.migrate(settings, folders, only_pre=only_pre, progress=startup_progress())

    names = run(work())
    preparing = [] if check else [package.prepare for package in settings.packages if package.prepare is not None]
    notes = [note for reference in preparing if (note := run(resolve(reference)(settings))) is not None]
    if as_json:
        output.print_json({"missing" if check else "applied": names})
    else:
        for name in names:
            out.print(f"{'lacks' if check else 'applied'} {name}", markup=False)
        if not names:
            out.print("the schema is current")
        for note in notes:
            out.print(note)
    raise typer.Exit(1 if check and names else 0)


def check_up(ctx: typer.Context, as_json: Json = False) -> None:
    """Diagnose the installation: settings, clock, database, disk, sources. Exits with 1 if something must be fixed."""
    from boathook.service.operating import doctor
    from boathook.service.operating.source_list import read_known

    async def work() -> bool:
        settings, migrations, findings = _check_apps(cli_context(ctx).plain_settings())
        findings += await doctor.examine_all(settings, migrations=migrations, progress=startup_progress())
        findings += _check_handlers(settings, (await read_known(settings)).settings)
        _print_findings(findings, as_json=as_json)
        return any(finding.verdict is doctor.CheckStatus.FAIL for finding in findings)

    raise typer.Exit(1 if run(work()) else 0)


def _check_handlers(settings: Settings, with_stored: Settings) -> "list[Finding]":
    """Return findings about the handlers, if there are any: whether they load, and whether their sources exist.

    Args:
        settings: name the handlers.
        with_stored: contain the stored sources too.
    """
    from boathook.service.operating.doctor import CheckStatus, Finding, examine_handlers, examine_loaded

    if not settings.server.app and not settings.apps.load:
        return list(examine_loaded(settings, {}))
    from boathook.server import load_hooks

    try:
        hooks = load_hooks(settings)
    except ConfigError as error:
        return [
            Finding("handlers", CheckStatus.FAIL, str(error), "fix this; boathook does not start without its handlers")
        ]
    routes = [
        route
        for some in hooks.routes(timeout_s=settings.worker.timeout_s, retries=settings.retry_defaults()).values()
        for route in some
    ]
    text = f"{len(hooks.handlers)} loaded, all with a configured source"
    findings = [*examine_loaded(settings, hooks.owners), *examine_handlers(with_stored, routes)]
    return findings or [Finding("handlers", CheckStatus.OK, text)]


def _check_apps(settings: Settings) -> "tuple[Settings, list[tuple[str, Path]], list[Finding]]":
    """Return the settings with the apps' sources, the folders of the apps' migrations, and findings about the apps."""
    if not settings.apps.load:
        return settings, [], []
    from boathook.server import migrations_of, with_apps
    from boathook.service.operating.doctor import CheckStatus, Finding

    try:
        whole, loaded = with_apps(settings)
    except ConfigError as error:
        return (
            settings,
            [],
            [Finding("apps", CheckStatus.FAIL, str(error), "fix it, or remove it from apps.load")],
        )
    names = ", ".join(hook.name for hook in loaded)
    return whole, migrations_of(loaded), [Finding("apps", CheckStatus.OK, f"{names} loaded")]


def _print_findings(findings: "list[Finding]", *, as_json: bool) -> None:
    width = max(len(finding.check) for finding in findings)
    for finding in findings:
        if as_json:
            output.print_json(finding)
            continue
        line = output.text(finding.verdict) + Text(
            f"{'':{5 - len(finding.verdict)}}{finding.check:<{width}}  ", style="bold"
        )
        out.print(line + output.text(finding.found), soft_wrap=True)
        if finding.fix:
            out.print(Text(f"{'':{width + 7}}→ {finding.fix}", style="dim"), soft_wrap=True)


def send(
    ctx: typer.Context,
    application: Annotated[str, typer.Option(help="Application: id, its beginning, or uid.")],
    type: Annotated[str, typer.Option(help="Event type, such as invoice.paid.")],
    payload: Annotated[
        str,
        typer.Option("--data", metavar="DATA", help="The payload as JSON; @FILE reads a file, - reads standard input."),
    ] = "{}",
    id: Annotated[
        str | None,
        typer.Option("--id", "--key", metavar="KEY", help="Your own id; messages with the same id are deduplicated."),
    ] = None,
    channels: Annotated[
        list[str] | None,
        typer.Option("--channel", metavar="CHANNEL", help="Channel of the message; repeatable."),
    ] = None,
    tags: Annotated[
        list[str] | None, typer.Option("--tag", metavar="TAG", help="Tag to search by; repeatable.")
    ] = None,
    headers: Annotated[
        list[str] | None,
        typer.Option("--header", metavar="NAME: VALUE", help="Header stored with the message; repeatable."),
    ] = None,
    deliver_at: Annotated[
        datetime | None, typer.Option(parser=output.parse_time, metavar="TIME", help="Deliver after: ISO 8601.")
    ] = None,
    as_json: Json = False,
) -> None:
    """
    Publish one message to the endpoints and handlers of an application.

    While PostgreSQL is unavailable, the message is written into the spool of this host, if a server runs here; its
    application must then be given by its whole id or uid.
    """
    from boathook.domain.messages import Message
    from boathook.service.id_prefixes import complete
    from boathook.service.operating import operations
    from boathook.service.sending.buffered_publisher import send_buffered
    from boathook.service.unit_of_work import new_id

    message = Message(
        application=application,
        type=type,
        payload=_read_payload(payload),
        content_type="application/json",
        id=id,
        channels=channels or (),
        tags=tags or (),
        headers=read_pairs("--header", headers or [], ":"),
        deliver_at=deliver_at,
        event_id=new_id(),
    )
    settings = cli_context(ctx).settings()

    async def work() -> Receipt:
        try:
            async with open_database(settings) as database:
                whole = await complete(database, ids.APPLICATION, application)
                return await operations.send(database, settings, action(), replace(message, application=whole))
        except DatabaseUrlRejected:
            raise
        except DatabaseUnavailable as error:
            # It may have been stored. The message keeps its id, so it is not stored twice.
            receipt = await send_buffered(settings, message)
            if receipt is None:
                raise
            err.print(f"PostgreSQL is unavailable ({error}); the message waits in this host's spool", markup=False)
            return receipt

    _print_receipt(run(work()), noun_of_homes(settings), as_json=as_json)


def _print_receipt(receipt: Receipt, noun: str, *, as_json: bool) -> None:
    event_id, message_id = ids.show(ids.EVENT, receipt.event_id), ids.show(ids.MESSAGE, receipt.event_id)
    is_duplicate = isinstance(receipt, Duplicate)
    home = receipt.home if isinstance(receipt, Accepted) else None
    if as_json:
        is_spooled = isinstance(receipt, Accepted) and receipt.is_spooled
        more: dict[str, object] = ({"spooled": True} if is_spooled else {}) | ({noun: home} if home else {})
        output.print_json({"message_id": message_id, "event_id": event_id, "duplicate": is_duplicate, **more})
    else:
        note = " (duplicate)" if is_duplicate else f" (is passed on to the {noun} {home})" if home else ""
        out.print(f"{message_id}{note}", markup=False)


def _read_payload(text: str) -> bytes:
    if text != "-" and not text.startswith("@"):
        return text.encode()
    return read_bytes(text.removeprefix("@"))
