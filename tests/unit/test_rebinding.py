"""DNS rebinding: a hostile name server in its own network, and no packet to a denied address."""

import functools
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import sampled

ROOT = Path(__file__).parent.parent.parent
UNSHARE = ("unshare", "--mount", "--net")


@functools.cache
def why_not():
    probe = [*UNSHARE, "mount", "--bind", "/etc/hosts", "/etc/resolv.conf"]
    try:
        tried = subprocess.run(probe, check=False, capture_output=True, text=True)
    except OSError as error:
        return str(error)
    return tried.stderr.strip() if tried.returncode else ""


def run_in_network(mode):
    if why_not():
        pytest.skip(f"a network of its own needs root: {why_not()}")
    environment = {"PYTHONPATH": str(ROOT / "src"), "PATH": "/usr/bin:/bin:/usr/sbin:/sbin"}
    command = [*UNSHARE, sys.executable, "-m", "tests.unit.rebinding_network", mode]
    network = subprocess.run(
        command, check=False, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300
    )
    assert network.returncode == 0, network.stderr
    return json.loads(network.stdout.splitlines()[-1])


@pytest.mark.parametrize("mode", sampled(["guarded", "gate"], keep=1))
def test_no_packet_goes_to_a_denied_address(mode):
    results = run_in_network(mode)
    assert results["syns"] == {}
    blocked = ["BLOCKED"] * 3
    expected = {
        "steady.test": ["200"] * 3,
        "rebind.test": ["200", "BLOCKED", "BLOCKED"],
        "cname.test": blocked,
        "six.test": blocked,
        "late.test": ["DNS", "BLOCKED", "BLOCKED"],
        "mapped.test": blocked,
        "translated.test": blocked,
        "zero.test": blocked,
        # A name whose servers are silent delays no other request.
        "silent.test": ["TIMEOUT"],
        "beside silent.test": ["200"],
        "is silent.test waited for meanwhile": ["True"],
    }
    if mode == "guarded":
        # Where only the gate is left, the good address may be dialled before the bad one comes up.
        expected |= {"mixed.test": blocked, "mixed2.test": blocked, "split.test": blocked}
    assert {name: results["seen"][name] for name in expected} == expected


@pytest.mark.extended("the mutant of a test that stays: it shows that the test can fail")
def test_mutant_without_the_guard_packets_reach_denied_addresses():
    syns = run_in_network("unguarded")["syns"]
    assert syns["127.0.0.9"] >= 3
    assert syns["::1"] >= 1
