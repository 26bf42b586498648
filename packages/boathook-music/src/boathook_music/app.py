"""Defines the app's `Boathook`, the source of its callbacks, and its metrics."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from boathook import Boathook, ConfigError
from boathook_app_tools.storage import Storage
from boathook_app_tools.storage_settings import open_storage
from boathook_music.settings import MusicSettings
from boathook_pages.languages import Languages

SOURCE: Final = "suno"
APPLICATION: Final = "music"
"""The application to which the app publishes events for its own handlers."""

hook = Boathook("music", settings=MusicSettings, migrations=Path(__file__).with_name("migrations"))

callbacks_total = hook.counter(
    "music_callbacks_total", "Callbacks, by stage and by what became of them.", "stage", "result"
)
files_total = hook.counter("music_files_total", "Attempts to keep a file, by kind and result.", "kind", "result")
file_bytes_total = hook.counter("music_file_bytes_total", "Bytes put into storage.", "kind")
lookups_total = hook.counter("music_lookups_total", "Songs asked for at the reseller, by what became of it.", "result")
overdue_tracks = hook.gauge("music_overdue_tracks", "Songs that nothing was heard of for `overdue_s`.")
waiting_callbacks = hook.gauge("music_waiting_callbacks", "Callbacks whose track is not known yet.")
credits_gauge = hook.gauge("music_credits", "The reseller's remaining credits.")
open_files = hook.gauge("music_open_files", "Files that are wanted and not stored, by state.", "state")


def _language() -> str:
    try:
        return str(settings().language)
    except ConfigError:  # before boathook has loaded the app
        return "auto"


languages = Languages(Path(__file__).with_name("locale"), setting=_language)
gettext, ngettext = languages.gettext, languages.ngettext


def settings() -> MusicSettings:
    """Return the table ``[music]``. Raises ConfigError before boathook has loaded the app."""
    config: MusicSettings = hook.settings
    return config


def incoming() -> Path:
    """Return the folder for files that are being downloaded."""
    return hook.data_dir / settings().incoming


def storage() -> Storage:
    """Return the configured storage. Raises ConfigError: a secret reference cannot be resolved."""
    return open_storage(hook, settings().storage)


@hook.sources
def sources(settings: MusicSettings) -> Mapping[str, Mapping[str, Any]]:
    """Return the source of callbacks."""
    return settings.sources
