"""The ingest path as a raw ASGI application: bytes in, status out.

A request passes, in this order: its source, the method, the rates, the encoding and size it announces, the size it
really has, its proof, and only then the journal. What fails answers in one word; why is for the operator's eyes.
"""

import hashlib
import json
import math
import os
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any, Final, Protocol, assert_never

from boathook.config import Network
from boathook.domain import ids
from boathook.domain.errors import JournalUnavailable, Overloaded, RegistryChanged, SpoolUnavailable, TooManyDeliveries
from boathook.domain.model import Accepted, Duplicate, NewEvent, Receipt
from boathook.inbound.arrival import Arrivals
from boathook.inbound.encoding import Decoder
from boathook.inbound.errands import RETRY_S, Errands, Failed
from boathook.inbound.gates import Gate
from boathook.inbound.inline import InlinePolicy, Outcome, Question, WaitingRoom
from boathook.inbound.limits import Rate, Turns, client_address, client_key
from boathook.inbound.paths import hides_letters
from boathook.inbound.quarantine import Quarantine
from boathook.inbound.verify import Challenge, KeyWanted, Reason, Rejected, Reply, Request, Verified, Verifier
from boathook.telemetry import emit
from boathook.telemetry.crashpoints import crash_point
from boathook.telemetry.log import RequestLog, get_logger, is_on

Message = Mapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Asgi = Callable[[dict[str, Any], Receive, Send], Awaitable[None]]
Headers = dict[str, str]

_JSON: Final = (b"content-type", b"application/json")
# A challenge's answer may be a stranger's own text: nobody's browser is to take it for a page.
_NO_SNIFFING: Final = (b"x-content-type-options", b"nosniff")
_SHOWN_KEY: Final = 100
API: Final = "/api/"
IS_KNOWN: Final = "boathook.is_known"
"""Set in the scope of a request once its credentials are known to be valid."""
_LATELY_S: Final = 1.0
_KNOWN_S: Final = 60.0
_MOST_CALLERS: Final = 10_000
_LOG = get_logger("inbound")


class Accepts(Protocol):
    """What the application needs of the intake."""

    async def accept(self, event: NewEvent) -> Receipt:
        """Return once the event, or its first copy, is durable."""
        ...


@dataclass(frozen=True, slots=True)
class Answer:
    """What a request is answered, and what its log line says."""

    status: int
    body: bytes
    outcome: str
    """One word for the log, such as ``accepted`` or ``rejected``."""
    event_id: str | None = None
    key: str | None = None
    reason: str | None = None
    content_type: tuple[bytes, bytes] = _JSON
    headers: tuple[tuple[bytes, bytes], ...] = ()
    question: Question | None = None
    """What a handler may still answer, where the sender waits for one."""
    waited: Outcome | None = None
    waited_s: float = 0.0


_ERRORS: Final = {
    400: "bad request",
    401: "unauthorized",
    404: "not found",
    405: "method not allowed",
    408: "the request came too slowly",
    413: "the body is too large",
    415: "this content encoding is not accepted",
    429: "too many requests",
    500: "internal error",
    503: "not available, try again later",
}


def refuse(status: int, reason: str, request_id: str, *headers: tuple[bytes, bytes], told: str = "") -> Answer:
    """Return the answer that tells a stranger the status and nothing else, and a proven sender what is *told*."""
    error = _ERRORS.get(status, "refused")
    detail = f'"detail":{json.dumps(told)},' if told else ""
    body = f'{{"ok":false,"error":"{error}",{detail}"request_id":"{request_id}"}}'.encode()
    return Answer(status, body, "refused", reason=reason, headers=headers)


async def _refuse_path(_scope: dict[str, Any], _receive: Receive, send: Send) -> None:
    body = b'{"ok":false,"error":"the path percent-encodes letters, digits, -, ., _ or /; write them as they are"}'
    await send({"type": "http.response.start", "status": 400, "headers": [_JSON, _NO_SNIFFING]})
    await send({"type": "http.response.body", "body": body})


class _Callers:
    """The credentials of API calls that were valid lately, as hashes."""

    def __init__(self) -> None:
        self._until: dict[bytes, float] = {}

    def __contains__(self, caller: bytes) -> bool:
        return self._until.get(caller, 0.0) > time.monotonic()

    def add(self, caller: bytes) -> None:
        """Remember one; of too many, all others are forgotten."""
        if len(self._until) >= _MOST_CALLERS and caller not in self._until:
            self._until.clear()
        self._until[caller] = time.monotonic() + _KNOWN_S


