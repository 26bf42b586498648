"""Defines the app's `Boathook`, on which all its parts are declared."""

from pathlib import Path

from boathook import Boathook
from boathook_cashdesk.settings import CashdeskSettings

hook = Boathook("cashdesk", settings=CashdeskSettings, migrations=Path(__file__).with_name("migrations"))
