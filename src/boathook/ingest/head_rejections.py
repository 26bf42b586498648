"""Rejects requests by their head, before a body is read or verified, and keeps a bounded trace of them.

What is rejected here is counted, and its head goes to the quarantine with the likely cause, for operators: a method, a
rate, an encoding, a size, a path that no source has, or whatever the connection refused before an application saw it.
"""

import time
from collections.abc import Mapping
from typing import Any, Final

from msgspec.structs import replace

from boathook.config import Network
from boathook.http.asgi import Headers, read_headers
from boathook.http.limits import RateLimiter, client_address, client_key
from boathook.ingest.content_encoding import ENCODINGS, content_coding
from boathook.ingest.event_builder import EventBuilder
from boathook.ingest.quarantine import Quarantine
from boathook.ingest.responses import Response, error_response, retry_after
from boathook.ingest.source_paths import OWN_PATHS, SourcePaths, mask_path, mask_query
from boathook.ingest.sources import CompiledSource, show_bytes
from boathook.observability import meters
from boathook.observability.log import get_logger, is_on
from boathook.verification.verifier import Reason, Rejected, Request

_MAX_DIGITS: Final = 18
_SENDING_METHODS: Final = frozenset({"POST", "PUT"})
_UNKNOWN_PATH_STATUSES: Final = frozenset({400, 404, 405, 413, 415})
_CONNECTION_DETAILS: Final = {
    Reason.SLOW_REQUEST: "the request came more slowly than limits allows",
    Reason.HEAD_TOO_LARGE: "the request head is larger than limits.max_head",
    Reason.REQUEST_MALFORMED: "the request is not valid HTTP",
    Reason.UNVERIFIED_BYTES: "unverified bodies took limits.max_unverified_bytes already",
}
_CONNECTION_REASONS: Final = {
    400: Reason.REQUEST_MALFORMED,
    405: Reason.REQUEST_MALFORMED,
    408: Reason.SLOW_REQUEST,
    411: Reason.REQUEST_MALFORMED,
    417: Reason.REQUEST_MALFORMED,
    431: Reason.HEAD_TOO_LARGE,
    501: Reason.REQUEST_MALFORMED,
    505: Reason.REQUEST_MALFORMED,
}
"""Reasons by the status that a connection refuses a request with, before an application sees it."""
_RATE_DETAILS: Final = {
    Reason.CLIENT_RATE: "the client sent more than limits.client_rate allows",
    Reason.SOURCE_RATE: "the source's senders sent more than its rate allows",
}
_LOG = get_logger("ingest")


