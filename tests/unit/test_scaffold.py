"""`boathook init` writes a project that works for every provider, and overwrites nothing."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from dotenv import dotenv_values

from boathook import config
from boathook.cli import main
from boathook.ingest.sources import compile_sources
from boathook.providers import RECIPES
from boathook.server.loading import load_apps
from boathook_dev.scaffold import ProjectKind, project_files
from tests.databases import libpq_environment
from tests.guards.documents import ROOT, blocks
from tests.support import sampled

FILES = {"boathook.toml", "hooks.py", "migrations", "test_hooks.py", ".env.example", ".env", ".gitignore"}
NAMES = sorted(recipe.name for recipe in RECIPES)
ONE_OF_EACH_KIND = {type(recipe.proof): recipe.name for recipe in RECIPES if recipe.name != "stripe"}.values()
"""A provider of each kind of proof."""


PYTEST = ("pytest", "-q", "-p", "no:cacheprovider", "-p", "no:asyncio", "-p", "no:schemathesis")


def run_init(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["init", *arguments])
    return int(ended.value.code or 0)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_tests(folder: Path, *arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *arguments], cwd=folder, env={**os.environ, "PYTHONPATH": "", **environment},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("name", sampled(["stripe", *ONE_OF_EACH_KIND], keep=1))
def test_the_tests_of_a_new_project_pass(folder: Path, name: str):
    assert run_init("--source", name) == 0
    done = run_tests(folder, *PYTEST)
    assert " passed" in done


@pytest.mark.extended("starts several servers of its own")
def test_the_tests_of_a_new_fastapi_project_pass(folder: Path):
    assert run_init("--fastapi") == 0
    assert "2 passed" in run_tests(folder, *PYTEST)


@pytest.mark.extended("repeats what stays with other values")
def test_the_tests_of_a_new_django_project_pass(folder: Path, admin_url: str):
    assert run_init("--django", "--source", "github") == 0
    run_tests(folder, "manage", "test", "--noinput", **libpq_environment(admin_url))


@pytest.mark.parametrize("name", NAMES)
def test_every_provider_makes_a_project_that_starts(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str):
    assert run_init("--source", name) == 0
    if (folder / ".env").exists():
        for variable, value in dotenv_values(folder / ".env", interpolate=False).items():
            assert value
            monkeypatch.setenv(variable, value)
    settings = config.load(folder / "boathook.toml")
    assert f"/in/{name}" in compile_sources(settings)
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.delitem(sys.modules, "hooks", raising=False)
    ((handler,),) = [hook.handlers.values() for hook in load_apps(settings)]
    monkeypatch.delitem(sys.modules, "hooks")
    assert [line.source for line in handler.lines] == [name]


def test_init_writes_the_project_files(folder: Path, capsys: pytest.CaptureFixture[str]):
    assert run_init("shop") == 0
    assert {path.name for path in (folder / "shop").iterdir()} == FILES
    assert (folder / "shop/.env").stat().st_mode & 0o777 == 0o600
    assert "STRIPE_SECRET=\n" in (folder / "shop/.env.example").read_text()
    assert ".env" in (folder / "shop/.gitignore").read_text().splitlines()
    assert "Next: cd shop && boathook dev" in capsys.readouterr().out


def show_django_settings(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    code = (
        "import json, django; django.setup(); from django.conf import settings as s;"
        " print(json.dumps([s.DEBUG, s.SECRET_KEY, s.MIDDLEWARE, s.SESSION_COOKIE_SECURE]))"
    )
    return subprocess.run(
        [sys.executable, "-c", code], cwd=folder,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "config.settings", **environment},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(("value", "is_on"), [("0", False), ("false", False), ("", False), ("1", True), ("True", True)])
def test_a_django_project_has_debug_on_only_if_it_is_asked_for(folder: Path, value: str, is_on: bool):
    assert run_init("--django") == 0
    done = show_django_settings(folder, DJANGO_DEBUG=value)
    is_debug, key, middleware, is_secure = json.loads(done.stdout)
    assert (is_debug, is_secure) == (is_on, not is_on)
    assert len(key) >= 50
    assert "django.middleware.csrf.CsrfViewMiddleware" in middleware


def test_a_django_project_does_not_start_without_a_key(folder: Path):
    assert run_init("--django") == 0
    (folder / ".env").unlink()
    done = show_django_settings(folder)
    assert "ImproperlyConfigured: DJANGO_SECRET_KEY is not set" in done.stderr


def test_the_quickstart_shows_what_init_writes():
    files = project_files("stripe")
    shown = [block.text for block in blocks(ROOT / "docs/tutorial/quickstart.md")]
    statements = [line for line in files["migrations/0001_first.sql"].splitlines() if not line.startswith("--")]
    assert "\n".join(statements) + "\n" in shown
    assert files["boathook.toml"] in shown
    assert files["hooks.py"].partition("\n\n")[2] in shown


def test_each_project_has_its_own_secret():
    assert project_files("stripe", ProjectKind.DJANGO)[".env"] != project_files("stripe", ProjectKind.DJANGO)[".env"]

    assert project_files("stripe")[".env"] != project_files("stripe")[".env"]


@pytest.mark.parametrize("name", sorted(FILES - {".gitignore", "migrations"}))
def test_nothing_is_overwritten(folder: Path, capsys: pytest.CaptureFixture[str], name: str):
    (folder / name).write_text("mine")
    assert run_init() == 2
    assert f"{name} already exist in {folder}" in capsys.readouterr().err
    assert {path.name: path.read_text() for path in folder.iterdir()} == {name: "mine"}


def test_an_existing_gitignore_is_kept_and_mentioned(folder: Path, capsys: pytest.CaptureFixture[str]):
    (folder / ".gitignore").write_text("*.pyc\n")
    assert run_init() == 0
    assert (folder / ".gitignore").read_text() == "*.pyc\n"
    assert "add .env and .boathook/ to .gitignore" in capsys.readouterr().out


def test_a_project_is_of_one_kind(folder: Path, capsys: pytest.CaptureFixture[str]):
    assert run_init("--fastapi", "--django") == 2
    assert "choose one of --fastapi, --django and --plain" in capsys.readouterr().err
    assert list(folder.iterdir()) == []


def test_an_unknown_provider_gets_a_suggestion(folder: Path, capsys: pytest.CaptureFixture[str]):
    assert run_init("--source", "strpe") == 2
    assert "there is no provider 'strpe'; perhaps stripe?" in capsys.readouterr().err
    assert list(folder.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_named(folder: Path, capsys: pytest.CaptureFixture[str]):
    (folder / "file").touch()
    assert run_init("file/shop") == 2
    assert "cannot write file/shop" in capsys.readouterr().err


class TestEnvFile:
    """Commands read `.env` beside boathook.toml."""

    def show(self, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if name != "BOATHOOK_SERVER_BIND"}
        command = [sys.executable, "-m", "boathook", "config", "show"]
        return subprocess.run(
            command, cwd=folder, env={**kept, **environment}, capture_output=True, text=True, check=False
        )

    def test_dotenv_fills_in_missing_variables(self, folder: Path):
        (folder / "boathook.toml").touch()
        (folder / ".env").write_text("BOATHOOK_SERVER_BIND=127.0.0.1:4001\n")
        assert "127.0.0.1:4001" in self.show(folder).stdout
        assert "127.0.0.1:4002" in self.show(folder, BOATHOOK_SERVER_BIND="127.0.0.1:4002").stdout

    def test_it_is_not_read_without_a_configuration_file(self, folder: Path):
        (folder / ".env").write_text("BOATHOOK_SERVER_BIND=127.0.0.1:4001\n")
        assert "127.0.0.1:4001" not in self.show(folder).stdout
