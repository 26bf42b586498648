"""Commands for sources, and for the secrets that operators add to them at runtime."""

import json
import sys
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from msgspec.structs import asdict
from rich.text import Text

from boathook.cli import output
from boathook.cli.commands import example
from boathook.cli.context import (
    UsageError,
    cli_context,
    confirm,
    out,
    run,
    startup_progress,
    warn_once,
)
from boathook.cli.derived import run_operation, runs
from boathook.cli.options import (
    Json,
    Yes,
    complete_providers,
    lifetime_option,
    read_bytes,
    read_pairs,
    with_options,
)
from boathook.cli.output import Column, View
from boathook.config import Settings
from boathook.domain.errors import ConfigError
from boathook.service.catalogue import source_secrets as secret_actions
from boathook.service.catalogue import sources as actions
from boathook.service.fields import Field, Kind
from boathook.service.gateway_address import gateway_url
from boathook.service.receiving import sources as source_views
from boathook.service.receiving.source_fields import COMMON_FIELDS, parse_setting
from boathook.service.receiving.sources import KnownSources
from boathook.service.shown_settings import all_settings

if TYPE_CHECKING:
    from boathook.service.receiving.source_trial import SourceTestStep

sources = typer.Typer(no_args_is_help=True, help="Sources: where requests arrive.")
secrets = typer.Typer(no_args_is_help=True, help="Source secrets added without a restart.")
sources.add_typer(secrets, name="secrets")

Name = Annotated[str, typer.Argument(help="The source's name.")]
SourceName = Annotated[str, typer.Argument(metavar="SOURCE", help="The source's name.")]
SecretId = Annotated[str, typer.Argument(metavar="SECRET", help="Secret id as listed, or the beginning of it.")]

_ANSWERS: Final = {True: "yes", False: "no", None: "unconfirmed"}
_SOURCES: Final = View(
    (
        Column("name"),
        Column("provider"),
        Column("health", lambda row: row["health"] or "unknown", is_whole=True),
        Column("stored", lambda row: "yes" if row["stored"] else "no"),
        Column("proof", lambda row: output.grade(row["grade"]) if row["grade"] else "not ready"),
        Column("secrets"),
        Column("paths", lambda row: " ".join(row["paths"]), may_wrap=True),
    )
)


@sources.command("list", epilog="Example: boathook sources list --json")
def list_sources(ctx: typer.Context, as_json: Json = False) -> None:
    """List the sources: those of boathook.toml and of apps, and those stored in PostgreSQL."""
    known_sources = _read_known(ctx)
    views = known_sources.views()
    _SOURCES.print_rows([_describe(known_sources, view) for view in views], as_json=as_json)
    for view in views:
        if problem := view.stored_problem or (view.is_stored and view.trouble):
            warn_once(f"the stored source {view.name} is not used: {problem}")


@sources.command("show", epilog="Example: boathook sources show stripe")
def show_source(ctx: typer.Context, name: Name, as_json: Json = False) -> None:
    """Show one source, its settings and whether it is ready. Secrets are never shown."""
    known_sources = _read_known(ctx)
    view = known_sources.view(name)
    ready = f"no: {view.trouble}" if view.trouble else "yes"
    row = {
        **all_settings(known_sources.settings)["sources"].get(name, {}),
        **_describe(known_sources, view),
        "ready": ready,
    }
    if view.stored_problem:
        row["stored_source"] = f"not used: {view.stored_problem}"
    if as_json:
        output.print_json(row)
    else:
        row |= {key: _ANSWERS[row[key]] for key in ("signs_time", "signs_id", "retries_keep_id")}
        output.print_fields({key: _joined(value) for key, value in row.items() if value not in (None, [], False, "")})


def _joined(value: object) -> object:
    return " ".join(map(str, value)) if isinstance(value, list) else value


