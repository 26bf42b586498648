"""Stores each event in the cell of its source, and each message in that of its application, wherever it was accepted.

A gateway has an intake for each other cell, whose store is that cell's gateways: `CellStore` posts a group of events to
them, and `CellReceiver` puts it into the intake there. So an event is answered 2xx once it is durable in the other cell
or, while that does not accept it, in a spool of this host. A message is passed on like that if its application has
moved since it was accepted.

The body of a post is a MessagePack array of records as in the spool. Its hash is in the header Content-Digest (RFC
9530), and that header is signed as a body in Standard Webhooks 1.0.0, so that only bodies of other cells are read. The
answer has a receipt for each event. In the same way, a cell queries the others for an application that it does not
have.
"""

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol
from uuid import UUID, uuid4

import msgspec

from boathook.config import Settings
from boathook.domain.errors import (
    BoathookError,
    DatabaseUnavailable,
    FetchFailed,
    HomeUnavailable,
    NotPassedOn,
    ServedElsewhere,
    TooManyDeliveries,
    ValueRejected,
)
from boathook.domain.filters import Router
from boathook.domain.homes import Assignment
from boathook.domain.model import Accepted, Duplicate, NewEvent, Receipt
from boathook.domain.signing import encode_base64, equal_bytes_constant_time, sign_standard
from boathook.http.asgi import Asgi, Receive, Send, read_body
from boathook.ingest.event_builder import EventBuilder
from boathook.ingest.event_writer import MessageStore
from boathook.ingest.intake import Intake
from boathook.ingest.spool_records import UNROUTED, UnreadableRecord, decode, encode
from boathook.observability import meters
from boathook.observability.log import get_logger
from boathook.service.remote import RemoteClient
from boathook_cells.directory import ApplicationAssignment, CellDirectory
from boathook_cells.settings import APPLICATIONS_PATH, EVENTS_PATH
from boathook_cells.spools import HELD

_MAX_PENDING: Final = 64 << 20
"""Bytes of posts that a gateway reads at the same time, above which it begins with no other."""
_MAX_AGE_S: Final = 300
_MAX_STAMP: Final = 12
_TIMEOUT_S: Final = 10.0
_MAX_ANSWER: Final = 1 << 20
_MAX_GROUP_BYTES: Final = 900_000
"""Bytes of records above which no further event is added to a post: proxies allow a megabyte."""

_MAX_SHOWN: Final = 500
_UNSIGNED: Final = b'{"ok":false,"error":"the signature or its time is wrong; compare cells.secret and the clocks"}'


class _Receipt(msgspec.Struct, array_like=True):
    event_id: UUID
    is_duplicate: bool
    conflict: bool
    is_new: bool


class _Refusal(msgspec.Struct):
    """Why a cell does not accept a group: a source or an application in it belongs to another one."""

    cell: str
    revision: int
    """0 if the source was never assigned."""
    source: str = ""
    application: str = ""

    @property
    def subject(self) -> str:
        return f"application {self.application}" if self.application else f"source {self.source}"

    @property
    def assignment(self) -> Assignment | ApplicationAssignment:
        if self.application:
            return ApplicationAssignment(application=self.application, home=self.cell, revision=self.revision)
        return Assignment(source=self.source, home=self.cell, revision=self.revision)


class ApplicationQuestion(msgspec.Struct):
    """A query to a cell: whether it has an application."""

    organization: str
    reference: str
    """Its id, uid or imported id."""


Post = Callable[[str, Mapping[str, str], bytes, float, int], Awaitable[tuple[int, bytes]]]
"""Posts a body with headers to a URL, given a timeout and the maximum bytes of the answer; returns status and body.
Raises FetchFailed."""
OnRefusal = Callable[[Assignment | ApplicationAssignment], Awaitable[None]]
"""Called with the assignment by which another cell refuses events."""


def post_with(settings: Settings | None = None) -> Post:
    """Return a function that posts to the gateways of other cells."""
    client = RemoteClient(settings)

    async def post(
        url: str, headers: Mapping[str, str], body: bytes, timeout_s: float, max_bytes: int
    ) -> tuple[int, bytes]:
        answer = await client.request("POST", url, headers=headers, body=body, timeout_s=timeout_s, max_bytes=max_bytes)
        return answer.status, answer.body

    return post


