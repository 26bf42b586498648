"""Fetched keys, confirmed subscriptions and handshake secrets, through the ingest path with a fake fetcher."""

import asyncio
import json
import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from boathook.config import load
from boathook.domain.errors import ConfigError, FetchFailed
from boathook.domain.filters import Router
from boathook.domain.model import Accepted, NewEvent
from boathook.http.limits import RateLimiter
from boathook.ingest import handshake_secrets, verification_io
from boathook.ingest.app import IngestApp
from boathook.ingest.event_builder import EventBuilder
from boathook.ingest.handshake_secrets import HandshakeSecrets
from boathook.ingest.pipeline import IngestPipeline
from boathook.ingest.sources import compile_sources, dedup_days_by_source
from boathook.ingest.verification_io import VerificationIO
from boathook.testing import make_keys, sign, signed_request
from boathook.verification.keyring import KeyRing

TOPIC = "arn:aws:sns:eu-central-1:123456789012:a"
CERTIFICATE = "https://sns.eu-central-1.amazonaws.com/SimpleNotificationService-0123456789abcdef.pem"
CONFIRM = f"https://sns.eu-central-1.amazonaws.com/?Action=ConfirmSubscription&TopicArn={TOPIC}&Token=abc123"
SENT_SECRET = "secret_0123456789abcdef"


class Web:
    """Fake pages by URL; it counts requests, and fails for missing pages."""

    def __init__(self, **pages):
        self.pages = pages
        self.asked = []

    async def __call__(self, url, *, max_bytes):
        self.asked.append(url)
        await asyncio.sleep(0)
        if url not in self.pages:
            raise FetchFailed("the server answered with status 404")
        return self.pages[url]


class Gateway:
    """The ingest path of one process, with lists as store and quarantine."""

    def __init__(self, folder, web, **sources):
        self.settings = load(None, {"server": {"data_dir": str(folder)}, "sources": sources})
        self.compiled_sources = compile_sources(self.settings)
        self.events: list[NewEvent] = []
        self.rejected: list[tuple] = []
        shelf = SimpleNamespace(put=self._put)
        quarantine = SimpleNamespace(admit=lambda *_: True, add=lambda *args, size: self.rejected.append((*args, size)))
        pipeline = IngestPipeline(
            self.compiled_sources,
            shelf,
            EventBuilder(Router((), 1), None),
            quarantine=quarantine,
            verification_io=None if web is None else VerificationIO(web, HandshakeSecrets(folder)),
        )
        self.app = IngestApp(pipeline, others=None)

    def _put(self, event, waiter):
        self.events.append(event)
        waiter.set_result(Accepted(event.id))

    async def post(self, source, body, headers):
        said = []

        async def receive():
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message):
            said.append(message)

        path = f"/in/{source}"
        scope = {"path": path, "raw_path": path.encode(), "query_string": b"", "method": "POST"}
        scope |= {"headers": [(k.encode(), v.encode()) for k, v in headers.items()], "client": ("127.0.0.1", 1)}
        await self.app(scope, receive, send)
        self.headers = dict(said[0]["headers"])
        return said[0]["status"]


@pytest.fixture(scope="module")
def keys():
    return make_keys("sns", topic_arn=TOPIC)


def note(keys, **changes):
    """An SNS message with the current time."""
    body = {"Type": "Notification", "MessageId": "m1", "TopicArn": TOPIC, "Message": "{}"} | changes
    body |= {"SignatureVersion": "2", "SigningCertURL": changes.get("SigningCertURL", CERTIFICATE)}
    return signed_request("sns", keys.private, json.dumps(body).encode(), topic_arn=TOPIC)


def confirmation(keys, url=CONFIRM):
    return note(keys, Type="SubscriptionConfirmation", SubscribeURL=url, Token="abc123")


@pytest.fixture
def web(keys):
    return Web(**{CERTIFICATE: keys.public.encode(), CONFIRM: b"<ConfirmSubscriptionResponse/>"})


@pytest.fixture
def gateway(tmp_path, web):
    return Gateway(tmp_path, web, sns={"topic_arn": TOPIC}, notion={"provider": "notion"})


