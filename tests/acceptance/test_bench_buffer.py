"""Benchmarks with several hosts run on real brokers and gateways, and name missing programs."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import run
from benchmarks.gateways import HOSTS
from boathook.domain.errors import ConfigError
from boathook_demo import rabbitmq
from tests.brokers import has_server

ROOT = Path(__file__).parents[2]


def measure(name: str) -> dict[str, Any]:
    """Return the command's output."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", name, "--seconds", "0.5", "--json"],
        cwd=ROOT,
        env={key: value for key, value in os.environ.items() if not key.startswith("BOATHOOK_")},
        capture_output=True,
        text=True,
        check=False,
        timeout=840,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.extended("starts several servers of its own")
@pytest.mark.skipif(not has_server(), reason="rabbitmq-server is not installed")
def test_brokers_and_the_spool_are_measured_in_one_run():
    found = measure("buffer")
    assert found["brokers"] in {1, 3}
    for kind in ("rabbitmq", "spool"):
        # Not what PostgreSQL uses to drain so few events: that may be less than a tick of its clock.
        for figure in ("per_s", "drained_per_s", "straight_per_s", "gateway_us", "straight_postgres_us"):
            assert found[f"{kind}_{figure}"] > 0, figure
    assert found["rabbitmq_brokers_us"] > 0
    assert "spool_brokers_us" not in found
    assert "rabbitmq_postgres_us" not in found, "PostgreSQL is stopped while events are taken in"
    assert {"ratio_to_spool", "drain_to_spool", "drain_to_straight"} <= found.keys()


@pytest.mark.extended("starts several servers of its own")
def test_each_number_of_gateways_is_measured():
    found = measure("gateways")
    for hosts in HOSTS:
        for figure in ("gateway_us", "postgres_us", "events_per_s"):
            assert found[f"{figure}_{hosts}"] > 0, figure
    assert {"gateway_us_4_to_1", "postgres_us_4_to_1"} <= found.keys()


@pytest.mark.extended("starts several servers of its own")
def test_events_of_another_cell_are_measured():
    found = measure("cells")
    assert 0 <= found["spooled_share"] < 1
    for figure in (
        "forwarded_to_direct",
        "gateways_us_forwarded",
        "postgres_us_forwarded",
        "own_p99_ms_beside_hanging",
    ):
        assert found[figure] > 0, figure


@pytest.mark.extended("starts several servers of its own")
@pytest.mark.skipif(not has_server(), reason="rabbitmq-server is not installed")
def test_the_figures_of_the_capacity_page_are_measured():
    committed = json.loads((ROOT / "benchmarks/capacity.json").read_text())
    found = measure("capacity")
    assert found.keys() == committed.keys()
    # Unlike processor time, bytes are nearly the same on each machine; short runs share fewer pages.
    for figure in ("in_log_bytes", "in_stored_bytes", "out_log_bytes", "out_stored_bytes"):
        assert committed[figure] / 2 < found[figure] < committed[figure] * 2, figure


@pytest.mark.parametrize("name", ["buffer", "capacity", "lane"])
def test_missing_rabbitmq_error_says_what_to_install(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(rabbitmq, "PACKAGED", tmp_path / "missing")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="apt-get install rabbitmq-server"):
        run(name, seconds=0.5, events=0, database_url="")
