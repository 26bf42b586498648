"""A car-rental back office on the webhooks of RentProg and Umnico.

An event is acknowledged once it is stored. It is then recorded as a change of a car, client, booking, branch, employee
or message, and its object is written once for all changes that arrived together.

app        the Boathook object, and the languages of texts
settings   the table [fleet], and the environment variables that replace it: senders and their proof
parse      parses all formats of webhooks; words, timestamp_formats and ruby parse their parts
tables     the tables of objects: columns, and their names in the senders' data
records    stores changes and applies them
fetching   unknown objects are fetched whole; rentprog_api: the client, and its rates
late_changes  decides which changes without a timestamp are late
owner_events  events for the owner's endpoints, about bookings
handlers   note, apply, fetch
log        the error log, written outside the failed transaction
alerts     what operators are notified of; branches: those that send no webhooks
dead_letters  dead letters: list, decide, retry
status     metrics of the app
live       changes for browsers, over a WebSocket
staff      pages: cars and bookings with their timelines (timeline)
jobs       periodic jobs
owner_tables  import of an owner's tables, and views under their names (views.sql)
routes     the app's own HTTP routes; commands: boathook fleet ...
simulator  generated traffic, and the expected results; example_requests: what it varies

README.md is for operators.
"""

from collections.abc import Mapping
from typing import Any

from boathook_fleet.app import hook as hook
from boathook_fleet.settings import IGNORED, FleetSettings


@hook.sources
def sources(settings: FleetSettings) -> Mapping[str, Mapping[str, Any]]:
    """Return the sources for RentProg's and Umnico's requests."""
    return settings.sources()


@hook.channels
def channels(settings: FleetSettings) -> Mapping[str, Mapping[str, Any]]:
    """Return the channel to Telegram, if the app's own settings name a chat."""
    return settings.channels()


hook.ignored_variables(IGNORED)

# They declare handlers, jobs, alerts, routes, pages and commands.
from boathook_fleet import commands, handlers, jobs, routes, staff  # noqa: E402, F401
