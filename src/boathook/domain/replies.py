"""Exact replies to senders, with a guard against statuses that stop a sender."""

import json
import re
from typing import Final

import msgspec

MAX_BODY: Final = 1_048_576
"""Maximum number of bytes in a handler's reply."""
STOP_STATUSES: Final = frozenset({403, 406, 410})
"""Statuses on which senders stop sending or disable the webhook."""
_BODILESS: Final = frozenset({204, 205})
_MEDIA_TYPE: Final = re.compile(
    r"[a-z0-9.+-]{1,64}/[a-z0-9.+-]{1,64}(; ?[a-z0-9-]{1,32}=[a-z0-9._-]{1,64}){0,3}", re.ASCII | re.IGNORECASE
)


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """An exact response to a request."""

    status: int
    body: bytes
    content_type: str


def check_status(status: int, forbidden_statuses: frozenset[int] = STOP_STATUSES) -> int:
    """Return *status* if it may be sent to a sender.

    Raises:
        ValueError: *status* is not a final status, is a redirect, or is in *forbidden_statuses*; the message says what
            to write.
    """
    if status not in range(200, 600):
        raise ValueError(f"the status {status!r} is not a final status; use one from 200 to 599, such as 200")
    if status in range(300, 400):
        raise ValueError(f"the status {status} is a redirect; use another, such as 200")
    if status in forbidden_statuses:
        raise ValueError(f"the status {status} makes this sender stop sending; use another, such as 422 or 500")
    return status


def check_media_type(text: str) -> str:
    """Return *text* if it is a media type. Raises ValueError with an example."""
    if not _MEDIA_TYPE.fullmatch(text):
        raise ValueError(f'{text!r} is not a media type such as "application/json" or "text/plain; charset=utf-8"')
    return text


def make_reply(
    body: object, status: int = 200, content_type: str | None = None, forbidden_statuses: frozenset[int] = STOP_STATUSES
) -> Reply:
    """Return a reply with *body*: bytes unchanged, text as UTF-8, anything else as JSON.

    Raises:
        ValueError: status, body or media type cannot be sent; the message says what to write.
    """
    raw, usual_type = _encode(body)
    check_status(status, forbidden_statuses)
    if len(raw) > MAX_BODY:
        raise ValueError(f"the body has {len(raw)} bytes; the maximum is {MAX_BODY}")
    if raw and status in _BODILESS:
        raise ValueError(f"a reply with the status {status} has no body; write another status, or b'' as the body")
    return Reply(status=status, body=raw, content_type=check_media_type(content_type or usual_type))


def _encode(body: object) -> tuple[bytes, str]:
    match body:
        case bytes():
            return body, "application/octet-stream"
        case str():
            return body.encode("utf-8", "replace"), "text/plain; charset=utf-8"
        case _:
            try:
                text = json.dumps(body, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
            except (TypeError, ValueError, RecursionError) as error:
                raise ValueError(f"the body is neither text nor bytes nor valid as JSON: {error}") from None
            return text.encode("utf-8", "replace"), "application/json"
