"""Attacks on the sending side and its API that once succeeded; each is now rejected."""

import asyncio
import time
from typing import Any
from uuid import UUID

import pytest
from pydantic import TypeAdapter, ValidationError

from boathook.api import idempotency, route
from boathook.db import messages
from boathook.db.api_keys import ApiKey
from boathook.delivery.http_attempt import RequestTarget, collect_secrets
from boathook.delivery.response_redaction import redact
from boathook.delivery.signer import make_secret, read_signer
from boathook.delivery.tasks import run_tasks
from boathook.domain.endpoints import REDACTED
from boathook.domain.errors import InvalidValue
from boathook.domain.filters import FilterInput, compile_filter
from boathook.http_client.messages import OutgoingRequest, RequestResult
from boathook.service.access.authorization import Principal
from boathook.service.access.keys import CreatedKey
from boathook.service.operating import tasks
from boathook.service.schemas.fields import Timestamp
from boathook.service.sending import endpoints
from boathook.service.sending.endpoint_values import read_headers
from boathook.verification.json_schema import MAX_PATTERNS_S, check_schema
from tests.postgres.api_client import ApiClient, make_token, open_api_client
from tests.postgres.message_factory import ago


def test_a_timestamp_outside_the_utc_calendar_is_invalid():
    for text in ("0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"):
        with pytest.raises(ValidationError, match="within the years 1 to 9999"):
            TypeAdapter(Timestamp).validate_python(text)


@pytest.mark.parametrize("letters", ["ab/", "a"])
def test_redaction_is_fast_for_any_secrets_and_response(letters):
    long = (letters * 4_096)[:4_000]
    headers = {f"x-key-{number}": f"{long}{number}" for number in range(50)}
    target = RequestTarget(url="http://x/", signers=(read_signer(make_secret()),), timeout_s=1, headers=headers)
    secrets = collect_secrets(target)
    assert len(secrets) >= 50
    began = time.process_time()
    redact(b"." * 100 + long.encode() + b"!", secrets)
    once_s = time.process_time() - began
    began = time.process_time()
    for secret in secrets:
        # What a look at every possible end of each secret costs.
        for length in range(len(secret) - 1, 7, -1):
            long.encode().endswith(secret[:length])
    assert once_s < (time.process_time() - began) / 2


def test_a_truncated_repetitive_secret_is_redacted():
    secret = b"abcdefgh" * 200 + b"ijkl"
    for cut in range(8, len(secret), 37):
        found = redact(b"told: " + secret[:cut], (secret,))
        assert found == b"told: " + REDACTED.encode()
    assert redact(b"abcdefgh-", (secret,)) == b"abcdefgh-"


def test_headers_are_not_too_many_characters_together():
    read_headers({f"x-{number}": "v" * 4_000 for number in range(4)})
    with pytest.raises(InvalidValue, match="together"):
        read_headers({f"x-{number}": "v" * 4_000 for number in range(5)})


def one_of(values):
    """Return the test of a filter that takes only *values*."""
    fits = compile_filter({"body": {"x": {"in": values}}})
    return lambda value: fits(FilterInput({"x": value}, {}))


def test_in_filters_are_equally_fast_for_long_lists():
    def took_s(length: int) -> float:
        fits = one_of(list(map(str, range(length))))
        assert fits("0")
        began = time.process_time()
        for _ in range(2_000):
            assert not fits("none of them")
        return time.process_time() - began

    assert took_s(20_000) < 20 * took_s(2) + 0.05


def test_in_filters_distinguish_json_types():
    fits = one_of([1, "1", False, None])
    assert all(map(fits, (1, 1.0, "1", False, None)))
    assert not any(map(fits, (True, 0, 0.0, "", [1], {"1": 1})))


def test_requests_that_appear_in_a_log_show_no_secrets():
    request = OutgoingRequest(
        url="https://user:hunter2@example.com/hunter2",
        headers=(("authorization", "Bearer hunter2"),),
        body=b"hunter2",
        timeout_s=1,
        basic=("user", "hunter2"),
    )
    assert "hunter2" not in repr(RequestResult(request, 0, {}, b"", 0.0, None, ""))
    assert "hunter2" not in repr(CreatedKey(ApiKey(id=UUID(int=1), organization="o", application_id=None), "hunter2"))


