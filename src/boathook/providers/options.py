"""Reads a source's own settings once; errors name the key and the fix."""

import difflib
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, TypeVar

from boathook.domain.errors import ConfigError
from boathook.domain.json_document import split_path
from boathook.providers.request_reader import Header, Json

Choice = TypeVar("Choice", bound=StrEnum)

CREDENTIAL_HEADERS = frozenset({"authorization", "proxy-authorization", "cookie", "set-cookie"})
"""Headers that hold credentials, whatever the settings say."""


class Options:
    """The provider-specific settings of one source; `finish` rejects unused ones."""

    def __init__(self, source: str, values: Mapping[str, Any]) -> None:
        self._source = source
        self._values = {key: value for key, value in values.items() if value not in (None, "")}
        self._read: set[str] = set()

    def error(self, key: str, fix: str) -> ConfigError:
        """Return the error to raise about *key*."""
        return ConfigError(f"sources.{self._source}.{key}: {fix}")

    def text(self, key: str, default: str = "") -> str:
        """Return a text setting; an integer is accepted, because ids are often written without quotes."""
        self._read.add(key)
        value = self._values.get(key, default)
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        if not isinstance(value, str):
            # Show only its type, because the value may be a secret.
            raise self.error(key, f"write text in quotes, not a {type(value).__name__}")
        return value

    def choice(self, key: str, default: Choice) -> Choice:
        """Return a setting that is one word of an enumeration."""
        kind = type(default)
        value = self.text(key, default.value).lower()
        try:
            return kind(value)
        except ValueError:
            words = ", ".join(f'"{word.value}"' for word in kind)
            raise self.error(key, f"write one of {words}, not {value!r}") from None

    def number(self, key: str, allowed: range) -> int | None:
        """Return a setting that is an integer within a range, or None if it is not set."""
        text = self.text(key)
        if not text:
            return None
        if not text.isascii() or not text.isdigit() or len(text) > 9 or int(text) not in allowed:
            raise self.error(key, f"write a whole number from {allowed[0]} to {allowed[-1]}, not {text!r}")
        return int(text)

    def header(self, key: str, default: str = "") -> Header | None:
        """Return a setting that names a header."""
        name = self.text(key, default).strip().lower()
        if not name:
            return None
        if not name.isascii() or not name.replace("-", "").replace("_", "").isalnum():
            raise self.error(key, f"{name!r} is not a valid header name; use one such as X-Signature")
        return Header(name)

    def path(self, key: str) -> Json | None:
        """Return a setting that is a path into a JSON body."""
        path = self.text(key)
        if not path:
            return None
        try:
            return Json(".".join(split_path(path)))
        except ValueError as error:
            raise self.error(key, str(error)) from None

    def selector(self, prefix: str) -> Header | Json | None:
        """Return the selector for *prefix*, from the setting WHAT_header or WHAT_path; only one may be set."""
        header, path = self.header(f"{prefix}_header"), self.path(f"{prefix}_path")
        if header and path:
            raise self.error(f"{prefix}_path", f"{prefix}_header is set too; remove one of the two")
        if header and header.name in CREDENTIAL_HEADERS:
            raise self.error(
                f"{prefix}_header", f"{header.name} contains credentials, which are never stored; use another header"
            )
        return header or path

    def closest_unread(self, key: str) -> str | None:
        """Return the unread setting with the name closest to *key*, or None if none is close."""
        unread = [name for name in self._values if name not in self._read]
        return next(iter(difflib.get_close_matches(key, unread, n=1)), None)

    def finish(self, provider: str) -> None:
        """Reject unread settings.

        Raises:
            ConfigError: there is one.
        """
        for key in self._values:
            if key not in self._read:
                near = ["secrets"] if "secret" in key else difflib.get_close_matches(key, self._read, n=1)
                names = ", ".join(sorted(self._read))
                hint = f"its settings are {names}" if names else "remove it, or use provider hmac or token"
                guess = f"perhaps {near[0]}? " if near else ""
                raise self.error(key, f"the provider {provider} has no such setting; {guess}{hint}")
