"""A car-rental back office on the webhooks of RentProg and Umnico.

An event is acknowledged once it is stored, noted as a change of a car, client, booking, branch, employee or message,
and its thing is written once for all changes that came together. `README.md` beside this file tells the rest.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from boathook import Boathook
from boathook.apps.fleet.chores import declare_chores
from boathook.apps.fleet.commands import make_commands
from boathook.apps.fleet.handling import declare_handlers
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
