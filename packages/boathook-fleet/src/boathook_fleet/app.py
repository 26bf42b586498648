"""The app's `Boathook` object, and the languages of its texts."""

from pathlib import Path
from typing import Final

from boathook import Boathook
from boathook_fleet.settings import FleetSettings
from boathook_pages.languages import Languages

FOLDER: Final = Path(__file__).parent

hook = Boathook("fleet", settings=FleetSettings, migrations=FOLDER / "migrations")
languages = Languages(
    FOLDER / "locale", setting=lambda: hook.settings.language, time_zone=lambda: hook.settings.time_zone
)
gettext, ngettext = languages.gettext, languages.ngettext
