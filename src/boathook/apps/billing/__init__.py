"""billing: subscription payments, applied exactly once, whatever order, copies or delays they come with.

app        the Boathook, and the source payments arrive at
settings   the table [billing]: who sends them, how they prove it, what is sold
payload    what the provider tells
tilda      what Tilda itself tells of an order
rules      what becomes of a payment: pure decisions
books      what is written about payments and subscriptions
handlers   record and apply: an event's two deliveries
chores     waking, expiry, gauges
commands   boathook billing ...
simulator  made-up traffic, and what the books must say in the end

README.md is for its owner; alerts.yml holds the rules to be warned by.
"""

from boathook.apps.billing import chores, commands, handlers
from boathook.apps.billing.app import hook

__all__ = ["chores", "commands", "handlers", "hook"]
