"""The official Python client, in old and new versions, uses every resource of a running server.

Each version runs in a process and an organization of its own. `sdk_driver.py` prints facts; what they must be is said
here once for all of them. The clients of other languages are tested in `test_official_clients.py`.

To pin another Python version: add it to `VERSIONS` and write its lock file with ``echo svix==X | uv pip compile
--universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate --no-header - -o
requirements/svix-X.lock``.
"""

import fcntl
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.svix.receiver import Answer, Received, Receiver
from tests.acceptance.svix.scenario import METHODS, current_name
from tests.acceptance.svix.server import BoathookServer

HERE = Path(__file__).parent
ROOT = Path(__file__).parents[3]
VERSIONS = ("1.62.0", "1.84.1", "2.0.0")
"""Besides the newest that the lock file of development names."""

INVOICES = ["invoice.paid", "invoice.voided"]
NOT_FOUND = [404, "not_found"]
EXPUNGED = {"expired": True}
FACTS: dict[str, Any] = {
    "health": None,
    "type.created": ["invoice.paid", "Paid", False, False, True],
    "type.conflict": 409,
    "type.listed": [*INVOICES, "old.thing"],
    "type.page": [["invoice.paid"], True, False, "invoice.paid"],
    "type.got": "invoices",
    "type.put": "Older",
    "type.patched": ["Older", True],
    "type.archived": True,
    "type.listed without archived": INVOICES,
    "type.listed with archived": [*INVOICES, "old.thing"],
    "type.expunged": NOT_FOUND,
    "type.imported": [["parcel.sent"], "A parcel left"],
    "app.created": ["app", "Shop", "shop", 50, {"plan": "gold"}],
    "app.got or created": [True, "Shop"],
    "app.conflict": [409, "conflict"],
    "app.got": [True, True],
    "app.page": [["shop"], False, True],
    "app.rest": [["fresh"], True],
    "app.descending": ["fresh", "shop"],
    "app.bad limit": 422,
    "app.put": [True, "Renamed", None, {}],
    "app.patched": ["Renamed", "shop", {"plan": "silver"}, True],
    "app.deleted": NOT_FOUND,
    "app.empty name": [422, ["body", "name"]],
    "ep.created": ["ep", "good", True, "All is well", ["invoice.paid"], ["blue"], 100, {"a": "b"}, False],
    "ep.headers on create": {"X-Shop": "one"},
    "ep.got": [True, True],
    "ep.put": [True, "", None, None],
    "ep.patched": ["Still well", ["invoice.paid"], None],
    "ep.cleared": ["Still well", None],
    "ep.headers set": [{"X-Shop": "two"}, ["Authorization"]],
    "ep.headers patched": {"X-Shop": "two", "X-More": "3"},
    "ep.headers removed": {"X-Shop": "two"},
    "ep.forbidden header": 422,
    "ep.rotated": [True, True, True],
    "ep.listed": [["bad", "good"], True],
    "ep.deleted": NOT_FOUND,
    "ep.bad url": 422,
    "msg.created": ["msg", "invoice.paid", {"amount": 7}, "evt-1", ["blue"]],
    "msg.conflict": 409,
    "msg.idempotent": [True, True],
    "msg.without content": {},
    "msg.listed": [["parcel.sent", {"n": 1}], ["invoice.voided", {"amount": 8}], ["invoice.paid", {"amount": 7}]],
    "msg.filtered": [{"amount": 7}],
    "msg.got": [{"amount": 7}, True],
    "msg.unknown app": NOT_FOUND,
    "msg.precheck": True,
    "attempt.failed": ["atmpt", 2, 500, "broken", 0, True, True, True],
    "attempt.succeeded": [200, "thanks", True, True],
    "attempt.by code class": 3,
    "attempt.got": [True, 0],
    "attempt.messages": [[0, 0, 0], [2, 2, 2]],
    "attempt.destinations": [["good", 0], ["bad", 2]],
    "attempt.destinations done": True,
    "attempt.expunged": "EXPUNGED",
    "attempt.resent": 1,
    "ep.stats": [4, 0, 0, 0],
    "ep.stats of failures": [0, 9, 0, 0],
    "ep.attempt stats": [4, 0, 0],
    "ep.example": ["invoice.paid", {"amount": 5}],
    "ep.recover": ["qtask", "endpoint.recover", "finished"],
    "ep.recovered": [0, 0, 0],
    "ep.replay missing": ["endpoint.replay", "finished"],
    "ep.bulk replay": ["endpoint.bulk-replay", "finished"],
    "ep.recover too old": 422,
    "ops.created": ["ops", "Ops", ["endpoint.created"]],
    "ops.put": [True, ""],
    "ops.got": [True, ["ops"]],
    "ops.headers": {"X-Ops": "1"},
    "ops.deleted": NOT_FOUND,
    "stats.types": ["event-type.aggregate", "finished"],
    "stats.usage": ["application.stats", ["nobody"], "finished"],
    "task.listed": ["application.stats", "endpoint.recover", "endpoint.replay", "event-type.aggregate"],
    "task.filtered": ["endpoint.recover"],
    "task.unknown": NOT_FOUND,
    "env.exported": ["invoice.paid", "invoice.voided", "parcel.sent"],
    "env.imported": "Imported",
    "auth.portal": True,
    "auth.guest": [True, NOT_FOUND, 403, 403],
    "auth.logged out": [401, "authentication_failed"],
    "auth.again": True,
    "auth.expired": 401,
    "auth.nonsense": [401, "authentication_failed"],
    "auth.dashboard": True,
    "msg.expunged": EXPUNGED,
    "msg.resend expunged": 400,
    "msg.bulk expunged": {"second": "expunged", "nothing": "not-found"},
    "msg.all expunged": ["application.purge_content", "finished", EXPUNGED],
}