@sources.command("providers", epilog="Example: boathook sources providers --json")
def list_providers(as_json: Json = False) -> None:
    """List the supported providers, what their signature covers, and their documentation.

    Beside the body, a signature may cover the time and the event's id. Without both, a captured request can be sent
    again under another id. Use `hmac` or `token` for other senders. --json adds settings, timeouts and retry schedules.
    """
    recipes = source_views.RECIPES
    widest = max(len(recipe.name) for recipe in recipes)
    for recipe in recipes:
        # Not a table, as truncated or wrapped URLs cannot be copied.
        line = f"{recipe.name:<{widest}}  {recipe.grade.value:<13}  {_signed_parts(recipe):<8}  {recipe.docs}"
        output.print_done(recipe.describe(), line, as_json=as_json)


def _option(field: Field) -> Any:
    """Return the option of a key that every source has."""
    sentence = field.rule.help or f"{field.rule.label}."
    if field.kind is Kind.FLAG:
        return Annotated[bool | None, typer.Option(f"{field.option}/--no-{field.option[2:]}", help=sentence)]
    metavar = {Kind.INTEGER: "NUMBER", Kind.NUMBER: "NUMBER", Kind.OBJECT: "JSON"}.get(field.kind, "TEXT")
    if field.kind is Kind.OBJECT:
        sentence = f"{sentence.removesuffix('.')}; @FILE reads a file."
    kind = list[str] | None if field.is_list else str | None
    return Annotated[kind, typer.Option(field.option, metavar=metavar, help=sentence, show_default=False)]


_KEYS: Final = {key: _option(field) for key, field in COMMON_FIELDS.items()}
"""The options of the keys that every source has."""


@sources.command("add", epilog=example(
    "boathook sources add shop --provider stripe --secret env:STRIPE_WEBHOOK_SECRET",
    "boathook sources add deploys --provider github --generate-secret --paths /hooks/github --json",
))  # fmt: skip
@runs(actions.create)
@with_options(_KEYS, after="settings")
def add_source(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="The new source's name: requests arrive at /in/NAME.")],
    provider: Annotated[
        str | None,
        typer.Option(help="Provider name; see `boathook sources providers`. Default: NAME.",
                     autocompletion=complete_providers),
    ] = None,
    secret: Annotated[
        str | None,
        typer.Option(metavar="REFERENCE", help="The sender's secret: env:NAME, file:PATH or - for standard input."),
    ] = None,
    secret_stdin: Annotated[
        bool, typer.Option("--secret-stdin", help="Read the sender's secret from standard input.")
    ] = False,
    generate_secret: Annotated[
        bool, typer.Option("--generate-secret", help="Generate the secret, and print it once.")
    ] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A key of [sources.NAME]; JSON or text; repeatable."),
    ] = None,
    as_json: Json = False,
    **keys: Any,
) -> None:  # fmt: skip
    """Add a source to PostgreSQL; every gateway serves it within seconds, without a restart.

    The values of --set are visible to other users of this host: set secret keys in the console or by the API.
    """
    if sum((secret is not None, secret_stdin, generate_secret)) > 1:
        raise UsageError("give one of --secret, --secret-stdin and --generate-secret")
    reference = "-" if secret_stdin else secret
    text = None if reference is None else _read_secret(cli_context(ctx).settings(), reference)
    own = {key: value for key, value in _read_keys(keys, settings).items() if value is not None}
    values = _read_settings(settings) | own | ({} if provider is None else {"provider": provider})
    new = actions.NewSource(
        name=name,
        provider=values.pop("provider", name),
        settings=values,
        secret=text,
        generate_secret=generate_secret,
    )
    added = run_operation(ctx, actions.create, new)
    fields = {"name": name, "path": f"/in/{name}"} | ({} if added.secret is None else {"secret": added.secret})
    output.print_done(fields, f"{name} added; requests arrive at /in/{name}", as_json=as_json)
    if added.secret is not None and not as_json:
        output.say(added.secret)


