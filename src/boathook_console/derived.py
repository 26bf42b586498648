"""Reads forms of operations, and says what is wrong with them."""

from typing import Any, TypeVar

import msgspec

from boathook.domain.errors import BoathookError, InvalidValue
from boathook.service.catalogue.operation import Operation
from boathook.service.catalogue.values import name_fields
from boathook.service.field_values import parse_texts
from boathook.service.fields import check
from boathook_console.shared.context import RequestContext

In = TypeVar("In", bound=msgspec.Struct)


def read_form(context: RequestContext, operation: Operation[In, Any], *names: str, **values: Any) -> In:
    """Return the input of an operation from a form.

    Args:
        context: the request with the form.
        operation: the operation.
        names: the fields that the form has, by their Python names.
        values: fields that the form does not have as they are, by their Python names.

    Raises:
        InvalidValue: a field is missing or breaks its rule; names the field.
    """
    own = [field for field in operation.fields if field.name in names]
    texts = {field.public_name: context.field(field.name) for field in own}
    parsed, problems = parse_texts(operation.input, texts)
    for problem in problems:
        raise InvalidValue(problem.text, *problem.where)
    return check(operation.input(**parsed, **values))


def check_typed(context: RequestContext, operation: Operation[Any, Any]) -> None:
    """Raise InvalidValue unless the word that confirms an operation was typed."""
    if context.field("typed").strip().lower() != operation.must_type:
        raise InvalidValue(f"type {operation.must_type} to confirm", "typed")


def problem_of(error: BoathookError | None) -> tuple[str, str]:
    """Return the field that an error is about, empty if it is about none, and its text as a page shows it."""
    if error is None:
        return "", ""
    field = str(error.where[0]) if isinstance(error, InvalidValue) and error.where else ""
    return field, name_fields(str(error))
