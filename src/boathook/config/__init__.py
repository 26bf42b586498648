"""Settings: `defaults.toml` < `boathook.toml` < `BOATHOOK_*` environment < flags, each key checked."""

from boathook.config.loader import (
    FILE_NAME,
    SCHEMA_URL,
    SECTIONS,
    all_sections,
    default_settings,
    defaults,
    load,
    read_env_file,
    schema,
)
from boathook.config.sources import SourceSettings
from boathook.config.tables import LimitSettings, RetentionSettings, Settings
from boathook.config.types import Network

__all__ = [
    "FILE_NAME",
    "SCHEMA_URL",
    "SECTIONS",
    "LimitSettings",
    "Network",
    "RetentionSettings",
    "Settings",
    "SourceSettings",
    "all_sections",
    "default_settings",
    "defaults",
    "load",
    "read_env_file",
    "schema",
]
