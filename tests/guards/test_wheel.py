"""Each wheel holds everything that is read at run time, and installs its commands, apps and nothing else."""

import subprocess
import sys
import tomllib
from email.parser import Parser
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
PACKAGES = tuple(sorted(path.name for path in SOURCE.iterdir() if path.is_dir() and path.name != "__pycache__"))
"""boathook, and the optional packages in its distribution."""
DISTRIBUTIONS = sorted((ROOT / "packages").iterdir())
APPS = ("billing", "cashdesk", "fleet", "music")


def built(source: Path, folder: Path) -> Path:
    """Build a distribution's wheel."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=source, check=True, capture_output=True,
    )  # fmt: skip
    [path] = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    with ZipFile(built(ROOT, tmp_path_factory.mktemp("dist"))) as archive:
        yield archive


def metadata_of(wheel: ZipFile):
    [name] = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    return Parser().parsestr(wheel.read(name).decode())


def test_it_contains_every_file_of_the_package(wheel):
    files = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert files - set(wheel.namelist()) == set()


def test_it_contains_sql_the_schema_and_default_settings(wheel):
    names = set(wheel.namelist())
    assert {
        "boathook/defaults.toml",
        "boathook/db/migrations/0001_initial.sql",
        "boathook/db/events.sql",
    } <= names
    assert any(name.startswith("boathook/db/migrations/") and name.endswith(".sql") for name in names)


def test_it_contains_nothing_else(wheel):
    assert {"boathook", "boathook_mcp", "boathook_otel", "boathook_rabbitmq", "boathook_redis"} <= set(PACKAGES)
    expected = (*(f"{name}/" for name in PACKAGES), "boathook-")
    unexpected = [name for name in wheel.namelist() if not name.startswith(expected)]
    assert unexpected == []


def test_it_has_the_command_and_its_extras(wheel):
    [points] = [name for name in wheel.namelist() if name.endswith("entry_points.txt")]
    assert "[console_scripts]\nboathook = boathook.cli:main" in wheel.read(points).decode()
    assert "[pytest11]\nboathook = boathook.testing.plugin" in wheel.read(points).decode()
    metadata = metadata_of(wheel)
    extras = {"embedded", "sqlalchemy", "psycopg", "django", "rabbitmq", "redis", "mcp", "otel", "pages", "all"}
    assert set(metadata.get_all("Provides-Extra")) == extras
    assert metadata["License-Expression"] == "Apache-2.0"


def test_it_brings_neither_the_apps_nor_the_demo(wheel):
    apart = {path.name.replace("-", "_") for path in DISTRIBUTIONS}
    assert not apart & {name.partition("/")[0] for name in wheel.namelist()}
    required = metadata_of(wheel).get_all("Requires-Dist")
    assert not [line for line in required if line.startswith("boathook-")]


@pytest.mark.parametrize("source", DISTRIBUTIONS, ids=lambda source: source.name)
def test_each_distribution_holds_its_files_and_pins_what_it_stands_on(source: Path, tmp_path: Path):
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    package = source.name.replace("-", "_")
    files = {
        path.relative_to(source / "src").as_posix()
        for path in (source / "src").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with ZipFile(built(source, tmp_path)) as archive:
        names, metadata = set(archive.namelist()), metadata_of(archive)
        points = [archive.read(name).decode() for name in names if name.endswith("entry_points.txt")]
    assert {name for name in names if not name.startswith(f"{package}-")} == files
    assert metadata["Version"] == version
    own = [line for line in metadata.get_all("Requires-Dist") if line.startswith("boathook")]
    assert own
    assert all(line.partition(";")[0].strip().endswith(f"=={version}") for line in own)
    app = source.name.removeprefix("boathook-")
    if app in APPS:
        assert {f"{package}/boathook.toml", f"{package}/py.typed"} <= names
        assert any(name.startswith(f"{package}/migrations/0001_") for name in names)
        assert f"[boathook.apps]\n{app} = {package}\n" in points[0]
    else:
        assert points == []
