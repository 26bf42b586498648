"""Senders known by the systems that use them: car rental, and resellers of music generation."""

from boathook.inbound.providers.recipe import Recipe

RECIPES: tuple[Recipe, ...] = ()
