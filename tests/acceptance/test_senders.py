"""One boathook with many sources, and requests signed by the providers' own libraries."""

import gzip
import json
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
import stripe

from boathook.domain import ids
from tests.acceptance.conftest import TABLES, BoathookProcess
from tests.acceptance.signed_requests import (
    NEW_SECRETS,
    PROOF_HEADER_SUFFIXES,
    SECRETS,
    SENDERS,
    SIGNERS,
    TIMESTAMPED,
    Sender,
    SignedRequest,
    from_github,
    from_stripe,
    from_svix,
    mac,
    name_of,
    new_key,
    slack_request,
)
from tests.databases import with_database
from tests.support import until

SOURCES = """
    [retention]
    rejections_rate = 1000.0
    [sources.payments]
    provider = "stripe"
    secrets = ["{stripe}"]
    [sources.github]
    secrets = ["{github}"]
    [sources.slack]
    secrets = ["{slack}"]
    [sources.standard]
    provider = "standard-webhooks"
    secrets = ["{standard}"]
    [sources.svix]
    secrets = ["{svix}"]
    [sources.custom]
    provider = "hmac"
    secrets = ["{custom}"]
    key_encoding = "hex"
    algorithm = "sha512"
    encoding = "base64"
    header = "X-Acme-Proof"
    prefix = "acme="
    timestamp_header = "X-Acme-Time"
    template = "{{method}}|{{timestamp}}|{{body}}"
    id_path = "meta.ref"
    type_header = "X-Acme-Kind"
    [sources.token]
    header = "X-Token"
    prefix = "Token "
    id_header = "X-Request"
    secrets = ["{token}"]
    [sources.basic]
    provider = "token"
    username = "ship"
    password = "{basic}"
    id_path = "n"
    [sources.open]
    provider = "unsigned"
    unsigned = true
    id_path = "n"
    [sources.rotating]
    provider = "stripe"
    secrets = ["whsec_next_of_the_tests", "whsec_last_of_the_tests"]
    [sources.unproven]
    provider = "stripe"
    unsigned = true
    [sources.slow]
    provider = "unsigned"
    unsigned = true
    rate = 0.25
    burst = 2
    [sources.small]
    provider = "unsigned"
    unsigned = true
    max_body = 100
    [sources.packed]
    provider = "github"
    secrets = ["{github}"]
    content_encodings = ["gzip"]
    [sources.strict]
    provider = "github"
    secrets = ["{github}"]
    repeated_body = "refuse"
"""

PULL_REQUESTS = """
from boathook import Boathook, Event, Transaction

hook = Boathook()

@hook.on("github", "pull_request.*")
async def look(event: Event, tx: Transaction) -> None:
    await tx.execute(
        "insert into shop.effect (event_key, handler, attempt) values ($1, $2, $3)",
        event.dedup_key, event.json["pull_request"]["title"], event.attempt)
"""


@pytest.fixture(scope="module")
def running(admin_url: str, pg_template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BoathookProcess]:
    """One boathook for all tests here: each sends events of its own, so none can see another's."""
    name = f"test_{uuid.uuid4().hex}"
    url = with_database(admin_url, name)
    with psycopg.connect(admin_url, autocommit=True) as admin:
        admin.execute(f"create database {name} template {pg_template}")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(TABLES)
    one = BoathookProcess(
        tmp_path_factory.mktemp("senders"), url, roles="gateway,worker", extra=SOURCES.format(**SECRETS)
    )
    (one.folder / "shop.py").write_text(PULL_REQUESTS)
    one.start()
    yield one
    one.kill_all()
    with psycopg.connect(admin_url, autocommit=True) as admin:
        admin.execute(f"drop database {name} with (force)")


def rows(running: BoathookProcess, sql: str, *values: Any) -> list[tuple]:
    with psycopg.connect(running.database_url, autocommit=True) as connection:
        return connection.execute(sql, values).fetchall()


