"""Diagnosis of rejected requests: shown to operators in plain words, never to the sender."""

import base64
import json
import re
import time
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.acceptance.conftest import BoathookProcess
from tests.acceptance.raw_http import RawResponse, boathook_on_new_database, rows, send_request, write_config
from tests.providers.request_factory import base64_mac, hex_mac
from tests.support import until

STRIPE, GITHUB, OTHER = "whsec_of_the_shop", "of the repository", "whsec_of_the_other_shop"
SOURCES = f"""
[sources.stripe]
secrets = ["{STRIPE}"]
[sources.other-shop]
provider = "stripe"
secrets = ["{OTHER}"]
[sources.github]
secrets = ["{GITHUB}"]
[sources.flooded]
provider = "github"
secrets = ["{GITHUB}"]
"""


@pytest.fixture(scope="module")
def running(admin_url: str, pg_template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BoathookProcess]:
    with boathook_on_new_database(admin_url, pg_template, tmp_path_factory.mktemp("diagnosis")) as one:
        write_config(one, SOURCES, kept=20.0)
        yield one.start()


def body_of(**more: Any) -> bytes:
    """A body no other test sends, written the way senders write: compactly, and not in ASCII alone."""
    document = {"id": f"evt_{uuid.uuid4().hex}", "type": "order.paid", "name": "Жук", "amount": 1.50, **more}
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def from_stripe(body: bytes, *, secret: str = STRIPE, at: float | None = None, version: str = "v1") -> dict[str, str]:
    stamp = int(time.time() if at is None else at)
    return {"stripe-signature": f"t={stamp},{version}={hex_mac(secret, f'{stamp}.', body)}"}


def from_github(body: bytes, *, secret: str = GITHUB, algorithm: str = "sha256") -> dict[str, str]:
    signature = f"{algorithm}={hex_mac(secret, body, algorithm=algorithm)}"
    name = "x-hub-signature" if algorithm == "sha1" else "x-hub-signature-256"
    return {"x-github-delivery": uuid.uuid4().hex, "x-github-event": "push", name: signature}


def send(running: BoathookProcess, source: str, headers: Mapping[str, str], body: bytes) -> RawResponse:
    return send_request(running, "POST", f"/in/{source}", {"content-type": "application/json", **headers}, body)


def refused(running: BoathookProcess, source: str, headers: Mapping[str, str], body: bytes) -> dict[str, Any]:
    """Send a request that is rejected without details; return what the operator sees."""
    answer = send(running, source, headers, body)
    assert (answer.status, answer.json["error"]) == (401, "unauthorized")
    assert re.sub(rb"req_[0-9a-f]+", b"", answer.body) == b'{"ok":false,"error":"unauthorized","request_id":""}'

    def kept() -> list[dict[str, Any]]:
        sql = "select count(*) from boathook.rejection where body = %s"
        return running.listing("rejections", "list", "--limit", "1") if rows(running, sql, body) != [(0,)] else []

    (found,) = until(kept)
    for secret in (STRIPE, GITHUB, OTHER):
        assert secret not in found["detail"]
    return found


class TestStripe:
    def test_a_wrong_secret(self, running: BoathookProcess):
        body = body_of()
        found = refused(running, "stripe", from_stripe(body, secret="whsec_nobodys"), body)
        assert found["reason"] == "signature_mismatch"
        assert "it was signed with another secret, or a proxy changed the body" in found["detail"]

    @pytest.mark.extended("repeats what stays with other values")
    def test_the_secret_of_another_source(self, running: BoathookProcess):
        body = body_of()
        found = refused(running, "stripe", from_stripe(body, secret=OTHER), body)
        assert "the source 'other-shop' would have accepted it" in found["detail"]

    @pytest.mark.extended("starts several servers of its own")
    def test_a_body_rewritten_by_a_proxy(self, running: BoathookProcess):
        sent = body_of()
        rewritten = json.dumps(json.loads(sent), indent=2).encode()
        found = refused(running, "stripe", from_stripe(sent), rewritten)
        assert "a proxy parsed and rewrote it" in found["detail"]

    @pytest.mark.extended("starts several servers of its own")
    def test_a_newline_added_on_the_way(self, running: BoathookProcess):
        sent = body_of()
        found = refused(running, "stripe", from_stripe(sent), sent + b"\n")
        assert "without the newline at the body's end" in found["detail"]

    @pytest.mark.extended("starts several servers of its own")
    @pytest.mark.parametrize(("shift_s", "reason"), [(-3_600, "timestamp_too_old"), (3_600, "timestamp_in_future")])
    def test_a_timestamp_out_of_tolerance(self, running: BoathookProcess, shift_s: int, reason: str):
        body = body_of()
        found = refused(running, "stripe", from_stripe(body, at=time.time() + shift_s), body)
        assert found["reason"] == reason
        assert "its signature is valid" in found["detail"]
        assert "300 s" in found["detail"]

    @pytest.mark.extended("starts several servers of its own")
    def test_a_stale_forgery_is_not_called_a_late_copy(self, running: BoathookProcess):
        body = body_of()
        found = refused(running, "stripe", from_stripe(body, at=time.time() - 3_600, secret="whsec_nobodys"), body)
        assert "its signature would not have been valid either" in found["detail"]

    @pytest.mark.extended("starts several servers of its own")
    def test_another_scheme(self, running: BoathookProcess):
        body = body_of()
        found = refused(running, "stripe", from_stripe(body, version="v0"), body)
        assert found["reason"] in {"signature_missing", "unknown_scheme"}
        assert "v1" in found["detail"]

    @pytest.mark.extended("starts several servers of its own")
    def test_another_sender(self, running: BoathookProcess):
        body = body_of()
        found = refused(running, "stripe", from_github(body, secret="nobody's"), body)
        assert "x-hub-signature-256" in found["detail"]
        assert "stripe-signature" in found["detail"]

    @pytest.mark.extended("repeats what stays with other values")
    def test_no_signature(self, running: BoathookProcess):
        found = refused(running, "stripe", {}, body_of())
        assert found["reason"] == "signature_missing"
        assert "stripe-signature" in found["detail"]

    @pytest.mark.extended("starts several servers of its own")
    def test_a_secret_that_was_decoded(self, running: BoathookProcess):
        body, stamp = body_of(), int(time.time())
        mac = hex_mac(STRIPE.removeprefix("whsec_"), f"{stamp}.", body)
        found = refused(running, "stripe", {"stripe-signature": f"t={stamp},v1={mac}"}, body)
        assert found["reason"] == "signature_mismatch"


