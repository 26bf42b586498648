"""The process of a `boathook serve` for tests, with a PostgreSQL, an address and secrets of its own."""

import asyncio
import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from boathook import config
from boathook.config import Settings
from boathook.config.packages import Package
from boathook.db.embedded import start_embedded
from boathook.domain.errors import BoathookError, ConfigError, FetchFailed
from boathook.domain.verification import SourceSpec
from boathook.providers.schemes import Addresses, Asymmetric, ConfiguredKey, Jwt, NoProof
from boathook.server import serve, with_apps
from boathook.service.remote import RemoteClient
from boathook.verification.provider_signer import make_keys
from boathook.verification.source import resolve_source

_START_S: Final = 300.0
_STOP_S: Final = 60.0
_READY_S: Final = 10.0
_MAX_READY_BYTES: Final = 1_048_576
_POLL_S: Final = 0.02
_WATCH_S: Final = 0.1
_LOG_CHARS: Final = 4_000

Result = TypeVar("Result")


class EventLoop:
    """An event loop in a thread, as the test may be inside another one."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="boathook-testing")

    @classmethod
    @contextlib.contextmanager
    def running(cls) -> "Iterator[EventLoop]":
        """Run a loop until the end of the block."""
        self = cls()
        self._thread.start()
        try:
            yield self
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def call(self, work: Awaitable[Result]) -> Result:
        """Run *work* to completion and return its result."""

        async def run() -> Result:
            return await work

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result()


@dataclass(frozen=True, slots=True)
class ServerProcess:
    """A running server, with the addresses and keys that its senders use."""

    settings: Settings
    """The settings that it runs with, with the sources of apps."""
    secrets: Mapping[str, str] = field(repr=False)
    """The secret or private key of each source's sender."""
    database_url: str
    log: Path
    """The file of its log."""
    loop: EventLoop

    @property
    def url(self) -> str:
        """Its address, without a slash at the end."""
        return f"http://127.0.0.1:{self.settings.server.port}"


@contextlib.contextmanager
def running(folder: Path, file: Path | None, overrides: Mapping[str, Any]) -> Iterator[ServerProcess]:
    """Run a server until the end of the block; see `BoathookServer.running`."""
    data_dir = Path(tempfile.mkdtemp(prefix="boathook-test-"))
    data_dir.chmod(0o755)  # the account that runs PostgreSQL for root must be able to enter
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, data_dir, ignore_errors=True)
        loop = stack.enter_context(EventLoop.running())
        test_settings = _settings_of_tests(dict(_flat(overrides)), data_dir)
        first = with_apps(config.load(file, test_settings))[0]
        test_settings = {**harmless(first.packages), **test_settings}
        tables, secrets = _new_secrets(first)
        test_settings = {f"sources.{name}.retry": "none" for name in secrets} | test_settings | tables
        settings = with_apps(config.load(file, test_settings))[0]
        database_url = test_settings["database.url"] or stack.enter_context(_embedded(data_dir, loop))
        server = ServerProcess(settings, secrets, database_url, data_dir / "serve.log", loop)
        stack.enter_context(_process(folder, file, test_settings, server))
        yield server


def _wait_until_ready(server: ServerProcess, process: "subprocess.Popen[bytes]") -> None:
    """Wait until a server takes requests. Raises ConfigError if it ends before, with the end of its log."""
    deadline = time.monotonic() + _START_S
    while not server.loop.call(_is_ready(server.url)):
        if process.poll() is not None or time.monotonic() > deadline:
            text = server.log.read_text(errors="replace")[-_LOG_CHARS:]
            raise ConfigError(f"boathook_server does not start:\n{text}")
        time.sleep(_POLL_S)


async def _is_ready(url: str) -> bool:
    try:
        response = await RemoteClient().request("GET", f"{url}/readyz", timeout_s=_READY_S, max_bytes=_MAX_READY_BYTES)
    except FetchFailed:
        return False
    return response.status == 200


@contextlib.contextmanager
def _embedded(data_dir: Path, loop: EventLoop) -> Iterator[str]:
    """Run an embedded PostgreSQL, and yield its URL."""
    server = loop.call(start_embedded(data_dir))
    try:
        yield server.url
    finally:
        loop.call(server.stop())