class ApplicationReader(Protocol):
    """Reads the applications of this cell."""

    async def find_cells(self, application_ids: Collection[UUID]) -> Sequence[ApplicationAssignment]:
        """Return the cells of those that this one has, or that have moved from here. Raises DatabaseError."""
        ...

    async def has_application(self, organization: str, reference: str) -> bool:
        """Return whether an application with this id, uid or imported id is here. Raises DatabaseError."""
        ...


_read_records = msgspec.msgpack.Decoder(list[bytes]).decode
_read_receipts = msgspec.json.Decoder(list[_Receipt]).decode
_read_refusal = msgspec.json.Decoder(_Refusal).decode
_read_question = msgspec.json.Decoder(ApplicationQuestion).decode
_write_json = msgspec.json.encode
_LOG = get_logger("cells")


class CellUnavailable(HomeUnavailable):
    """Another cell does not accept events that belong to it; they wait in the spool of this host."""

    reason = "cell_unavailable"


class CellStore:
    """The store of another cell; a `Store` and a `MessageStore` for an intake.

    Args:
        name: the name of that cell.
        url: the base URL of its gateways.
        secret: the secret of all cells.
        post: makes the request.
        on_refusal: called with the assignment by which the cell refuses events of a source.
        messages: reports messages that the cell has already; None reports none.
    """

    def __init__(
        self,
        name: str,
        url: str,
        secret: str,
        *,
        post: Post,
        on_refusal: OnRefusal,
        messages: MessageStore | None = None,
    ) -> None:
        self._name = name
        self._url = url.rstrip("/") + EVENTS_PATH
        self._secret = secret
        self._post = post
        self._on_refusal = on_refusal
        self._messages = messages

    async def report_duplicates(self, messages: Sequence[tuple[NewEvent, Duplicate]]) -> None:
        """Report messages that were answered 2xx and are not stored, because the cell had them already."""
        if self._messages is not None:
            await self._messages.report_duplicates(messages)

    async def append(self, batch: Sequence[NewEvent], *, within_s: float | None = None) -> list[Receipt]:
        """Store events in the other cell; return a receipt for each, in order.

        Raises:
            CellUnavailable: the cell did not accept them in time. It may have stored them; posting them again is safe.
            ValueRejected: the cell can never store one of them; it may have stored others.
        """
        receipts: list[Receipt] = []
        for records in _groups(batch):
            receipts += await self._send(records, within_s or _TIMEOUT_S)
        return receipts

    async def _send(self, records: Sequence[bytes], within_s: float) -> list[Receipt]:
        body = msgspec.msgpack.encode(records)
        headers = {"content-type": "application/vnd.boathook.events", **sign(self._secret, body)}
        try:
            status, answer = await self._post(self._url, headers, body, within_s, _MAX_ANSWER)
        except FetchFailed as error:
            raise CellUnavailable(f"cell {self._name}: {error}") from None
        summary = f"cell {self._name} answered {status}: {answer[:_MAX_SHOWN].decode(errors='replace')}"
        try:
            if status == 409:
                refusal = _read_refusal(answer)
                await self._on_refusal(refusal.assignment)
                raise CellUnavailable(f"cell {self._name}: the {refusal.subject} belongs to {refusal.cell}")
            if status == 422:
                raise ValueRejected(summary)
            receipts = _read_receipts(answer) if status == 200 else []
        except msgspec.DecodeError:
            raise CellUnavailable(summary) from None
        if status != 200 or len(receipts) != len(records):
            raise CellUnavailable(summary)
        return [_to_receipt(receipt) for receipt in receipts]


def _groups(batch: Sequence[NewEvent]) -> Iterable[list[bytes]]:
    """Yield the records of events in groups that fit into one post; one empty group if there are none."""
    group: list[bytes] = []
    size = 0
    for event in batch:
        try:
            record = encode(event)
        except ValueError as error:
            raise ValueRejected(f"the event contains text that cannot be stored: {error}") from error
        if group and size + len(record) > _MAX_GROUP_BYTES:
            yield group
            group, size = [], 0
        group.append(record)
        size += len(record)
    yield group


