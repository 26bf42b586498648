"""A car-rental back office on the webhooks of RentProg and Umnico.

An event is acknowledged once it is stored, noted as a change of a car, client, booking, branch, employee or message,
and its thing is written once for all changes that came together.

settings   the table [fleet], and the environment that stands in for it: who sends, how it is proven
parse      what a webhook says, in one shape; words, moments and ruby read its parts
tables     the tables of things: which column holds what a sender calls how
records    how a change gets there
handlers   note, apply, notify
log        the error log, kept apart from the transaction that failed
alarms     critical errors, told by Telegram
letters    dead letters: seen, decided, tried again
status     how the app is doing, in its owner's words
live       changes for browsers, over a WebSocket
chores     what is done every so often
routes     the app's own HTTP routes; commands: boathook fleet ...
simulator  made-up traffic, and what the tables must say in the end

README.md is for its owner.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from boathook import Boathook
from boathook.apps.fleet.chores import declare_chores
from boathook.apps.fleet.commands import make_commands
from boathook.apps.fleet.handlers import declare_handlers
from boathook.apps.fleet.routes import mount_routes
from boathook.apps.fleet.settings import FleetSettings

hook = Boathook("fleet", settings=FleetSettings, migrations=Path(__file__).with_name("migrations"))


@hook.sources
def sources(settings: FleetSettings) -> Mapping[str, Mapping[str, Any]]:
    """Return where RentProg's and Umnico's requests arrive."""
    return settings.sources()


declare_handlers(hook)
declare_chores(hook)
mount_routes(hook)
hook.commands(make_commands(hook))
