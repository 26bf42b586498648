"""Clouds, identity and machine learning."""

from boathook.inbound.providers.recipe import Recipe

RECIPES: tuple[Recipe, ...] = ()
