"""Commands for operators: the users of the console."""

import sys
from typing import Annotated, Final

import typer

from boathook.cli.commands import example
from boathook.cli.context import UsageError, run_in_transaction
from boathook.cli.options import Json
from boathook.cli.output import Column, View, hint, moment_of, print_done
from boathook.domain.model import Role
from boathook.service.access import operators as actions

operators = typer.Typer(no_args_is_help=True, help="Operators of the console.")

Name = Annotated[str, typer.Argument(help="Sign-in name, such as an e-mail address.")]
RoleName = Annotated[
    Role,
    typer.Option(
        "--role", help="viewer: read access; operator: also acts; admin: also manages operators, keys and secrets."
    ),
]
FromInput = Annotated[bool, typer.Option("--password-stdin", help="Read the password from the standard input.")]

_VIEW: Final = View(
    (
        Column("name", is_whole=True),
        Column("id"),
        Column("role"),
        Column("password", lambda one: "yes" if one.password_hash else "no"),
        Column("sessions"),
        Column("signed in", moment_of("signed_in_at"), is_optional=True),
        Column("disabled", moment_of("disabled_at"), is_optional=True),
    ),
    (
        "id", "name", "role", ("has_password", lambda one: one.password_hash is not None), "sessions", "created_at",
        "signed_in_at", "disabled_at",
    ),
)  # fmt: skip


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
    password = None if no_password else _ask_password(from_input=from_input)
    made = run_in_transaction(ctx, lambda work: actions.create(work, name, role, password))
    _VIEW.print_done(made, f"{made.name} can now sign in as {made.role}", as_json=as_json)


@operators.command("list", epilog=example("boathook operators list", "boathook operators list --json"))
def list_operators(ctx: typer.Context, as_json: Json = False) -> None:
    """List operators."""
    _VIEW.print_rows(run_in_transaction(ctx, actions.list_all), as_json=as_json)


@operators.command("password", epilog=example("boathook operators password anna@example.com"))
def change_password(ctx: typer.Context, name: Name, from_input: FromInput = False, as_json: Json = False) -> None:
    """Set a new password and end the operator's sessions."""
    password = _ask_password(from_input=from_input)
    run_in_transaction(ctx, lambda work: actions.set_password(work, name, password))
    print_done(
        {"name": name, "password": "changed"},
        f"{name} has a new password and is signed out everywhere",
        as_json=as_json,
    )


@operators.command("role", epilog=example("boathook operators role ben@example.com admin"))
def change_role(
    ctx: typer.Context, name: Name, role: Annotated[Role, typer.Argument(help="New role.")], as_json: Json = False
) -> None:
    """Change the role of an operator."""
    run_in_transaction(ctx, lambda work: actions.set_role(work, name, role))
    print_done({"name": name, "role": role}, f"{name} is {role}", as_json=as_json)


@operators.command("disable", epilog=example("boathook operators disable ben@example.com"))
def disable_operator(ctx: typer.Context, name: Name, as_json: Json = False) -> None:
    """Disable an operator and end the sessions."""
    run_in_transaction(ctx, lambda work: actions.disable(work, name))
    print_done({"name": name, "disabled": True}, f"{name} is disabled and signed out", as_json=as_json)


@operators.command("enable", epilog=example("boathook operators enable ben@example.com"))
def enable_operator(ctx: typer.Context, name: Name, as_json: Json = False) -> None:
    """Enable an operator."""
    run_in_transaction(ctx, lambda work: actions.enable(work, name))
    print_done({"name": name, "disabled": False}, f"{name} is enabled", as_json=as_json)


@operators.command("delete", epilog=example("boathook operators delete ben@example.com"))
def delete_operator(ctx: typer.Context, name: Name, as_json: Json = False) -> None:
    """Delete an operator; the audit entries are kept."""
    run_in_transaction(ctx, lambda work: actions.delete(work, name))
    print_done({"name": name, "deleted": True}, f"{name} is deleted", as_json=as_json)


def _ask_password(*, from_input: bool) -> str:
    if from_input:
        return sys.stdin.readline().rstrip("\n")
    if not sys.stdin.isatty():
        raise UsageError("no terminal to ask for the password; pipe it in with --password-stdin")
    hint("At least 12 characters.")
    return str(typer.prompt("Password", hide_input=True, confirmation_prompt=True))
