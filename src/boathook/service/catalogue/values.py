"""The base classes of lists and results, and how operations read ids, name fields and limit what a caller sees."""

import re
from collections.abc import Callable
from typing import Annotated, Any, Final, TypeVar
from uuid import UUID

from boathook.domain import ids
from boathook.domain.errors import InvalidValue, NotFound
from boathook.domain.redaction import RedactedStruct
from boathook.service.access.authorization import Principal
from boathook.service.caller import Caller
from boathook.service.fields import Input, Rule, check

Named = TypeVar("Named", bound=Any)
_NAMED: Final = re.compile(r"`(\w+)`")


class PageInput(Input, frozen=True, kw_only=True):
    """The page of a list that an operation returns."""

    limit: Annotated[int, Rule(help="Maximum rows per page.", minimum=1, maximum=250)] = 50
    iterator: Annotated[str | None, Rule(help="The iterator of the previous page.")] = None


class Result(RedactedStruct, frozen=True, kw_only=True, rename="camel"):
    """The result of an operation."""


def name_fields(text: str, name: Callable[[str], str] = str) -> str:
    """Return the text of an error with the fields that it names in backticks as an interface names them."""
    return _NAMED.sub(lambda match: name(match[1]), text)


def name_object(table: type[Named], reference: str) -> Named:
    """Return the input that names one object by a part of a path. Raises NotFound if it is invalid."""
    try:
        value: Named = check(table(id=reference))
    except InvalidValue as error:
        raise NotFound(str(error)) from None
    return value


def read_id(prefix: str, text: str) -> UUID:
    """Return the whole id of an object. Raises NotFound if it is none, as if there were no such object."""
    try:
        return ids.read(prefix, text)
    except ValueError as error:
        raise NotFound(str(error)) from None


def read_iterator(prefix: str, text: str) -> UUID:
    """Return the id in an iterator. Raises InvalidValue."""
    try:
        if text.startswith(f"{prefix}_"):
            return ids.read(prefix, text)
    except ValueError:
        pass
    raise InvalidValue(f"write an iterator of an earlier page, such as {prefix}_...", "iterator")


def flags_of(caller: Caller) -> frozenset[str] | None:
    """Return the feature flags that limit what a caller sees; None for callers who see all of an organization."""
    if isinstance(caller, Principal) and caller.application_id is not None:
        return caller.feature_flags
    return None
