"""Commands about the secrets that operators add to sources while boathook runs."""

import sys
from dataclasses import asdict
from datetime import timedelta
from typing import Annotated, Any

import typer

from boathook.cli import show
from boathook.cli.commands import example
from boathook.cli.keys import read_lifetime
from boathook.cli.options import Json
from boathook.cli.session import Misused, act, out, session
from boathook.cli.show import Column
from boathook.config import Settings

secrets = typer.Typer(no_args_is_help=True, help="Secrets added to those of boathook.toml, without a restart.")

Source = Annotated[str, typer.Argument(metavar="SOURCE", help="The source's name.")]
Secret = Annotated[str, typer.Argument(metavar="SECRET", help="Its id, as listed.")]


def _state(line: dict[str, Any]) -> str:
    if not line["is_readable"]:
        return "unreadable"
    return "ended" if line["is_over"] else "holds"


_COLUMNS = (
    Column("where", lambda line: line["where"]),
    Column("name", lambda line: line["name"], is_whole=True),
    Column("note", lambda line: line["note"], is_optional=True),
    Column("added by", lambda line: line["added_by"], is_optional=True),
    Column("age", lambda line: line["added_at"] and show.age(line["added_at"]), is_optional=True),
    Column("ends", lambda line: show.moment(line["ends_at"]), is_optional=True),
    Column("state", _state),
)


@secrets.command("list", epilog=example("boathook sources secrets list stripe --json"))
def list_secrets(ctx: typer.Context, source: Source, as_json: Json = False) -> None:
    """List the secrets that prove a source's requests, and where each is kept. Their texts are never shown."""
    from boathook.admin import source_secrets as actions

    lines = act(ctx, lambda one: actions.list_lines(one, source))
    show.print_rows([asdict(line) for line in lines], _COLUMNS, as_json=as_json, plain=lambda line: line, after="")


@secrets.command("add", epilog=example(
    "boathook sources secrets add stripe --secret env:NEW_STRIPE_SECRET --end-others 24h",
    "boathook sources secrets add github --json",
))  # fmt: skip
def add_secret(
    ctx: typer.Context,
    source: Source,
    secret: Annotated[
        str | None,
        typer.Option(metavar="REFERENCE", help="env:NAME, file:PATH or - for standard input; made where absent."),
    ] = None,
    note: Annotated[str, typer.Option(help="What it is, to know it again.")] = "",
    end_others: Annotated[
        timedelta | None,
        typer.Option(parser=read_lifetime, metavar="LENGTH", help="When those added before end: 24h, 45m. Never."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Let a secret prove a source's requests, besides those it has; every gateway knows it within seconds.

    One that is made is printed, once: give it to the sender.
    """
    from boathook.admin import source_secrets as actions

    text = None if secret is None else _read(session(ctx).settings(), secret)
    made = act(ctx, lambda one: actions.add(one, source, text, note_text=note, others_end_after=end_others))
    if as_json:
        shown = {"id": made.secret.shown_id, "source": source, "others_ended": made.ended}
        show.print_json(shown | ({"secret": made.text} if text is None else {}))
    else:
        out.print(made.text if text is None else made.secret.shown_id, markup=False, soft_wrap=True)


def _read(settings: Settings, reference: str) -> str:
    if reference == "-":
        return sys.stdin.read().strip()
    if not reference.startswith(("env:", "file:")):
        raise Misused("--secret: write env:NAME or file:PATH, or - and pipe it in: arguments are for everybody to see")
    return settings.resolve(reference, "--secret")


@secrets.command(
    "end", epilog=example("boathook sources secrets end stripe ssec_01h455vb4pex5vsknk084sn02q4 --after 24h")
)
def end_secret(
    ctx: typer.Context,
    source: Source,
    secret: Secret,
    after: Annotated[
        timedelta | None, typer.Option(parser=read_lifetime, metavar="LENGTH", help="When: 24h, 45m. At once.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Let an added secret prove nothing any more, at once or after a while."""
    from boathook.admin import source_secrets as actions

    ended = act(ctx, lambda one: actions.end(one, source, secret, after or timedelta()))
    if as_json:
        show.print_json({"id": ended.shown_id, "source": source, "ends_at": ended.ends_at})
    else:
        out.print(f"{secret} ends at {show.moment(ended.ends_at)}", markup=False)


@secrets.command("keep", epilog=example("boathook sources secrets keep stripe ssec_01h455vb4pex5vsknk084sn02q4"))
def keep_secret(ctx: typer.Context, source: Source, secret: Secret) -> None:
    """Take back that an added secret ends, as long as it has not."""
    from boathook.admin import source_secrets as actions

    act(ctx, lambda one: actions.end(one, source, secret, None))
    out.print(f"{secret} has no end", markup=False)


@secrets.command("remove", epilog=example("boathook sources secrets remove stripe ssec_01h455vb4pex5vsknk084sn02q4"))
def remove_secret(ctx: typer.Context, source: Source, secret: Secret) -> None:
    """Delete an added secret; at once it proves nothing."""
    from boathook.admin import source_secrets as actions

    act(ctx, lambda one: actions.remove(one, source, secret))
    out.print(f"{secret} is removed", markup=False)
