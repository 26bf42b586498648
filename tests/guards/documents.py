"""Reads code blocks and boathook command lines from the documentation and deploy/."""

import functools
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
import typer.main

from boathook.cli import app
from boathook.cli.app_commands import with_package_commands
from boathook.cli.commands import hoist_global_options

ROOT = Path(__file__).parents[2]
SOURCES = (ROOT / "src", *sorted(ROOT.glob("packages/*/src")))
"""The folders with the code of boathook and of the packages around it."""
Misunderstood: Any = next(cls for cls in typer.BadParameter.__mro__ if cls.__name__ == "ClickException")
"""What the command line raises about a command that it does not understand; typer has its own copy of the class."""
_BLOCK = re.compile(r"^( *)```(\w+)[^\n]*\n(.*?)^\1```", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block of a page."""

    page: Path
    number: int
    """Among the blocks of this language on the page, from 1."""
    language: str
    text: str

    @property
    def name(self) -> str:
        """How a test and an excuse call it."""
        return f"{self.page.relative_to(ROOT)}:{self.language}:{self.number}"


def blocks(page: Path) -> Iterator[Block]:
    """Yield the blocks of a page that name a language."""
    counted: dict[str, int] = {}
    for indent, language, text in _BLOCK.findall(page.read_text(encoding="utf-8")):
        counted[language] = counted.get(language, 0) + 1
        lines = (line.removeprefix(indent) for line in text.splitlines(keepends=True))
        yield Block(page, counted[language], language, "".join(lines))


def commands(shell: str) -> Iterator[list[str]]:
    """Yield the words of each command of boathook in a piece of shell."""
    whole = re.sub(r"\\\n\s*", " ", shell)
    for line in whole.splitlines():
        for words in _simple(line):
            starts = (place for place, word in enumerate(words) if _is_called(words, place, word))
            if (start := next(starts, None)) is not None:
                yield ["boathook", *words[start + 1 :]]


def _is_called(words: Sequence[str], place: int, word: str) -> bool:
    """Return whether a word is the boathook program: by name, by path, or run by another program."""
    if Path(word).name != "boathook":
        return False
    before = words[max(0, place - 2) : place]
    is_run_by_uvx = before[:1] == ["--from"]
    return place == 0 or word.endswith("/bin/boathook") or before[-1] == "--" or "exec" in before[:1] or is_run_by_uvx


def _simple(line: str) -> Iterator[list[str]]:
    """Yield the words of each simple command of a line, without pipes and redirections."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    words: list[str] = []
    is_file = False
    for word in lexer:
        if word and set(word) <= set("|&;"):
            yield words
            words = []
        elif word and set(word) <= set("<>"):
            is_file = True
        elif is_file:
            is_file = False
        else:
            words.append(word)
    if words:
        yield words


def parse_command(words: Sequence[str]) -> None:
    """Let the real command line read a command, as far as it does before it acts.

    Raises:
        Misunderstood: it does not understand it.
    """
    _read(_command_line(), "boathook", hoist_global_options(words[1:]))


@functools.cache
def _command_line() -> Any:
    return typer.main.get_command(with_package_commands(app, None))


def _read(command: Any, name: str, words: list[str], parent: Any = None) -> None:
    with command.make_context(name, words, parent=parent) as context:
        if hasattr(command, "resolve_command") and (rest := [*context._protected_args, *context.args]):
            child_name, child, left = command.resolve_command(context, rest)
            _read(child, child_name, left, context)
