"""The commands of the quickstart, word for word, in an empty folder, with the package as it is installed."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.conftest import free_port
from tests.guards.documents import ROOT, blocks
from tests.support import until

pytestmark = pytest.mark.extended(
    "installs the wheel with its packages into an empty environment; tests/guards/test_wheel.py stays"
)

START, START_WITH_UV, SEND, LOOK, TEST = [
    block.text for block in blocks(ROOT / "docs/tutorial/quickstart.md") if block.language == "sh"
][:5]
SHOWN = (
    r"console  http://127.0.0.1:\d+/console/sign-in/link\?token=",
    r"source   http://127.0.0.1:\d+/in/stripe -> shop.record_payment",
    r"(?s)(stripe payment_intent.succeeded -> shop.record_payment  ok  [\d.]+ ms.*){2}",
    r"stripe invoice.paid -> no handler  stored",
)
INHERITED = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith(("PYTHON", "VIRTUAL_ENV", "BOATHOOK", "PIP_", "UV_"))
}


@pytest.fixture(scope="module")
def environment() -> Iterator[dict[str, str]]:
    """Variables by which pip and uv install from a folder: the wheel of this clone, and the locked packages."""
    folder = Path(tempfile.mkdtemp(prefix="boathook-quickstart-"))
    folder.chmod(0o755)
    pip = [sys.executable, "-m", "pip", "--no-input", "--disable-pip-version-check", "download", "--no-deps"]
    for command in (
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        [*pip, "--require-hashes", "-r", "requirements/run.lock", "-d", str(folder)],
    ):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    yield {
        **INHERITED,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(folder),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "UV_NO_INDEX": "1",
        "UV_FIND_LINKS": str(folder),
        "UV_PYTHON": sys.executable,
        "UV_PYTHON_DOWNLOADS": "never",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "BOATHOOK_BIND": f"127.0.0.1:{free_port()}",
    }
    shutil.rmtree(folder)


@pytest.fixture
def folder() -> Iterator[Path]:
    """An empty folder that PostgreSQL's account can enter, unlike pytest's own when root runs the tests."""
    folder = Path(tempfile.mkdtemp(prefix="boathook-quickstart-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("start", "prefix"),
    [
        (START, ". .venv/bin/activate\n"),
        (START_WITH_UV, 'boathook() { uvx --from "boathook[embedded]" boathook "$@"; }\n'),
    ],
    ids=["pip", "uvx"],
)
def test_the_commands_work_as_they_are_written(
    environment: dict[str, str], folder: Path, start: str, prefix: str, capsys: pytest.CaptureFixture[str]
):
    began = time.monotonic()
    with (folder / ".first-terminal").open("wb") as output:
        first = subprocess.Popen(
            ["sh", "-ec", start], cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip

    def shown() -> str:
        return (folder / ".first-terminal").read_text()

    def second(script: str) -> str:
        done = subprocess.run(
            ["sh", "-ec", prefix + script], cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}\n{shown()}"
        return done.stdout

    try:
        until(lambda: "ready after" in shown() or first.poll() is not None, timeout=900)
        assert first.poll() is None, shown()
        started_s = time.monotonic() - began
        second(SEND)
        for pattern in SHOWN:
            until(lambda: re.search(pattern, shown()))  # noqa: B023 - called at once
        lasted_s = time.monotonic() - began
        assert "the store is consistent" in second(LOOK)
        second(TEST)
    finally:
        if first.poll() is None:
            os.killpg(first.pid, signal.SIGINT)
            first.wait(60)
    with capsys.disabled():
        sys.stdout.write(f"\nquickstart: ready after {started_s:.0f} s, handlers had run after {lasted_s:.0f} s\n")
