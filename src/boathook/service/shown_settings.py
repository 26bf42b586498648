"""Settings for display: secrets are shown only as references."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from boathook.config import Settings, SourceSettings, default_settings
from boathook.config.faults import is_secret
from boathook.config.packages import hidden_keys
from boathook.config.sources import FIELDS
from boathook.domain.errors import ConfigError

HIDDEN: Final = "(hidden)"
"""Shown instead of a secret."""


def all_settings(settings: Settings) -> dict[str, Any]:
    """Return every setting as plain values; secrets only as the references in the settings."""
    plain = settings.model_dump(
        mode="json", exclude={"file", "extra", "origins", "stored", "tables", "unknown_variables"}
    )
    plain["database"]["url"] = without_password(settings.database.url)
    outbound = plain["outbound"]
    outbound["proxy"] = without_password(outbound["proxy"])
    outbound["encryption_keys"] = [reference(key) for key in outbound["encryption_keys"]]
    channels = plain["notifications"]["channels"]
    for name, channel in settings.notifications.channels.items():
        hidden = {key: channels[name][key] for key in hidden_keys(type(channel))}
        channels[name] |= {key: text and reference(text) for key, text in hidden.items()}
    for source in plain["sources"].values():
        source["secrets"] = [reference(secret) for secret in source["secrets"]]
    plain["sources"] = {name: hide_secrets(source) for name, source in plain["sources"].items()}
    for section, table in settings.package_tables:
        plain[section] = plain.get(section, {}) | _without_secrets(
            table.model_dump(mode="json"), hidden_keys(type(table))
        )
    return plain


def _without_secrets(keys: Mapping[str, Any], hidden: Collection[str]) -> dict[str, Any]:
    """Return keys of a package, URLs without passwords, other secrets only as references.

    Args:
        keys: the keys, also with tables as values.
        hidden: the keys that are secrets, besides those whose names say so.
    """

    def shown(key: str, value: Any) -> Any:
        match value:
            case dict() if key in hidden:
                return {name: reference(text) for name, text in value.items()}
            case dict():
                return _without_secrets(value, hidden)
            case str() if value.startswith("data:"):
                return _shortened(value)
            case str() if "://" in value:
                return without_password(value)
            case str() if value and (key in hidden or is_secret(key)):
                return reference(value)
            case _:
                return value

    return {key: shown(key, value) for key, value in keys.items()}


def hide_secrets(source: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of one source, with a password and other secrets of its recipe hidden unless references."""
    hidden = source.keys() - FIELDS.keys() - _open_settings(source["provider"])
    masked = {key: reference(value) if key in hidden else value for key, value in source.items()}
    return masked | ({"password": reference(masked["password"])} if masked.get("password") else {})


class ShownSetting(msgspec.Struct, frozen=True):
    """One setting for display."""

    key: str
    """Its dotted key, such as ``server.bind``."""
    value: str
    default: str
    """Empty for a setting without a default, such as one of an alert channel."""
    origin: str
    """Where it was set; empty for a default."""

    @property
    def is_changed(self) -> bool:
        """Whether it differs from its default."""
        return self.value != self.default


def list_settings(settings: Settings) -> Sequence[ShownSetting]:
    """Return every setting that has a value or a default, with its origin, in the order of the sections."""
    current = dict(_flatten(all_settings(settings)))
    sources = {name: SourceSettings(provider=name).model_dump(mode="json") for name in settings.sources}
    usual = dict(_flatten({**all_settings(default_settings()), "sources": sources}))
    keys = [key for key in {**current, **usual} if current.get(key) is not None or usual.get(key) is not None]
    return [
        ShownSetting(key, _as_text(current.get(key)), _as_text(usual.get(key)), _origin(settings, key)) for key in keys
    ]


def find_settings(settings: Settings, words: str, *, is_changed_only: bool) -> Sequence[ShownSetting]:
    """Return the settings whose key, value or origin contains all of the words, in any letter case."""
    search_words = words.casefold().split()
    return [
        setting
        for setting in list_settings(settings)
        if (setting.is_changed or not is_changed_only)
        and all(word in f"{setting.key} {setting.value} {setting.origin}".casefold() for word in search_words)
    ]


def _flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _origin(settings: Settings, key: str) -> str:
    """Return the origin of the longest part of a key that was set as a whole; stored sources are set as a whole."""
    if any(key.startswith(f"sources.{name}.") for name in settings.stored):
        return "stored in PostgreSQL"
    parts = key.split(".")
    prefixes = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((settings.origins[prefix] for prefix in prefixes if prefix in settings.origins), "")


def _as_text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else msgspec.json.format(msgspec.json.encode(value), indent=0).decode()


def _shortened(url: str) -> str:
    """Return the beginning of a data URL."""
    head, comma, data = url.partition(",")
    return f"{head},({len(data):,} characters)" if comma else url


def _open_settings(provider: str) -> set[str]:
    """Return the names of a provider's own settings that are not secret."""
    from boathook.providers import find_recipe

    try:
        return {setting.name for setting in find_recipe(provider).settings if not setting.is_secret}
    except ConfigError:
        return set()


def reference(secret: object) -> str:
    """Return the reference of a secret, such as ``env:NAME``; hide a secret that is written out."""
    return secret if isinstance(secret, str) and secret.startswith(("env:", "file:")) else HIDDEN


def without_password(url: str) -> str:
    """Return a URL for display, without its password."""
    scheme, slashes, rest = url.partition("://")
    user, at, host = rest.rpartition("@")
    return f"{scheme}{slashes}{user.partition(':')[0]}:(hidden)@{host}" if at and ":" in user else url