def post(running: BoathookProcess, request: SignedRequest, *, to: str | None = None, **headers: str) -> httpx.Response:
    sent = {"Content-Type": "application/json"} | request.headers | {k.replace("_", "-"): v for k, v in headers.items()}
    return httpx.post(f"{running.base}/in/{to or request.source}", content=request.body, headers=sent, timeout=300)


def stored(running: BoathookProcess, request: SignedRequest) -> list[tuple]:
    return rows(
        running, "select source, type, dedup_key, grade, body from boathook.event where dedup_key = %s", request.key
    )


def effects(running: BoathookProcess, request: SignedRequest) -> list[tuple]:
    """Return the handler's effects for a pull request's body, once no delivery is pending."""
    until(lambda: rows(running, "select count(*) from boathook.delivery") == [(0,)])
    title = json.loads(request.body)["pull_request"]["title"]
    return rows(running, "select event_key from shop.effect where handler = %s", title)


def refused(running: BoathookProcess, request: SignedRequest) -> tuple[str, str, str]:
    """Return id, reason and detail of the one rejection of a request."""
    sql = "select id, reason, detail from boathook.rejection where source = %s and body = %s"
    [(identifier, reason, detail)] = until(lambda: rows(running, sql, request.source, request.body))
    return ids.show(ids.REJECTION, identifier), reason, detail


def judge_by_reverify(running: BoathookProcess, folder: Path, request: SignedRequest, sources: str) -> dict[str, Any]:
    """Verify a rejected request again under other settings, and return the output of the command."""
    changed = BoathookProcess(folder, running.database_url, roles="gateway", extra=sources)
    done = changed.cli("rejections", "reverify", refused(running, request)[0], "--json", check=False)
    judged: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == (judged["outcome"] != "accepted")
    return judged


@pytest.mark.parametrize("sender", SENDERS, ids=name_of)
def test_a_signed_request_is_accepted_once(running: BoathookProcess, sender: Sender):
    request = sender(time.time(), new_key())
    first, second = post(running, request), post(running, request)
    assert (first.status_code, first.json()["duplicate"]) == (200, False), first.text
    assert (second.status_code, second.json()["duplicate"]) == (200, True)
    assert second.json()["event_id"] == first.json()["event_id"]
    assert "conflict" not in second.json()
    assert stored(running, request) == [(request.source, request.type, request.key, request.grade, request.body)]


@pytest.mark.parametrize("sender", TIMESTAMPED, ids=name_of)
def test_a_resigned_retry_is_the_same_event(running: BoathookProcess, sender: Sender):
    key = new_key()
    first, later = sender(time.time() - 60, key), sender(time.time(), key)
    assert first.headers != later.headers
    assert first.body == later.body
    answers = [post(running, request).json() for request in (first, later)]
    assert [answer["duplicate"] for answer in answers] == [False, True]
    assert "conflict" not in answers[1]


@pytest.mark.parametrize("sender", SENDERS, ids=name_of)
def test_a_request_for_one_source_is_refused_by_every_other(running: BoathookProcess, sender: Sender):
    request = sender(time.time(), new_key())
    for other in {one(0, new_key()).source for one in SENDERS} | {"rotating", "packed"}:
        # The packed source shares GitHub's secret on purpose.
        if other == request.source or (other, request.source) == ("packed", "github"):
            continue
        answer = post(running, request, to=other)
        assert answer.status_code == 401, other
        assert set(answer.json()) == {"ok", "error", "request_id"}
    assert stored(running, request) == []
    assert post(running, request).json()["duplicate"] is False, "the refusals must not have used up its key"


@pytest.mark.parametrize("sender", SIGNERS, ids=name_of)
def test_a_body_changed_on_the_way_is_refused(running: BoathookProcess, sender: Sender):
    request = sender(time.time(), new_key())
    changed = SignedRequest(request.source, request.body + b" ", request.headers, request.key, request.type)
    assert post(running, changed).status_code == 401
    assert refused(running, changed)[1] == "signature_mismatch"
    assert stored(running, request) == []