# Keys.


async def test_a_required_key_is_fetched_once(gateway, web, keys):
    for number in range(3):
        message = note(keys, MessageId=f"m{number}")
        assert await gateway.post("sns", message.body, message.headers) == 200
    assert web.asked == [CERTIFICATE]
    assert len(gateway.events) == 3


async def test_an_unavailable_key_answers_503_without_a_rejection(gateway, web, keys):
    del web.pages[CERTIFICATE]
    message = note(keys)
    assert await gateway.post("sns", message.body, message.headers) == 503
    assert gateway.headers[b"retry-after"] == b"30"
    assert gateway.rejected == gateway.events == []
    web.pages[CERTIFICATE] = keys.public.encode()
    assert await gateway.post("sns", message.body, message.headers) == 200


async def test_without_a_fetcher_the_answer_is_503(tmp_path, keys):
    gateway = Gateway(tmp_path, None, sns={"topic_arn": TOPIC}, notion={"provider": "notion"})
    for message in (note(keys), SimpleNamespace(body=secret_body(), headers={})):
        source = "sns" if message.headers else "notion"
        assert await gateway.post(source, message.body, message.headers) == 503


async def test_a_stale_key_is_used_while_its_url_fails(gateway, web, keys, monkeypatch):
    message = note(keys)
    assert await gateway.post("sns", message.body, message.headers) == 200
    del web.pages[CERTIFICATE]
    later = time.time() + 7_200
    monkeypatch.setattr(time, "time", lambda: later)
    assert await gateway.post("sns", message.body, message.headers) == 200
    assert web.asked == [CERTIFICATE, CERTIFICATE]
    assert await gateway.post("sns", message.body, message.headers) == 200
    assert web.asked == [CERTIFICATE, CERTIFICATE]


async def test_mutant_without_prolonging_an_old_key_would_be_useless(gateway, web, keys, monkeypatch):
    message = note(keys)
    assert await gateway.post("sns", message.body, message.headers) == 200
    del web.pages[CERTIFICATE]
    later = time.time() + 7_200
    monkeypatch.setattr(time, "time", lambda: later)
    monkeypatch.setattr(KeyRing, "extend", lambda *_: False)
    assert await gateway.post("sns", message.body, message.headers) == 503


async def test_forged_key_urls_are_fetched_at_a_limited_rate(gateway, web, keys):
    message = note(keys)
    assert await gateway.post("sns", message.body, message.headers) == 200
    web.asked.clear()
    for number in range(200):
        forged = CERTIFICATE.replace("0123456789abcdef", f"{number:032x}")
        flood = message.body.replace(CERTIFICATE.encode(), forged.encode())
        assert await gateway.post("sns", flood, message.headers) == 503
    assert len(web.asked) <= verification_io.NEW_KEYS_BURST + 10
    # A key that is known is not held up by the flood.
    assert await gateway.post("sns", message.body, message.headers) == 200
    assert gateway.rejected == []


async def test_mutant_without_that_rate_each_forged_address_would_be_fetched(gateway, web, keys, monkeypatch):
    monkeypatch.setattr(RateLimiter, "wait_s", lambda *_: 0.0)
    message = note(keys)
    for number in range(60):
        forged = CERTIFICATE.replace("0123456789abcdef", f"{number:032x}")
        await gateway.post("sns", message.body.replace(CERTIFICATE.encode(), forged.encode()), message.headers)
    assert len(web.asked) == 60


@pytest.mark.parametrize(
    "url",
    [
        "https://evil.test/a.pem",
        "https://169.254.169.254/",
        "http://sns.eu-central-1.amazonaws.com/SimpleNotificationService-0123456789abcdef.pem",
    ],
)
async def test_a_certificate_on_another_host_is_never_fetched(gateway, web, keys, url):
    message = note(keys, SigningCertURL=url)
    assert await gateway.post("sns", message.body, message.headers) == 401
    assert web.asked == []
    assert len(gateway.rejected) == 1


