"""Commands for operators: the users of the console."""

import sys
from typing import Annotated, Any, Final

import typer

from boathook.cli.context import UsageError
from boathook.cli.derived import add
from boathook.cli.output import ID, Column, View, hint, moment_of
from boathook.service.catalogue import operator_tokens
from boathook.service.catalogue import operators as actions

operators = typer.Typer(no_args_is_help=True, help="Operators of the console.")
tokens = typer.Typer(no_args_is_help=True, help="Tokens of operators for the API.")
operators.add_typer(tokens, name="tokens")

_FROM_INPUT: Final = Annotated[
    bool, typer.Option("--password-stdin", help="Read the password from the standard input.")
]
_NO_PASSWORD: Final = Annotated[bool, typer.Option("--no-password", help="Sign in through the identity provider only.")]
_VIEW: Final = View(
    (
        Column("name", is_whole=True),
        Column("id"),
        Column("role"),
        Column("password", lambda operator: "yes" if operator.has_password else "no"),
        Column("sessions"),
        Column("signed in", moment_of("signed_in_at"), is_optional=True),
        Column("disabled", moment_of("disabled_at"), is_optional=True),
    )
)
_TOKENS: Final = View(
    (
        ID,
        Column("operator", is_whole=True),
        Column("name"),
        Column("role"),
        Column("expires", moment_of("expires_at")),
        Column("used", moment_of("used_at"), is_optional=True),
        Column("revoked", moment_of("revoked_at"), is_optional=True),
    )
)


def _read_password(_ctx: typer.Context, values: dict[str, Any]) -> dict[str, Any]:
    """Return the values with the password in place of the options that say where it comes from."""
    from_input, no_password = values.pop("from_input"), values.pop("no_password", False)
    if no_password:
        return values
    if from_input:
        return {**values, "password": sys.stdin.readline().rstrip("\n")}
    if not sys.stdin.isatty():
        raise UsageError("no terminal to ask for the password; pipe it in with --password-stdin")
    hint("At least 12 characters.")
    return {**values, "password": str(typer.prompt("Password", hide_input=True, confirmation_prompt=True))}


_PASSWORD: Final = {"password": None, "from_input": (_FROM_INPUT, False)}
add(
    operators,
    actions.create,
    "create",
    view=_VIEW,
    options={**_PASSWORD, "no_password": (_NO_PASSWORD, False)},
    read=_read_password,
)
add(operators, actions.list_operators, "list", view=_VIEW)
add(operators, actions.set_password, "password", options={**_PASSWORD, "keep": None}, read=_read_password)
add(operators, actions.set_role, "role")
add(operators, actions.disable, "disable")
add(operators, actions.enable, "enable")
add(operators, actions.delete, "delete")
add(tokens, operator_tokens.create, "create")
add(tokens, operator_tokens.list_tokens, "list", view=_TOKENS)
add(tokens, operator_tokens.revoke, "revoke")
