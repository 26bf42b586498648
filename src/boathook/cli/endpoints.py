"""Commands about endpoints: where an application's messages go, how, and signed with what."""

from collections.abc import Awaitable, Callable
from dataclasses import asdict
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from boathook.cli import output
from boathook.cli.commands import example
from boathook.cli.context import (
    UsageError,
    action,
    cli_context,
    confirm,
    err,
    open_app_context,
    out,
    run,
    run_in_transaction,
    work,
)
from boathook.cli.endpoint_options import (
    Auth,
    Channels,
    Concurrency,
    Description,
    Ed25519,
    FilterText,
    Headers,
    OrderBy,
    RateLimit,
    Retry,
    SecretReference,
    Timeout,
    Types,
    Uid,
    read_secret,
    read_values,
)
from boathook.cli.options import Json, Limit, Metadata, Since, Until, Yes, read_pairs
from boathook.cli.output import Column
from boathook.cli.progress import Progress

if TYPE_CHECKING:
    from boathook.service.applications import Application
    from boathook.service.endpoints import Endpoint

endpoints = typer.Typer(no_args_is_help=True, help="Endpoints: the URLs that receive an application's messages.")

Result = TypeVar("Result")
Owner = Annotated[str, typer.Option("--application", "-a", help="Application id or uid.")]
Reference = Annotated[str, typer.Argument(metavar="ENDPOINT", help="Id or uid.")]

_COLUMNS = (
    Column("id", lambda one: one.shown_id, is_whole=True),
    Column("uid", lambda one: one.uid, is_optional=True),
    Column("state", lambda one: f"disabled ({one.disabled_because})" if one.is_disabled else "enabled"),
    Column("types", lambda one: " ".join(one.event_types or ["*"])),
    Column("url", lambda one: one.url),
)


class BacklogChoice(StrEnum):
    """What becomes of messages that waited for a disabled endpoint."""

    SEND = "send"
    CANCEL = "cancel"


