"""A package imports only packages below it: the contracts are in pyproject.toml, and planted violations break them."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.guards.documents import SOURCES
from tests.support import sampled

ROOT = Path(__file__).parents[2]
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]

VIOLATIONS = {
    "upward import": ("layers", "domain/model.py", "import boathook.db.database"),
    "import between siblings": ("layers", "ingest/intake.py", "import boathook.delivery.dispatcher"),
    "upward import inside a function": (
        "layers",
        "config/reading.py",
        "def sneak():\n    import boathook.db.database",
    ),
    "a package that is not in the plan": ("layers", "utils.py", "import os"),
    "the driver outside db": ("driver", "ingest/intake.py", "import asyncpg"),
    "the AMQP client outside its package": ("amqp-client", "ingest/intake.py", "import aio_pika"),
    "the Redis client outside its package": ("redis-client", "ingest/source_rate.py", "import redis.asyncio"),
    "boathook importing an optional package": (
        "packages-outside",
        "server/odd.py",
        "def sneak():\n    import boathook_rabbitmq.gateway",
    ),
    "the portal importing the console's own pages": (
        "packages-apart",
        "boathook_portal/odd.py",
        "import boathook_console.routes",
    ),
    "a shared page importing the console's own pages": (
        "shared-pages",
        "boathook_console/shared/odd.py",
        "import boathook_console.routes",
    ),
    "an optional package importing another": (
        "packages-apart",
        "boathook_redis/odd.py",
        "import boathook_rabbitmq.access",
    ),
    "OpenTelemetry outside its package": ("otel-library", "observability/odd.py", "import opentelemetry.trace"),
    "an HTTP client outside http_client": ("http-client", "handlers/api.py", "import httpx"),
    "the ASGI toolkit outside the interfaces": ("asgi-toolkit", "db/database.py", "import starlette"),
    "ingest reaching handlers": ("ingest-apart", "ingest/intake.py", "import boathook.handlers.api"),
    "a route reaching past the service layer": ("api-service", "api/messages.py", "import boathook.db.messages"),
    "a page reaching past the service layer": (
        "console-service",
        "boathook_console/events.py",
        "import boathook.db.events",
    ),
    "the portal reaching past the service layer": (
        "console-service",
        "boathook_portal/pages.py",
        "import boathook.db.events",
    ),
    "an interface importing another": ("pages-below", "boathook_pages/user_webhooks/odd.py", "import boathook.api.app"),
    "texts importing pages": ("pages-layers", "boathook_pages/languages/odd.py", "import boathook_pages.kit.site"),
    "a third party in the domain": ("plain-domain", "domain/ids.py", "import pydantic"),
    "a clock in the domain": ("plain-domain", "domain/policy.py", "import time"),
    "an internal import through the root": ("no-root-imports", "delivery/dispatcher.py", "from boathook import Ignore"),
    "WebSockets outside http": ("sockets", "server/interfaces.py", "import websockets"),
    "an app reaching past the public root": ("apps-outside", "boathook_billing/odd.py", "import boathook.db.database"),
    "a command reaching past service": ("cli-service", "cli/odd.py", "def sneak():\n    import boathook.db.database"),
    "who may do what resting on what operators do": (
        "service",
        "service/access/odd.py",
        "import boathook.service.operating.tasks",
    ),
    "the benchmarks in the package": ("benchmarks-outside", "service/odd.py", "import benchmarks.load"),
    "an app importing another": ("distributions", "boathook_billing/odd.py", "import boathook_fleet.settings"),
    "boathook importing an app": ("distributions", "cli/odd.py", "import boathook_billing.settings"),
    "the page kit reaching for the service layer": (
        "page-kit",
        "boathook_pages/kit/odd.py",
        "import boathook.service.unit_of_work",
    ),
    "the MCP library outside its package": ("mcp-library", "service/odd.py", "import mcp.server"),
    "a tool reaching past the service layer": ("mcp-service", "boathook_mcp/odd.py", "import boathook.db.events"),
    "two modules in a circle": ("no-cycles", "domain/policy.py", "import boathook.domain.model"),
}


def lint(tree: Path) -> subprocess.CompletedProcess[str]:
    code = "import sys; sys.path.insert(0, 'src'); from importlinter.cli import lint_imports_command; lint_imports_command()"
    return subprocess.run(
        [sys.executable, "-c", code, "--no-logo", "--no-cache"], cwd=tree, text=True, capture_output=True, check=False
    )


def broken(result: subprocess.CompletedProcess[str]) -> set[str]:
    """Return the ids of the contracts that *result* reports as broken."""
    flat = re.sub(r"\s+", " ", result.stdout)
    return {contract["id"] for contract in CONTRACTS if f"{contract['name']} BROKEN" in flat}


def copy_of_the_code(folder: Path) -> Path:
    for source in SOURCES:
        shutil.copytree(source, folder / "src", ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def test_the_code_keeps_every_contract():
    result = lint(ROOT)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("violation", sampled(VIOLATIONS, keep=1))
def test_a_planted_violation_is_caught(violation, tmp_path):
    contract, file, code = VIOLATIONS[violation]
    tree = copy_of_the_code(tmp_path)
    planted = tree / "src" / (file if file.startswith("boathook_") else f"boathook/{file}")
    planted.write_text((planted.read_text() if planted.exists() else "") + f"\n{code}\n")
    result = lint(tree)
    assert contract in broken(result), result.stdout + result.stderr


def test_each_contract_has_a_violation_that_proves_it():
    assert {contract for contract, _, _ in VIOLATIONS.values()} == {contract["id"] for contract in CONTRACTS}


def test_the_architecture_page_draws_the_same_layers():
    page = (ROOT / "docs/explanation/architecture.md").read_text()
    drawn = re.search(r"```text layers\n(.*?)```", page, re.DOTALL)
    assert drawn is not None
    checked = [re.sub(r"[()]", "", layer) for layer in CONTRACTS[0]["layers"]]
    assert [re.split(r"\s{2,}", line.strip())[0] for line in drawn[1].strip().splitlines()] == checked
