"""Traces across real processes, sent to an OTLP receiver and decoded by OpenTelemetry."""

import http.server
import json
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1 import trace_pb2

from boathook.domain import ids
from tests.acceptance.conftest import BoathookProcess, free_port, payload, signed
from tests.support import until

KINDS = trace_pb2.Span.SpanKind
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
FROM_SENDER = f"00-{TRACE}-{PARENT}-00"
HOOK = """
from opentelemetry import trace
from boathook import Boathook, Event, RetryPolicy, Transaction

hook = Boathook()

@hook.on("stripe", "order.*", retry=RetryPolicy(first_s=0.05, max_delay_s=0.1, max_attempts=4))
async def place(event: Event, tx: Transaction) -> None:
    if event.json.get("fails", 0) >= event.attempt:
        raise ConnectionError("the bank is away")
    with trace.get_tracer("shop").start_as_current_span("count stock"):
        pass
    if event.json.get("application"):
        await hook.publish(tx, application=event.json["application"], type="order.placed", payload={"id": event.json["id"]})

@hook.on("stripe", "threaded.*")
def threaded(event: Event, tx) -> None:
    with trace.get_tracer("shop").start_as_current_span("in a thread"):
        pass
"""


class Receiver:
    """A server that is a collector of traces at /v1/traces, and an endpoint everywhere else."""

    def __init__(self) -> None:
        self.spans: list[trace_pb2.Span] = []
        self.services: set[tuple[str, str]] = set()
        self.posts: list[dict[str, str]] = []
        self.headers: list[dict[str, str]] = []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                headers = {name.lower(): value for name, value in self.headers.items()}
                if self.path == "/v1/traces":
                    outer.take(body, headers)
                else:
                    outer.posts.append(headers)
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.base = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def take(self, body: bytes, headers: dict[str, str]) -> None:
        self.headers.append(headers)
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            named = {one.key: one.value.string_value for one in resource.resource.attributes}
            self.services.add((named["service.name"], named["service.instance.id"]))
            for scope in resource.scope_spans:
                self.spans += scope.spans

    def trace(self, trace_id: str) -> list[trace_pb2.Span]:
        return [span for span in list(self.spans) if span.trace_id.hex() == trace_id]

    def named(self, trace_id: str, name: str) -> list[trace_pb2.Span]:
        return [span for span in self.trace(trace_id) if span.name == name]

    def one(self, trace_id: str, name: str) -> trace_pb2.Span:
        until(lambda: self.named(trace_id, name))
        (span,) = self.named(trace_id, name)
        return span


def words(span: trace_pb2.Span) -> dict[str, Any]:
    """Return a span's attributes."""
    return {
        one.key: getattr(one.value, one.value.WhichOneof("value") or "string_value") for one in span.attributes
    }  # fmt: skip


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.server.shutdown()
    made.server.server_close()


def settings(endpoint: str, more: str = "") -> str:
    return f"""
        [outbound]
        allow = ["127.0.0.0/8"]
        [tracing]
        endpoint = "{endpoint}"
        headers = {{ x-token = "env:COLLECTOR_TOKEN" }}
        {more}
    """


def started(make: Callable[..., BoathookProcess], extra: str, **more: Any) -> BoathookProcess:
    made = make(
        roles="gateway,worker,keeper,console", senders=1, extra=extra, start=False, **more
    )  # fmt: skip
    (made.folder / "shop.py").write_text(textwrap.dedent(HOOK))
    made.environment["COLLECTOR_TOKEN"] = "let-me-in"
    made.start()
    until(lambda: httpx.get(f"{made.base}/api/v1/health/ping").status_code == 204)
    return made


@pytest.fixture(scope="module")
def running(shared_boathook: Callable[..., BoathookProcess], receiver: Receiver) -> BoathookProcess:
    made = started(shared_boathook, settings(receiver.base))
    made.cli("applications", "create", "Acme", "--uid", "acme")
    made.cli("endpoints", "create", "-a", "acme", "--url", f"{receiver.base}/hook")
    return made


def post(
    running: BoathookProcess, name: str, kind: str, headers: dict[str, str] | None = None, **more: Any
) -> dict[str, Any]:
    body, signature = signed(payload(name, kind, **more))
    answer = httpx.post(f"{running.base}/in/stripe", content=body, headers={**signature, **(headers or {})})
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


def trace_of(told: dict[str, Any]) -> str:
    return ids.read(ids.EVENT, told["event_id"]).hex