def _to_receipt(receipt: _Receipt) -> Receipt:
    if receipt.is_duplicate:
        return Duplicate(receipt.event_id, receipt.conflict)
    # No reply of a handler can be waited for: it will be in the other cell's database.
    return Accepted(receipt.event_id, receipt.conflict, is_spooled=True, is_new=receipt.is_new)


def _from_receipt(receipt: Receipt) -> _Receipt:
    if isinstance(receipt, Duplicate):
        return _Receipt(receipt.event_id, is_duplicate=True, conflict=receipt.conflict, is_new=False)
    return _Receipt(receipt.event_id, is_duplicate=False, conflict=receipt.conflict, is_new=receipt.is_new)


def sign(secret: str, body: bytes) -> dict[str, str]:
    """Return the headers that prove that a body was posted by a gateway with the secret of all cells."""
    id, at, digest = uuid4().hex, int(time.time()), _digest(body)
    signature = sign_standard([secret], id, at, digest.encode())
    return {
        "content-digest": digest,
        "webhook-id": id,
        "webhook-timestamp": str(at),
        "webhook-signature": signature,
    }


def _digest(body: bytes) -> str:
    return f"sha-256=:{encode_base64(hashlib.sha256(body).digest())}:"


def _is_signed(secret: str, headers: Mapping[bytes, bytes]) -> bool:
    stamp = headers.get(b"webhook-timestamp", b"")
    if not stamp.isdigit() or len(stamp) > _MAX_STAMP:
        return False
    try:
        id = headers[b"webhook-id"].decode("ascii")
        expected = sign_standard([secret], id, int(stamp), headers[b"content-digest"])
    except (KeyError, ValueError):
        return False
    is_fresh = abs(time.time() - int(stamp)) <= _MAX_AGE_S
    return equal_bytes_constant_time(expected.encode(), headers.get(b"webhook-signature", b"")) and is_fresh