async def test_a_message_changed_on_the_way_is_refused(gateway, keys):
    message = note(keys)
    assert await gateway.post("sns", message.body.replace(b'"m1"', b'"m2"'), message.headers) == 401
    assert gateway.events == []


# Visits.


async def test_a_subscription_is_confirmed_by_visiting_the_senders_own_host(gateway, web, keys):
    message = confirmation(keys)
    assert await gateway.post("sns", message.body, message.headers) == 200
    assert web.asked == [CERTIFICATE, CONFIRM]
    assert gateway.events == []


async def test_a_failed_confirmation_is_answered_503(gateway, web, keys):
    del web.pages[CONFIRM]
    message = confirmation(keys)
    assert await gateway.post("sns", message.body, message.headers) == 503
    assert b"retry-after" in gateway.headers
    web.pages[CONFIRM] = b""
    assert await gateway.post("sns", message.body, message.headers) == 200


async def test_a_question_sent_over_and_over_is_visited_a_few_times_only(gateway, web, keys):
    message = confirmation(keys)
    answers = [await gateway.post("sns", message.body, message.headers) for _ in range(30)]
    assert set(answers) == {200, 503}
    assert web.asked.count(CONFIRM) == answers.count(200) < 20


@pytest.mark.parametrize(
    "url", ["https://evil.test/?Action=ConfirmSubscription", "https://127.0.0.1/?Action=ConfirmSubscription&Token=a"]
)
async def test_no_other_host_is_visited_though_the_message_is_signed(gateway, web, keys, url):
    message = confirmation(keys, url)
    assert await gateway.post("sns", message.body, message.headers) == 400
    assert url not in web.asked


async def test_an_unsigned_confirmation_is_not_visited(gateway, web, keys):
    message = confirmation(keys)
    assert await gateway.post("sns", message.body.replace(b'"m1"', b'"m2"'), message.headers) == 401
    assert CONFIRM not in web.asked


# Handshake secrets.


def secret_body(secret=SENT_SECRET):
    return json.dumps({"verification_token": secret}).encode()


def event(secret=SENT_SECRET, number=1):
    body = json.dumps({"id": f"e{number}", "type": "page.created"}).encode()
    return body, sign("notion", secret, body)


async def test_a_handshake_secret_is_used_once_confirmed(tmp_path, web, gateway):
    other = Gateway(tmp_path, web, notion={"provider": "notion"})
    assert await gateway.post("notion", *event()) == 401
    assert await gateway.post("notion", secret_body(), {}) == 200
    assert await gateway.post("notion", secret_body(), {}) == 200
    assert await gateway.post("notion", *event()) == 401
    assert HandshakeSecrets(tmp_path).confirm("notion") == SENT_SECRET
    for one in (gateway, other, Gateway(tmp_path, web, notion={"provider": "notion"})):
        assert await one.post("notion", *event()) == 200
        assert len(one.events) == 1
    assert await gateway.post("notion", *event("secret_of_somebody_else")) == 401


async def test_only_the_first_handshake_secret_is_kept(tmp_path, gateway):
    assert await gateway.post("notion", secret_body(), {}) == 200
    assert await gateway.post("notion", secret_body("secret_of_somebody_else"), {}) == 401
    assert [str(rejected[3].reason) for rejected in gateway.rejected] == ["challenge_refused"]
    HandshakeSecrets(tmp_path).confirm("notion")
    assert await gateway.post("notion", secret_body("secret_of_somebody_else"), {}) == 401
    assert HandshakeSecrets(tmp_path).confirmed("notion") == SENT_SECRET


async def test_a_forgotten_handshake_secret_can_be_replaced(tmp_path, gateway):
    secrets = HandshakeSecrets(tmp_path)
    await gateway.post("notion", secret_body("secret_of_somebody_else"), {})
    secrets.confirm("notion")
    assert await gateway.post("notion", *event("secret_of_somebody_else")) == 200
    assert secrets.forget("notion")
    assert not secrets.forget("notion")
    assert await gateway.post("notion", *event("secret_of_somebody_else")) == 401
    assert await gateway.post("notion", secret_body(), {}) == 200
    secrets.confirm("notion")
    assert await gateway.post("notion", *event()) == 200


