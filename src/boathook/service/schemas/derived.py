"""Derives the models of requests from tables of fields."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, Any, Final, TypeVar, get_args

import msgspec
from msgspec import structs
from pydantic import AfterValidator, AliasChoices, BaseModel
from pydantic import Field as ModelField
from pydantic.fields import FieldInfo

from boathook.service.field_schemas import keywords_of
from boathook.service.fields import Field, Kind, field_of, fields_of, find_fault
from boathook.service.schemas.fields import null_as

Model = TypeVar("Model", bound=BaseModel)
_STRICT: Final = ModelField(strict=True)
_TYPES: Final[Mapping[Kind, Any]] = {
    Kind.INTEGER: Annotated[int, _STRICT],
    Kind.FLAG: Annotated[bool, _STRICT],
    Kind.PAIRS: dict[str, str],
    Kind.OBJECT: dict[str, Any],
}


def with_fields(
    table: type[msgspec.Struct],
    names: Sequence[str] = (),
    *,
    is_partial: bool = False,
    documented: Collection[str] = (),
    types: Mapping[str, Any] | None = None,
    required: Collection[str] = (),
    replaced: Collection[str] = (),
    takes_null: bool = True,
) -> Callable[[type[Model]], type[Model]]:
    """Give a model the fields of a table, before its own, with the same limits.

    Args:
        table: the struct with the fields.
        names: the fields that it gets; by default all that it does not have.
        is_partial: whether each field may be omitted, so that the model is a change.
        documented: the fields of a change that have their description and example; other models have all.
        types: the types of fields in the document that are not those of the table, by name.
        required: fields that have no null, and must be set where the table has a default.
        replaced: fields that its base has otherwise.
        takes_null: whether null is the default of a field that has another one, as clients of Svix write it.
    """

    def extend(model: type[Model]) -> type[Model]:
        own = {name: info for name, info in model.__pydantic_fields__.items() if name not in replaced}
        derived = {
            field.name: _model_field(
                structs.replace(field, is_required=True, is_nullable=False) if field.name in required else field,
                (types or {}).get(field.name),
                is_partial=is_partial,
                is_documented=not is_partial or field.name in documented,
                takes_null=takes_null,
            )
            for field in fields_of(table)
            if field.name not in own and (not names or field.name in names)
        }
        annotations = vars(model).get("__annotations__", {})
        inherited = {name: info for name, info in own.items() if name not in annotations}
        model.__annotations__ = {name: info.annotation for name, info in derived.items()} | annotations
        model.__pydantic_fields__ = {**inherited, **derived, **own}
        model.model_rebuild(force=True)
        return model

    return extend


def check_of(annotation: Any) -> AfterValidator:
    """Return the check of an annotated type of a table, for the type of a model's field."""
    return AfterValidator(_checker(field_of(annotation)))


def form_of(annotation: Any) -> Any:
    """Return what an annotated type of a table says in the document, for the type of a model's field."""
    return ModelField(json_schema_extra=keywords_of(field_of(annotation).rule))


def _model_field(
    field: Field, type: Any | None, *, is_partial: bool, is_documented: bool, takes_null: bool
) -> FieldInfo:
    inner: Any = type or _type_of(field)
    checked: Any = Annotated[
        inner, AfterValidator(_checker(field)), ModelField(json_schema_extra=keywords_of(field.rule))
    ]
    annotation = checked
    if field.is_nullable:
        annotation = checked | None
    elif takes_null and not field.is_required and (field.kind is Kind.PAIRS or not is_partial):
        documented = checked if field.kind in {Kind.INTEGER, Kind.NUMBER} else inner
        annotation = Annotated[checked, null_as(field.default, documented | None)]
    options = _options(field, is_partial=is_partial) | (_document(field) if is_documented else {})
    return FieldInfo.from_annotated_attribute(annotation, ModelField(**options))


def _type_of(field: Field) -> Any:
    if field.is_list:
        item = _TYPES.get(field.kind, get_args(field.type)[0])
        keywords = keywords_of(field.item_rule)
        return list[Annotated[item, ModelField(json_schema_extra=keywords)] if keywords else item]  # type: ignore[misc]
    return _TYPES.get(field.kind, field.type)


def _checker(field: Field) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        reason = find_fault(field, value)
        if reason is not None:
            raise ValueError(reason)
        return value

    return check


def _options(field: Field, *, is_partial: bool) -> dict[str, Any]:
    rule = field.rule
    names = (field.public_name, rule.former_name)
    options: dict[str, Any] = {"validation_alias": AliasChoices(*names) if rule.former_name else field.public_name}
    if rule.is_deprecated:
        options["json_schema_extra"] = {"deprecated": True}
    if is_partial:
        return {**options, "default_factory": lambda: None}
    if field.is_required:
        return options
    if isinstance(field.default, Mapping):
        return {**options, "default_factory": lambda: field.default}
    return {**options, "default": field.default}


def _document(field: Field) -> dict[str, Any]:
    rule = field.rule
    return {
        "description": field.description or None,
        "examples": None if rule.example is None else [rule.example, *rule.more_examples],
    }
