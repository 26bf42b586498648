"""The form of a stored source: reads and refills the fields of its settings."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from starlette.datastructures import FormData

from boathook.domain.errors import InvalidValue
from boathook.service.fields import Field
from boathook.service.receiving.source_fields import parse_setting, show_setting

ELSEWHERE: Final[Mapping[str, str]] = {
    "provider": "the sender that the form is for; another sender is another source",
    "secrets": "stored apart from the settings: the first in this form, further ones on the source's page",
}
"""Keys of boathook.toml without a field of their own, each with the reason."""


def choices_of(field: Field) -> Sequence[tuple[str, str]]:
    """Return the values of a choice, each with what is shown for it; the default is empty."""
    default = field.default or "default"
    return ("", default), *((word, word) for word in field.choices if word != field.default)


def read_settings(form: FormData, fields: Iterable[Field]) -> dict[str, Any]:
    """Return the value of each key; None if its field is empty. An empty secret is left out, as it is never shown.

    Raises:
        InvalidValue: a value is not JSON.
    """
    values = {field.name: parse_setting(field, str(form.get(field.name, ""))) for field in fields}
    secrets = {field.name for field in fields if field.rule.is_secret}
    return {key: value for key, value in values.items() if value is not None or key not in secrets}


def shown_values(settings: Mapping[str, Any], fields: Iterable[Field]) -> dict[str, str]:
    """Return the texts of the form's fields for the settings of a source; secret ones are empty."""
    return {field.name: show_setting(field, settings.get(field.name)) for field in fields}


def submitted_values(form: FormData, fields: Iterable[Field]) -> dict[str, str]:
    """Return the submitted texts to refill a form, without secrets."""
    keys = ["name", *(field.name for field in fields if not field.rule.is_secret)]
    return {key: str(form.get(key, "")) for key in keys}


def problem_of(error: InvalidValue, fields: Iterable[Field]) -> dict[str, str]:
    """Return the error of an action by field; one of a key without a field has the empty name."""
    place = [str(part) for part in error.where]
    key = place[1] if place[:1] == ["settings"] and len(place) > 1 else "".join(place[:1])
    form_keys = {"name", "secret", *(field.name for field in fields)}
    return {key: str(error)} if key in form_keys else {"": str(error)}
