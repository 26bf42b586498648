"""Commands for endpoints: their URLs, delivery settings, secrets and headers."""

from collections.abc import Awaitable, Callable
from dataclasses import asdict
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Final, TypeVar

import typer

from boathook.cli import endpoint_options as given
from boathook.cli import output
from boathook.cli.commands import example
from boathook.cli.context import (
    UsageError,
    action,
    cli_context,
    confirm,
    err,
    open_app_context,
    run,
    run_in_transaction,
)
from boathook.cli.options import Json, Limit, Metadata, Since, Until, Yes, read_pairs
from boathook.cli.output import ID, Column, Progress, View, say
from boathook.service import applications, attempts, endpoint_secrets, messages
from boathook.service import endpoints as actions
from boathook.service.applications import Application, PageRequest
from boathook.service.endpoints import Endpoint
from boathook.service.unit_of_work import UnitOfWork

endpoints = typer.Typer(no_args_is_help=True, help="Endpoints: the URLs that receive an application's messages.")

Result = TypeVar("Result")
Owner = Annotated[str, typer.Option("--application", "-a", help="Application: id, its beginning, or uid.")]
Reference = Annotated[str, typer.Argument(metavar="ENDPOINT", help="Id, the beginning of it, or uid.")]


def _retry(one: Endpoint) -> object:
    return one.retry_name or (list(one.retry.delays_s or ()) if one.retry else None)


def _state(one: Endpoint) -> str:
    return f"disabled ({one.disabled_because})" if one.is_disabled else "enabled"


_VIEW: Final = View(
    (
        ID,
        Column("uid", is_optional=True),
        Column("state", _state, is_whole=True),
        Column("types", lambda one: " ".join(one.event_types or ["*"])),
        Column("url"),
    ),
    (
        "id", "uid", "url", "description", ("enabled", lambda one: not one.is_disabled), "disabled_because",
        "disabled_at", "event_types", "channels", "filter", "order_by", ("rate", "throttle_rate"), "concurrency",
        ("retry", _retry), "timeout_s", ("headers", lambda one: one.encrypted_headers is not None),
        ("auth", lambda one: one.encrypted_auth is not None), "metadata", "created_at", "updated_at",
    ),
)  # fmt: skip


class BacklogChoice(StrEnum):
    """What happens to the pending messages of a disabled endpoint."""

    SEND = "send"
    CANCEL = "cancel"


