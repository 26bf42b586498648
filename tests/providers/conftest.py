"""Senders' own npm packages as judges of our recipes.

How to use it: take the fixture ``judge`` and ask it. What is bytes is sent as base64, ``now`` is the package's clock::

    def test_github_accepts_what_we_sign(judge):
        headers = sign("github", SECRET, body)
        assert judge.asks("github", "verify", secret=SECRET, body=body, signature=headers["x-hub-signature-256"])

`Judge.asks` returns what the package answered, and `False` where it threw; `Judge.refusal` then says why.

To add a package: name it in ``npm/package.json`` with its exact version, run ``npm install`` in ``npm/`` (its
``.npmrc`` keeps addresses out of the lock file), and add its actions to ``npm/judge.mjs``. Those that are there:

- ``github``: sign, verify (secret, body, signature)
- ``notion``: sign, verify (secret, body, signature); the secret is the verification token
- ``linear``: verify (secret, body, signature, now)
- ``shopify``: verify (secret, body, headers), which answers ``{"valid": …, "reason": …, "topic": …}``
- ``jira``: hash (method, url, base_url), sign (secret, claims), decode (secret, token)
- ``sns``: verify (body, certificate)
- ``cloudpayments``: sign (secret, body), verify (secret, body, signature, content_type; or method GET and url)

The packages are installed once, into ``npm/node_modules``, and again only when the lock file has changed.
"""

import base64
import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import time_machine

from tests.npm import find_program, install

_DAY_S = 86_400.0
FOLDER = Path(__file__).parent / "npm"


class Judge:
    """A Node.js process that has the packages loaded and answers questions one by one."""

    refusal: str = ""
    """The message of the package's last exception."""

    def __init__(self, node: str) -> None:
        self._process = subprocess.Popen(
            [node, "judge.mjs"], cwd=FOLDER, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def asks(self, provider: str, action: str, **question: Any) -> Any:
        """Return the provider package's result; False if it throws."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        question = {
            name: base64.b64encode(value).decode() if isinstance(value, bytes) else value
            for name, value in question.items()
        }
        print(json.dumps({"provider": provider, "action": action} | question), file=self._process.stdin, flush=True)
        reply = json.loads(self._process.stdout.readline())
        self.refusal = reply.get("refusal", "")
        return reply.get("answer", False)

    def close(self) -> None:
        """Let the process end."""
        with self._process:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait(300)


@pytest.fixture(autouse=True)
def _clock(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let a test begin at its module's `NOW`: the whole run takes longer than packages accept a timestamp."""
    now = getattr(request.module, "NOW", 0.0)
    if abs(time.time() - now) > _DAY_S:
        yield
        return
    with time_machine.travel(now):
        yield


@pytest.fixture(scope="session")
def judge() -> Iterator[Judge]:
    """The providers' npm packages."""
    install(FOLDER, timeout=300)
    asked = Judge(find_program("node"))
    yield asked
    asked.close()