@sources.command("change", epilog=example("boathook sources change shop --rate 50 --unset paths"))
@runs(actions.change)
@with_options(_KEYS, after="unset")
def change_source(
    ctx: typer.Context,
    name: Name,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A key of [sources.NAME]; JSON or text; repeatable."),
    ] = None,
    unset: Annotated[list[str] | None, typer.Option(metavar="KEY", help="Remove a key; repeatable.")] = None,
    as_json: Json = False,
    **keys: Any,
) -> None:
    """Change keys of a source that is stored in PostgreSQL; every gateway follows within seconds.

    The values of --set are visible to other users of this host: set secret keys in the console or by the API.
    """
    changes = _read_settings(settings) | _read_keys(keys, settings)
    if both := sorted(changes.keys() & set(unset or ())):
        raise UsageError(f"{both[0]} is both set and unset; remove one of the two")
    changes |= dict.fromkeys(unset or ())
    if not changes:
        raise UsageError("nothing to change: give --set KEY=VALUE, --unset KEY or an option of a key")
    run_operation(ctx, actions.change, actions.SourceChange(source_name=name, settings=changes))
    output.print_done({"name": name, "changed": sorted(changes)}, f"{name} changed", as_json=as_json)


@sources.command("remove", epilog=example("boathook sources remove shop --yes"))
@runs(actions.delete)
def remove_source(ctx: typer.Context, name: Name, yes: Yes = False, as_json: Json = False) -> None:
    """Remove a source from PostgreSQL with its secrets; its requests are answered 404.

    Its events, deliveries and rejections stay.
    """
    confirm(actions.delete.warns.format(source_name=name), yes=yes)
    run_operation(ctx, actions.delete, actions.SourceNamed(source_name=name))
    output.print_done({"name": name, "removed": True}, f"{name} removed", as_json=as_json)


def _read_keys(options: Mapping[str, Any], settings: list[str] | None) -> dict[str, Any]:
    """Return the keys that options of their own set; an empty text removes one. Raises UsageError, InvalidValue."""
    present = {key: value for key, value in options.items() if value is not None and value != []}
    if both := sorted(present.keys() & _read_settings(settings).keys()):
        raise UsageError(f"{both[0]} has an option and is in --set too; remove one of the two")
    return {key: _read_key(COMMON_FIELDS[key], value) for key, value in present.items()}


def _read_key(field: Field, value: Any) -> Any:
    if isinstance(value, bool):
        return value or None
    if field.is_list:
        return [word for word in value if word] or None
    text = read_bytes(value[1:]).decode() if field.kind is Kind.OBJECT and value.startswith("@") else value
    return parse_setting(field, text)


def _read_settings(words: list[str] | None) -> dict[str, Any]:
    return {key: _json_or_text(text) for key, text in read_pairs("--set", words or [], "=").items()}


@sources.command("test", epilog="Example: boathook sources test stripe")
def try_one(ctx: typer.Context, name: Name, as_json: Json = False) -> None:
    """Send the running boathook a valid and a forged request of a source.

    The valid request becomes an event that your handlers receive. Exits with 1 if either result is wrong.
    """
    steps = run(_try(_read_known(ctx), name))
    for step in steps:
        if as_json:
            output.print_json(asdict(step))
        else:
            mark = Text("ok  ", style="green") if step.ok else Text("FAIL", style="bold red")
            out.print(mark, output.text(f" {step.what}: {step.found}"), sep="", soft_wrap=True)
    if not all(step.ok for step in steps):
        raise typer.Exit(1)


def trigger(
    ctx: typer.Context,
    source: SourceName,
    type: Annotated[
        str | None, typer.Argument(metavar="[TYPE]", help="The event type; the sample's own by default.")
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="PATH=VALUE", help="Set a JSON field of the body; repeatable."),
    ] = None,
    file: Annotated[str | None, typer.Option(help="The body, from this file; - reads standard input.")] = None,
    times: Annotated[int, typer.Option(min=1, max=10_000, help="How many requests to send.")] = 1,
    url: Annotated[
        str, typer.Option(help="Address of the gateway, or the source's URL there; the running one by default.")
    ] = "",
    as_json: Json = False,
) -> None:
    """Send a running boathook signed requests of a source, as its sender would.

    The body is the provider's sample with a new event id for each request, signed with the source's newest secret. Your
    handlers receive the events. Exits with 1 if a request is refused.
    """
    known_sources = _read_known(ctx)
    settings = known_sources.settings
    body = None if file is None else read_bytes(file)
    fields = {path: _json_or_text(text) for path, text in read_pairs("--set", changes or [], "=").items()}

    async def send() -> bool:
        # Imported only here, as only commands that send requests need a client.
        from boathook.service.receiving.source_trial import trigger_source

        is_accepted = True
        sending = trigger_source(
            settings, source, type=type, fields=fields, body=body, times=times, url=url, added=known_sources.added
        )
        async for reply in sending:
            is_accepted = is_accepted and reply.is_accepted
            line = f"{reply.status}  {reply.event_id or reply.response}{' (duplicate)' if reply.is_duplicate else ''}"
            output.print_done(asdict(reply), line, as_json=as_json)
        return is_accepted

    try:
        is_accepted = run(send())
    except ConnectionError:
        raise _no_response(url or gateway_url(settings)) from None
    if not is_accepted:
        raise typer.Exit(1)


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