@endpoints.command("create", epilog=example(
    "boathook endpoints create --application acme --url https://acme.example/hooks --type 'invoice.*'",
    "boathook endpoints create -a acme --url https://acme.example/hooks --retry '5, 60, 3600' --order-by customer",
))  # fmt: skip
def create_endpoint(
    ctx: typer.Context, application: Owner,
    url: Annotated[str, typer.Option(help="URL that receives messages.")],
    type: given.Types = None, channel: given.Channels = None, filter: given.FilterText = None, uid: given.Uid = None,
    description: given.Description = None, retry: given.Retry = None, rate: given.RateLimit = None,
    concurrency: given.Concurrency = None, timeout: given.Timeout = None, order_by: given.OrderBy = None,
    header: given.Headers = None, auth: given.Auth = None,
    metadata: Metadata = None,
    secret: given.SecretReference = None, ed25519: given.Ed25519 = False,
    disabled: Annotated[bool, typer.Option("--disabled", help="Create it disabled.")] = False,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Create an endpoint and print its id."""
    settings = cli_context(ctx).settings()
    signs = given.read_secret(settings, secret, ed25519)
    values = given.read_values(
        url=url, event_types=type, channels=channel, filter=filter, uid=uid, description=description, retry=retry,
        throttle_rate=rate, concurrency=concurrency, timeout_s=timeout, order_by=order_by, auth=auth, metadata=metadata,
    )  # fmt: skip
    new = actions.NewEndpoint(**values, is_disabled=disabled)
    headers = read_pairs("--header", header or [], ":")

    made = _act(ctx, application, lambda work, owner: actions.create(work, owner, new, secret=signs, headers=headers))
    _VIEW.print_done(made, made.shown_id, as_json=as_json)


@endpoints.command("list", epilog=example("boathook endpoints list --application acme --json"))
def list_endpoints(
    ctx: typer.Context, application: Owner, limit: Limit = 50,
    after: Annotated[str | None, typer.Option(help="Continue after this id, its beginning, or uid.")] = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """List an application's endpoints, oldest first."""

    async def read(work: UnitOfWork, owner: Application) -> None:
        cursor = (await actions.find(work, owner, after)).id if after else None
        pages = output.pages(
            lambda at, most: actions.list_page(work, owner, PageRequest(at, True, most)),
            cursor,
            limit,
            lambda one: one.id,
        )
        await _VIEW.print_pages(pages, limit=limit, as_json=as_json)

    _act(ctx, application, read)


@endpoints.command("show", epilog=example("boathook endpoints show --application acme ep_01h455vb4pex5vsknk084sn02q4"))
def show_endpoint(ctx: typer.Context, endpoint: Reference, application: Owner, as_json: Json = False) -> None:
    """Show one endpoint. Secrets, values of headers and credentials are not shown."""
    found = _act(ctx, application, lambda work, owner: actions.find(work, owner, endpoint))
    _VIEW.print_one(found, as_json=as_json)


@endpoints.command("update", epilog=example(
    "boathook endpoints update -a acme ep_01h455vb4pex5vsknk084sn02q4 --type 'invoice.*' --type order.paid",
    "boathook endpoints update -a acme ep_01h455vb4pex5vsknk084sn02q4 --rate 0 --filter ''",
))  # fmt: skip
def update_endpoint(
    ctx: typer.Context, endpoint: Reference, application: Owner,
    url: Annotated[str | None, typer.Option(help="URL that receives messages.")] = None,
    type: given.Types = None, channel: given.Channels = None, filter: given.FilterText = None, uid: given.Uid = None,
    description: given.Description = None, retry: given.Retry = None, rate: given.RateLimit = None,
    concurrency: given.Concurrency = None, timeout: given.Timeout = None, order_by: given.OrderBy = None,
    auth: given.Auth = None, metadata: Metadata = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Change the given settings only. An empty text or 0 removes a setting."""
    values = given.read_values(
        url=url, event_types=type, channels=channel, filter=filter, uid=uid, description=description, retry=retry,
        throttle_rate=rate, concurrency=concurrency, timeout_s=timeout, order_by=order_by, auth=auth, metadata=metadata,
    )  # fmt: skip
    if not values:
        raise UsageError("give a setting to change, such as --type or --url")
    saved = _act_on(ctx, application, endpoint, lambda work, owner, whole: actions.update(work, owner, whole, values))
    _VIEW.print_done(saved, f"{saved.shown_id} updated", as_json=as_json)


@endpoints.command(
    "enable", epilog=example("boathook endpoints enable -a acme ep_01h455vb4pex5vsknk084sn02q4 --backlog cancel")
)
def enable_endpoint(
    ctx: typer.Context, endpoint: Reference, application: Owner,
    backlog: Annotated[BacklogChoice, typer.Option(help="What happens to pending deliveries.")] = BacklogChoice.SEND,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Enable an endpoint and reset its failure count."""
    policy = actions.Backlog(str(backlog))
    saved = _act_on(
        ctx,
        application,
        endpoint,
        lambda work, owner, whole: actions.update(work, owner, whole, {"is_disabled": False}, backlog=policy),
    )
    _VIEW.print_done(saved, f"{saved.shown_id} enabled", as_json=as_json)


@endpoints.command("disable", epilog=example("boathook endpoints disable -a acme ep_01h455vb4pex5vsknk084sn02q4"))
def disable_endpoint(ctx: typer.Context, endpoint: Reference, application: Owner, as_json: Json = False) -> None:
    """Disable an endpoint; its pending deliveries are kept."""
    saved = _act_on(
        ctx, application, endpoint, lambda work, owner, whole: actions.update(work, owner, whole, {"is_disabled": True})
    )
    _VIEW.print_done(saved, f"{saved.shown_id} disabled", as_json=as_json)


@endpoints.command("secret", epilog=example("boathook endpoints secret -a acme ep_01h455vb4pex5vsknk084sn02q4"))
def show_secret(ctx: typer.Context, endpoint: Reference, application: Owner, as_json: Json = False) -> None:
    """Print the verification secret or public key of an endpoint. The access is recorded in the audit log."""
    key = _act_on(ctx, application, endpoint, endpoint_secrets.reveal_secret)
    output.print_done({"key": key}, key, as_json=as_json)


@endpoints.command(
    "rotate-secret",
    epilog=example("boathook endpoints rotate-secret -a acme ep_01h455vb4pex5vsknk084sn02q4 --grace 172800"),
)
def rotate_secret(
    ctx: typer.Context, endpoint: Reference, application: Owner,
    secret: given.SecretReference = None, ed25519: given.Ed25519 = False,
    grace: Annotated[
        int, typer.Option(min=0, max=604_800, help="Seconds that the old secret stays valid.")
    ] = 86_400,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Rotate the signing secret and print the new verification secret. The old one stays valid for a while."""
    signs = given.read_secret(cli_context(ctx).settings(), secret, ed25519)
    pause = timedelta(seconds=grace)
    key = _act_on(
        ctx,
        application,
        endpoint,
        lambda work, owner, whole: endpoint_secrets.rotate_secret(work, owner, whole, secret=signs, grace=pause),
    )
    output.print_done({"key": key}, key, as_json=as_json)


@endpoints.command(
    "headers", epilog=example("boathook endpoints headers -a acme ep_01h455vb4pex5vsknk084sn02q4 --header 'X-Team: b'")
)
def change_headers(
    ctx: typer.Context, endpoint: Reference, application: Owner, header: given.Headers = None,
    remove: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Header to remove.")] = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Show, set or remove the headers of an endpoint."""
    changed = read_pairs("--header", header or [], ":")

    async def change(work: UnitOfWork, owner: Application, whole: str) -> endpoint_secrets.Headers:
        if changed or remove:
            await endpoint_secrets.change_headers(work, owner, whole, changed, remove or ())
        return await endpoint_secrets.get_headers(work, owner, whole)

    found = _act_on(ctx, application, endpoint, change)
    if as_json:
        output.print_json({"headers": found.shown, "sensitive": found.sensitive})
        return
    for name, value in {**found.shown, **dict.fromkeys(found.sensitive, "(hidden)")}.items():
        say(f"{name}: {value}")


@endpoints.command("test", epilog=example("boathook endpoints test -a acme ep_01h455vb4pex5vsknk084sn02q4"))
def try_endpoint(
    ctx: typer.Context, endpoint: Reference, application: Owner,
    type: Annotated[str, typer.Option(help="Event type whose example is sent; svix.ping needs none.")] = "svix.ping",
    as_json: Json = False,
) -> None:  # fmt: skip
    """Send a test message to one endpoint and print the message id."""
    sent = _act_on(
        ctx, application, endpoint, lambda work, owner, whole: messages.send_example(work, owner, whole, type)
    )
    output.print_done({"id": sent.shown_id, "type": type}, sent.shown_id, as_json=as_json)


@endpoints.command(
    "stats", epilog=example("boathook endpoints stats -a acme ep_01h455vb4pex5vsknk084sn02q4 --since 7d")
)
def show_stats(
    ctx: typer.Context, endpoint: Reference, application: Owner, since: Since = None, until: Until = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Count an endpoint's attempts and pending deliveries, by default of the last 28 days."""
    counts = asdict(
        _act_on(ctx, application, endpoint, lambda work, owner, whole: attempts.count(work, owner, whole, since, until))
    )
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
    settings = cli_context(ctx).settings()

    async def do() -> endpoint_secrets.EncryptionReport:
        async with open_app_context(settings) as app_context:
            with Progress("encrypting") as report:
                return await endpoint_secrets.reencrypt(app_context.database, app_context.secret_box, action(), report)

    found = run(do())
    unreadable = sum(found.unreadable.values())
    output.print_done(
        {"encrypted": found.number, "reencrypted": found.old, "unreadable": unreadable},
        f"{found.old} of {found.number} re-encrypted, {unreadable} cannot be decrypted",
        as_json=as_json,
    )
    for reason in found.unreadable:
        err.print(output.text(reason), soft_wrap=True)
    if unreadable:
        raise typer.Exit(1)


@endpoints.command("delete", epilog=example("boathook endpoints delete -a acme ep_01h455vb4pex5vsknk084sn02q4 --yes"))
def delete_endpoint(
    ctx: typer.Context, endpoint: Reference, application: Owner, yes: Yes = False, as_json: Json = False
) -> None:
    """Delete an endpoint; its pending deliveries become dead letters. Delivery history is kept."""
    found = _act(ctx, application, lambda work, owner: actions.find(work, owner, endpoint))
    confirm(f"delete the endpoint {found.shown_id} at {found.url}", yes=yes)
    _act(ctx, application, lambda work, owner: actions.delete(work, owner, found.shown_id))
    _VIEW.print_done(found, f"{found.shown_id} deleted", as_json=as_json)


def _act(
    ctx: typer.Context, application: str, change: Callable[[UnitOfWork, Application], Awaitable[Result]]
) -> Result:
    """Return the result of *change*, run on an application's endpoints in one transaction."""

    async def do(work: UnitOfWork) -> Result:
        return await change(work, await applications.find(work, application))

    return run_in_transaction(ctx, do)


def _act_on(
    ctx: typer.Context,
    application: str,
    endpoint: str,
    change: Callable[[UnitOfWork, Application, str], Awaitable[Result]],
) -> Result:
    """Return the result of *change*, run on one endpoint, which it gets by its whole id, in one transaction."""

    async def do(work: UnitOfWork, owner: Application) -> Result:
        return await change(work, owner, (await actions.find(work, owner, endpoint)).shown_id)

    return _act(ctx, application, do)