def _caller(scope: dict[str, Any]) -> bytes | None:
    """Return what tells one caller of the API from another; None for all other requests."""
    if not scope["path"].startswith(API):
        return None
    found = next((value for name, value in scope["headers"] if name == b"authorization"), None)
    return None if found is None else hashlib.sha256(found).digest()


def _wait(seconds: float) -> tuple[bytes, bytes]:
    return (b"retry-after", b"%d" % max(1, math.ceil(seconds)))


class IngestApp:
    """Takes in requests for sources; hands every other path to *others*.

    Args:
        gates: by path, the source that listens there.
        intake: makes events durable.
        arrivals: makes events of verified requests.
        quarantine: keeps some of the refused ones; None keeps none.
        others: answers every path that is no source's.
        client_rate: the rate of one client address.
        trusted_proxies: whose X-Forwarded-For counts.
        errands: fetches keys, visits addresses and keeps told secrets; None answers 503 where that is needed.
        waiting_room: where the senders of inline sources wait for a handler; None answers them the fallback.
    """

    def __init__(
        self,
        gates: Mapping[str, Gate],
        intake: Accepts,
        arrivals: Arrivals,
        *,
        quarantine: Quarantine | None,
        others: Asgi,
        client_rate: Rate | None = None,
        trusted_proxies: tuple[Network, ...] = (),
        errands: Errands | None = None,
        waiting_room: WaitingRoom | None = None,
    ) -> None:
        self._gates = dict(gates)
        secrets = (gate.verifier.secret_query for gate in gates.values())
        self._secret_queries = frozenset(name for name in secrets if name is not None)
        self._intake = intake
        self._arrivals = arrivals
        self._quarantine = quarantine
        self._others = others
        self._client_rate = client_rate
        self._trusted = trusted_proxies
        self._errands = errands
        self._waiting_room = waiting_room
        self._request_log = RequestLog("inbound") if is_on("info") else None
        self._request_prefix = f"req_{os.urandom(6).hex()}"
        self._numbers = count()
        self._latest = -_LATELY_S
        self._turns = Turns(self._takes_in)
        self._callers = _Callers()
        self._ack = emit.histogram("boathook_ack_seconds")

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Answer one HTTP request."""
        gate = self._gates.get(scope["path"])
        if gate is None:
            await self._hand_over(scope, receive, send)
            return
        started = self._latest = time.monotonic()
        request_id = f"{self._request_prefix}{next(self._numbers):08x}"
        try:
            answer = await self._answer(gate, scope, receive, request_id, started)
        except Exception as error:  # noqa: BLE001 - a fault of ours must never look like the sender's
            _LOG.error("ingest_fault", exc_info=error, request_id=request_id, source=gate.source)
            answer = refuse(500, "fault", request_id)
        if answer is None:
            return
        headers = [answer.content_type, (b"x-request-id", request_id.encode()), *answer.headers]
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": answer.body})
        self._record(gate, answer, request_id, started)

    async def _hand_over(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if hides_letters(scope["raw_path"]):
            await _refuse_path(scope, receive, send)
            return
        caller = _caller(scope)
        if caller is None or caller not in self._callers:
            await self._turns.take(client_key(self._client(scope)))
        await self._others(scope, receive, send)
        if caller is not None and scope.get(IS_KNOWN):
            self._callers.add(caller)

    def _client(self, scope: dict[str, Any]) -> str:
        headers = read_headers(scope["headers"]) if self._trusted else {}
        return client_address(scope["client"][0], headers.get("x-forwarded-for"), self._trusted)

    def _takes_in(self) -> bool:
        """Return whether requests for sources have come lately."""
        return time.monotonic() - self._latest < _LATELY_S

    def _record(self, gate: Gate, answer: Answer, request_id: str, started: float) -> None:
        seconds = time.monotonic() - started
        gate.count_answer(answer.status)
        if answer.event_id is not None:
            self._ack.observe(seconds - answer.waited_s)
        if self._request_log is None:
            return
        fields: dict[str, Any] = {"request_id": request_id, "source": gate.source, "status": answer.status}
        if answer.event_id is not None:
            fields["event_id"] = answer.event_id
            fields["dedup_key"] = answer.key
            if answer.waited is not None:
                fields["reply"] = answer.waited
        else:
            fields["reason"] = answer.reason
        fields["ms"] = round(seconds * 1000, 2)
        self._request_log.info(answer.outcome, time.time(), fields)

    async def _answer(
        self, gate: Gate, scope: dict[str, Any], receive: Receive, request_id: str, started: float
    ) -> Answer | None:
        """Return the answer, or None for a client that is gone."""
        headers = read_headers(scope["headers"])
        client = client_address(scope["client"][0], headers.get("x-forwarded-for"), self._trusted)
        early = self._refuse_early(gate, scope["method"], headers, client, request_id, started)
        if early is not None:
            return early
        body = await _read_body(receive, gate.max_body)
        if body is None:
            return None
        if len(body) > gate.max_body:
            return refuse(413, "body_too_large", request_id)
        try:
            answer = await self._judge(gate, _request(gate, scope, headers, body, client), request_id)
        except TooManyDeliveries as error:
            _LOG.warning("batch_too_large", source=gate.source, error=str(error), request_id=request_id)
            return refuse(413, "too_many_deliveries", request_id)
        if gate.inline is None or answer.event_id is None:
            return answer
        return await self._wait_for_reply(gate.source, gate.inline, answer, receive, started)

    async def _wait_for_reply(
        self, source: str, policy: InlinePolicy, answer: Answer, receive: Receive, started: float
    ) -> Answer:
        """Return the handler's reply in place of *answer*, or the fallback if there is none in time."""
        began = time.monotonic()
        reply, outcome = None, Outcome.FALLBACK
        if answer.question is not None and self._waiting_room is not None:
            seconds = policy.within_s - (began - started)
            reply, outcome = await self._waiting_room.ask(answer.question, seconds, receive)
        waited_s = time.monotonic() - began
        if reply is not None and reply.status in policy.stops:
            _LOG.error("reply_not_sent", source=source, status=reply.status, note="it makes the sender stop; fallback")
            reply, outcome = None, Outcome.FALLBACK
        emit.count("boathook_inline_replies_total", source=source, outcome=outcome)
        emit.observe("boathook_inline_wait_seconds", waited_s)
        return _exactly(reply or policy.fallback, replace(answer, waited=outcome, waited_s=waited_s))

    def _refuse_early(
        self, gate: Gate, method: str, headers: Headers, client: str, request_id: str, now: float
    ) -> Answer | None:
        """Refuse by what is known before the body is read."""
        if method not in gate.methods:
            allow = ", ".join(sorted(gate.methods)).encode()
            return refuse(405, "method", request_id, (b"allow", allow))
        if self._client_rate is not None and (wait_s := self._client_rate.wait_s(client_key(client), now)) > 0:
            return refuse(gate.busy_status, "client_rate", request_id, _wait(wait_s))
        if gate.rate is not None and (wait_s := gate.rate.wait_s("", now)) > 0:
            return refuse(gate.busy_status, "source_rate", request_id, _wait(wait_s))
        encoding = headers.get("content-encoding", "")
        if encoding and encoding.lower() not in {"identity", *gate.encodings}:
            return refuse(415, "content_encoding", request_id)
        length = headers.get("content-length")
        if length is not None and length.strip().isdigit() and int(length) > gate.max_body:
            return refuse(413, "body_too_large", request_id)
        return None

    async def _judge(self, gate: Gate, request: Request, request_id: str) -> Answer:
        if gate.make_sure is not None and time.monotonic() > gate.sure_until:
            await gate.make_sure()
        now = time.time()
        decoder = _decoder(gate, request)
        gate.look_for_secret()
        verifier = gate.verifier
        verdict = verifier.verify(request, now, decoder)
        if isinstance(verdict, KeyWanted) and self._errands is not None:
            verdict = await self._errands.judge_with_key(gate.source, verifier, verdict, request, now, decoder)
        match verdict:
            case Verified():
                body = request.body if decoder is None or decoder.decoded is None else decoder.decoded
                content_type = request.headers.get("content-type", "")
                event = self._arrivals.event(gate.source, verdict, body, content_type, now)
                if verdict.timestamp is not None:
                    gate.skew_s.value = verdict.timestamp.timestamp() - now
                return await self._accept(gate, event, verdict, request_id)
            case Challenge():
                return await self._answer_challenge(gate, verdict, request_id)
            case Rejected():
                return self._reject(gate, request, verdict, request_id, now)
            case KeyWanted():
                emit.count("boathook_rejections_total", source=gate.source, reason=Reason.KEY_UNAVAILABLE)
                return refuse(503, Reason.KEY_UNAVAILABLE, request_id, _wait(RETRY_S))
            case _:
                assert_never(verdict)

    async def _answer_challenge(self, gate: Gate, challenge: Challenge, request_id: str) -> Answer:
        if challenge.visit is not None or challenge.capture is not None:
            failed = (
                Failed(503, "no_errands") if self._errands is None else await self._errands.run(gate.source, challenge)
            )
            if failed is not None:
                return refuse(failed.status, failed.reason, request_id, _wait(RETRY_S))
        content_type = (b"content-type", challenge.content_type.encode("latin-1", "replace"))
        return Answer(challenge.status, challenge.body, "challenge", content_type=content_type, headers=(_NO_SNIFFING,))

    def _reject(self, gate: Gate, request: Request, verdict: Rejected, request_id: str, now: float) -> Answer:
        emit.count("boathook_rejections_total", source=gate.source, reason=verdict.reason)
        if self._quarantine is not None:
            verifier, rejection_id = gate.verifier, self._arrivals.new_id(now)
            explain = partial(
                verifier.explain, request, verdict, now, others=self._verifiers(), decode=_decoder(gate, request)
            )
            self._quarantine.add(
                rejection_id, gate.source, request, verdict, verifier.rejudged, self._secret_queries, explain
            )
        answer = refuse(verdict.status, verdict.reason, request_id, told=verdict.told)
        return replace(answer, body=b"") if gate.verifier.recipe.wants_silence else answer

    def _verifiers(self) -> Iterator[Verifier]:
        return (gate.verifier for gate in self._gates.values())

    async def _accept(self, gate: Gate, event: NewEvent, verified: Verified, request_id: str) -> Answer:
        try:
            receipt = await self._intake.accept(event)
        except Overloaded:
            return refuse(503, "overloaded", request_id, _wait(1))
        except RegistryChanged:
            return refuse(503, "routes_keep_changing", request_id, _wait(1))
        except (JournalUnavailable, SpoolUnavailable) as error:
            _LOG.warning("not_taken", error=str(error), request_id=request_id)
            return refuse(503, "journal_unavailable", request_id, _wait(5))
        crash_point("accept.before_reply")
        return _accepted(gate, event, receipt, verified.reply, request_id)


