"""Recipes of providers as data, grouped by industry, and the registry that finds them by name."""

import difflib
from typing import Final

from boathook.domain.errors import ConfigError
from boathook.providers import (
    chat,
    cloud,
    code,
    commerce,
    generic,
    payments,
    payments_russia,
    productivity,
    resellers,
    standard,
)
from boathook.providers.recipe import Recipe

RECIPES: Final[tuple[Recipe, ...]] = (
    *payments.RECIPES,
    *payments_russia.RECIPES,
    *commerce.RECIPES,
    *code.RECIPES,
    *cloud.RECIPES,
    *chat.RECIPES,
    *productivity.RECIPES,
    *resellers.RECIPES,
    *standard.RECIPES,
    *generic.RECIPES,
)
"""All recipes, in the order of listings."""

BY_NAME: Final = {name: recipe for recipe in RECIPES for name in (recipe.name, *recipe.aliases)}


def find_recipe(name: str) -> Recipe:
    """Return the recipe for a name or alias; case-insensitive.

    Raises:
        ConfigError: there is none; the message suggests similar names.
    """
    recipe = BY_NAME.get(name.strip().lower())
    if recipe is None:
        near = difflib.get_close_matches(name.lower(), BY_NAME, n=3) or sorted(BY_NAME)
        raise ConfigError(f"there is no provider {name!r}; perhaps {' or '.join(near)}?")
    return recipe