def test_a_schema_with_slow_patterns_is_refused_quickly():
    slow: dict[str, Any] = {"patternProperties": {f"\\w{{80}}{number}": {} for number in range(1_000)}}
    began = time.thread_time()
    with pytest.raises(ValueError, match="too long to compile"):
        check_schema({"properties": {"a": {"items": [slow]}}})
    assert time.thread_time() - began < 4 * MAX_PATTERNS_S
    check_schema({"properties": {f"p{number}": {"pattern": f"^[a-z]{{1,{number}}}$"} for number in range(1, 60)}})


@pytest.fixture
async def api(db):
    async with open_api_client(db) as client:
        yield client


@pytest.fixture
async def endpoint(api) -> str:
    await api.ask(201, "POST", "/app", {"name": "Acme", "uid": "acme"})
    made = await api.ask(201, "POST", "/app/acme/endpoint", {"url": "http://127.0.0.1:18080/hook"})
    return f"/app/acme/endpoint/{made['id']}"


async def application_client(api: ApiClient, **fields: object) -> ApiClient:
    return api.as_token((await api.ask(200, "POST", "/auth/app-portal-access/acme", fields))["token"])


async def rotate(who: ApiClient, endpoint: str) -> tuple[int, str]:
    answer = await who.post(f"{endpoint}/secret/rotate", json={}, headers={"idempotency-key": "rotate-1"})
    return answer.status_code, answer.text


async def test_a_stored_response_needs_the_same_permission(api, endpoint):
    status, told = await rotate(await application_client(api), endpoint)
    assert status == 200
    assert "whsec_" in told
    assert await rotate(await application_client(api), endpoint) == (200, told)
    assert (await rotate(await application_client(api, readOnly=True), endpoint))[0] == 403
    assert (await rotate(await application_client(api, capabilities=["ManageEndpoint"]), endpoint))[0] == 403


async def test_without_permissions_in_the_key_a_reader_gets_the_secret(api, endpoint, monkeypatch):
    read_key = idempotency.read_key

    def forgetful(request, principal, *rest):
        return read_key(request, Principal(principal.key_id, principal.organization, principal.application_id), *rest)

    monkeypatch.setattr("boathook.api.route.read_key", forgetful)
    monkeypatch.setattr(Principal, "may", lambda _principal, _permission: True)
    _, told = await rotate(await application_client(api), endpoint)
    assert await rotate(await application_client(api, readOnly=True), endpoint) == (200, told)


@pytest.mark.parametrize("name", ["%00", "a%00b"])
async def test_a_message_id_with_nul_is_not_found(api, endpoint, name):
    await api.ask(404, "GET", f"/app/acme/msg/{name}")
    await api.ask(404, "DELETE", f"/app/acme/msg/{name}/content")
    await api.ask(404, "GET", f"/app/acme/attempt/msg/{name}")
    await api.ask(404, "POST", f"/app/acme/msg/{name}/endpoint/{endpoint.rpartition('/')[2]}/resend")


async def test_timestamps_outside_the_utc_calendar_are_422(api, endpoint):
    early = "0001-01-01T00:00:00+14:00"
    await api.ask(422, "GET", "/app/acme/msg", params={"before": early})
    await api.ask(422, "POST", f"{endpoint}/recover", {"since": early})
    await api.ask(422, "POST", "/app/acme/msg", {"eventType": "a.b", "payload": {}, "deliverAt": early})


async def test_the_body_of_an_unauthorized_request_is_not_parsed(api, endpoint, monkeypatch):
    parsed: list[bytes] = []
    read = route.read_json

    def watched(raw: bytes) -> Any:
        parsed.append(raw)
        return read(raw)

    monkeypatch.setattr(route, "read_json", watched)
    foreign_client = api.as_token("bhk_unknown")
    body = b"[" + b",".join([b"{}"] * 1_000) + b"]"
    assert (await foreign_client.post("/app", content=body)).status_code == 401
    assert (await foreign_client.post("/app", content=b"{")).status_code == 401
    assert parsed == []
    assert (await api.post("/app", content=body)).status_code == 422
    assert parsed == [body]


