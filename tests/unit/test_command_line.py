"""The command line as a whole: global options anywhere, help under titles, settings checked as JSON."""

import json
import re
from pathlib import Path

import pytest

from boathook.cli import main
from boathook.cli.commands import (
    COMMAND_ENTRIES,
    COMMAND_GROUPS,
    hoist_global_options,
    package_entries,
    parse_global_options,
)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("check", "check"),
        ("check -c b.toml --deep", "-c b.toml check --deep"),
        ("config show --data-dir d --config=b.toml", "--data-dir d --config=b.toml config show"),
        ("--data-dir=d serve --port 1", "--data-dir=d serve --port 1"),
        ("demo --data-dir d -c b.toml", "--data-dir d -c b.toml demo"),
        ("send --data -- -c x", "send --data -- -c x"),
        ("check --config", "--config check"),
    ],
)
def test_global_options_may_be_anywhere(written: str, expected: str):
    assert hoist_global_options(written.split()) == expected.split()


@pytest.mark.parametrize(
    ("written", "config", "command"),
    [
        ("-c b.toml --data-dir d check --deep", Path("b.toml"), "check"),
        ("--data-dir=d check --config=b.toml", Path("b.toml"), "check"),
        ("--data-dir d --help", None, None),
        ("", None, None),
    ],
)
def test_the_command_is_found_after_global_options(written: str, config: Path | None, command: str | None):
    assert parse_global_options(written.split()) == (config, command)


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return int(ended.value.code or 0)


def test_help_lists_each_command_once_under_its_group(capsys: pytest.CaptureFixture[str]):
    run("--help")
    text = capsys.readouterr().out
    assert [title for title in re.findall(r"^([A-Z][\w ]+):$", text, re.MULTILINE) if title != "Options"] == list(
        COMMAND_GROUPS
    )
    words = " ".join(text.split())
    for name, entry in {**COMMAND_ENTRIES, **package_entries(None)}.items():
        assert words.count(f" {name} {entry.line}") == 1, name


def test_the_data_folder_may_be_given_to_any_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run("config", "show", "--json", "--data-dir", str(tmp_path / "elsewhere"))
    assert json.loads(capsys.readouterr().out)["server"]["data_dir"] == str(tmp_path / "elsewhere")


@pytest.mark.parametrize(
    ("arguments", "folder"),
    [
        (["demo"], ".boathook-demo"),
        (["demo", "--data-dir", "elsewhere"], "elsewhere"),
        (["--data-dir", "elsewhere", "demo"], "elsewhere"),
    ],
    ids=["its own", "behind", "in front"],
)
def test_the_demo_accepts_data_dir_before_or_after_its_name(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], folder: str
):
    used: list[Path] = []

    def run_demo(*, data_dir: Path, **_: object) -> int:
        used.append(data_dir)
        return 0

    monkeypatch.setattr("boathook_demo.run_demo", run_demo)
    assert run(*arguments) == 0
    assert used == [Path(folder)]


def test_checked_settings_are_printed_as_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    Path("boathook.toml").write_text("[sources.shop]\nprovider = 'stripe'\nsecrets = ['env:SHOP_SECRET']\n")
    monkeypatch.setenv("SHOP_SECRET", "whsec_of_the_shop")
    assert run("config", "check", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown == {
        "file": str(tmp_path / "boathook.toml"), "is_valid": True, "sources": 1, "paths": 1, "handlers": 0, "apps": 0,
        "findings": [],
    }  # fmt: skip
