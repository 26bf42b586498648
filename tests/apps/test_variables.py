"""Environment variables that the documents of the four systems name are honoured, or named as without effect."""

import os
import tomllib
from importlib import import_module
from typing import Any

import pytest

from boathook_fleet.settings import IGNORED, PRESET
from tests import reality
from tests.commands import boathook_command

DOCUMENTS: dict[str, dict[str, Any]] = tomllib.loads((reality.ROOT / "variables.toml").read_text())
HONOURED = {"fleet": set(PRESET)}
FORMER = {"fleet": {"TELEGRAM_BOT_TOKEN", "TELEGRAM_CHAT_ID"}}
"""What an app honoured before boathook did the same."""
APPS = sorted(DOCUMENTS.keys() - {"guide"})


def load_app(name: str) -> Any:
    return import_module(f"boathook_{name}").hook


@pytest.mark.parametrize("app", APPS)
def test_each_variable_is_honoured_or_named_as_without_effect(app: str):
    named, honoured = set(DOCUMENTS[app].get("variables", {})), HONOURED.get(app, set())
    ignored = set(load_app(app).manifest.ignored_variables)
    assert named <= honoured | ignored
    assert not honoured & ignored
    assert ignored - FORMER.get(app, set()) <= named, "name only variables of the document"


@pytest.mark.parametrize("app", APPS)
def test_the_reason_and_the_fix_are_sentences(app: str):
    for name, (reason, fix) in load_app(app).manifest.ignored_variables.items():
        for text in (reason, fix):
            assert text, name
            assert not text.endswith("."), name


def test_config_check_names_what_is_set(tmp_path):
    environment = os.environ | dict.fromkeys(IGNORED, "1")
    (tmp_path / "boathook.toml").write_text('[apps]\nload = ["fleet"]\n[fleet]\nsecrets = ["try-me-and-change-me"]\n')
    done = boathook_command("config", "check", cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert {name for name in IGNORED if f"the environment variable {name} has no effect" in done.stderr} == set(IGNORED)
    (tmp_path / "boathook.toml").write_text('[server]\nbind = "127.0.0.1:0"\n')
    assert "has no effect" not in boathook_command("config", "check", cwd=tmp_path, env=environment).stderr, (
        "fleet is not loaded"
    )
