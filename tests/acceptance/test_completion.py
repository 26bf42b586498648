"""Shell completion in a real shell, and suggestions for mistyped commands."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import boathook_command

CONFIG = """
[sources.stripe]
provider = "stripe"
secrets = ["a secret of the tests"]
[sources.storefront]
provider = "shopify"
secrets = ["a secret of the tests"]
[apps]
load = ["fleet"]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    program = tmp_path / "bin" / "boathook"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m boathook "$@"\n')
    program.chmod(0o755)
    (tmp_path / "boathook.toml").write_text(CONFIG)
    return tmp_path


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "HOME": str(folder)}


def completed(folder: Path, *words: str) -> set[str]:
    """Return what bash offers for the last of these words once it has read our script."""
    script = 'source <(boathook completion bash); COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _boathook boathook; '
    script += r'printf "%s\n" "${COMPREPLY[@]}"'
    done = subprocess.run(
        ["bash", "-euc", script, "bash", *words], cwd=folder, env=environment(folder), capture_output=True, text=True,
        check=True, timeout=300,
    )  # fmt: skip
    assert not done.stderr
    return set(done.stdout.split())


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
class TestBash:
    def test_completes_commands_and_those_of_groups(self, folder):
        assert completed(folder, "boathook", "li") == {"listen"}
        assert {"list", "show", "replay", "ignore", "purge"} <= completed(folder, "boathook", "dead", "")

    @pytest.mark.extended("asks a shell's completion for one more kind of word")
    def test_completes_options(self, folder):
        assert completed(folder, "boathook", "listen", "--forw") == {"--forward-to"}

    @pytest.mark.extended("asks a shell's completion for one more kind of word")
    def test_completes_the_sources_of_the_settings(self, folder):
        assert completed(folder, "boathook", "events", "list", "--source", "st") == {"stripe", "storefront"}

    @pytest.mark.extended("asks a shell's completion for one more kind of word")
    def test_completes_providers(self, folder):
        assert completed(folder, "boathook", "listen", "--provider", "shop") == {"shopify"}

    @pytest.mark.extended("asks a shell's completion for one more kind of word")
    def test_completes_the_commands_of_apps(self, folder):
        assert completed(folder, "boathook", "fle") == {"fleet"}
        assert completed(folder, "boathook", "fleet", "")

    @pytest.mark.extended("asks a shell's completion for one more kind of word")
    def test_a_broken_configuration_completes_nothing(self, folder):
        (folder / "boathook.toml").write_text("[server\n")
        assert completed(folder, "boathook", "events", "list", "--source", "st") == set()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_there_is_a_script_that_its_shell_can_read(folder, shell):
    done = boathook_command("completion", shell, cwd=folder, env=environment(folder))
    assert done.returncode == 0
    assert "_BOATHOOK_COMPLETE" in done.stdout
    if program := shutil.which(shell):
        subprocess.run([program, "-n"], input=done.stdout, text=True, check=True, timeout=300)


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["listn"], "listen"),
        (["events", "lst"], "list"),
        (["events", "list", "--sorce", "x"], "--source"),
        (["listen", "--foward-to", "x"], "--forward-to"),
    ],
)
def test_a_mistyped_word_gets_a_suggestion(folder, words, meant):
    done = boathook_command(*words, cwd=folder, env=environment(folder))
    assert done.returncode == 2
    assert meant in done.stderr
    assert "Traceback" not in done.stderr
