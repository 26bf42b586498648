"""Requests that a running server refuses before verification: what each interface shows of them, and what the sender sees."""

import json
import re
import socket
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from boathook.testing import sign
from tests.acceptance.conftest import BoathookProcess
from tests.support import until

SECRET = "a-secret-of-the-tests"
SOURCES = f"""
[sources.github]
secrets = ["{SECRET}"]

[sources.shop]
provider = "hmac"
secrets = ["{SECRET}"]
header = "X-Signature"
paths = ["/hooks/shop"]

[sources.calls]
provider = "twilio"
secrets = ["{SECRET}"]
public_url = "https://hooks.example.com"

[limits]
content_encodings = ["gzip"]
max_head = 4096
"""
TOKEN = "9f8a7c6b5d4e3f2a1b0c"


def speak(running: BoathookProcess, data: bytes) -> bytes:
    """Send bytes on a connection of their own; return the answer."""
    parts = urlsplit(running.base)
    with socket.create_connection((parts.hostname, parts.port), timeout=300) as client:
        client.sendall(data)
        answer = b""
        while piece := client.recv(65_536):
            answer += piece
    return answer


def push(running: BoathookProcess, path: str, size: int, key: str) -> httpx.Response:
    """Send a signed push of about *size* bytes."""
    body = json.dumps({"ref": "refs/heads/main", "text": "x" * size}).encode()
    headers = {**sign("github", SECRET, body), "x-github-event": "push", "x-github-delivery": key}
    return httpx.post(f"{running.base}{path}", content=body, headers=headers, timeout=300)


@pytest.fixture(scope="module")
def running(shared_boathook: Callable[..., BoathookProcess]) -> BoathookProcess:
    return shared_boathook(extra=SOURCES)


def rejections(running: BoathookProcess, reason: str, source: str | None) -> list[dict[str, Any]]:
    rows = running.listing("rejections", "list", "--reason", reason, "--limit", "0")
    return [row for row in rows if row["source"] == source]


def only_rejection(running: BoathookProcess, reason: str, source: str | None) -> dict[str, Any]:
    found = until(lambda: rejections(running, reason, source))
    assert len(found) == 1
    return found[0]


def test_a_provider_may_send_what_it_documents(running: BoathookProcess) -> None:
    assert push(running, "/in/github", 1_500_000, "big-1").status_code == 200
    assert push(running, "/in/github", 24_000_000, "big-2").status_code == 200
    refused = push(running, "/in/github", 27_000_000, "big-3")
    assert refused.status_code == 413
    assert refused.json().keys() == {"ok", "error", "request_id"}
    row = only_rejection(running, "body_too_large", "github")
    assert re.fullmatch(
        r"the body has 27,000,\d+ bytes; max_body is 25 MiB \(the sender's documented maximum\); "
        r"github sends up to 25 MB",
        row["detail"],
    )
    assert row["body_size"] > 27_000_000
    assert row["detail"] in running.log()


def test_an_unknown_sender_keeps_the_general_limit(running: BoathookProcess) -> None:
    assert httpx.post(f"{running.base}/in/shop", content=b"x" * 1_100_000, timeout=300).status_code == 413
    row = only_rejection(running, "body_too_large", "shop")
    assert row["detail"] == "the body has 1,100,000 bytes; max_body is 1 MiB (limits.max_body)"


def test_a_trailing_slash_is_the_same_path_and_is_signed_as_it_was_sent(running: BoathookProcess) -> None:
    assert push(running, "/in/github/", 10, "slash").status_code == 200
    body = b"CallSid=CA1&CallStatus=ringing"
    form = {"content-type": "application/x-www-form-urlencoded"}
    for path, status in (("/in/calls/", 200), ("/in/calls", 401)):
        signature = sign(
            "twilio", SECRET, body, url="https://hooks.example.com/in/calls/", content_type=form["content-type"]
        )
        answer = httpx.post(f"{running.base}{path}", content=body, headers={**signature, **form}, timeout=300)
        assert answer.status_code == status


def test_an_unknown_path_is_shown_with_a_guess_and_without_tokens(running: BoathookProcess) -> None:
    answer = httpx.post(f"{running.base}/in/GitHub/{TOKEN}?key={TOKEN}", content=b"{}", timeout=300)
    assert answer.status_code == 404
    assert "github" not in answer.text.lower()
    row = only_rejection(running, "unknown_path", None)
    assert row["detail"] == "no source has this path; it is below a source's path; did you mean /in/github"
    assert row["url"].endswith("/in/GitHub/...?key=...")
    shown = running.cli("rejections", "show", row["id"]).stdout
    assert "did you mean /in/github" in shown
    groups = running.cli("rejections", "groups").stdout
    assert "no source: 1 unknown path" in groups
    assert "boathook rejections list --reason unknown_path --state open" in groups
    until(lambda: "did you mean /in/github" in running.log())
    assert TOKEN not in running.log() + shown + json.dumps(row)
    metrics = httpx.get(f"{running.base}/metrics").text
    assert 'boathook_rejections_total{reason="unknown_path",source=""} 1' in metrics


def test_every_other_refusal_leaves_a_trace(running: BoathookProcess) -> None:
    base = running.base
    assert httpx.get(f"{base}/in/shop", timeout=300).status_code == 405
    assert httpx.post(f"{base}/hooks/shop", headers={"content-encoding": "br"}, timeout=300).status_code == 415
    head = b"POST /hooks/shop HTTP/1.1\r\nHost: a\r\n"
    assert b" 431 " in speak(running, head + b"X-Long: %s\r\n\r\n" % (b"x" * 5_000))
    assert b" 400 " in speak(running, head + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n")
    details = {
        reason: only_rejection(running, reason, "shop")["detail"]
        for reason in ("method_not_allowed", "content_encoding", "head_too_large", "request_malformed")
    }
    assert details["method_not_allowed"] == "method GET is not allowed by source shop; it accepts POST, PUT"
    assert details["content_encoding"].startswith("Content-Encoding 'br' is not accepted by source shop")


def test_a_head_cannot_be_verified_again(running: BoathookProcess) -> None:
    assert httpx.put(f"{running.base}/in/github", content=b"{}", timeout=300).status_code == 405
    row = only_rejection(running, "method_not_allowed", "github")
    done = running.cli("rejections", "reverify", row["id"], "--json", check=False)
    result = json.loads(done.stdout.splitlines()[0])
    assert result["outcome"] == "impossible"
    assert result["detail"] == "it was rejected by its head, so no body was stored; ask the sender to send it again"
