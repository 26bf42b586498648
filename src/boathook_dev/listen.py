"""The command that shows events as they are accepted, locally or remotely, and forwards them to a local server."""

import sys
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Annotated, Any, Final, assert_never
from urllib.parse import urlsplit

import msgspec
import typer
from rich.text import Text

from boathook.cli import output
from boathook.cli.context import UsageError, cli_context, err, out, run
from boathook.cli.options import Application, Json, Since, Source, Type, complete_providers, read_address, read_pairs
from boathook.config import Settings
from boathook.domain.plurals import counted
from boathook.service.operating.event_feed import FeedEvent, FeedFilter
from boathook.service.remote import RemoteClient
from boathook_dev.event_feed import GatewayAddress, from_database, from_gateway
from boathook_dev.forwarding import Answered, Failed, Forwarded, Forwarder, SigningOptions, Unsigned, check_secret

_WIDEST: Final = 28
_FIRST_LINE: Final = 200


class _DisplayOptions(msgspec.Struct, frozen=True):
    """The output format of events."""

    as_json: bool
    verbose: bool


def listen(
    ctx: typer.Context,
    forward_to: Annotated[
        str | None, typer.Option(metavar="URL", help="Forward each event to this URL, such as localhost:3000/hook.")
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Gateway URL, such as https://hooks.example.com; by default the local settings are used.",
        ),
    ] = None,
    key: Annotated[
        str, typer.Option(help="An API key of the organization: env:NAME, file:PATH or the key itself.")
    ] = "env:BOATHOOK_API_KEY",
    source: Source = None,
    application: Application = None,
    type: Type = None,
    since: Since = None,
    secret: Annotated[
        str | None,
        typer.Option(help="Sign forwarded events with this secret: env:NAME, file:PATH or the secret itself."),
    ] = None,
    provider: Annotated[
        str | None,
        typer.Option(
            help="Sign in the format of this provider instead of the event's source.", autocompletion=complete_providers
        ),
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="A setting of --provider; repeatable.")
    ] = None,
    retry: Annotated[int, typer.Option(min=0, help="Retries when the local server does not respond.")] = 0,
    limit: Annotated[int, typer.Option(min=0, help="Stop after this many events; 0: never.")] = 0,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print bodies.")] = False,
    as_json: Json = False,
) -> None:
    """
    Show events as they are accepted, and forward them to a local server, signed again. Press Ctrl-C to stop.

    Bodies and headers are forwarded unchanged; --secret signs them again so that your server can verify them. Without
    --url it reads from the configured database.
    """
    settings = cli_context(ctx).settings()
    feed_filter = FeedFilter(source=source, application=application, type=type)
    signing = _signing(settings, secret, provider, option or [], is_for_messages=application is not None)
    if signing is not None and forward_to is None:
        raise UsageError("--secret needs --forward-to URL")
    target = None if forward_to is None else read_address("--forward-to", forward_to, "http://localhost:3000/webhook")
    gateway = None if url is None else _gateway(settings, url, key)
    forwarder = None
    if target is not None:
        forwarder = Forwarder(RemoteClient(settings), target, signing, retries=retry, say=_say)
    err.print(_headline(settings, gateway, feed_filter, target, signing), soft_wrap=True)
    if gateway is None and source is not None and source not in settings.sources:
        output.hint(
            f"no source is called {source} in boathook.toml; configured: {', '.join(settings.sources) or 'none'}"
        )
    feed = (
        from_database(settings, feed_filter, since, _say)
        if gateway is None
        else from_gateway(gateway, feed_filter, since, _say)
    )
    tally: Counter[str] = Counter()
    try:
        run(_follow(feed, forwarder, _DisplayOptions(as_json, verbose), limit, tally))
    except KeyboardInterrupt:
        pass
    finally:
        err.print(_summary(tally), style="dim")


def _signing(
    settings: Settings, secret: str | None, provider: str | None, options: list[str], *, is_for_messages: bool
) -> SigningOptions | None:
    if secret is None:
        if provider is not None or options:
            raise UsageError("--provider and --option need --secret")
        return None
    if options and provider is None:
        raise UsageError("--option needs --provider")
    signing_secret = settings.resolve(secret, "--secret")
    check_secret(signing_secret, is_for_messages=is_for_messages and provider is None)
    return SigningOptions(signing_secret, provider, read_pairs("--option", options, "="))


def _gateway(settings: Settings, url: str, key: str) -> GatewayAddress:
    return GatewayAddress(
        read_address("--url", url).rstrip("/"),
        settings.resolve(key, "--key"),
        RemoteClient(settings),
    )


def _say(message: str) -> None:
    err.print(output.text(message), style="yellow", soft_wrap=True)


