"""Hosts for scenarios in which a whole host fails: each has namespaces, a link, an address and a name of its own.

    @scenario(..., environment=NetworkEnvironment, needs=missing_privileges)
    def test_host_lost(env: NetworkEnvironment) -> None:
        for _ in range(3):
            env.start()
        env.host.lose()                 # power loss: it falls silent; its disk stays
        env.host.recover()              # another machine with its address and its disk
        env.host.node.cut()             # its cable is pulled; `connect` puts it back
        env.host.node.isolate()         # it does not reach PostgreSQL, but everything else; until `connect`

A bridge in a namespace of its own links the senders, PostgreSQL and the hosts. The machine's own network has no part of it,
and all of it is removed with the processes inside.
"""

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.commands import boathook_process
from tests.faults.rig.environment import Environment, Host, Tables
from tests.faults.rig.postgres import OwnServer
from tests.faults.rig.proxy import Proxy
from tests.faults.rig.recorder import Recorder

_SUBNET = "10.99.0"
_NETWORK = f"{_SUBNET}.0/24"
_KINDS = ("net", "uts")
_LIBC = ctypes.CDLL(None, use_errno=True)


@cache
def missing_privileges() -> str:
    """Return why this machine cannot create such hosts; empty where it can."""
    if missing := [name for name in ("ip", "unshare") if shutil.which(name) is None]:
        return f"the program {missing[0]} is not installed"
    probe = "ip link add probe type bridge && ip link add port type veth"
    done = subprocess.run(["unshare", "--net", "--uts", "sh", "-c", probe], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else f"no network namespaces (run it as root): {done.stderr.strip()}"


class Namespaces:
    """A network namespace and a host name, which last as long as the processes inside."""

    def __init__(self, name: str) -> None:
        # `cat` ends with this process, however that ends.
        inside = f"hostname {name} && ip link set lo up && echo ready && exec cat"
        command = ["unshare", "--net", "--uts", "sh", "-c", inside]
        self._holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == b"ready\n"

    @property
    def pid(self) -> int:
        """The process that holds them."""
        return self._holder.pid

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Enter the network namespace with this thread and its child processes."""
        before = [os.open(f"/proc/thread-self/ns/{kind}", os.O_RDONLY) for kind in _KINDS]
        inside = [os.open(f"/proc/{self.pid}/ns/{kind}", os.O_RDONLY) for kind in _KINDS]
        try:
            for one in inside:
                _set_namespace(one)
            yield
        finally:
            for one in before:
                _set_namespace(one)
            for one in (*before, *inside):
                os.close(one)

    def ip(self, *arguments: str) -> None:
        """Run the program `ip` inside."""
        with self.entered():
            done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr}"

    def close(self) -> None:
        """Let go of them."""
        self._holder.kill()
        self._holder.communicate()


def _set_namespace(descriptor: int) -> None:
    if _LIBC.setns(descriptor, 0) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


class Node:
    """Namespaces with a link to the switch and an address."""

    def __init__(self, switch: Namespaces, number: int, name: str) -> None:
        self.namespaces = Namespaces(name)
        self.address = f"{_SUBNET}.{number}"
        self._switch = switch
        self._port = f"port{number}"
        pid = str(self.namespaces.pid)
        switch.ip("link", "add", self._port, "type", "veth", "peer", "name", "eth0", "netns", pid)
        self.namespaces.ip("address", "add", f"{self.address}/24", "dev", "eth0")
        self.namespaces.ip("link", "set", "eth0", "up")
        switch.ip("link", "set", self._port, "master", "bridge", "up")

    def cut(self) -> None:
        """Take the link down."""
        self._switch.ip("link", "set", self._port, "down")

    def isolate(self) -> None:
        """Let nothing pass between this node and PostgreSQL: a switch passes nothing from one isolated port to another."""
        self._switch.ip("link", "set", self._port, "type", "bridge_slave", "isolated", "on")

    def connect(self) -> None:
        """Undo `cut` and `isolate`."""
        self._switch.ip("link", "set", self._port, "up", "type", "bridge_slave", "isolated", "off")

    def remove(self) -> None:
        """Remove the link, and then the namespaces, so that nothing tells the others."""
        self._switch.ip("link", "delete", self._port)
        self.namespaces.close()


class Network:
    """The switch, the senders' node and that of PostgreSQL; further nodes are added to them."""

    def __init__(self) -> None:
        self._opened: list[Namespaces] = []
        self.hosts: list[Node] = []
        try:
            self._switch = Namespaces("switch")
            self._opened.append(self._switch)
            self._switch.ip("link", "add", "bridge", "type", "bridge")
            self._switch.ip("link", "set", "bridge", "up")
            self.senders = self._add(1, "senders")
            self.database = self._add(2, "database")
            self.database.isolate()
        except BaseException:
            self.close()
            raise

    def add_host(self, number: int, name: str) -> Node:
        """Add the node of a host."""
        node = self._add(11 + number, name)
        self.hosts.append(node)
        return node

    def remove(self, node: Node) -> None:
        """Remove the node of a host."""
        self.hosts.remove(node)
        node.remove()

    def _add(self, number: int, name: str) -> Node:
        node = Node(self._switch, number, name)
        self._opened.append(node.namespaces)
        return node

    def close(self) -> None:
        """Remove all of it."""
        for one in reversed(self._opened):
            one.close()


class NetworkHost(Host):
    """A `boathook serve` on a node of its own."""

    def __init__(self, folder: Path, url: str, *, network: Network, number: int, **how: Any) -> None:
        self._network = network
        self._number = number
        self.name = f"host{number}"
        """Its host name, which is part of the names of its workers."""
        self.node = network.add_host(number, self.name)
        self.ip = self.node.address
        super().__init__(folder, url, **how)
        self.base = f"http://{self.address}"

    def start(self, *, wait: bool = True, **environment: str) -> Self:
        """Start it inside; a fork of the server that all tests share would be outside."""
        with self.node.namespaces.entered(), (self.folder / "serve.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "boathook", "serve"], cwd=self.folder, env={**self.environment, **environment},
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        if wait:
            self.wait_ready()
        return self

    def wait_ready(self, timeout_s: float = 300) -> None:
        """Wait until it answers on its own address."""
        with self.node.namespaces.entered():
            super().wait_ready(timeout_s)

    def cli(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command on it."""
        with self.node.namespaces.entered():
            done = boathook_process(*arguments, cwd=self.folder, env=self.environment)
        assert not check or done.returncode == 0, f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def lose(self) -> None:
        """Lose the host as in a power failure: it disappears without a signal; its disk remains."""
        self._network.remove(self.node)
        self.kill_all()

    def recover(self) -> None:
        """Start it on another machine, with its name, address and disk."""
        self.node = self._network.add_host(self._number, self.name)
        self.start()


class NetworkEnvironment(Environment):
    """An environment whose senders, PostgreSQL and hosts are nodes of one network."""

    def __init__(self, folder: Path, **how: Any) -> None:
        self.network = Network()
        try:
            super().__init__(folder, **how)
        except BaseException:
            self.network.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            super().__exit__(kind, error, trace)
        finally:
            self.network.close()

    def start(self, **how: Any) -> NetworkHost:
        """Start one more host, see `Environment.start`."""
        host = super().start(**how)
        assert isinstance(host, NetworkHost)
        return host

    def _open_server(self, place: Path | None, template: Path | None) -> OwnServer:
        server = super()._open_server(place, template)
        try:
            self._open_port(server)
        except BaseException:
            server.close()
            raise
        return server

    def _open_port(self, server: OwnServer) -> None:
        rules = server.server.home / "hosts_hba.conf"
        rules.write_text(f"local all all peer map=boathook\nhost all all {_NETWORK} trust\n")
        server.set(listen_addresses="*", hba_file=str(rules))
        server.stop("fast")
        with self.network.database.namespaces.entered():
            server.restart()

    def _open_recorder(self, folder: Path) -> Recorder:
        with self.network.senders.namespaces.entered():
            return Recorder(folder, address=self.network.senders.address)

    def _make_host(self, folder: Path, wire: Proxy | None, *, settings: Tables, **how: Any) -> NetworkHost:
        assert wire is None, "cut the node's link instead"
        url = f"postgresql://boathook@{self.network.database.address}/boathook?sslmode=disable"
        allowed = {"outbound": {"allow": [_NETWORK], **settings.get("outbound", {})}}
        return NetworkHost(
            folder, url, network=self.network, number=len(self.hosts), settings={**settings, **allowed}, **how
        )

    def heal(self) -> None:
        """End every fault of links too; a host that was lost stays so."""
        for node in self.network.hosts:
            node.connect()
        with self.network.database.namespaces.entered():
            super().heal()
