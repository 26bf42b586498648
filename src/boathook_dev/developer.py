"""`boathook dev`: runs `boathook serve` as a process, restarts it when a file is saved, and shows its log as text.

The process writes JSON lines at the level debug, of which only those that a developer acts on are shown. An embedded
PostgreSQL is held meanwhile, so that it does not restart too.
"""

import asyncio
import contextlib
import ctypes
import json
import os
import signal
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from watchfiles import PythonFilter, awatch

from boathook.config import FILE_NAME, Settings
from boathook.db.embedded import start_embedded
from boathook.observability.log import render_text
from boathook.service.access.sign_in_link import LIFETIME_S, LINK_PATH, create_token, revoke_tokens
from boathook.service.gateway_address import bind_url

_ENVIRONMENT: Final = {
    "BOATHOOK_LOG_FORMAT": "json",
    "BOATHOOK_LOG_LEVEL": "debug",
    "BOATHOOK_SERVER_LINGER_S": "0",
    "BOATHOOK_SERVER_DRAIN_S": "5",
    "PYTHONUNBUFFERED": "1",
}
_SHOWN: Final = frozenset(
    {"attempt_ended", "sent", "event_unhandled", "duplicate", "conflict", "refused", "no_source_at_path"}
)
"""Events shown below the level warning."""
_HIDDEN: Final = frozenset({"handler_without_events", "settings_doubtful"})
"""Events of the level warning that are shown in another form."""
_STOP_S: Final = 15.0
_LAST_LINES_S: Final = 2.0
_MAX_LINE_BYTES: Final = 1_048_576
_READ_BYTES: Final = 65_536
_PR_SET_PDEATHSIG: Final = 1
_LIBC: Final = ctypes.CDLL(None)
_BOLD, _DIM, _RED, _YELLOW = 1, 2, 31, 33

Print = Callable[[str], None]


def develop(
    settings: Settings,
    flags: Sequence[str],
    environment: Mapping[str, str],
    write: Print,
    *,
    is_colored: bool = False,
) -> None:
    """Serve until SIGINT or SIGTERM, and restart whenever a file is saved.

    Args:
        settings: the settings at the start: where PostgreSQL is, and what to watch.
        flags: options of the command line for each `boathook serve`.
        environment: the environment of each `boathook serve`, without the variables of `.env`, which it reads itself.
        write: prints one line.
        is_colored: whether lines may have ANSI colours.

    Raises:
        ConfigError: PostgreSQL's binaries are not installed, and no other server is configured.
        DatabaseError: the embedded PostgreSQL does not start.
    """
    asyncio.run(_Developer(settings, flags, environment, write, is_colored=is_colored).run())


class _Developer:
    """Runs one `boathook serve` after another."""

    def __init__(
        self,
        settings: Settings,
        flags: Sequence[str],
        environment: Mapping[str, str],
        write: Print,
        *,
        is_colored: bool,
    ) -> None:
        self._settings = settings
        self._folder = settings.file.parent if settings.file else Path.cwd()
        file = ["--config", str(settings.file)] if settings.file else []
        self._command = [sys.executable, "-m", "boathook", *file, "serve", *flags]
        self._environment = {**environment, **_ENVIRONMENT}
        self._write = write
        self._is_colored = is_colored
        self._stop = asyncio.Event()
        self._saved = asyncio.Event()
        self._saved_names: set[str] = set()
        self._log = _ServeLog(self._say, is_colored=is_colored)

    async def run(self) -> None:
        """Serve until a signal."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._stop.set)
        watching = asyncio.create_task(self._watch())
        try:
            async with self._postgresql():
                self._print_head()
                while not self._stop.is_set():
                    await self._serve_once()
        finally:
            revoke_tokens(self._settings.server.data_dir)
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    @contextlib.asynccontextmanager
    async def _postgresql(self) -> AsyncIterator[None]:
        """Hold the embedded PostgreSQL, unless another server is configured."""
        if self._settings.database_url():
            yield
            return
        embedded = await start_embedded(
            self._settings.server.data_dir, progress=lambda text: self._say(f"{text} ...", _DIM)
        )
        try:
            yield
        finally:
            await embedded.stop()

    def _print_head(self) -> None:
        """Print where everything is."""
        url = bind_url(self._settings)
        self._log.base = url
        if self._settings.server.port:  # otherwise the port is chosen at start
            token = create_token(self._settings.server.data_dir)
            self._say(f"console  {url}{LINK_PATH}?token={token}", _BOLD)
            self._say(f"         this link signs you in once, within {LIFETIME_S / 60:.0f} minutes", _DIM)
        self._say(f"watching {self._folder}: Python and SQL files, {self._file_name} and .env; Ctrl-C stops", _DIM)
        if self._settings.file is None:
            self._say(f"there is no {FILE_NAME}; `boathook init` writes one, with a source and a handler", _YELLOW)

    @property
    def _file_name(self) -> str:
        return self._settings.file.name if self._settings.file else FILE_NAME

    async def _serve_once(self) -> None:
        """Run `boathook serve` until a file is saved or a signal; after an error, wait for a save."""
        self._saved.clear()
        self._saved_names.clear()
        process = await asyncio.create_subprocess_exec(
            *self._command, cwd=Path.cwd(), env=self._environment, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT,
            start_new_session=True, preexec_fn=partial(_end_with_parent, os.getpid()),
        )  # fmt: skip
        relaying = asyncio.create_task(self._log.relay(process))
        ending = asyncio.create_task(process.wait())
        waiting = [asyncio.create_task(self._saved.wait()), asyncio.create_task(self._stop.wait())]
        try:
            await asyncio.wait([ending, *waiting], return_when=asyncio.FIRST_COMPLETED)
            has_ended = ending.done()
            if not has_ended:
                await self._end(process)
            await asyncio.wait([relaying], timeout=_LAST_LINES_S)
            if has_ended and not self._stop.is_set():
                self._say(f"boathook serve ended with exit code {process.returncode}; waiting for a save", _YELLOW)
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if self._saved.is_set() and not self._stop.is_set():
                self._say(f"{', '.join(sorted(self._saved_names))} saved; restarting", _DIM)
        finally:
            if process.returncode is None:
                process.kill()
            for task in (relaying, ending, *waiting):
                task.cancel()
            await asyncio.gather(relaying, ending, *waiting, return_exceptions=True)

    async def _end(self, process: Process) -> None:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), _STOP_S)
        except TimeoutError:
            process.kill()
            await process.wait()

    async def _watch(self) -> None:
        """Note saved files; without a watch, as where the system's limit is reached, only a signal ends the serving."""
        try:
            await self._note_changes()
        except (OSError, RuntimeError) as error:
            self._say(f"cannot watch {self._folder}: {error}; restart boathook dev after a change", _RED)

    async def _note_changes(self) -> None:
        is_relevant = PythonFilter(
            ignore_paths=[self._settings.server.data_dir], extra_extensions=(self._file_name, ".env", ".sql")
        )
        async for changes in awatch(
            self._folder, watch_filter=is_relevant, stop_event=self._stop, debounce=400, ignore_permission_denied=True
        ):
            self._saved_names.update(Path(path).name for _, path in changes)
            self._saved.set()

    def _say(self, line: str, color: int | None = None) -> None:
        self._write(line if color is None or not self._is_colored else f"\x1b[{color}m{line}\x1b[0m")


