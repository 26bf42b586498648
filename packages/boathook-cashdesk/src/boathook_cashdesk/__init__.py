"""A cash-register cabinet that notifies shops and integrators of all changes by webhooks.

The flow: a user's request (`routes`) is one transaction that changes a row and publishes its event (`actions`,
`ledger`). boathook delivers the event to each of the user's webhooks that select it, with the cash desk's retry
schedule, and keeps the record. A receipt goes to the fiscal drive (`fiscal`) between two such transactions.
"""

from boathook_cashdesk import fiscal, routes
from boathook_cashdesk.app import hook
from boathook_cashdesk.commands import commands

__all__ = ["fiscal", "hook", "routes"]

hook.commands(commands)
