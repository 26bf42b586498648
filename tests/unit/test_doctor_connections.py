"""`boathook doctor` compares the connections that this host's processes may open with PostgreSQL's limit."""

from types import SimpleNamespace
from typing import Any

import pytest

from boathook.config import load
from boathook.service.doctor import CheckStatus
from boathook.service.doctor.database import _connections

ALL = 4 + (1 + 8 + 9) + 2 * (16 + 4) + 5 + 3
"""Supervisor, gateway with console, worker and suspects, sender, keeper: as the table in docs/how-to/scale.md."""


def health(max_connections: int) -> Any:
    return SimpleNamespace(version="15", connections=3, max_connections=max_connections)


@pytest.mark.parametrize(
    ("roles", "needed"),
    [(["gateway", "console", "worker", "keeper"], ALL), (["gateway"], 4 + 1 + 8), (["worker"], 4 + 2 * (16 + 4) + 5)],
)
def test_connections_are_counted_by_role(roles: list[str], needed: int):
    settings = load(None, {"server.roles": roles})
    found = _connections(settings, health(needed + 4))
    assert (found.verdict, f"need {needed}" in found.found) == (CheckStatus.WARN, True)
    assert _connections(settings, health(needed + 5)).verdict is CheckStatus.OK
