"""Each recipe's claimed check matches the tests that perform it."""

import subprocess
import sys
from pathlib import Path

import pytest

from boathook.providers import RECIPES
from tests.guards.judge_plugin import judged_by
from tests.support import is_whole

ROOT = Path(__file__).parents[2]
CLAIMED = {recipe.name for recipe in RECIPES if recipe.checked}


@pytest.fixture(scope="module")
def judged(request: pytest.FixtureRequest) -> set[str]:
    """Every provider that a test of tests/providers is marked with, as pytest collects them."""
    if is_whole(request.config):
        return judged_by(request.session.items)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--collect-only",
        "-p",
        "tests.guards.judge_plugin",
        "tests/providers",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return {line.removeprefix("judged: ") for line in done.stdout.splitlines() if line.startswith("judged: ")}


def test_every_claimed_check_has_a_test_with_another_library(judged: set[str]):
    assert CLAIMED - judged == set()


def test_every_library_check_is_claimed(judged: set[str]):
    assert judged - CLAIMED == set()


def test_every_sender_but_the_generic_ones_is_checked_against_something():
    unchecked = {recipe.name for recipe in RECIPES if not recipe.checked}
    assert unchecked <= {"hmac", "token", "unsigned"}
