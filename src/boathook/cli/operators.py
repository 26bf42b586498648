"""Commands about those who may sign in to the console."""

import sys
from typing import Annotated

import typer

from boathook.cli import show
from boathook.cli.commands import example
from boathook.cli.options import Json
from boathook.cli.session import Misused, act, err, out
from boathook.cli.show import Column
from boathook.domain.roles import Role
from boathook.journal.operators import Operator

operators = typer.Typer(no_args_is_help=True, help="Who may sign in to the console.")

Name = Annotated[str, typer.Argument(help="The name they sign in with, such as an e-mail address.")]
RoleName = Annotated[
    Role, typer.Option("--role", help="viewer looks, operator also acts, admin also manages people, keys and secrets.")
]
FromInput = Annotated[bool, typer.Option("--password-stdin", help="Read the password from the standard input.")]

_COLUMNS = (
    Column("name", lambda one: one.name, is_whole=True),
    Column("id", lambda one: one.shown_id),
    Column("role", lambda one: one.role),
    Column("password", lambda one: "yes" if one.password_hash else "no"),
    Column("sessions", lambda one: one.sessions),
    Column("signed in", lambda one: show.moment(one.signed_in_at), is_optional=True),
    Column("disabled", lambda one: show.moment(one.disabled_at), is_optional=True),
)


@operators.command("create", epilog=example(
    "boathook operators create anna@example.com --role admin",
    "pass show boathook | boathook operators create ci --role viewer --password-stdin",
    "boathook operators create ben@example.com --role operator --no-password",
))  # fmt: skip
def create_operator(
    ctx: typer.Context,
    name: Name,
    role: RoleName = Role.VIEWER,
    from_input: FromInput = False,
    no_password: Annotated[
        bool, typer.Option("--no-password", help="They sign in through the identity provider only.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Let somebody sign in to the console."""
    from boathook.admin import operators as actions

    password = None if no_password else _ask_password(from_input=from_input)
    made = act(ctx, lambda work: actions.create(work, name, role, password))
    if as_json:
        show.print_json(_plain(made))
    else:
        out.print(f"{made.name} may sign in as {made.role}", markup=False)


@operators.command("list", epilog=example("boathook operators list", "boathook operators list --json"))
def list_operators(ctx: typer.Context, as_json: Json = False) -> None:
    """List those who may sign in."""
    from boathook.admin import operators as actions

    show.print_rows(act(ctx, actions.list_all), _COLUMNS, as_json=as_json, plain=_plain, after="")


@operators.command("password", epilog=example("boathook operators password anna@example.com"))
def change_password(ctx: typer.Context, name: Name, from_input: FromInput = False) -> None:
    """Give somebody another password, and sign them out everywhere."""
    from boathook.admin import operators as actions

    password = _ask_password(from_input=from_input)
    act(ctx, lambda work: actions.set_password(work, name, password))
    out.print(f"{name} has another password, and is signed out everywhere", markup=False)


@operators.command("role", epilog=example("boathook operators role ben@example.com admin"))
def change_role(
    ctx: typer.Context, name: Name, role: Annotated[Role, typer.Argument(help="What they may do from now on.")]
) -> None:
    """Let somebody do more, or less."""
    from boathook.admin import operators as actions

    act(ctx, lambda work: actions.set_role(work, name, role))
    out.print(f"{name} is {role}", markup=False)


@operators.command("disable", epilog=example("boathook operators disable ben@example.com"))
def disable_operator(ctx: typer.Context, name: Name) -> None:
    """Keep somebody out at once."""
    from boathook.admin import operators as actions

    act(ctx, lambda work: actions.disable(work, name))
    out.print(f"{name} is signed out and kept out", markup=False)


@operators.command("enable", epilog=example("boathook operators enable ben@example.com"))
def enable_operator(ctx: typer.Context, name: Name) -> None:
    """Let somebody in again."""
    from boathook.admin import operators as actions

    act(ctx, lambda work: actions.enable(work, name))
    out.print(f"{name} may sign in again", markup=False)


@operators.command("delete", epilog=example("boathook operators delete ben@example.com"))
def delete_operator(ctx: typer.Context, name: Name) -> None:
    """Remove somebody; what they did stays in the audit."""
    from boathook.admin import operators as actions

    act(ctx, lambda work: actions.delete(work, name))
    out.print(f"{name} is gone", markup=False)


def _ask_password(*, from_input: bool) -> str:
    if from_input:
        return sys.stdin.readline().rstrip("\n")
    if not sys.stdin.isatty():
        raise Misused("there is no terminal to ask for the password; write --password-stdin, and pipe it in")
    err.print("At least 12 characters.", style="dim")
    return str(typer.prompt("Password", hide_input=True, confirmation_prompt=True))


def _plain(operator: Operator) -> dict[str, object]:
    return {
        "id": operator.shown_id,
        "name": operator.name,
        "role": operator.role,
        "has_password": operator.password_hash is not None,
        "sessions": operator.sessions,
        "created_at": operator.created_at,
        "signed_in_at": operator.signed_in_at,
        "disabled_at": operator.disabled_at,
    }
