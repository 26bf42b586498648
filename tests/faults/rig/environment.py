"""Fault environment: boathook processes around one PostgreSQL, with the recorder outside, for one scenario run.

    with Environment(folder) as env:
        env.start()                                   # `boathook serve`; again for further hosts
        env.begin(rate=150)                           # a load of signed events, see `Load`
        env.warm(60)                                  # wait for 60 accepted events
        env.fault("the gateway is killed")
        env.host.kill("gateway")
        env.heal()
        env.warm(60)
        env.quiesce()                                 # stop the load and wait until nothing is pending
        print(env.judge().report)

Members for scenarios:

    env.server       the PostgreSQL: kill, kill_all, stop, freeze, thaw, restart, set
    env.hosts        every `boathook serve`: kill(role), kill_all, stop, start, freeze(role), thaw, children, cli, log
    env.host         the first of them; `host.wire` is the proxy to PostgreSQL, `host.front` that in front of its gateway
    env.outside      the recorder: senders and receivers; `env.endpoint(place)` makes one of them an endpoint
    env.enter(context)   keep it open as long as the environment, such as a disk
    env.use(server)  go on with another PostgreSQL, such as one booted from a copy
    env.ask(sql)     rows from PostgreSQL itself, past every proxy
    env.expect(invariant, truth, words)      a check by the scenario itself
    env.figure(name, value)                  a figure for tests/faults/README.md
"""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec
import psutil
import psycopg

from boathook.db.database import Database
from boathook.domain import ids
from boathook.domain.policy import RetryPolicy
from tests.acceptance.conftest import BoathookProcess
from tests.faults.rig import bank, store_reader
from tests.faults.rig.checker import Verdict, judge
from tests.faults.rig.history import FAULT, HEALED, QUIET, History
from tests.faults.rig.invariants import Violation
from tests.faults.rig.mutants import SOUND, Mutant
from tests.faults.rig.postgres import OwnServer
from tests.faults.rig.proxy import Proxy
from tests.faults.rig.recorder import ROOT, Recorder
from tests.faults.rig.senders import SECRET, Load, SignedEvent
from tests.faults.rig.spool_reader import read_spools
from tests.faults.rig.store_state import Limits, Spooled
from tests.sender_harness import KEY, add_application, add_endpoint
from tests.support import until

MUTANTS = Path(__file__).parents[1] / "mutants"
QUICK = RetryPolicy(delays_s=(0.1, 0.2, 0.4) + (0.5,) * 20, jitter=0.2, max_age_s=120.0)
"""Retry policy of the endpoints."""
Entered = TypeVar("Entered")
Tables = Mapping[str, Mapping[str, Any]]
"""Settings as tables of boathook.toml."""


