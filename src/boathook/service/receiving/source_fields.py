"""The fields of a source's settings, from the rows of `SourceSettings` and from the provider's recipe.

The form of the console and the options of the command line are these fields. Their values are checked by
`SourceSettings`, as those of boathook.toml and of the API are.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace
from pydantic.fields import FieldInfo

from boathook.config.sources import FIELDS, Shown
from boathook.domain.errors import InvalidValue
from boathook.providers.recipe import Recipe
from boathook.providers.recipe import Setting as RecipeSetting
from boathook.service.field_values import show_text
from boathook.service.fields import Field, Kind, Rule, field_of
from boathook.service.shown_settings import HIDDEN


def _key_field(key: str, info: FieldInfo, presentation: Shown) -> Field:
    field = field_of(info.annotation)
    kind = Kind.TEXT if field.kind is Kind.OTHER else field.kind
    return replace(
        field,
        name=key,
        public_name=key,
        kind=kind,
        is_required=False,
        is_nullable=True,
        default=info.default,
        rule=Rule(label=presentation.label, help=presentation.hint),
    )


COMMON_FIELDS: Final[Mapping[str, Field]] = {
    key: _key_field(key, info, presentation)
    for key, info in FIELDS.items()
    for presentation in info.metadata
    if isinstance(presentation, Shown)
}
"""The keys of every source, by key."""


def recipe_fields(recipe: Recipe) -> Sequence[Field]:
    """Return the fields of a provider's own settings, and of those that it needs."""
    settings = {setting.name: setting for part in (recipe, *recipe.schemes.values()) for setting in part.settings}
    fields = [_recipe_field(setting) for setting in settings.values()]
    if recipe.schemes:
        scheme = RecipeSetting(
            name="scheme", help="How the requests are signed, if not in the usual way", choices=tuple(recipe.schemes)
        )
        fields.insert(0, _recipe_field(scheme))
    if recipe.signs_url:
        hint = "This sender signs the URL, so boathook needs its base, such as https://hooks.example.com."
        field = COMMON_FIELDS["public_url"]
        fields.insert(0, replace(field, rule=replace(field.rule, help=hint)))
    return fields


def _recipe_field(setting: RecipeSetting) -> Field:
    rule = Rule(help=f"{setting.help}.", choices=setting.choices, is_secret=setting.is_secret)
    kind = Kind.CHOICE if setting.choices else Kind.TEXT
    return replace(
        field_of(str),
        name=setting.name,
        public_name=setting.name,
        kind=kind,
        is_required=setting.is_required,
        rule=rule,
    )


def common_fields(recipe: Recipe) -> Sequence[Field]:
    """Return the fields that every source has, without those of `recipe_fields`."""
    recipe_keys = {field.name for field in recipe_fields(recipe)}
    return [field for key, field in COMMON_FIELDS.items() if key not in recipe_keys]


def parse_setting(field: Field, text: str) -> Any:
    """Return the value of a setting that a person wrote; None for an empty text.

    A text that is not of the field's type is returned as it is: `SourceSettings` rejects it, at every interface with
    the same words.

    Raises:
        InvalidValue: it is not JSON.
    """
    text = text.strip()
    if not text:
        return None
    if field.is_list:
        return text.replace(",", " ").split()
    match field.kind:
        case Kind.FLAG:
            return True
        case Kind.INTEGER | Kind.NUMBER:
            try:
                return msgspec.convert(text, int | float, strict=False)
            except msgspec.ValidationError:
                return text
        case Kind.OBJECT:
            try:
                return json.loads(text)
            except (ValueError, RecursionError) as error:
                raise InvalidValue(f"invalid JSON: {error}", "settings", field.name) from None
        case _:
            return text


def show_setting(field: Field, value: Any) -> str:
    """Return a value as a form shows it, so that `parse_setting` reads it; a hidden one is empty."""
    if value in (None, HIDDEN):
        return ""
    if field.kind is Kind.OBJECT:
        return json.dumps(value, indent=2)
    return show_text(field, value)
