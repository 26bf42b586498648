"""The command that shows events as they are accepted, here or far away, and sends them on to a server of one's own."""

import sys
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Final, assert_never
from urllib.parse import urlsplit

import typer
from rich.text import Text

from boathook.admin.listening import Heard
from boathook.cli import show
from boathook.cli.feeds import Gateway, from_gateway, from_journal
from boathook.cli.forwarding import Failed, Forwarded, Forwarder, Passed, Signing, Unsigned, check_secret
from boathook.cli.options import Application, Json, Since, Source, Type, read_pairs
from boathook.cli.session import Misused, err, out, run, session
from boathook.config import Settings
from boathook.inbound.providers import RECIPES
from boathook.journal.listening import Wish
from boathook.outbound.tap import own_ground

_WIDEST: Final = 28
_FIRST_LINE: Final = 200


@dataclass(frozen=True, slots=True)
class _Look:
    """How events are shown."""

    as_json: bool
    verbose: bool


def _providers(incomplete: str) -> list[str]:
    """Return the providers that a shell offers."""
    return [recipe.name for recipe in RECIPES if recipe.name.startswith(incomplete)]


def listen(
    ctx: typer.Context,
    forward_to: Annotated[
        str | None, typer.Option(metavar="URL", help="Send each event to this address, such as localhost:3000/hook.")
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="The gateway, such as https://hooks.example.com; else the settings at hand."),
    ] = None,
    key: Annotated[
        str, typer.Option(help="An API key of the organization: env:NAME, file:PATH or the key itself.")
    ] = "env:BOATHOOK_KEY",
    source: Source = None,
    application: Application = None,
    type: Type = None,
    since: Since = None,
    secret: Annotated[
        str | None, typer.Option(help="Sign anew with this secret: env:NAME, file:PATH or the secret itself.")
    ] = None,
    provider: Annotated[
        str | None,
        typer.Option(
            help="Sign as this provider does, in place of the one of the event's source.", autocompletion=_providers
        ),
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="A setting of --provider; may be given again.")
    ] = None,
    retry: Annotated[int, typer.Option(min=0, help="Try so often again where the local server does not answer.")] = 0,
    limit: Annotated[int, typer.Option(min=0, help="Stop after so many events; 0: never.")] = 0,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show bodies.")] = False,
    as_json: Json = False,
) -> None:
    """
    Show events as they are accepted, and send them on to a server on your machine, signed anew. Ctrl-C ends it.

    Each is sent with its own bytes and headers; its proof is made anew with --secret, so that your server's own check
    passes. Without --url it listens to the database of the settings at hand.
    """
    settings = session(ctx).settings()
    wish = Wish(source=source, application=application, type=type)
    signing = _signing(settings, secret, provider, option or [], is_for_messages=application is not None)
    if signing is not None and forward_to is None:
        raise Misused("--secret signs what is sent on: add --forward-to URL")
    target = None if forward_to is None else _address("--forward-to", forward_to)
    gateway = None if url is None else _gateway(settings, url, key)
    forwarder = None
    if target is not None:
        forwarder = Forwarder(own_ground(settings), target, signing, retries=retry, say=_say)
    err.print(_headline(settings, gateway, wish, target, signing), soft_wrap=True)
    feed = from_journal(settings, wish, since, _say) if gateway is None else from_gateway(gateway, wish, since, _say)
    tally: Counter[str] = Counter()
    try:
        run(_follow(feed, forwarder, _Look(as_json, verbose), limit, tally))
    except KeyboardInterrupt:
        pass
    finally:
        if forwarder is not None:
            forwarder.close()
        err.print(_summary(tally), style="dim")


def _signing(
    settings: Settings, secret: str | None, provider: str | None, options: list[str], *, is_for_messages: bool
) -> Signing | None:
    if secret is None:
        if provider is not None or options:
            raise Misused("--provider and --option say how to sign: add --secret")
        return None
    if options and provider is None:
        raise Misused("--option is a setting of --provider: add that")
    known = settings.resolve(secret, "--secret")
    check_secret(known, is_for_messages=is_for_messages and provider is None)
    return Signing(known, provider, read_pairs("--option", options, "="))


def _gateway(settings: Settings, url: str, key: str) -> Gateway:
    return Gateway(_address("--url", url).rstrip("/"), settings.resolve(key, "--key"), own_ground(settings))


def _address(option: str, text: str) -> str:
    """Return an address with its scheme; one without is plain http, as servers on one's own machine are."""
    whole = text if "://" in text else f"http://{text}"
    parts = urlsplit(whole)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise Misused(f"{option}: write an address such as http://localhost:3000/webhook, not {text!r}")
    return whole


