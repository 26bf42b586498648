"""What operators do with deliveries, events and rejections: replay, ignore, purge, verify again; and send by shell.

Each leaves a row in the audit, in the transaction that makes the change. Large jobs run in bounded batches, so that
they neither hold locks for long nor keep a transaction open, and may be interrupted and repeated at any point: what
is done already is not done again.
"""

import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final
from uuid import UUID

import msgspec

from boathook.admin.schemas import check_message
from boathook.config import Settings
from boathook.domain import ids
from boathook.domain.errors import (
    IllegalMove,
    InvalidMessage,
    JournalError,
    NotFound,
    RegistryChanged,
    TooManyDeliveries,
)
from boathook.domain.filters import Router
from boathook.domain.model import Accepted, Receipt, State
from boathook.handlers.outbox import Message, Outbox, memory_days, receipt_of
from boathook.inbound.arrival import Arrivals
from boathook.inbound.captured import CapturedSecrets
from boathook.inbound.encoding import Decoder
from boathook.inbound.errands import Errands
from boathook.inbound.gates import dedup_days_of, verifier_of
from boathook.inbound.verify import Challenge, KeyWanted, Rejected, Request, Verdict, Verified
from boathook.journal import ledger, moves
from boathook.journal.database import Connection, Database
from boathook.journal.events import EventStore
from boathook.journal.ledger import Filter, RejectionRow, StoredRequest
from boathook.journal.moves import Action, Key, Pace, Replayed, Selection
from boathook.journal.registry import read_routes, read_routing
from boathook.outbound.fetch import Fetcher

BATCH: Final = 500
_MOST_REROUTES: Final = 5

Report = Callable[[int], None]
"""Told how many are done so far."""


async def check_dead(database: Database, keys: Sequence[Key]) -> list[Key]:
    """Return which of these deliveries are dead letters; those pending or leased are on their way already.

    Raises:
        NotFound: one does not exist.
        IllegalMove: one has ended well.
    """
    dead = []
    for key in keys:
        delivery = await ledger.get_delivery(database, *key)
        if delivery.state == State.DEAD:
            dead.append(key)
        elif delivery.state in {State.SUCCEEDED, State.IGNORED}:
            again = f"to run it again, replay its event {delivery.event_id}"
            raise IllegalMove(f"{delivery.id} is {delivery.state}, no dead letter; {again}")
    return dead


async def replay_dead(
    database: Database, selection: Selection, action: Action, *, rate: float | None = None, report: Report | None = None
) -> int:
    """Make the dead letters of *selection* pending again, due at most *rate* a second; return how many.

    One that dies again meanwhile is not replayed twice.
    """
    start = await moves.read_clock(database)
    selection = _until(selection, start)
    gap_s = 1 / rate if rate else 0.0

    async def step(done: int) -> int:
        pace = Pace(start, gap_s, done)
        return len(await moves.replay_dead(database, selection, action, pace=pace, limit=BATCH))

    return await _in_batches(step, report)


async def ignore_dead(database: Database, selection: Selection, action: Action, *, report: Report | None = None) -> int:
    """End the dead letters of *selection* as ignored, with the action's note; return how many.

    Raises:
        IllegalMove: there is no note.
    """
    if not (action.note or "").strip():
        raise IllegalMove("ignoring a dead letter needs a note that says why")
    selection = _until(selection, await moves.read_clock(database))

    async def step(_done: int) -> int:
        return len(await moves.ignore_dead(database, selection, action, limit=BATCH))

    return await _in_batches(step, report)


async def purge_dead(database: Database, selection: Selection, action: Action, *, report: Report | None = None) -> int:
    """Delete the dead letters of *selection* with their attempts, counted as dropped; return how many."""
    selection = _until(selection, await moves.read_clock(database))

    async def step(_done: int) -> int:
        return len(await moves.purge_dead(database, selection, action, limit=BATCH))

    return await _in_batches(step, report)


async def replay_events(
    database: Database,
    chosen: Filter | Sequence[UUID],
    action: Action,
    *,
    rate: float | None = None,
    is_once: bool = False,
    report: Report | None = None,
) -> Replayed:
    """Owe events again to every recipient that is not owed them now; dead letters are revived instead.

    Args:
        chosen: the events, or a filter; of a filter, those accepted before this call. Of a batch whose own type does
            not fit the filter, only the items that do are owed again.
        rate: at most so many deliveries fall due a second.
        is_once: leave out what an earlier replay with the same note has dealt with, so that an interrupted one can
            be finished by repeating it.
    """
    start = await moves.read_clock(database)
    wanted_type = chosen.type if isinstance(chosen, Filter) else None
    total = Replayed()
    async for batch in _event_batches(database, chosen, start):
        pace = Pace(start, 1 / rate if rate else 0.0, total.added + total.revived)
        part = await moves.replay_events(database, batch, action, pace=pace, type=wanted_type, is_once=is_once)
        total = Replayed(total.events + part.events, total.added + part.added, total.revived + part.revived)
        if report is not None:
            report(total.events)
    return total


