"""Reads and writes the values of tables of fields: as JSON objects, and as the texts of queries and forms."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, get_args

import msgspec

from boathook.domain.errors import InvalidValue
from boathook.domain.windows import parse_time
from boathook.service.fields import (
    Field,
    Kind,
    Problem,
    Table,
    check,
    expected,
    fields_of,
    is_a,
    problems_in,
    raise_for,
)


def read_json(table: type[Table], document: Mapping[str, Any]) -> Table:
    """Return the values in a JSON object, by their public names; unknown names are ignored.

    Raises:
        InvalidValue: for everything that is wrong.
    """
    return _make(table, *_read(table, document, _convert))


def read_text(table: type[Table], texts: Mapping[str, str]) -> Table:
    """Return the values in a query or a form, by their public names; an empty text is a value that is not given.

    Lists are separated by commas or white space, pairs are one ``name = value`` a line, other objects are JSON.

    Raises:
        InvalidValue: for everything that is wrong.
    """
    return _make(table, *_read(table, {name: text for name, text in texts.items() if text.strip()}, _parse))


def parse_texts(table: type[msgspec.Struct], texts: Mapping[str, str]) -> tuple[dict[str, Any], list[Problem]]:
    """Return the values of some fields in a form, by their names in Python, and those that are not of their type.

    An empty text is the value of a field that is not set: its default.
    """
    empty = {field.name: field.default for field in fields_of(table) if not texts.get(field.public_name, "x").strip()}
    values, type_problems = _read(table, {name: text for name, text in texts.items() if text.strip()}, _parse)
    return empty | values, type_problems


def parse_field(field: Field, text: str) -> Any:
    """Return the value of one field of a form. Raises ValueError."""
    try:
        return _parse(field, text)
    except msgspec.ValidationError:
        raise ValueError(expected(field)) from None
    except RecursionError as error:
        raise ValueError(str(error)) from None


def unknown_names(table: type[msgspec.Struct], document: Mapping[str, Any]) -> list[str]:
    """Return the names in a JSON object that no field of a table has."""
    field_names = {name for field in fields_of(table) for name in (field.public_name, field.rule.former_name)}
    return [name for name in document if name not in field_names]


def _read(
    table: type[msgspec.Struct], document: Mapping[str, Any], read: Callable[[Field, Any], Any]
) -> tuple[dict[str, Any], list[Problem]]:
    values: dict[str, Any] = {}
    type_problems: list[Problem] = []
    for field in fields_of(table):
        name = field.public_name if field.public_name in document else field.rule.former_name
        if name not in document:
            continue
        try:
            values[field.name] = read(field, document[name])
        except InvalidValue as error:
            type_problems += [Problem((field.public_name, *each.where), str(each)) for each in (error, *error.others)]
        except msgspec.ValidationError:
            type_problems.append(Problem((field.public_name,), expected(field)))
        except (ValueError, RecursionError) as error:
            type_problems.append(Problem((field.public_name,), str(error)))
    return values, type_problems


def _make(table: type[Table], values: Mapping[str, Any], type_problems: Sequence[Problem]) -> Table:
    wrong = {problem.where[0] for problem in type_problems}
    missing = [
        Problem((field.public_name,), "it is required")
        for field in fields_of(table)
        if field.is_required and field.name not in values and field.public_name not in wrong
    ]
    problems = [*type_problems, *missing, *problems_in(table, values)]
    order = {field.public_name: place for place, field in enumerate(fields_of(table))}
    raise_for(sorted(problems, key=lambda problem: order.get(str(problem.where[0]), -1)))
    return check(table(**values))


def _convert(field: Field, value: Any) -> Any:
    if value is None:
        return None if field.is_nullable or field.is_required else field.default
    if is_a(field.type, msgspec.Struct):
        if not isinstance(value, Mapping):
            raise ValueError(expected(field))
        return read_json(field.type, value)
    if field.kind is Kind.TIME and isinstance(value, str) and not field.is_list:
        return parse_time(value, datetime.now(UTC))
    return msgspec.convert(value, field.type)


_TRUE: Final = frozenset({"1", "true", "yes", "on"})
_FALSE: Final = frozenset({"0", "false", "no", "off"})


def _parse(field: Field, text: str) -> Any:
    if field.is_list:
        return [_parse_item(field, part) for part in text.replace(",", " ").split()]
    return _parse_item(field, text.strip())


def _parse_item(field: Field, text: str) -> Any:
    match field.kind:
        case Kind.FLAG:
            if text.lower() not in _TRUE | _FALSE:
                raise ValueError(expected(field))
            return text.lower() in _TRUE
        case Kind.INTEGER | Kind.NUMBER:
            return msgspec.convert(text, int if field.kind is Kind.INTEGER else float, strict=False)
        case Kind.TIME:
            return parse_time(text, datetime.now(UTC))
        case Kind.CHOICE:
            return msgspec.convert(text, get_args(field.type)[0] if field.is_list else field.type)
        case Kind.PAIRS:
            return dict(_pair(line) for line in text.splitlines() if line.strip())
        case Kind.OBJECT:
            return _convert(field, _decode(text))
        case _:
            return text


def _pair(line: str) -> tuple[str, str]:
    key, separator, value = line.partition("=")
    if not separator or not key.strip():
        raise ValueError("write one per line, such as name = value")
    return key.strip(), value.strip()


def _decode(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise ValueError(f"invalid JSON: {error}") from None


def show_text(field: Field, value: Any) -> str:
    """Return a value as a form shows it, so that `parse_texts` reads the same value."""
    if value is None or value == "":
        return ""
    if field.is_list:
        return " ".join(str(item) for item in value)
    match field.kind:
        case Kind.INTEGER | Kind.NUMBER:
            return str(int(value)) if float(value).is_integer() else str(value)
        case Kind.PAIRS:
            return "\n".join(f"{key} = {text}" for key, text in value.items())
        case Kind.OBJECT:
            return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
        case Kind.FLAG:
            return "yes" if value else ""
        case _:
            return str(value)


def write_json(value: msgspec.Struct) -> dict[str, Any]:
    """Return the values of a table as a JSON object, by their public names, without those that are their default."""
    document = {}
    for field in fields_of(type(value)):
        item = getattr(value, field.name)
        if field.is_required or item != field.default:
            is_table = isinstance(item, msgspec.Struct)
            document[field.public_name] = write_json(item) if is_table else msgspec.to_builtins(item)
    return document
