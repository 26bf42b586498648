"""The settings and commands of every provider page work, all on one running boathook."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from boathook import config
from boathook.providers import RECIPES
from boathook.providers.schemes import Asymmetric
from boathook.service.receiving.source_trial import run_source_test
from boathook.testing import make_keys
from boathook_dev.scaffold import secret_variable
from tests.acceptance.conftest import BoathookProcess, free_port
from tests.guards.documents import ROOT, blocks


def sources() -> str:
    """Return all that the pages say to write into boathook.toml."""
    pages = sorted((ROOT / "docs/reference/providers").glob("*.md"))
    return "\n".join(block.text for page in pages for block in blocks(page) if block.language == "toml")


def secrets() -> dict[str, str]:
    """Return the variables that the pages speak of; where a sender has a key pair, its public half."""
    found = {}
    for recipe in RECIPES:
        secret = recipe.sample.secret
        if isinstance(recipe.proof, Asymmetric):
            secret = make_keys(recipe.name, **recipe.sample.settings).public
        found[secret_variable(recipe)] = secret
    return found


@pytest.fixture(scope="module")
def running(shared_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BoathookProcess]:
    folder = tmp_path_factory.mktemp("pages")
    running = BoathookProcess(folder, shared_url, roles="gateway")
    port = free_port()
    running.port, running.base = port, f"http://127.0.0.1:{port}"
    running.environment |= secrets()
    (folder / "boathook.toml").write_text(
        f'[database]\nurl = "{shared_url}"\n[server]\nbind = "127.0.0.1:{port}"\ndata_dir = "data"\nroles = ["gateway"]\n'
        + sources()
    )
    running.start()
    yield running
    running.kill_all()


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
async def test_its_source_accepts_a_sample_and_rejects_a_forged_one(recipe, running, monkeypatch):
    for name, value in running.environment.items():
        if name not in os.environ:
            monkeypatch.setenv(name, value)
    settings = config.load(Path(running.folder / "boathook.toml"))
    steps = [step async for step in run_source_test(settings, recipe.name)]
    assert steps
    assert [step.found for step in steps if not step.ok] == []
