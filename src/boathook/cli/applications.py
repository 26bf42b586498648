"""Commands about applications: those whom we send webhooks to."""

from datetime import timedelta
from typing import Annotated, Final

import typer

from boathook.cli import show
from boathook.cli.commands import example
from boathook.cli.keys import read_lifetime
from boathook.cli.options import Json, Limit, Metadata, Yes, read_pairs
from boathook.cli.session import Misused, act, confirm, out, run, session, work
from boathook.cli.show import Column
from boathook.domain import ids
from boathook.domain.endpoints import check_uid
from boathook.journal.applications import Application, Window

applications = typer.Typer(no_args_is_help=True, help="Whom we send webhooks to.")

_DAY: Final = timedelta(days=1)
_LONGEST: Final = timedelta(days=7)
"""The API's bound of a link's life."""
Reference = Annotated[str, typer.Argument(metavar="APPLICATION", help="Its id or uid.")]
_COLUMNS = (
    Column("id", lambda one: one.shown_id, is_whole=True),
    Column("uid", lambda one: one.uid, is_optional=True),
    Column("name", lambda one: one.name),
    Column("rate", lambda one: one.throttle_rate, is_optional=True),
    Column("age", lambda one: show.age(one.created_at)),
)


@applications.command("create", epilog=example("boathook applications create 'Acme Corp' --uid acme"))
def create_application(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="What people call it.")],
    uid: Annotated[str | None, typer.Option(help="Your own word for it, to be used in place of the id.")] = None,
    rate: Annotated[
        int | None, typer.Option(min=1, max=65_535, help="Most messages a second to each endpoint without a rate.")
    ] = None,
    metadata: Metadata = None,
    as_json: Json = False,
) -> None:
    """Make an application, and print its id."""
    from boathook.admin import applications as actions

    _check(name, uid)
    new = actions.NewApplication(
        name=name, uid=uid, throttle_rate=rate, metadata=read_pairs("--metadata", metadata or [], "=")
    )

    async def make() -> Application:
        async with work(session(ctx).settings()) as one:
            return await actions.create(one, new)

    made = run(make())
    if as_json:
        show.print_json(_plain(made))
    else:
        out.print(made.shown_id, markup=False)


@applications.command("list", epilog=example("boathook applications list --json"))
def list_applications(
    ctx: typer.Context,
    limit: Limit = 50,
    after: Annotated[str | None, typer.Option(help="The id or uid of the last row of the page before.")] = None,
    as_json: Json = False,
) -> None:
    """List applications, oldest first."""
    from boathook.admin import applications as actions

    async def read() -> list[Application]:
        async with work(session(ctx).settings()) as one:
            place = (await actions.get(one, after)).id if after else None
            return await show.gather(lambda at, most: actions.list_some(one, Window(at, True, most)), place, limit)

    rows = run(read())
    more = rows[-1].shown_id if rows and len(rows) == limit else ""
    show.print_rows(rows, _COLUMNS, as_json=as_json, plain=_plain, after=more)


@applications.command("show", epilog=example("boathook applications show acme"))
def show_application(ctx: typer.Context, application: Reference, as_json: Json = False) -> None:
    """Show one application."""
    from boathook.admin import applications as actions

    found = _plain(act(ctx, lambda one: actions.get(one, application)))
    show.print_one(found, as_json=as_json)


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
        timedelta | None, typer.Option(parser=read_lifetime, metavar="LENGTH", help="When it ends: 12h, 7d. A day.")
    ] = None,
    may: Annotated[
        list[str] | None,
        typer.Option(metavar="CAPABILITY", help="What its holder may do; all, if left out.", show_default=False),
    ] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="Its holder may look, and nothing more.")] = False,
    session_id: Annotated[str | None, typer.Option("--session", help="A name by which it can be ended.")] = None,
    theme: Annotated[str, typer.Option(help="light or dark; as the visitor's system, if left out.")] = "",
    colour: Annotated[str, typer.Option(help="Of buttons and links: six hexadecimal digits.")] = "",
    as_json: Json = False,
) -> None:
    """Print a link by which a customer manages its own endpoints; whoever has it is let in."""
    from boathook.admin import applications as actions
    from boathook.admin import keys, portal

    settings = session(ctx).settings()
    look, capabilities = portal.Look.read(theme, colour.removeprefix("#")), _capabilities(may, read_only=read_only)
    lifetime = expires or _DAY
    if lifetime > _LONGEST:
        raise Misused("--expires: a link is good for 7d at most")

    async def make() -> keys.MadeKey:
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
    address = portal.link(base, made.token, look)
    if as_json:
        show.print_json({"url": address, "token": made.token, "key": made.key.shown_id})
    else:
        out.print(address, markup=False, soft_wrap=True)


def _capabilities(words: list[str] | None, *, read_only: bool) -> list[str] | None:
    from boathook.admin.authorization import Capability

    if read_only and words:
        raise Misused("--read-only or --may, not both")
    unknown = [word for word in words or () if word not in set(Capability)]
    if unknown:
        raise Misused(f"--may: write any of {', '.join(Capability)}, not {unknown[0]!r}")
    return [Capability.VIEW_BASE] if read_only else words


@applications.command("delete", epilog=example("boathook applications delete acme --yes"))
def delete_application(ctx: typer.Context, application: Reference, yes: Yes = False) -> None:
    """Delete an application with its endpoints; what they are still owed is buried. What was sent stays on record."""
    from boathook.admin import applications as actions

    found = act(ctx, lambda one: actions.get(one, application))
    confirm(f"delete the application {found.name!r} ({found.shown_id}) with all its endpoints", yes=yes)
    act(ctx, lambda one: actions.delete(one, found.shown_id))
    out.print(f"{found.shown_id} is deleted", markup=False)


def _plain(application: Application) -> dict[str, object]:
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
        raise Misused("NAME: write at least one letter, in one line")
    try:
        check_uid(uid if uid is not None else "none", ids.APPLICATION)
    except ValueError as error:
        raise Misused(f"--uid: {error}") from None
