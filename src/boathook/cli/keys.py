"""Commands about the API's keys."""

import re
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Final

import typer

from boathook.cli import show
from boathook.cli.commands import example
from boathook.cli.options import Json
from boathook.cli.session import Misused, out, run, session, work
from boathook.cli.show import Column
from boathook.domain import ids
from boathook.domain.model import DEFAULT_ORGANIZATION
from boathook.journal.api_keys import Key

keys = typer.Typer(no_args_is_help=True, help="Who may use the API.")

_UNITS: Final = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


class Scope(StrEnum):
    """What a key is for."""

    ORGANIZATION = "organization"
    APPLICATION = "application"


def read_lifetime(text: str) -> timedelta:
    """Read a length of time such as 30d, 12h or 45m."""
    found = re.fullmatch(r"([1-9][0-9]{0,4})([mhdw])", text)
    if found is None:
        raise typer.BadParameter(f"write a number and m, h, d or w, such as 30d; not {text!r}")
    return timedelta(**{_UNITS[found[2]]: int(found[1])})


Organization = Annotated[str, typer.Option(help="Whose key; one deployment may have several.")]


def _scope(key: Key) -> str:
    return Scope.ORGANIZATION if key.application_id is None else Scope.APPLICATION


def _application(key: Key) -> str | None:
    return None if key.application_id is None else ids.show(ids.APPLICATION, key.application_id)


_COLUMNS = (
    Column("id", lambda key: key.shown_id, is_whole=True),
    Column("name", lambda key: key.name, is_optional=True),
    Column("scope", _scope),
    Column("organization", lambda key: key.organization),
    Column("application", _application, is_optional=True),
    Column("age", lambda key: show.age(key.created_at)),
    Column("expires", lambda key: show.moment(key.expires_at), is_optional=True),
    Column("revoked", lambda key: show.moment(key.revoked_at), is_optional=True),
)


@keys.command("create", epilog=example(
    "boathook keys create --scope organization --name backend",
    "boathook keys create --scope application --application acme --expires 30d --json",
))  # fmt: skip
def create_key(
    ctx: typer.Context,
    scope: Annotated[Scope, typer.Option(help="For all of an organization, or for one application only.")],
    organization: Organization = DEFAULT_ORGANIZATION,
    application: Annotated[str | None, typer.Option(help="The application's id or uid.")] = None,
    name: Annotated[str, typer.Option(help="What it is for, to know it again.")] = "",
    expires: Annotated[
        timedelta | None, typer.Option(parser=read_lifetime, metavar="LENGTH", help="When it ends: 30d, 12h. Never.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Make a key and print its token, which is not kept and cannot be shown again."""
    from boathook.admin import applications
    from boathook.admin import keys as actions

    if (scope is Scope.APPLICATION) is not (application is not None):
        raise Misused("a key of scope application needs --application, and no other takes it")

    async def make() -> actions.MadeKey:
        async with work(session(ctx).settings(), organization) as one:
            found = await applications.get(one, application) if application is not None else None
            return await actions.create(one, application=found, name=name, lifetime=expires)

    made = run(make())
    if as_json:
        show.print_json({"token": made.token, **_plain(made.key)})
    else:
        out.print(made.token, markup=False, soft_wrap=True)


@keys.command("list", epilog=example("boathook keys list --json"))
def list_keys(
    ctx: typer.Context,
    organization: Annotated[str | None, typer.Option(help="Only of this organization.")] = None,
    portal: Annotated[bool, typer.Option("--portal", help="Show those of the portal's visitors too.")] = False,
    as_json: Json = False,
) -> None:
    """List keys, the youngest first; their tokens are not known."""
    from boathook.admin import keys as actions

    async def read() -> list[Key]:
        async with work(session(ctx).settings()) as one:
            return await actions.list_all(one, organization, with_portal=portal)

    show.print_rows(run(read()), _COLUMNS, as_json=as_json, plain=_plain, after="")


@keys.command("revoke", epilog=example("boathook keys revoke key_01h455vb4pex5vsknk084sn02q4"))
def revoke_key(ctx: typer.Context, key: Annotated[str, typer.Argument(metavar="KEY", help="Its id.")]) -> None:
    """End a key at once."""
    from boathook.admin import keys as actions

    try:
        identifier = ids.read(ids.API_KEY, key)
    except ValueError as error:
        raise Misused(str(error)) from None

    async def end() -> None:
        async with work(session(ctx).settings()) as one:
            await actions.revoke(one, identifier)

    run(end())
    out.print(f"{key} is revoked", markup=False)


def _plain(key: Key) -> dict[str, object]:
    return {
        "id": key.shown_id,
        "name": key.name,
        "scope": _scope(key),
        "organization": key.organization,
        "application": _application(key),
        "is_portal": key.is_portal,
        "created_at": key.created_at,
        "expires_at": key.expires_at,
        "revoked_at": key.revoked_at,
    }