def _accepted(gate: Gate, event: NewEvent, receipt: Receipt, reply: Reply | None, request_id: str) -> Answer:
    event_id = ids.show(ids.EVENT, receipt.event_id)
    outcome, extra, is_duplicate = "accepted", "", "false"
    if isinstance(receipt, Duplicate):
        outcome, is_duplicate = "conflict" if receipt.conflict else "duplicate", "true"
        gate.duplicates.value += 1
    else:
        gate.accepted.value += 1
    if receipt.conflict:
        extra = ',"conflict":true'
        emit.count("boathook_conflicts_total", source=gate.source)
    key = event.dedup_key[:_SHOWN_KEY]
    question = None if gate.inline is None else _question(receipt)
    body = f'{{"ok":true,"event_id":"{event_id}","duplicate":{is_duplicate}{extra},"request_id":"{request_id}"}}'
    return _exactly(reply, Answer(200, body.encode(), outcome, event_id, key, question=question))


def _question(receipt: Receipt) -> Question | None:
    """Return what a handler may answer, or None where none will."""
    if receipt.conflict:
        return None
    if isinstance(receipt, Accepted) and (receipt.is_spooled or not receipt.is_owed):
        return None
    return Question(receipt.event_id, is_new=isinstance(receipt, Accepted))


def _exactly(reply: Reply | None, answer: Answer) -> Answer:
    """Return *answer* with the status and body of *reply*, if there is one."""
    if reply is None:
        return answer
    content_type = (b"content-type", reply.content_type.encode("latin-1", "replace"))
    return replace(answer, status=reply.status, body=reply.body, content_type=content_type)