async def test_an_application_has_a_bounded_number_of_endpoints(api, endpoint, monkeypatch):
    monkeypatch.setattr(endpoints, "MAX_ENDPOINTS", 3)
    path, body = "/app/acme/endpoint", {"url": "http://127.0.0.1:18080/hook"}
    made = await asyncio.gather(*(api.post(path, json=body) for _ in range(6)))
    assert sorted(one.status_code for one in made) == [201, 201, 400, 400, 400, 400]
    assert (await api.ask(400, "PUT", f"{path}/crm", body))["code"] == "limit_reached"
    assert len((await api.ask(200, "GET", path))["data"]) == 3
    await api.ask(204, "DELETE", endpoint)
    await api.ask(201, "POST", path, body)


async def test_running_tasks_are_limited_per_application_and_organization(api, endpoint, monkeypatch):
    span = {"since": ago(hours=1).isoformat()}
    monkeypatch.setattr(tasks, "MAX_PER_APPLICATION", 2)
    monkeypatch.setattr(tasks, "MAX_PER_ORGANIZATION", 3)
    for _ in range(2):
        await api.ask(202, "POST", f"{endpoint}/recover", span)
    assert (await api.ask(400, "POST", f"{endpoint}/replay-missing", span))["code"] == "limit_reached"
    await api.ask(202, "PUT", "/stats/usage/event-types")
    await api.ask(400, "PUT", "/stats/usage/event-types")
    # Others are not held up, and a new task is accepted again.
    other = api.as_token(await make_token(api.context, "other"))
    await other.ask(202, "PUT", "/stats/usage/event-types")
    await run_tasks(api.context.database, api.context.outbox)
    await api.ask(202, "POST", f"{endpoint}/recover", span)


async def test_routing_data_of_an_application_is_limited(api, endpoint, monkeypatch):
    monkeypatch.setattr(endpoints, "MAX_ROUTING_BYTES", 2_000)
    path, url = "/app/acme/endpoint", "http://127.0.0.1:18080/hook"
    long = {"body": {"n": {"in": [str(number) for number in range(400)]}}}
    types = [f"invoice.{number}.*" for number in range(200)]
    assert (await api.ask(400, "POST", path, {"url": url, "filter": long}))["code"] == "limit_reached"
    await api.ask(400, "PATCH", endpoint, {"filter": long})
    await api.ask(400, "PUT", endpoint, {"url": url, "eventTypes": types})
    await api.ask(200, "PATCH", endpoint, {"filter": {"body": {"n": {"in": ["1", "2"]}}}})
    await api.ask(201, "POST", path, {"url": url, "channels": ["eu"]})


async def walk(api: ApiClient, path: str, **params: Any) -> tuple[list[list[str]], list[str]]:
    """Return the pages of ids of a list, and the ids of its last page walked back."""
    pages: list[list[str]] = []
    page: dict[str, Any] = {"done": False, "iterator": None}
    while not page["done"]:
        page = await api.ask(200, "GET", path, params=params | ({"iterator": page["iterator"]} if pages else {}))
        pages.append([one["id"] for one in page["data"]])
    before = await api.ask(200, "GET", path, params=params | {"iterator": page["prevIterator"]})
    return pages, [one["id"] for one in before["data"]]


async def test_a_page_ends_where_contents_are_large_together(api, endpoint, monkeypatch):
    monkeypatch.setattr(messages, "MAX_PAGE_BYTES", 3_500)
    sent = [
        (await api.ask(202, "POST", "/app/acme/msg", {"eventType": "a.b", "payload": {"n": "x" * size}}))["id"]
        for size in (1_000, 1_000, 1_000, 1_000, 1_000, 9_000, 10)
    ]
    newest = sent[::-1]
    for path in ("/app/acme/msg", f"{endpoint}/msg", f"{endpoint}/msg?status=1"):
        pages, before = await walk(api, path)
        assert pages == [newest[:2], newest[2:6], newest[6:]]
        assert before == newest[2:6]
        assert await walk(api, path, with_content=False, limit=4) == ([newest[:4], newest[4:]], newest[:4])


async def test_an_event_type_has_a_bounded_number_of_versions(api):
    schemas = {str(version): {"type": "object"} for version in range(21)}
    refused = await api.ask(422, "POST", "/event-type", {"name": "a.b", "description": "d", "schemas": schemas})
    assert refused["detail"][0]["loc"] == ["body", "schemas"]
    del schemas["20"]
    await api.ask(201, "POST", "/event-type", {"name": "a.b", "description": "d", "schemas": schemas})
    many = [{"name": f"a.{number}", "description": "d"} for number in range(1001)]
    await api.ask(422, "POST", "/environment/import", {"eventTypes": many})