class CellIntakes:
    """The intakes of a gateway: its own, one for each other cell, and one for events that no cell accepts yet.

    Args:
        directory: finds the cell of each source.
        router: returns the routes last read, which have the assignments.
        messages: stores the messages of this cell; None if there are none.
    """

    def __init__(
        self, directory: CellDirectory, router: Callable[[], Router], messages: MessageStore | None = None
    ) -> None:
        self.directory = directory
        self._router = router
        self._messages = messages
        self._intakes: dict[str, Intake] = {}
        self._stores: dict[str, CellStore] = {}
        self._refused: set[str] = set()
        """Sources and applications that the cell they were assigned to has refused: their events must not delay others
        for that cell."""
        self._moved: dict[str, ApplicationAssignment] = {}
        """The latest known cells of applications that have moved."""

    def add(self, cell: str, intake: Intake, store: CellStore | None = None) -> None:
        """Add the intake for a cell, with the store of another one."""
        self._intakes[cell] = intake
        if store is not None:
            self._stores[cell] = store

    def home_of(self, source: str) -> str:
        """Return the cell that a source belongs to, by the assignments read last."""
        return self.directory.find(source, self._router().assignments)

    def find_other(self, cell: str, event: NewEvent) -> Intake | None:
        """Return the intake for the cell that an event belongs to; None if it belongs to *cell*.

        Without routes, no assignment is known; the event is routed before it is stored. A message stays where it is
        until its application is known to have moved: its store refuses it then.
        """
        if event.source is None:
            return self._find_other_of(cell, str(event.application))
        if self._router().version == UNROUTED:
            return None
        home = self.home_of(event.source)
        if home != self.directory.own and (home not in self._stores or event.source in self._refused):
            home = HELD
        return None if home == cell else self._intakes.get(home)

    def _find_other_of(self, cell: str, application: str) -> Intake | None:
        assignment = self._moved.get(application)
        if assignment is None:
            return None
        is_reachable = assignment.home == self.directory.own or assignment.home in self._stores
        home = assignment.home if is_reachable and application not in self._refused else HELD
        return None if home == cell else self._intakes.get(home)

    def learn(self, assignment: ApplicationAssignment) -> None:
        """Note which cell an application has moved to, unless a later assignment is known."""
        earlier = self._moved.get(assignment.application)
        if earlier is None or assignment.revision > earlier.revision:
            self._moved[assignment.application] = assignment
        elif earlier.home == self.directory.own != assignment.home:
            self.hold(assignment.application)  # it is on its way back: this cell's database has not got it yet

    def hold(self, owner: str) -> None:
        """Keep the events of a source or application apart until its cell accepts one."""
        if owner not in self._refused:
            _LOG.warning("source_refused", source=owner, note="its cell does not accept its events yet; they wait")
        self._refused.add(owner)

    async def append(self, batch: Sequence[NewEvent], *, within_s: float | None = None) -> list[Receipt]:
        """Offer rejected events to their cells again; the intake calls this as its store.

        Raises:
            CellUnavailable: a cell does not accept them yet.
            ValueRejected: a cell can never store one of them.
        """
        receipts: dict[UUID, Receipt] = {}
        owners: dict[tuple[str | None, str | None], list[NewEvent]] = {}
        for event in batch:
            owners.setdefault((event.source, event.application), []).append(event)
        for (source, application), events in owners.items():
            owner = str(source or application)
            home = self.home_of(owner) if source is not None else self._home_of_application(owner)
            if home != self.directory.own and home not in self._stores:
                raise CellUnavailable(f"{owner} belongs to the cell {home}, which is not in cells.members")
            if home != self.directory.own:
                new_receipts = await self._stores[home].append(events, within_s=within_s)
            elif source is not None:
                new_receipts = await asyncio.gather(*(self._intakes[home].accept(event) for event in events))
            else:
                new_receipts = await self._append_own(events, within_s)
            receipts |= zip((event.id for event in events), new_receipts, strict=True)
            self._refused.discard(owner)
        return [receipts[event.id] for event in batch]

    def _home_of_application(self, application: str) -> str:
        """Return the cell of an application. If no move is known, it is this cell, whose database decides."""
        assignment = self._moved.get(application)
        return self.directory.own if assignment is None else assignment.home

    async def _append_own(self, messages: Sequence[NewEvent], within_s: float | None) -> list[Receipt]:
        # Not through the intake of this cell: that would pass them on to here again while it refuses them.
        if self._messages is None:
            raise ValueRejected("published messages are not stored here")
        try:
            return await self._messages.append(messages, within_s=within_s)
        except ServedElsewhere as error:
            raise CellUnavailable(str(error)) from None

    async def report_duplicates(self, messages: Sequence[tuple[NewEvent, Duplicate]]) -> None:
        """Report messages that were answered 2xx and are not stored, because earlier ones have their ids or keys."""
        if self._messages is not None:
            await self._messages.report_duplicates(messages)

    async def start(self) -> None:
        """Start the intakes but the cell's own."""
        for intake in self._others():
            await intake.start()

    async def drain(self) -> None:
        """Make the events for the other cells durable, then stop."""
        await asyncio.gather(*(intake.drain() for intake in self._others()))

    def _others(self) -> list[Intake]:
        return [intake for cell, intake in self._intakes.items() if cell != self.directory.own]