def _flat(tables: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield settings by dotted key; a source without keys has the provider of its name."""
    for name, value in tables.items():
        if not isinstance(value, Mapping):
            yield prefix + name, value
            continue
        if prefix == "sources.":
            value = {"provider": name, **value}  # noqa: PLW2901 - same table, with its default
        yield from _flat(value, f"{prefix}{name}.")


def _settings_of_tests(overrides: Mapping[str, Any], data_dir: Path) -> dict[str, Any]:
    """Return the settings that make a server safe to run in tests, with the *overrides* of the project.

    The database of boathook.toml or of the environment is never used.
    """
    address = f"127.0.0.1:{_free_port()}"
    usual = {
        "database.url": "",
        "server.roles": config.defaults()["server"]["roles"],
        "worker.retry": "none",
        "outbound.encryption_keys": [],
    }
    fixed = {
        "server.bind": address,
        "server.public_url": f"http://{address}",
        "server.data_dir": str(data_dir),
    }
    return {**usual, **overrides, **fixed}


def harmless(packages: Iterable[Package]) -> dict[str, Any]:
    """Return the settings with which optional packages reach no other server from a test."""
    return {key: value for package in packages for key, value in package.in_tests.items()}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _new_secrets(settings: Settings) -> tuple[dict[str, Any], dict[str, str]]:
    """Return new secrets for all sources: the settings, and the secret of each sender by source.

    A source whose sender alone can sign, as its public key is fetched from it or its address is the proof, takes
    unsigned requests.
    """
    tables: dict[str, Any] = {}
    secrets: dict[str, str] = {}
    for name, source in settings.sources.items():
        options = settings.options_of(name)
        recipe = resolve_source(SourceSpec(name=name, provider=source.provider, options=options, unsigned=True)).recipe
        secret = public = recipe.sample.secret
        match recipe.proof:
            case Asymmetric(key=ConfiguredKey()):
                keys = make_keys(source.provider, **options)
                secret, public = keys.private, keys.public
            case Asymmetric() | Addresses() | Jwt(key_set=str()) | NoProof():
                public = ""
            case _:
                pass
        is_signed = bool(public) and not source.unsigned
        table = {"secrets": [public] if is_signed else [], "unsigned": not is_signed, "addresses": []}
        tables |= {f"sources.{name}.{key}": value for key, value in table.items()}
        secrets[name] = secret
    return tables, secrets


@contextlib.contextmanager
def _process(folder: Path, file: Path | None, overrides: Mapping[str, Any], server: ServerProcess) -> Iterator[None]:
    """Run the process of a server, from the time that it is ready. Raises ConfigError, with the end of the log."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "BOATHOOK_DATABASE_URL": server.database_url,
    }
    scheme, _, name = config.load(file).database.url.partition(":")
    if scheme == "env":  # the project's own engines read it too
        environment[name] = server.database_url
    request = {"file": file and str(file), "overrides": overrides}
    with server.log.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", "from boathook.testing.server_process import main; main()"],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    assert process.stdin is not None
    try:
        process.stdin.write(json.dumps(request).encode() + b"\n")
        process.stdin.flush()
        _wait_until_ready(server, process)
        yield
    finally:
        process.stdin.close()  # which ends it
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def main() -> None:
    """Run a server with the options from standard input, until standard input ends."""
    request = json.loads(sys.stdin.buffer.readline())
    parent = os.getppid()
    server = os.fork()
    if server == 0:
        with Path(os.devnull).open("rb") as nothing:
            os.dup2(nothing.fileno(), 0)
        sys.exit(_serve(request))
    is_asked = False
    while True:
        pid, status = os.waitpid(server, os.WNOHANG)
        if pid:
            if os.getppid() != parent:  # the test process was killed, and PostgreSQL has ended with the server
                shutil.rmtree(request["overrides"]["server.data_dir"], ignore_errors=True)
            sys.exit(os.waitstatus_to_exitcode(status))
        if is_asked:
            time.sleep(_WATCH_S)
        elif select.select([sys.stdin], [], [], _WATCH_S)[0]:
            os.kill(server, signal.SIGTERM)
            is_asked = True


def _serve(request: Mapping[str, Any]) -> int:
    try:
        settings = config.load(request["file"] and Path(request["file"]), request["overrides"])
        notifications = settings.notifications
        rules = {name: rule.model_copy(update={"channels": None}) for name, rule in notifications.rules.items()}
        silent = notifications.model_copy(update={"channels": {}, "rules": rules})
        return serve(settings.model_copy(update={"notifications": silent}))
    except BoathookError as error:
        sys.stderr.write(f"{error}\n")
        return 1
