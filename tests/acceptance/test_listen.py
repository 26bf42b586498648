"""`boathook listen` against a real gateway: far away by its API and near by its database, on to a server of one's own."""

import contextlib
import http.server
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from tests.acceptance.conftest import SECRET, BoathookProcess, free_port, payload, signed
from tests.support import until

LOCAL_SECRET = "whsec_of_my_own_machine"
STANDARD = "whsec_" + "c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0"
EXTRA = """
    [sources.own]
    provider = "hmac"
    secrets = ["sixteen-letters!"]
    header = "X-Own"
    prefix = "v1="
    timestamp_header = "X-Own-At"
    type_header = "X-Kind"
"""


class Local:
    """A local server that records its requests."""

    def __init__(self) -> None:
        self.got: list[tuple[str, str, dict[str, str], bytes]] = []
        self.status = 200
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                outer.got.append((self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, body))
                answer = f"seen {len(outer.got)}".encode()
                self.send_response(outer.status)
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/hook"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def bodies(self) -> list[Any]:
        return [json.loads(body)["id"] for _, _, _, body in self.got]

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


class Listening:
    """One `boathook listen` under way."""

    def __init__(self, running: BoathookProcess, *arguments: str, far: bool = True, **environment: str) -> None:
        where = ("--url", running.base) if far else ()
        self.lines: list[str] = []
        self.said: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "boathook", "listen", *where, *arguments],
            cwd=running.folder,
            env={**running.environment, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        for stream, lines in ((self.process.stdout, self.lines), (self.process.stderr, self.said)):
            threading.Thread(target=lambda s=stream, to=lines: to.extend(iter(s.readline, "")), daemon=True).start()

    def objects(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]

    def end(self) -> int:
        self.process.send_signal(2)
        return self.process.wait(300)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(300)
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()


@pytest.fixture(scope="module")
def running(shared_boathook: Callable[..., BoathookProcess]) -> BoathookProcess:
    made = shared_boathook(roles="gateway,worker,keeper,console", extra=EXTRA)
    until(lambda: httpx.get(f"{made.base}/api/v1/health/ping").status_code == 204)
    return made


@pytest.fixture(scope="module")
def key(running: BoathookProcess) -> str:
    token: str = json.loads(running.cli("keys", "create", "--scope", "organization", "--json").stdout)["token"]
    return token


@pytest.fixture
def local() -> Iterator[Local]:
    with contextlib.closing(Local()) as made:
        yield made


@pytest.fixture
def listen(running: BoathookProcess, key: str) -> Iterator[Callable[..., Listening]]:
    made: list[Listening] = []

    def start(*arguments: str, **more: Any) -> Listening:
        begun = Listening(more.pop("at", running), *arguments, BOATHOOK_API_KEY=key, **more)
        made.append(begun)
        return begun

    yield start
    for one in made:
        one.close()


def post(running: BoathookProcess, name: str, kind: str = "payment.paid", **more: Any) -> str:
    body, headers = signed(payload(name, kind), **more)
    answer = httpx.post(f"{running.base}/in/stripe", content=body, headers=headers)
    assert answer.status_code == 200, answer.text
    event_id: str = answer.json()["event_id"]
    return event_id


def listens(running: BoathookProcess, listening: Listening, local_or_lines: Callable[[], int]) -> None:
    """Send markers until the listener has received one."""
    before = local_or_lines()

    def has_come() -> bool:
        post(running, f"marker-{time.time_ns()}", "marker.set")
        return local_or_lines() > before

    until(has_come, every=0.3)
    assert listening.process.poll() is None


def test_events_of_a_remote_gateway_are_shown(running, listen):
    listening = listen("--json", "--source", "stripe")
    listens(running, listening, lambda: len(listening.lines))
    event_id = post(running, "shown-1")
    until(lambda: any(one["id"] == event_id for one in listening.objects()))
    (shown,) = [one for one in listening.objects() if one["id"] == event_id]
    assert (shown["source"], shown["type"]) == ("stripe", "payment.paid")
    assert "Listening at" in listening.said[0]
    assert running.base in listening.said[0]
    assert listening.end() == 0


def test_events_are_forwarded_and_verify_with_the_providers_library(running, listen, local):
    import stripe

    body, headers = signed(payload("old-1", "refund.made", text="ümläut  \u2603"), at=time.time() - 250)
    assert httpx.post(f"{running.base}/in/stripe", content=body, headers=headers).status_code == 200
    listening = listen("--type", "refund.*", "--since", "5m", "--forward-to", local.url, "--secret", LOCAL_SECRET)
    until(lambda: local.got)
    _, path, sent, got = local.got[0]
    assert (path, got) == ("/hook", body)
    # The sender's proof is four minutes old; this one is of now, and for the local secret.
    stripe.WebhookSignature.verify_header(got.decode(), sent["stripe-signature"], LOCAL_SECRET, tolerance=60)
    with pytest.raises(stripe.SignatureVerificationError):
        stripe.WebhookSignature.verify_header(got.decode(), sent["stripe-signature"], SECRET)
    until(lambda: any("200" in line and "refund.made" in line and " ms" in line for line in listening.lines))


@pytest.mark.extended("starts several servers of its own")
def test_generic_sources_are_signed_by_their_own_settings(running, listen, local):
    from boathook.testing import sign

    options = {"header": "X-Own", "prefix": "v1=", "timestamp_header": "X-Own-At", "type_header": "X-Kind"}
    body = b'{"n": 1}'
    headers = {**sign("hmac", "sixteen-letters!", body, type="grown", **options), "content-type": "application/json"}
    assert httpx.post(f"{running.base}/in/own", content=body, headers=headers).status_code == 200
    listen("--source", "own", "--since", "10m", "--forward-to", local.url, "--secret", "a-secret-of-my-own")
    until(lambda: local.got)
    _, _, sent, got = local.got[0]
    assert got == body
    again = sign(
        "hmac", "a-secret-of-my-own", body, type="grown", timestamp=float(sent["x-own-at"]), **options
    )  # fmt: skip
    assert (sent["x-own"], sent["x-kind"]) == (again["x-own"], "grown")


@pytest.mark.extended("starts several servers of its own")
def test_without_a_secret_headers_are_forwarded_unsigned(running, listen, local):
    post(running, "plain-1", "plain.sent")
    listening = listen("--type", "plain.*", "--since", "10m", "--forward-to", local.url)
    until(lambda: local.got)
    assert "stripe-signature" not in local.got[0][2]
    assert local.got[0][2]["content-type"] == "application/json"
    assert "not signed" in listening.said[0]


@pytest.mark.extended("starts several servers of its own")
def test_messages_are_signed_like_deliveries(running, listen, local, key):
    from standardwebhooks import Webhook

    api = httpx.Client(base_url=f"{running.base}/api/v1", headers={"authorization": f"Bearer {key}"})
    with api:
        api.post("/app", json={"name": "Acme", "uid": "acme"})
        made = api.post("/app/acme/msg", json={"eventType": "invoice.paid", "payload": {"id": "inv"}}).json()
    listen("--application", "acme", "--since", "10m", "--forward-to", local.url, "--secret", STANDARD)
    until(lambda: local.got)
    _, _, sent, got = local.got[0]
    assert Webhook(STANDARD).verify(got, sent) == {"id": "inv"}
    assert sent["webhook-id"] == made["id"]


@pytest.mark.extended("starts several servers of its own")
def test_responses_are_shown_and_failed_ones_with_their_body(running, listen, local):
    local.status = 500
    post(running, "bad-1", "bad.luck")
    listening = listen("--type", "bad.*", "--since", "10m", "--forward-to", local.url)
    until(lambda: len(listening.lines) >= 2)
    assert "500" in listening.lines[0]
    assert "seen 1" in listening.lines[1]


@pytest.mark.extended("starts several servers of its own")
def test_an_unreachable_local_server_is_reported_and_skipped(running, listen):
    post(running, "away-1", "away.one")
    post(running, "away-2", "away.two")
    listening = listen(
        "--type", "away.*", "--since", "10m", "--forward-to", f"localhost:{free_port()}/hook", "--limit", "2"
    )
    assert listening.process.wait(300) == 0
    until(lambda: len(listening.lines) == 2 and any("2 events" in line for line in listening.said))
    assert all("not answered" in line and "onnect" in line for line in listening.lines)
    assert "2 not answered" in "".join(listening.said)


@pytest.mark.extended("starts several servers of its own")
def test_with_retry_an_event_waits_for_the_local_server(running, listen):
    post(running, "patient-1", "patient.one")
    port = free_port()
    listening = listen(
        "--type", "patient.*", "--since", "10m", "--forward-to", f"localhost:{port}", "--retry", "60", "--limit", "1"
    )
    until(lambda: any("retrying" in line for line in listening.said))
    with _answering(port):
        assert listening.process.wait(300) == 0
    until(lambda: any("200" in line for line in listening.lines))


@contextmanager
def _answering(port: int) -> Iterator[None]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield
        server.shutdown()


def test_without_a_url_it_listens_to_the_local_database(running, listen):
    event_id = post(running, "near-1", "near.one")
    listening = listen("--type", "near.*", "--since", "10m", "--limit", "1", "--json", "--verbose", far=False)
    assert listening.process.wait(300) == 0
    until(lambda: listening.lines)
    (shown,) = listening.objects()
    assert (shown["id"], json.loads(shown["body"])["id"]) == (event_id, "near-1")


def test_an_unknown_source_is_mentioned(running, listen):
    listening = listen("--source", "strip", far=False)
    until(lambda: any("no source is called strip" in line and "stripe" in line for line in listening.said))


@pytest.mark.extended("waits for intervals and deadlines of the product")
def test_a_broken_connection_loses_nothing_and_repeats_nothing(boathook, local, listen):
    own = boathook(roles="gateway,worker,keeper,console")
    until(lambda: httpx.get(f"{own.base}/api/v1/health/ping").status_code == 204)
    token = json.loads(own.cli("keys", "create", "--scope", "organization", "--json").stdout)["token"]
    listening = listen("--since", "1m", "--forward-to", local.url, "--key", token, at=own)
    sent = [f"kept-{n}" for n in range(30)]
    for number, name in enumerate(sent):
        if number in {10, 20}:
            until(lambda: local.got)
            own.kill("gateway")
            own.wait_ready()
        _post_until_taken(own, name)
    until(lambda: set(sent) <= set(local.bodies()))
    assert sorted(local.bodies()) == sorted(sent)
    until(lambda: any("nothing was missed" in line for line in listening.said))
    assert listening.process.poll() is None


def _post_until_taken(running: BoathookProcess, name: str) -> None:
    def is_taken() -> bool:
        body, headers = signed(payload(name))
        try:
            return httpx.post(f"{running.base}/in/stripe", content=body, headers=headers).status_code == 200
        except httpx.TransportError:
            return False

    until(is_taken)


@pytest.mark.extended("waits for intervals and deadlines of the product")
def test_a_stopping_gateway_does_not_wait_for_listeners(boathook, listen):
    own = boathook(roles="gateway,console", extra="")
    until(lambda: httpx.get(f"{own.base}/api/v1/health/ping").status_code == 204)
    token = json.loads(own.cli("keys", "create", "--scope", "organization", "--json").stdout)["token"]
    listening = listen("--json", "--key", token, at=own)
    listens(own, listening, lambda: len(listening.lines))
    began = time.monotonic()
    assert own.stop() == 0
    # There is no hurry: draining may take 20 seconds.
    assert time.monotonic() - began < 15
    until(lambda: any("connection lost" in line for line in listening.said))


@pytest.mark.extended("starts a process for every command")
def test_wrong_options_are_explained_in_one_sentence(running):
    def complaint(*arguments: str, **environment: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "boathook", "listen", *arguments], cwd=running.folder, check=False, timeout=300,
            env={**running.environment, **environment}, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 2, done.stderr
        assert "Traceback" not in done.stderr
        return done.stderr

    assert "BOATHOOK_API_KEY is not set" in complaint("--url", running.base)
    assert "keys create" in complaint("--url", running.base, "--key", "bhk_wrong")
    assert "role console" in complaint("--url", f"{running.base}/nowhere", "--key", "x")
    assert "cannot listen to" in complaint("--url", f"127.0.0.1:{free_port()}", "--key", "x")
    assert "--forward-to" in complaint("--secret", "x")
    assert "--forward-to" in complaint("--forward-to", "ftp://x")
    assert "whsec_" in complaint("--application", "a", "--forward-to", "localhost:1", "--secret", "x")