@sources.command("secret", epilog="Example: boathook sources secret notion")
@runs(secret_actions.show_handshake, secret_actions.forget_handshake)
def show_secret(
    ctx: typer.Context,
    name: Name,
    forget: Annotated[bool, typer.Option("--forget", help="Delete it, so that the sender can send another.")] = False,
    as_json: Json = False,
) -> None:
    """Print and activate the secret that a sender such as Notion sent in its handshake.

    Paste it into the sender's settings. If the sender rejects it, another client sent it: delete it and start again.
    """
    source_input = secret_actions.SourceNamed(source=name)
    secret = None
    if forget:
        run_operation(ctx, secret_actions.forget_handshake, source_input)
    else:
        secret = run_operation(ctx, secret_actions.show_handshake, source_input).secret
    output.print_done({"source": name, "secret": secret}, secret or f"{name}: deleted", as_json=as_json)


def _read_known(ctx: typer.Context) -> KnownSources:
    """Return all sources; warn if those that are stored may be outdated."""
    # Imported only here, as most commands on sources need no statistics.
    from boathook.service.operating import source_list

    known_sources = run(source_list.read_known(cli_context(ctx).settings(), progress=startup_progress()))
    if known_sources.problem:
        warn_once(f"the stored sources may be outdated, as PostgreSQL is unavailable: {known_sources.problem}")
    return known_sources


async def _try(known_sources: KnownSources, name: str) -> list["SourceTestStep"]:
    from boathook.service.receiving.source_trial import run_source_test

    try:
        return [step async for step in run_source_test(known_sources.settings, name, added=known_sources.added)]
    except ConnectionError:
        raise _no_response(gateway_url(known_sources.settings)) from None


def _no_response(address: str) -> ConfigError:
    return ConfigError(f"no response from {address}; start `boathook dev`, `boathook serve` or your application first")


def _signed_parts(recipe: source_views.Recipe) -> str:
    parts = [name for name, is_signed in (("time", recipe.signs_time), ("id", recipe.signs_id)) if is_signed]
    return " ".join(parts) or "-"


def _describe(known_sources: KnownSources, view: source_views.SourceView) -> dict[str, Any]:
    provider = source_views.find_provider(view.provider) if view.provider else None
    configured = known_sources.settings.sources.get(view.name)
    return {
        "name": view.name,
        "provider": view.provider,
        "stored": view.is_stored,
        "paths": list(view.paths),
        "health": known_sources.health[view.name].state.value if view.name in known_sources.health else None,
        "secrets": view.added_secrets if view.is_stored or configured is None else len(configured.secrets),
        "unsigned": view.is_unsigned,
        "grade": None if view.grade is None else view.grade.value,
        "signs_time": view.recipe is not None and not view.is_unsigned and view.recipe.signs_time,
        "signs_id": view.recipe is not None and not view.is_unsigned and view.recipe.signs_id,
        "retries_keep_id": None if view.recipe is None else view.recipe.retries_keep_id,
        "docs": None if provider is None else provider.docs,
    }


def _state(line: secret_actions.Secret) -> str:
    return "unreadable" if not line.is_readable else "expired" if line.is_over else "valid"


_SECRETS: Final = View(
    (
        Column("where"),
        Column("name", is_whole=True),
        Column("note", is_optional=True),
        Column("added by", "added_by", is_optional=True),
        Column("age", output.age_of("added_at"), is_optional=True),
        Column("expires", output.moment_of("expires_at"), is_optional=True),
        Column("state", _state, is_whole=True),
    )
)


