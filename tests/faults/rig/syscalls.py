"""Traces the system calls of a process with strace, and makes chosen calls fail.

    with Trace(folder, pids, "fdatasync", fail="fdatasync:error=EIO") as trace:
        ...
    for call in trace.calls():
        call.name, call.file, call.text, call.began, call.ended, call.is_fine

*began* and *ended* are positions in strace's own log. Where one call ended before another began, it was so.
"""

import contextlib
import re
import signal
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests.support import until

_BEGUN: Final = re.compile(r"(\d+) +(\w+)\((.*)")
_RESUMED: Final = re.compile(r"(\d+) +<\.\.\. (\w+) resumed>(.*)")
_UNFINISHED: Final = " <unfinished ...>"
_RESULT: Final = re.compile(r"\) += (-?\d+|\?)")
_FILE: Final = re.compile(r"\d+<([^>]*)>")


@dataclass(frozen=True, slots=True)
class Call:
    """One system call on a file or a socket."""

    name: str
    file: str
    """The path of its first argument, or ``socket:[number]``."""
    text: str
    """Its arguments and its result, as strace writes them."""
    began: int
    ended: int

    @property
    def is_fine(self) -> bool:
        """Whether it succeeded."""
        found = _RESULT.findall(self.text)
        return bool(found) and found[-1] != "?" and int(found[-1]) >= 0


class Trace:
    """Watches processes while it is open.

    Args:
        folder: for the log.
        pids: the processes; all their threads are watched.
        names: of system calls, with commas between them.
        fail: what strace is to inject, such as ``fdatasync:error=EIO``.
    """

    def __init__(self, folder: Path, pids: Sequence[int], names: str, *, fail: str = "") -> None:
        self._log = folder / f"calls-{pids[0]}.log"
        self._words = folder / f"strace-{pids[0]}.log"
        what = ["-e", f"trace={names}", *(["-e", f"inject={fail}"] if fail else [])]
        attached = [word for pid in pids for word in ("-p", str(pid))]
        with self._words.open("wb") as words:
            self._process = subprocess.Popen(
                ["strace", "-f", "-y", "-s", "100000", "-o", str(self._log), *what, *attached],
                stdin=subprocess.DEVNULL,
                stderr=words,
            )
        self._pids = pids

    def __enter__(self) -> Self:
        until(self._is_attached)
        return self

    def _is_attached(self) -> bool:
        words = self._words.read_text(errors="replace")
        assert self._process.poll() is None, f"strace ended by itself: {words}"
        return all(f"Process {pid} attached" in words for pid in self._pids)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGINT)  # it lets go of them
        self._process.wait(300)

    def calls(self) -> list[Call]:
        """Return all calls that ended, in the order in which they began."""
        with self._log.open(errors="replace") as lines:
            return sorted(_parse(lines), key=lambda call: call.began)


def _parse(lines: Iterator[str]) -> Iterator[Call]:
    under_way: dict[tuple[str, str], tuple[int, str]] = {}
    for position, line in enumerate(lines):
        if found := _RESUMED.match(line):
            thread, name, rest = found.groups()
            began, text = under_way.pop((thread, name), (position, ""))
            yield _call(name, text + rest, began, position)
        elif found := _BEGUN.match(line):
            thread, name, rest = found.groups()
            if _UNFINISHED in rest:
                under_way[thread, name] = (position, rest.replace(_UNFINISHED, ""))
            else:
                yield _call(name, rest, position, position)


def _call(name: str, text: str, began: int, ended: int) -> Call:
    found = _FILE.match(text)
    return Call(name, found[1] if found else "", text, began, ended)
