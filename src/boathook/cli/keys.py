"""Commands for API keys."""

import typer

from boathook.cli.derived import add
from boathook.service.catalogue import keys as actions

keys = typer.Typer(no_args_is_help=True, help="API keys.")
add(keys, actions.create, "create")
add(keys, actions.list_keys, "list")
add(keys, actions.get, "show")
add(keys, actions.revoke, "revoke")
