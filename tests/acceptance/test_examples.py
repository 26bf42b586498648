"""The programs in examples/ run in their frameworks and verify real requests."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from boathook.testing import sign

EXAMPLES = Path(__file__).parents[2] / "examples"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


STRIPE = b'{"id":"evt_1","type":"invoice.paid"}'


async def test_fastapi():
    httpx = pytest.importorskip("httpx")
    example = load("verify_fastapi")
    transport = httpx.ASGITransport(app=example.app)
    async with httpx.AsyncClient(transport=transport, base_url="https://shop.example") as client:
        for _ in range(2):
            answer = await client.post(
                "/webhooks/stripe", content=STRIPE, headers=sign("stripe", example.SECRET, STRIPE)
            )
            assert answer.status_code == 200
        forged = await client.post("/webhooks/stripe", content=STRIPE, headers=sign("stripe", "whsec_other", STRIPE))
    assert forged.status_code == 401
    assert example.seen == {"evt_1": "invoice.paid"}


def test_flask():
    example = load("verify_flask")
    client = example.app.test_client()
    body = b'{"action":"opened"}'
    headers = sign("github", example.SECRET, body, id="guid-1", type="issues")
    assert client.post("/webhooks/github", data=body, headers=headers).status_code == 200
    assert client.post("/webhooks/github", data=body + b" ", headers=headers).status_code == 401
    assert example.seen == {"guid-1": "issues.opened"}


def test_django():
    from django.conf import settings
    from django.test import RequestFactory, override_settings

    if not settings.configured:  # by a test of sessions, in the same process
        settings.configure()
    example = load("verify_django")

    def post(body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
        given = {f"HTTP_{name.upper().replace('-', '_')}": value for name, value in headers.items()}
        request = RequestFactory().post("/webhooks/slack", body, content_type="application/json", **given)
        with override_settings(ALLOWED_HOSTS=["*"]):
            answer = example.slack(request)
        return answer.status_code, answer.content

    question = b'{"type":"url_verification","challenge":"3eZbrw1aBm2rZgRNFdxV2595E9CY3gmdALWMmHkvFXO7tYXAYM8P"}'
    assert post(question, sign("slack", example.SECRET, question)) == (200, question[-54:-2])
    event = b'{"type":"event_callback","event_id":"Ev1","event":{"type":"app_mention"}}'
    assert post(event, sign("slack", example.SECRET, event))[0] == 200
    assert post(event, sign("slack", "wrong", event))[0] == 401
    assert example.seen == {"Ev1": "app_mention"}
