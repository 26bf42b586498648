"""The demo's folder, emptied at each start, and the `boathook serve` that runs in it."""

import asyncio
import contextlib
import fcntl
import json
import os
import secrets
import shutil
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import IO

from boathook.domain.errors import BoathookError, ConfigError, FetchFailed
from boathook.service.receiving.spool import is_served
from boathook.service.remote import RemoteClient
from boathook_demo import rabbitmq, redis_server
from boathook_demo.handlers import MAILBOX
from boathook_demo.traffic import PROVIDERS, make_secret
from boathook_embedded.server import EmbeddedServer

MARKER = ".boathook-demo"
_HOST = "127.0.0.1"
_PORTS_TRIED = 200

_CONFIGURATION = """\
# The demo's configuration, written by `boathook demo`. A real one looks the same, with your own handlers and secrets.

[server]
bind = "{host}:{port}"
data_dir = "data"
app = "boathook_demo.handlers:hook"

[worker]
poll_interval_s = 0.1

[spool]
fallback_after_s = 10.0

[outbound]
allow = ["127.0.0.0/8"]

[log]
format = "json"
"""
_APPS = """
# The four systems, each with what it needs and nothing more.

[apps]
load = ["billing", "fleet", "music", "cashdesk"]

[billing]
secret = "file:secrets/billing"
currency = "EUR"

[[billing.plans]]
id = "month"
price = "9.90"
days = 30

[[billing.plans]]
id = "year"
price = "99.00"
days = 365

[fleet]
secrets = ["file:secrets/fleet"]
umnico_secrets = ["file:secrets/umnico"]

[music]
secret = "file:secrets/music"
incoming = {incoming}

[music.storage]
folder = {songs}

[cashdesk.drive]
seconds = 0.05
busy = 0.05
"""
_BUFFER = """
# The demo's own broker, on this host; in production, use a cluster of three.

[delivery]
lane = "rabbitmq"

[buffer]
kind = "rabbitmq"
hosts = ["{broker}"]
vhost = "{vhost}"
user = "{user}"
password = "{password}"
confirm_s = 5.0
"""
_SHARED = """
# Gateways of all hosts share the rates of sources.

[shared]
redis = "{redis}"
"""
_RATE = """\
rate = 500
burst = 1000
"""
_APP_SECRETS = ("billing", "fleet", "umnico", "music")
_SOURCE = """
[sources.{name}]
provider = "{provider}"
secrets = ["file:secrets/{name}"]
"""


@dataclass(frozen=True, slots=True)
class Folder:
    """The folder that holds all files of one demo."""

    path: Path

    @property
    def configuration(self) -> Path:
        """The `boathook.toml` of the demo's boathook."""
        return self.path / "boathook.toml"

    @property
    def data(self) -> Path:
        """The data folder of the demo's boathook, PostgreSQL included."""
        return self.path / "data"

    @property
    def broker(self) -> Path:
        """The files of the demo's broker, if it has one."""
        return self.path / "rabbitmq"

    @property
    def redis(self) -> Path:
        """The log of the demo's Redis, if it has one."""
        return self.path / "redis"

    @property
    def log(self) -> Path:
        """The log of the demo's boathook."""
        return self.path / "serve.log"

    @property
    def mailbox(self) -> Path:
        """The simulated e-mails, one per line."""
        return self.path / "mails.txt"

    def secret_file(self, source: str) -> Path:
        """The file with a source's secret."""
        return self.path / "secrets" / source

    def write_files(self, port: int, *, broker: str = "", redis: str = "", has_apps: bool = True) -> dict[str, str]:
        """Write the configuration and new secrets; return the secrets of the demo's own senders by source.

        Args:
            port: where boathook serves.
            broker: address and port of the broker that takes events while PostgreSQL is unavailable, or empty.
            redis: the URL of Redis, which leases the rates of sources, or empty.
            has_apps: whether the four systems are loaded.
        """
        by_source = {source: make_secret(provider) for source, provider in PROVIDERS.items()}
        (self.path / "secrets").mkdir(mode=0o700)
        for name, secret in {**by_source, **{app: secrets.token_hex(16) for app in _APP_SECRETS}}.items():
            file = self.secret_file(name)
            file.touch(mode=0o600)
            file.write_text(secret + "\n", encoding="utf-8")
        self.configuration.write_text(self._configuration(port, broker, redis, has_apps=has_apps), encoding="utf-8")
        return by_source

    def _configuration(self, port: int, broker: str, redis: str, *, has_apps: bool) -> str:
        settings = _CONFIGURATION.format(host=_HOST, port=port)
        if broker:
            settings += _BUFFER.format(
                broker=broker, vhost=rabbitmq.VHOST, user=rabbitmq.USER, password=rabbitmq.PASSWORD
            )
        if redis:
            settings += _SHARED.format(redis=redis)
        if has_apps:
            songs, incoming = (_quote(self.data / name) for name in ("music", "music-incoming"))
            settings += _APPS.format(songs=songs, incoming=incoming)
        source = _SOURCE + (_RATE if redis else "")
        return settings + "".join(source.format(name=name, provider=kind) for name, kind in PROVIDERS.items())


def _quote(path: Path) -> str:
    """Format *path* as a TOML string, which is the same as a JSON string."""
    return json.dumps(str(path), ensure_ascii=False)


