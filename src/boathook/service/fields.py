"""The language of fields: what a field of a resource or of an operation is, declared once for every interface.

A table of fields is a struct whose fields are annotated with a `Rule`::

    Rate = Annotated[int, Rule(minimum=1, maximum=65_535)]

    class NewEndpoint(Input, frozen=True, kw_only=True):
        url: Annotated[str, Rule(help="URL that receives messages.")]
        throttle_rate: Annotated[Rate | None, Rule(help="Maximum messages per second.", option="--rate")] = None

Rules nest, and the outer one takes precedence. The functions that store a value call `check` or `check_values`, so that
a limit holds at every interface; models, options, forms and documents are derived from `fields_of`. `field_values`
reads and writes the values of a table, `field_schemas` describes it.
"""

import json
import math
import re
import typing
from abc import ABCMeta
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from enum import Enum, StrEnum
from functools import cache, reduce
from operator import or_
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple, TypeVar, Union, cast, get_args, get_origin

import msgspec
from msgspec import NODEFAULT, UNSET, UnsetType, structs
from msgspec.structs import FieldInfo, asdict

from boathook.domain import ids
from boathook.domain.endpoints import parse_reference
from boathook.domain.errors import InvalidValue

Table = TypeVar("Table", bound=msgspec.Struct)
Changed = TypeVar("Changed", bound="Change")
Value = TypeVar("Value")
_CONTROL: Final = re.compile(r"[\x00-\x08\ud800-\udfff]")
"""Characters that no text may contain; PostgreSQL stores neither NUL nor lone surrogates."""
_WITH_UID: Final = frozenset({ids.APPLICATION, ids.ENDPOINT, ids.MESSAGE})
"""The prefixes of objects that a uid identifies, too."""


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """What a field's values must be, and how interfaces show the field; attributes that are not set have no effect."""

    help: str = ""
    """One sentence: the help of its option, the hint in its form, and its row in the documentation."""
    description: str | None = ""
    """The description in documents for programs: by default the help; None for none."""
    unit: str = ""
    """The unit of a number, such as ``seconds``."""
    example: Any = None
    """A valid value, as JSON has it."""
    more_examples: tuple[Any, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    min_length: int | None = None
    """Characters of a text, which then must not be blank; items of a list."""
    max_length: int | None = None
    max_bytes: int | None = None
    """Bytes of the value as JSON."""
    pattern: str = ""
    """A regular expression that the whole text has to match, without alternatives at its top."""
    form: str = ""
    """The values in words, such as ``1 to 64 letters, digits and @ _ - .``."""
    choices: tuple[str, ...] = ()
    """The values of a text; an enum and a Literal have them by themselves."""
    check: Callable[[Any], object] | None = None
    """A further check; it raises ValueError."""
    name: str = ""
    """The name in the API, in forms and in errors; by default the field's name in camelCase."""
    former_name: str = ""
    """An earlier name, which the API also accepts."""
    label: str = ""
    """The label in a form; by default the field's name in words."""
    option: str = ""
    """The option of the command line, such as ``--rate``; by default the field's name with dashes."""
    short_option: str = ""
    """Its short form, such as ``-a``."""
    argument: str = ""
    """The placeholder of a positional argument of the command line, such as ``KEY``, in place of an option."""
    metavar: str = ""
    """The placeholder of the option's value."""
    prefix: str = ""
    """The prefix of the ids that are its values; of applications, endpoints and messages, a uid is a value, too."""
    accepts_names: bool = False
    """Whether any other name is a value too, besides the ids with the prefix and uids."""
    section: str = ""
    """The section of a form."""
    is_duration: bool = False
    """Whether it is a number of seconds that people write as ``30d``, ``12h`` or ``45m``."""
    is_secret: bool = False
    """Whether its values are never shown."""
    is_deprecated: bool = False
    """Whether it is only for older clients."""


_UNSET: Final = asdict(Rule())


class Kind(StrEnum):
    """The kind of a field's value, or of each value in its list."""

    TEXT = "text"
    INTEGER = "integer"
    NUMBER = "number"
    FLAG = "flag"
    CHOICE = "choice"
    TIME = "time"
    PAIRS = "pairs"
    """An object whose values are texts."""
    OBJECT = "object"
    """A JSON object."""
    OTHER = "other"
    """A value of a form of its own, which a text can have."""


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """One field of a table."""

    name: str
    """The attribute of the struct."""
    public_name: str
    """The name in the API, in forms and in errors."""
    type: Any
    """The type of its values, without None and annotations."""
    kind: Kind
    is_list: bool
    is_nullable: bool
    is_required: bool
    default: Any
    """None if it is required; UNSET in a change."""
    rule: Rule
    item_rule: Rule
    """The rule of a list's items."""

    @property
    def description(self) -> str | None:
        """The description in documents for programs; empty or None for none."""
        return self.rule.help if self.rule.description == "" else self.rule.description

    @property
    def is_long(self) -> bool:
        """Whether a form shows it in several lines."""
        return self.kind in {Kind.PAIRS, Kind.OBJECT}

    @property
    def hint(self) -> str:
        """The hint in a form."""
        if self.kind is Kind.PAIRS:
            return f"{self.rule.help} One per line, such as name = value."
        if self.kind is Kind.OBJECT and self.rule.example is not None:
            return f"{self.rule.help} As JSON, such as {json.dumps(self.rule.example)}"
        return self.rule.help

    @property
    def label(self) -> str:
        """The label in a form."""
        words = self.name.replace("_", " ")
        return self.rule.label or words[:1].upper() + words[1:]

    @property
    def option(self) -> str:
        """The option of the command line."""
        return self.rule.option or f"--{self.name.replace('_', '-')}"

    @property
    def choices(self) -> tuple[str, ...]:
        """The values that a text may have; empty if it is not limited to some."""
        type = get_args(self.type)[0] if self.is_list else self.type
        if get_origin(type) is Literal:
            return get_args(type)
        return tuple(member.value for member in type) if is_a(type, Enum) else self.rule.choices


class Input(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A table of fields."""

    def conflicts(self) -> Iterable["Problem"]:
        """Return what is wrong with the fields together, if each of them is valid."""
        return ()


class AbstractTable(msgspec.StructMeta, ABCMeta):
    """The type of tables that cannot be created without their abstract properties."""


class Change(Input, frozen=True, kw_only=True):
    """A change of some values of a resource; see `with_changes`."""

    table: ClassVar[type[msgspec.Struct]]
    """The fields that it may change."""

    @property
    def values(self) -> dict[str, Any]:
        """The new values, by their names in Python; a field that does not change has none."""
        values = ((name, getattr(self, name)) for name in self.table.__struct_fields__)
        return {name: value for name, value in values if value is not UNSET}


def with_changes(table: type[msgspec.Struct]) -> Callable[[type[Changed]], type[Changed]]:
    """Give a change the fields of a table, with the same rules; each may be omitted."""

    def extend(change: type[Changed]) -> type[Changed]:
        hints = typing.get_type_hints(table, include_extras=True)
        fields = [(info.name, _or_unset(hints[info.name]), UNSET) for info in structs.fields(table)]
        extended = msgspec.defstruct(
            change.__name__, fields, bases=(change,), module=change.__module__, namespace={"table": table},
            frozen=True, kw_only=True, rename="camel",
        )  # fmt: skip
        extended.__doc__ = change.__doc__
        return cast("type[Changed]", extended)

    return extend


def _or_unset(annotation: Any) -> Any:
    """Return an annotated type whose values may be UNSET, too."""
    type, rules, is_nullable = _unwrap(annotation)
    # A union of the whole annotation would hash its rules, and their examples have no hash.
    union = Union[type, UnsetType, None] if is_nullable else Union[type, UnsetType]  # noqa: UP007
    return Annotated[(union, *rules)]


class Problem(NamedTuple):
    """A value that breaks a rule."""

    where: tuple[str | int, ...]
    """The path to it, by public names, such as ``"auth", "basic", "username"``."""
    text: str
    """What to write instead."""


@cache
def fields_of(table: type[msgspec.Struct]) -> tuple[Field, ...]:
    """Return the fields of a table in order."""
    hints = typing.get_type_hints(table, include_extras=True)
    return tuple(_field(info, hints[info.name]) for info in structs.fields(table))


@cache
def fields_by_name(table: type[msgspec.Struct]) -> Mapping[str, Field]:
    """Return the fields of a table by their names in Python."""
    return {field.name: field for field in fields_of(table)}


def _field(info: FieldInfo, annotation: Any) -> Field:
    field = field_of(annotation)
    return structs.replace(
        field,
        name=info.name,
        public_name=field.rule.name or _camel(info.encode_name),
        is_required=info.required,
        default=_default(info),
    )


def field_of(annotation: Any) -> Field:
    """Return a field for single values of an annotated type; it has no name."""
    type, rules, is_nullable = _unwrap(annotation)
    is_list = is_a(type, Sequence) and not is_a(type, str)
    item, item_rules, _ = _unwrap(get_args(type)[0]) if is_list else (type, (), False)
    return Field(
        name="",
        public_name="",
        type=list[item] if is_list else type,  # type: ignore[valid-type]
        kind=_kind(item),
        is_list=is_list,
        is_nullable=is_nullable,
        is_required=True,
        default=None,
        rule=_merge(rules),
        item_rule=_merge(item_rules),
    )


def _default(info: FieldInfo) -> Any:
    if info.default_factory is not NODEFAULT:
        return info.default_factory()
    return None if info.default is NODEFAULT else info.default


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


def _unwrap(annotation: Any) -> tuple[Any, tuple[Rule, ...], bool]:
    """Return a type without None and annotations, its rules from inner to outer, and whether it has None."""
    origin = get_origin(annotation)
    if origin is Annotated:
        inner, *extras = get_args(annotation)
        type, rules, is_nullable = _unwrap(inner)
        return type, (*rules, *(extra for extra in extras if isinstance(extra, Rule))), is_nullable
    if origin not in {Union, UnionType}:
        return annotation, (), False
    members = [_unwrap(member) for member in get_args(annotation) if member not in {NoneType, UnsetType}]
    rules = members[0][1] if len(members) == 1 else ()
    is_nullable = NoneType in get_args(annotation) or any(nullable for _, _, nullable in members)
    return reduce(or_, (type for type, _, _ in members)), rules, is_nullable


def _merge(rules: Iterable[Rule]) -> Rule:
    merged: dict[str, Any] = {}
    for rule in rules:
        merged |= {name: value for name, value in asdict(rule).items() if value != _UNSET[name]}
    return Rule(**merged)


_KINDS: Final = {str: Kind.TEXT, int: Kind.INTEGER, float: Kind.NUMBER, bool: Kind.FLAG, datetime: Kind.TIME}


def _kind(type: Any) -> Kind:
    if is_a(type, Enum) or get_origin(type) is Literal:
        return Kind.CHOICE
    if is_a(type, Mapping) and get_args(type)[-1] is str:
        return Kind.PAIRS
    if type is Any or is_a(type, (Mapping, msgspec.Struct)):
        return Kind.OBJECT
    return _KINDS.get(type, Kind.OTHER)


def is_a(type: Any, base: type | tuple[type, ...]) -> bool:
    """Return whether an annotated type is a class, or a generic form of one, of a base."""
    bare = get_origin(type) or type
    return isinstance(bare, _TYPE) and issubclass(bare, base)


_TYPE: Final = type


def problems(value: msgspec.Struct) -> list[Problem]:
    """Return everything that is wrong with the values of a table; errors of a single field come first."""
    field_problems = problems_in(type(value), asdict(value))
    if not field_problems and isinstance(value, Input):
        field_problems = list(value.conflicts())
    return field_problems


def problems_in(table: type[msgspec.Struct], values: Mapping[str, Any]) -> list[Problem]:
    """Return everything that is wrong with some values of a table, which are by their names in Python."""
    fields = fields_by_name(table)
    return [problem for name, value in values.items() for problem in _problems_of(fields.get(name), name, value)]


def check(value: Table) -> Table:
    """Return a table's values. Raises InvalidValue for all that is wrong."""
    raise_for(problems(value))
    return value


def check_values(table: type[msgspec.Struct], values: Mapping[str, Any]) -> None:
    """Check some values of a table, by their names in Python. Raises InvalidValue for all that is wrong."""
    raise_for(problems_in(table, values))


def check_value(annotation: Any, value: Value, *location: str | int) -> Value:
    """Return a single value of an annotated type, which is at *location*. Raises InvalidValue."""
    reason = find_fault(field_of(annotation), value)
    if reason is not None:
        raise InvalidValue(reason, *location)
    return value


def raise_for(field_problems: Sequence[Problem]) -> None:
    """Raise InvalidValue for all of these problems; return if there is none."""
    if field_problems:
        first, *others = (InvalidValue(problem.text, *problem.where) for problem in field_problems)
        first.others = tuple(others)
        raise first


def _problems_of(field: Field | None, name: str, value: Any) -> Iterator[Problem]:
    if field is None:
        yield Problem((name,), "there is no such field")
    elif value is UNSET:
        return
    elif value is None:
        if not field.is_nullable:
            yield Problem((field.public_name,), "write a value")
    elif isinstance(value, msgspec.Struct):
        yield from (Problem((field.public_name, *location), text) for location, text in problems(value))
    elif (reason := find_fault(field, value)) is not None:
        yield Problem((field.public_name,), reason)


def find_fault(field: Field, value: Any) -> str | None:
    """Return what to write instead of a value that is not None; None if it is valid."""
    try:
        msgspec.convert(value, field.type)
        if field.is_list:
            _check_length(field.rule, value, "of them")
            for item in value:
                _check_item(field.kind, field.item_rule, item)
        else:
            _check_item(field.kind, field.rule, value)
        if field.rule.max_bytes is not None and len(msgspec.json.encode(value)) > field.rule.max_bytes:
            return f"it has at most {field.rule.max_bytes:,} bytes as JSON"
        if field.rule.check is not None:
            field.rule.check(value)
    except msgspec.ValidationError:
        return expected(field)
    except ValueError as error:
        return str(error)
    return None


def _check_item(kind: Kind, rule: Rule, value: Any) -> None:
    match kind:
        case Kind.TEXT:
            check_text(rule, value)
        case Kind.PAIRS:
            check_text(Rule(), "".join(f"{key}{text}" for key, text in value.items()))
        case Kind.INTEGER | Kind.NUMBER:
            low, high = rule.minimum, rule.maximum
            is_within = (low is None or value >= low) and (high is None or value <= high)
            if not math.isfinite(value) or not is_within:
                raise ValueError(f"write a number{_range(low, high)}")


def check_text(rule: Rule, text: str) -> str:
    """Return a text that follows a rule. Raises ValueError."""
    if _CONTROL.search(text):
        raise ValueError("it must not contain control characters")
    _check_length(rule, text if text.strip() else "", "characters")
    if rule.choices and text not in rule.choices:
        raise ValueError(f"write one of {', '.join(rule.choices)}")
    if rule.pattern and not re.fullmatch(rule.pattern, text):
        raise ValueError(f"write {rule.form or f'a text that matches {rule.pattern}'}")
    if rule.prefix in _WITH_UID and not rule.accepts_names and parse_reference(rule.prefix, text) is None:
        raise ValueError(f"write an id such as {rule.prefix}_01h455vb4pex5vsknk084sn02q4, or a uid")
    if rule.prefix == ids.DELIVERY:
        ids.read_delivery(text)
    elif rule.prefix == ids.EVENT:
        ids.read_event(text)
    elif rule.prefix and rule.prefix not in _WITH_UID:
        ids.read(rule.prefix, text)
    return text


def _check_length(rule: Rule, value: Sequence[Any], unit: str) -> None:
    low, high = rule.min_length, rule.max_length
    if low is not None and len(value) < low:
        raise ValueError("it must not be empty" if high is None else f"write {low:,} to {high:,} {unit}")
    if high is not None and len(value) > high:
        raise ValueError(f"write {high:,} {unit} at most")


def _range(low: float | None, high: float | None) -> str:
    return ("" if low is None else f" from {show_number(low)}") + ("" if high is None else f" to {show_number(high)}")


def show_number(number: float) -> str:
    """Return a number with separators of thousands, and a fraction only if it has one."""
    return f"{int(number):,}" if float(number).is_integer() else f"{number:,}"


_WORDS: Final[Mapping[Kind, tuple[str, str]]] = {
    Kind.TEXT: ("a text", "texts"),
    Kind.INTEGER: ("a whole number", "whole numbers"),
    Kind.NUMBER: ("a number", "numbers"),
    Kind.FLAG: ("true or false", "true or false"),
    Kind.TIME: ("a time such as 2026-01-31T12:00:00Z", "times"),
    Kind.PAIRS: ("an object whose values are texts", "objects whose values are texts"),
    Kind.OBJECT: ("a JSON object", "JSON objects"),
    Kind.OTHER: ("another value", "other values"),
}


def expected(field: Field) -> str:
    """Return what to write into a field whose value has another type."""
    if field.kind is Kind.CHOICE:
        return f"write {'some' if field.is_list else 'one'} of {', '.join(field.choices)}"
    if field.rule.form:
        return f"write {field.rule.form}"
    single, several = _WORDS[field.kind]
    return f"write a list of {several}" if field.is_list else f"write {single}"