def _say(message: str) -> None:
    err.print(show.text(message), style="yellow", soft_wrap=True)


def _headline(
    settings: Settings, gateway: Gateway | None, wish: Wish, target: str | None, signing: Signing | None
) -> Text:
    """Say in one line what is listened to, and what goes where."""
    what = ", ".join(
        f"{word} {value}"
        for word, value in (("source", wish.source), ("application", wish.application), ("type", wish.type))
        if value
    )
    where = gateway.url if gateway else (_host_of(settings) or "the embedded PostgreSQL")
    line = Text("Listening ", style="bold") + Text(f"at {where} for {what or 'all events'}")
    if target is not None:
        how = (
            "headers as kept, not signed" if signing is None else f"signed as {signing.provider or 'its provider'} does"
        )
        line += Text(" → ", style="bold") + Text(f"{target} ({how})", style="cyan")
    return line + Text("  Ctrl-C ends it", style="dim")


def _host_of(settings: Settings) -> str:
    return urlsplit(settings.database_url()).hostname or ""


async def _follow(
    feed: AsyncGenerator[Heard, None], forwarder: Forwarder | None, look: _Look, limit: int, tally: Counter[str]
) -> None:
    async with aclosing(feed) as events:
        async for heard in events:
            done = None if forwarder is None else await forwarder.forward(heard)
            tally["events"] += 1
            tally[_word(done)] += 1
            _show(heard, done, look)
            if limit and tally["events"] >= limit:
                return


def _word(done: Forwarded | None) -> str:
    match done:
        case None:
            return "shown"
        case Passed(answer=answer):
            return "answered 2xx" if answer.is_ok else "answered otherwise"
        case Failed():
            return "not answered"
        case Unsigned():
            return "not signed"
        case _:
            assert_never(done)


def _summary(tally: Counter[str]) -> str:
    parts = [f"{number} {word}" for word, number in tally.items() if word not in {"events", "shown"}]
    number = tally["events"]
    return f"{number} event{'' if number == 1 else 's'}" + (f": {', '.join(parts)}" if parts else "")


def _show(heard: Heard, done: Forwarded | None, look: _Look) -> None:
    if look.as_json:
        show.print_json(_object(heard, done, look))
        sys.stdout.flush()
        return
    out.print(_line(heard, done), soft_wrap=True)
    if look.verbose:
        show.block("  event", heard.body.decode("utf-8", "backslashreplace"))
    if isinstance(done, Passed) and (look.verbose or not done.answer.is_ok):
        answered = done.answer.body.decode("utf-8", "backslashreplace")
        if look.verbose:
            show.block("  answer", answered)
        elif answered.strip():
            out.print(show.text(f"          {answered.strip().splitlines()[0][:_FIRST_LINE]}"), style="dim")


def _line(heard: Heard, done: Forwarded | None) -> Text:
    moment = datetime.now(UTC).astimezone().strftime("%H:%M:%S")
    sender = show.text(heard.source or heard.application)
    line = Text(f"{moment}  ", style="dim") + sender + Text("  ")
    line += Text(f"{show.text(heard.type).plain:<{_WIDEST}} ", style="bold") + Text(heard.id, style="dim")
    match done:
        case None:
            return line
        case Passed(answer=answer, ms=ms):
            style = "green" if answer.is_ok else "red"
            return line + Text(f"  {answer.status}", style=style) + Text(f"  {ms:.0f} ms", style="dim")
        case Failed(reason=reason):
            return line + Text("  not answered: ", style="red") + show.text(reason)
        case Unsigned(reason=reason):
            return line + Text("  not sent, as it cannot be signed: ", style="red") + show.text(reason)
        case _:
            assert_never(done)


def _object(heard: Heard, done: Forwarded | None, look: _Look) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "at": datetime.now(UTC),
        "id": heard.id,
        "source": heard.source,
        "application": heard.application,
        "type": heard.type,
        "accepted_at": heard.accepted_at,
    }
    if look.verbose:
        shown |= {"headers": heard.headers, "body": heard.body}
    match done:
        case None:
            return shown
        case Passed(answer=answer, ms=ms):
            return shown | {"status": answer.status, "ms": ms} | ({"answer": answer.body} if look.verbose else {})
        case Failed(reason=reason, ms=ms):
            return shown | {"status": None, "ms": ms, "error": reason}
        case Unsigned(reason=reason):
            return shown | {"status": None, "ms": None, "error": reason}
        case _:
            assert_never(done)
