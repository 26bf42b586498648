"""Defines the app's `Boathook`, the source of its callbacks, and its metrics."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from boathook import Boathook
from boathook_app_tools.storage import Storage
from boathook_app_tools.storage_settings import open_storage
from boathook_music.settings import MusicSettings

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
hook.alert_rule(
    "unknown_stage",
    "callbacks with an unknown stage in {period}: {value}",
    metric="music_callbacks_total",
    labels={"stage": ["unknown"]},
    measure="increase",
    over_s=900,
    above=0,
    advice="Their tracks are unchanged: see `boathook music deliveries list --status failed`.",
)
hook.alert_rule(
    "overdue_tracks",
    "songs without a callback: {value}",
    metric="music_overdue_tracks",
    above=0,
    advice="See `boathook music tracks list --overdue`, and check that the reseller reaches callBackUrl.",
)
credits_gauge = hook.gauge("music_credits", "The reseller's remaining credits.")
hook.alert_rule(
    "low_credits",
    "the reseller's credits are running out: {value} are left",
    metric="music_credits",
    below=50,
    advice="Buy credits at the reseller, or orders will fail.",
)
open_files = hook.gauge("music_open_files", "Files that are wanted and not stored, by state.", "state")


def settings() -> MusicSettings:
    """Return the table ``[music]``. Raises ConfigError before boathook has loaded the app."""
    found: MusicSettings = hook.settings
    return found


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
