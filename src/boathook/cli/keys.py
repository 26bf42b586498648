"""Commands for API keys."""

from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Final

import typer

from boathook.cli import output
from boathook.cli.commands import example
from boathook.cli.context import UsageError, run_in_transaction
from boathook.cli.options import Json, lifetime_option
from boathook.cli.output import ID, Column, View
from boathook.domain import ids
from boathook.domain.model import DEFAULT_ORGANIZATION, MountRole
from boathook.service import id_prefixes
from boathook.service.access import keys as actions
from boathook.service.access.keys import ApiKey
from boathook.service.sending import applications
from boathook.service.unit_of_work import UnitOfWork

keys = typer.Typer(no_args_is_help=True, help="API keys.")


class Scope(StrEnum):
    """Scope of a key."""

    ORGANIZATION = "organization"
    APPLICATION = "application"
    MOUNT = "mount"


def _scope(key: ApiKey) -> str:
    if key.mount is not None:
        return Scope.MOUNT
    return Scope.ORGANIZATION if key.application_id is None else Scope.APPLICATION


def _application(key: ApiKey) -> str | None:
    return None if key.application_id is None else ids.show(ids.APPLICATION, key.application_id)


_VIEW: Final = View(
    (
        ID,
        Column("name", is_optional=True),
        Column("scope", _scope),
        Column("organization"),
        Column("application", _application, is_optional=True),
        Column("mount", is_optional=True),
        Column("role", lambda key: key.mount_role, is_optional=True),
        Column("age", output.age_of("created_at")),
        Column("expires", output.moment_of("expires_at"), is_optional=True),
        Column("revoked", output.moment_of("revoked_at"), is_optional=True),
    ),
    (
        "id", "name", ("scope", _scope), "organization", ("application", _application), "mount",
        ("role", lambda key: key.mount_role), "is_portal", "created_at", "expires_at", "revoked_at",
    ),
)  # fmt: skip


@keys.command("create", epilog=example(
    "boathook keys create --scope organization --name backend",
    "boathook keys create --scope application --application acme --expires 30d --json",
    "boathook keys create --scope mount --mount /api/rentprog --role reader --expires 30d",
))  # fmt: skip
def create_key(
    ctx: typer.Context,
    scope: Annotated[Scope, typer.Option(help="The whole organization, one application, or one app's path.")],
    organization: Annotated[str, typer.Option(help="Organization of the key.")] = DEFAULT_ORGANIZATION,
    application: Annotated[str | None, typer.Option(help="The application's id or uid.")] = None,
    mount: Annotated[str | None, typer.Option(help="The app's mounted path: /api/rentprog.")] = None,
    role: Annotated[MountRole | None, typer.Option(help="With --scope mount: may read, or also change.")] = None,
    name: Annotated[str | None, typer.Option(help="Label.")] = None,
    expires: Annotated[timedelta | None, lifetime_option("Lifetime: 30d, 12h. Default: never expires.")] = None,
    as_json: Json = False,
) -> None:
    """Create a key and print its token once; the token is not stored."""
    if (scope is Scope.APPLICATION) is not (application is not None):
        raise UsageError("--application is required with --scope application, and only allowed with it")
    is_for_mount = scope is Scope.MOUNT
    if is_for_mount is not (mount is not None) or is_for_mount is not (role is not None):
        raise UsageError("--mount and --role are required with --scope mount, and only allowed with it")

    async def make(work: UnitOfWork) -> actions.CreatedKey:
        found = None if application is None else await applications.find(work, application)
        return await actions.create(work, application=found, mount=mount, role=role, name=name, lifetime=expires)

    made = run_in_transaction(ctx, make, organization)
    output.print_done({"token": made.token, **_VIEW.plain(made.key)}, made.token, as_json=as_json)


@keys.command("list", epilog=example("boathook keys list --json"))
def list_keys(
    ctx: typer.Context,
    organization: Annotated[str | None, typer.Option(help="Only of this organization.")] = None,
    portal: Annotated[bool, typer.Option("--portal", help="Include portal keys.")] = False,
    as_json: Json = False,
) -> None:
    """List keys, newest first."""
    found = run_in_transaction(ctx, lambda work: actions.list_all(work, organization, with_portal=portal))
    _VIEW.print_rows(found, as_json=as_json)


@keys.command("revoke", epilog=example("boathook keys revoke key_01h455vb4pex5vsknk084sn02q4"))
def revoke_key(
    ctx: typer.Context,
    key: Annotated[str, typer.Argument(metavar="KEY", help="Key id, or the beginning of it.")],
    as_json: Json = False,
) -> None:
    """Revoke a key immediately."""

    async def revoke(work: UnitOfWork) -> str:
        (identifier,) = await id_prefixes.find_ids(work.connection, ids.API_KEY, [key])
        await actions.revoke(work, identifier)
        return ids.show(ids.API_KEY, identifier)

    revoked = run_in_transaction(ctx, revoke)
    output.print_done({"id": revoked, "revoked": True}, f"{revoked} revoked", as_json=as_json)
