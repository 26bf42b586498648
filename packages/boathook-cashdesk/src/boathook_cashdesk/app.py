"""Defines the app's `Boathook`, on which all its parts are declared, with its languages, users and pages."""

from pathlib import Path
from typing import Final

from boathook import Boathook
from boathook.languages import Languages, gettext_noop
from boathook.pages import JsonApi, Pages
from boathook.sign_in import SignIn
from boathook.sign_in import User as SignedInUser
from boathook_cashdesk.settings import CashdeskSettings

MOUNT: Final = "/cabinet"
_FOLDER: Final = Path(__file__).parent


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
