"""The tutorial, followed word for word: each file is written, each command run, and each output compared."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.acceptance.conftest import free_port
from tests.guards.documents import ROOT
from tests.support import until

PAGE = ROOT / "docs/tutorial/songs.md"
_BLOCK = re.compile(r'^```(\w+)(?: title="([^"]*)")?\n(.*?)^```', re.MULTILINE | re.DOTALL)
_FIRST = "first terminal"
_ADDED = " (added)"
_REPEATED = "until it is listed"
_PLACE = "127.0.0.1:8080"


@dataclass
class Reader:
    """Follows the page in a folder, with a first terminal in which `boathook dev` keeps running."""

    folder: Path
    environment: dict[str, str]
    first: subprocess.Popen[bytes] | None = None
    output: str = ""
    """What the last command in the second terminal has printed."""
    repeated: str = ""
    """The last command, if it is repeated until its output is that of the page."""
    starts: int = 0
    """How often boathook was ready when a file was last saved."""
    done: list[str] = field(default_factory=list)
    """The kinds of blocks that were followed."""

    def follow(self, language: str, title: str, text: str) -> None:
        text = text.replace(_PLACE, self.environment["BOATHOOK_BIND"])
        match language:
            case "text":
                self._compare(title, text.splitlines())
            case "sh" if title == _FIRST:
                self._start(text)
            case "sh":
                self._run(text, is_repeated=title == _REPEATED)
            case _:
                assert title, f"a block of {language} has no title; name the file:\n{text}"
                self._save(title, text)
        self.done.append(language)

    def shown(self) -> str:
        return (self.folder / ".first-terminal").read_text()

    def _save(self, title: str, text: str) -> None:
        file = self.folder / title.removesuffix(_ADDED)
        file.parent.mkdir(exist_ok=True)
        if self.first is not None:
            self.starts = self.shown().count("ready after")
        if title.endswith(_ADDED):
            text = f"{file.read_text()}\n\n{text}"
        file.write_text(text)

    def _start(self, text: str) -> None:
        with (self.folder / ".first-terminal").open("wb") as output:
            self.first = subprocess.Popen(
                ["sh", "-ec", text], cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL, stdout=output,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def _run(self, text: str, *, is_repeated: bool) -> None:
        if self.first is not None:
            until(
                lambda: self.shown().count("ready after") > self.starts or "waiting for a save" in self.shown(),
                timeout=300,
            )
            assert "waiting for a save" not in self.shown(), self.shown()
        done = self._second(text)
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}\n{self.first and self.shown()}"
        self.output = done.stdout
        self.repeated = text if is_repeated else ""

    def _second(self, text: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sh", "-ec", text], cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False
        )

    def _compare(self, title: str, lines: list[str]) -> None:
        if title == _FIRST:
            until(lambda: self._has(self.shown(), lines), timeout=300)
        elif self.repeated:
            until(lambda: self._has(self._second(self.repeated).stdout, lines), timeout=300)
            return
        assert title == _FIRST or self._has(self.output, lines), f"{lines}\n{self.output}\n{self.shown()}"

    @staticmethod
    def _has(output: str, lines: list[str]) -> bool:
        """Return whether the lines are in the output, in any order, whatever the widths of columns."""
        flat = re.sub(r"\s+", " ", output)
        return all(re.sub(r"\s+", " ", line) in flat for line in lines)

    def stop(self) -> None:
        if self.first is not None and self.first.poll() is None:
            os.killpg(self.first.pid, signal.SIGINT)
            self.first.wait(60)


@pytest.fixture
def reader() -> Iterator[Reader]:
    # A folder that PostgreSQL's account can enter, unlike pytest's own when root runs the tests.
    folder = Path(tempfile.mkdtemp(prefix="boathook-tutorial-"))
    folder.chmod(0o755)
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "BOATHOOK", "PIP_", "PYTEST", "COV"))
    }
    environment = {
        **inherited,
        # The packages of this environment are those of the quickstart; nothing is downloaded.
        "PIP_NO_INDEX": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "BOATHOOK_BIND": f"127.0.0.1:{free_port()}",
        "COLUMNS": "200",
    }
    made = Reader(folder, environment)
    yield made
    made.stop()
    shutil.rmtree(folder)


@pytest.mark.extended("follows all steps of a tutorial; test_docs_code.py stays")
def test_the_tutorial_works_as_it_is_written(reader: Reader):
    text = PAGE.read_text(encoding="utf-8")
    found = _BLOCK.findall(text)
    assert len(found) * 2 == len(re.findall(r"^ *```", text, re.MULTILINE)), "a block is not followed"
    for language, title, block in found:
        reader.follow(language, title, block)
    assert set(reader.done) == {"sh", "toml", "ini", "python", "sql", "text"}


def test_an_output_that_is_not_there_is_noticed(reader: Reader):
    """The mutant of the comparison."""
    reader.follow("python", "hello.py", "print('hello  world')\n")
    reader.follow("sh", "", "python hello.py\n")
    reader.follow("text", "", "hello world\n")
    (reader.folder / ".first-terminal").touch()
    with pytest.raises(AssertionError, match="hello moon"):
        reader.follow("text", "", "hello moon\n")
    with pytest.raises(AssertionError, match="exit 3"):
        reader.follow("sh", "", "exit 3\n")
