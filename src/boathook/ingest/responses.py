"""The responses to requests for sources: accepted, refused, or failed."""

import json
import math
from typing import Final

import msgspec
from msgspec.structs import replace

from boathook.domain import ids
from boathook.domain.model import Accepted, Duplicate, NewEvent, Receipt
from boathook.http.asgi import Send
from boathook.http.exchange import ERROR_TEXTS
from boathook.ingest.reply_waiter import PendingReply, ReplyOutcome
from boathook.ingest.sources import CompiledSource
from boathook.observability import meters
from boathook.observability.failpoints import failpoint
from boathook.observability.log import get_logger
from boathook.verification.verifier import Challenge, Reply

JSON: Final = (b"content-type", b"application/json")
# A challenge's response may contain text of an unauthenticated client: browsers must not render it as a page.
NO_SNIFFING: Final = (b"x-content-type-options", b"nosniff")
_MAX_SHOWN_KEY: Final = 100
_LOG = get_logger("ingest")


class Response(msgspec.Struct):
    """The response to a request, with the fields of its log line."""

    status: int
    body: bytes
    outcome: str
    """One word for the log, such as ``accepted`` or ``rejected``."""
    event_id: str | None = None
    key: str | None = None
    reason: str | None = None
    detail: str | None = None
    """What operators need to know about a request that was rejected by its head; never sent."""
    content_type: tuple[bytes, bytes] = JSON
    headers: tuple[tuple[bytes, bytes], ...] = ()
    pending_reply: PendingReply | None = None
    """The reply of a handler that the sender waits for, if any."""
    waited: ReplyOutcome | None = None
    waited_s: float = 0.0


def error_response(
    status: int, reason: str, request_id: str, *headers: tuple[bytes, bytes], public_detail: str = ""
) -> Response:
    """Return an error response: unauthenticated clients see only the status, verified senders also *public_detail*."""
    error = ERROR_TEXTS.get(status, "refused")
    detail = f'"detail":{json.dumps(public_detail)},' if public_detail else ""
    body = f'{{"ok":false,"error":"{error}",{detail}"request_id":"{request_id}"}}'.encode()
    return Response(status, body, "refused", reason=reason, headers=headers)


def retry_after(seconds: float) -> tuple[bytes, bytes]:
    """Return the header that tells a sender when to try again."""
    return (b"retry-after", b"%d" % max(1, math.ceil(seconds)))


def fault_response(error: Exception, compiled: CompiledSource, request_id: str) -> Response:
    """Log an internal error, and return the response that makes senders retry."""
    _LOG.error("ingest_fault", exc_info=error, request_id=request_id, source=compiled.source)
    return error_response(500, "fault", request_id)


def challenge_response(challenge: Challenge) -> Response:
    """Return the answer to a sender's handshake."""
    content_type = (b"content-type", challenge.content_type.encode("latin-1", "replace"))
    return Response(challenge.status, challenge.body, "challenge", content_type=content_type, headers=(NO_SNIFFING,))


def accepted(
    compiled: CompiledSource, event: NewEvent, receipt: Receipt, reply: Reply | None, request_id: str
) -> Response:
    """Return the answer to a request whose event, or the first copy of it, is durable."""
    failpoint("accept.before_reply")
    event_id = ids.show(ids.EVENT, receipt.event_id)
    outcome, extra, is_duplicate = "accepted", "", "false"
    if isinstance(receipt, Duplicate):
        outcome, is_duplicate = "conflict" if receipt.conflict else "duplicate", "true"
        compiled.duplicates.value += 1
    else:
        compiled.accepted.value += 1
    if receipt.conflict:
        extra = ',"conflict":true'
        meters.count("boathook_conflicts_total", source=compiled.source)
    key = event.dedup_key[:_MAX_SHOWN_KEY]
    pending_reply = None if compiled.inline is None else _pending_reply(receipt)
    body = f'{{"ok":true,"event_id":"{event_id}","duplicate":{is_duplicate}{extra},"request_id":"{request_id}"}}'
    return with_reply(reply, Response(200, body.encode(), outcome, event_id, key, pending_reply=pending_reply))


def _pending_reply(receipt: Receipt) -> PendingReply | None:
    """Return the reply to wait for, or None if no handler will send one."""
    if receipt.conflict:
        return None
    if isinstance(receipt, Accepted) and (receipt.is_spooled or not receipt.has_deliveries):
        return None
    return PendingReply(receipt.event_id, is_new=isinstance(receipt, Accepted))


def with_reply(reply: Reply | None, answer: Response) -> Response:
    """Return *answer* with the status and body of *reply*, if there is one."""
    if reply is None:
        return answer
    content_type = (b"content-type", reply.content_type.encode("latin-1", "replace"))
    return replace(answer, status=reply.status, body=reply.body, content_type=content_type)


def response_headers(answer: Response, request_id: str) -> list[tuple[bytes, bytes]]:
    """Return the headers of an answer to a request for a source."""
    return [answer.content_type, (b"x-request-id", request_id.encode()), *answer.headers]


async def send_response(answer: Response, request_id: str, send: Send) -> None:
    """Send an answer over ASGI."""
    headers = response_headers(answer, request_id)
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})