class Host(BoathookProcess):
    """A `boathook serve` process with the bank app, its own folder and data_dir."""

    ip = "127.0.0.1"
    """The IP address that its gateway listens on."""

    def __init__(self, folder: Path, url: str, *, roles: str, senders: int, settings: Tables, mutant: Mutant) -> None:
        folder.mkdir()
        self._settings = settings
        self._mutant = mutant
        self.wire: Proxy | None = None
        self.front: Proxy | None = None
        self._frozen: list[psutil.Process] = []
        super().__init__(folder, url, roles=roles, senders=senders)
        path = [str(MUTANTS), str(ROOT)] if mutant.patch else [str(ROOT)]
        self.environment |= {"PYTHONPATH": os.pathsep.join(path)}
        if mutant.patch:
            self.environment["BOATHOOK_MUTANT"] = mutant.patch

    def patch(self, name: str) -> None:
        """Apply one more patch of tests/faults/mutants from its next start on."""
        earlier = self.environment.get("BOATHOOK_MUTANT")
        self.environment["PYTHONPATH"] = os.pathsep.join([str(MUTANTS), str(ROOT)])
        self.environment["BOATHOOK_MUTANT"] = f"{earlier},{name}" if earlier else name

    @property
    def address(self) -> str:
        """The address of its gateway for senders."""
        return f"{self.ip}:{self.port if self.front is None else self.front.port}"

    @property
    def data(self) -> Path:
        """Its data_dir."""
        return self.folder / str(self._settings.get("server", {}).get("data_dir", "data"))

    def _configuration(self, extra: str) -> str:
        tables: dict[str, dict[str, Any]] = {
            "database": {"url": self.database_url},
            "worker": {"lease_s": 2.0, "poll_interval_s": 0.1},
            "server": {
                "app": "tests.faults.rig.bank:hook", "bind": f"{self.ip}:{self.port}", "data_dir": "data",
                "roles": self.roles.split(","), "senders": self.senders, "linger_s": 0.3, "drain_s": 10.0,
            },
            "sources.stripe": {"provider": "stripe", "secrets": [SECRET]},
            "outbound": {"allow": ["127.0.0.0/8"], "encryption_keys": [KEY], "timeout_s": 3.0},
        }  # fmt: skip
        for name, table in self._settings.items():
            tables[name] = {**tables.get(name, {}), **table}
        return "\n".join(_toml(tables)) + extra

    def processes(self, role: str = "") -> list[psutil.Process]:
        """Return its processes of one role, or all with the supervisor first."""
        if role:
            return self.children(role)
        assert self.process is not None
        supervisor = psutil.Process(self.process.pid)
        return [supervisor, *supervisor.children(recursive=True)]

    def freeze(self, role: str = "") -> None:
        """SIGSTOP its processes of one role, or all of them, as a paused virtual machine."""
        frozen = self.processes(role)
        assert frozen, f"there is no {role} to freeze"
        self.pause(*frozen)

    def pause(self, *processes: psutil.Process) -> None:
        """SIGSTOP some of its processes until `thaw`, which wakes them in this order."""
        for process in processes:
            process.send_signal(signal.SIGSTOP)
        self._frozen += processes

    def thaw(self) -> None:
        """Resume all frozen processes."""
        for process in self._frozen:
            with contextlib.suppress(psutil.Error):
                process.send_signal(signal.SIGCONT)
        self._frozen = []

    def revise(self, settings: Tables) -> None:
        """Change its configuration, for the next start; the settings of the mutant stay."""
        self._settings = _merge(_merge(self._settings, settings), self._mutant.settings)
        self.point_to(self.database_url)

    def point_to(self, url: str) -> None:
        """Set another database in its configuration, for the next start."""
        self.database_url = url
        (self.folder / "boathook.toml").write_text(self._configuration(""))

    def is_running(self) -> bool:
        """Return whether its supervisor runs."""
        return self.process is not None and self.process.poll() is None

    def close(self) -> None:
        """Kill all its processes."""
        self.thaw()
        self.kill_all()


def _toml(tables: Tables) -> Iterator[str]:
    for name, table in tables.items():
        yield f"[{name}]"
        for key, value in table.items():
            yield f"{key} = {msgspec.json.encode(value).decode()}"