def _end_with_parent(parent: int) -> None:
    """Make Linux send SIGTERM to this process if its parent is killed."""
    if sys.platform == "linux":
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # which was killed before
            os._exit(1)


class _ServeLog:
    """Shows the output of `boathook serve`, and reminds of sources and types without a handler."""

    def __init__(self, say: Callable[..., None], *, is_colored: bool) -> None:
        self.base = ""
        """The gateway's address on this machine."""
        self._say = say
        self._is_colored = is_colored
        self._reminded: set[tuple[str, str]] = set()
        self._sources: dict[str, tuple[str, str]] = {}
        """Paths and handlers by source, as last shown."""
        self._started_at = 0.0
        self._starting: set[str] = set()

    async def relay(self, process: Process) -> None:
        """Show the process's output until its end."""
        assert process.stdout is not None
        self._started_at = time.monotonic()
        rest = b""
        while data := await process.stdout.read(_READ_BYTES):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self._show(line)
            if len(rest) > _MAX_LINE_BYTES:
                self._show(rest)
                rest = b""
        if rest:
            self._show(rest)

    def _show(self, line: bytes) -> None:
        text = line.decode("utf-8", "replace")
        fields = _read_log_line(text)
        if fields is None:  # printed by the user's code, or an error of the command line
            self._say(text, _RED if text.startswith("boathook: ") else None)
            return
        event = fields["event"]
        match event:
            case "source":
                self._show_source(fields)
            case "serving":
                children = str(fields.get("children", "")).split(", ")
                self._starting = {*children, *(f"console of {child}" for child in children if "gateway-" in child)}
            case "child_ready":
                self._note_ready(str(fields.get("child")))
            case "console_ready":  # with the paths of apps
                self._note_ready(f"console of {fields.get('process')}")
            case "handler_without_events" | "settings_doubtful":
                self._say(f"{fields.get('note')}; {fields.get('fix')}", _YELLOW)
        if event in _SHOWN or (fields["level"] in {"warning", "error"} and event not in _HIDDEN):
            self._say(render_text(fields, is_colored=self._is_colored))
        if event == "event_unhandled":
            self._remind(str(fields.get("source")), str(fields.get("type")))
        if event == "no_source_at_path" and self._sources:
            self._say(f"    sources are at {' '.join(paths for paths, _ in self._sources.values())}", _YELLOW)

    def _note_ready(self, part: str) -> None:
        if part in self._starting:
            self._starting.discard(part)
            if not self._starting:
                self._say(f"ready after {time.monotonic() - self._started_at:.1f} s", _DIM)

    def _show_source(self, fields: Mapping[str, Any]) -> None:
        """Print a source's URL and handlers, if they are new."""
        name, handlers = str(fields["name"]), str(fields.get("handlers", ""))
        paths = " ".join(urlsplit(url).path for url in str(fields["urls"]).split())
        if self._sources.get(name) == (paths, handlers):
            return
        self._sources[name] = paths, handlers
        if handlers:
            self._say(f"source   {self.base}{paths} -> {handlers}")
        else:
            self._say(f'source   {self.base}{paths} has no handler; add @hook.on("{name}")', _YELLOW)

    def _remind(self, source: str, type: str) -> None:
        """Say, once for each type, how to handle what arrived."""
        if (source, type) in self._reminded:
            return
        self._reminded.add((source, type))
        self._say(f"    add @hook.on({json.dumps(source)}, {json.dumps(type)}), then run:", _YELLOW)
        self._say("    boathook events replay --route --unhandled", _YELLOW)


def _read_log_line(text: str) -> dict[str, Any] | None:
    """Return the fields of a line of boathook's log; None for any other line."""
    if not text.startswith('{"at":'):
        return None
    try:
        fields = json.loads(text)
    except ValueError:
        return None
    return fields if isinstance(fields, dict) and {"at", "level", "event"} <= fields.keys() else None
