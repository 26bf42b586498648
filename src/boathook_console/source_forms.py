"""The form of a stored source: its fields come from the provider's recipe and from the keys that every source has."""

import json
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

import msgspec
from starlette.datastructures import FormData

from boathook.domain.errors import InvalidValue
from boathook.service.receiving.sources import Recipe
from boathook.service.shown_settings import HIDDEN
from boathook_console.shared.endpoint_forms import FormReader, InvalidForm


class FieldKind(StrEnum):
    """The type of a form field, which determines its input element and its parsing."""

    TEXT = "text"
    SECRET = "password"  # noqa: S105 - the type of an input
    NUMBER = "number"
    WORDS = "words"
    JSON = "json"
    CHOICE = "choice"
    SWITCH = "switch"


class SourceField(msgspec.Struct, frozen=True):
    """A field of the form, for one key of the source."""

    key: str
    label: str
    hint: str
    kind: FieldKind = FieldKind.TEXT
    is_required: bool = False
    choices: tuple[tuple[str, str], ...] = ()
    """The values of a choice, each with what is shown for it."""


_COMMON: Final = (
    SourceField("paths", "Other paths", "Besides /in/NAME, such as /hooks/shop; separated by spaces.", FieldKind.WORDS),
    SourceField("addresses", "Networks", "Networks that may send requests, such as 203.0.113.0/24.", FieldKind.WORDS),
    SourceField("rate", "Rate", "Maximum requests per second.", FieldKind.NUMBER),
    SourceField("burst", "Burst", "Maximum requests at once; by default those of a second.", FieldKind.NUMBER),
    SourceField("max_body", "Largest body", "In bytes.", FieldKind.NUMBER),
    SourceField("tolerance_s", "Clock tolerance", "Maximum age of a signature in seconds.", FieldKind.NUMBER),
    SourceField("dedup_days", "Dedup memory", "Days for which repeated events are recognized.", FieldKind.NUMBER),
    SourceField("dedup_window_s", "Dedup window", "Seconds, instead of the days.", FieldKind.NUMBER),
    SourceField("dedup_fields", "Dedup fields", "JSON paths that identify an event together.", FieldKind.WORDS),
    SourceField("dedup_headers", "Dedup headers", "Headers that tell equal bodies apart.", FieldKind.WORDS),
    SourceField("dedup_object", "Dedup object", "JSON path of the object that an event is about."),
    SourceField("volatile", "Volatile fields", "JSON paths that may differ between attempts.", FieldKind.WORDS),
    SourceField("repeated_body", "Repeated bodies", "If a signed body comes under another id.", FieldKind.CHOICE,
                choices=(("", "accept"), ("refuse", "refuse"))),
    SourceField("retry", "Retry", "Schedule of handlers without their own: a preset's name, or seconds as in 5, 60."),
    SourceField("methods", "Methods", "GET, POST or PUT; by default those of the sender.", FieldKind.WORDS),
    SourceField("content_encodings", "Content encodings", "gzip or deflate; by default limits.content_encodings.",
                FieldKind.WORDS),
    SourceField("public_url", "Public URL", "The base URL that senders use, such as https://hooks.example.com."),
    SourceField("mode", "Replies", "inline lets the handler reply while the sender waits.", FieldKind.CHOICE,
                choices=(("", "store"), ("inline", "inline"))),
    SourceField("reply_within_s", "Reply within", "Seconds that senders of an inline source wait.", FieldKind.NUMBER),
    SourceField("fallback_status", "Fallback status", "If the handler does not reply in time.", FieldKind.NUMBER),
    SourceField("fallback_body", "Fallback body", "If the handler does not reply in time."),
    SourceField("fallback_content_type", "Fallback media type", "Of the fallback body, such as application/json."),
    SourceField("schema", "JSON Schema", "Verified bodies that violate it are rejected.", FieldKind.JSON),
    SourceField("keep_request_id", "Store the request's id with its event", "", FieldKind.SWITCH),
    SourceField("request_id_header", "Header with the sender's request id", "Such as x-request-id."),
    SourceField("unsigned", "Accept requests without verification", "", FieldKind.SWITCH),
)  # fmt: skip
"""The keys of every source."""
ELSEWHERE: Final[Mapping[str, str]] = {
    "provider": "the sender that the form is for; another sender is another source",
    "secrets": "stored apart from the settings: the first in this form, further ones on the source's page",
}
"""Keys of boathook.toml without a field of their own, each with the reason."""


