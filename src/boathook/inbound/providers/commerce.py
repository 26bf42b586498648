"""Shops, mail and telephony."""

from boathook.inbound.providers.recipe import Recipe

RECIPES: tuple[Recipe, ...] = ()
