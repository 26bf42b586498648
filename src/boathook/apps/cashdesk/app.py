"""The app's `Boathook`, which everything else in this room is declared on."""

from pathlib import Path

from boathook import Boathook
from boathook.apps.cashdesk.settings import CashdeskSettings

hook = Boathook("cashdesk", settings=CashdeskSettings, migrations=Path(__file__).with_name("migrations"))