@pytest.mark.parametrize("sender", TIMESTAMPED, ids=name_of)
@pytest.mark.parametrize(
    ("shift_s", "reason"),
    [(-400, "timestamp_too_old"), (400, "timestamp_in_future"), (-200, None), (200, None)],
    ids=["stale", "future", "late", "early"],
)
def test_a_timestamp_out_of_tolerance_is_refused(
    running: BoathookProcess, sender: Sender, shift_s: int, reason: str | None
):
    request = sender(time.time() + shift_s, new_key())
    assert post(running, request).status_code == (401 if reason else 200)
    assert len(stored(running, request)) == (0 if reason else 1)
    if reason:
        _, found, detail = refused(running, request)
        assert found == reason
        assert "more than the tolerance of 300 s" in detail


@pytest.mark.parametrize("sender", SENDERS, ids=name_of)
def test_without_its_proof_it_is_refused(running: BoathookProcess, sender: Sender):
    request = sender(time.time(), new_key())
    bare = {name: value for name, value in request.headers.items() if not name.lower().endswith(PROOF_HEADER_SUFFIXES)}
    assert len(bare) == len(request.headers) - 1
    answer = post(running, SignedRequest(request.source, request.body, bare, request.key, request.type))
    assert answer.status_code == 401
    assert stored(running, request) == []


