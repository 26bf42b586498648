"""The first steps after the installation: an app's sample configuration in a new folder."""

import math
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from boathook_billing.settings import BillingSettings
from boathook_fleet.settings import FleetSettings
from boathook_music.settings import MusicSettings
from tests.commands import boathook_command

pytestmark = pytest.mark.smoke

PACKAGES = Path(__file__).parents[2] / "packages"
SAMPLES = {path.parent.name.removeprefix("boathook_"): path for path in sorted(PACKAGES.glob("*/src/*/boathook.toml"))}
NAMES = list(SAMPLES)
SECRETS = {"BILLING_SECRET": "a made-up secret", "SUNO_WEBHOOK_KEY": "a made-up secret"}


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return boathook_command(*arguments, cwd=folder, env={**os.environ, **SECRETS}, timeout=300)


@pytest.mark.parametrize("name", NAMES)
def test_the_sample_of_each_app_is_printed_and_is_a_configuration(tmp_path: Path, name: str):
    (tmp_path / "boathook.toml").touch()  # as the shell has made it by then
    printed = run(tmp_path, "apps", "sample", name)
    assert (printed.returncode, printed.stderr) == (0, "")
    assert printed.stdout == SAMPLES[name].read_text()
    (tmp_path / "boathook.toml").write_text(printed.stdout)
    checked = run(tmp_path, "config", "check")
    assert checked.returncode == 0, checked.stderr


def test_it_is_printed_despite_an_invalid_configuration(tmp_path: Path):
    (tmp_path / "boathook.toml").write_text("[nonsense")
    assert run(tmp_path, "apps", "sample", "music").stdout.startswith("#")


@pytest.mark.parametrize("name", ["shop", "../apps/billing", ""])
def test_an_unknown_app_is_refused_with_the_known_ones(tmp_path: Path, name: str):
    refused = run(tmp_path, "apps", "sample", name)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.strip().endswith(f"installed are: {', '.join(NAMES)}")


@pytest.mark.parametrize("name", NAMES)
def test_the_readme_of_each_app_tells_how_to_start(name: str):
    told = (PACKAGES / f"boathook-{name}" / "README.md").read_text()
    assert f"boathook apps sample {name} > boathook.toml" in told
    assert "503" in told
    assert "while `serve` starts" in " ".join(told.lower().split())


@pytest.mark.parametrize(
    ("read", "table"),
    [
        (MusicSettings, {"secret": "s", "failed_days": math.inf}),
        (BillingSettings, {"secret": "s", "late_after_hours": math.inf}),
        (FleetSettings, {"keep_days": math.inf}),
    ],
)
def test_an_app_refuses_an_infinite_period(read: type[BaseModel], table: dict[str, Any]):
    with pytest.raises(ValidationError, match="finite number"):
        read(**table)
