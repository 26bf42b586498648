"""Starts RabbitMQ nodes from the distribution's package, on free ports of loopback and with all files in one folder."""

import contextlib
import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from boathook.domain.errors import BoathookError, ConfigError

USER: Final = "guest"
PASSWORD: Final = "guest"  # noqa: S105 - RabbitMQ's own default, which it accepts on loopback only
VHOST: Final = "/"
START_S: Final = 600.0
"""How long a node may take to start; a quiet machine needs 10 s."""
PACKAGED: Final = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
"""The program itself; the one on the path of Debian and Fedora changes to a system account first."""
_POLL_S: Final = 0.2
_ANSWER_S: Final = 5.0
_PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"
_METHOD_FRAME: Final = b"\x01"
_EPMD_PORT: Final = "epmd-port"
_PORTS: Final = 20_000, 32_000


@dataclass
class RabbitNode:
    """One node of a cluster."""

    name: str
    folder: Path
    port: int
    management_port: int
    environment: dict[str, str]
    process: subprocess.Popen[bytes] | None = None

    @property
    def host(self) -> tuple[str, int]:
        """Where clients connect."""
        return "127.0.0.1", self.port

    @property
    def log(self) -> Path:
        """The file with the output of its processes."""
        return self.folder / "console.log"

    def start(self) -> None:
        """Start it; it accepts connections some seconds later."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [str(server_program())],
                env=self.environment,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd=self.folder,
                start_new_session=True,
            )

    def is_ready(self) -> bool:
        """Return whether it accepts connections, which it does once it has joined its cluster."""
        try:
            with socket.create_connection(self.host, timeout=_ANSWER_S) as connection:
                connection.sendall(_PROTOCOL_HEADER)
                return connection.recv(1) == _METHOD_FRAME
        except OSError:
            return False

    def wait_until_ready(self) -> None:
        """Wait until it accepts connections.

        Raises:
            BoathookError: it ended, or took too long; the message contains the end of its log.
        """
        assert self.process is not None
        deadline = time.monotonic() + START_S
        while not self.is_ready():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise BoathookError(f"RabbitMQ does not start:\n{self.log_tail()}")
            time.sleep(_POLL_S)

    def log_tail(self) -> str:
        """Return the end of its log."""
        return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:])

    def kill(self) -> None:
        """End it without warning."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None


def server_program() -> Path:
    """Return the program that runs a node.

    Raises:
        ConfigError: RabbitMQ is not installed.
    """
    if PACKAGED.exists():
        return PACKAGED
    if path := shutil.which("rabbitmq-server"):
        return Path(path)
    raise ConfigError("rabbitmq-server is not installed; install it, for example by: apt-get install rabbitmq-server")


def require() -> None:
    """Check that a broker can be started and used.

    Raises:
        ConfigError: RabbitMQ, or boathook's extra for it, is not installed.
    """
    server_program()
    if find_spec("aio_pika") is None:
        raise ConfigError("RabbitMQ needs more: pip install 'boathook[rabbitmq]'")


@contextlib.contextmanager
def running_nodes(folder: Path, size: int) -> Iterator[list[RabbitNode]]:
    """Run a cluster of *size* nodes in a new *folder* until the block ends.

    Raises:
        ConfigError: RabbitMQ is not installed.
        BoathookError: a node does not start.
    """
    server_program()
    epmd_port, *ports = _free_ports(1 + 3 * size)
    home = folder / "home"
    home.mkdir(parents=True)
    (folder / _EPMD_PORT).write_text(str(epmd_port))
    cookie = home / ".erlang.cookie"
    cookie.write_text(secrets.token_hex(16))
    cookie.chmod(0o400)
    names = [f"boathook{number}-{epmd_port}@localhost" for number in range(size)]
    nodes = [_node(folder / f"node{number}", names, number, ports[3 * number :], epmd_port) for number in range(size)]
    try:
        for node in nodes:
            node.start()
            node.wait_until_ready()  # on a busy machine, nodes that start together time each other out
        yield nodes
    finally:
        for node in nodes:
            node.kill()
        _end_epmd(folder)


def end_left_over(folder: Path) -> None:
    """End the nodes that a killed process has left running in *folder*."""
    for file in folder.glob("node*/pid"):
        with contextlib.suppress(OSError, ValueError):
            pid = int(file.read_text())
            # The number may belong to another process by now.
            if os.fsencode(file.parent) in Path(f"/proc/{pid}/environ").read_bytes():
                os.killpg(os.getpgid(pid), signal.SIGKILL)
    _end_epmd(folder)


def _end_epmd(folder: Path) -> None:
    """End the name server that the first node has started, which outlives all nodes."""
    port = folder / _EPMD_PORT
    if port.exists() and (program := shutil.which("epmd")):
        environment = {**os.environ, "ERL_EPMD_RELAXED_COMMAND_CHECK": "1"}
        command = [program, "-port", port.read_text(), "-kill"]
        subprocess.run(command, check=False, capture_output=True, env=environment)


def _free_ports(count: int) -> list[int]:
    """Return ports without a listener, below those that Linux gives to outgoing connections.

    A node takes its ports seconds later: one of the others would by then be the near end of some connection.
    """
    ports: list[int] = []
    with contextlib.ExitStack() as stack:
        for port in random.sample(range(*_PORTS), k=_PORTS[1] - _PORTS[0]):
            probe = stack.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                ports.append(port)
            if len(ports) == count:
                return ports
    raise BoathookError(f"no {count} free ports between {_PORTS[0]} and {_PORTS[1]}")


def _node(folder: Path, names: Sequence[str], number: int, ports: Sequence[int], epmd_port: int) -> RabbitNode:
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
    return RabbitNode(names[number], folder, port, management_port, environment)
