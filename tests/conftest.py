"""Fixtures for all tests: a real PostgreSQL, a migrated template, and an empty database for each test."""

import asyncio
import contextlib
import fcntl
import functools
import gc
import logging
import os
import shutil
import signal
import sys
import tempfile
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import httpx._transports.default as transports
import hypothesis
import psycopg
import pytest
import structlog
from httpx._config import DEFAULT_TIMEOUT_CONFIG

from boathook.db import database, migrations
from boathook.db.connection import read_session_settings
from boathook.db.database import Database
from boathook.observability import log
from boathook_embedded.server import EmbeddedServer
from tests.databases import Pool, created, with_database

# A developer's own settings must not decide whether a test passes.
for _name in [name for name in os.environ if name.startswith(("PG", "BOATHOOK_"))]:
    if not _name.startswith("BOATHOOK_TEST_"):
        del os.environ[_name]
# A thousand processes of one run would each compile boathook anew where Python has been told to keep nothing compiled.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# A busy machine may answer later than within the five seconds that httpx grants,
for _part in ("connect", "read", "write", "pool"):
    setattr(DEFAULT_TIMEOUT_CONFIG, _part, 300.0)
# and an example of a property may take long while others have the processor.
for _profile, _examples in (("quick", 10), ("full", 100)):
    hypothesis.settings.register_profile(
        _profile,
        max_examples=_examples,
        deadline=None,
        print_blob=True,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )
hypothesis.settings.load_profile("quick")
# Each client of httpx would load all system certificates, which takes longer than most of the requests here.
transports.create_ssl_context = functools.cache(transports.create_ssl_context)  # type: ignore[attr-defined]

close_loop = asyncio.selector_events.BaseSelectorEventLoop.close


_accept = asyncio.selector_events.BaseSelectorEventLoop._accept_connection2  # type: ignore[attr-defined]


def _close_with_accepted(loop: Any) -> None:
    """Close an event loop with the connections accepted last, which have no task yet."""
    accepted = [one for one in list(loop._transports.values()) if one._server is not None]
    if accepted and not loop.is_closed() and asyncio._get_running_loop() is None:
        for transport in accepted:
            transport.abort()
        loop.run_until_complete(asyncio.sleep(0))
    close_loop(loop)


async def _accept_if_open(
    loop: Any, factory: Any, accepted: Any, extra: Any, context: Any, server: Any, *more: Any
) -> None:
    """Close a connection accepted just before its server was closed: asyncio would drop it."""
    if server is not None and server._sockets is None:
        accepted.close()
    else:
        await _accept(loop, factory, accepted, extra, context, server, *more)


# Otherwise the garbage collector finds it in some later test, which fails for it.
asyncio.selector_events.BaseSelectorEventLoop.close = _close_with_accepted  # type: ignore[method-assign, assignment]
asyncio.selector_events.BaseSelectorEventLoop._accept_connection2 = _accept_if_open  # type: ignore[attr-defined]

pytest_plugins = ["pytester", "tests.own_process"]

# jsonschema would build forty grammars in each process, for a format that no schema here judges.
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]

gc.disable()  # while twelve thousand tests are collected, none of which is garbage

_PLACE = "BOATHOOK_TEST_PLACE"
_SHARED_NAME = "boathook-tests-"

_session_settings: dict[str, dict[str, str]] = {}


async def _read_session_settings_once(url: str, timeout_s: float) -> dict[str, str]:
    """Read them once for each database of the shared server: a third of the connections of all tests did nothing else."""
    if f"/{_SHARED_NAME}" not in url:
        return await read_session_settings(url, timeout_s)
    if url not in _session_settings:
        _session_settings[url] = await read_session_settings(url, timeout_s)
    return dict(_session_settings[url])


mock.patch.object(database, "read_session_settings", _read_session_settings_once).start()


FreshServer = Callable[[], Awaitable[EmbeddedServer]]


_MEMORY = Path("/dev/shm")
_ROOM = 4 << 30
_MAX_CONNECTIONS = 1_200


def _place_for_servers() -> Path:
    """Return a folder in memory if there is room: creating databases is mostly disk waits."""
    if _PLACE not in os.environ:  # xdist's processes, which must agree, inherit it
        has_room = os.access(_MEMORY, os.W_OK | os.X_OK) and shutil.disk_usage(_MEMORY).free > _ROOM
        os.environ[_PLACE] = str(_MEMORY) if has_room else tempfile.gettempdir()
    return Path(os.environ[_PLACE])


def open_folder(prefix: str = "boathook-test-") -> Path:
    """Make a folder that an unprivileged server can enter, unlike pytest's own when root runs the tests."""
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=_place_for_servers()))
    folder.chmod(0o755)
    return folder


_RUN_ID = pytest.StashKey[str]()


