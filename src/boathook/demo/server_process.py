"""A real `boathook serve` as a process of its own, as an owner would run it."""

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator

from boathook.demo.folder import Folder
from boathook.demo.handlers import MAILBOX
from boathook.domain.errors import BoathookError, FetchFailed
from boathook.service.remote import RemoteClient

_READY_S = 90.0
_STOP_S = 40.0
_POLL_S = 0.05
_ANSWER_S = 15.0
_MAX_PAGE_BYTES = 1_048_576
_SETTING_PREFIXES = ("BOATHOOK_", "WEBHOOK_", "TELEGRAM_")
"""How names begin in the environment that boathook, or one of the demo's apps, takes for its settings."""


class ServerProcess:
    """A running boathook."""

    def __init__(self, process: Process, folder: Folder, port: int) -> None:
        self._process = process
        self._folder = folder
        self._port = port
        self._client = RemoteClient()

    async def wait_until_ready(self) -> None:
        """Wait until it takes requests.

        Raises:
            BoathookError: it ended, or took too long; the message carries the end of its log.
        """
        try:
            async with asyncio.timeout(_READY_S):
                while not await self._is_ready():
                    if self._process.returncode is not None:
                        raise BoathookError(f"boathook serve ended by itself:\n{self.log_tail()}")
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise BoathookError(f"boathook serve is not ready after {_READY_S:.0f} s:\n{self.log_tail()}") from None

    async def _is_ready(self) -> bool:
        with contextlib.suppress(FetchFailed):
            # The console comes up after the gateway; traffic meanwhile would share one processor with its imports.
            for page in ("/readyz", "/console/sign-in"):
                answer = await self._client.request(
                    "GET", f"http://127.0.0.1:{self._port}{page}", timeout_s=_ANSWER_S, max_bytes=_MAX_PAGE_BYTES
                )
                if answer.status != 200:
                    return False
            return True
        return False

    async def wait(self) -> int:
        """Wait for its end, and return its exit code."""
        return await self._process.wait()

    def log_tail(self) -> str:
        """Return the end of its log."""
        return "\n".join(self._folder.log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:])

    async def stop(self) -> int:
        """Let it drain and end, and return its exit code; it is killed when that takes too long."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        try:
            return await asyncio.wait_for(self._process.wait(), _STOP_S)
        finally:
            if self._process.returncode is None:
                self._process.kill()
                await self._process.wait()


def environment(folder: Folder) -> dict[str, str]:
    """Return the environment of the demo's processes: this one's, without settings of the reader's own boathook."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_SETTING_PREFIXES)}
    return {**kept, MAILBOX: str(folder.mailbox)}


@contextlib.asynccontextmanager
async def serve(folder: Folder, port: int) -> AsyncIterator[ServerProcess]:
    """Start `boathook serve` on the folder's configuration, and stop it at the end."""
    with folder.log.open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "boathook", "--config", str(folder.configuration), "serve"),
            cwd=folder.path,
            env=environment(folder),
            stdin=DEVNULL,
            stdout=log,
            stderr=log,
            # Ctrl-C at the terminal is for the demo, which stops its senders first.
            start_new_session=True,
        )
    serving = ServerProcess(process, folder, port)
    try:
        yield serving
    finally:
        await serving.stop()
