"""What a benchmark runs on: a PostgreSQL that commits synchronously, databases in it, and servers as processes."""

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from boathook.db import migrations
from boathook.db.database import Database, check_safety
from boathook.domain.errors import BoathookError, ConfigError, DatabaseError
from boathook_demo import rabbitmq
from boathook_demo.rabbitmq import RabbitNode
from boathook_embedded.server import EmbeddedServer

_START_DEADLINE_S = 60.0
_START_POLL_S = 0.01
_IDLE_WINDOW_S = 0.5
_IDLE_SHARE = 0.08
_IDLE_DEADLINE_S = 15.0


class BenchmarkEnvironment:
    """A folder and a PostgreSQL for the time of one benchmark; everything made is removed at its end."""

    def __init__(
        self, database_url: str, report: Callable[[str], None], *, events: int = 0, is_log_filled: bool = True
    ) -> None:
        self.report = report
        self.is_log_filled = is_log_filled
        """Whether commits are measured, which a young server holds up."""
        self.events = events
        """How many stored events there are to be; 0 for none, where a benchmark can do without."""
        self._given_url = database_url
        self._server: EmbeddedServer | None = None
        self._databases: list[str] = []
        self.folder = Path(tempfile.mkdtemp(prefix="boathook-benchmark-"))

    def __enter__(self) -> Self:
        self.folder.chmod(0o755)
        if not self._given_url:
            self._server = asyncio.run(EmbeddedServer.start(self.folder, progress=self.report))
        asyncio.run(self._check())
        if self.is_log_filled:
            asyncio.run(self._fill_log())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in self._databases:
            asyncio.run(self._administer(f"drop database if exists {name} with (force)"))
        if self._server is not None:
            asyncio.run(self._server.stop())
            home = self._server.home
            shutil.rmtree(home, ignore_errors=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def _admin_url(self) -> str:
        return self._given_url if self._server is None else self._server.url

    def postgres_cpu_s(self) -> float | None:
        """Return the processor seconds that the environment's own PostgreSQL has used; None where it has none."""
        pid = None if self._server is None else self._server.pid()
        return None if pid is None else process_cpu_s(pid)

    async def _check(self) -> None:
        database = await Database.open(self._admin_url, purpose="benchmark", size=1)
        await check_safety(database)
        await database.close()

    async def _fill_log(self) -> None:
        """Bring the write-ahead log to its working size, as any server's is that has run for a while.

        A new server creates each segment of its log when it is needed, 40 ms at a time on slow disks; later it
        uses those again that a checkpoint has freed.
        """
        self.report("letting PostgreSQL's log grow to its working size")
        database = await Database.open(self._admin_url, purpose="benchmark", size=1, statement_timeout_s=120)
        try:
            # Sixteen kibibytes that do not compress, from half a thousand hashes, in each row.
            await database.execute("create table if not exists boathook_benchmark_filler (text bytea)")
            await database.execute("alter table boathook_benchmark_filler alter text set storage external")
            await database.execute("""
                insert into boathook_benchmark_filler
                select (select string_agg(sha256(convert_to(g || ' ' || h, 'UTF8')), ''::bytea)
                        from generate_series(1, 512) h)
                from generate_series(1, 32000) g
            """)
            await database.execute("drop table boathook_benchmark_filler")
            await database.execute("checkpoint")
        except DatabaseError as error:
            self.report(f"  going on without: {error}")
        finally:
            await database.close()

    async def _administer(self, statement: str) -> None:
        database = await Database.open(self._admin_url, purpose="benchmark", size=1)
        await database.execute(statement)
        await database.close()

    def new_database(self) -> str:
        """Return the URL of a migrated, empty database."""
        name = f"boathook_benchmark_{uuid.uuid4().hex[:12]}"
        asyncio.run(self._administer(f"create database {name}"))
        self._databases.append(name)
        parts = urllib.parse.urlsplit(self._admin_url)
        url = urllib.parse.urlunsplit((parts.scheme, parts.netloc or "localhost", f"/{name}", parts.query, ""))
        asyncio.run(migrations.migrate(url))
        return url

    @contextmanager
    def brokers(self) -> Iterator[list[RabbitNode]]:
        """Run three RabbitMQ nodes, or one if three do not start.

        Raises:
            BoathookError: not even one starts.
        """
        with ExitStack() as stack:
            try:
                self.report("starting three brokers")
                nodes = stack.enter_context(rabbitmq.running_nodes(self.folder / "brokers", 3))
            except BoathookError as error:
                self.report(f"  going on with one: {error}")
                nodes = stack.enter_context(rabbitmq.running_nodes(self.folder / "broker", 1))
            yield nodes

    def checkpoint(self) -> None:
        """Make a checkpoint: until the next one, each page is written to the log as a whole when it first changes."""
        asyncio.run(self._administer("checkpoint"))

    def serve(
        self,
        database_url: str,
        *,
        roles: str = "gateway",
        app: str = "benchmarks.handlers:hook",
        more: str = "",
        port: int = 0,
    ) -> "Server":
        """Return `boathook serve` on *database_url*, to be entered, with the handlers that *app* names."""
        port = port or free_port()
        file = self.folder / f"boathook-{port}.toml"
        file.write_text(
            f'[database]\nurl = "{database_url}"\n[server]\nbind = "127.0.0.1:{port}"\n'
            f'data_dir = "{self.data_dir(port)}"\napp = "{app}"\n'
            f'[log]\nlevel = "warning"\nformat = "json"\n'
            f'[sources.stripe]\nprovider = "stripe"\nsecrets = ["whsec_benchmark"]\n{more}'
        )
        command = [sys.executable, "-m", "boathook", "--config", str(file), "serve", "--role", roles]
        return Server(command, port, self.folder / f"server-{port}.log", path="/readyz" if "gateway" in roles else "")

    def data_dir(self, port: int) -> Path:
        """Return the data folder of the boathook that serves at *port*."""
        return self.folder / f"data-{port}"

    def module(self, name: str, *arguments: str) -> "Server":
        """Return the server of a module of this package, started with its port and *arguments*, to be entered."""
        port = free_port()
        command = [sys.executable, "-m", f"benchmarks.{name}", str(port), *arguments]
        return Server(command, port, self.folder / f"server-{port}.log", path="/healthz")

    @contextmanager
    def postgres_stopped(self) -> Iterator[None]:
        """Stop PostgreSQL for the time of the block.

        Raises:
            ConfigError: it is not the environment's own.
        """
        if self._server is None:
            raise ConfigError("this benchmark stops PostgreSQL, so it needs one of its own: leave database.url empty")
        asyncio.run(self._server.stop())
        try:
            yield
        finally:
            self._server = asyncio.run(EmbeddedServer.start(self.folder, progress=self.report))

    @contextmanager
    def corpus(self) -> Iterator[Path]:
        """Lend a prefix for the files of a prepared load."""
        prefix = self.folder / f"load-{uuid.uuid4().hex[:8]}"
        yield prefix
        for file in self.folder.glob(f"{prefix.name}.*"):
            file.unlink()


class Server:
    """A server process that is ready when entered and gone when left; one without a path is ready once it runs."""

    def __init__(self, command: list[str], port: int, log: Path, *, path: str) -> None:
        self.port = port
        self._command = command
        self._log = log
        self._path = path
        self._process: subprocess.Popen[bytes] | None = None
        self.ready_s = 0.0
        """Seconds from the start of the process until it was ready."""

    def __enter__(self) -> Self:
        began = time.monotonic()
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**_environment(), "PYTHONUNBUFFERED": "1"},
            )
        while self._path and not self._answers():
            if self._process.poll() is not None or time.monotonic() > began + _START_DEADLINE_S:
                self._process.kill()
                raise ConfigError(f"a server of the benchmark does not start:\n{self._log.read_text()[-2000:]}")
            time.sleep(_START_POLL_S)
        self.ready_s = time.monotonic() - began
        return self

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(
                    f"GET {self._path} HTTP/1.1\r\nHost: benchmark\r\nConnection: close\r\n\r\n".encode()
                )
                return connection.recv(15).split()[1:2] in ([b"200"], [b"404"])
        except OSError:
            return False

    def resident_bytes(self) -> int:
        """Return what memory the largest process takes that it has started; 0 where /proc does not tell."""
        assert self._process is not None
        return max((_resident(child) for child in _children(self._process.pid)), default=0)

    def memory_bytes(self) -> int:
        """Return the memory of all its processes, shared pages counted once; 0 where /proc does not tell."""
        assert self._process is not None
        folders = (Path("/proc", str(self._process.pid)), *_children(self._process.pid))
        return sum(map(_proportional, folders))

    def cpu_s(self) -> float:
        """Return the processor seconds that all its processes have used."""
        assert self._process is not None
        return process_cpu_s(self._process.pid)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop all its processes for the time of the block, as a host that hangs."""
        assert self._process is not None
        pids = [self._process.pid, *(int(folder.name) for folder in _children(self._process.pid))]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)

    def wait_until_idle(self) -> None:
        """Wait until it uses hardly any processor, as it does once it has started."""
        deadline = time.monotonic() + _IDLE_DEADLINE_S
        while time.monotonic() < deadline:
            began, used = time.monotonic(), self.cpu_s()
            time.sleep(_IDLE_WINDOW_S)
            if self.cpu_s() - used < _IDLE_SHARE * (time.monotonic() - began):
                return

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@dataclass(frozen=True, slots=True)
class CpuUse:
    """Processor seconds that were used, or their share of each event in microseconds."""

    gateway: float
    brokers: float
    postgres: float | None
    """None where PostgreSQL is not the environment's own, or is stopped."""

    def since(self, before: "CpuUse", events: int) -> "CpuUse":
        """Return the microseconds that each of *events* has used since *before*."""
        is_known = self.postgres is not None and before.postgres is not None
        return CpuUse(
            (self.gateway - before.gateway) * 1e6 / events,
            (self.brokers - before.brokers) * 1e6 / events,
            ((self.postgres or 0) - (before.postgres or 0)) * 1e6 / events if is_known else None,
        )


