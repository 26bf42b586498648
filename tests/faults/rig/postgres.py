"""A PostgreSQL server for one scenario, which can be killed, stopped, frozen and reconfigured.

`OwnServer()` makes a new cluster (1.4 s); `OwnServer(template=...)` copies one that was prepared and stopped (0.4 s). The
folder lies in memory unless *folder* says otherwise, such as a loop image whose copy is a power cut.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
from pathlib import Path

import psutil
import psycopg

from boathook_embedded.server import EmbeddedServer
from tests.conftest import open_folder
from tests.support import until


class OwnServer:
    """A PostgreSQL that a test may kill."""

    def __init__(self, folder: Path | None = None, *, template: Path | None = None) -> None:
        self.folder = folder or open_folder()
        if template is not None:
            # With owners and modes: the server's account is not ours where root runs the tests.
            subprocess.run(["cp", "-a", f"{template}/postgres", str(self.folder)], check=True)
        self.server = asyncio.run(EmbeddedServer.start(self.folder))
        self.url = self.server.url
        self._frozen: list[int] = []

    @property
    def socket(self) -> str:
        """The path of its socket, for a proxy."""
        return f"{self.server._site.socket_dir}/.s.PGSQL.5432"

    @property
    def data(self) -> Path:
        """Its data folder."""
        return self.server._site.data

    def wired(self, port: int) -> str:
        """Return the URL by which it is reached through a proxy on *port*."""
        return f"postgresql://boathook@127.0.0.1:{port}/boathook?sslmode=disable"

    def set(self, **settings: str) -> None:
        """Change settings by ALTER SYSTEM; those that need a restart count from the next one."""
        with psycopg.connect(self.url, autocommit=True) as admin:
            for name, value in settings.items():
                admin.execute(f"alter system set {name} = '{value}'")
            admin.execute("select pg_reload_conf()")

    def kill(self) -> None:
        """SIGKILL the postmaster; its backends notice and end by themselves."""
        pid = self.server.pid()
        assert pid is not None
        os.kill(pid, signal.SIGKILL)

    def kill_all(self) -> None:
        """SIGKILL the postmaster and every process of its, at once."""
        pid = self.server.pid()
        assert pid is not None
        for one in family(pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)
        until(lambda: self.server.pid() is None)

    def stop(self, mode: str = "immediate") -> None:
        """Shut it down, so that connections are refused; *mode* is fast (with a checkpoint) or immediate (without)."""
        done = self.server._site.call("pg_ctl", "stop", "--pgdata", "data", "--wait", "--mode", mode)
        assert done.returncode == 0, done.stdout

    def freeze(self) -> None:
        """SIGSTOP all of it: it takes connections and statements and answers nothing."""
        pid = self.server.pid()
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)  # first, so that no process is born meanwhile
        self._frozen = family(pid)
        for one in self._frozen:
            with contextlib.suppress(ProcessLookupError):
                os.kill(one, signal.SIGSTOP)

    def thaw(self) -> None:
        """Resume all of its processes."""
        for one in reversed(self._frozen):
            with contextlib.suppress(ProcessLookupError):
                os.kill(one, signal.SIGCONT)
        self._frozen = []

    def restart(self) -> None:
        """Start it again on the same data, which is a recovery if it was killed; nothing if it runs."""
        self.thaw()
        asyncio.run(self.server.ensure_running())

    def close(self) -> None:
        """Stop it and remove its data."""
        self.thaw()
        asyncio.run(self.server.stop())
        shutil.rmtree(self.folder, ignore_errors=True)


def family(pid: int) -> list[int]:
    """Return a process and all that descends from it; each backend of PostgreSQL has a process group of its own."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except FileNotFoundError:
        return []
    return [pid, *(one for child in children for one in family(int(child)))]


class Standby:
    """A streaming standby of an `OwnServer`, which a test may stop, and make the primary."""

    NAME = "standby"

    def __init__(self, primary: OwnServer) -> None:
        self._site = site = primary.server._site
        self._primary = primary
        self._is_paused = False
        self.home = site.home / self.NAME
        self.data = self.home / "data"
        with (site.home / "pg_hba.conf").open("a") as rules:
            rules.write("local replication all peer map=boathook\n")
        primary.set()
        site.own(self.home)
        origin = f"host={site.socket_dir} user=boathook application_name={self.NAME}"
        where = ("--pgdata", str(self.data), "--dbname", origin)
        self._call("pg_basebackup", "--checkpoint=fast", "--write-recovery-conf", *where)
        replaced = {str(site.socket_dir): str(self.home), str(site.data): str(self.data)}
        settings = (site.home / "postgresql.conf").read_text()
        for before, after in replaced.items():
            settings = settings.replace(before, after)
        (self.home / "postgresql.conf").write_text(settings)
        self.start()

    @property
    def url(self) -> str:
        """Its database's URL."""
        return f"postgresql://boathook@/boathook?host={self.home}"

    def _call(self, program: str, *args: str) -> None:
        done = self._site.call(program, *args)
        assert done.returncode == 0, done.stdout

    def start(self) -> None:
        """Start it, and wait until it streams."""
        options = f"-c config_file={self.home}/postgresql.conf"
        log = f"{self.home}/start.log"
        self._call("pg_ctl", "start", "--pgdata", str(self.data), "--wait", "--log", log, "--options", options)
        self.wait_streaming()

    def wait_streaming(self) -> None:
        """Wait until the primary sends to it."""
        question = "select count(*) from pg_stat_replication where state = 'streaming'"
        with psycopg.connect(self._primary.url, autocommit=True) as admin:
            until(lambda: admin.execute(question).fetchone() == (1,))

    def _receiver(self) -> psutil.Process:
        pid = int((self.data / "postmaster.pid").read_text().split("\n", 1)[0])
        children = psutil.Process(pid).children()
        return next(child for child in children if "walreceiver" in " ".join(child.cmdline()))

    def pause(self) -> None:
        """SIGSTOP what receives: nothing that is committed from now on gets there."""
        self._receiver().suspend()
        self._is_paused = True

    def resume(self) -> None:
        """Resume it."""
        self._receiver().resume()
        self._is_paused = False

    def promote(self) -> None:
        """Make it a primary that waits for no standby."""
        if self._is_paused:
            # A promotion waits for the receiver, and one that goes on would read what is left in its socket.
            self._receiver().kill()
            until(lambda: self._site.call("pg_isready", "--host", str(self.home)).returncode == 0)
        self._call("pg_ctl", "promote", "--pgdata", str(self.data), "--wait")
        with psycopg.connect(self.url, autocommit=True) as admin:
            admin.execute("alter system reset synchronous_standby_names")
            admin.execute("select pg_reload_conf()")

    def close(self) -> None:
        """Stop it; its data go with the primary's."""
        with contextlib.suppress(psutil.Error, StopIteration):
            self.resume()
        self._site.call("pg_ctl", "stop", "--pgdata", str(self.data), "--wait", "--mode", "immediate")
