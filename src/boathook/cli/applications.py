"""Commands about applications: those whom we send webhooks to."""

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Final

import typer

from boathook.cli import output
from boathook.cli.commands import example
from boathook.cli.context import UsageError, cli_context, confirm, out, run, run_in_transaction, work
from boathook.cli.keys import read_lifetime
from boathook.cli.options import Json, Limit, Metadata, Yes, read_pairs
from boathook.cli.output import Column
from boathook.domain import ids
from boathook.domain.endpoints import check_uid

if TYPE_CHECKING:
    from boathook.service.applications import Application

applications = typer.Typer(no_args_is_help=True, help="Applications: the tenants that you send webhooks to.")

_DAY: Final = timedelta(days=1)
_LONGEST: Final = timedelta(days=7)
"""The API's bound of a link's life."""
Reference = Annotated[str, typer.Argument(metavar="APPLICATION", help="Id or uid.")]
_COLUMNS = (
    Column("id", lambda one: one.shown_id, is_whole=True),
    Column("uid", lambda one: one.uid, is_optional=True),
    Column("name", lambda one: one.name),
    Column("rate", lambda one: one.throttle_rate, is_optional=True),
    Column("age", lambda one: output.format_age(one.created_at)),
)


@applications.command("create", epilog=example("boathook applications create 'Acme Corp' --uid acme"))
def create_application(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="Display name.")],
    uid: Annotated[str | None, typer.Option(help="Your own identifier, usable in place of the id.")] = None,
    rate: Annotated[
        int | None,
        typer.Option(min=1, max=65_535, help="Maximum messages per second to each endpoint without its own rate."),
    ] = None,
    metadata: Metadata = None,
    as_json: Json = False,
) -> None:
    """Create an application and print its id."""
    from boathook.service import applications as actions

    _check(name, uid)
    new = actions.NewApplication(
        name=name, uid=uid, throttle_rate=rate, metadata=read_pairs("--metadata", metadata or [], "=")
    )

    async def make() -> "Application":
        async with work(cli_context(ctx).settings()) as one:
            return await actions.create(one, new)

    made = run(make())
    if as_json:
        output.print_json(_plain(made))
    else:
        out.print(made.shown_id, markup=False)


@applications.command("list", epilog=example("boathook applications list --json"))
def list_applications(
    ctx: typer.Context,
    limit: Limit = 50,
    after: Annotated[str | None, typer.Option(help="Continue after this id or uid.")] = None,
    as_json: Json = False,
) -> None:
    """List applications, oldest first."""
    from boathook.service import applications as actions

    async def read() -> "list[Application]":
        async with work(cli_context(ctx).settings()) as one:
            place = (await actions.get(one, after)).id if after else None
            return await output.fetch_rows(
                lambda at, most: actions.list_page(one, actions.PageRequest(at, True, most)), place, limit
            )

    rows = run(read())
    more = rows[-1].shown_id if rows and len(rows) == limit else ""
    output.print_rows(rows, _COLUMNS, as_json=as_json, plain=_plain, after=more)


@applications.command("show", epilog=example("boathook applications show acme"))
def show_application(ctx: typer.Context, application: Reference, as_json: Json = False) -> None:
    """Show one application."""
    from boathook.service import applications as actions

    found = _plain(run_in_transaction(ctx, lambda one: actions.get(one, application)))
    output.print_one(found, as_json=as_json)


@applications.command(
    "portal",
    epilog=example(
        "boathook applications portal acme --expires 12h",
        "boathook applications portal acme --may ViewEndpointSecret --may CreateAttempts --theme dark",
    ),
)
def make_portal_link(
    ctx: typer.Context,
    application: Reference,
    expires: Annotated[
        timedelta | None, typer.Option(parser=read_lifetime, metavar="LENGTH", help="Lifetime: 12h, 7d. Default: 1d.")
    ] = None,
    may: Annotated[
        list[str] | None,
        typer.Option(metavar="CAPABILITY", help="Capabilities of the link; all by default.", show_default=False),
    ] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="Read access only.")] = False,
    session_id: Annotated[str | None, typer.Option("--session", help="A session name, used to revoke it.")] = None,
    theme: Annotated[str, typer.Option(help="light or dark; the system theme by default.")] = "",
    colour: Annotated[str, typer.Option(help="Colour of buttons and links: six hexadecimal digits.")] = "",
    as_json: Json = False,
) -> None:
    """Print a portal link for a customer to manage its endpoints. Anyone with the link can sign in."""
    from boathook.service import applications as actions
    from boathook.service import keys, portal_sessions

    settings = cli_context(ctx).settings()
    look, capabilities = (
        portal_sessions.PortalAppearance.read(theme, colour.removeprefix("#")),
        _capabilities(may, read_only=read_only),
    )
    lifetime = expires or _DAY
    if lifetime > _LONGEST:
        raise UsageError("--expires: at most 7d")

    async def make() -> keys.CreatedKey:
        async with work(settings) as one:
            return await keys.create_for_portal(
                one,
                await actions.get(one, application),
                lifetime=lifetime,
                session_id=session_id,
                capabilities=capabilities,
            )

    made = run(make())
    base = settings.server.public_url or f"http://{settings.server.bind}"
    address = portal_sessions.portal_link(base, made.token, look)
    if as_json:
        output.print_json({"url": address, "token": made.token, "key": made.key.shown_id})
    else:
        out.print(address, markup=False, soft_wrap=True)


def _capabilities(words: list[str] | None, *, read_only: bool) -> list[str] | None:
    from boathook.service.authorization import Capability

    if read_only and words:
        raise UsageError("give --read-only or --may, not both")
    unknown = [word for word in words or () if word not in set(Capability)]
    if unknown:
        raise UsageError(f"--may: unknown capability {unknown[0]!r}; use {', '.join(Capability)}")
    return [Capability.VIEW_BASE] if read_only else words


@applications.command("delete", epilog=example("boathook applications delete acme --yes"))
def delete_application(ctx: typer.Context, application: Reference, yes: Yes = False) -> None:
    """Delete an application and its endpoints; pending deliveries become dead letters. Delivery history is kept."""
    from boathook.service import applications as actions

    found = run_in_transaction(ctx, lambda one: actions.get(one, application))
    confirm(f"delete the application {found.name!r} ({found.shown_id}) with all its endpoints", yes=yes)
    run_in_transaction(ctx, lambda one: actions.delete(one, found.shown_id))
    out.print(f"{found.shown_id} deleted", markup=False)


def _plain(application: "Application") -> dict[str, object]:
    return {
        "id": application.shown_id,
        "uid": application.uid,
        "name": application.name,
        "throttle_rate": application.throttle_rate,
        "metadata": application.metadata,
        "created_at": application.created_at,
        "updated_at": application.updated_at,
    }


def _check(name: str, uid: str | None) -> None:
    if not name.strip() or not name.isprintable():
        raise UsageError("NAME: write at least one letter, on one line")
    try:
        check_uid(uid if uid is not None else "none", ids.APPLICATION)
    except ValueError as error:
        raise UsageError(f"--uid: {error}") from None
