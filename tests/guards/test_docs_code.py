"""Every code block in the documentation is run, or parsed by its target program."""

import ast
import asyncio
import importlib
import json
import logging
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import crossplane
import pytest
import yaml

from boathook import config, verify
from boathook.ingest.sources import compile_sources
from boathook.providers import RECIPES
from boathook.providers.schemes import Asymmetric
from boathook.testing import make_keys, sign
from boathook_dev.scaffold import secret_variable
from scripts.write_docs import commands as all_commands
from tests.commands import boathook_command
from tests.guards.documents import ROOT, Block, Misunderstood, blocks, commands, parse_command
from tests.guards.test_docs import PAGES, name_of

COMMANDS = dict(all_commands())
BLOCKS = [block for page in PAGES for block in blocks(page)]
MAKE_TARGETS = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))

EXCUSED = {
    "docs/reference/apps.md:python:1": "a whole app with files beside it: tests/acceptance/test_app_platform.py runs it",
    "docs/how-to/move-from-a-view.md:python:4": "needs Django set up: TestMovingFromAView runs it",
    "docs/how-to/django.md:python:2": "needs a Django project: tests/acceptance/test_frameworks.py runs the example's",
    "docs/how-to/django.md:python:3": "the same, as tests/acceptance/test_frameworks.py does",
    "docs/how-to/django.md:python:4": "the same, as tests/acceptance/test_frameworks.py does",
    "docs/how-to/django.md:python:5": "the same, as tests/acceptance/test_frameworks.py does",
    "docs/how-to/test-handlers.md:python:7": "imports the page's shop.py: tests/acceptance/test_pytest_plugin.py runs it",
    "docs/how-to/sending.md:python:1": "asks a running server: tests/acceptance/svix/test_move_from_svix.py runs it",
    "docs/how-to/read-from-a-browser.md:js:1": "tests/browser/test_mounts.py does the same in a browser",
    "docs/how-to/read-from-a-browser.md:js:2": "tests/browser/test_mounts.py does the same in a browser",
    "docs/how-to/sending.md:js:1": "tests/acceptance/svix/clients/npm makes the same calls with the same client",
    "docs/tutorial/songs.md:python:6": "is added to an earlier block: tests/acceptance/test_tutorial.py follows the page",
    "docs/tutorial/songs.md:python:7": "the same, as tests/acceptance/test_tutorial.py does",
    "docs/tutorial/songs.md:ini:1": "the same, as tests/acceptance/test_tutorial.py does",
    "docs/tutorial/songs.md:sql:1": "the same, as tests/acceptance/test_tutorial.py does",
    "docs/tutorial/songs.md:sql:2": "the same, as tests/acceptance/test_tutorial.py does",
    "docs/tutorial/quickstart.md:sql:1": "tests/unit/test_scaffold.py compares it with what init writes",
    "docs/reference/apps.md:sql:1": "tests/acceptance/test_app_platform.py applies it",
    "docs/explanation/architecture.md:mermaid:1": "test_docs.py compares it with the legal moves",
    "docs/how-to/optional-packages.md:python:3": "imports the page's package: tests/guards/test_package_page.py uses it",
    "docs/how-to/optional-packages.md:python:4": "the same, as tests/guards/test_package_page.py does",
    "docs/how-to/optional-packages.md:python:5": "the same, as tests/guards/test_package_page.py does",
    "docs/how-to/destinations.md:python:1": "tests/postgres/sending/test_destinations.py installs and uses it",
    "docs/how-to/pages.md:sql:1": "tests/postgres/pages/test_page_kit.py applies it",
    "docs/how-to/pages.md:python:1": "a whole app with files beside it: tests/postgres/pages/test_page_kit.py runs it",
    "docs/how-to/pages.md:html:1": "its template: tests/postgres/pages/test_page_kit.py shows it",
    "docs/how-to/deploy-containers.md:dockerfile:1": "its base image exists on the reader's machine alone",
}
"""Blocks that are not run here, each with the reason, and with the test that does it elsewhere."""

BODY = b'{"id":"evt_1","type":"invoice.paid"}'


def fragments() -> dict[str, dict[str, Any]]:
    """Return code that partial function bodies need, by block; both run as one body."""
    request = SimpleNamespace(headers=sign("stripe", "whsec_...", BODY))
    endpoint = "whsec_dGhpcyBlbmRwb2ludCdzIG93bg=="
    message = SimpleNamespace(headers=sign("standard-webhooks", endpoint, BODY, id="msg_1"))
    return {
        "docs/how-to/verify.md:python:1": {
            "request": request,
            "raw_body": BODY,
            "log": logging.getLogger("docs"),
            "store_once": MagicMock(),
            "Response": MagicMock(),
        },
        "docs/how-to/verify.md:python:2": {"body": BODY},
        "docs/how-to/sending.md:python:3": {"request": message, "raw_body": BODY},
    }


