"""Senders that move money in Russia."""

from boathook.inbound.providers.recipe import Recipe

RECIPES: tuple[Recipe, ...] = ()
