"""The app's one `Boathook`, and the source its payments arrive at."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from boathook import Boathook
from boathook.apps.billing.payload import SCHEMA, Notice, read_notice
from boathook.apps.billing.rules import Shop
from boathook.apps.billing.settings import BillingSettings
from boathook.apps.billing.tilda import read_order

SOURCE: Final = "payments"

hook = Boathook("billing", settings=BillingSettings, migrations=Path(__file__).with_name("migrations"))


def settings() -> BillingSettings:
    """Return the table ``[billing]``. Raises ConfigError before boathook has loaded the app."""
    found: BillingSettings = hook.settings
    return found


def shop() -> Shop:
    """Return what is sold. Raises ConfigError before boathook has loaded the app."""
    found = settings()
    return Shop(found.offers, found.currency, found.require_amount)


def read(body: bytes) -> Notice:
    """Return what a proven body tells, in the form that the settings name. Raises ValueError, which names the field."""
    return read_order(body) if settings().form == "tilda" else read_notice(body)


@hook.sources
def sources(settings: BillingSettings) -> Mapping[str, Mapping[str, Any]]:
    """Return the source of payments: how they are proven, named and checked."""
    place = {"secrets": [settings.secret], "paths": [settings.path], "header": settings.header}
    if settings.form == "tilda":
        return {SOURCE: {"provider": "tilda", **place}}
    proof = {"provider": "hmac", "encoding": settings.encoding} if settings.proof == "hmac" else {"provider": "token"}
    return {
        SOURCE: {
            **proof,
            **place,
            "id_path": "event_id",
            # Without an event_id: a status that is told again is a copy, unless it is the first to say whose it is.
            "dedup_fields": ["external_payment_id", "status", "email"],
            "type_path": "status",
            "schema": SCHEMA,
        }
    }
