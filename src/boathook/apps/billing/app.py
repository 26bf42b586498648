"""The app's one `Boathook`, and the source its payments arrive at."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from boathook import Boathook
from boathook.apps.billing.payload import SCHEMA
from boathook.apps.billing.rules import Shop
from boathook.apps.billing.settings import BillingSettings

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


@hook.sources
def sources(settings: BillingSettings) -> Mapping[str, Mapping[str, Any]]:
    """Return the source of payments: how they are proven, named and checked."""
    proof = {"provider": "hmac", "encoding": settings.encoding} if settings.proof == "hmac" else {"provider": "token"}
    return {
        SOURCE: {
            **proof,
            "secrets": [settings.secret],
            "paths": [settings.path],
            "header": settings.header,
            "id_path": "event_id",
            # Without an event_id: a status that is told again is a copy, unless it is the first to say whose it is.
            "dedup_fields": ["external_payment_id", "status", "email"],
            "type_path": "status",
            "schema": SCHEMA,
        }
    }