@contextlib.contextmanager
def claim(path: Path) -> Iterator[Folder]:
    """Yield the folder at *path*, created or marked as a demo's own, locked for this demo.

    Raises:
        ConfigError: it does not belong to a demo, or another demo is using it.
    """
    path = path.expanduser().absolute()
    marker = path / MARKER
    if path.exists() and not path.is_dir():
        raise ConfigError(f"{path} is not a folder; choose another --data-dir")
    if path.is_dir() and not marker.exists() and any(path.iterdir()):
        raise ConfigError(
            f"{path} holds files that are not a demo's own (there is no {MARKER} in it), and the demo empties its"
            " folder; choose another --data-dir, or empty it yourself"
        )
    path.mkdir(parents=True, exist_ok=True)
    with marker.open("a", encoding="utf-8") as lock:
        _lock(lock, path)
        yield Folder(path)


def _lock(lock: IO[str], path: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ConfigError(f"another demo is running in {path}; stop it first, or choose another --data-dir") from None


async def empty(folder: Folder, progress: Callable[[str], None]) -> None:
    """Remove the files of an earlier demo, its database included.

    Raises:
        ConfigError: a boathook is still running on it.
    """
    in_use = ConfigError(
        f"a boathook is still running on {folder.data}; stop it first (`pgrep -f {folder.configuration}` finds"
        " it where a killed demo has left it behind), or choose another --data-dir"
    )
    if is_served(folder.data):
        raise in_use
    entries = [path for path in folder.path.iterdir() if path.name != MARKER]
    if entries:
        progress("removing what the last demo left")
    if (folder.data / "postgres").exists():
        # A killed demo leaves its PostgreSQL running; attaching to it and stopping it again ends it.
        server = await EmbeddedServer.start(folder.data)
        if not await server.stop():
            raise in_use
        shutil.rmtree(server.home)
    rabbitmq.end_left_over(folder.broker)
    redis_server.end_left_over(folder.redis)
    for path in entries:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def find_port(first: int) -> int:
    """Return *first* if it is free, else the next free port; 0 returns any free port.

    Raises:
        ConfigError: no port is free.
    """
    for port in range(first, min(first + _PORTS_TRIED, 65_536)) if first else (0,):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((_HOST, port))
            return int(probe.getsockname()[1])
    raise ConfigError(f"no port from {first} on is free on {_HOST}; choose another with --port")


_READY_S = 90.0

_STOP_S = 40.0

_POLL_S = 0.05
_ANSWER_S = 15.0
_MAX_PAGE_BYTES = 1_048_576

_SETTING_PREFIXES = ("BOATHOOK_", "WEBHOOK_", "TELEGRAM_")
"""Prefixes of environment variables that boathook, or one of the demo's apps, reads as settings."""


class ServerProcess:
    """A running boathook."""

    def __init__(self, process: Process, folder: Folder, port: int) -> None:
        self._process = process
        self._folder = folder
        self._port = port
        self._client = RemoteClient()

    async def wait_until_ready(self) -> None:
        """Wait until it accepts requests.

        Raises:
            BoathookError: it ended, or took too long; the message contains the end of its log.
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
            # The console starts after the gateway; earlier traffic would compete with its imports for one processor.
            for page in ("/readyz", "/console/sign-in"):
                answer = await self._client.request(
                    "GET", f"http://127.0.0.1:{self._port}{page}", timeout_s=_ANSWER_S, max_bytes=_MAX_PAGE_BYTES
                )
                if answer.status != 200:
                    return False
            return True
        return False

    async def read_metric(self, name: str, **labels: str) -> float | None:
        """Return the sum of a metric's series with these labels; None if there is none or boathook does not answer."""
        url = f"http://127.0.0.1:{self._port}/metrics.json"
        with contextlib.suppress(FetchFailed):
            answer = await self._client.request("GET", url, timeout_s=_ANSWER_S, max_bytes=_MAX_PAGE_BYTES)
            if answer.status == HTTPStatus.OK:
                metric = json.loads(answer.body)["metrics"].get(name, {"series": []})
                values = [row["value"] for row in metric["series"] if labels.items() <= row["labels"].items()]
                return float(sum(values)) if values else None
        return None

    async def wait(self) -> int:
        """Wait until the process ends, and return its exit code."""
        return await self._process.wait()

    def log_tail(self) -> str:
        """Return the end of its log."""
        return "\n".join(self._folder.log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:])

    async def stop(self) -> int:
        """Drain and stop it, and return its exit code; it is killed if that takes too long."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        try:
            return await asyncio.wait_for(self._process.wait(), _STOP_S)
        finally:
            if self._process.returncode is None:
                self._process.kill()
                await self._process.wait()


def environment(folder: Folder) -> dict[str, str]:
    """Return the environment of the demo's processes: this process's, without the settings of a user's boathook."""
    own_variables = {name: value for name, value in os.environ.items() if not name.startswith(_SETTING_PREFIXES)}
    return {**own_variables, MAILBOX: str(folder.mailbox)}


@contextlib.asynccontextmanager
async def serve(folder: Folder, port: int, database_url: str = "") -> AsyncIterator[ServerProcess]:
    """Start `boathook serve` on the folder's configuration, and stop it at the end.

    With *database_url* it uses a PostgreSQL that the demo starts and stops; it would restart its own.
    """
    changes = {"BOATHOOK_DATABASE_URL": database_url} if database_url else {}
    with folder.log.open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "boathook", "--config", str(folder.configuration), "serve"),
            cwd=folder.path,
            env={**environment(folder), **changes},
            stdin=DEVNULL,
            stdout=log,
            stderr=log,
            # Ctrl-C at the terminal is handled by the demo, which stops its senders first.
            start_new_session=True,
        )
    serving = ServerProcess(process, folder, port)
    try:
        yield serving
    finally:
        await serving.stop()