def test_one_trace_spans_request_handler_and_endpoint(running, receiver):
    post(running, "whole-1", "order.made", {"traceparent": FROM_SENDER}, application="acme")
    send = receiver.one(TRACE, "send")
    receive, commit = receiver.one(TRACE, "receive stripe"), receiver.one(TRACE, "commit")
    names = until(lambda: [one.name for one in receiver.trace(TRACE) if one.name.startswith("handle ")])
    handle = receiver.one(TRACE, names[0])
    publish, users = receiver.one(TRACE, "publish"), receiver.one(TRACE, "count stock")
    assert receive.parent_span_id.hex() == PARENT
    assert commit.parent_span_id == receive.span_id
    assert handle.parent_span_id == receive.span_id
    assert users.parent_span_id == handle.span_id
    assert publish.parent_span_id == handle.span_id
    assert send.parent_span_id == publish.span_id
    assert [span.kind for span in (receive, commit, handle, publish, send)] == [
        KINDS.SPAN_KIND_SERVER, KINDS.SPAN_KIND_INTERNAL, KINDS.SPAN_KIND_CONSUMER, KINDS.SPAN_KIND_PRODUCER,
        KINDS.SPAN_KIND_CLIENT,
    ]  # fmt: skip
    assert receive.start_time_unix_nano <= commit.start_time_unix_nano <= commit.end_time_unix_nano
    assert commit.end_time_unix_nano <= receive.end_time_unix_nano
    assert all(span.end_time_unix_nano >= span.start_time_unix_nano for span in receiver.trace(TRACE))
    # The endpoint is told which span called it, so that its own spans hang below.
    (sent,) = [one for one in receiver.posts if TRACE in one.get("traceparent", "")]
    assert sent["traceparent"] == f"00-{TRACE}-{send.span_id.hex()}-01"
    roles = {instance.partition("-")[0] for service, instance in receiver.services if service == "boathook"}
    assert {"gateway", "worker", "sender"} <= roles
    assert receiver.headers[0]["x-token"] == "let-me-in"
    assert words(send)["http.response.status_code"] == 200
    assert words(handle)["boathook.outcome"] == "succeeded"


def test_without_a_senders_trace_the_event_id_is_the_trace_id(running, receiver):
    trace = trace_of(post(running, "own-1", "order.made"))
    receive = receiver.one(trace, "receive stripe")
    assert receive.parent_span_id == b""
    assert words(receive)["messaging.message.id"] == ids.show(ids.EVENT, ids.read("evt", trace_uuid(trace)))


def trace_uuid(trace: str) -> str:
    import uuid

    return str(uuid.UUID(hex=trace))


def test_each_attempt_is_a_span_with_its_error(running, receiver):
    trace = trace_of(post(running, "twice-1", "order.made", fails=2))
    until(lambda: len([one for one in receiver.trace(trace) if one.name.startswith("handle ")]) == 3)
    attempts = sorted(
        (one for one in receiver.trace(trace) if one.name.startswith("handle ")),
        key=lambda one: one.start_time_unix_nano,
    )
    assert [words(one)["boathook.attempt"] for one in attempts] == [1, 2, 3]
    assert [words(one)["boathook.outcome"] for one in attempts] == ["failed", "failed", "succeeded"]
    assert attempts[0].status.code == trace_pb2.Status.STATUS_CODE_ERROR
    assert "the bank is away" in attempts[0].status.message
    assert words(attempts[0])["error.type"] == "ConnectionError"
    assert len({one.span_id for one in attempts}) == 3
    assert {one.parent_span_id for one in attempts} == {receiver.one(trace, "receive stripe").span_id}


def test_a_sync_handlers_own_spans_belong_to_its_attempt(running, receiver):
    trace = trace_of(post(running, "thread-1", "threaded.one"))
    inner = receiver.one(trace, "in a thread")
    (handle,) = [one for one in receiver.trace(trace) if one.name.startswith("handle ")]
    assert inner.parent_span_id == handle.span_id


@pytest.mark.extended("repeats what stays with other values")
def test_a_duplicate_has_its_own_trace_linked_to_the_first(running, receiver):
    first = post(running, "copy-1", "order.made")
    receive = receiver.one(trace_of(first), "receive stripe")
    assert post(running, "copy-1", "order.made")["duplicate"]

    def copies() -> list[trace_pb2.Span]:
        return [one for one in receiver.spans if one.links and one.links[0].span_id == receive.span_id]

    until(copies)
    (copy,) = copies()
    assert words(copy)["boathook.duplicate"] is True
    assert copy.trace_id != receive.trace_id


@pytest.mark.extended("repeats what stays with other values")
def test_a_publisher_over_the_api_is_followed_too(running, receiver):
    token = json.loads(running.cli("keys", "create", "--scope", "organization", "--json").stdout)["token"]
    trace = "aaaa2f3577b34da6a3ce929d0e0e4736"
    answer = httpx.post(
        f"{running.base}/api/v1/app/acme/msg",
        json={"eventType": "invoice.paid", "payload": {"n": 1}},
        headers={"authorization": f"Bearer {token}", "traceparent": f"00-{trace}-{PARENT}-01"},
    )
    assert answer.status_code == 202
    publish, send = receiver.one(trace, "publish"), receiver.one(trace, "send")
    assert send.parent_span_id == publish.span_id
    # Between the two there may be spans of the framework, exported when they end.
    until(lambda: _first_parent(receiver, publish) == PARENT)