async def test_a_configured_secret_overrides_a_handshake_secret(tmp_path, web):
    secrets = HandshakeSecrets(tmp_path)
    secrets.save("notion", "secret_of_somebody_else")
    secrets.confirm("notion")
    gateway = Gateway(tmp_path, web, notion={"secrets": [SENT_SECRET]})
    assert await gateway.post("notion", *event("secret_of_somebody_else")) == 401
    assert await gateway.post("notion", secret_body("secret_of_somebody_else"), {}) == 401
    assert await gateway.post("notion", *event()) == 200


async def test_a_leftover_file_is_ignored_without_a_handshake(tmp_path, web):
    secrets = HandshakeSecrets(tmp_path)
    secrets.save("github", "secret_of_somebody_else")
    secrets.confirm("github")
    with pytest.raises(ConfigError, match=r"sources\.github\.secrets"):
        Gateway(tmp_path, web, github={"provider": "github"})


def test_the_secret_file_is_private_and_atomic(tmp_path):
    secrets = HandshakeSecrets(tmp_path)
    assert secrets.save("notion", SENT_SECRET)
    folder = tmp_path / "captured"
    (file,) = folder.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700
    assert file.read_text() == SENT_SECRET
    assert secrets.confirmed("notion") is None
    assert secrets.confirm("notion") == secrets.confirm("notion") == SENT_SECRET
    assert [one.name for one in folder.iterdir()] == ["notion.secret"]


def test_a_crash_before_the_name_is_given_leaves_nothing_that_counts(tmp_path, monkeypatch):
    def crash(*_):
        raise OSError("no space left")

    monkeypatch.setattr(os, "link", crash)
    with pytest.raises(OSError, match="no space"):
        HandshakeSecrets(tmp_path).save("notion", SENT_SECRET)
    monkeypatch.undo()
    assert HandshakeSecrets(tmp_path).confirm("notion") is None
    assert HandshakeSecrets(tmp_path).save("notion", "secret_told_afterwards")


def save_concurrently(folder, number=16):
    barrier = threading.Barrier(number)
    kept = []

    def save(place):
        barrier.wait()
        if HandshakeSecrets(folder).save("notion", f"secret_number_{place}"):
            kept.append(place)

    threads = [threading.Thread(target=save, args=(place,)) for place in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return kept


def test_of_concurrent_handshakes_one_secret_is_kept(tmp_path):
    for attempt in range(20):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        (kept,) = save_concurrently(folder)
        assert HandshakeSecrets(folder).confirm("notion") == f"secret_number_{kept}"


def test_mutant_with_a_replacing_rename_several_would_believe_to_be_first(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "link", Path.replace)
    monkeypatch.setattr(handshake_secrets, "_read", lambda _file: None)
    monkeypatch.setattr(Path, "unlink", lambda *_: None)
    assert len(save_concurrently(tmp_path)) > 1


@pytest.mark.parametrize("name", ["..", "../../x", "a/b", ".", "ünïcode", "a b"])
def test_no_name_of_a_source_leads_out_of_the_folder(tmp_path, name):
    home = tmp_path / "data"
    home.mkdir()
    secrets = HandshakeSecrets(home)
    assert secrets.save(name, SENT_SECRET)
    assert secrets.confirm(name) == SENT_SECRET
    assert len(list((home / "captured").iterdir())) == 1
    assert list(tmp_path.iterdir()) == [home]


# Memory.


def test_dedup_retention_exceeds_the_providers_last_retry(monkeypatch):
    sources = {
        "stripe": {"secrets": ["x"]},
        "plain": {"provider": "hmac", "header": "x-signature", "secrets": ["x"]},
        "mine": {"provider": "stripe", "dedup_days": 1, "secrets": ["x"]},
    }
    settings = load(None, {"retention": {"dedup_days": 1.5}, "sources": sources})
    assert dedup_days_by_source(settings) == {"stripe": 4.0, "mine": 1}
    assert dedup_days_by_source(load(None, {"sources": sources})) == {"mine": 1}
