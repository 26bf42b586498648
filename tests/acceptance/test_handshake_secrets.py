"""A secret that the sender itself sends, from the first request to the first event, with two gateways on one port."""

import json
from concurrent.futures import ThreadPoolExecutor

import httpx
import psycopg
import pytest

from boathook.testing import sign
from tests.acceptance.conftest import BoathookProcess

SENT_SECRET = "secret_0123456789abcdef"
EXTRA = """
    [sources.notion]
    provider = "notion"
"""


def send_secret(running: BoathookProcess, secret: str = SENT_SECRET) -> int:
    body = json.dumps({"verification_token": secret})
    return httpx.post(f"{running.base}/in/notion", content=body, timeout=300).status_code


def send(running: BoathookProcess, number: int, secret: str = SENT_SECRET) -> int:
    body = json.dumps({"id": f"event_{number}", "type": "page.created"}).encode()
    # A connection each, so that both gateways get some.
    return httpx.post(
        f"{running.base}/in/notion", content=body, headers=sign("notion", secret, body), timeout=300
    ).status_code


def send_many(running: BoathookProcess, numbers: range) -> list[int]:
    with ThreadPoolExecutor(8) as threads:
        return list(threads.map(lambda number: send(running, number), numbers))


@pytest.mark.extended("starts several servers of its own")
def test_a_handshake_secret_reaches_the_operator_and_every_gateway(boathook, pg_url):
    running = boathook(roles="gateway", extra=EXTRA, start=False)
    file = running.folder / "boathook.toml"
    file.write_text(file.read_text().replace("[server]", "[server]\ngateways = 2"))
    running.start()
    assert len(running.children("gateway")) == 2
    early = running.cli("sources", "secret", "notion", check=False)
    assert early.returncode != 0
    assert "has not sent a secret yet" in early.stderr

    assert send(running, 0) == 401
    assert send_secret(running) == 200
    assert send_secret(running, "secret_of_somebody_else") == 401
    assert send(running, 0) == 401, "it counts only once the operator has seen it"
    assert running.cli("sources", "secret", "notion").stdout.strip() == SENT_SECRET

    assert set(send_many(running, range(24))) == {200}
    assert send(running, 99, "secret_of_somebody_else") == 401
    assert len(running.listing("events", "list", "--source", "notion")) == 24
    assert running.cli("doctor", check=False).returncode == 0

    running.stop()
    running.start()
    assert send(running, 100) == 200, "it is still there after a restart"
    assert SENT_SECRET not in running.log()
    running.wait_logged("secret_captured")

    assert "deleted" in running.cli("sources", "secret", "notion", "--forget").stdout
    assert set(send_many(running, range(200, 216))) == {401}
    with psycopg.connect(pg_url) as connection:
        actions = [row[0] for row in connection.execute("select action from boathook.audit order by at")]
    assert actions == ["source.secret.show", "source.secret.forget"]


def test_sources_without_a_handshake_secret_are_explained(boathook):
    running = boathook(roles="gateway", extra=EXTRA)
    for name, words in (("stripe", "its secrets are configured or added"), ("nobody", "unknown source 'nobody'")):
        done = running.cli("sources", "secret", name, check=False)
        assert done.returncode != 0
        assert words in done.stderr.replace("\n", " ")
        assert "Traceback" not in done.stderr