async def _event_batches(
    database: Database, chosen: Filter | Sequence[UUID], start: datetime
) -> AsyncIterator[Sequence[UUID]]:
    if not isinstance(chosen, Filter):
        for event_id in chosen:
            await ledger.get_event(database, event_id)
        for first in range(0, len(chosen), BATCH):
            yield chosen[first : first + BATCH]
        return
    bounded = replace(chosen, until=min(start, chosen.until or start))
    after = None
    while batch := await moves.page_events(database, bounded, after=after, limit=BATCH):
        yield batch
        after = batch[-1]


def _until(selection: Selection, moment: datetime) -> Selection:
    until = min(moment, selection.filter.until or moment)
    return replace(selection, filter=replace(selection.filter, until=until))


async def _in_batches(step: Callable[[int], Awaitable[int]], report: Report | None) -> int:
    done = 0
    while moved := await step(done):
        done += moved
        if report is not None:
            report(done)
    return done


@dataclass(frozen=True, slots=True, kw_only=True)
class Reverified:
    """What judging a refused request again led to."""

    rejection_id: str
    outcome: str
    """``accepted``, ``duplicate``, ``conflict``, ``refused`` or ``impossible``."""
    detail: str
    event_id: str | None = None
    grade: str | None = None
    """What the event's proof covers; None where it became none."""


async def reverify(
    database: Database, settings: Settings, chosen: Filter | Sequence[UUID], action: Action
) -> AsyncIterator[Reverified]:
    """Judge refused requests again by their sources' present secrets, as of when they came; accept those that hold.

    Raises:
        NotFound: one of the given ids does not exist.
        ConfigError: a source cannot be set up.
    """
    with contextlib.closing(Fetcher(settings.outbound.allow)) as fetcher:
        errands = Errands(fetcher.fetch, CapturedSecrets(settings.server.data_dir))
        async for one in _reverify(database, settings, chosen, action, errands):
            yield one


async def _reverify(
    database: Database, settings: Settings, chosen: Filter | Sequence[UUID], action: Action, errands: Errands
) -> AsyncIterator[Reverified]:
    judges: dict[str, _Judge] = {}
    async for rejection_id in _rejections(database, chosen):
        row, stored = await ledger.get_rejection(database, rejection_id)
        if row.event_id is not None:
            yield Reverified(rejection_id=row.id, outcome="duplicate", detail="accepted before", event_id=row.event_id)
        elif row.source not in settings.sources:
            detail = f"there is no source {row.source!r} in the settings"
            yield Reverified(rejection_id=row.id, outcome="impossible", detail=detail)
        elif len(stored.body) < row.body_size:
            detail = f"only {len(stored.body)} of its {row.body_size} bytes were kept"
            yield Reverified(rejection_id=row.id, outcome="impossible", detail=detail)
        else:
            if row.source not in judges:
                judges[row.source] = _Judge(database, settings, row.source, errands)
            yield await _judge(database, judges[row.source], rejection_id, row, stored, action)


async def _rejections(database: Database, chosen: Filter | Sequence[UUID]) -> AsyncIterator[UUID]:
    if not isinstance(chosen, Filter):
        for rejection_id in chosen:
            yield rejection_id
        return
    page = replace(chosen, state="open", limit=BATCH)
    while rows := await ledger.list_rejections(database, page):
        for row in rows:
            yield ids.read(ids.REJECTION, row.id)
        page = replace(page, after=rows[-1].id)


async def _judge(
    database: Database, judge: "_Judge", rejection_id: UUID, row: RejectionRow, stored: StoredRequest, action: Action
) -> Reverified:
    request = _request(row, stored)
    if not judge.can_read(request):
        detail = f"the source does not accept Content-Encoding {request.headers['content-encoding']!r}"
        return Reverified(rejection_id=row.id, outcome="impossible", detail=detail)
    decoder = judge.decoder(request)
    match await judge.verify(request, row.refused_at.timestamp(), decoder):
        case KeyWanted():
            detail = "its sender's public key cannot be had at the moment; try again later"
            return Reverified(rejection_id=row.id, outcome="impossible", detail=detail)
        case Rejected() as refused:
            detail = judge.explain(request, refused, row.refused_at.timestamp())
            return Reverified(rejection_id=row.id, outcome="refused", detail=detail)
        case Challenge():
            return Reverified(rejection_id=row.id, outcome="impossible", detail="it is a handshake, not an event")
        case Verified() as verified:
            body = stored.body if decoder is None or decoder.decoded is None else decoder.decoded
            try:
                receipt = await judge.accept(row.source, verified, body, row.content_type)
            except TooManyDeliveries as error:
                return Reverified(rejection_id=row.id, outcome="impossible", detail=str(error))
            await moves.mark_rejection(database, rejection_id, receipt.event_id, action)
            outcome = "accepted" if isinstance(receipt, Accepted) else "conflict" if receipt.conflict else "duplicate"
            event_id = ids.show(ids.EVENT, receipt.event_id)
            return Reverified(
                rejection_id=row.id,
                outcome=outcome,
                detail=verified.type,
                event_id=event_id,
                grade=verified.grade.value,
            )


