"""billing: subscription payments, applied exactly once, in any order and despite duplicates or delays.

app        the Boathook, and the source of payments
settings   the table [billing]: the sender, its proof, and the plans
payload    parses the provider's notices
tilda      parses Tilda's own order form
yookassa   confirms YooKassa's notifications by its API
rules      decides what a payment does: pure functions
payment_store  stores payments and subscriptions
handlers   record and apply: the two deliveries of an event
event_log  the log line of an attempt
dunning    reminders, grace and the end of subscriptions
receipts   one at the cash desk for each payment and refund
jobs       periodic jobs: wake-ups, gauges, plans
owner_tables   import of an owner's tables, and views under their names (views.sql)
staff_pages  the support page, with the actions of operator_actions
commands   boathook billing ...
simulator  generated traffic, and the expected results; tilda_simulator: the same as orders of Tilda

README.md is for operators; alerts.yml holds alert rules.
"""

from boathook_billing import commands, dunning, handlers, jobs, receipts, staff_pages, yookassa
from boathook_billing.app import hook

__all__ = ["commands", "dunning", "handlers", "hook", "jobs", "receipts", "staff_pages", "yookassa"]
