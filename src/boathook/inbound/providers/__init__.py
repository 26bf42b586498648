"""Recipes as data, grouped by family, and the register that finds them by name."""

import difflib
from dataclasses import replace
from typing import Final

from boathook.domain.errors import ConfigError
from boathook.inbound.providers import (
    chat,
    cloud,
    code,
    commerce,
    generic,
    payments,
    payments_russia,
    resellers,
    setups,
    standard,
    work,
)
from boathook.inbound.providers.recipe import Recipe

_FAMILIES: Final[tuple[Recipe, ...]] = (
    *payments.RECIPES,
    *payments_russia.RECIPES,
    *commerce.RECIPES,
    *code.RECIPES,
    *cloud.RECIPES,
    *chat.RECIPES,
    *work.RECIPES,
    *resellers.RECIPES,
    *standard.RECIPES,
    *generic.RECIPES,
)

RECIPES: Final[tuple[Recipe, ...]] = tuple(
    replace(recipe, setup=setups.STEPS.get(recipe.name, ()), is_secret_chosen=recipe.name in setups.CHOSEN)
    for recipe in _FAMILIES
)
"""Every recipe, in the order listings show them."""

_BY_NAME: Final = {name: recipe for recipe in RECIPES for name in (recipe.name, *recipe.aliases)}


def find(name: str) -> Recipe:
    """Return the recipe of a name or alias, in any letter case.

    Raises:
        ConfigError: there is none; the message offers the nearest names.
    """
    recipe = _BY_NAME.get(name.strip().lower())
    if recipe is None:
        near = difflib.get_close_matches(name.lower(), _BY_NAME, n=3) or sorted(_BY_NAME)
        raise ConfigError(f"there is no provider {name!r}; perhaps {' or '.join(near)}?")
    return recipe
