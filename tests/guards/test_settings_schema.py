"""The JSON Schema of boathook.toml accepts what boathook accepts, and refuses what an editor should mark."""

import json
import tomllib
from pathlib import Path

import pytest
from jsonschema import Draft7Validator

from boathook import config
from boathook.cli import main
from boathook.config.sources import FIELDS
from boathook.domain.errors import ConfigError
from boathook.providers import RECIPES
from boathook.providers.generic import HMAC_SETTINGS, TOKEN_SETTINGS
from boathook_dev.scaffold import project_files
from tests.guards.documents import ROOT, blocks
from tests.guards.test_docs import PAGES

SCHEMA = json.loads(config.schema())
SCHEMA_FILE = config.SCHEMA_URL.partition("/main/")[2]
FILES = {
    **{str(path.relative_to(ROOT)): path.read_text() for path in ROOT.glob("packages/*/src/*/boathook.toml")},
    **{str(path.relative_to(ROOT)): path.read_text() for path in ROOT.glob("deploy/**/boathook.toml")},
    **{block.name: block.text for page in PAGES for block in blocks(page) if block.language == "toml"},
    **{f"init --source {one.name}": project_files(one.name)["boathook.toml"] for one in RECIPES},
    **{str(path.relative_to(ROOT)): path.read_text() for path in ROOT.glob("src/*/defaults.toml")},
}
"""Every boathook.toml of the repository."""
WRONG = {
    "server.bnd": '[server]\nbnd = "127.0.0.1:8080"',
    "server.gateways": '[server]\ngateways = "two"',
    "server.roles[0]": '[server]\nroles = ["gatewya"]',
    "limits.max_body": "[limits]\nmax_body = 0",
    "sources.stripe.secrets": '[sources.stripe]\nsecrets = "env:STRIPE_SECRET"',
    "sources.stripe.mode": '[sources.stripe]\nmode = "wait"',
    "sources.'a b'": '[sources."a b"]\nunsigned = true',
    "notifications.channels.ops": '[notifications.channels.ops]\nkind = "telegram"\nchat = "1"',
    "notifications.rules.slow.severity": '[notifications.rules.slow]\nseverity = "mild"',
    "a key outside of a table": "port = 8080",
}


def errors(toml: str) -> list[str]:
    return [error.message for error in Draft7Validator(SCHEMA).iter_errors(tomllib.loads(toml))]


def test_it_is_a_schema():
    Draft7Validator.check_schema(SCHEMA)


def test_it_accepts_every_file_of_the_repository():
    assert len(FILES) > 100
    assert {name: found for name, text in FILES.items() if (found := errors(text))} == {}


@pytest.mark.parametrize("name", WRONG)
def test_it_refuses_what_boathook_refuses(name, tmp_path: Path):
    file = tmp_path / "boathook.toml"
    file.write_text(WRONG[name])
    with pytest.raises(ConfigError):
        config.load(file)
    assert errors(WRONG[name])


def test_it_refuses_an_unknown_provider():
    assert errors('[sources.a]\nprovider = "strype"')
    assert not errors('[sources.a]\nprovider = "svix"'), "an alias"


def test_every_key_has_a_description():
    tables = [
        SCHEMA["definitions"][one["$ref"].rpartition("/")[2]] for one in SCHEMA["properties"].values() if "$ref" in one
    ]
    keys = [
        field for table in [*tables, SCHEMA["definitions"]["SourceSettings"]] for field in table["properties"].values()
    ]
    assert len(keys) > 100
    assert all(field["description"] for field in keys)


def test_every_setting_of_the_generic_recipes_is_a_key_of_a_source():
    settings = {one.name for one in (*HMAC_SETTINGS, *TOKEN_SETTINGS)}
    assert settings <= FIELDS.keys()
    assert settings <= SCHEMA["definitions"]["SourceSettings"]["properties"].keys()


def test_a_new_project_names_the_schema_of_this_repository():
    assert project_files("stripe")["boathook.toml"].startswith(f"#:schema {config.SCHEMA_URL}\n")
    assert (ROOT / SCHEMA_FILE).read_text() == config.schema()


def test_the_command_line_prints_it(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        main(["config", "schema"])
    assert not ended.value.code
    assert json.loads(capsys.readouterr().out) == SCHEMA
