"""Validates the values of an endpoint: URL, secret, headers, names and retry schedule.

The formats are those of Standard Webhooks 1.0.0 and of Svix's API, so that Svix clients work with boathook.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final
from uuid import UUID

from boathook.domain import ids
from boathook.domain.policy import RetryPolicy

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

_MINUTE, _HOUR, _DAY = 60.0, 3_600.0, 86_400.0


def _schedule(*delays_s: float, jitter: float) -> RetryPolicy:
    # Pauses and outages use up time without an attempt; one day beyond the sum of the delays covers them.
    return RetryPolicy(delays_s=delays_s, jitter=jitter, max_age_s=sum(delays_s) * (1 + jitter) + _DAY)


RETRY_PRESETS: Final[Mapping[str, RetryPolicy]] = {
    "standard-webhooks": _schedule(
        5, 5 * _MINUTE, 30 * _MINUTE, 2 * _HOUR, 5 * _HOUR, 10 * _HOUR, 14 * _HOUR, 20 * _HOUR, 24 * _HOUR, jitter=0.1
    ),
    "svix": _schedule(5, 5 * _MINUTE, 30 * _MINUTE, 2 * _HOUR, 5 * _HOUR, 10 * _HOUR, 10 * _HOUR, jitter=0.2),
    "cashdesk": _schedule(5, _MINUTE, _HOUR, 3 * _HOUR, 24 * _HOUR, jitter=0.0),
    "exponential": _schedule(*(5 * 3.0**n for n in range(8)), 5 * _HOUR, 5 * _HOUR, 5 * _HOUR, jitter=0.2),
    "none": _schedule(jitter=0.0),
}
"""Retry schedules by name: the delays between attempts. The first attempt is made immediately."""
_MAX_DELAYS: Final = 50
_MAX_DELAY_S: Final = 30 * _DAY


def read_retry(schedule: str | Sequence[float]) -> RetryPolicy:
    """Return the policy for a preset's name, comma-separated seconds, or a list of seconds.

    Raises:
        ValueError: *schedule* is none of these; the message names the valid forms.
    """
    if isinstance(schedule, str):
        if schedule in RETRY_PRESETS:
            return RETRY_PRESETS[schedule]
        try:
            schedule = [float(part) for part in schedule.split(",")]
        except ValueError:
            names = ", ".join(RETRY_PRESETS)
            raise ValueError(f"write one of {names}, or seconds such as 5, 60, 3600; not {schedule!r}") from None
    if len(schedule) > _MAX_DELAYS:
        raise ValueError(f"a retry schedule has at most {_MAX_DELAYS} waits, not {len(schedule)}")
    for delay in schedule:
        if not 0 <= delay <= _MAX_DELAY_S:
            raise ValueError(f"a wait is 0 to {_MAX_DELAY_S:.0f} seconds, not {delay}")
    return _schedule(*map(float, schedule), jitter=0.1)


def recipient_of(endpoint: str) -> str:
    """Return the recipient of deliveries to the endpoint with this id."""
    return RECIPIENT + endpoint


_NAME: Final = re.compile(r"[a-zA-Z0-9\-_.]{1,256}")
_CHANNEL: Final = re.compile(r"[a-zA-Z0-9\-_.:+]{1,128}")
_TAG: Final = re.compile(r"[a-zA-Z0-9\-_./\\#]{1,128}")


def check_uid(uid: str, prefix: str) -> str:
    """Return *uid* if it is valid for an entity whose ids begin with *prefix* and ``_``. Raises ValueError."""
    if not _NAME.fullmatch(uid):
        raise ValueError("write 1 to 256 letters, digits, - _ and .")
    if uid.startswith(f"{prefix}_"):
        raise ValueError(f"it must not start with {prefix}_, as ids do")
    return uid


def parse_reference(prefix: str, reference: str) -> tuple[UUID | None, str | None] | None:
    """Parse *reference* as an id or a uid, and return (id, None) or (None, uid); None if it is invalid."""
    try:
        if reference.startswith(f"{prefix}_"):
            return ids.read(prefix, reference), None
        return None, check_uid(reference, prefix)
    except ValueError:
        return None


def check_type(name: str) -> str:
    """Return *name* if it is a valid event type. Raises ValueError."""
    if not _NAME.fullmatch(name):
        raise ValueError("an event type is 1 to 256 letters, digits, - _ and .")
    return name


def check_channels(channels: Iterable[str], most: int = 10) -> tuple[str, ...]:
    """Return the distinct channels in order. Raises ValueError."""
    return _names(channels, _CHANNEL, most, "a channel is 1 to 128 letters, digits, - _ . : and +")


def check_tags(tags: Iterable[str], most: int = 5) -> tuple[str, ...]:
    """Return the distinct tags in order. Raises ValueError."""
    return _names(tags, _TAG, most, r"a tag is 1 to 128 letters, digits, - _ . / \ and #")


def _names(names: Iterable[str], form: re.Pattern[str], most: int, rule: str) -> tuple[str, ...]:
    kept = tuple(dict.fromkeys(names))
    if not 1 <= len(kept) <= most:
        raise ValueError(f"write 1 to {most} of them")
    for name in kept:
        if not form.fullmatch(name):
            raise ValueError(f"{rule}; not {name!r}")
    return kept


SENSITIVE_HEADERS: Final = frozenset({
    "authorization", "cookie", "proxy-authenticate", "proxy-authorization", "www-authenticate", "x-api-key",
    "x-auth-token",
})  # fmt: skip
"""Headers whose values are never shown."""
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
        raise ValueError(f"{name!r} is not a header's name")
    if is_reserved(name):
        raise ValueError(f"the header {name} cannot be set by an endpoint")
    if len(value.encode("utf-8", "surrogatepass")) > _MAX_VALUE or not _VALUE.fullmatch(value):
        raise ValueError(f"the value of {name} must be at most {_MAX_VALUE} bytes without control characters")
