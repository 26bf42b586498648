"""Routing: type patterns with ``*``, channels, filters on body and headers, and order keys.

A filter is a mapping; all of its conditions must hold::

    {"body": {"data.object.amount": {"gte": 100, "lt": 5000}, "data.object.currency": "eur"},
     "headers": {"x-github-event": {"in": ["push", "release"]}}}

Filters can be combined with ``{"any": [...]}``, ``{"all": [...]}`` and ``{"not": {...}}``. A bare value means equality.
A filter is validated when it is compiled and runs in linear time in the size of the body: there are no regular
expressions.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final

import msgspec

from boathook.domain.homes import Assignment
from boathook.domain.json_document import UNREADABLE, get_path, parse, scalar_text, short_key, split_path
from boathook.domain.model import MAX_DELIVERIES, NewDelivery, Route

MAX_NESTING: Final = 10
MAX_CONDITIONS: Final = 200
"""Maximum number of conditions in one filter, so that one route cannot slow down every request."""
MAX_PLANS: Final = 4_096
WHOLE: Final = "*"
"""Used instead of an order path: all deliveries of a recipient run in order, independent of their bodies."""

ABSENT: Final = object()
"""Represents a missing value; JSON null counts as present."""

Parse = Callable[[bytes], Any]
"""Parses a body as JSON; returns `UNREADABLE` if it is not JSON."""


class Pattern:
    """A pattern of event types; ``*`` matches any characters, all other characters match themselves."""

    __slots__ = ("_exact", "_head", "_middle", "_tail")

    def __init__(self, text: str) -> None:
        if not text:
            raise ValueError("a type pattern is empty; write * for every type")
        head, *rest = text.split("*")
        self._exact = text if not rest else None
        self._head = head
        self._tail = rest[-1] if rest else ""
        self._middle = tuple(part for part in rest[:-1] if part)

    def matches(self, type: str) -> bool:
        """Return whether the pattern matches the whole of *type*."""
        if self._exact is not None:
            return type == self._exact
        if len(type) < len(self._head) + len(self._tail):
            return False
        if not (type.startswith(self._head) and type.endswith(self._tail)):
            return False
        # The leftmost match of each part leaves the most text for the next one, so no backtracking is needed.
        start, end = len(self._head), len(type) - len(self._tail)
        for part in self._middle:
            position = type.find(part, start, end)
            if position < 0:
                return False
            start = position + len(part)
        return True


class FilterInput(msgspec.Struct, frozen=True):
    """The values that a filter tests."""

    body: Any
    """The parsed JSON, or `UNREADABLE`: then every condition on the body is false, and only ``not`` inverts that."""
    headers: Mapping[str, str]
    """Header values by lower-case names."""


Test = Callable[[FilterInput], bool]
_Condition = Callable[[Any], bool]
"""A predicate on one value of a body or header."""


class _Budget:
    """The number of conditions that a filter may still contain while it is compiled."""

    def __init__(self) -> None:
        self.left = MAX_CONDITIONS

    def spend(self, location: str) -> None:
        """Subtract one condition. Raises ValueError when none is left."""
        self.left -= 1
        if self.left < 0:
            raise ValueError(f"{location}: a filter has at most {MAX_CONDITIONS} conditions")


def compile_filter(filter: Mapping[str, Any]) -> Test:
    """Return the predicate for *filter*.

    Raises:
        ValueError: *filter* is invalid; the message names the location and the fix.
    """
    return _compile(filter, "filter", _Budget(), 0)


def _compile(filter: Any, location: str, budget: _Budget, depth: int) -> Test:
    if not isinstance(filter, Mapping) or not filter:
        raise ValueError(f'{location}: write a mapping with "body", "headers", "any", "all" or "not", not {filter!r}')
    if depth > MAX_NESTING:
        raise ValueError(f"{location}: a filter nests at most {MAX_NESTING} deep")
    return _all([_compile_part(key, value, f"{location}.{key}", budget, depth) for key, value in filter.items()])


def _compile_part(key: str, value: Any, location: str, budget: _Budget, depth: int) -> Test:
    match key:
        case "body":
            return _all(
                [
                    _body_condition(path, condition, f"{location}[{path!r}]", budget)
                    for path, condition in _items(value, location)
                ]
            )
        case "headers":
            return _all(
                [
                    _header_condition(name, condition, f"{location}.{name}", budget)
                    for name, condition in _items(value, location)
                ]
            )
        case "any":
            return _any(_branches(value, location, budget, depth))
        case "all":
            return _all(_branches(value, location, budget, depth))
        case "not":
            inner = _compile(value, location, budget, depth + 1)
            return lambda subject: not inner(subject)
        case _:
            parts = '"body", "headers", "any", "all" or "not"'
            raise ValueError(f'{location}: there is no such part; write {parts}, such as {{"body": {{"amount": 5}}}}')


def _items(value: Any, location: str) -> Iterable[tuple[str, Any]]:
    if not isinstance(value, Mapping) or not value:
        raise ValueError(f'{location}: write a mapping such as {{"name": "value"}}, not {value!r}')
    for key, condition in value.items():
        if not isinstance(key, str) or not key:
            raise ValueError(f"{location}: {key!r} is not a name; write text")
        yield key, condition


def _branches(value: Any, location: str, budget: _Budget, depth: int) -> list[Test]:
    if not _is_list(value) or not value:
        raise ValueError(f"{location}: write a list of filters, not {value!r}")
    return [_compile(branch, f"{location}[{position}]", budget, depth + 1) for position, branch in enumerate(value)]


def _all(tests: Sequence[Test]) -> Test:
    if len(tests) == 1:
        return tests[0]
    return lambda subject: all(test(subject) for test in tests)


def _any(tests: Sequence[Test]) -> Test:
    return lambda subject: any(test(subject) for test in tests)


def _body_condition(path: str, operand: Any, location: str, budget: _Budget) -> Test:
    try:
        parts = split_path(path)
    except ValueError as error:
        raise ValueError(f"{location}: {error}") from None
    condition = _compile_condition(operand, location, budget)

    def test(subject: FilterInput) -> bool:
        return subject.body is not UNREADABLE and condition(get_path(subject.body, parts, ABSENT))

    return test


def _header_condition(name: str, operand: Any, location: str, budget: _Budget) -> Test:
    condition, lower = _compile_condition(operand, location, budget), name.lower()
    return lambda subject: condition(subject.headers.get(lower, ABSENT))


def _compile_condition(expected: Any, location: str, budget: _Budget) -> _Condition:
    """Return a predicate: equality for a bare value, or the conjunction of all operators of a mapping.

    Raises:
        ValueError: *expected* is neither; the message starts with its location, *location*.
    """
    if not isinstance(expected, Mapping):
        budget.spend(location)
        return _equal(_scalar(expected, location))
    if not expected:
        raise ValueError(f'{location}: write a value or operators such as {{"gt": 100}}')
    conditions = [_operator(name, operand, f"{location}.{name}", budget) for name, operand in expected.items()]
    return conditions[0] if len(conditions) == 1 else lambda value: all(condition(value) for condition in conditions)


def _operator(name: str, operand: Any, location: str, budget: _Budget) -> _Condition:
    budget.spend(location)
    match name:
        case "eq":
            return _equal(_scalar(operand, location))
        case "ne":
            return _negate(_equal(_scalar(operand, location)))
        case "in":
            return _member(operand, location)
        case "nin":
            return _negate(_member(operand, location))
        case "gt" | "gte" | "lt" | "lte":
            return _ordered(name, operand, location)
        case "exists":
            if not isinstance(operand, bool):
                raise ValueError(f"{location}: write true or false, not {operand!r}")  # noqa: TRY004 - all errors in a filter are ValueErrors
            return lambda value: (value is not ABSENT) is operand
        case "contains":
            return _contains(_scalar(operand, location))
        case "starts_with":
            start = _text(operand, location)
            return lambda value: isinstance(value, str) and value.startswith(start)
        case "ends_with":
            end = _text(operand, location)
            return lambda value: isinstance(value, str) and value.endswith(end)
        case _:
            operators = "eq, ne, in, nin, gt, gte, lt, lte, exists, contains, starts_with, ends_with"
            raise ValueError(f"{location}: there is no such operator; write one of {operators}")


def _equal(expected: Any) -> _Condition:
    # In Python True equals 1; in JSON they are different values.
    is_bool = isinstance(expected, bool)
    return lambda value: value is not ABSENT and isinstance(value, bool) is is_bool and bool(value == expected)


def _negate(condition: _Condition) -> _Condition:
    return lambda value: not condition(value)


def _member(operand: Any, location: str) -> _Condition:
    if not _is_list(operand):
        raise ValueError(f"{location}: write a list of values, not {operand!r}")
    # Same comparison as `_equal`, but in constant time for lists of any length.
    members = frozenset((isinstance(element, bool), _scalar(element, location)) for element in operand)
    return lambda value: not isinstance(value, (list, dict)) and (isinstance(value, bool), value) in members


_COMPARE: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "gt": lambda value, bound: value > bound,
    "gte": lambda value, bound: value >= bound,
    "lt": lambda value, bound: value < bound,
    "lte": lambda value, bound: value <= bound,
}


def _ordered(name: str, bound: Any, location: str) -> _Condition:
    if not _is_finite(bound) and not isinstance(bound, str):
        raise ValueError(f"{location}: write a number or text to compare with, not {bound!r}")
    compare, kind = _COMPARE[name], _is_number if _is_number(bound) else _is_text
    return lambda value: kind(value) and compare(value, bound)


def _contains(part: Any) -> _Condition:
    equal = _equal(part)

    def condition(value: Any) -> bool:
        if isinstance(value, str):
            return isinstance(part, str) and part in value
        return isinstance(value, list) and any(equal(item) for item in value)

    return condition


def _scalar(value: Any, location: str) -> Any:
    if value is None or isinstance(value, (str, bool)) or _is_finite(value):
        return value
    raise ValueError(f"{location}: write text, a number, true, false or null, not {value!r}")


def _text(value: Any, location: str) -> str:
    if isinstance(value, str):
        return value
    raise ValueError(f"{location}: write text, not {value!r}")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value == value  # noqa: PLR0124 - NaN is none


def _is_finite(value: Any) -> bool:
    """Return whether *value* is a number that JSON can hold, as the filters of stored routes are JSON."""
    return _is_number(value) and abs(value) < float("inf")


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_list(value: Any) -> bool:
    """Return whether *value* was written as a list."""
    return isinstance(value, (list, tuple))


class CompiledRoute:
    """One compiled route."""

    __slots__ = ("_patterns", "channels", "filter", "order_key", "order_parts", "recipient")

    def __init__(self, route: Route) -> None:
        self._patterns = tuple(map(Pattern, route.types))
        self.recipient = route.recipient
        self.channels = frozenset(route.channels) if route.channels else None
        self.filter = None if route.filter is None else compile_filter(route.filter)
        self.order_key = WHOLE if route.order_by == WHOLE else None
        self.order_parts = None if route.order_by in {None, WHOLE} else split_path(str(route.order_by))

    def fits(self, type: str) -> bool:
        """Return whether the route selects events of this type."""
        return any(pattern.matches(type) for pattern in self._patterns)


class Router:
    """Finds the recipients of an event; compiled once for each version of the routes.

    Routes with neither source nor application match events received at any source, but no published messages.
    """

    def __init__(
        self, routes: Iterable[Route], version: int, parse: Parse = parse, assignments: Iterable[Assignment] = ()
    ) -> None:
        """Compile *routes*.

        Raises:
            ValueError: a pattern, filter or order path is invalid; the message names the recipient.
        """
        self.version = version
        self.assignments: Mapping[str, Assignment] = {assignment.source: assignment for assignment in assignments}
        """The homes of the sources that have been assigned to one, as of this version."""
        self._parse = parse
        self._lines: dict[_Origin, list[tuple[int, CompiledRoute]]] = {}
        for position, route in enumerate(routes):
            origin = (None if route.application is not None else route.source, route.application)
            try:
                line = CompiledRoute(route)
            except ValueError as error:
                raise ValueError(f"route to {route.recipient}: {error}") from None
            self._lines.setdefault(origin, []).append((position, line))
        self._known: dict[tuple[str | None, str | None, str], _Plan] = {}

    def route(
        self,
        *,
        source: str | None,
        application: str | None,
        type: str,
        headers: Mapping[str, str],
        body: bytes,
        channels: tuple[str, ...] = (),
    ) -> tuple[NewDelivery, ...]:
        """Return one delivery for each recipient whose route matches the event, in the order of the routes.

        Args:
            source: the source that received the event; None for published messages.
            application: the tenant of a published message; None for received events.
            type: its type.
            headers: the stored headers, by lower-case names.
            body: the raw bytes; parsed as JSON only if a matching route has a filter or an order key.
            channels: the channels of a message; a route with channels requires one of them.
        """
        plan = self._plan_of(source, application, type)
        if plan.always is not None:
            return plan.always
        document = self._parse(body) if plan.reads_body else UNREADABLE
        return self._match_routes(plan.lines, FilterInput(document, headers), channels=channels)

    def route_items(
        self, *, source: str, headers: Mapping[str, str], items: Iterable[tuple[str, Any]]
    ) -> tuple[NewDelivery, ...]:
        """Return the deliveries of a batch: for each item in order, one for each recipient whose route matches it.

        Stops beyond `MAX_DELIVERIES`, so that the caller can detect a batch with too many deliveries.

        Args:
            source: the source that received the batch.
            headers: the request's stored headers, by lower-case names.
            items: the type and the parsed JSON of each item, for filters and order keys.
        """
        matched: list[NewDelivery] = []
        for position, (type, document) in enumerate(items):
            plan = self._plan_of(source, None, type)
            matched += self._match_routes(plan.lines, FilterInput(document, headers), position)
            if len(matched) > MAX_DELIVERIES:
                break
        return tuple(matched)

    def fits(self, *, source: str | None, application: str | None, type: str) -> bool:
        """Return whether any route matches events of this origin and type, regardless of filters."""
        return bool(self._plan_of(source, application, type).lines)

    def reads_body(self, *, source: str | None, application: str | None, type: str) -> bool:
        """Return whether a filter or an order key of a matching route reads the body."""
        return self._plan_of(source, application, type).reads_body

    def _plan_of(self, source: str | None, application: str | None, type: str) -> "_Plan":
        return self._known.get((source, application, type)) or self._plan(source, application, type)

    def _plan(self, source: str | None, application: str | None, type: str) -> "_Plan":
        lines = tuple(line for line in self._lines_for(source, application) if line.fits(type))
        reads_body = any(line.filter is not None or line.order_parts is not None for line in lines)
        is_plain = not reads_body and all(line.channels is None for line in lines)
        plan = _Plan(lines, self._match_routes(lines, FilterInput(UNREADABLE, {})) if is_plain else None, reads_body)
        if len(self._known) >= MAX_PLANS:
            # Senders choose the types, so the number of distinct types has no bound.
            self._known.clear()
        self._known[source, application, type] = plan
        return plan

    def _lines_for(self, source: str | None, application: str | None) -> list[CompiledRoute]:
        """Return the routes of a source or application, in the order of the routes."""
        origins: set[_Origin] = set()
        if source is not None:
            origins |= {(source, None), (None, None)}
        if application is not None:
            origins.add((None, application))
        placed_lines = (placed for origin in origins for placed in self._lines.get(origin, ()))
        return [line for _, line in sorted(placed_lines, key=itemgetter(0))]

    @staticmethod
    def _match_routes(
        lines: tuple[CompiledRoute, ...], subject: FilterInput, item: int | None = None, channels: tuple[str, ...] = ()
    ) -> tuple[NewDelivery, ...]:
        matched: dict[str, NewDelivery] = {}
        for line in lines:
            recipient, line_channels, fits, parts = line.recipient, line.channels, line.filter, line.order_parts
            if recipient in matched or (line_channels is not None and line_channels.isdisjoint(channels)):
                continue
            if fits is None or fits(subject):
                key = line.order_key if parts is None else _order_key(parts, subject.body)
                matched[recipient] = NewDelivery(recipient, key, item)
        return tuple(matched.values())


_Origin = tuple[str | None, str | None]
"""The source and application that a route names; (None, None) means any source."""


class _Plan(msgspec.Struct, frozen=True):
    lines: tuple[CompiledRoute, ...]
    always: tuple[NewDelivery, ...] | None
    """The deliveries, if they depend on neither body, headers nor channels."""
    reads_body: bool


def _order_key(parts: tuple[str, ...], body: Any) -> str | None:
    if body is UNREADABLE:
        return None
    text = scalar_text(get_path(body, parts))
    return None if text is None else short_key(text)