class Environment:
    """The servers, hosts, recorder and proxies of one scenario run; all end with its block.

    Args:
        folder: for configurations, logs, spools and the history.
        template: a prepared cluster to copy, see `prepare`; None makes a new one.
        mutant: the safeguard that is removed.
        limits: what the checker allows; the bank's own where absent.
        place: the folder of the PostgreSQL server, such as one on a loop image; in memory where absent.
    """

    def __init__(
        self,
        folder: Path,
        *,
        template: Path | None = None,
        mutant: Mutant = SOUND,
        limits: Limits = bank.LIMITS,
        place: Path | None = None,
        seed: int = 0,
    ) -> None:
        self.folder = folder
        self.mutant = mutant
        self.limits = limits
        self.seed = seed
        self.hosts: list[Host] = []
        self.figures: dict[str, str] = {}
        self.findings: list[Violation] = []
        self.is_quiet = False
        self.began = time.monotonic()
        self._application: Any = None
        self._proxies: list[Proxy] = []
        self._is_healed = False
        self._loads = 0
        with contextlib.ExitStack() as stack:
            self.server = self._open_server(place, template)
            stack.callback(self.server.close)
            self.outside = stack.enter_context(self._open_recorder(folder))
            if template is None:
                prepare_schema(self.server.url)
            self._apply_mutant_to_server()
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def _open_server(self, place: Path | None, template: Path | None) -> OwnServer:
        return OwnServer(place, template=template)

    def _open_recorder(self, folder: Path) -> Recorder:
        return Recorder(folder)

    def _make_host(self, folder: Path, wire: Proxy | None, *, settings: Tables, **how: Any) -> Host:
        url = self.server.url if wire is None else self.server.wired(wire.port)
        return Host(folder, url, settings=settings, **how)

    def _apply_mutant_to_server(self) -> None:
        if self.mutant.server:
            self.server.set(**self.mutant.server)
        if self.mutant.sql:
            with psycopg.connect(self.server.url, autocommit=True) as db:
                db.execute(self.mutant.sql)

    @property
    def host(self) -> Host:
        """The first host."""
        return self.hosts[0]

    @property
    def is_mutant(self) -> bool:
        """Whether a safeguard is removed; the scenario may then wait less, but must do the same."""
        return self.mutant is not SOUND

    def start(
        self,
        *,
        roles: str = "gateway,worker,keeper",
        senders: int = 0,
        settings: Tables | None = None,
        is_wired: bool = False,
        is_fronted: bool = False,
        wait: bool = True,
        patch: str = "",
        **environment: str,
    ) -> Host:
        """Start one more host; *is_wired* puts a proxy between it and PostgreSQL, *is_fronted* one before its gateway.

        *patch* names one of tests/faults/mutants that breaks nothing, for the sound run too.
        """
        wire = self.proxy(self.server.socket) if is_wired else None
        merged = _merge(settings or {}, self.mutant.settings)
        folder = self.folder / f"host{len(self.hosts)}"
        host = self._make_host(folder, wire, roles=roles, senders=senders, settings=merged, mutant=self.mutant)
        host.wire = wire
        if is_fronted:
            host.front = self.proxy(("127.0.0.1", host.port))
        if self._application is not None:
            host.environment["BANK_APPLICATION"] = ids.show(ids.APPLICATION, self._application)
        host.environment |= environment
        if patch:
            host.patch(patch)
        self.hosts.append(host)
        self._stack.callback(host.close)
        has_gateway = "gateway" in roles.split(",")
        host.start(wait=wait and has_gateway)
        return host

    def use(self, server: OwnServer) -> None:
        """Continue with another PostgreSQL, such as a restored one; hosts use it from their next start."""
        self._stack.callback(server.close)
        self.server = server
        for host in self.hosts:
            if host.wire is not None:
                host.wire.target = server.socket
            else:
                host.point_to(server.url)

    def enter(self, context: AbstractContextManager[Entered]) -> Entered:
        """Enter a context until the end of the environment; contexts are left in reverse order."""
        return self._stack.enter_context(context)

    def proxy(self, target: str | tuple[str, int]) -> Proxy:
        """Open a proxy that lives as long as the environment."""
        one = self._stack.enter_context(Proxy(target, seed=self.seed))
        self._proxies.append(one)
        return one

    def endpoint(self, place: str, *, proxy: Proxy | None = None, **columns: Any) -> None:
        """Add an endpoint of the bank's application, at a path of the receivers; do it before `start`."""
        base = self.outside.receiver if proxy is None else f"http://127.0.0.1:{proxy.port}"

        async def add() -> None:
            db = await Database.open(self.server.url, purpose="test", size=1)
            self._application = self._application or await add_application(db)
            await add_endpoint(db, f"{base}{place}", application=self._application, **{"retry": QUICK, **columns})
            await db.close()

        asyncio.run(add())

    def load(self, **how: Any) -> Load:
        """Return a load for all gateways; each load has its own event ids."""
        self._loads += 1
        gateways = tuple(host.address for host in self.hosts if "gateway" in host.roles.split(","))
        defaults = {"hosts": gateways, "seed": self.seed, "prefix": f"evt{self._loads}"}
        return Load(**{**defaults, **how})

    def begin(self, **how: Any) -> None:
        """Start a load, see `Load`."""
        self.outside.begin(self.load(**how))

    def send(self, *some: SignedEvent, **how: Any) -> None:
        """Send these events at once."""
        self.outside.send(self.load(**how), *some)

    def warm(self, accepted: int = 60, timeout_s: float = 30.0) -> None:
        """Wait until so many more events were accepted."""
        self.outside.wait_accepted(accepted, timeout_s)

    def fault(self, name: str) -> None:
        """Record that a fault begins; the scenario itself injects it."""
        self._is_healed = False
        self.outside.mark(f"{FAULT}{name}")

    def heal(self) -> None:
        """End every fault that the rig has injected in proxies, PostgreSQL, hosts and receivers."""
        for proxy in self._proxies:
            proxy.heal()
        self.server.restart()
        for host in self.hosts:
            host.thaw()
        self.outside.mark(HEALED)
        self._is_healed = True

    def quiesce(self, timeout_s: float | None = None) -> bool:
        """Stop the load and wait until nothing is pending; return whether that took less than *timeout_s*."""
        limit_s = timeout_s or (10.0 if self.is_mutant else self.limits.quiet_s)
        self.outside.stop()
        if not self._is_healed:
            self.heal()
        deadline = time.monotonic() + limit_s
        self.outside.settle(limit_s)
        while not (quiet := self._is_at_rest()) and time.monotonic() < deadline:
            time.sleep(0.05)
        if quiet:
            self.outside.mark(QUIET)
        self.is_quiet = quiet
        return quiet

    def _is_at_rest(self) -> bool:
        return store_reader.count_open(self.server.url) == 0 and not self.spooled()

    def spooled(self) -> list[Spooled]:
        """Return the records in the spools of all hosts."""
        return [record for host in self.hosts for record in read_spools(host.data)]

    def self_report(self) -> dict[str, int]:
        """Return what boathook's commands report; empty for a mutant that does not break C15."""
        if not self.hosts or (self.is_mutant and "C15" not in self.mutant.breaks):
            return {}
        checked = self.host.cli("check", check=False)
        if checked.returncode != 0:
            self.findings.append(Violation("C15", "", f"check says: {checked.stdout[-2000:]}{checked.stderr[-2000:]}"))
        return {"check": checked.returncode, "dead": len(self.host.listing("dead", "list", "--limit", "100000"))}

    def judge(self) -> Verdict:
        """Return the verdict of the checker, with the scenario's own findings."""
        report = self.self_report()
        store = store_reader.read(self.server.url)
        verdict = judge(self.history(), store, spool=self.spooled(), limits=self.limits, told=report)
        return replace(verdict, violations=(*verdict.violations, *self.findings))

    def history(self) -> History:
        """Return all facts so far."""
        return self.outside.history()

    def ask(self, sql: str, *arguments: Any) -> list[tuple[Any, ...]]:
        """Return rows from PostgreSQL, past every proxy."""
        return store_reader.ask(self.server.url, sql, *arguments)

    def wait_row(self, sql: str, *arguments: Any, timeout_s: float = 20.0) -> tuple[Any, ...]:
        """Wait until a question has a row, and return the first."""
        return until(lambda: self.ask(sql, *arguments), timeout=timeout_s)[0]

    def expect(self, invariant: str, truth: object, words: str) -> None:
        """Make a finding of *words* unless *truth* holds; this also counts for the mutant run."""
        if not truth:
            self.findings.append(Violation(invariant, "", words))

    def figure(self, name: str, value: object) -> None:
        """Add a figure to tests/faults/README.md."""
        self.figures[name] = f"{value:.3g}" if isinstance(value, float) else str(value)


def _merge(one: Tables, other: Tables) -> dict[str, dict[str, Any]]:
    names: Sequence[str] = [*one, *(name for name in other if name not in one)]
    return {name: {**one.get(name, {}), **other.get(name, {})} for name in names}


def prepare_schema(url: str) -> None:
    """Make boathook's schema, the bank's tables and the triggers that record edges."""
    from boathook.db import migrations

    asyncio.run(migrations.migrate(url))
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(bank.TABLES)
        db.execute(store_reader.TRIGGERS)


def prepare(folder: Path) -> Path:
    """Create a stopped PostgreSQL cluster with the schema in *folder*, as a template, and return the folder."""
    folder.mkdir()
    folder.chmod(0o755)
    server = OwnServer(folder)
    prepare_schema(server.url)
    assert asyncio.run(server.server.stop()), "the template is in use"
    return folder
