"""What the registry says a recipe was checked against is what the tests check it against."""

import re
from pathlib import Path

from boathook.inbound.providers import RECIPES

TESTS = Path(__file__).parents[1]
MARK = re.compile(r"""mark\.judge\(\s*["']([a-z0-9-]+)["']""")


def judged() -> set[str]:
    """Every provider that a test is marked with."""
    return {name for path in TESTS.rglob("test_*.py") for name in MARK.findall(path.read_text(encoding="utf-8"))}


def test_every_recipe_that_claims_a_check_has_a_test_in_which_others_judge():
    claimed = {recipe.name for recipe in RECIPES if recipe.checked}
    assert claimed - judged() == set()


def test_every_judge_is_named_in_the_registry():
    claimed = {recipe.name for recipe in RECIPES if recipe.checked}
    assert judged() - claimed == set()


def test_every_sender_but_the_generic_ones_is_checked_against_something():
    unchecked = {recipe.name for recipe in RECIPES if not recipe.checked}
    assert unchecked <= {"hmac", "token", "unsigned"}