@endpoints.command(
    "create",
    epilog=example(
        "boathook endpoints create --application acme --url https://acme.example/hooks --type 'invoice.*'",
        "boathook endpoints create -a acme --url https://acme.example/hooks --retry '5, 60, 3600' --order-by customer",
    ),
)
def create_endpoint(
    ctx: typer.Context, application: Owner,
    url: Annotated[str, typer.Option(help="URL that receives messages.")],
    type: Types = None, channel: Channels = None, filter: FilterText = None, uid: Uid = None,
    description: Description = None, retry: Retry = None, rate: RateLimit = None, concurrency: Concurrency = None,
    timeout: Timeout = None, order_by: OrderBy = None, header: Headers = None, auth: Auth = None,
    metadata: Metadata = None,
    secret: SecretReference = None, ed25519: Ed25519 = False,
    disabled: Annotated[bool, typer.Option("--disabled", help="Create it disabled.")] = False,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Create an endpoint and print its id."""
    from boathook.service import endpoints as actions

    settings = cli_context(ctx).settings()
    signs = read_secret(settings, secret, ed25519)
    values = read_values(
        url=url, event_types=type, channels=channel, filter=filter, uid=uid, description=description, retry=retry,
        throttle_rate=rate, concurrency=concurrency, timeout_s=timeout, order_by=order_by, auth=auth, metadata=metadata,
    )  # fmt: skip
    new = actions.NewEndpoint(**values, is_disabled=disabled)
    headers = read_pairs("--header", header or [], ":")

    async def make() -> "Endpoint":
        async with work(settings) as one:
            owner = await _owner(one, application)
            return await actions.create(one, owner, new, secret=signs, headers=headers)

    made = run(make())
    if as_json:
        output.print_json(_plain(made))
    else:
        out.print(made.shown_id, markup=False)


@endpoints.command("list", epilog=example("boathook endpoints list --application acme --json"))
def list_endpoints(
    ctx: typer.Context, application: Owner, limit: Limit = 50,
    after: Annotated[str | None, typer.Option(help="Continue after this id or uid.")] = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """List an application's endpoints, oldest first."""
    from boathook.service import endpoints as actions
    from boathook.service.applications import PageRequest

    async def read() -> "list[Endpoint]":
        async with work(cli_context(ctx).settings()) as one:
            owner = await _owner(one, application)
            place = (await actions.get(one, owner, after)).id if after else None
            return await output.fetch_rows(
                lambda at, most: actions.list_page(one, owner, PageRequest(at, True, most)), place, limit
            )

    rows = run(read())
    more = rows[-1].shown_id if rows and len(rows) == limit else ""
    output.print_rows(rows, _COLUMNS, as_json=as_json, plain=_plain, after=more)


@endpoints.command("show", epilog=example("boathook endpoints show --application acme ep_01h455vb4pex5vsknk084sn02q4"))
def show_endpoint(ctx: typer.Context, endpoint: Reference, application: Owner, as_json: Json = False) -> None:
    """Show one endpoint. Secrets, values of headers and credentials are not shown."""
    from boathook.service import endpoints as actions

    found = _plain(_act(ctx, application, lambda one, owner: actions.get(one, owner, endpoint)))
    output.print_one(found, as_json=as_json)


@endpoints.command(
    "update",
    epilog=example(
        "boathook endpoints update -a acme ep_01h455vb4pex5vsknk084sn02q4 --type 'invoice.*' --type order.paid",
        "boathook endpoints update -a acme ep_01h455vb4pex5vsknk084sn02q4 --rate 0 --filter ''",
    ),
)
def update_endpoint(
    ctx: typer.Context, endpoint: Reference, application: Owner,
    url: Annotated[str | None, typer.Option(help="URL that receives messages.")] = None,
    type: Types = None, channel: Channels = None, filter: FilterText = None, uid: Uid = None,
    description: Description = None, retry: Retry = None, rate: RateLimit = None, concurrency: Concurrency = None,
    timeout: Timeout = None, order_by: OrderBy = None, auth: Auth = None, metadata: Metadata = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Change the given settings only. An empty text or 0 removes a setting."""
    from boathook.service import endpoints as actions

    values = read_values(
        url=url, event_types=type, channels=channel, filter=filter, uid=uid, description=description, retry=retry,
        throttle_rate=rate, concurrency=concurrency, timeout_s=timeout, order_by=order_by, auth=auth, metadata=metadata,
    )  # fmt: skip
    if not values:
        raise UsageError("give a setting to change, such as --type or --url")
    saved = _act(ctx, application, lambda one, owner: actions.update(one, owner, endpoint, values))
    if as_json:
        output.print_json(_plain(saved))
    else:
        out.print(f"{saved.shown_id} updated", markup=False)


@endpoints.command(
    "enable", epilog=example("boathook endpoints enable -a acme ep_01h455vb4pex5vsknk084sn02q4 --backlog cancel")
)
def enable_endpoint(
    ctx: typer.Context, endpoint: Reference, application: Owner,
    backlog: Annotated[BacklogChoice, typer.Option(help="What happens to pending deliveries.")] = BacklogChoice.SEND,
) -> None:  # fmt: skip
    """Enable an endpoint and reset its failure count."""
    from boathook.service import endpoints as actions

    policy = actions.Backlog(str(backlog))
    saved = _act(
        ctx,
        application,
        lambda one, owner: actions.update(one, owner, endpoint, {"is_disabled": False}, backlog=policy),
    )
    out.print(f"{saved.shown_id} enabled", markup=False)


@endpoints.command("disable", epilog=example("boathook endpoints disable -a acme ep_01h455vb4pex5vsknk084sn02q4"))
def disable_endpoint(ctx: typer.Context, endpoint: Reference, application: Owner) -> None:
    """Disable an endpoint; its pending deliveries are kept."""
    from boathook.service import endpoints as actions

    saved = _act(ctx, application, lambda one, owner: actions.update(one, owner, endpoint, {"is_disabled": True}))
    out.print(f"{saved.shown_id} disabled", markup=False)


@endpoints.command("secret", epilog=example("boathook endpoints secret -a acme ep_01h455vb4pex5vsknk084sn02q4"))
def show_secret(ctx: typer.Context, endpoint: Reference, application: Owner, as_json: Json = False) -> None:
    """Print the verification secret or public key of an endpoint. The access is recorded in the audit log."""
    from boathook.service import endpoint_secrets

    _print_key(_act(ctx, application, lambda one, owner: endpoint_secrets.reveal_secret(one, owner, endpoint)), as_json)


@endpoints.command(
    "rotate-secret",
    epilog=example("boathook endpoints rotate-secret -a acme ep_01h455vb4pex5vsknk084sn02q4 --grace 172800"),
)
def rotate_secret(
    ctx: typer.Context, endpoint: Reference, application: Owner,
    secret: SecretReference = None, ed25519: Ed25519 = False,
    grace: Annotated[
        int, typer.Option(min=0, max=604_800, help="Seconds that the old secret stays valid.")
    ] = 86_400,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Rotate the signing secret and print the new verification secret. The old one stays valid for a while."""
    from boathook.service import endpoint_secrets

    signs = read_secret(cli_context(ctx).settings(), secret, ed25519)
    pause = timedelta(seconds=grace)
    key = _act(
        ctx,
        application,
        lambda one, owner: endpoint_secrets.rotate_secret(one, owner, endpoint, secret=signs, grace=pause),
    )
    _print_key(key, as_json)


@endpoints.command(
    "headers", epilog=example("boathook endpoints headers -a acme ep_01h455vb4pex5vsknk084sn02q4 --header 'X-Team: b'")
)
def change_headers(
    ctx: typer.Context, endpoint: Reference, application: Owner, header: Headers = None,
    remove: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Header to remove.")] = None,
) -> None:  # fmt: skip
    """Show, set or remove the headers of an endpoint."""
    from boathook.service import endpoint_secrets

    given = read_pairs("--header", header or [], ":")

    async def change(one: Any, owner: "Application") -> endpoint_secrets.Headers:
        if given or remove:
            await endpoint_secrets.change_headers(one, owner, endpoint, given, remove or ())
        return await endpoint_secrets.get_headers(one, owner, endpoint)

    found = _act(ctx, application, change)
    for name, value in {**found.shown, **dict.fromkeys(found.sensitive, "(hidden)")}.items():
        out.print(output.text(f"{name}: {value}"), soft_wrap=True)


@endpoints.command("test", epilog=example("boathook endpoints test -a acme ep_01h455vb4pex5vsknk084sn02q4"))
def try_endpoint(
    ctx: typer.Context, endpoint: Reference, application: Owner,
    type: Annotated[str, typer.Option(help="Event type whose example is sent; svix.ping needs none.")] = "svix.ping",
    as_json: Json = False,
) -> None:  # fmt: skip
    """Send a test message to one endpoint and print the message id."""
    from boathook.service import messages

    sent = _act(ctx, application, lambda one, owner: messages.send_example(one, owner, endpoint, type))
    if as_json:
        output.print_json({"id": sent.shown_id, "type": type})
    else:
        out.print(sent.shown_id, markup=False)


@endpoints.command(
    "stats", epilog=example("boathook endpoints stats -a acme ep_01h455vb4pex5vsknk084sn02q4 --since 7d")
)
def show_stats(
    ctx: typer.Context, endpoint: Reference, application: Owner, since: Since = None, until: Until = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Count an endpoint's attempts and pending deliveries, by default of the last 28 days."""
    from boathook.service import attempts

    counts = asdict(_act(ctx, application, lambda one, owner: attempts.count(one, owner, endpoint, since, until)))
    if as_json:
        output.print_json(counts)
    else:
        output.print_fields({name: str(number) for name, number in counts.items()})


@endpoints.command("reencrypt", epilog=example("boathook endpoints reencrypt"))
def reencrypt(ctx: typer.Context, as_json: Json = False) -> None:
    """
    Encrypt all secrets, headers and credentials with the first of outbound.encryption_keys.

    Exits with 1 if one cannot be decrypted with any of them; it stays as it is.
    """
    from boathook.service import secret_encryption

    settings = cli_context(ctx).settings()

    async def do() -> secret_encryption.EncryptionReport:
        async with open_app_context(settings) as lent:
            with Progress("encrypting") as report:
                return await secret_encryption.reencrypt(lent.database, lent.secret_box, action(), report)

    found = run(do())
    unreadable = sum(found.unreadable.values())
    if as_json:
        output.print_json({"sealed": found.number, "encrypted_anew": found.old, "unreadable": unreadable})
    else:
        out.print(f"{found.old} of {found.number} re-encrypted, {unreadable} cannot be decrypted")
    for reason in found.unreadable:
        err.print(output.text(reason), soft_wrap=True)
    if unreadable:
        raise typer.Exit(1)


@endpoints.command("delete", epilog=example("boathook endpoints delete -a acme ep_01h455vb4pex5vsknk084sn02q4 --yes"))
def delete_endpoint(ctx: typer.Context, endpoint: Reference, application: Owner, yes: Yes = False) -> None:
    """Delete an endpoint; its pending deliveries become dead letters. Delivery history is kept."""
    from boathook.service import endpoints as actions

    found = _act(ctx, application, lambda one, owner: actions.get(one, owner, endpoint))
    confirm(f"delete the endpoint {found.shown_id} at {found.url}", yes=yes)
    _act(ctx, application, lambda one, owner: actions.delete(one, owner, found.shown_id))
    out.print(f"{found.shown_id} deleted", markup=False)


def _print_key(key: str, as_json: bool) -> None:
    if as_json:
        output.print_json({"key": key})
    else:
        out.print(output.text(key), soft_wrap=True)


async def _owner(one: Any, reference: str) -> "Application":
    from boathook.service import applications

    return await applications.get(one, reference)


def _act(ctx: typer.Context, application: str, change: "Callable[[Any, Application], Awaitable[Result]]") -> Result:
    """Do something about an application's endpoint in one transaction."""

    async def do(one: Any) -> Result:
        return await change(one, await _owner(one, application))

    return run_in_transaction(ctx, do)


def _plain(endpoint: "Endpoint") -> dict[str, Any]:
    return {
        "id": endpoint.shown_id,
        "uid": endpoint.uid,
        "url": endpoint.url,
        "description": endpoint.description,
        "enabled": not endpoint.is_disabled,
        "disabled_because": endpoint.disabled_because,
        "disabled_at": endpoint.disabled_at,
        "event_types": endpoint.event_types,
        "channels": endpoint.channels,
        "filter": endpoint.filter,
        "order_by": endpoint.order_by,
        "rate": endpoint.throttle_rate,
        "concurrency": endpoint.concurrency,
        "retry": endpoint.retry_name or (list(endpoint.retry.delays_s or ()) if endpoint.retry else None),
        "timeout_s": endpoint.timeout_s,
        "headers": endpoint.sealed_headers is not None,
        "auth": endpoint.sealed_auth is not None,
        "metadata": endpoint.metadata,
        "created_at": endpoint.created_at,
        "updated_at": endpoint.updated_at,
    }
