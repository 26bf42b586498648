"""Validates forms and JSON bodies with pydantic, with errors in the user's language."""

from collections.abc import Mapping
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from boathook_pages.kit.errors import InvalidForm
from boathook_pages.languages import Languages, gettext_noop

Model = TypeVar("Model", bound=BaseModel)

_TEXTS: Final[Mapping[str, str]] = {
    "missing": gettext_noop("this field is required"),
    "extra_forbidden": gettext_noop("there is no such field"),
    "json_invalid": gettext_noop("the body is not valid JSON"),
    "string_type": gettext_noop("write a text"),
    "string_too_short": gettext_noop("write at least %(min_length)s characters"),
    "string_too_long": gettext_noop("write at most %(max_length)s characters"),
    "int_type": gettext_noop("write a whole number"),
    "int_parsing": gettext_noop("write a whole number"),
    "int_from_float": gettext_noop("write a whole number"),
    "int_parsing_size": gettext_noop("this number is too large"),
    "float_type": gettext_noop("write a number"),
    "float_parsing": gettext_noop("write a number"),
    "bool_type": gettext_noop("write true or false"),
    "bool_parsing": gettext_noop("write true or false"),
    "greater_than": gettext_noop("it must be greater than %(gt)s"),
    "greater_than_equal": gettext_noop("it must be at least %(ge)s"),
    "less_than": gettext_noop("it must be less than %(lt)s"),
    "less_than_equal": gettext_noop("it must be at most %(le)s"),
    "literal_error": gettext_noop("write one of: %(expected)s"),
    "enum": gettext_noop("write one of: %(expected)s"),
    "too_short": gettext_noop("there must be at least %(min_length)s of them"),
    "too_long": gettext_noop("there must be at most %(max_length)s of them"),
    "list_type": gettext_noop("it must be a list"),
    "model_type": gettext_noop("it must be an object"),
    "model_attributes_type": gettext_noop("it must be an object"),
    "dict_type": gettext_noop("it must be an object"),
}
"""The text for each type of error of pydantic; other errors have pydantic's own text."""


def read_model(model: type[Model], document: bytes | Mapping[str, Any], languages: Languages) -> Model:
    """Validate a JSON body, or the fields of a form, and return the model.

    The text of a ``ValueError`` from a validator of the model is translated, so it may be marked by `gettext_noop`.

    Raises:
        InvalidForm: the document does not match the model.
    """
    try:
        if isinstance(document, bytes):
            return model.model_validate_json(document)
        return model.model_validate(dict(document))
    except ValidationError as error:
        problems: dict[str, str] = {}
        for detail in error.errors(include_url=False, include_input=False):
            problems.setdefault(".".join(map(str, detail["loc"])), _describe(detail, languages))
        raise InvalidForm(problems) from None


def _describe(detail: Any, languages: Languages) -> str:
    context = detail.get("ctx", {})
    if detail["type"] == "value_error":
        return languages.translate(str(context["error"]))
    text = _TEXTS.get(detail["type"])
    return str(detail["msg"]) if text is None else languages.gettext(text, **context)
