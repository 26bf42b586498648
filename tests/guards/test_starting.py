"""What processes need not import to start: each of these takes longer than much of what they do need."""

import subprocess
import sys

import pytest

HEAVY = {"alembic", "cryptography", "fastapi", "jsonschema", "jwt", "pycurl", "sqlalchemy", "typer", "uvicorn"}
ROLES = {
    "boathook": set(),
    "boathook.server.child, boathook.dispatch.worker, boathook.server.loading": set(),
    "boathook.server.child, boathook.dispatch.keeper, boathook.server.loading": {"cryptography"},
    "boathook.server.child, boathook.dispatch.sender": {"cryptography", "pycurl"},
    "boathook.server.child, boathook.server.gateway": {"cryptography", "jwt", "pycurl", "uvicorn"},
    "boathook.cli, boathook.server.supervisor": {"cryptography", "jwt", "pycurl", "typer", "uvicorn"},
}
"""Besides these, which each cannot do without."""


@pytest.mark.parametrize("modules", ROLES)
def test_nothing_is_imported_in_vain(modules: str) -> None:
    code = f"import sys, {modules}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert HEAVY.intersection(loaded) <= ROLES[modules]
