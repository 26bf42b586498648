"""The package on the page about optional packages works, installed beside boathook."""

import json
import os
import subprocess
import sys
import threading
import tomllib
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tests.guards.documents import ROOT, blocks

PAGE = ROOT / "docs/how-to/optional-packages.md"
MODULES = ("__init__", "settings", "gateway", "doctor", "commands", "channel")
GATEWAY = """
import asyncio
from boathook.config import load
from boathook.observability.live_metrics import LiveMetrics
from boathook.server.gateway import IngestRuntime
from boathook.server.gateway_sources import load_sources
from boathook.service.operating.doctor import packages

async def main():
    settings = load(overrides={"database.url": "postgresql://127.0.0.1:1/none"})
    runtime = IngestRuntime(settings, load_sources(settings), LiveMetrics(settings.server.data_dir), prepared=asyncio.Event())
    sent = []
    async def send(message):
        sent.append(message)
    for path in ("/pong", "/"):
        scope = {"type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": b"", "client": ("127.0.0.1", 1)}
        await runtime.app({**scope, "headers": []}, None, send)
    print([message.get("status", message.get("body", b"")[:4]) for message in sent])
    print([finding.found async for finding in packages.examine(settings, None)])

asyncio.run(main())
"""
CHANNEL = """
import asyncio
import sys
from datetime import UTC, datetime
from boathook.alerts.notifier import Notifier
from boathook.config import Settings, load
from boathook.domain.alerts import AlertMessage

async def main():
    settings = load()
    assert Settings.model_validate_json(settings.model_dump_json()).notifications == settings.notifications
    notifier = Notifier(settings)
    message = AlertMessage("ntc_1", datetime.now(UTC), (), "")
    outcome = await notifier.send("ops", message)
    print(outcome, "boathook_alert_channels" in sys.modules)
    notifier.close()

asyncio.run(main())
"""


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """Return a folder with the page's package, and its metadata as an installer writes them."""
    texts = list(blocks(PAGE))
    toml = [block.text for block in texts if block.language == "toml"]
    project = tomllib.loads(toml[0])["project"]
    package = tmp_path / "boathook_ping"
    package.mkdir()
    for name, block in zip(MODULES, (block for block in texts if block.language == "python"), strict=True):
        (package / f"{name}.py").write_text(block.text)
    (package / "defaults.toml").write_text(toml[1])
    metadata = tmp_path / "boathook_ping-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    lines = (
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in points.items())
        for group, points in project["entry-points"].items()
    )
    (metadata / "entry_points.txt").write_text("\n".join(lines))
    return tmp_path


def run(folder: Path, *command: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, text=True, capture_output=True, check=True
    ).stdout


def test_its_settings_its_gateway_and_its_diagnosis(installed: Path):
    (installed / "boathook.toml").write_text('[ping]\npath = "/pong"\n')
    statuses, findings = run(installed, "-c", GATEWAY).splitlines()
    assert statuses == "[200, b'pong', 200, b'{\"ok']"
    assert findings == "['/pong is answered']"
    assert '[ping]\npath = "/pong"\n' in run(installed, "-m", "boathook", "config", "show")


def test_its_command_is_there_whether_it_is_used_or_not(installed: Path):
    assert run(installed, "-m", "boathook", "ping") == "not used\n"
    (installed / "boathook.toml").write_text("[ping]\n")
    assert run(installed, "-m", "boathook", "ping") == "/ping\n"


def test_a_wrong_key_is_named(installed: Path):
    (installed / "boathook.toml").write_text("[ping]\npaht = '/x'\n")
    with pytest.raises(subprocess.CalledProcessError) as error:
        run(installed, "-m", "boathook", "ping")
    assert error.value.returncode == 2
    assert "ping.paht is not a setting; did you mean ping.path?" in error.value.stderr


def test_its_alert_channel(installed: Path):
    bodies: list[bytes] = []

    class Pager(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(204)
            self.end_headers()

    with HTTPServer(("127.0.0.1", 0), Pager) as pager:
        thread = threading.Thread(target=pager.handle_request)
        thread.start()
        url = f"http://127.0.0.1:{pager.server_port}/page"
        (installed / "boathook.toml").write_text(
            f'[outbound]\nallow = ["127.0.0.0/8"]\n[notifications.channels.ops]\nkind = "pager"\nurl = "{url}"\n'
        )
        assert run(installed, "-c", CHANNEL) == "Sent() False\n"
        thread.join()
    assert [json.loads(body)["id"] for body in bodies] == ["ntc_1"]
    shown = run(installed, "-m", "boathook", "config", "show")
    assert "(hidden)" in shown
    assert url not in shown
    (installed / "boathook.toml").write_text('[notifications.channels.ops]\nkind = "bell"\n')
    with pytest.raises(subprocess.CalledProcessError) as error:
        run(installed, "-m", "boathook", "config", "show")
    assert "notifications.channels.ops: kind must be one of" in error.value.stderr
    assert "'pager'" in error.value.stderr
