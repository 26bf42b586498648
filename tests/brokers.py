"""RabbitMQ nodes of the tests' own, with what their management API says of them."""

import contextlib
import json
import secrets
import subprocess
import time
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pytest

from boathook.domain.errors import ConfigError
from boathook_demo.rabbitmq import PASSWORD, START_S, USER, RabbitNode, running_nodes, server_program


def has_server() -> bool:
    """Return whether RabbitMQ is installed."""
    with contextlib.suppress(ConfigError):
        return server_program().exists()
    return False


@dataclass
class Cluster:
    """Nodes that know each other; a virtual host for each test keeps these apart."""

    nodes: list[RabbitNode]

    @property
    def hosts(self) -> list[str]:
        return [f"127.0.0.1:{node.port}" for node in self.nodes]

    @property
    def management_url(self) -> str:
        return f"http://127.0.0.1:{self.nodes[0].management_port}"

    def new_vhost(self) -> str:
        """Return the name of a new virtual host."""
        name = f"test-{secrets.token_hex(4)}"
        request(self.nodes[0], "PUT", f"/vhosts/{name}", {})
        request(self.nodes[0], "PUT", f"/permissions/{name}/{USER}", {"configure": ".*", "write": ".*", "read": ".*"})
        return name

    def queue(self, vhost: str, name: str) -> dict:
        """Return the management API's data of a queue."""
        found = request(self.nodes[0], "GET", f"/queues/{vhost}/{quote(name, safe='')}")
        assert isinstance(found, dict)
        return found

    def wait_running(self) -> None:
        """Wait until all nodes see each other; start one again that ends, as a service manager does.

        RabbitMQ ends if it asks a node for its feature flags that is just starting too.
        """
        deadline = time.monotonic() + START_S
        while not all(_is_running(node, len(self.nodes)) for node in self.nodes):
            ended = [node for node in self.nodes if node.process is not None and node.process.poll() is not None]
            if time.monotonic() > deadline:
                raise AssertionError("\n".join([f"the brokers did not start within {START_S:g} s", *map(_tail, ended)]))
            for node in ended:
                node.start()
            time.sleep(0.2)


def _tail(node: RabbitNode) -> str:
    return f"{node.name}: {node.log_tail()}"


def control(node: RabbitNode, *arguments: str) -> None:
    """Run rabbitmqctl on a node."""
    command = [str(server_program().with_name("rabbitmqctl")), "-n", node.name, *arguments]
    subprocess.run(command, env=node.environment, cwd=node.folder, check=True, capture_output=True, timeout=300)


def request(node: RabbitNode, method: str, path: str, body: object = None) -> object:
    """Call the management API of a node. Raises OSError."""
    request = urllib.request.Request(f"http://127.0.0.1:{node.management_port}/api{path}", method=method)
    request.add_header("authorization", "Basic " + b64encode(f"{USER}:{PASSWORD}".encode()).decode())
    if body is not None:
        request.data = json.dumps(body).encode()
        request.add_header("content-type", "application/json")
    with urllib.request.urlopen(request, timeout=60) as answer:
        text = answer.read()
    return json.loads(text) if text else None


def _is_running(node: RabbitNode, count: int) -> bool:
    """Return whether a node sees a cluster of so many running nodes."""
    try:
        found = request(node, "GET", "/nodes?columns=name,running")
    except (OSError, urllib.error.URLError, ValueError):
        return False
    return isinstance(found, list) and sum(bool(one.get("running")) for one in found) >= count


@contextlib.contextmanager
def running_cluster(folder: Path, size: int) -> Iterator[Cluster]:
    """Run a cluster of so many nodes for the duration of the block."""
    if not has_server():
        pytest.skip("rabbitmq-server is not installed")
    with running_nodes(folder, size) as nodes:
        cluster = Cluster(nodes)
        cluster.wait_running()
        yield cluster


__all__ = ["PASSWORD", "USER", "Cluster", "RabbitNode", "control", "has_server", "request", "running_cluster"]