class HeadRejections:
    """Rejects requests for sources by their head, and records requests that no source has the path of.

    Args:
        event_builder: makes the ids of rejections.
        quarantine: stores a sample of the rejected requests; None stores none.
        client_rate: the rate limit for each client address.
        trusted_proxies: networks whose X-Forwarded-For is trusted.
    """

    _paths: SourcePaths[CompiledSource]

    def __init__(
        self,
        event_builder: EventBuilder,
        *,
        quarantine: Quarantine | None,
        client_rate: RateLimiter | None,
        trusted_proxies: tuple[Network, ...],
    ) -> None:
        self._event_builder = event_builder
        self.quarantine = quarantine
        self._client_rate = client_rate
        self._trusted = trusted_proxies
        self._is_debugging = is_on("debug")

    def set_paths(self, paths: SourcePaths[CompiledSource]) -> None:
        """Replace the paths of all sources."""
        self._paths = paths

    def client(self, scope: Mapping[str, Any], headers: Headers) -> str:
        """Return the address of a request's client; behind a trusted proxy, the one that it forwards."""
        return client_address(scope["client"][0], headers.get("x-forwarded-for"), self._trusted)

    # Requests for a source

    def check(
        self,
        compiled: CompiledSource,
        scope: Mapping[str, Any],
        headers: Headers,
        client: str,
        request_id: str,
        now: float,
    ) -> Response | None:
        """Return the answer to a request that is rejected by its head; None if its body is to be read."""
        if scope["method"] not in compiled.methods:
            methods = ", ".join(sorted(compiled.methods))
            detail = f"method {scope['method'][:20]} is not allowed by source {compiled.source}"
            return self.reject(
                compiled, scope, request_id, 405, Reason.METHOD_NOT_ALLOWED, detail, f"it accepts {methods}",
                (b"allow", methods.encode()),
            )  # fmt: skip
        if self._client_rate is not None and (wait_s := self._client_rate.wait_s(client_key(client), now)) > 0:
            return self._over_rate(compiled, scope, request_id, Reason.CLIENT_RATE, wait_s)
        if compiled.rate is not None and (wait_s := compiled.rate.wait_s("", now)) > 0:
            return self._over_rate(compiled, scope, request_id, Reason.SOURCE_RATE, wait_s)
        encoding = content_coding(headers)
        if encoding and encoding not in compiled.encodings:
            detail = f"Content-Encoding {encoding[:50]!r} is not accepted by source {compiled.source}"
            is_known = encoding in ENCODINGS
            hint = "add it to content_encodings" if is_known else f"boathook decodes {' and '.join(ENCODINGS)}"
            return self.reject(compiled, scope, request_id, 415, Reason.CONTENT_ENCODING, detail, hint)
        length = _announced_length(headers)
        if length is not None and length > compiled.max_body:
            return self.reject_size(compiled, scope, request_id, length, is_whole=True)
        return None

    def _over_rate(
        self, compiled: CompiledSource, scope: Mapping[str, Any], request_id: str, reason: Reason, wait_s: float
    ) -> Response:
        return self.reject(
            compiled, scope, request_id, compiled.rate_limited_status, reason, _RATE_DETAILS[reason], "",
            retry_after(wait_s),
        )  # fmt: skip

    def reject_size(
        self, compiled: CompiledSource, scope: Mapping[str, Any], request_id: str, size: int, *, is_whole: bool
    ) -> Response:
        """Reject a request whose body is too large: it announced *size* bytes, or at least as many have arrived."""
        number = f"{size:,}" if is_whole else f"more than {compiled.max_body:,}"
        detail = f"the body has {number} bytes; max_body is {show_bytes(compiled.max_body)} ({compiled.max_body_key})"
        provider, documented = compiled.verifier.recipe, compiled.verifier.recipe.max_body
        hint = f"{provider.name} sends up to {documented >> 20} MB" if documented else ""
        return self.reject(compiled, scope, request_id, 413, Reason.BODY_TOO_LARGE, detail, hint, size=size)

    def reject_for_memory(
        self, compiled: CompiledSource, scope: Mapping[str, Any], request_id: str, size: int
    ) -> Response:
        """Reject a request of whose body *size* bytes have arrived, because unverified bodies take too much memory."""
        detail = "the bodies of all requests that wait for their verification took limits.max_unverified_bytes"
        return self.reject(
            compiled, scope, request_id, 503, Reason.UNVERIFIED_BYTES, detail, "", retry_after(1), size=size
        )

    def reject(
        self,
        compiled: CompiledSource,
        scope: Mapping[str, Any],
        request_id: str,
        status: int,
        reason: Reason,
        detail: str,
        hint: str = "",
        *headers: tuple[bytes, bytes],
        size: int | None = None,
    ) -> Response:
        """Reject a request by its head: count it, keep the head if there is room, and return the answer.

        Args:
            compiled: the source.
            scope: the request.
            request_id: its id.
            status: the status of the answer.
            reason: why it is rejected.
            detail: the same in words.
            hint: the likely cause, for operators.
            headers: more headers of the answer.
            size: the bytes of the body that were announced, or have arrived; None to read the Content-Length.
        """
        full_detail = None
        if self._admits(compiled.source, reason):
            full_detail = f"{detail}; {hint}" if hint else detail
            self._keep(compiled, scope, status, reason, full_detail, size)
        return replace(error_response(status, reason, request_id, *headers), detail=full_detail)

    # Requests that no source has the path of

    def is_watched(self, scope: Mapping[str, Any]) -> bool:
        """Return whether `note_unknown_path` records a request for a path that no source has."""
        if self._paths.is_meant(scope["path"]):
            return True
        return self._is_debugging and scope["method"] in _SENDING_METHODS and not scope["path"].startswith(OWN_PATHS)

    def note_response(self, scope: Mapping[str, Any], status: int) -> None:
        """Record a watched request if its response says that a sender uses another path than its source's."""
        if status in _UNKNOWN_PATH_STATUSES:
            self.note_unknown_path(scope, status)

    def note_unknown_path(self, scope: Mapping[str, Any], status: int, problem: str = "") -> None:
        """Record a request that was probably meant for a source; *problem* is why it was refused besides."""
        path, log_fields = (
            scope["path"],
            {"method": scope["method"], "path": mask_path(scope["path"]), "status": status},
        )
        if self._paths.is_meant(path) and self._admits("", Reason.UNKNOWN_PATH):
            parts = (f"no source has this path{f', and {problem}' if problem else ''}", self._paths.explain(path))
            detail = "; ".join(filter(None, parts))
            self._keep(None, scope, status, Reason.UNKNOWN_PATH, detail, None)
            _LOG.warning("no_source_at_path", **log_fields, detail=detail)
        elif self._is_debugging:
            _LOG.debug("no_source_at_path", **log_fields)

    # The trace

    def _admits(self, source: str, reason: Reason) -> bool:
        """Count a request that is rejected; return whether there is room for its head."""
        meters.count("boathook_rejections_total", source=source, reason=reason)
        return self.quarantine is not None and self.quarantine.admit(source, reason)

    def _keep(
        self,
        compiled: CompiledSource | None,
        scope: Mapping[str, Any],
        status: int,
        reason: Reason,
        detail: str,
        size: int | None,
    ) -> None:
        """Store the head of an admitted request; *compiled* is None if it belongs to no source."""
        assert self.quarantine is not None
        headers = read_headers(scope["headers"])
        path = scope["raw_path"].decode("latin-1") if compiled else mask_path(scope["path"])
        query = mask_query(scope["query_string"].decode("latin-1"))
        base = compiled.public_url if compiled else ""
        url = f"{base or 'http://' + headers.get('host', '')}{path}"
        request = Request(
            method=scope["method"],
            url=f"{url}?{query}" if query else url,
            path=path,
            query=query,
            headers=headers,
            body=b"",
            client=self.client(scope, headers),
        )
        self.quarantine.add(
            self._event_builder.new_id(time.time()),
            compiled.source if compiled else "",
            request,
            Rejected(status=status, reason=reason, detail=detail, may_reverify=False),
            compiled.verifier.reverify_headers if compiled else frozenset(),
            size=(_announced_length(headers) or 0) if size is None else size,
        )


def connection_refusal(status: int, refused_as: str) -> tuple[Reason, str] | None:
    """Return reason and detail of what a connection refused before an application saw it; None for other statuses.

    Args:
        status: the status that it was answered with.
        refused_as: why, in the connection's word.
    """
    reason = _CONNECTION_REASONS.get(status)
    if refused_as == Reason.UNVERIFIED_BYTES:
        reason = Reason.UNVERIFIED_BYTES
    return None if reason is None else (reason, f"{_CONNECTION_DETAILS[reason]} ({refused_as})")


def _announced_length(headers: Mapping[str, str]) -> int | None:
    """Return the Content-Length; None if there is none that is a number."""
    text = headers.get("content-length", "").strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS else None