FRAGMENTS = fragments()


def pick(*languages: str) -> Any:
    """Parametrize a test with the blocks of these languages."""
    found = [block for block in BLOCKS if block.language in languages]
    return pytest.mark.parametrize("block", found, ids=lambda block: block.name)


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put each example into a folder of its own, with the secrets that pages speak of."""
    monkeypatch.chdir(tmp_path)
    for name in ("STRIPE_SECRET", "STRIPE_WEBHOOK_SECRET", "SHOP_DATABASE_URL"):
        monkeypatch.setenv(name, "whsec_for_docs")


def run_block(block: Block, **names: Any) -> dict[str, Any]:
    """Run a block as its own module, and return its names."""
    module = {"__name__": "example", "__file__": str(Path.cwd() / "example.py"), **names}
    exec(compile(block.text, block.name, "exec"), module)
    return module


def run_fragment(block: Block, stands_on: dict[str, Any]) -> None:
    """Run a block as the body of a function."""
    # Imports of a whole module may stand in a function as well; what is outside a block is the reader's.
    text = f"async def fragment({', '.join(stands_on)}):\n{textwrap.indent(block.text, '    ')}"
    module: dict[str, Any] = {}
    exec(compile(text, block.name, "exec"), module)
    asyncio.run(module["fragment"](**stands_on))


class TestPython:
    @pick("python")
    def test_it_runs(self, block):
        if block.name in FRAGMENTS:
            run_fragment(block, fragments()[block.name])  # signed at this moment
        elif block.name not in EXCUSED:
            run_block(block)

    @pick("python")
    def test_its_imports_exist(self, block):
        for node in ast.walk(ast.parse(block.text)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "boathook":
                module = importlib.import_module(node.module or "")
                assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == []

    def test_mutant_a_handler_with_an_unknown_argument_is_found(self):
        block = next(block for block in BLOCKS if block.name == "docs/tutorial/quickstart.md:python:1")
        wrong = Block(block.page, block.number, "python", block.text.replace('d")', 'd", ordered_by="id")'))
        with pytest.raises(TypeError):
            run_block(wrong)


_SET_UP = "from django.conf import settings\nsettings.configure(ALLOWED_HOSTS=['*'])"
_TRY_BOTH = """
import json, sys
from django.test import RequestFactory
given = json.loads(sys.argv[1])
def post(body):
    made = RequestFactory().post("/", data=body, content_type="application/json", headers=given["headers"])
    return stripe(made).status_code
