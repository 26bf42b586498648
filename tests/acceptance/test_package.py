"""The wheels work in an empty environment outside of the repository."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.conftest import free_port

pytestmark = pytest.mark.extended(
    "installs the wheels with their packages into an empty environment; tests/guards/test_wheel.py stays"
)

ROOT = Path(__file__).parents[2]
DISTRIBUTIONS = ("app-tools", "billing", "cashdesk", "fleet", "music", "demo")
"""In an order in which each stands on those before it."""
INHERITED = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}


class Installation:
    """A folder with a virtual environment in which the wheel and its locked requirements are installed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "venv" / "bin"

    def run(self, *command: str | Path, timeout: float = 300, cwd: Path | None = None) -> str:
        """Run a command and return its output."""
        done = subprocess.run(
            command,
            cwd=cwd or self.folder,
            env={**INHERITED, "COLUMNS": "140"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout[-4000:]}"
        return done.stdout

    def make(self) -> None:
        """Create the environment with the locked requirements."""
        self.run(sys.executable, "-m", "venv", self.folder / "venv")
        self.pip("install", "--require-hashes", "--no-deps", "-r", ROOT / "requirements/run.lock")

    def install(self, *sources: Path) -> None:
        """Build and install the wheels of these folders."""
        for source in sources:
            self.run(
                sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", self.folder / source.name, cwd=source
            )
            self.pip("install", "--no-deps", "--no-index", *(self.folder / source.name).glob("*.whl"))
        self.pip("check")

    def pip(self, *arguments: str | Path) -> None:
        self.run(self.bin / "python", "-m", "pip", "--no-input", "--quiet", "--disable-pip-version-check", *arguments)


def refused(installation: Installation, *command: str | Path) -> str:
    """Run a command that must fail, and return its message."""
    done = subprocess.run(command, cwd=installation.folder, env=INHERITED, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stdout + done.stderr
    return done.stderr.strip().removeprefix("boathook: ")


@pytest.fixture(scope="module")
def installation() -> Iterator[Installation]:
    """A folder PostgreSQL's account can enter, unlike pytest's own when root runs the tests."""
    folder = Path(tempfile.mkdtemp(prefix="boathook-package-"))
    folder.chmod(0o755)
    created = Installation(folder)
    created.make()
    created.install(ROOT)
    yield created
    shutil.rmtree(folder, ignore_errors=True)


def test_it_is_the_installed_one_that_runs(installation: Installation):
    place = installation.run(installation.bin / "python", "-c", "import boathook; print(boathook.__file__)")
    assert Path(place.strip()).is_relative_to(installation.folder / "venv")


def test_help_lists_the_commands(installation: Installation):
    text = installation.run(installation.bin / "boathook", "--help")
    for command in ("serve", "check", "demo", "events", "dead", "rejections"):
        assert command in text


def test_it_brings_neither_apps_nor_the_demo(installation: Installation):
    command = installation.bin / "boathook"
    assert refused(installation, command, "demo") == "the demo is a package of its own: pip install boathook-demo"
    assert "pip install boathook-billing" in refused(installation, command, "apps", "sample", "billing")
    assert "pip install boathook-billing" in refused(installation, command, "billing", "list")


def test_the_demo_plays_and_balances(installation: Installation):
    installation.install(*(ROOT / "packages" / f"boathook-{name}" for name in DISTRIBUTIONS))
    data_dir = installation.folder / "demo"
    text = installation.run(
        installation.bin / "boathook", "demo", "--seconds", "6", "--data-dir", data_dir, "--port", str(free_port())
    )  # fmt: skip
    assert "The store is consistent" in text
    assert data_dir.is_dir()