def pytest_configure(config: pytest.Config) -> None:
    """Give this test run a name shared by all xdist processes."""
    worker = getattr(config, "workerinput", None)
    config.stash[_RUN_ID] = worker["run_id"] if worker else uuid.uuid4().hex[:12]
    _place_for_servers()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # So it is in the background of a shell, and all that the tests start would ignore Ctrl-C too.
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Enable garbage collection again, with collected items frozen: scanning them takes half a second."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Pass the name to an xdist process."""
    node.workerinput["run_id"] = node.config.stash[_RUN_ID]


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the run's files after all xdist processes have ended."""
    if hasattr(config, "workerinput"):
        return
    run_id = config.stash[_RUN_ID]
    shutil.rmtree(_shared_folder(run_id), ignore_errors=True)
    if url := os.environ.get("BOATHOOK_TEST_DATABASE_URL"):
        with contextlib.suppress(psycopg.OperationalError), psycopg.connect(url, autocommit=True) as admin:
            admin.execute(f"drop database if exists {_template_name(run_id)}")


def _template_name(run_id: str) -> str:
    return f"template_{run_id}"


def _shared_folder(run_id: str) -> Path:
    return _place_for_servers() / f"{_SHARED_NAME}{run_id}"


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """Restore logging after a test, so that the next one sees its own log lines."""
    form, level = structlog.get_config(), logging.getLogger().level
    yield
    log.flush()  # while the test's output is captured: its lines are written by a thread
    structlog.configure(**form)
    logging.getLogger().setLevel(level)


@pytest.fixture(scope="session")
def run_id(pytestconfig: pytest.Config) -> str:
    """The name of this run of the tests."""
    return pytestconfig.stash[_RUN_ID]


@pytest.fixture(scope="session")
def pg_server(run_id: str) -> Iterator[EmbeddedServer | None]:
    """The server of this run, shared by all of xdist's processes; None where BOATHOOK_TEST_DATABASE_URL names one."""
    if os.environ.get("BOATHOOK_TEST_DATABASE_URL"):
        yield None
        return
    data_dir = _shared_folder(run_id)
    data_dir.mkdir(exist_ok=True)  # its mode is the server's to choose: a change would lock out one that runs
    with (data_dir / "start.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        server = asyncio.run(EmbeddedServer.start(data_dir))
        if not _allows_connections(server.url):
            asyncio.run(server.stop())
            server = asyncio.run(EmbeddedServer.start(data_dir))
    yield server
    asyncio.run(server.stop())


def _allows_connections(url: str) -> bool:
    """Return whether the server allows enough connections; otherwise set it for the next start."""
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(f"alter system set max_connections = {_MAX_CONNECTIONS}")
        # Otherwise it starts a process for one of the tests' databases nearly each second.
        admin.execute("alter system set autovacuum_naptime = '5min'")
        shown = admin.execute("show max_connections").fetchone()
    return shown == (str(_MAX_CONNECTIONS),)


@pytest.fixture(scope="session")
def admin_url(pg_server: EmbeddedServer | None) -> str:
    """A URL whose role may create databases."""
    return pg_server.url if pg_server is not None else os.environ["BOATHOOK_TEST_DATABASE_URL"]


@pytest.fixture(scope="session")
def pg_template(admin_url: str, run_id: str) -> str:
    """The name of a migrated database that each test gets a copy of."""
    name = _template_name(run_id)
    with psycopg.connect(admin_url, autocommit=True) as admin:
        admin.execute("select pg_advisory_lock(hashtextextended(%s, 0))", [name])
        if admin.execute("select 1 from pg_database where datname = %s", [name]).fetchone() is None:
            admin.execute(f"create database {name}")
            # By one process only: while another one is connected to the template, it cannot be copied.
            asyncio.run(migrations.migrate(with_database(admin_url, name)))
    return name


@pytest.fixture(scope="session")
def databases(admin_url: str, pg_template: str) -> Iterator[Pool]:
    """The databases of this process of the run."""
    pool = Pool(admin_url, pg_template)
    yield pool
    pool.close()


@pytest.fixture
def pg_url(databases: Pool) -> Iterator[str]:
    """The URL of a database with boathook's schema and nothing in it, for this test alone."""
    with databases.database() as url:
        yield url


@pytest.fixture(scope="module")
def shared_url(databases: Pool) -> Iterator[str]:
    """The same for all tests of a file."""
    with databases.database() as url:
        yield url


@pytest.fixture
def empty_url(admin_url: str) -> Iterator[str]:
    """The URL of a database without boathook's schema, for this test alone."""
    with created(admin_url) as url:
        yield url


@pytest.fixture
async def db(pg_url: str) -> AsyncIterator[Database]:
    """boathook's own connections to this test's database."""
    database = await Database.open(pg_url, purpose="test", size=10)
    yield database
    await database.close()


@pytest.fixture
async def fresh_server() -> AsyncIterator[FreshServer]:
    """Start a server that the test may kill; each call gives one of its own."""
    servers: list[tuple[EmbeddedServer, Path]] = []

    async def start() -> EmbeddedServer:
        folder = open_folder()
        server = await EmbeddedServer.start(folder)
        servers.append((server, folder))
        return server

    yield start
    for server, folder in servers:
        await server.stop()
        shutil.rmtree(folder, ignore_errors=True)
