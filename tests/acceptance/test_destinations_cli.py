"""Endpoints of a kind of destination that a package adds, by the real command line."""

import json
from pathlib import Path

import pytest

from tests import file_destination
from tests.acceptance.test_cli import Cli

FILE = {"kind": "file", "path": "orders.jsonl"}


class FileCli(Cli):
    """The command line with the package installed and its kind allowed."""

    def run(self, *arguments: str, code: int = 0, **environment: str):
        return super().run(*arguments, code=code, PYTHONPATH=str(self.folder / "site"), **environment)


@pytest.fixture
def cli(tmp_path: Path, pg_url: str) -> FileCli:
    made = FileCli(tmp_path, pg_url)
    file_destination.install(tmp_path / "site")
    with (tmp_path / "boathook.toml").open("a") as settings:
        settings.write('\n[outbound]\ndestinations = ["http", "file"]\n')
    made.run("applications", "create", "Acme", "--uid", "acme")
    return made


def test_an_endpoint_is_created_shown_and_changed(cli: FileCli):
    secret = json.dumps({**FILE, "token": "t0ken-of-the-reader"})
    endpoint = cli.run("endpoints", "create", "-a", "acme", "--destination", secret).stdout.strip()
    [shown] = cli.objects("endpoints", "show", "-a", "acme", endpoint)
    assert (shown["destination"], shown["url"]) == (FILE, "file:outbox/orders.jsonl")
    cli.run("endpoints", "update", "-a", "acme", endpoint, "--destination", json.dumps({**FILE, "maxMb": 3}))
    [shown] = cli.objects("endpoints", "show", "-a", "acme", endpoint)
    assert shown["destination"] == {**FILE, "maxMb": 3}


WRONG = [
    ((), "--destination"),
    (("--destination", "file"), "--destination: "),
    (("--destination", '{"kind": "queue"}'), "write one of http, file"),
    (("--destination", '{"kind": "file"}'), "it is required"),
    (("--destination", '{"kind": "file", "path": "../x"}'), "write a path such as acme/orders.jsonl"),
    (("--destination", json.dumps(FILE), "--url", "https://acme.example/x"), "have no URL; omit it"),
]


def test_a_wrong_field_is_named(cli: FileCli):
    for words, text in WRONG:
        assert text in cli.complaint("endpoints", "create", "-a", "acme", *words), words
