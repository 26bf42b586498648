"""Defines the app's `Boathook`, on which all its parts are declared, with languages, users, pages and webhooks."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from boathook import Boathook
from boathook_cashdesk import wire
from boathook_cashdesk.entities import EVENT_TYPES, Entity
from boathook_cashdesk.settings import CashdeskSettings
from boathook_pages import JsonApi, Pages
from boathook_pages.languages import Languages, gettext_noop
from boathook_pages.sign_in import SignIn
from boathook_pages.sign_in import User as SignedInUser
from boathook_pages.user_webhooks import Kind, UserWebhooks, add_pages, add_routes

MOUNT: Final = "/cabinet"
_FOLDER: Final = Path(__file__).parent
_TITLES: Final = {
    Entity.PRODUCTS: gettext_noop("products"),
    Entity.RECEIPTS: gettext_noop("receipts"),
    Entity.SHIFTS: gettext_noop("shifts"),
    Entity.ENCASHMENTS: gettext_noop("encashments"),
    Entity.DEVICES: gettext_noop("devices"),
    Entity.OPERATIONS: gettext_noop("operations"),
}


class User(SignedInUser):
    """A shop or an integrator with its own cabinet."""

    @property
    def application(self) -> str:
        """The uid of the application that the user's events are published to."""
        return f"cashdesk-{self.id}"


hook = Boathook("cashdesk", settings=CashdeskSettings, migrations=_FOLDER / "migrations")
languages = Languages(
    _FOLDER / "locale", setting=lambda: hook.settings.language, time_zone=lambda: hook.settings.time_zone
)
gettext = languages.gettext
sign_in = SignIn(
    hook,
    token_prefix="cdk_",  # noqa: S106 - the beginning of every token
    session_hours=lambda: hook.settings.session_hours,
    user=User,
)
pages = Pages(
    hook,
    MOUNT,
    title=gettext_noop("Cabinet"),
    folder=_FOLDER,
    languages=languages,
    sign_in=sign_in,
    public_url=lambda: hook.settings.public_url,
)
api = JsonApi(hook, sign_in, languages)
webhooks = UserWebhooks(
    hook,
    languages,
    kinds={
        entity.value: Kind(title, f"{entity}.*", tuple(type for type in EVENT_TYPES if type.startswith(f"{entity}.")))
        for entity, title in _TITLES.items()
    },
    test_payload=lambda webhook: wire.test_body(hook.settings.format, webhook),
    limit=lambda: hook.settings.max_webhooks,
    retry="cashdesk",  # 5 s, 1 min, 1 h, 3 h and 24 h
    timeout_s=20.0,
    never=("deviceRegistrations",),  # Dreamkas' clients name it too
)
add_pages(webhooks, pages)
add_routes(webhooks, api)
pages.nav("/", gettext_noop("Webhooks"))


@pages.values
def _values() -> Mapping[str, Any]:
    return {"is_simulated": hook.settings.drive.is_simulated}
