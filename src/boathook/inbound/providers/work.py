"""Senders that offices work with: documents, forms, customers, books."""

from boathook.inbound.providers.recipe import Recipe

RECIPES: tuple[Recipe, ...] = ()
