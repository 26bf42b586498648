"""Defines the app's `Boathook`, and the source of its payments."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from boathook import Boathook, Event
from boathook_billing.payload import SCHEMA, Notice, read_notice
from boathook_billing.rules import Shop
from boathook_billing.settings import YOOKASSA, BillingSettings
from boathook_billing.tilda import read_order
from boathook_pages.languages import Languages

SOURCE: Final = "payments"
IMPORTED: Final = "billing-import"
"""The application of events that an import continues."""
STEPS: Final = "billing-steps"
"""The application of the scheduled steps of subscriptions."""
RECEIPTS: Final = "billing-receipts"
"""The application of receipts to be issued."""
YOOKASSA_SOURCE: Final = "payments-yookassa"
CONFIRMED: Final = "billing-yookassa"
"""The application of payments that YooKassa's API has confirmed."""

STAFF: Final = "billing-staff"
"""The application of what operators note about payments."""

hook = Boathook("billing", settings=BillingSettings, migrations=Path(__file__).with_name("migrations"))

languages = Languages(
    Path(__file__).with_name("locale"),
    setting=lambda: settings().language,
    time_zone=lambda: settings().time_zone,
)
gettext, ngettext = languages.gettext, languages.ngettext


def settings() -> BillingSettings:
    """Return the table ``[billing]``. Raises ConfigError before boathook has loaded the app."""
    values: BillingSettings = hook.settings
    return values


def shop() -> Shop:
    """Return the plans for sale. Raises ConfigError before boathook has loaded the app."""
    values = settings()
    return Shop(values.offers, values.currency, values.require_amount)


def read(event: Event) -> Notice:
    """Parse an event: of the source, in the configured form. Raises ValueError, which names the field."""
    is_order = settings().form == "tilda" and event.source == SOURCE
    return read_order(event.body) if is_order else read_notice(event.body)


def provider_of(event: Event) -> str:
    """Return the provider that is stored with an event's payment."""
    if event.application == STAFF:
        return str(event.json["provider"])
    return YOOKASSA if event.application == CONFIRMED else settings().provider


@hook.sources
def sources(settings: BillingSettings) -> Mapping[str, Mapping[str, Any] | None]:
    """Return the sources of payments: how they are verified, identified and validated."""
    shop = settings.yookassa
    yookassa = None if shop is None else {"provider": "yookassa", "paths": [shop.path], "keep_request_id": True}
    return {SOURCE: _payments(settings), YOOKASSA_SOURCE: yookassa}


def _payments(settings: BillingSettings) -> Mapping[str, Any] | None:
    if settings.secret is None:
        return None
    common = {
        "secrets": [settings.secret],
        "paths": [settings.path],
        "header": settings.header,
        "keep_request_id": True,
    }
    if settings.form == "tilda":
        return {"provider": "tilda", **common}
    proof = {"provider": "hmac", "encoding": settings.encoding} if settings.proof == "hmac" else {"provider": "token"}
    return {
        **proof,
        **common,
        # Without an event_id, the status and the bytes identify the event: a corrected amount is another one. That a
        # payment is applied once does not depend on it.
        "id_path": "event_id",
        "type_path": "status",
        "schema": SCHEMA,
    }