def read_cpu(environment: BenchmarkEnvironment, server: Server, nodes: Sequence[RabbitNode] = ()) -> CpuUse:
    """Return the processor seconds that boathook, brokers and PostgreSQL have used so far."""
    brokers = sum(process_cpu_s(node.process.pid) for node in nodes if node.process is not None)
    return CpuUse(server.cpu_s(), brokers, environment.postgres_cpu_s())


def _environment() -> dict[str, str]:
    """Return the environment without settings of boathook's, which would point its server at a user's database."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("BOATHOOK_") or name.startswith("BOATHOOK_BENCHMARK_")
    }


def _children(pid: int) -> list[Path]:
    """Return the folders below /proc of all processes that a process has started, and of those that they have."""
    pids: list[str] = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a process may end at any moment
        pids = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [folder for child in pids for folder in (Path("/proc", child), *_children(int(child)))]


def process_cpu_s(pid: int) -> float:
    """Return the processor seconds of a process and of all that it has started, those that have ended included."""
    ticks = 0
    for folder in (Path("/proc", str(pid)), *_children(pid)):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def _resident(process: Path) -> int:
    pages = int((process / "statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _proportional(process: Path) -> int:
    """Return a process's part of the memory that it uses: of a page that n processes share, an nth."""
    try:
        lines = (process / "smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:")), 0)


def free_port() -> int:
    """Return an unused port of loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
