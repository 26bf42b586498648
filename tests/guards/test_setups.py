"""The set-up steps of every provider are complete."""

import pytest

from boathook.providers import RECIPES
from boathook.providers.recipe import Recipe


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_every_provider_has_set_up_instructions(recipe: Recipe):
    text = " ".join(recipe.setup)
    assert "{url}" in text, f"{recipe.name}: say where its user pastes our address, in its setup"
    if recipe.takes_secrets:
        assert "secrets" in text, f"{recipe.name}: say what goes into the source's secrets"
    for setting in recipe.settings:
        assert not setting.is_required or setting.name in text, f"{recipe.name}: say what goes into {setting.name}"
    if recipe.signs_url:
        assert "public_url" in text, f"{recipe.name}: it signs the address, so say that public_url is needed"
    for step in recipe.setup:
        assert step.endswith(".")
        step.format(url="https://hooks.example.com/in/it")
