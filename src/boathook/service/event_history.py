"""Reads one event: its request, its history, and the curl command that repeats it."""

import asyncio
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final
from uuid import UUID

import msgspec

from boathook.config import Settings
from boathook.db import rerouting
from boathook.db.audit import record
from boathook.db.batches import JsonSlicer
from boathook.db.queries import event_history, listings
from boathook.db.queries.event_history import AttemptDetail as AttemptDetail  # noqa: PLC0414 - re-exported
from boathook.db.queries.event_history import EventHistory as EventHistory  # noqa: PLC0414 - re-exported
from boathook.db.queries.event_history import RecipientSideEffect as RecipientSideEffect  # noqa: PLC0414 - re-exported
from boathook.db.queries.event_history import StoredReply as StoredReply  # noqa: PLC0414 - re-exported
from boathook.db.queries.listings import AuditRow as AuditRow  # noqa: PLC0414 - re-exported
from boathook.db.queries.listings import DeliveryRow as DeliveryRow  # noqa: PLC0414 - re-exported
from boathook.db.queries.listings import EventRow as EventRow  # noqa: PLC0414 - re-exported
from boathook.db.queries.listings import StoredRequest as StoredRequest  # noqa: PLC0414 - re-exported
from boathook.domain import ids
from boathook.domain.errors import NotFound
from boathook.domain.model import Origin
from boathook.observability.tracing import HEADER, trace_id_of
from boathook.service.body_view import is_text, mask
from boathook.service.unit_of_work import AppContext, UnitOfWork

MAX_INLINE_BYTES: Final = 65_536
"""Maximum bytes of a body inside a command; operating systems limit the length of an argument."""
_CONFIG_ESCAPES: Final = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v"})


class Shell(StrEnum):
    """The quoting rules of a command."""

    SH = "sh"
    FISH = "fish"
    CONFIG = "config"


class CurlRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request that can be repeated."""

    url: str
    headers: Mapping[str, str]
    body: bytes
    """The whole body, or its beginning if it is larger than `MAX_INLINE_BYTES`."""
    file: str
    """File name of the downloaded body."""


def render_command(request: CurlRequest, shell: Shell = Shell.SH, *, has_secrets: bool = False) -> str:
    """Return the command; without *has_secrets*, headers that may hold a secret are masked."""
    headers = dict(request.headers) if has_secrets else mask(dict(request.headers))
    body = _body(request)
    # curl omits a header with nothing after its colon; a semicolon instead sends it empty.
    options = [
        ("request", "POST"),
        ("url", request.url),
        *(("header", f"{name}: {value}" if value else f"{name};") for name, value in headers.items()),
        # Other options would read a file for a body that starts with an at sign.
        (("data-binary", f"@{request.file}") if body is None else ("data-raw", body)),
    ]
    if shell is Shell.CONFIG:
        return "\n".join(f'{name} = "{value.translate(_CONFIG_ESCAPES)}"' for name, value in options) + "\n"
    quote = _quote_for_fish if shell is Shell.FISH else _quote_for_sh
    return " \\\n  ".join(["curl", *(f"--{name} {quote(value)}" for name, value in options)])


def needs_file(request: CurlRequest) -> bool:
    """Return whether the command reads the body from the downloaded file."""
    return _body(request) is None


def _body(request: CurlRequest) -> str | None:
    is_inline = len(request.body) <= MAX_INLINE_BYTES and is_text(request.body)
    return request.body.decode("utf-8") if is_inline else None


def _quote_for_sh(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _quote_for_fish(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


_MAX_ITEM_DEPTH: Final = 50


async def read_event(
    app_context: AppContext, event_id: UUID, *, max_bytes: int | None = None
) -> tuple[EventRow, StoredRequest]:
    """Return an event with its headers and its body, truncated to *max_bytes*. Raises NotFound."""
    if max_bytes is None:
        return await listings.get_event(app_context.database, event_id)
    return await event_history.read_event_preview(app_context.database, event_id, max_bytes)


async def cut_item(body: bytes, path: str) -> bytes:
    """Return the bytes at a dotted path of a JSON body. Raises NotFound."""
    # Parsing may take long; keep it off the event loop.
    found = body if path.count(".") > _MAX_ITEM_DEPTH else await asyncio.to_thread(JsonSlicer(body).cut, path)
    if found is body:
        raise NotFound(f"unknown item {path[:100]}")
    return found


async def read_history(
    app_context: AppContext, event_id: UUID, *, first: int = 0, only: int | None = None
) -> EventHistory:
    """Return the history of an event.

    Args:
        app_context: the application context.
        event_id: the event.
        first: the number of the first delivery to return.
        only: the number of the only delivery to return.
    """
    return await event_history.read_history(app_context.database, event_id, first=first, only=only)


async def find_endpoint_url(app_context: AppContext, deliveries: Sequence[DeliveryRow]) -> str | None:
    """Return the URL of the first endpoint among the recipients; None if there is none or it was deleted."""
    recipient = next((one.recipient for one in deliveries if one.recipient.startswith("endpoint:")), None)
    return None if recipient is None else await event_history.find_url(app_context.database, recipient)


def find_trace(settings: Settings, event: EventRow, stored: StoredRequest) -> tuple[str, str]:
    """Return an event's trace id and the URL of its trace, as `tracing.link` says.

    Both are empty if nothing is traced, and the URL if none is configured.
    """
    options = settings.tracing
    if not (options.is_on or options.link):
        return "", ""
    continues = event.origin == Origin.PUBLISHED or options.incoming != "ignore"
    headers = {name.lower(): text for name, text in stored.headers.items()}
    trace_id = trace_id_of(ids.read_event(event.id), headers.get(HEADER), continues=continues)
    return trace_id, options.link.replace("{trace_id}", trace_id)


async def list_new_handlers(app_context: AppContext, event_id: UUID) -> list[str]:
    """Return the handlers that match an event now and never had a delivery of it."""
    return await rerouting.list_new_recipients(app_context.database, event_id)


async def record_reveal(work: UnitOfWork, event_id: UUID) -> None:
    """Record in the audit that all headers of an event were shown."""
    await record(work.connection, work.actor, "event.reveal_headers", ids.show(ids.EVENT, event_id))