LATER = {
    "health": (2, 0),
    "ep.headers removed": (1, 63),
    "msg.precheck": (2, 0),
    "ep.attempt stats": (2, 6),
    "ep.bulk replay": (2, 0),
    "env.exported": (1, 63),
    "env.imported": (1, 63),
    "msg.bulk expunged": (2, 1),
}
"""Facts that only later versions can ask for, with the first of ours that does."""
GONE = {"auth.dashboard": (2, 0)}


def folder_of(version: str, shared: Path) -> Path:
    """Install one version with its dependencies, once for all xdist processes."""
    folder = shared / f"svix-{version}"
    lock = ROOT / "requirements" / f"svix-{version}.lock"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check"]
    with (shared / f"svix-{version}.busy").open("w") as busy:
        fcntl.flock(busy, fcntl.LOCK_EX)
        if not (folder / "svix").exists():
            done = subprocess.run(
                [*pip, "--no-deps", "--no-compile", "--require-hashes", "--requirement", lock, "--target", folder],
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            )
            assert done.returncode == 0, f"{lock.name} could not be installed: {done.stderr[-2000:]}"
    return folder


class Run:
    """One client's run through the API, and the requests its receivers got."""

    def __init__(self, server: BoathookServer, receiver: Receiver, name: str) -> None:
        self.good = receiver.mailbox()
        self.ops = receiver.mailbox()
        self.task = {
            "base": server.base,
            "token": server.make_key(f"sdk-{name}"),
            "good": self.good.url,
            "bad": receiver.mailbox(Answer(500, b"broken")).url,
            "ops": self.ops.url,
        }
        self.report: dict[str, Any] = {}

    def go(self, *command: str, cwd: Path = HERE, **more: str) -> dict[str, Any]:
        done = subprocess.run(
            [*command, json.dumps(self.task | more)],
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        self.report = json.loads(done.stdout)
        return self.report

    def judge_receivers(self) -> None:
        """Check that received messages are signed with the keys given to the client."""
        old, new = self.report["secrets"]["good"]
        first: Received = next(r for r in self.good.received if r.header("x-shop") == "two")
        assert first.header("authorization") == "Bearer k"
        assert first.is_signed_by(old), "the old key signs along after a rotation"
        assert first.is_signed_by(new)
        told = self.ops.wait()[0]
        assert told.is_signed_by(self.report["secrets"]["ops"][0])
        assert told.json["type"] == "endpoint.created"
        assert told.json["data"]["appUid"] == "shop"
        assert told.json["data"]["endpointUid"] == "announced"
        assert told.header("x-ops") == "1"


def judge(report: dict[str, Any], version: tuple[int, int]) -> None:
    assert report["trouble"] == ""
    wanted = {
        name: value
        for name, value in FACTS.items()
        if LATER.get(name, version) <= version < GONE.get(name, (99, 0))
    }  # fmt: skip
    assert report["facts"] == wanted
    served = {name for name in report["offered"] if METHODS[current_name(name)].is_served}
    assert served - set(report["called"]) == set(), "methods that were not tried"


@pytest.mark.extended("installs older versions of the client; the newest stays")
@pytest.mark.parametrize("version", VERSIONS)
def test_a_pinned_python_client_works_unchanged(version, server, receiver, run_id):
    shared = Path(tempfile.gettempdir()) / f"boathook-tests-{run_id}"
    shared.mkdir(exist_ok=True)
    folder = folder_of(version, shared)
    run = Run(server, receiver, f"python-{version}")
    report = run.go(sys.executable, "-S", str(HERE / "sdk_driver.py"), folder=str(folder))
    assert Path(report["module"]).is_relative_to(folder)
    judge(report, tuple(map(int, version.split(".")[:2])))
    run.judge_receivers()


@pytest.mark.extended("the client that all tests of this folder use is as good")
def test_the_newest_python_client_works_unchanged(server, receiver):
    run = Run(server, receiver, "python-newest")
    judge(run.go(sys.executable, str(HERE / "sdk_driver.py"), folder=""), (98, 0))
    run.judge_receivers()