class CellReceiver:
    """Accepts the events that gateways of other cells post, and answers whether an application is here.

    Args:
        cells: finds the cell of each source.
        secret: the secret of all cells.
        intake: the intake of this cell.
        event_builder: routes the events, and reads the assignments.
        applications: reads the applications.
        others: serves every other path.
    """

    def __init__(
        self,
        cells: CellIntakes,
        secret: str,
        intake: Intake,
        event_builder: EventBuilder,
        *,
        applications: ApplicationReader,
        others: Asgi,
    ) -> None:
        self._cells = cells
        self._secret = secret
        self._intake = intake
        self._event_builder = event_builder
        self._applications = applications
        self._others = others
        self._pending_bytes = 0

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Answer one HTTP request."""
        if scope["path"] not in {EVENTS_PATH, APPLICATIONS_PATH}:
            await self._others(scope, receive, send)
            return
        status, body = await self._answer(scope, receive)
        headers = [(b"content-type", b"application/json"), (b"retry-after", b"1")]
        await send(
            {"type": "http.response.start", "status": status, "headers": headers if status == 503 else headers[:1]}
        )
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, scope: dict[str, Any], receive: Receive) -> tuple[int, bytes]:
        if scope["method"] != "POST":
            return 405, b'{"ok":false,"error":"method not allowed"}'
        headers = dict(scope["headers"])
        size = headers.get(b"content-length", b"")
        if not _is_signed(self._secret, headers) or not size.isdigit():
            return 401, _UNSIGNED
        if self._pending_bytes and self._pending_bytes + int(size) > _MAX_PENDING:
            return 503, b'{"ok":false,"error":"too many posts at once"}'
        self._pending_bytes += int(size)
        try:
            body = await read_body(receive, int(size))
            if body is None or _digest(body).encode() != headers[b"content-digest"]:
                return 401, _UNSIGNED
            return await (self._accept(body) if scope["path"] == EVENTS_PATH else self._tell(body))
        finally:
            self._pending_bytes -= int(size)

    async def _accept(self, body: bytes) -> tuple[int, bytes]:
        try:
            events = [decode(record) for record in _read_records(body)]
            refusal = await self._find_foreign(events)
            if refusal is not None:
                return 409, _write_json(refusal)
            receipts = await asyncio.gather(*(self._intake.accept(event) for event in await self._route(events)))
        except (msgspec.DecodeError, UnreadableRecord):
            return 400, b'{"ok":false,"error":"the events cannot be read; is this cell older than the other?"}'
        except BoathookError as error:
            is_final = isinstance(error, ValueRejected | TooManyDeliveries) and not isinstance(error, NotPassedOn)
            return 422 if is_final else 503, _write_json({"ok": False, "error": str(error)})
        meters.count("boathook_cell_events_received_total", len(events))
        return 200, _write_json([_from_receipt(receipt) for receipt in receipts])

    async def _tell(self, body: bytes) -> tuple[int, bytes]:
        try:
            question = _read_question(body)
            is_here = await self._applications.has_application(question.organization, question.reference)
        except msgspec.DecodeError:
            return 400, b'{"ok":false,"error":"the question cannot be read; is this cell older than the other?"}'
        except BoathookError as error:
            return 503, _write_json({"ok": False, "error": str(error)})
        return 200, _write_json({"found": is_here})

    async def _find_foreign(self, events: Sequence[NewEvent]) -> _Refusal | None:
        """Return why the events are not stored here; the assignments are read again first, as they may have changed."""
        if self._event_builder.router.version == UNROUTED or self._foreign_source(events) is not None:
            await self._event_builder.refresh()
        source = self._foreign_source(events)
        if source is None:
            return await self._find_moved(events)
        assignment = self._event_builder.router.assignments.get(source)
        return _Refusal(self._cells.home_of(source), 0 if assignment is None else assignment.revision, source=source)

    async def _find_moved(self, events: Sequence[NewEvent]) -> _Refusal | None:
        """Return why messages are not stored here: their application has moved, or its move here is not complete."""
        application_ids = {event.publication.application_id for event in events if event.publication is not None}
        assignments = await self._applications.find_cells(application_ids) if application_ids else ()
        for assignment in assignments:
            self._cells.learn(assignment)
        own = self._cells.directory.own
        return next(
            (
                _Refusal(assignment.home, assignment.revision, application=assignment.application)
                for assignment in assignments
                if assignment.home != own
            ),
            None,
        )

    def _foreign_source(self, events: Sequence[NewEvent]) -> str | None:
        sources = {event.source for event in events if event.source is not None}
        return next((source for source in sources if self._cells.home_of(source) != self._cells.directory.own), None)

    async def _route(self, events: Sequence[NewEvent]) -> Sequence[NewEvent]:
        received = [event for event in events if event.source is not None]
        if not received:
            return events
        try:
            routed = iter(await self._event_builder.reroute(received))
        except DatabaseUnavailable:
            return events  # they wait in the buffer, and are routed when they are stored
        return [event if event.source is None else next(routed) for event in events]
