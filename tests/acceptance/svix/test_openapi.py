"""schemathesis tests the served OpenAPI document with valid and invalid requests.

Every path names real objects of an organization made for it, so that requests reach the handlers. The seed is in the
command line that a failure shows.
"""

import http.server
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.acceptance.svix.server import SUCCESS, Api, Application

SEED = int(os.environ.get("BOATHOOK_TEST_SEED", "20260325"))
"""What a run found can be repeated with it; another one tries other values."""
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "unsupported_method",
    "ignored_auth",
)
ENDS_THE_SESSION = ("/auth/logout", "/auth/app/{app_id}/expire-all")
TAKES_AWAY = r"^v1\.(application|endpoint|event-type|operational-webhook\.endpoint)\.delete$"


class ApiObjects:
    """Existing objects whose ids fill the path parameters."""

    def __init__(self, server, receiver, organization: str) -> None:
        self.api = Api(server.base, server.make_key(organization))
        app = Application(self.api, uid="objects")
        self.api.post("/event-type", {"name": "objects.type", "description": "x"}, expect=201)
        endpoint = app.endpoint(receiver.mailbox(), uid="one")
        message = app.send(eventId="first")
        app.wait_status(message, endpoint, SUCCESS)
        since = app.api.get(f"{app.path}/msg/{message}")["timestamp"]
        task = self.api.post(f"{app.path}/endpoint/one/recover", {"since": since}, expect=202)["id"]
        operational = self.api.post("/operational-webhook/endpoint", {"url": receiver.mailbox().url}, expect=201)
        self.parts = {
            "app_id": app.id,
            "endpoint_id": endpoint["id"],
            "msg_id": message,
            "attempt_id": app.attempts(endpoint)[0]["id"],
            "event_type_name": "objects.type",
            "task_id": task,
            "event_id": message,
            "delivery_id": f"{message.replace('msg_', 'dlv_')}_0",
            "rejection_id": message.replace("msg_", "rej_"),
            "conflict_id": message.replace("msg_", "cfl_"),
            "job_id": self.api.post("/event/bulk-replay", {"type": "none"}, expect=202)["job"],
        }
        self.operational = operational["id"]

    def configuration(self, folder: Path) -> Path:
        """Write schemathesis' own configuration, and return its path."""
        parts = "\n".join(f'"path.{name}" = "{value}"' for name, value in self.parts.items())
        file = folder / "schemathesis.toml"
        file.write_text(
            f'headers = {{ Authorization = "Bearer {self.api.token}" }}\n'
            f"[parameters]\n{parts}\n"
            '[[operations]]\ninclude-path-regex = "operational-webhook"\n'
            f'[operations.parameters]\n"path.endpoint_id" = "{self.operational}"\n'
        )
        return file


def run(
    base: str, objects: ApiObjects, folder: Path, *more: str, timeout_s: float = 800
) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "schemathesis.cli",
        "--config-file",
        str(objects.configuration(folder)),
        "run",
        f"{base}/api/v1/openapi.json",
        "--url",
        base,
        "--checks",
        ",".join(CHECKS),
        "--seed",
        str(SEED),
        "--continue-on-failure",
        "--no-color",
        *more,
    ]
    return subprocess.run(
        command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s, check=False
    )


def judge(done: subprocess.CompletedProcess[str], log: str) -> None:
    assert done.returncode == 0, f"seed {SEED}\n{done.stdout[-15_000:]}\n{done.stderr[-2000:]}"
    assert "Traceback" not in log


@pytest.mark.extended("tries every operation of the API with generated requests")
def test_every_response_matches_the_document(server, receiver, tmp_path):
    objects = ApiObjects(server, receiver, "schemathesis")
    left_out = [part for path in ENDS_THE_SESSION for part in ("--exclude-path", f"/api/v1{path}")]
    done = run(
        server.base, objects, tmp_path,
        "--phases", "examples,coverage,fuzzing", "--max-examples", "4", "--no-shrink",
        "--exclude-operation-id-regex", TAKES_AWAY, *left_out,
    )  # fmt: skip
    judge(done, server.running.log())
    selected, total = map(int, re.search(r"(\d+) selected / (\d+) total", done.stdout).groups())
    assert selected >= total - 6, "only what ends the session or takes the objects away is left out"
    assert f"Tested: {selected}" in done.stdout


@pytest.mark.soak
@pytest.mark.timeout(1_000)
def test_every_response_matches_the_document_in_a_long_run(server, receiver, tmp_path):
    objects = ApiObjects(server, receiver, "schemathesis-soak")
    done = run(
        server.base,
        objects,
        tmp_path,
        "--phases",
        "examples,coverage,fuzzing,stateful",
        "--max-time",
        "600",
        timeout_s=900,
    )
    judge(done, server.running.log())


@pytest.mark.extended("tries every operation of the API with generated requests")
def test_a_wrong_response_is_detected(server, receiver, tmp_path):
    """The mutant: a proxy that leaves a required field out of one answer."""
    objects = ApiObjects(server, receiver, "schemathesis-mutant")

    class Proxy(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            headers = {"authorization": self.headers.get("authorization", "")}
            answer = httpx.get(server.base + self.path, headers=headers)
            body: Any = answer.json()
            if answer.status_code == 200 and "openapi" not in self.path:
                del body["createdAt"]
            text = json.dumps(body).encode()
            self.send_response(answer.status_code)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as proxy_server:
        thread = threading.Thread(target=proxy_server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        base = f"http://127.0.0.1:{proxy_server.server_address[1]}"
        done = run(
            base, objects, tmp_path,
            "--phases", "fuzzing", "--max-examples", "2", "--no-shrink", "--mode", "positive",
            "--include-path", "/api/v1/app/{app_id}", "--include-method", "GET",
        )  # fmt: skip
        proxy_server.shutdown()
    assert done.returncode == 1
    assert "createdAt" in done.stdout


def test_the_document_has_a_summary_and_examples_for_each_operation(server):
    document = httpx.get(f"{server.base}/api/v1/openapi.json").json()
    assert document["openapi"].startswith("3.")
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            name = f"{method} {path}"
            assert operation.get("summary"), name
            assert operation.get("operationId"), name
            assert any(status.startswith("2") for status in operation["responses"]), name


@pytest.mark.parametrize("text", ["? " * 50_000, "? " * 30_000, "[" * 250_000, "[" * 60_000])
def test_a_hostile_document_does_not_end_the_gateway(server, api, text):
    """The mutant is in tests/unit/test_openapi.py: without the bounds the process ends with SIGSEGV."""
    before = [child.pid for child in server.running.children("gateway")]
    body = {"specRaw": text}
    refused = api.post("/event-type/import/openapi", body, expect=422)
    assert refused["detail"][0]["loc"] == ["body", "specRaw"]
    assert [child.pid for child in server.running.children("gateway")] == before
