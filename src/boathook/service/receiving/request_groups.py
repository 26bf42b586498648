"""Lists rejected requests and conflicts grouped by cause, and describes each group."""

from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

import msgspec

from boathook.db import request_groups as store
from boathook.db.database import Database
from boathook.db.queries.listings import ListFilter
from boathook.db.request_groups import MAX_COUNTED, MAX_GROUPS
from boathook.db.request_groups import RequestGroup as RequestGroup  # noqa: PLC0414 - re-exported
from boathook.domain.plurals import format_count
from boathook.domain.verification import Reason


class RequestKind(StrEnum):
    """The kind of requests that are grouped."""

    REJECTION = "rejection"
    CONFLICT = "conflict"


class GroupPage(msgspec.Struct, frozen=True):
    """The matching groups, largest first."""

    rows: Sequence[RequestGroup]
    is_cut: bool
    """Whether there may be more groups."""


_LISTS: Final = {
    RequestKind.REJECTION: store.list_rejection_groups,
    RequestKind.CONFLICT: store.list_conflict_groups,
}


async def list_groups(database: Database, kind: RequestKind, filters: ListFilter) -> GroupPage:
    """Return the groups that match a filter's source, application and code, largest first."""
    rows = await _LISTS[kind](database, filters)
    return GroupPage(rows, len(rows) == MAX_GROUPS)


def describe_group(group: RequestGroup) -> str:
    """Return one sentence about a group, such as ``github: 85 signature mismatches stored since 16:07 UTC``."""
    singular, plural = _NOUNS.get(
        group.cause, (f"request rejected as {group.cause}", f"requests rejected as {group.cause}")
    )
    number = format_count(group.number, MAX_COUNTED)
    return (
        f"{group.origin}: {number} {singular if group.number == 1 else plural} stored since {_since(group.first_seen)}"
    )


def _since(at: datetime) -> str:
    at = at.astimezone(UTC)
    is_today = at.date() == datetime.now(UTC).date()
    return at.strftime("%H:%M UTC" if is_today else "%Y-%m-%d %H:%M UTC")


_NOUNS: Final[dict[str, tuple[str, str]]] = {
    Reason.SIGNATURE_MISSING: ("missing signature", "missing signatures"),
    Reason.SIGNATURE_MALFORMED: ("malformed signature", "malformed signatures"),
    Reason.SIGNATURE_MISMATCH: ("signature mismatch", "signature mismatches"),
    Reason.UNKNOWN_SCHEME: ("unknown signature scheme", "unknown signature schemes"),
    Reason.TIMESTAMP_MISSING: ("missing timestamp", "missing timestamps"),
    Reason.TIMESTAMP_MALFORMED: ("malformed timestamp", "malformed timestamps"),
    Reason.TIMESTAMP_TOO_OLD: ("outdated timestamp", "outdated timestamps"),
    Reason.TIMESTAMP_IN_FUTURE: ("timestamp in the future", "timestamps in the future"),
    Reason.ID_MISSING: ("missing id", "missing ids"),
    Reason.ID_MALFORMED: ("malformed id", "malformed ids"),
    Reason.TOKEN_MISSING: ("missing token", "missing tokens"),
    Reason.TOKEN_MISMATCH: ("token mismatch", "token mismatches"),
    Reason.KEY_UNAVAILABLE: ("unavailable public key", "unavailable public keys"),
    Reason.ADDRESS_NOT_ALLOWED: ("request from a blocked address", "requests from blocked addresses"),
    Reason.CHALLENGE_REFUSED: ("refused handshake", "refused handshakes"),
    Reason.BODY_MALFORMED: ("malformed body", "malformed bodies"),
    Reason.BODY_TOO_LARGE: ("oversized body", "oversized bodies"),
    Reason.DECODED_TOO_LARGE: ("body that decodes to too much", "bodies that decode to too much"),
    Reason.TOO_MANY_DELIVERIES: ("batch with too many deliveries", "batches with too many deliveries"),
    Reason.CONTENT_ENCODING: ("content encoding that is not accepted", "content encodings that are not accepted"),
    Reason.METHOD_NOT_ALLOWED: ("method that is not allowed", "methods that are not allowed"),
    Reason.UNKNOWN_PATH: ("unknown path", "unknown paths"),
    Reason.CLIENT_RATE: ("request over the rate of clients", "requests over the rate of clients"),
    Reason.SOURCE_RATE: ("request over the source's rate", "requests over the source's rate"),
    Reason.UNVERIFIED_BYTES: ("request without room for its body", "requests without room for their bodies"),
    Reason.SLOW_REQUEST: ("request that came too slowly", "requests that came too slowly"),
    Reason.HEAD_TOO_LARGE: ("oversized request head", "oversized request heads"),
    Reason.REQUEST_MALFORMED: ("malformed request", "malformed requests"),
    Reason.BODY_INVALID: ("body that violates the schema", "bodies that violate the schema"),
    "body": ("known key with a different body", "known keys with different bodies"),
    "key": ("known body under a different key", "known bodies under different keys"),
}
"""Singular and plural names of requests by cause."""
