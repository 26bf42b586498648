"""`boathook doctor` compares the connections that this host's processes may open with PostgreSQL's limit."""

from types import SimpleNamespace
from typing import Any

import pytest

from boathook.config import load
from boathook.delivery import handler_executor, sender
from boathook.server import interfaces
from boathook.service.database import connections_by_role
from boathook.service.operating.doctor import CheckStatus
from boathook.service.operating.doctor.database import _connections

ALL = 6 + (1 + 8 + 9) + 2 * (16 + 3) + 6 + 8
"""Supervisor, gateway with console, worker and suspects, sender, keeper: as the table in docs/how-to/scale.md."""


def health(max_connections: int) -> Any:
    return SimpleNamespace(version="15", connections=3, max_connections=max_connections)


@pytest.mark.parametrize(
    ("roles", "needed"),
    [(["gateway", "console", "worker", "keeper"], ALL), (["gateway"], 6 + 1 + 8), (["worker"], 6 + 2 * (16 + 3) + 6)],
)
def test_connections_are_counted_by_role(roles: list[str], needed: int):
    settings = load(None, {"server.roles": roles})
    found = _connections(settings, health(needed + 4))
    assert (found.verdict, f"need {needed}" in found.found) == (CheckStatus.WARN, True)
    assert _connections(settings, health(needed + 5)).verdict is CheckStatus.OK


def test_the_counts_are_the_sizes_of_the_pools():
    settings = load(None, {"database.worker_connections": 7, "server.workers": 1, "server.gateways": 1})
    needs = connections_by_role(settings)
    assert needs["sender"].most == sender.CONNECTIONS + 1
    assert needs["console"].most == interfaces.CONNECTIONS + 1
    assert needs["worker"].most == 2 * (7 + handler_executor.OWN_CONNECTIONS + 1)
