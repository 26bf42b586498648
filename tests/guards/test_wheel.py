"""The wheel holds everything that boathook reads at run time, and installs the command."""

import subprocess
import sys
from email.parser import Parser
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src/boathook"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT, check=True, capture_output=True,
    )  # fmt: skip
    [path] = folder.glob("boathook-*.whl")
    with ZipFile(path) as archive:
        yield archive


def metadata_of(wheel: ZipFile):
    [name] = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    return Parser().parsestr(wheel.read(name).decode())


def test_it_contains_every_file_of_the_package(wheel):
    files = {
        f"boathook/{path.relative_to(PACKAGE)}"
        for path in PACKAGE.rglob("*")
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


def test_each_app_has_migrations_a_readme_and_sample_settings(wheel):
    names = set(wheel.namelist())
    apps = sorted({path.parent.name for path in (PACKAGE / "apps").glob("*/__init__.py")})
    assert apps
    for app in apps:
        assert {f"boathook/apps/{app}/README.md", f"boathook/apps/{app}/boathook.toml"} <= names, app
        assert any(name.startswith(f"boathook/apps/{app}/migrations/0001_") for name in names), app


def test_it_contains_nothing_else(wheel):
    unexpected = [name for name in wheel.namelist() if not name.startswith(("boathook/", "boathook-"))]
    assert unexpected == []


def test_it_has_the_command_and_its_extras(wheel):
    [points] = [name for name in wheel.namelist() if name.endswith("entry_points.txt")]
    assert "[console_scripts]\nboathook = boathook.cli:main" in wheel.read(points).decode()
    assert "[pytest11]\nboathook = boathook.testing.plugin" in wheel.read(points).decode()
    metadata = metadata_of(wheel)
    extras = {"embedded", "sqlalchemy", "psycopg", "django", "rabbitmq", "redis", "otel", "all"}
    assert set(metadata.get_all("Provides-Extra")) == extras
    assert metadata["License-Expression"] == "Apache-2.0"