class TestGitHub:
    def test_a_wrong_secret(self, running: BoathookProcess):
        body = body_of()
        found = refused(running, "github", from_github(body, secret="of another repository"), body)
        assert found["reason"] == "signature_mismatch"
        assert "it was signed with another secret, or a proxy changed the body" in found["detail"]

    @pytest.mark.extended("starts several servers of its own")
    def test_the_secret_of_another_source(self, running: BoathookProcess):
        body = body_of()
        found = refused(running, "github", from_stripe(body, secret=OTHER), body)
        assert "the source 'other-shop' would have accepted it" in found["detail"]

    @pytest.mark.extended("repeats what stays with other values")
    def test_a_body_rewritten_by_a_proxy(self, running: BoathookProcess):
        sent = body_of()
        rewritten = json.dumps(json.loads(sent)).encode()
        assert rewritten != sent
        found = refused(running, "github", from_github(sent), rewritten)
        assert "a proxy parsed and rewrote it" in found["detail"]

    @pytest.mark.extended("repeats what stays with other values")
    def test_a_newline_lost_on_the_way(self, running: BoathookProcess):
        sent = body_of() + b"\n"
        found = refused(running, "github", from_github(sent), sent[:-1])
        assert "with a newline at the body's end" in found["detail"]

    @pytest.mark.extended("starts several servers of its own")
    def test_another_encoding(self, running: BoathookProcess):
        body = body_of()
        headers = from_github(body) | {"x-hub-signature-256": "sha256=" + base64_mac(GITHUB, body)}
        found = refused(running, "github", headers, body)
        assert "base64" in found["detail"]

    @pytest.mark.extended("starts several servers of its own")
    def test_the_old_scheme(self, running: BoathookProcess):
        body = body_of()
        found = refused(running, "github", from_github(body, algorithm="sha1"), body)
        assert found["reason"] == "signature_missing"
        assert "x-hub-signature" in found["detail"]

    @pytest.mark.extended("starts several servers of its own")
    def test_no_signature(self, running: BoathookProcess):
        found = refused(running, "github", {"x-github-event": "push"}, body_of())
        assert found["reason"] == "signature_missing"
        assert "x-hub-signature-256" in found["detail"]

    @pytest.mark.extended("starts several servers of its own")
    def test_a_form_instead_of_json_is_another_body(self, running: BoathookProcess):
        body = body_of()
        form = b"payload=" + base64.b16encode(body)
        found = refused(running, "github", from_github(body), form)
        assert found["reason"] == "signature_mismatch"


@pytest.mark.extended("floods a gateway once more; one flood stays")
def test_forged_requests_are_stored_at_a_limited_rate(running: BoathookProcess):
    def forge(number: int) -> int:
        body = body_of(number=number)
        return send(running, "flooded", from_github(body, secret="guessed"), body).status

    began = time.monotonic()
    with ThreadPoolExecutor(8) as pool:
        statuses = list(pool.map(forge, range(2_000)))
    seconds = time.monotonic() - began
    assert set(statuses) == {401}
    body = body_of()
    assert send(running, "flooded", from_github(body), body).json["duplicate"] is False
    until(lambda: rows(running, "select count(*) > 0 from boathook.rejection where source = 'flooded'") == [(True,)])
    ((kept,),) = rows(running, "select count(*) from boathook.rejection where source = 'flooded'")
    assert kept <= 20 * (seconds + 2)
    assert kept < 2_000
    assert running.cli("check").returncode == 0
