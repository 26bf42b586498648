"""Commands about those who may sign in to the console."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from boathook.cli import output
from boathook.cli.commands import example
from boathook.cli.context import UsageError, err, out, run_in_transaction
from boathook.cli.options import Json
from boathook.cli.output import Column
from boathook.domain.roles import Role

if TYPE_CHECKING:
    from boathook.service.operators import Operator

operators = typer.Typer(no_args_is_help=True, help="Operators of the console.")

Name = Annotated[str, typer.Argument(help="Sign-in name, such as an e-mail address.")]
RoleName = Annotated[
    Role,
    typer.Option(
        "--role", help="viewer: read access; operator: also acts; admin: also manages operators, keys and secrets."
    ),
]
FromInput = Annotated[bool, typer.Option("--password-stdin", help="Read the password from the standard input.")]

_COLUMNS = (
    Column("name", lambda one: one.name, is_whole=True),
    Column("id", lambda one: one.shown_id),
    Column("role", lambda one: one.role),
    Column("password", lambda one: "yes" if one.password_hash else "no"),
    Column("sessions", lambda one: one.sessions),
    Column("signed in", lambda one: output.moment(one.signed_in_at), is_optional=True),
    Column("disabled", lambda one: output.moment(one.disabled_at), is_optional=True),
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
        bool, typer.Option("--no-password", help="Sign in through the identity provider only.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Create an operator."""
    from boathook.service import operators as actions

    password = None if no_password else _ask_password(from_input=from_input)
    made = run_in_transaction(ctx, lambda work: actions.create(work, name, role, password))
    if as_json:
        output.print_json(_plain(made))
    else:
        out.print(f"{made.name} can now sign in as {made.role}", markup=False)


@operators.command("list", epilog=example("boathook operators list", "boathook operators list --json"))
def list_operators(ctx: typer.Context, as_json: Json = False) -> None:
    """List operators."""
    from boathook.service import operators as actions

    output.print_rows(run_in_transaction(ctx, actions.list_all), _COLUMNS, as_json=as_json, plain=_plain, after="")


@operators.command("password", epilog=example("boathook operators password anna@example.com"))
def change_password(ctx: typer.Context, name: Name, from_input: FromInput = False) -> None:
    """Set a new password and end the operator's sessions."""
    from boathook.service import operators as actions

    password = _ask_password(from_input=from_input)
    run_in_transaction(ctx, lambda work: actions.set_password(work, name, password))
    out.print(f"{name} has a new password and is signed out everywhere", markup=False)


@operators.command("role", epilog=example("boathook operators role ben@example.com admin"))
def change_role(ctx: typer.Context, name: Name, role: Annotated[Role, typer.Argument(help="New role.")]) -> None:
    """Change the role of an operator."""
    from boathook.service import operators as actions

    run_in_transaction(ctx, lambda work: actions.set_role(work, name, role))
    out.print(f"{name} is {role}", markup=False)


@operators.command("disable", epilog=example("boathook operators disable ben@example.com"))
def disable_operator(ctx: typer.Context, name: Name) -> None:
    """Disable an operator and end the sessions."""
    from boathook.service import operators as actions

    run_in_transaction(ctx, lambda work: actions.disable(work, name))
    out.print(f"{name} is disabled and signed out", markup=False)


@operators.command("enable", epilog=example("boathook operators enable ben@example.com"))
def enable_operator(ctx: typer.Context, name: Name) -> None:
    """Enable an operator."""
    from boathook.service import operators as actions

    run_in_transaction(ctx, lambda work: actions.enable(work, name))
    out.print(f"{name} is enabled", markup=False)


@operators.command("delete", epilog=example("boathook operators delete ben@example.com"))
def delete_operator(ctx: typer.Context, name: Name) -> None:
    """Delete an operator; the audit entries are kept."""
    from boathook.service import operators as actions

    run_in_transaction(ctx, lambda work: actions.delete(work, name))
    out.print(f"{name} is deleted", markup=False)


def _ask_password(*, from_input: bool) -> str:
    if from_input:
        return sys.stdin.readline().rstrip("\n")
    if not sys.stdin.isatty():
        raise UsageError("no terminal to ask for the password; pipe it in with --password-stdin")
    err.print("At least 12 characters.", style="dim")
    return str(typer.prompt("Password", hide_input=True, confirmation_prompt=True))


def _plain(operator: "Operator") -> dict[str, object]:
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