def _headline(
    settings: Settings,
    gateway: GatewayAddress | None,
    feed_filter: FeedFilter,
    target: str | None,
    signing: SigningOptions | None,
) -> Text:
    """Return one line with the source of the events, the filter and the target."""
    filters_text = ", ".join(
        f"{word} {value}"
        for word, value in (
            ("source", feed_filter.source),
            ("application", feed_filter.application),
            ("type", feed_filter.type),
        )
        if value
    )
    server_text = gateway.url if gateway else (_host_of(settings) or "the embedded PostgreSQL")
    line = Text("Listening ", style="bold") + Text(f"at {server_text} for {filters_text or 'all events'}")
    if target is not None:
        signature = (
            "headers unchanged, not signed"
            if signing is None
            else f"signed as {signing.provider or 'its provider'} does"
        )
        line += Text(" → ", style="bold") + Text(f"{target} ({signature})", style="cyan")
    return line + Text("  press Ctrl-C to stop", style="dim")


def _host_of(settings: Settings) -> str:
    return urlsplit(settings.database_url()).hostname or ""


async def _follow(
    feed: AsyncGenerator[FeedEvent, None],
    forwarder: Forwarder | None,
    display: _DisplayOptions,
    limit: int,
    tally: Counter[str],
) -> None:
    async with aclosing(feed) as events:
        async for event in events:
            forwarded = None if forwarder is None else await forwarder.forward(event)
            tally["events"] += 1
            tally[_word(forwarded)] += 1
            _show(event, forwarded, display)
            if limit and tally["events"] >= limit:
                return


def _word(forwarded: Forwarded | None) -> str:
    match forwarded:
        case None:
            return "shown"
        case Answered(answer=answer):
            return "answered 2xx" if answer.is_ok else "answered non-2xx"
        case Failed():
            return "not answered"
        case Unsigned():
            return "not signed"
        case _:
            assert_never(forwarded)


def _summary(tally: Counter[str]) -> str:
    parts = [f"{number} {word}" for word, number in tally.items() if word not in {"events", "shown"}]
    return counted(tally["events"], "event") + (f": {', '.join(parts)}" if parts else "")


def _show(event: FeedEvent, forwarded: Forwarded | None, display: _DisplayOptions) -> None:
    if display.as_json:
        output.print_json(_object(event, forwarded, display))
        sys.stdout.flush()
        return
    out.print(_line(event, forwarded), soft_wrap=True)
    if display.verbose:
        output.print_block("  event", event.body.decode("utf-8", "backslashreplace"))
    if isinstance(forwarded, Answered) and (display.verbose or not forwarded.answer.is_ok):
        answered = forwarded.answer.body.decode("utf-8", "backslashreplace")
        if display.verbose:
            output.print_block("  answer", answered)
        elif answered.strip():
            out.print(output.text(f"          {answered.strip().splitlines()[0][:_FIRST_LINE]}"), style="dim")


def _line(event: FeedEvent, forwarded: Forwarded | None) -> Text:
    local_time = datetime.now(UTC).astimezone().strftime("%H:%M:%S")
    sender = output.text(event.source or event.application)
    line = Text(f"{local_time}  ", style="dim") + sender + Text("  ")
    line += Text(f"{output.text(event.type).plain:<{_WIDEST}} ", style="bold") + Text(event.id, style="dim")
    match forwarded:
        case None:
            return line
        case Answered(answer=answer, ms=ms):
            style = "green" if answer.is_ok else "red"
            return line + Text(f"  {answer.status}", style=style) + Text(f"  {ms:.0f} ms", style="dim")
        case Failed(reason=reason):
            return line + Text("  not answered: ", style="red") + output.text(reason)
        case Unsigned(reason=reason):
            return line + Text("  not sent, cannot be signed: ", style="red") + output.text(reason)
        case _:
            assert_never(forwarded)


def _object(event: FeedEvent, forwarded: Forwarded | None, display: _DisplayOptions) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "at": datetime.now(UTC),
        "id": event.id,
        "source": event.source,
        "application": event.application,
        "type": event.type,
        "accepted_at": event.accepted_at,
    }
    if display.verbose:
        fields |= {"headers": event.headers, "body": event.body}
    match forwarded:
        case None:
            return fields
        case Answered(answer=answer, ms=ms):
            return fields | {"status": answer.status, "ms": ms} | ({"answer": answer.body} if display.verbose else {})
        case Failed(reason=reason, ms=ms):
            return fields | {"status": None, "ms": ms, "error": reason}
        case Unsigned(reason=reason):
            return fields | {"status": None, "ms": None, "error": reason}
        case _:
            assert_never(forwarded)