@secrets.command("list", epilog=example("boathook sources secrets list stripe --json"))
@runs(secret_actions.list_secrets)
def list_secrets(ctx: typer.Context, source: SourceName, as_json: Json = False) -> None:
    """List the secrets of a source and where each is stored. Their values are never shown."""
    rows = run_operation(ctx, secret_actions.list_secrets, secret_actions.SourceNamed(source=source)).data
    _SECRETS.print_rows(rows, as_json=as_json)


@secrets.command("add", epilog=example(
    "boathook sources secrets add stripe --secret env:NEW_STRIPE_SECRET --expire-others 24h",
    "boathook sources secrets add github --json",
))  # fmt: skip
@runs(secret_actions.create)
def add_secret(
    ctx: typer.Context,
    source: SourceName,
    secret: Annotated[
        str | None,
        typer.Option(metavar="REFERENCE", help="env:NAME, file:PATH or - for standard input; generated by default."),
    ] = None,
    note: Annotated[str, typer.Option(help="Label.")] = "",
    expire_others: Annotated[
        timedelta | None, lifetime_option("When previously added secrets expire: 24h, 45m. Default: never.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Add a secret to a source; every gateway accepts it within seconds.

    A generated secret is printed once: copy it to the sender's settings.
    """
    text = None if secret is None else _read_secret(cli_context(ctx).settings(), secret)
    new = secret_actions.NewSecret(
        source=source,
        secret=text,
        note=note,
        expire_others=None if expire_others is None else expire_others.total_seconds(),
    )
    created = run_operation(ctx, secret_actions.create, new)
    fields = {"id": created.id, "source": source, "others_expired": created.others_expired}
    if created.secret is not None:
        output.print_done(fields | {"secret": created.secret}, created.secret, as_json=as_json)
    else:
        output.print_done(fields, created.id, as_json=as_json)


def _read_secret(settings: Settings, reference: str) -> str:
    if reference == "-":
        return sys.stdin.read().strip()
    if not reference.startswith(("env:", "file:")):
        raise UsageError(
            "--secret: use env:NAME, file:PATH or - for standard input; command arguments are visible to other users"
        )
    return settings.resolve(reference, "--secret")


@secrets.command(
    "expire", epilog=example("boathook sources secrets expire stripe ssec_01h455vb4pex5vsknk084sn02q4 --after 24h")
)
@runs(secret_actions.expire)
def expire_secret(
    ctx: typer.Context,
    source: SourceName,
    secret: SecretId,
    after: Annotated[timedelta | None, lifetime_option("When: 24h, 45m. Default: now.")] = None,
    as_json: Json = False,
) -> None:
    """Expire an added secret, now or later."""
    expiry = secret_actions.SecretExpiry(
        source=source, secret=secret, after=0 if after is None else after.total_seconds()
    )
    secret_row = run_operation(ctx, secret_actions.expire, expiry)
    output.print_done(
        secret_row, f"{secret_row.id} expires at {output.timestamp(secret_row.expires_at)}", as_json=as_json
    )


@secrets.command("keep", epilog=example("boathook sources secrets keep stripe ssec_01h455vb4pex5vsknk084sn02q4"))
@runs(secret_actions.keep)
def keep_secret(ctx: typer.Context, source: SourceName, secret: SecretId, as_json: Json = False) -> None:
    """Cancel the expiry of an added secret."""
    secret_row = run_operation(ctx, secret_actions.keep, secret_actions.SecretNamed(source=source, secret=secret))
    output.print_done(secret_row, f"{secret_row.id} never expires", as_json=as_json)


@secrets.command("remove", epilog=example("boathook sources secrets remove stripe ssec_01h455vb4pex5vsknk084sn02q4"))
@runs(secret_actions.delete)
def remove_secret(ctx: typer.Context, source: SourceName, secret: SecretId, as_json: Json = False) -> None:
    """Delete an added secret immediately."""
    removed = run_operation(ctx, secret_actions.delete, secret_actions.SecretNamed(source=source, secret=secret))
    output.print_done(removed, f"{removed.id} removed", as_json=as_json)
