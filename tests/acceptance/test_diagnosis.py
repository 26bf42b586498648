"""A refused request says why to the operator, and nothing to the stranger; on a real gateway and its journal."""

import json
import time
from collections.abc import Callable

import httpx
import psycopg

from boathook.testing import sign
from tests.acceptance.conftest import Running, payload
from tests.support import until

SOURCES = """
    [sources.shop]
    provider = "stripe"
    secrets = ["shop-canary"]
    [sources.code]
    provider = "github"
    secrets = ["code-canary"]
    [sources.lab]
    provider = "gitlab"
    scheme = "token"
    secrets = ["lab-canary"]
"""
BODY = json.dumps(payload("evt_1"), separators=(",", ":")).encode()


def cases() -> list[tuple[str, bytes, dict[str, str], str]]:
    pretty = json.dumps(json.loads(BODY), indent=2).encode()
    return [
        ("shop", BODY, sign("stripe", "nobody's", BODY), "does not fit"),
        ("shop", BODY + b"\n", sign("stripe", "shop-canary", BODY), "without the newline"),
        ("shop", pretty, sign("stripe", "shop-canary", BODY), "wrote it anew on the way"),
        ("shop", BODY, sign("stripe", "shop-canary", BODY, timestamp=time.time() - 9_000), "its signature is right"),
        ("shop", BODY, sign("stripe", "nobody's", BODY, timestamp=time.time() - 9_000), "not have been right either"),
        ("code", BODY, sign("github", "shop-canary", BODY), "does not fit"),
        ("code", BODY, sign("stripe", "shop-canary", BODY), "the source 'shop' would have accepted it"),
        ("shop", BODY, sign("github", "nobody's", BODY), "this looks like a request of GitHub"),
        ("lab", BODY, sign("gitlab", "whsec_" + "A" * 44, BODY), "with the setting scheme left out"),
    ]


def test_the_operator_learns_the_usual_mistakes_and_the_stranger_nothing(boathook: Callable[..., Running]):
    running = boathook(roles="gateway", extra=SOURCES + "[retention]\nrejections_rate = 100.0\n")
    answers = set()
    for source, body, headers, _ in cases():
        answer = httpx.post(f"{running.base}/in/{source}", content=body, headers=headers, timeout=10)
        assert answer.json().keys() == {"ok", "error", "request_id"}
        answers.add((answer.status_code, answer.json()["error"]))
    assert answers == {(401, "unauthorized")}

    def details() -> list[tuple[str, str]]:
        with psycopg.connect(running.database_url) as connection:
            return connection.execute("select source, detail from boathook.rejection order by id").fetchall()

    until(lambda: len(details()) == len(cases()))
    for (source, detail), (sent_to, _, _, words) in zip(details(), cases(), strict=True):
        assert source == sent_to
        assert words in detail, detail
        assert "canary" not in detail
    assert "canary" not in running.log()
