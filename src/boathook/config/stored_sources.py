"""Reads the settings of sources that are stored in PostgreSQL: the keys of boathook.toml, without references."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from pydantic import ValidationError

from boathook.config.faults import describe_error
from boathook.config.loader import SOURCE_NAME, suggest_source_key
from boathook.config.sources import FIELDS, SourceSettings
from boathook.config.types import MAX_STORED_NUMBER
from boathook.domain.errors import ConfigError
from boathook.domain.json_document import MAX_DEPTH

MAX_NAME_LENGTH: Final = 100
MAX_SETTINGS_BYTES: Final = 131_072
"""Maximum size of the settings of one source as JSON."""
_REFERENCES: Final = ("env:", "file:")
_SECRET_KEYS: Final = frozenset({"secret", "secrets"})


def check_source_name(name: str) -> str:
    """Return a valid name of a source. Raises ConfigError."""
    if not SOURCE_NAME.fullmatch(name):
        raise ConfigError(
            f"sources.{name[:MAX_NAME_LENGTH]!r}: invalid source name: it is used in the URL;"
            " use letters, digits, . _ and -, and begin with a letter or digit"
        )
    if len(name) > MAX_NAME_LENGTH:
        raise ConfigError(f"sources.{name[:MAX_NAME_LENGTH]}: the name has more than {MAX_NAME_LENGTH} characters")
    return name


def read_stored_source(name: str, values: Mapping[str, Any]) -> SourceSettings:
    """Return the settings of a stored source from its keys, without secrets.

    A reference such as ``env:NAME`` is an error wherever it is: operators of the console must not read the environment
    and the files of the host. For the same reason a schema is a table, and never the path of a file.

    Raises:
        ConfigError: the name or a key is wrong; the message begins with ``sources.NAME.KEY``.
    """
    check_source_name(name)
    for key in values:
        _check_key(name, key)
    _check_parts(name, values)
    if isinstance(values.get("schema"), str):
        raise ConfigError(
            f"sources.{name}.schema: the path of a file belongs in boathook.toml; write the JSON Schema itself"
        )
    try:
        source = SourceSettings.model_validate({"provider": name, **values})
    except ValidationError as error:
        # Begins with the place of the setting, which is always this table.
        message = describe_error(error, lambda _key: "", f"sources.{name}").removeprefix(": ")
        raise ConfigError(message) from None
    if len(write_stored_source(source)) > MAX_SETTINGS_BYTES:
        raise ConfigError(f"sources.{name}: its settings have more than {MAX_SETTINGS_BYTES:,} bytes; shorten them")
    return source


def write_stored_source(source: SourceSettings) -> str:
    """Return the keys that a source sets as JSON, for `read_stored_source`."""
    return json.dumps(stored_values(source))


def stored_values(source: SourceSettings) -> dict[str, Any]:
    """Return the keys that a source sets as plain values, the provider first."""
    values = source.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude={"secrets"})
    return {"provider": source.provider, **values}


def _check_key(name: str, key: str) -> None:
    if key in _SECRET_KEYS:
        raise ConfigError(f"sources.{name}.{key}: secrets are not settings; add them as secrets of the source")
    if key not in FIELDS and (hint := suggest_source_key(name, key)):
        raise ConfigError(f"sources.{name}.{key} is not a setting{hint}")


def _check_parts(name: str, values: Mapping[str, Any]) -> None:
    """Check each text and number of the settings. Raises ConfigError."""
    for key, part in _parts(values):
        if part is None:
            raise ConfigError(f"sources.{name}.{key}: it is nested too deeply; write at most {MAX_DEPTH} levels")
        if isinstance(part, str) and part.startswith(_REFERENCES):
            raise ConfigError(
                f"sources.{name}.{key}: a reference such as env:NAME or file:PATH belongs in boathook.toml;"
                " write the value itself"
            )
        # NaN is not below the limit either.
        if isinstance(part, int | float) and not abs(part) <= MAX_STORED_NUMBER:
            raise ConfigError(f"sources.{name}.{key}: must be at most {MAX_STORED_NUMBER} (it is {part!r})")


def _parts(value: object, key: str = "", depth: int = 0) -> Iterator[tuple[str, str | int | float | None]]:
    """Yield each text and number within a value, with its dotted key; None for what is nested too deeply."""
    if depth > MAX_DEPTH:
        yield key.partition(".")[0], None
        return
    match value:
        case str() | int() | float():
            yield key, value
        case Mapping():
            for name, part in value.items():
                yield from _parts(part, f"{key}.{name}" if key else str(name), depth + 1)
        case list() | tuple():
            for position, part in enumerate(value):
                yield from _parts(part, f"{key}[{position}]", depth + 1)
