"""Commands for operators: the users of the console."""

import sys
from datetime import timedelta
from typing import Annotated, Final

import typer

from boathook.cli.commands import example
from boathook.cli.context import UsageError, run_in_transaction
from boathook.cli.options import Json, lifetime_option
from boathook.cli.output import ID, Column, View, hint, moment_of, print_done
from boathook.domain import ids
from boathook.domain.model import Role
from boathook.service.access import operator_tokens
from boathook.service.access import operators as actions
from boathook.service.id_prefixes import find_ids
from boathook.service.unit_of_work import UnitOfWork

operators = typer.Typer(no_args_is_help=True, help="Operators of the console.")
tokens = typer.Typer(no_args_is_help=True, help="Tokens of operators for the API.")
operators.add_typer(tokens, name="tokens")

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
    """Disable an operator, end the sessions and revoke the tokens."""
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


_TOKENS: Final = View(
    (
        ID,
        Column("operator", is_whole=True),
        Column("name"),
        Column("role"),
        Column("expires", moment_of("expires_at")),
        Column("used", moment_of("used_at"), is_optional=True),
        Column("revoked", moment_of("revoked_at"), is_optional=True),
    ),
    ("id", "operator", "name", "role", "created_at", "expires_at", "used_at", "revoked_at"),
)


@tokens.command("create", epilog=example(
    "boathook operators tokens create anna@example.com --name laptop",
    "boathook operators tokens create ci --name deploy --role operator --expires 7d --json",
))  # fmt: skip
def create_token(
    ctx: typer.Context,
    operator: Annotated[str, typer.Argument(help="The operator's name.")],
    name: Annotated[str, typer.Option(help="What uses the token.")],
    role: Annotated[Role | None, typer.Option(help="A lower role than the operator's.")] = None,
    expires: Annotated[
        timedelta | None, lifetime_option("Lifetime, 90d at most: 30d, 12h. Default: 30d.", "--expires")
    ] = None,
    as_json: Json = False,
) -> None:
    """Create a token and print it once; it is not stored."""
    lifetime = expires or operator_tokens.DEFAULT_LIFETIME
    created = run_in_transaction(ctx, lambda work: operator_tokens.create(work, operator, name, role, lifetime))
    print_done({"token": created.text, **_TOKENS.plain(created.token)}, created.text, as_json=as_json)


@tokens.command("list", epilog=example("boathook operators tokens list", "boathook operators tokens list ci --json"))
def list_tokens(
    ctx: typer.Context,
    operator: Annotated[str | None, typer.Argument(help="Only of this operator.", show_default=False)] = None,
    as_json: Json = False,
) -> None:
    """List tokens, newest first."""
    rows = run_in_transaction(ctx, lambda work: operator_tokens.list_all(work, operator))
    _TOKENS.print_rows(rows, as_json=as_json)


@tokens.command("revoke", epilog=example("boathook operators tokens revoke otk_01h455vb4pex5vsknk084sn02q4"))
def revoke_token(
    ctx: typer.Context,
    token: Annotated[str, typer.Argument(metavar="TOKEN", help="Id as listed, or the beginning of it.")],
    as_json: Json = False,
) -> None:
    """Revoke a token immediately."""

    async def revoke(work: UnitOfWork) -> str:
        (identifier,) = await find_ids(work.connection, ids.OPERATOR_TOKEN, [token])
        await operator_tokens.revoke(work, identifier)
        return ids.show(ids.OPERATOR_TOKEN, identifier)

    revoked = run_in_transaction(ctx, revoke)
    print_done({"id": revoked, "revoked": True}, f"{revoked} revoked", as_json=as_json)


def _ask_password(*, from_input: bool) -> str:
    if from_input:
        return sys.stdin.readline().rstrip("\n")
    if not sys.stdin.isatty():
        raise UsageError("no terminal to ask for the password; pipe it in with --password-stdin")
    hint("At least 12 characters.")
    return str(typer.prompt("Password", hide_input=True, confirmation_prompt=True))
