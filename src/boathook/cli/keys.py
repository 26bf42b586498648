"""Commands about the API's keys."""

import re
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final

import typer

from boathook.cli import output
from boathook.cli.commands import example
from boathook.cli.context import UsageError, cli_context, out, run, work
from boathook.cli.options import Json
from boathook.cli.output import Column
from boathook.domain import ids
from boathook.domain.model import DEFAULT_ORGANIZATION

if TYPE_CHECKING:
    from boathook.service.keys import ApiKey

keys = typer.Typer(no_args_is_help=True, help="API keys.")

_UNITS: Final = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


class Scope(StrEnum):
    """Scope of a key."""

    ORGANIZATION = "organization"
    APPLICATION = "application"


def read_lifetime(text: str) -> timedelta:
    """Read a length of time such as 30d, 12h or 45m."""
    found = re.fullmatch(r"([1-9][0-9]{0,4})([mhdw])", text)
    if found is None:
        raise typer.BadParameter(f"invalid duration {text!r}; use a number and m, h, d or w, such as 30d")
    return timedelta(**{_UNITS[found[2]]: int(found[1])})


Organization = Annotated[str, typer.Option(help="Organization of the key.")]


def _scope(key: "ApiKey") -> str:
    return Scope.ORGANIZATION if key.application_id is None else Scope.APPLICATION


def _application(key: "ApiKey") -> str | None:
    return None if key.application_id is None else ids.show(ids.APPLICATION, key.application_id)


_COLUMNS = (
    Column("id", lambda key: key.shown_id, is_whole=True),
    Column("name", lambda key: key.name, is_optional=True),
    Column("scope", _scope),
    Column("organization", lambda key: key.organization),
    Column("application", _application, is_optional=True),
    Column("age", lambda key: output.format_age(key.created_at)),
    Column("expires", lambda key: output.moment(key.expires_at), is_optional=True),
    Column("revoked", lambda key: output.moment(key.revoked_at), is_optional=True),
)


@keys.command("create", epilog=example(
    "boathook keys create --scope organization --name backend",
    "boathook keys create --scope application --application acme --expires 30d --json",
))  # fmt: skip
def create_key(
    ctx: typer.Context,
    scope: Annotated[Scope, typer.Option(help="The whole organization or one application.")],
    organization: Organization = DEFAULT_ORGANIZATION,
    application: Annotated[str | None, typer.Option(help="The application's id or uid.")] = None,
    name: Annotated[str, typer.Option(help="Label.")] = "",
    expires: Annotated[
        timedelta | None,
        typer.Option(parser=read_lifetime, metavar="LENGTH", help="Lifetime: 30d, 12h. Default: never expires."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Create a key and print its token once; the token is not stored."""
    from boathook.service import applications
    from boathook.service import keys as actions

    if (scope is Scope.APPLICATION) is not (application is not None):
        raise UsageError("--application is required with --scope application, and only allowed with it")

    async def make() -> actions.CreatedKey:
        async with work(cli_context(ctx).settings(), organization) as one:
            found = await applications.get(one, application) if application is not None else None
            return await actions.create(one, application=found, name=name, lifetime=expires)

    made = run(make())
    if as_json:
        output.print_json({"token": made.token, **_plain(made.key)})
    else:
        out.print(made.token, markup=False, soft_wrap=True)


@keys.command("list", epilog=example("boathook keys list --json"))
def list_keys(
    ctx: typer.Context,
    organization: Annotated[str | None, typer.Option(help="Only of this organization.")] = None,
    portal: Annotated[bool, typer.Option("--portal", help="Include portal keys.")] = False,
    as_json: Json = False,
) -> None:
    """List keys, newest first."""
    from boathook.service import keys as actions

    async def read() -> "list[ApiKey]":
        async with work(cli_context(ctx).settings()) as one:
            return await actions.list_all(one, organization, with_portal=portal)

    output.print_rows(run(read()), _COLUMNS, as_json=as_json, plain=_plain, after="")


@keys.command("revoke", epilog=example("boathook keys revoke key_01h455vb4pex5vsknk084sn02q4"))
def revoke_key(ctx: typer.Context, key: Annotated[str, typer.Argument(metavar="KEY", help="Key id.")]) -> None:
    """Revoke a key immediately."""
    from boathook.service import keys as actions

    try:
        identifier = ids.read(ids.API_KEY, key)
    except ValueError as error:
        raise UsageError(str(error)) from None

    async def end() -> None:
        async with work(cli_context(ctx).settings()) as one:
            await actions.revoke(one, identifier)

    run(end())
    out.print(f"{key} revoked", markup=False)


def _plain(key: "ApiKey") -> dict[str, object]:
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