@pytest.mark.parametrize("sender", SIGNERS, ids=name_of)
def test_reverified_with_the_right_secret_it_is_the_same_event(
    running: BoathookProcess, sender: Sender, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name, secret in NEW_SECRETS.items():
        monkeypatch.setitem(SECRETS, name, secret)
    request = sender(time.time(), new_key())
    assert post(running, request).status_code == 401
    judged = judge_by_reverify(running, tmp_path, request, SOURCES.format(**SECRETS))
    assert (judged["outcome"], judged["detail"]) == ("accepted", request.type)
    assert stored(running, request) == [(request.source, request.type, request.key, request.grade, request.body)]


class TestSlack:
    def test_its_challenge_is_answered_and_not_stored(self, running: BoathookProcess):
        challenge = uuid.uuid4().hex
        payload = {"type": "url_verification", "challenge": challenge, "token": "old"}
        request = slack_request(time.time(), payload, "", "")
        answer = post(running, request)
        assert (answer.status_code, answer.text) == (200, challenge)
        assert answer.headers["content-type"].startswith("text/plain")
        assert rows(running, "select count(*) from boathook.event where body = %s", request.body) == [(0,)]

    def test_a_forged_challenge_is_not(self, running: BoathookProcess):
        challenge = uuid.uuid4().hex
        request = slack_request(time.time(), {"type": "url_verification", "challenge": challenge}, "", "")
        forged = SignedRequest("slack", request.body, request.headers | {"X-Slack-Signature": "v0=" + "0" * 64}, "", "")
        answer = post(running, forged)
        assert answer.status_code == 401
        assert challenge not in answer.text


class TestGitHub:
    def test_a_redelivery_is_a_duplicate(self, running: BoathookProcess):
        request = from_github(0, new_key())
        assert post(running, request, User_Agent="GitHub-Hookshot/1").json()["duplicate"] is False
        again = post(running, request, User_Agent="GitHub-Hookshot/2").json()
        assert again["duplicate"] is True
        assert "conflict" not in again
        assert effects(running, request) == [(request.key,)]

    def test_another_id_is_another_event_whatever_its_body(self, running: BoathookProcess):
        request, other = from_github(0, new_key()), new_key()
        first = post(running, request).json()
        again = SignedRequest(
            "github", request.body, request.headers | {"X-GitHub-Delivery": other}, other, request.type
        )
        answers = [post(running, again).json() for _ in range(2)]
        assert [answer["duplicate"] for answer in answers] == [False, True]
        assert answers[0]["event_id"] == answers[1]["event_id"] != first["event_id"]
        assert sorted(effects(running, request)) == sorted([(request.key,), (other,)])
        assert rows(running, "select count(*) from boathook.conflict where dedup_key = %s", other) == [(0,)]

    def test_a_captured_body_under_another_id_is_a_conflict_where_that_is_set(self, running: BoathookProcess):
        request, other = replace(from_github(0, new_key()), source="strict"), new_key()
        first = post(running, request).json()
        replayed = replace(request, headers=request.headers | {"X-GitHub-Delivery": other}, key=other)
        answers = [post(running, replayed) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [200, 200]
        for answer in answers:
            assert answer.json()["event_id"] == first["event_id"]
            assert (answer.json()["duplicate"], answer.json()["conflict"]) == (True, True)
        assert stored(running, replayed) == []
        assert rows(running, "select count(*) from boathook.event where body = %s", request.body) == [(1,)]
        found = rows(running, "select differs, seen, source from boathook.conflict where dedup_key = %s", other)
        assert found == [("key", 2, "strict")]

    def test_there_the_other_id_is_still_free_for_its_own_event(self, running: BoathookProcess):
        request, own = (replace(from_github(0, new_key()), source="strict") for _ in range(2))
        post(running, request)
        taken = replace(request, headers=request.headers | {"X-GitHub-Delivery": own.key}, key=own.key)
        assert post(running, taken).json()["conflict"] is True
        assert post(running, own).json()["duplicate"] is False

    def test_without_a_body_in_common_two_ids_are_two_effects(self, running: BoathookProcess):
        first, second = from_github(0, new_key()), from_github(0, new_key())
        assert [post(running, request).json()["duplicate"] for request in (first, second)] == [False, False]
        assert [effects(running, request) for request in (first, second)] == [[(first.key,)], [(second.key,)]]


class TestSecrets:
    @pytest.mark.parametrize(
        ("secret", "status"), [("whsec_next_of_the_tests", 200), ("whsec_last_of_the_tests", 200), ("whsec_gone", 401)]
    )
    def test_both_secrets_are_accepted_during_a_rotation(self, running: BoathookProcess, secret: str, status: int):
        request = from_stripe(time.time(), new_key(), source="rotating", secret=secret)
        assert post(running, request).status_code == status
        assert len(stored(running, request)) == (status == 200)

    def test_a_sender_may_sign_with_both(self, running: BoathookProcess):
        request = from_stripe(time.time(), new_key(), source="rotating", secret="whsec_future")
        second = stripe.WebhookSignature.generate_signature_header(
            request.body.decode(), "whsec_last_of_the_tests", timestamp=int(time.time())
        )
        header = request.headers["Stripe-Signature"] + "," + second.partition(",")[2]
        both = SignedRequest("rotating", request.body, {"Stripe-Signature": header}, request.key, request.type)
        assert post(running, request).status_code == 401
        assert post(running, both).status_code == 200

    @pytest.mark.parametrize("source", ["open", "unproven"])
    def test_an_unsigned_source_accepts_anything_with_strength_none(self, running: BoathookProcess, source: str):
        key = new_key()
        request = SignedRequest(source, json.dumps({"id": key, "n": key, "type": "x"}).encode(), {}, key, "")
        assert post(running, request).status_code == 200
        assert [row[3] for row in stored(running, request)] == ["none"]

    @pytest.mark.parametrize(
        ("lines", "words"),
        [
            ('provider = "stripe"', ["sources.shop.secrets", "there is none", "unsigned = true"]),
            ('provider = "slack"\nsecrets = []', ["sources.shop.secrets", "there is none", "unsigned = true"]),
            ('provider = "unsigned"', ["sources.shop.unsigned", "unsigned = true"]),
            ('provider = "token"\nusername = "ship"', ["sources.shop.secrets", "there is none"]),
            ('provider = "github"\nsecrets = [" "]', ["sources.shop.secrets[0]", "empty"]),
        ],
        ids=["none", "empty list", "no word of it", "no password", "blank"],
    )
    def test_a_source_without_secrets_does_not_start(self, running: BoathookProcess, tmp_path: Path, lines: str, words):
        bare = BoathookProcess(tmp_path, running.database_url, roles="gateway", extra=f"\n[sources.shop]\n{lines}\n")
        done = bare.cli("serve", check=False)
        assert done.returncode == 2, done.stderr
        for word in words:
            assert word in done.stderr
        assert "Traceback" not in done.stderr


class TestLimits:
    @pytest.mark.extended("waits for intervals and deadlines of the product")
    def test_more_than_its_rate_is_put_off(self, running: BoathookProcess):
        answers = [post(running, SignedRequest("slow", uuid.uuid4().bytes, {}, "", "")) for _ in range(4)]
        assert [answer.status_code for answer in answers] == [200, 200, 429, 429]
        assert all(1 <= int(answer.headers["retry-after"]) <= 4 for answer in answers[2:])
        assert post(running, from_stripe(time.time(), new_key())).status_code == 200, "another source has its own rate"
        # Once it has waited as long as it was told, it gets in.
        last = SignedRequest("slow", uuid.uuid4().bytes, {}, "", "")
        until(lambda: post(running, last).status_code == 200, every=0.25)

    def test_a_body_over_its_bound_is_too_large(self, running: BoathookProcess):
        sizes = {
            size: post(running, SignedRequest("small", b"x" * size, {}, "", "")).status_code
            for size in (100, 101, 5000)
        }
        assert sizes == {100: 200, 101: 413, 5000: 413}
        chunked = httpx.post(f"{running.base}/in/small", content=(b"y" * 60 for _ in range(2)), timeout=300)
        assert chunked.status_code == 413
        assert rows(running, "select distinct length(body) from boathook.event where source = 'small'") == [(100,)]

    def test_gzip_is_refused_unless_the_source_allows_it(self, running: BoathookProcess):
        plain = from_github(0, new_key())
        packed = gzip.compress(plain.body)
        signature = "sha256=" + mac(SECRETS["github"].encode(), packed).hex()
        headers = plain.headers | {"X-Hub-Signature-256": signature}
        request = SignedRequest("packed", packed, headers, plain.key, plain.type)
        assert post(running, request, to="github", Content_Encoding="gzip").status_code == 415
        assert stored(running, request) == []
        assert post(running, request, Content_Encoding="gzip").status_code == 200
        assert post(running, request, Content_Encoding="gzip").json()["duplicate"] is True
        assert stored(running, request) == [("packed", plain.type, plain.key, "body signed", plain.body)]

    @pytest.mark.parametrize(
        ("now_allowed", "outcome"), [('["gzip"]', "accepted"), ("[]", "impossible")], ids=["still", "no longer"]
    )
    def test_a_compressed_body_is_reverified_only_if_allowed(
        self, running: BoathookProcess, tmp_path: Path, now_allowed: str, outcome: str
    ):
        plain = from_github(0, new_key())
        packed = gzip.compress(plain.body)
        headers = plain.headers | {"X-Hub-Signature-256": "sha256=" + mac(b"the right one", packed).hex()}
        request = SignedRequest("packed", packed, headers, plain.key, plain.type)
        assert post(running, request, Content_Encoding="gzip").status_code == 401
        later = f"""
            [limits]
            content_encodings = ["gzip"]
            [sources.packed]
            provider = "github"
            secrets = ["the right one"]
            content_encodings = {now_allowed}
        """
        assert judge_by_reverify(running, tmp_path, request, later)["outcome"] == outcome
        assert [row[4] for row in stored(running, request)] == ([plain.body] if outcome == "accepted" else [])


def test_the_books_balance_after_all_of_it(running: BoathookProcess):
    assert post(running, from_svix(time.time(), new_key())).status_code == 200
    assert running.cli("check", "--deep").returncode == 0
