"""RabbitMQ nodes of the tests' own: on loopback, on free ports, with data in a temporary folder."""

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.acceptance.conftest import free_port

SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
USER = "guest"
PASSWORD = "guest"
START_S = 600.0


@dataclass
class Node:
    """One node of a cluster."""

    name: str
    folder: Path
    port: int
    management_port: int
    environment: dict[str, str]
    process: subprocess.Popen | None = None

    @property
    def host(self) -> tuple[str, int]:
        return "127.0.0.1", self.port

    def start(self) -> None:
        with (self.folder / "console.log").open("ab") as log:
            self.process = subprocess.Popen(
                [str(SERVER)], env=self.environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                cwd=self.folder, start_new_session=True,
            )  # fmt: skip

    def kill(self) -> None:
        """End it without warning."""
        if self.process is not None:
            self.signal(signal.SIGKILL)
            self.process.wait(10)
            self.process = None

    def signal(self, number: int) -> None:
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def control(self, *arguments: str) -> None:
        """Run rabbitmqctl on it."""
        command = [str(SERVER.with_name("rabbitmqctl")), "-n", self.name, *arguments]
        subprocess.run(command, env=self.environment, cwd=self.folder, check=True, capture_output=True, timeout=300)

    def request(self, method: str, path: str, body: object = None) -> object:
        """Call the management API. Raises OSError."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.management_port}/api{path}", method=method)
        request.add_header("authorization", "Basic " + b64encode(f"{USER}:{PASSWORD}".encode()).decode())
        if body is not None:
            request.data = json.dumps(body).encode()
            request.add_header("content-type", "application/json")
        with urllib.request.urlopen(request, timeout=10) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def is_running(self, nodes: int) -> bool:
        """Return whether it sees a cluster of so many running nodes."""
        try:
            found = self.request("GET", "/nodes?columns=name,running")
        except (OSError, urllib.error.URLError, ValueError):
            return False
        return isinstance(found, list) and sum(bool(one.get("running")) for one in found) >= nodes


@dataclass
class Cluster:
    """Nodes that know each other; a virtual host for each test keeps these apart."""

    nodes: list[Node]
    vhosts: list[str] = field(default_factory=list)

    @property
    def hosts(self) -> list[str]:
        return [f"127.0.0.1:{node.port}" for node in self.nodes]

    @property
    def management_url(self) -> str:
        return f"http://127.0.0.1:{self.nodes[0].management_port}"

    def new_vhost(self) -> str:
        """Return the name of a new virtual host."""
        name = f"test-{secrets.token_hex(4)}"
        self.nodes[0].request("PUT", f"/vhosts/{name}", {})
        self.nodes[0].request("PUT", f"/permissions/{name}/{USER}", {"configure": ".*", "write": ".*", "read": ".*"})
        return name

    def queue(self, vhost: str, name: str) -> dict:
        """Return what the management API says of a queue."""
        found = self.nodes[0].request("GET", f"/queues/{vhost}/{quote(name, safe='')}")
        assert isinstance(found, dict)
        return found

    def wait_running(self, nodes: Sequence[Node] | None = None) -> None:
        """Wait until nodes see each other."""
        deadline = time.monotonic() + START_S
        wanted = self.nodes if nodes is None else nodes
        while not all(node.is_running(len(wanted)) for node in wanted):
            for node in wanted:
                if node.process is not None and node.process.poll() is not None:
                    raise AssertionError((node.folder / "console.log").read_text(errors="replace")[-3000:])
            if time.monotonic() > deadline:
                raise AssertionError(f"the brokers did not start within {START_S:g} s")
            time.sleep(0.2)


@contextlib.contextmanager
def running_cluster(folder: Path, size: int) -> Iterator[Cluster]:
    """Run a cluster of so many nodes for the duration of the block."""
    if not SERVER.exists():
        pytest.skip("rabbitmq-server is not installed")
    epmd_port, *ports = [free_port() for _ in range(1 + 3 * size)]
    (folder / "home").mkdir()
    cookie = folder / "home" / ".erlang.cookie"
    cookie.write_text(secrets.token_hex(16))
    cookie.chmod(0o400)
    names = [f"boathook{number}-{epmd_port}@localhost" for number in range(size)]
    nodes = [_node(folder / f"node{number}", names, number, ports[3 * number :], epmd_port) for number in range(size)]
    cluster = Cluster(nodes)
    try:
        for number, node in enumerate(nodes, 1):
            node.start()  # one after another: on a busy machine, nodes that start together time each other out
            cluster.wait_running(nodes[:number])
        yield cluster
    finally:
        for node in nodes:
            node.kill()
        if epmd := shutil.which("epmd"):
            kill = [epmd, "-port", str(epmd_port), "-kill"]
            subprocess.run(
                kill, check=False, capture_output=True, env={**os.environ, "ERL_EPMD_RELAXED_COMMAND_CHECK": "1"}
            )


def _node(folder: Path, names: Sequence[str], number: int, ports: Sequence[int], epmd_port: int) -> Node:
    folder.mkdir()
    port, distribution_port, management_port = ports[:3]
    lines = [
        f"listeners.tcp.1 = 127.0.0.1:{port}",
        "management.tcp.ip = 127.0.0.1",
        f"management.tcp.port = {management_port}",
        "management_agent.disable_metrics_collector = false",
        "disk_free_limit.absolute = 50MB",
        "log.file.level = warning",
        "cluster_formation.peer_discovery_backend = classic_config",
        *(f"cluster_formation.classic_config.nodes.{place} = {name}" for place, name in enumerate(names, 1)),
        "collect_statistics_interval = 1000",
    ]
    (folder / "rabbitmq.conf").write_text("\n".join(lines) + "\n")
    (folder / "plugins").write_text("[rabbitmq_management].\n")
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder.parent / "home"),
        "LANG": "C.UTF-8",
        "ERL_EPMD_PORT": str(epmd_port),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "ERL_EPMD_RELAXED_COMMAND_CHECK": "1",
        "RABBITMQ_NODENAME": names[number],
        "RABBITMQ_DIST_PORT": str(distribution_port),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1 +sbwt none +sbwtdcpu none +sbwtdio none",
        "RABBITMQ_CONF_ENV_FILE": "/dev/null",
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
        "RABBITMQ_MNESIA_BASE": str(folder / "data"),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_PID_FILE": str(folder / "pid"),
        "RABBITMQ_GENERATED_CONFIG_DIR": str(folder / "generated"),
    }
    return Node(names[number], folder, port, management_port, environment)
