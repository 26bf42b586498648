"""The operators of a filter, compiled to predicates on one value of a body or header."""

from collections.abc import Callable, Mapping
from typing import Any, Final

MAX_CONDITIONS: Final = 200
"""Maximum number of conditions in one filter, so that one route cannot slow down every request."""

ABSENT: Final = object()
"""Represents a missing value; JSON null counts as present."""

Condition = Callable[[Any], bool]


class Budget:
    """The number of conditions that a filter may still contain while it is compiled."""

    def __init__(self) -> None:
        self.left = MAX_CONDITIONS

    def spend(self, where: str) -> None:
        """Subtract one condition. Raises ValueError when none is left."""
        self.left -= 1
        if self.left < 0:
            raise ValueError(f"{where}: a filter has at most {MAX_CONDITIONS} conditions")


def compile_condition(wanted: Any, where: str, budget: Budget) -> Condition:
    """Return a predicate: equality for a bare value, or the conjunction of all operators of a mapping.

    Raises:
        ValueError: *wanted* is neither; the message starts with its location, *where*.
    """
    if not isinstance(wanted, Mapping):
        budget.spend(where)
        return _equal(_scalar(wanted, where))
    if not wanted:
        raise ValueError(f'{where}: write a value or operators such as {{"gt": 100}}')
    conditions = [_operator(name, operand, f"{where}.{name}", budget) for name, operand in wanted.items()]
    return conditions[0] if len(conditions) == 1 else lambda value: all(condition(value) for condition in conditions)


def _operator(name: str, operand: Any, where: str, budget: Budget) -> Condition:
    budget.spend(where)
    match name:
        case "eq":
            return _equal(_scalar(operand, where))
        case "ne":
            return _negate(_equal(_scalar(operand, where)))
        case "in":
            return _member(operand, where)
        case "nin":
            return _negate(_member(operand, where))
        case "gt" | "gte" | "lt" | "lte":
            return _ordered(name, operand, where)
        case "exists":
            if not isinstance(operand, bool):
                raise ValueError(f"{where}: write true or false, not {operand!r}")  # noqa: TRY004 - all errors in a filter are ValueErrors
            return lambda value: (value is not ABSENT) is operand
        case "contains":
            return _contains(_scalar(operand, where))
        case "starts_with":
            start = _text(operand, where)
            return lambda value: isinstance(value, str) and value.startswith(start)
        case "ends_with":
            end = _text(operand, where)
            return lambda value: isinstance(value, str) and value.endswith(end)
        case _:
            known = "eq, ne, in, nin, gt, gte, lt, lte, exists, contains, starts_with, ends_with"
            raise ValueError(f"{where}: there is no such operator; write one of {known}")


def _equal(wanted: Any) -> Condition:
    # In Python True equals 1; in JSON they are different values.
    is_bool = isinstance(wanted, bool)
    return lambda value: value is not ABSENT and isinstance(value, bool) is is_bool and bool(value == wanted)


def _negate(condition: Condition) -> Condition:
    return lambda value: not condition(value)


def _member(operand: Any, where: str) -> Condition:
    if not is_list(operand):
        raise ValueError(f"{where}: write a list of values, not {operand!r}")
    # Same comparison as `_equal`, but in constant time for lists of any length.
    members = frozenset((isinstance(wanted, bool), _scalar(wanted, where)) for wanted in operand)
    return lambda value: not isinstance(value, (list, dict)) and (isinstance(value, bool), value) in members


_COMPARE: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "gt": lambda value, bound: value > bound,
    "gte": lambda value, bound: value >= bound,
    "lt": lambda value, bound: value < bound,
    "lte": lambda value, bound: value <= bound,
}


def _ordered(name: str, bound: Any, where: str) -> Condition:
    if not _is_number(bound) and not isinstance(bound, str):
        raise ValueError(f"{where}: write a number or text to compare with, not {bound!r}")
    compare, kind = _COMPARE[name], _is_number if _is_number(bound) else _is_text
    return lambda value: kind(value) and compare(value, bound)


def _contains(wanted: Any) -> Condition:
    equal = _equal(wanted)

    def condition(value: Any) -> bool:
        if isinstance(value, str):
            return isinstance(wanted, str) and wanted in value
        return isinstance(value, list) and any(equal(item) for item in value)

    return condition


def _scalar(value: Any, where: str) -> Any:
    if value is None or isinstance(value, (str, bool)) or _is_number(value):
        return value
    raise ValueError(f"{where}: write text, a number, true, false or null, not {value!r}")


def _text(value: Any, where: str) -> str:
    if isinstance(value, str):
        return value
    raise ValueError(f"{where}: write text, not {value!r}")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value == value  # noqa: PLR0124 - NaN is none


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def is_list(value: Any) -> bool:
    """Return whether *value* was written as a list."""
    return isinstance(value, (list, tuple))
