"""Handshakes, replies and refusals as senders see them: spoken over real sockets to a gateway without a database."""

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from boathook.testing import make_keys, signed_request
from tests.providers.request_factory import base64_mac, hex_mac
from tests.support import until

GATEWAY_PROCESS = Path(__file__).parents[1] / "acceptance" / "gateway_process.py"
SECRET = "a signing secret"
DISCORD = make_keys("discord")
SOURCES = {
    "slack": {"provider": "slack", "secrets": [SECRET]},
    "discord": {"provider": "discord", "secrets": [DISCORD.public]},
    "vk": {"provider": "vk", "secrets": [SECRET], "confirmation": "1a2b3c4d"},
    "meta": {"provider": "whatsapp", "secrets": [SECRET], "verify_token": "meatyhamhock"},
    "x": {"provider": "x", "secrets": [SECRET]},
    "dropbox": {"provider": "dropbox", "secrets": [SECRET]},
    "intercom": {"provider": "intercom", "secrets": [SECRET]},
    "xero": {"provider": "xero", "secrets": [SECRET]},
}


@pytest.fixture(scope="module")
def gateway() -> Iterator[httpx.Client]:
    with socket.create_server(("127.0.0.1", 0), backlog=64) as bound:
        process = subprocess.Popen(
            [sys.executable, str(GATEWAY_PROCESS), str(bound.fileno()), json.dumps({"sources": SOURCES})],
            pass_fds=[bound.fileno()],
            stdout=subprocess.DEVNULL,
        )
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{bound.getsockname()[1]}", timeout=300) as client:
                until(lambda: client.get("/healthz").status_code == 200)
                yield client
        finally:
            process.kill()
            process.wait()


def send(gateway: httpx.Client, provider: str, body: bytes | None = None, secret: str = SECRET) -> httpx.Response:
    """Send a sender's own request, signed for the address it goes to."""
    settings = {name: text for name, text in SOURCES[provider].items() if name in {"confirmation", "verify_token"}}
    signed = signed_request(provider, secret, body, url=str(gateway.base_url) + f"/in/{provider}", **settings)
    return gateway.request(signed.method, signed.url, headers=dict(signed.headers), content=signed.body)


def test_meta_subscribes(gateway):
    question = {"hub.mode": "subscribe", "hub.challenge": "1158201444", "hub.verify_token": "meatyhamhock"}
    answer = gateway.get("/in/meta", params=question)
    assert (answer.status_code, answer.text) == (200, "1158201444")
    assert answer.headers["content-type"].startswith("text/plain")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert gateway.get("/in/meta", params=question | {"hub.verify_token": "x"}).status_code == 401
    assert send(gateway, "meta").status_code == 200


def test_x_checks(gateway):
    answer = gateway.get("/in/x", params={"crc_token": "challenge_string"})
    assert answer.json() == {"response_token": "sha256=" + base64_mac(SECRET, "challenge_string")}
    assert gateway.get("/in/x", params={"crc_token": "{}"}).status_code == 400
    assert send(gateway, "x").status_code == 200


def test_dropbox_notifications_are_never_duplicates(gateway):
    answer = gateway.get("/in/dropbox", params={"challenge": "abc123"})
    assert (answer.status_code, answer.text, answer.headers["x-content-type-options"]) == (200, "abc123", "nosniff")
    assert [send(gateway, "dropbox").json()["duplicate"] for _ in range(2)] == [False, False]


def test_intercom_head_requests_are_answered(gateway):
    answer = gateway.head("/in/intercom")
    assert (answer.status_code, answer.content) == (200, b"")
    assert gateway.get("/in/intercom").status_code == 405
    assert [send(gateway, "intercom").json()["duplicate"] for _ in range(2)] == [False, True]


def test_discord_pings_and_probes(gateway):
    ping = b'{"application_id":"1","id":"1","token":"t","type":1,"version":1}'
    answer = send(gateway, "discord", ping, DISCORD.private)
    assert (answer.status_code, answer.json()) == (200, {"type": 1})
    answer = send(gateway, "discord", b'{"version":1,"application_id":"1","type":0}', DISCORD.private)
    assert (answer.status_code, answer.content) == (204, b"")
    assert "content-length" not in answer.headers
    assert send(gateway, "discord", ping, make_keys("discord").private).status_code == 401
    assert send(gateway, "discord", None, DISCORD.private).status_code == 204


def test_vk_gets_its_confirmation_and_ok(gateway):
    answer = gateway.post("/in/vk", content=b'{"type":"confirmation","group_id":1}')
    assert (answer.status_code, answer.content) == (200, b"1a2b3c4d")
    assert [send(gateway, "vk").content for _ in range(2)] == [b"ok", b"ok"]


def test_slack_verifies_and_its_commands_show_nothing(gateway):
    answer = send(gateway, "slack", b'{"type":"url_verification","challenge":"3eZbrw1a"}')
    assert (answer.status_code, answer.content) == (200, b"3eZbrw1a")
    command = b"command=%2Fdeploy&trigger_id=1.2.3"
    stamp = str(int(time.time()))
    headers = {
        "x-slack-signature": "v0=" + hex_mac(SECRET, f"v0:{stamp}:", command),
        "x-slack-request-timestamp": stamp,
        "content-type": "application/x-www-form-urlencoded",
    }
    answer = gateway.post("/in/slack", content=command, headers=headers)
    assert (answer.status_code, answer.content) == (200, b"")


def test_xero_responses_have_no_body(gateway):
    intent = b'{"events":[],"lastEventSequence":0,"firstEventSequence":0,"entropy":"S0m3r4Nd0mt3xt"}'
    for body, secret, status in ((intent, SECRET, 200), (intent, "another", 401), (None, SECRET, 200)):
        answer = send(gateway, "xero", body, secret)
        assert (answer.status_code, answer.content) == (status, b"")
        assert "set-cookie" not in answer.headers