class _Judge:
    """One source as the gateway has it, to judge and accept again by."""

    def __init__(self, database: Database, settings: Settings, source: str, errands: Errands) -> None:
        self._source = source
        self.verifier = verifier_of(settings, source)
        self._errands = errands
        self._limits = settings.limits
        own = settings.sources[source].content_encodings
        self._encodings = settings.limits.content_encodings if own is None else own
        self._events = EventStore(
            database, dedup_days=settings.retention.dedup_days, dedup_days_of=dedup_days_of(settings)
        )
        self._arrivals = Arrivals(Router((), -1), self._read_router)
        self._database = database

    async def _read_router(self) -> Router:
        routes = await read_routes(self._database)
        return Router(routes.routes, routes.version)

    def can_read(self, request: Request) -> bool:
        """Return whether the gateway would have let the request's Content-Encoding pass."""
        return request.headers.get("content-encoding", "").lower() in {"", "identity", *self._encodings}

    def decoder(self, request: Request) -> Decoder | None:
        """Return what undoes the request's Content-Encoding, where its source allows one."""
        encoding = request.headers.get("content-encoding", "").lower()
        if encoding not in self._encodings:
            return None
        return Decoder(encoding, max_decoded=self._limits.max_decoded, max_ratio=self._limits.max_ratio)

    async def verify(self, request: Request, now: float, decoder: Decoder | None) -> Verdict:
        """Judge a request as of *now*; `KeyWanted` only where its sender's key cannot be had."""
        verdict = self.verifier.verify(request, now, decoder)
        if not isinstance(verdict, KeyWanted):
            return verdict
        return await self._errands.judge_with_key(self._source, self.verifier, verdict, request, now, decoder)

    def explain(self, request: Request, refused: Rejected, now: float) -> str:
        """Return why a request is refused, with the usual mistake that explains it, where one does."""
        hint = self.verifier.explain(request, refused, now, decode=self.decoder(request))
        return f"{refused.reason}: {refused.detail}" + (f"; {hint}" if hint else "")

    async def accept(self, source: str, verified: Verified, body: bytes, content_type: str) -> Receipt:
        """Store the event with the deliveries it is owed by the present routes."""
        event = self._arrivals.event(source, verified, body, content_type, time.time())
        for _ in range(_MOST_REROUTES):
            event = await self._arrivals.route_again(event, verified)
            try:
                (receipt,) = await self._events.append([event])
            except RegistryChanged:
                continue
            await moves.announce_due(self._database)
            return receipt
        raise JournalError("the routes kept changing while the event was stored; try again")


def _request(row: RejectionRow, stored: StoredRequest) -> Request:
    # By hand, as a stranger may have written the host, and one that no reader takes must not end the run.
    address, _, query = row.url.partition("?")
    return Request(
        method=row.method,
        url=row.url,
        path="/" + address.partition("://")[2].partition("/")[2],
        query=query,
        headers=stored.headers,
        body=stored.body,
        client=row.client_address,
    )


async def send(database: Database, settings: Settings, action: Action, message: Message) -> Receipt:
    """Publish one message, whose payload is the bytes of a JSON document, kept as they are.

    Raises:
        NotFound: nobody is called so: there is no such application, and no handler for one of this name.
        InvalidMessage: a field breaks a rule, or the payload is no JSON or does not fit its event type's schema.
        DuplicateMessage: the application has a message with this id, but another payload.
    """
    try:
        document = msgspec.json.decode(message.payload)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidMessage(f"payload: it must be JSON: {error}") from None
    async with database.transaction() as connection:
        await _check_recipients(connection, message)
        if settings.outbound.validate_payloads:
            await check_message(connection, organization=message.organization, type=message.type, payload=document)
        published = await Outbox(memory_days=memory_days(settings.retention)).publish(connection, message)
        receipt = receipt_of(message, published)
        if isinstance(receipt, Accepted):
            await moves.record(connection, action, "event.send", ids.show(ids.EVENT, receipt.event_id))
    await moves.announce_due(database)
    return receipt


async def _check_recipients(connection: Connection, message: Message) -> None:
    routing = await read_routing(connection, message.organization, message.application)
    if routing.application is None and not routing.routes:
        raise NotFound(
            f"there is no application {message.application!r}, and no handler for one of this name; make it with: "
            f"boathook applications create NAME --uid {message.application}"
        )