print([post(given["body"]), post(given["body"] + " ")])
"""


class TestMovingFromAView:
    """The page's views verify real requests, and boathook accepts its handlers."""

    SECRET = "whsec_for_docs"

    @staticmethod
    def block(number: int) -> Block:
        return next(block for block in BLOCKS if block.name == f"docs/how-to/move-from-a-view.md:python:{number}")

    def test_flask(self):
        client = run_block(self.block(1))["app"].test_client()
        headers = sign("stripe", self.SECRET, BODY)
        assert client.post("/webhooks/stripe", data=BODY, headers=headers).status_code == 200
        assert client.post("/webhooks/stripe", data=BODY + b" ", headers=headers).status_code == 401

    def test_django(self, tmp_path):
        """In a process of its own, as Django can be set up but once."""
        (tmp_path / "example.py").write_text(f"{_SET_UP}\n{self.block(2).text}\n{_TRY_BOTH}")
        request = json.dumps({"body": BODY.decode(), "headers": sign("stripe", self.SECRET, BODY)})
        command = [sys.executable, "example.py", request]
        done = subprocess.run(command, cwd=tmp_path, env=dict(os.environ), capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (0, "[200, 401]\n"), done.stderr

    def test_a_handler_with_djangos_orm(self, tmp_path):
        (tmp_path / "shop").mkdir()
        (tmp_path / "shop/settings.py").write_text(
            'INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes"]\n'
            'DATABASES = {"default": {"ENGINE": "django.db.backends.postgresql", "NAME": "shop"}}\n'
        )
        (tmp_path / "example.py").write_text(self.block(4).text + "\nprint(shut_account)\n")
        environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
        environment.pop("DJANGO_SETTINGS_MODULE", None)
        done = subprocess.run(
            [sys.executable, "example.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr


class TestSettings:
    @pick("toml")
    def test_it_is_taken(self, block, tmp_path):
        file = tmp_path / "boathook.toml"
        file.write_text(block.text)
        config.load(file)

    @pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
    def test_a_providers_example_compiles_with_its_secret(self, recipe, tmp_path, monkeypatch):
        secret = recipe.sample.secret
        if isinstance(recipe.proof, Asymmetric):
            secret = make_keys(recipe.name, **recipe.sample.settings).public
        monkeypatch.setenv(secret_variable(recipe), secret)
        (block,) = [
            one for one in blocks(ROOT / f"docs/reference/providers/{recipe.name}.md") if one.language == "toml"
        ]
        file = tmp_path / "boathook.toml"
        file.write_text(block.text)
        assert set(compile_sources(config.load(file))) >= {f"/in/{recipe.name}"}


class TestCommands:
    @pick("sh", "console")
    def test_the_command_line_understands_it(self, block):
        for words in commands(block.text):
            parse_command(words)

    @pick("sh")
    def test_its_chores_exist(self, block):
        for line in block.text.splitlines():
            words = line.partition("#")[0].split()
            if words[:1] == ["make"]:
                assert {word for word in words[1:] if word.isalpha() and word.islower()} <= MAKE_TARGETS

    @pytest.mark.parametrize("name", COMMANDS)
    def test_each_example_of_a_commands_help_is_understood(self, name):
        for line in (COMMANDS[name].epilog or "").splitlines():
            for words in commands(line.strip().removeprefix("Example: ")):
                parse_command(words)

    @pytest.mark.parametrize(
        "words",
        [
            ["boathook", "serve", "--rolle", "gateway"],
            ["boathook", "evnts", "list"],
            ["boathook", "events", "list", "--limit", "many"],
            ["boathook", "send", "--type", "invoice.paid"],
        ],
    )
    def test_mutant_an_invalid_command_is_found(self, words):
        with pytest.raises(Misunderstood):
            parse_command(words)

    @pytest.mark.parametrize(
        ("shell", "found"),
        [
            ("sudo -u boathook /opt/boathook/bin/boathook doctor", [["boathook", "doctor"]]),
            ("docker compose exec boathook boathook check | tee out", [["boathook", "check"]]),
            ("kubectl -n boathook exec pod -- boathook doctor", [["boathook", "doctor"]]),
            ("kubectl -n boathook rollout status", []),
            ('uvx --from "boathook[embedded]" boathook init', [["boathook", "init"]]),
            (
                "boathook alerts rules > file && boathook check",
                [["boathook", "alerts", "rules"], ["boathook", "check"]],
            ),
        ],
    )
    def test_commands_are_found_anywhere_in_a_line(self, shell, found):
        assert list(commands(shell)) == found

    @pytest.mark.parametrize(
        "words",
        [
            ["alerts", "rules"],
            ["sources", "providers", "--json"],
            ["sources", "list", "--json"],
            ["sources", "show", "stripe"],
            ["config", "show"],
            ["config", "check"],
            ["apps", "sample", "billing"],
            ["spool", "status"],
        ],
        ids=" ".join,
    )
    def test_commands_without_a_server_run(self, words, tmp_path):
        (tmp_path / "boathook.toml").write_text('[sources.stripe]\nsecrets = ["env:STRIPE_SECRET"]\n')
        done = boathook_command(*words, cwd=tmp_path, env=dict(os.environ))
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        assert done.stdout


class TestOtherLanguages:
    @pick("json")
    def test_json(self, block):
        json.loads(block.text)

    @pick("yaml")
    def test_yaml(self, block):
        assert all(isinstance(one, dict) for one in yaml.safe_load_all(block.text))

    @pick("nginx")
    def test_nginx(self, block, tmp_path):
        file = tmp_path / "nginx.conf"
        file.write_text(f"events {{}}\nhttp {{\nserver {{\n{block.text}\n}}\n}}\n")
        assert crossplane.parse(str(file), single=True, strict=True)["errors"] == []

    @pytest.mark.parametrize("page", PAGES, ids=name_of)
    def test_every_block_names_its_language(self, page):
        fences = re.findall(r"^ *```(.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
        assert "" not in fences[::2], "a block without a language is read by nobody; write text"

    def test_each_is_read_by_a_test_or_excused_with_a_reason(self):
        read = {"python", "toml", "sh", "console", "json", "yaml", "nginx", "text"}
        left = [block.name for block in BLOCKS if block.language not in read and block.name not in EXCUSED]
        assert left == []

    def test_no_excuse_is_left_over(self):
        names = {block.name for block in BLOCKS}
        assert [name for name in (*EXCUSED, *FRAGMENTS) if name not in names] == []
        tests = re.findall(r"tests/[\w/.]+", " ".join(EXCUSED.values()))
        assert [path for path in tests if not (ROOT / path).exists()] == []


def test_the_secret_of_the_page_on_sending_is_one():
    """The fragments above would run as well with a request that is refused."""
    request = fragments()["docs/how-to/verify.md:python:1"][
        "request"
    ]  # signed at this moment, not when tests were collected
    assert verify("stripe", "whsec_...", request.headers, BODY)
