"""Commands for applications: the tenants that messages are sent to."""

from datetime import timedelta
from typing import Annotated, Final

import typer

from boathook.cli import output
from boathook.cli.commands import example
from boathook.cli.context import UsageError, cli_context, run_in_transaction
from boathook.cli.derived import add
from boathook.cli.options import Json, lifetime_option
from boathook.cli.output import ID, Column, View
from boathook.service.access import keys, portal_sessions
from boathook.service.access.authorization import Capability
from boathook.service.catalogue import applications as operations
from boathook.service.catalogue import messages
from boathook.service.gateway_address import gateway_url
from boathook.service.sending import applications as actions
from boathook.service.unit_of_work import UnitOfWork

applications = typer.Typer(no_args_is_help=True, help="Applications: the tenants that you send webhooks to.")

_DAY: Final = timedelta(days=1)
Reference = Annotated[str, typer.Argument(metavar="APPLICATION", help="Id, the beginning of it, or uid.")]
_AFTER: Final = Annotated[str | None, typer.Option(help="Continue after this id, its beginning, or uid.")]
_VIEW: Final = View(
    (
        ID,
        Column("uid", is_optional=True),
        Column("name"),
        Column("rate", "throttle_rate", is_optional=True),
        Column("age", output.age_of("created_at")),
    ),
    ("id", "uid", "name", "throttle_rate", "metadata", "created_at", "updated_at"),
)


add(applications, operations.create, "create", view=_VIEW)
add(applications, operations.list_applications, "list", view=_VIEW, options={"after": (_AFTER, None)})
add(applications, operations.get, "show", view=_VIEW)
add(applications, operations.update, "update", view=_VIEW)


@applications.command("portal", epilog=example(
    "boathook applications portal acme --expires 12h",
    "boathook applications portal acme --may ViewEndpointSecret --may CreateAttempts --theme dark",
))  # fmt: skip
def make_portal_link(
    ctx: typer.Context,
    application: Reference,
    expires: Annotated[timedelta | None, lifetime_option("Lifetime: 12h, 7d. Default: 1d.")] = None,
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
    settings = cli_context(ctx).settings()
    appearance = portal_sessions.PortalAppearance.read(theme, colour.removeprefix("#"))
    capabilities = _capabilities(may, read_only=read_only)
    lifetime = expires or _DAY

    async def make(work: UnitOfWork) -> keys.CreatedKey:
        owner = await actions.find(work, application)
        return await keys.create_for_portal(
            work, owner, lifetime=lifetime, session_id=session_id, capabilities=capabilities
        )

    link = run_in_transaction(ctx, make)
    base = settings.server.public_url or gateway_url(settings)
    address = portal_sessions.portal_link(base, link.token, appearance)
    output.print_done({"url": address, "token": link.token, "key": link.key.shown_id}, address, as_json=as_json)


def _capabilities(words: list[str] | None, *, read_only: bool) -> list[str] | None:
    if read_only and words:
        raise UsageError("give --read-only or --may, not both")
    unknown = [word for word in words or () if word not in set(Capability)]
    if unknown:
        raise UsageError(f"--may: unknown capability {unknown[0]!r}; use {', '.join(Capability)}")
    return [Capability.VIEW_BASE] if read_only else words


add(applications, operations.delete, "delete", view=_VIEW, subject=operations.get)
add(applications, messages.expunge, "expunge")