def _first_parent(receiver: Receiver, span: trace_pb2.Span) -> str:
    """Return the parent of a span's first ancestor that is known."""
    known = {one.span_id: one for one in receiver.trace(span.trace_id.hex())}
    while span.parent_span_id in known:
        span = known[span.parent_span_id]
    return span.parent_span_id.hex()


def test_refused_requests_leave_no_trace(running, receiver):
    body, headers = signed(payload("forged-1", "order.made"), secret="whsec_wrong")
    assert httpx.post(f"{running.base}/in/stripe", content=body, headers=headers).status_code == 401
    # What comes after it has arrived, so it would have as well.
    trace = trace_of(post(running, "after-forged", "order.made"))
    receiver.one(trace, "receive stripe")
    assert not [one for one in receiver.spans if words(one).get("http.response.status_code") == 401]


def test_spans_contain_no_secrets(running, receiver):
    trace = trace_of(post(running, "hush-1", "order.made"))
    receiver.one(trace, "receive stripe")
    told = b"".join(span.SerializeToString() for span in list(receiver.spans))
    for secret in (b"whsec_acceptance", b"v1=", b"/hook", b"let-me-in", b"stripe-signature"):
        assert secret not in told


@pytest.mark.extended("kills or freezes processes again and again; the smokes of tests/faults stay")
def test_a_killed_worker_does_not_break_traces(boathook, receiver):
    own = started(boathook, settings(receiver.base))
    traces = []
    for number in range(6):
        traces.append(trace_of(post(own, f"killed-{number}", "order.made", fails=1)))
        if number == 3:
            own.kill("worker")
            own.kill("gateway")
            own.wait_ready()
    assert own.cli("check", check=False).returncode in {0, 1}

    def is_whole(trace: str) -> bool:
        handled = [one for one in receiver.trace(trace) if one.name.startswith("handle ")]
        done = [one for one in handled if words(one)["boathook.outcome"] == "succeeded"]
        return len(done) == 1

    # The gateway's or worker's last second may be lost with it; what is told of later hangs where it belongs.
    until(lambda: all(map(is_whole, traces[4:])))
    for trace in traces[4:]:
        receive = receiver.one(trace, "receive stripe")
        assert {one.parent_span_id for one in receiver.trace(trace) if one.name.startswith("handle ")} == {
            receive.span_id
        }
    until(lambda: not own.listing("deliveries", "list", "--state", "pending"))


@pytest.mark.extended("waits for intervals and deadlines of the product")
def test_an_unavailable_collector_does_not_delay_work(boathook):
    with _Hanging() as port:
        own = started(boathook, settings(f"http://127.0.0.1:{port}", "queue = 8"))
        for number in range(40):
            assert not post(own, f"away-{number}", "order.made")["duplicate"]
        until(lambda: len(own.listing("deliveries", "list", "--state", "succeeded", "--limit", "100")) == 40)
        began = time.monotonic()
        assert own.stop() == 0
        assert time.monotonic() - began < 20
    assert own.log().count("Queue full") == 0
    away = started(boathook, settings(f"http://127.0.0.1:{free_port()}"))
    post(away, "away-more", "order.made")
    until(lambda: "traces_dropped" in away.log())
    until(lambda: len(away.listing("deliveries", "list", "--state", "succeeded", "--limit", "100")) == 41)


class _Hanging:
    """A server that takes connections and never answers."""

    def __enter__(self) -> int:
        import socket

        self._socket = socket.create_server(("127.0.0.1", 0))
        port: int = self._socket.getsockname()[1]
        return port

    def __exit__(self, *_: object) -> None:
        self._socket.close()


@pytest.mark.extended("waits for intervals and deadlines of the product")
def test_traces_are_not_propagated_if_disabled(boathook, receiver):
    own = started(boathook, settings(receiver.base, "propagate = false\nincoming = 'ignore'"))
    own.cli("applications", "create", "Acme", "--uid", "acme")
    own.cli("endpoints", "create", "-a", "acme", "--url", f"{receiver.base}/quiet")
    trace = "bbbb2f3577b34da6a3ce929d0e0e4736"
    before = len(receiver.posts)
    told = post(own, "quiet-1", "order.made", {"traceparent": f"00-{trace}-{PARENT}-01"}, application="acme")
    receiver.one(trace_of(told), "send")
    assert not receiver.trace(trace)
    assert all("traceparent" not in one for one in receiver.posts[before:])
