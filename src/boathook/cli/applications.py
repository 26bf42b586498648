"""Commands about applications: those whom we send webhooks to."""

from typing import Annotated

import typer

from boathook.cli import show
from boathook.cli.options import Json, Limit, Metadata, Yes, example, read_pairs
from boathook.cli.session import Misused, act, confirm, out, run, session, work
from boathook.cli.show import Column
from boathook.domain import ids
from boathook.domain.endpoints import check_uid
from boathook.journal.applications import Application, Window

applications = typer.Typer(no_args_is_help=True, help="Whom we send webhooks to.")

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
