"""What is logged once, and the URL of a socket that listens, which logs and commands show alike."""

import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from boathook.config import load
from boathook.observability.log import OnceFilter
from boathook.server import supervisor
from boathook.service.gateway_address import gateway_url, socket_url


def test_a_subject_is_new_once_and_the_memory_is_bounded() -> None:
    once = OnceFilter(2)
    assert [once.is_new("a", "b"), once.is_new("a", "b"), once.is_new("ab"), once.is_new("a", "b")] == [
        True, False, True, False,
    ]  # fmt: skip
    assert once.is_new("c")  # it was full, so what came before is forgotten
    assert [once.is_new("c"), once.is_new("ab")] == [False, True]


@pytest.mark.parametrize(
    ("host", "shown", "reachable"),
    [
        ("127.0.0.1", "http://127.0.0.1:80", "http://127.0.0.1:80"),
        ("0.0.0.0", "http://0.0.0.0:80", "http://127.0.0.1:80"),
        ("::", "http://[::]:80", "http://[::1]:80"),
        ("fe80::1", "http://[fe80::1]:80", "http://[fe80::1]:80"),
    ],
)
def test_a_socket_has_one_url(
    host: str, shown: str, reachable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = load(None, {"server": {"data_dir": str(tmp_path)}})
    lines: list[dict[str, Any]] = []
    monkeypatch.setattr(supervisor, "_LOG", SimpleNamespace(info=lambda _event, **fields: lines.append(fields)))
    bound: Any = SimpleNamespace(getsockname=lambda: (host, 80, 0, 0), family=socket.AF_INET6)
    supervisor.log_serving(settings, bound, [], {})
    assert [line["url"] for line in lines] == [shown] == [socket_url(host, 80)]
    assert gateway_url(settings, (host, 80)) == reachable
