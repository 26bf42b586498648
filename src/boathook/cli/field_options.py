"""Derives the options of commands from tables of fields."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Annotated, Any

import typer
from msgspec import Struct

from boathook.cli.context import UsageError
from boathook.cli.options import read_json, read_lifetime, read_pairs
from boathook.service.fields import Field, Kind, fields_of


def field_options(table: type[Struct], *, without: Sequence[str] = ()) -> dict[str, Any]:
    """Return the options that set the fields of a table, by field; each is None by default.

    Args:
        table: the struct with the fields.
        without: fields that have no option.
    """
    return {field.name: _option(field) for field in fields_of(table) if field.name not in without}


def _option(field: Field) -> Any:
    rule = field.rule
    if rule.argument:
        return Annotated[_type_of(field), typer.Argument(metavar=rule.argument, help=rule.help)]
    # Typer adds a negative form to a flag whose name is not given.
    names = [field.option] if rule.option or field.kind is Kind.FLAG else []
    is_json = field.kind is Kind.OBJECT
    option = typer.Option(
        *names,
        metavar=rule.metavar or ("JSON" if is_json else "LENGTH" if rule.is_duration else None),
        parser=read_lifetime if rule.is_duration else None,
        help=f"{rule.help.removesuffix('.')}; @FILE reads a file." if is_json else rule.help,
        show_default=not _is_repeated(field),
    )
    return Annotated[_type_of(field), option]


def _is_repeated(field: Field) -> bool:
    return field.is_list or field.kind is Kind.PAIRS


def _type_of(field: Field) -> Any:
    if _is_repeated(field):
        return list[str] | None
    if field.rule.is_duration:
        return timedelta | None
    return (str if field.kind in {Kind.OBJECT, Kind.OTHER} else field.type) | None


def read_options(table: type[Struct], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the given options of a table; an empty text or 0 is the field's default, which removes it.

    Raises:
        UsageError: a text is not of the field's type.
    """
    return dict(_given(table, values))


def _given(table: type[Struct], values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for field in fields_of(table):
        value = values.get(field.name)
        if value is None or value == []:
            continue
        if value is not False and value in ("", 0, [""]) and not field.is_required:
            yield field.name, field.default
        elif field.kind is Kind.PAIRS:
            yield field.name, read_pairs(field.option, value, "=")
        elif field.kind is Kind.OBJECT:
            yield field.name, _read_object(field, value)
        else:
            yield field.name, value


def _read_object(field: Field, text: str) -> Mapping[str, Any]:
    document = read_json(field.option, text)
    if not isinstance(document, dict):
        raise UsageError(f"{field.option}: write a JSON object, not {text!r}")
    return document