def _decoder(gate: Gate, request: Request) -> Decoder | None:
    encoding = request.headers.get("content-encoding", "").lower()
    if encoding not in gate.encodings:
        return None
    return Decoder(encoding, max_decoded=gate.max_decoded, max_ratio=gate.max_ratio)


def read_headers(raw: list[tuple[bytes, bytes]]) -> Headers:
    """Return headers by name, the values of those that came more than once joined by commas (RFC 9110, section 5.3)."""
    headers: Headers = {}
    for raw_name, raw_value in raw:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


async def _read_body(receive: Receive, most: int) -> bytes | None:
    """Return the body, or more than *most* bytes of it, or None for a client that is gone."""
    message = await receive()
    if message["type"] != "http.request":
        return None
    body: bytes = message["body"]
    if not message["more_body"]:
        return body
    pieces, size = [body], len(body)
    while message["more_body"] and size <= most:
        message = await receive()
        if message["type"] != "http.request":
            return None
        pieces.append(message["body"])
        size += len(message["body"])
    return b"".join(pieces)


def _request(gate: Gate, scope: dict[str, Any], headers: Headers, body: bytes, client: str) -> Request:
    path = scope["raw_path"].decode("latin-1")
    query = scope["query_string"].decode("latin-1")
    base = gate.public_url or f"http://{headers.get('host', '')}"
    return Request(
        method=scope["method"],
        url=f"{base}{path}?{query}" if query else f"{base}{path}",
        path=path,
        query=query,
        headers=headers,
        body=body,
        client=client,
    )