def recipe_fields(recipe: Recipe) -> Sequence[SourceField]:
    """Return the fields of a provider's own settings, and of those that it needs."""
    settings = {one.name: one for part in (recipe, *recipe.schemes.values()) for one in part.settings}
    fields = [
        SourceField(
            setting.name,
            setting.name.replace("_", " ").capitalize(),
            f"{setting.help}.",
            FieldKind.SECRET if setting.is_secret else FieldKind.CHOICE if setting.choices else FieldKind.TEXT,
            setting.is_required,
            _choices(setting.choices) if setting.choices else (),
        )
        for setting in settings.values()
    ]
    if recipe.schemes:
        hint = "How the requests are signed, if not in the usual way."
        fields.insert(0, SourceField("scheme", "Scheme", hint, FieldKind.CHOICE, choices=_choices(recipe.schemes)))
    if recipe.signs_url:
        hint = "This sender signs the URL, so boathook needs its base, such as https://hooks.example.com."
        fields.insert(0, SourceField("public_url", "Public URL", hint))
    return fields


def _choices(words: Iterable[str]) -> tuple[tuple[str, str], ...]:
    return ("", "default"), *((word, word) for word in words)


def common_fields(recipe: Recipe) -> Sequence[SourceField]:
    """Return the fields that every source has, without those of `recipe_fields`."""
    taken = {field.key for field in recipe_fields(recipe)}
    return [one for one in _COMMON if one.key not in taken]


def read_settings(reader: FormReader, fields: Iterable[SourceField]) -> dict[str, Any]:
    """Return the value of each key; None if its field is empty. An empty secret is left out, as it is never shown.

    Raises:
        InvalidForm: a value is wrong.
    """
    values = {field.key: _read(reader, field) for field in fields}
    if reader.problems:
        raise InvalidForm(reader.problems)
    secrets = {field.key for field in fields if field.kind is FieldKind.SECRET}
    return {key: value for key, value in values.items() if value is not None or key not in secrets}


def _read(reader: FormReader, one: SourceField) -> Any:
    match one.kind:
        case FieldKind.NUMBER:
            return reader.number(one.key)
        case FieldKind.WORDS:
            return reader.words(one.key) or None
        case FieldKind.JSON:
            return reader.json(one.key)
        case FieldKind.SWITCH:
            return True if reader.text(one.key) else None
        case _:
            return reader.text(one.key) or None


def shown_values(settings: Mapping[str, Any], fields: Iterable[SourceField]) -> dict[str, str]:
    """Return the texts of the form's fields for the settings of a source; secret ones are empty."""
    return {field.key: _show(settings.get(field.key), field) for field in fields}


def _show(value: Any, one: SourceField) -> str:
    if value in (None, False, HIDDEN):
        return ""
    match one.kind:
        case FieldKind.WORDS:
            return " ".join(map(str, value))
        case FieldKind.JSON:
            return json.dumps(value, indent=2)
        case FieldKind.SWITCH:
            return "yes"
        case FieldKind.NUMBER:
            return f"{value:g}" if isinstance(value, float) else str(value)
        case _:
            return str(value)


def submitted_values(form: FormData, fields: Iterable[SourceField]) -> dict[str, str]:
    """Return the submitted texts to refill a form, without secrets."""
    keys = ["name", *(field.key for field in fields if field.kind is not FieldKind.SECRET)]
    return {key: str(form.get(key, "")) for key in keys}


def problem_of(error: InvalidValue, fields: Iterable[SourceField]) -> dict[str, str]:
    """Return the error of an action by field; one of a key without a field has the empty name."""
    place = [str(one) for one in error.where]
    key = place[1] if place[:1] == ["settings"] and len(place) > 1 else "".join(place[:1])
    shown = {"name", "secret", *(field.key for field in fields)}
    return {key: str(error)} if key in shown else {"": str(error)}
