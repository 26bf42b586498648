"""Defines the app's `Boathook`, and the source of its payments."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from boathook import Boathook, Event
from boathook_billing.payload import SCHEMA, Notice, read_notice
from boathook_billing.rules import Shop
from boathook_billing.settings import BillingSettings
from boathook_billing.tilda import read_order

SOURCE: Final = "payments"
IMPORTED: Final = "billing-import"
"""The application of events that an import continues."""

hook = Boathook("billing", settings=BillingSettings, migrations=Path(__file__).with_name("migrations"))


def settings() -> BillingSettings:
    """Return the table ``[billing]``. Raises ConfigError before boathook has loaded the app."""
    found: BillingSettings = hook.settings
    return found


def shop() -> Shop:
    """Return the plans for sale. Raises ConfigError before boathook has loaded the app."""
    found = settings()
    return Shop(found.offers, found.currency, found.require_amount)


def read(event: Event) -> Notice:
    """Parse an event, in the configured form unless it was imported. Raises ValueError, which names the field."""
    is_order = settings().form == "tilda" and event.application != IMPORTED
    return read_order(event.body) if is_order else read_notice(event.body)


@hook.sources
def sources(settings: BillingSettings) -> Mapping[str, Mapping[str, Any]]:
    """Return the source of payments: how they are verified, identified and validated."""
    common = {
        "secrets": [settings.secret],
        "paths": [settings.path],
        "header": settings.header,
        "keep_request_id": True,
    }
    if settings.form == "tilda":
        return {SOURCE: {"provider": "tilda", **common}}
    proof = {"provider": "hmac", "encoding": settings.encoding} if settings.proof == "hmac" else {"provider": "token"}
    return {
        SOURCE: {
            **proof,
            **common,
            # Without an event_id, the status and the bytes identify the event: a corrected amount is another one. That
            # a payment is applied once does not depend on it.
            "id_path": "event_id",
            "type_path": "status",
            "schema": SCHEMA,
        }
    }
