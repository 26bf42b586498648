"""A source with a schema over real sockets: rejections, the quarantine, and unused dedup keys."""

import hashlib
import hmac
import json
from collections.abc import Callable
from typing import Any

import httpx

from tests.acceptance.conftest import BoathookProcess
from tests.support import until

SECRET = "a-secret-for-payments"
SOURCE = f"""
[sources.payments]
provider = "hmac"
secrets = ["{SECRET}"]
header = "X-Signature"
id_path = "id"
paths = ["/webhooks/payments"]
schema = "payment.json"
"""
SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["id", "amount"],
    "properties": {"amount": {"type": "number", "minimum": 0}},
}
MORE = """

@hook.on("payments", "*")
async def book(event: Event, tx: Transaction) -> None:
    await tx.execute("insert into shop.effect (event_key, handler) values ($1, 'book')", event.dedup_key)
"""


def send(running: BoathookProcess, body: bytes | dict[str, Any], *, secret: str = SECRET) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    signature = hmac.new(secret.encode(), content, hashlib.sha256).hexdigest()
    headers = {"x-signature": signature, "content-type": "application/json"}
    return httpx.post(f"{running.base}/webhooks/payments", content=content, headers=headers, timeout=300)


def reverified(running: BoathookProcess) -> dict[str, str]:
    """Verify all rejections again; return the outcomes by detail. The command fails if some stay rejected."""
    done = running.cli("rejections", "reverify", "--source", "payments", "--json", check=False)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return {row["detail"]: row["outcome"] for row in rows}


def test_a_body_that_does_not_fit_is_refused_before_it_has_a_key(boathook: Callable[..., BoathookProcess]):
    running = boathook(start=False, extra=SOURCE)
    (running.folder / "payment.json").write_text(json.dumps(SCHEMA))
    with (running.folder / "shop.py").open("a") as shop:
        shop.write(MORE)
    running.start()

    forged = send(running, b'{"id": "p1", "amount": -1', secret="forged")
    assert forged.status_code == 401
    assert "detail" not in forged.json()
    for body, detail in (
        ({"id": "p1", "amount": -1}, "amount: -1 is less than the minimum of 0"),
        ({"id": "p1"}, "'amount' is a required property"),
        (b'{"id": "p1", "amount": ', "the body is not JSON"),
    ):
        refused = send(running, body)
        assert refused.status_code == 400
        assert refused.headers["content-type"] == "application/json"
        answer = refused.json()
        assert answer.pop("request_id").startswith("req_")
        assert answer == {"ok": False, "error": "bad request", "detail": detail}
    assert running.listing("events", "list") == []

    # The id of the refused requests is free; duplicates and conflicts go as ever.
    accepted = send(running, {"id": "p1", "amount": 5})
    assert accepted.status_code == 200
    assert accepted.json()["duplicate"] is False
    again = send(running, {"id": "p1", "amount": 5}).json()
    assert (again["duplicate"], again["event_id"]) == (True, accepted.json()["event_id"])
    assert send(running, {"id": "p1", "amount": 6}).json()["conflict"] is True
    assert send(running, {"id": "p1", "amount": -6}).status_code == 400

    def kept() -> list[dict[str, Any]] | None:
        rejections = running.listing("rejections", "list", "--source", "payments")
        return rejections if len(rejections) == 5 else None

    rejections = until(kept)
    proven = [one for one in rejections if one["reason"] == "body_invalid"]
    assert sorted(one["detail"] for one in proven) == [
        "'amount' is a required property",
        "amount: -1 is less than the minimum of 0",
        "amount: -6 is less than the minimum of 0",
        "the body is not JSON",
    ]
    metrics = httpx.get(f"{running.base}/metrics").text
    assert 'boathook_rejections_total{reason="body_invalid",source="payments"} 4' in metrics

    # The sample of a provider knows nothing of the owner's schema, which does not make the source wrong.
    trial = running.listing("sources", "test", "payments")
    assert [step["ok"] for step in trial] == [True, True]
    assert "does not fit the source's schema" in trial[0]["what"]
    assert "'amount' is a required property" in trial[0]["found"] or "'id' is a required" in trial[0]["found"]


def test_reverify_accepts_what_a_corrected_schema_allows(boathook: Callable[..., BoathookProcess]):
    running = boathook(start=False, extra=SOURCE)
    (running.folder / "payment.json").write_text(json.dumps(SCHEMA))
    with (running.folder / "shop.py").open("a") as shop:
        shop.write(MORE)
    running.start()
    assert send(running, {"id": "refund-1", "amount": -7}).status_code == 400
    assert send(running, {"id": "refund-2", "amount": "seven"}).status_code == 400
    until(lambda: len(running.listing("rejections", "list")) == 2)
    assert set(reverified(running).values()) == {"refused"}

    (running.folder / "payment.json").write_text(json.dumps(SCHEMA | {"properties": {"amount": {"type": "number"}}}))
    outcomes = reverified(running)
    assert sorted(outcomes.values()) == ["accepted", "refused"]
    assert any("amount: 'seven' is not of type 'number'" in detail for detail in outcomes)
    until(lambda: [one["state"] for one in running.listing("deliveries", "list")] == ["succeeded"])
    running.cli("check")


def test_a_wrong_schema_stops_the_start_and_is_named(boathook: Callable[..., BoathookProcess]):
    running = boathook(start=False, extra=SOURCE)
    (running.folder / "payment.json").write_text('{"properties": {"amount": {"minimum": "0"}}}')
    done = running.cli("serve", check=False)
    assert done.returncode != 0
    assert "sources.payments.schema: properties.amount.minimum: '0' is not of type 'number'" in done.stderr
    assert "Traceback" not in done.stderr
