"""Validates the values of an endpoint: secret, headers and names.

The formats are those of Standard Webhooks 1.0.0 and of Svix's API, so that Svix clients work with boathook.
"""

import re
from collections.abc import Iterable
from typing import Final
from uuid import UUID

from boathook.domain import ids

RECIPIENT: Final = "endpoint:"
"""Prefix of the recipients of deliveries to endpoints, followed by the id, such as ``endpoint:ep_01h4…``."""

OPERATIONAL_TYPES: Final = frozenset({
    "endpoint.created",
    "endpoint.updated",
    "endpoint.deleted",
    "endpoint.enabled",
    "endpoint.disabled",
    "message.attempt.failing",
    "message.attempt.exhausted",
    "message.attempt.recovered",
    "message.duplicate",
    "background_task.finished",
})  # fmt: skip
"""Event types that inform an organization about its own deliveries."""
FAILING_AT: Final = 4
"""Number of the failed attempt after which ``message.attempt.failing`` is sent; a later success is a recovery."""


DEFAULT_DESTINATION: Final = "http"
"""The kind of the destinations of endpoints that name none."""


def recipient_of(endpoint: str) -> str:
    """Return the recipient of deliveries to the endpoint with this id."""
    return RECIPIENT + endpoint


_NAME: Final = re.compile(r"[a-zA-Z0-9\-_.]{1,256}")
_KSUID: Final = re.compile(r"[0-9a-zA-Z]{27}")
_CHANNEL: Final = re.compile(r"[a-zA-Z0-9\-_.:+]{1,128}")
_TAG: Final = re.compile(r"[a-zA-Z0-9\-_./\\#]{1,128}")


def check_uid(uid: str, prefix: str) -> str:
    """Return *uid* if it is valid for an entity whose ids begin with *prefix* and ``_``. Raises ValueError."""
    if not _NAME.fullmatch(uid):
        raise ValueError("write 1 to 256 letters, digits, - _ and .")
    check_segment(uid)
    if uid.startswith(f"{prefix}_"):
        raise ValueError(f"it must not start with {prefix}_, as ids do")
    return uid


def parse_reference(prefix: str, reference: str) -> tuple[UUID | None, str] | None:
    """Return the id in *reference*, None if it is a uid or an imported id, and *reference*; None if it is invalid.

    An id may be the imported id of another entity, too.
    """
    try:
        if reference.startswith(f"{prefix}_"):
            return ids.read(prefix, reference), reference
        return None, check_uid(reference, prefix)
    except ValueError:
        return (None, reference) if is_imported_id(prefix, reference) else None


def is_imported_id(prefix: str, reference: str) -> bool:
    """Return whether *reference* has the form of an id of Svix: the prefix, ``_`` and a KSUID, 27 base62 characters."""
    head, _, tail = reference.partition("_")
    return head == prefix and _KSUID.fullmatch(tail) is not None


def check_type(name: str) -> str:
    """Return *name* if it is a valid event type. Raises ValueError."""
    if not _NAME.fullmatch(name):
        raise ValueError("an event type is 1 to 256 letters, digits, - _ and .")
    check_segment(name)
    return name


def check_segment(name: str) -> None:
    """Refuse a name that clients resolve in a path, where the object could not be reached. Raises ValueError."""
    if name in {".", ".."}:
        raise ValueError(f"it must not be {name!r}, which no path can end in; add another character")


def check_channels(channels: Iterable[str], limit: int = 10) -> tuple[str, ...]:
    """Return the distinct channels in order. Raises ValueError."""
    return _names(channels, _CHANNEL, limit, "a channel is 1 to 128 letters, digits, - _ . : and +")


def check_tags(tags: Iterable[str], limit: int = 5) -> tuple[str, ...]:
    """Return the distinct tags in order. Raises ValueError."""
    return _names(tags, _TAG, limit, r"a tag is 1 to 128 letters, digits, - _ . / \ and #")


def _names(names: Iterable[str], form: re.Pattern[str], limit: int, rule: str) -> tuple[str, ...]:
    distinct = tuple(dict.fromkeys(names))
    if not 1 <= len(distinct) <= limit:
        raise ValueError(f"write 1 to {limit} of them")
    for name in distinct:
        if not form.fullmatch(name):
            raise ValueError(f"{rule}; not {name!r}")
    return distinct


SENSITIVE_HEADERS: Final = frozenset({
    "authorization", "cookie", "proxy-authenticate", "proxy-authorization", "www-authenticate", "x-api-key",
    "x-auth-token",
})  # fmt: skip
"""Headers whose values are never shown."""
REDACTED: Final = "[redacted]"
"""Recorded instead of a secret."""
CUSTOM: Final = "[custom]"
"""Recorded instead of the value of an endpoint's custom header, whatever its name: any of them may be a secret."""
_TOKEN: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,256}")
_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_MAX_VALUE: Final = 4_096
_FORBIDDEN: Final = frozenset({
    "age", "cache-control", "clear-site-data", "connection", "content-encoding", "content-language", "content-length",
    "content-location", "content-type", "expect", "expires", "forwarded", "host", "keep-alive", "metadata",
    "metadata-flavor", "pragma", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer",
    "trailers", "transfer-encoding", "upgrade", "user-agent", "warning",
})  # fmt: skip
_FORBIDDEN_PREFIXES: Final = (
    "proxy-", "svix-", "webhook-", "x-amz-", "x-amzn-", "x-aws-", "x-azure-", "x-fd-", "x-forwarded-", "x-gfe",
    "x-goog-", "x-google", "x-svix-",
)  # fmt: skip


def is_reserved(name: str) -> bool:
    """Return whether endpoints cannot set a header of this name, so that only boathook sends it."""
    lower = name.lower()
    return lower in _FORBIDDEN or lower.startswith(_FORBIDDEN_PREFIXES)


def check_header(name: str, value: str) -> None:
    """Check that an endpoint may add this header to its requests.

    Raises:
        ValueError: the header would control proxies, cloud services or the signature, or is not valid HTTP; the message
            says which.
    """
    if not _TOKEN.fullmatch(name):
        raise ValueError(f"invalid header name {name!r}")
    if is_reserved(name):
        raise ValueError(f"the header {name} cannot be set by an endpoint")
    if len(value.encode("utf-8", "surrogatepass")) > _MAX_VALUE or not _VALUE.fullmatch(value):
        raise ValueError(f"the value of {name} must be at most {_MAX_VALUE} bytes without control characters")
