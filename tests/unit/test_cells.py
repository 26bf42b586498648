"""The choice of a source's cell, and what gateways of different cells accept from each other."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import msgspec
import pytest
from msgspec.structs import replace

from boathook import config
from boathook.config.packages import register_metrics
from boathook.domain import ids
from boathook.domain.errors import (
    ConfigError,
    DatabaseUnavailable,
    FetchFailed,
    NotPassedOn,
    Overloaded,
    ServedElsewhere,
    SpoolUnavailable,
    TooManyDeliveries,
    ValueRejected,
)
from boathook.domain.filters import Router
from boathook.domain.homes import Assignment
from boathook.domain.model import Accepted, Duplicate, NewEvent, Publication, Receipt
from boathook.http_client.messages import HttpResponse
from boathook.ingest.event_builder import EventBuilder
from boathook.ingest.event_writer import EventWriter, Refused, Stored
from boathook.ingest.intake import Intake
from boathook.ingest.spool_records import decode, encode
from boathook.service.remote import RemoteClient
from boathook.spool.segment import Record
from boathook.spool.segment_store import SpoolLimits
from boathook.spool.spool import Spool
from boathook_cells import package
from boathook_cells.directory import ApplicationAssignment, CellDirectory, choose_cell
from boathook_cells.finder import ApplicationFinder
from boathook_cells.forwarding import CellIntakes, CellReceiver, CellStore, CellUnavailable, sign
from boathook_cells.settings import APPLICATIONS_PATH, EVENTS_PATH, CellsSettings
from boathook_cells.spools import HELD
from tests.support import eventually
from tests.unit.test_intake import Shelf, event


@pytest.fixture(autouse=True)
def cells_in_use() -> None:
    register_metrics(package)  # as a server does whose file has [cells]


SECRET = "whsec_dGhlIHNlY3JldCBvZiBhbGwgY2VsbHM="
EVENT = event("evt_1", b'{"paid":true}')
SOURCE = str(EVENT.source)
ARRIVED = Accepted(EVENT.id, is_spooled=True)


def test_sources_are_spread_and_a_new_cell_moves_only_its_share():
    sources = [f"source-{number}" for number in range(3_000)]
    before = {source: choose_cell(source, ("c1", "c2")) for source in sources}
    after = {source: choose_cell(source, ("c3", "c2", "c1")) for source in sources}
    for cell in ("c1", "c2", "c3"):
        assert 800 < sum(home == cell for home in after.values()) < 1_200
    assert all(after[source] in {before[source], "c3"} for source in sources)


def test_an_assignment_counts_more_than_the_hash():
    directory = CellDirectory("c1", ("c1", "c2"))
    for cell in ("c1", "c2", "c3"):
        assert directory.find("shop", {"shop": Assignment(source="shop", home=cell, revision=1)}) == cell


class Cell:
    """A cell in memory, with the receiver of its gateway and the store by which another cell reaches it."""

    def __init__(self, home: str = "c2", revision: int = 1, intake: Any = None, secret: str = SECRET) -> None:
        self.stored: list[NewEvent] = []
        self.learned: list[Assignment | ApplicationAssignment] = []
        self.reads = 0
        self.assignments = [Assignment(source=SOURCE, home=home, revision=revision)] if revision else []
        self.intake = intake or SimpleNamespace(accept=self.accept)
        self.secret = secret
        builder = EventBuilder(Router((), -1), self.read_router)
        directory = CellDirectory("c2", ("c1", "c2") if revision else (home,))
        cells = CellIntakes(directory, lambda: builder.router)
        self.receiver = CellReceiver(cells, SECRET, self.intake, builder, applications=self, others=self.others)
        self.applications: list[ApplicationAssignment] = []
        self.asked: list[tuple[str, str]] = []
        self.store = CellStore("c2", "http://c2/", secret, post=self.post, on_refusal=self.learn)
        self.break_body = lambda body: body
        self.paths: list[str] = []

    async def read_router(self) -> Router:
        self.reads += 1
        return Router((), self.reads, assignments=self.assignments)

    async def accept(self, event: NewEvent):
        self.stored.append(event)
        return Accepted(event.id) if len(self.stored) == 1 else Duplicate(self.stored[0].id, conflict=True)

    async def learn(self, assignment: Assignment | ApplicationAssignment) -> None:
        self.learned.append(assignment)

    async def find_cells(self, wanted: Collection[UUID]) -> list[ApplicationAssignment]:
        names = {ids.show(ids.APPLICATION, one) for one in wanted}
        return [one for one in self.applications if one.application in names]

    async def has_application(self, organization: str, reference: str) -> bool:
        self.asked.append((organization, reference))
        if reference == "away":
            raise DatabaseUnavailable("away")
        return reference == "acme"

    async def others(self, scope, _receive, send) -> None:
        self.paths.append(scope["path"])
        await send({"type": "http.response.start", "status": 404, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def request(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> tuple[int, bytes]:
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        raw.append((b"content-length", str(len(body)).encode()))
        chunks = [
            {"type": "http.request", "body": body[:7], "more_body": True},
            {"type": "http.request", "body": body[7:]},
        ]
        sent: list[dict[str, Any]] = []

        async def receive():
            return chunks.pop(0)

        async def send(message):
            sent.append(message)

        await self.receiver({"path": path, "method": method, "headers": raw}, receive, send)
        return sent[0]["status"], sent[1]["body"]

    async def post(self, url: str, headers: Mapping[str, str], body: bytes, timeout_s: float, max_bytes: int):
        assert url == f"http://c2{EVENTS_PATH}"
        status, answer = await self.request("POST", EVENTS_PATH, headers, self.break_body(body))
        return status, answer


async def test_events_arrive_as_they_are_with_their_receipts():
    cell = Cell()
    assert await cell.store.append([EVENT, EVENT]) == [ARRIVED, Duplicate(EVENT.id, conflict=True)]
    assert [(one.id, one.body, one.dedup_key) for one in cell.stored] == [(EVENT.id, EVENT.body, EVENT.dedup_key)] * 2
    assert await cell.store.append([]) == []


@pytest.mark.parametrize("revision", [0, 7])
async def test_events_of_a_third_cell_are_refused_with_its_name(revision: int):
    cell = Cell(home="c3", revision=revision)
    with pytest.raises(CellUnavailable, match=f"{SOURCE} belongs to c3"):
        await cell.store.append([EVENT])
    assert cell.learned == [Assignment(source=SOURCE, home="c3", revision=revision)]
    assert not cell.stored


async def test_a_changed_assignment_is_read_before_events_are_refused():
    cell = Cell(home="c1")
    with pytest.raises(CellUnavailable):
        await cell.store.append([EVENT])
    cell.assignments = [Assignment(source=SOURCE, home="c2", revision=2)]
    assert await cell.store.append([EVENT]) == [ARRIVED]


async def test_only_signed_posts_are_accepted():
    cell = Cell(secret="whsec_" + "A" * 32)
    with pytest.raises(CellUnavailable, match="answered 401"):
        await cell.store.append([EVENT])
    changed = Cell()
    changed.break_body = lambda body: body[:-1] + bytes([body[-1] ^ 1])
    with pytest.raises(CellUnavailable, match="answered 401"):
        await changed.store.append([EVENT])
    status, _ = await changed.request("POST", EVENTS_PATH, {}, b"\x90")
    assert status == 401
    assert not cell.stored + changed.stored


async def test_an_old_post_is_not_accepted_again(monkeypatch: pytest.MonkeyPatch):
    cell, real = Cell(), time.time
    kept: list[tuple[Mapping[str, str], bytes]] = []

    async def keep(url, headers, body, timeout_s, max_bytes):
        kept.append((headers, body))
        raise FetchFailed("cut off")

    store = CellStore("c2", "http://c2", SECRET, post=keep, on_refusal=cell.learn)
    with pytest.raises(CellUnavailable, match="cut off"):
        await store.append([EVENT])
    ((headers, body),) = kept
    for skew_s in (301, -301):
        monkeypatch.setattr("time.time", lambda skew_s=skew_s: real() + skew_s)
        assert (await cell.request("POST", EVENTS_PATH, headers, body))[0] == 401
    monkeypatch.undo()
    assert (await cell.request("POST", EVENTS_PATH, headers, body))[0] == 200


@pytest.mark.parametrize("error", [Overloaded("full"), DatabaseUnavailable("away"), NotPassedOn("no spool")])
async def test_a_store_failure_is_reported_to_the_sending_cell(error: Exception):
    async def fail(_event: NewEvent):
        raise error

    with pytest.raises(CellUnavailable, match="answered 503"):
        await Cell(intake=SimpleNamespace(accept=fail)).store.append([EVENT])


@pytest.mark.parametrize(
    "answer", [(200, b"[]"), (200, b"junk"), (409, b"junk"), (200, b"{}"), (302, b""), (200, b"[[1]]")]
)
async def test_an_invalid_response_of_a_cell_stores_nothing(answer: tuple[int, bytes]):
    async def post(*_: object):
        return answer[0], answer[1]

    with pytest.raises(CellUnavailable):
        await CellStore("c2", "http://c2", SECRET, post=post, on_refusal=Cell().learn).append([EVENT])


@pytest.mark.parametrize("body", [b"", b"junk", msgspec.msgpack.encode([b"\x07junk"]), msgspec.msgpack.encode([1])])
async def test_a_signed_post_that_cannot_be_read_is_refused(body: bytes):
    cell = Cell()
    status, answer = await cell.request("POST", EVENTS_PATH, sign(SECRET, body), body)
    assert status == 400
    assert "older" in json.loads(answer)["error"]


async def test_other_methods_and_paths():
    cell = Cell()
    assert (await cell.request("GET", EVENTS_PATH, {}, b""))[0] == 405
    assert (await cell.request("GET", "/in/shop", {}, b""))[0] == 404
    assert cell.paths == ["/in/shop"]


async def test_an_unsigned_post_is_refused_before_it_is_read():
    cell = Cell()
    sent: list[dict[str, Any]] = []

    async def receive():
        raise AssertionError("read")

    async def send(message):
        sent.append(message)

    headers = [(name.encode(), value.encode()) for name, value in sign("whsec_" + "A" * 32, b"").items()]
    headers.append((b"content-length", b"999999999"))
    await cell.receiver({"path": EVENTS_PATH, "method": "POST", "headers": headers}, receive, send)
    assert sent[0]["status"] == 401


async def test_posts_beyond_the_memory_for_them_wait_at_the_sender():
    arrived = asyncio.Event()

    async def accept(event: NewEvent):
        await arrived.wait()
        return Accepted(event.id)

    cell = Cell(intake=SimpleNamespace(accept=accept))
    big = replace(EVENT, body=bytes(65 << 20))
    first = asyncio.create_task(cell.store.append([big]))
    await eventually(lambda: cell.receiver._pending_bytes)
    with pytest.raises(CellUnavailable, match="answered 503"):
        await cell.store.append([EVENT])
    arrived.set()
    assert await first == [ARRIVED]
    assert await cell.store.append([EVENT]) == [ARRIVED]


async def test_large_groups_are_divided():
    sizes: list[int] = []

    async def post(_url, _headers, body, _timeout_s, _max_bytes):
        records = msgspec.msgpack.decode(body)
        sizes.append(len(records))
        rows = [[str(EVENT.id), False, False, True] for _ in records]
        return 200, json.dumps(rows).encode()

    big = replace(EVENT, body=bytes(400_000))
    store = CellStore("c2", "http://c2", SECRET, post=post, on_refusal=Cell().learn)
    assert len(await store.append([big] * 5)) == 5
    assert sizes == [2, 2, 1]


async def test_a_huge_timestamp_is_refused():
    headers = sign(SECRET, b"") | {"webhook-timestamp": "9" * 400}
    assert (await Cell().request("POST", EVENTS_PATH, headers, b""))[0] == 401


class Messages:
    """The store of messages of the cell c1, which refuses those of applications that have moved."""

    def __init__(self) -> None:
        self.moved: dict[str, ApplicationAssignment] = {}
        self.stored: list[str] = []
        self.reported: list[str] = []
        self.on_moved: Callable[[ApplicationAssignment], None] = lambda _assignment: None

    async def append(self, batch: Sequence[NewEvent], *, within_s: float | None = None) -> list[Receipt]:
        refused = [self.moved[str(one.application)] for one in batch if one.application in self.moved]
        for assignment in refused:
            self.on_moved(assignment)
        self.stored += [one.dedup_key for one in batch if one.application not in self.moved]
        if refused:
            raise ServedElsewhere(refused[0].application, refused[0].home, refused[0].revision)
        return [Accepted(one.id) for one in batch]

    async def report_duplicates(self, messages: Sequence[tuple[NewEvent, Duplicate]]) -> None:
        self.reported += [message.dedup_key for message, _ in messages]


class Gateway:
    """The intakes of a gateway of the cell c1; the cell c2 refuses the sources and applications in `refused`, and
    stores the others."""

    def __init__(self, folder: Path, *assigned: Assignment) -> None:
        self.router = Router((), 5, assignments=assigned)
        self.messages = Messages()
        self.intakes = CellIntakes(CellDirectory("c1", ("c1", "c2")), lambda: self.router, self.messages)
        self.messages.on_moved = self.intakes.learn
        self.refused: set[str] = set()
        self.revision = 1
        self.known: set[str] = set()
        self.stored: list[str] = []
        self.here = Shelf()
        store = CellStore("c2", "http://c2", SECRET, post=self.post, on_refusal=self.hold, messages=self.messages)
        self.own = self.open("c1", self.here, folder)
        self.intakes.add("c2", self.open("c2", store, folder), store)
        self.intakes.add(HELD, self.open(HELD, self.intakes, folder))

    def open(self, cell: str, store: Any, folder: Path) -> Intake:
        buffer = Spool.at(folder / cell, SpoolLimits())
        intake = Intake(
            store,
            messages=self.messages if cell == "c1" else store,
            buffer=buffer,
            elsewhere=partial(self.intakes.find_other, cell),
            dedup_cache_size=0,
        )
        self.intakes.add(cell, intake)
        return intake

    async def hold(self, assignment: Assignment | ApplicationAssignment) -> None:
        if isinstance(assignment, ApplicationAssignment):
            self.intakes.learn(assignment)
            self.intakes.hold(assignment.application)
        else:
            self.intakes.hold(assignment.source)

    async def post(self, _url, _headers, body, _timeout_s, _max_bytes):
        events = [decode(record) for record in msgspec.msgpack.decode(body)]
        for one in events:
            if one.source in self.refused:
                refusal = {"source": one.source, "cell": "c1", "revision": 1}
                return 409, json.dumps(refusal).encode()
            if one.application in self.refused:
                refusal = {"application": one.application, "cell": "c1", "revision": self.revision}
                return 409, json.dumps(refusal).encode()
        self.stored += [one.dedup_key for one in events]
        rows = [[str(one.id), one.dedup_key in self.known, False, True] for one in events]
        return 200, json.dumps(rows).encode()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        await self.own.start()
        await self.intakes.start()
        yield
        await self.own.drain()
        await self.intakes.drain()


def of(source: str, key: str) -> NewEvent:
    return replace(event(key), source=source)


async def test_a_moving_source_delays_no_other_of_its_cell(tmp_path: Path):
    there = [Assignment(source=source, home="c2", revision=2) for source in ("moving", "settled")]
    gateway = Gateway(tmp_path, *there)
    gateway.refused = {"moving"}
    async with gateway.running():
        assert isinstance(await gateway.own.accept(of("moving", "m1")), Accepted)
        for number in range(5):
            assert isinstance(await gateway.own.accept(of("settled", f"s{number}")), Accepted)
        await gateway.own.accept(of("moving", "m2"))
        await eventually(lambda: len(gateway.stored) == 5)
        assert set(gateway.stored) == {f"s{number}" for number in range(5)}
        gateway.refused = set()
        await eventually(lambda: len(gateway.stored) == 7)
    assert not gateway.here.batches
    assert gateway.intakes.find_other("c1", of("moving", "m3")) is gateway.intakes._intakes["c2"]


async def test_rejected_events_are_stored_here_when_their_source_returns(tmp_path: Path):
    gateway = Gateway(tmp_path, Assignment(source="shop", home="c2", revision=2))
    gateway.refused = {"shop"}
    async with gateway.running():
        await gateway.own.accept(of("shop", "a"))
        gateway.router = Router((), 6, assignments=[Assignment(source="shop", home="c1", revision=3)])
        await eventually(lambda: ["a"] in gateway.here.batches)
    assert not gateway.stored


async def test_events_of_an_unknown_cell_wait(tmp_path: Path):
    gateway = Gateway(tmp_path, Assignment(source="shop", home="c3", revision=2))
    async with gateway.running():
        assert await gateway.own.accept(of("shop", "a")) == Accepted(of("shop", "a").id, is_spooled=True)
        await gateway.own.accept(of("bank", "b"))
        gateway.router = Router((), 6, assignments=[Assignment(source="shop", home="c2", revision=3)])
        await eventually(lambda: "a" in gateway.stored)


async def test_two_sources_that_change_places_stop_nothing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("boathook.ingest.event_writer.PASS_ON_S", 0.2)
    swapped = False
    own = Intake(Shelf(), elsewhere=lambda one: other if swapped and one.dedup_key == "a" else None)
    other = Intake(Shelf(), elsewhere=lambda one: own if swapped and one.dedup_key == "b" else None)
    tasks = [asyncio.create_task(own.accept(event("a"))), asyncio.create_task(other.accept(event("b")))]
    await asyncio.sleep(0)
    swapped = True
    await own.start()
    await other.start()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(one, Accepted | NotPassedOn) for one in found)
    await own.drain()
    await other.drain()


class Full(Intake):
    """An intake for another cell with a full spool."""

    def put(self, event: NewEvent, waiter: Any) -> None:
        waiter.set_exception(SpoolUnavailable("full"))


async def test_a_full_spool_of_another_cell_stops_nothing_here():
    other, here = Full(Shelf()), Shelf()
    writer = EventWriter(here, elsewhere=lambda one: other if one.dedup_key == "theirs" else None)
    records = [Record(number, encode(event(key))) for number, key in enumerate(("theirs", "ours"))]
    found = [result async for result in writer.bring(records)]
    assert [type(one) for one in found] == [Refused, Stored]
    assert here.batches[-1] == ["ours"]


@pytest.mark.parametrize("error", [ValueRejected("a NUL"), TooManyDeliveries("too many items")])
async def test_a_permanent_store_error_rejects_the_event(error: Exception):
    async def refuse(_event: NewEvent):
        raise error

    with pytest.raises(ValueRejected, match=str(error)):
        await Cell(intake=SimpleNamespace(accept=refuse)).store.append([EVENT])


async def test_a_permanently_rejected_event_delays_no_other():
    class Refusing:
        async def accept(self, one: NewEvent):
            if one.dedup_key == "bad":
                raise ValueRejected("a NUL")
            return Accepted(one.id)

    intake = Intake(Cell(intake=Refusing()).store)
    await intake.start()
    found = await asyncio.gather(*(intake.accept(event(key)) for key in ("a", "bad", "b")), return_exceptions=True)
    assert [type(one) for one in found] == [Accepted, ValueRejected, Accepted]
    await intake.drain()


APPLICATION = UUID(int=7)
MOVED = ApplicationAssignment(application=ids.show(ids.APPLICATION, APPLICATION), home="c2", revision=6)


def message(key: str, application: UUID = APPLICATION) -> NewEvent:
    target = Publication(application_id=application, organization="default", memory_days=1.0)
    name = ids.show(ids.APPLICATION, application)
    return replace(event(key), source=None, application=name, publication=target)


async def test_a_moved_applications_message_goes_to_its_cell_with_its_id(tmp_path: Path):
    gateway = Gateway(tmp_path)
    gateway.messages.moved = {MOVED.application: MOVED}
    async with gateway.running():
        sent = [message("a"), message("here", UUID(int=8)), message("b")]
        found = await asyncio.gather(*map(gateway.own.accept, sent))
        assert [one.event_id for one in found] == [one.id for one in sent]
        assert sorted(gateway.stored) == ["a", "b"]
        assert set(gateway.messages.stored) == {"here"}
        gateway.known = {"c"}
        writer = EventWriter(
            gateway.here, messages=gateway.messages, elsewhere=partial(gateway.intakes.find_other, "c1")
        )
        (stored,) = [result async for result in writer.bring([Record(1, encode(message("c")))])]
        assert isinstance(stored, Stored)
        assert isinstance(stored.receipt, Duplicate)
        assert gateway.messages.reported == ["c"]


async def test_a_moving_application_delays_no_other_of_its_cell(tmp_path: Path):
    gateway = Gateway(tmp_path)
    other = replace(MOVED, application=ids.show(ids.APPLICATION, UUID(int=9)))
    gateway.messages.moved = {one.application: one for one in (MOVED, other)}
    gateway.refused = {MOVED.application}
    async with gateway.running():
        assert (await gateway.own.accept(message("m1"))) == Accepted(message("m1").id, is_spooled=True)
        for number in range(5):
            await gateway.own.accept(message(f"s{number}", UUID(int=9)))
        await gateway.own.accept(message("m2"))
        await eventually(lambda: set(gateway.stored) == {f"s{number}" for number in range(5)})
        gateway.refused = set()
        await eventually(lambda: {"m1", "m2"} <= set(gateway.stored))
    assert not gateway.messages.stored


async def test_messages_wait_until_a_returning_application_arrives(tmp_path: Path):
    """The other cell has let it go already, and this one's database still says that it has moved."""
    gateway = Gateway(tmp_path)
    gateway.messages.moved = {MOVED.application: MOVED}
    gateway.refused, gateway.revision = {MOVED.application}, 8
    async with gateway.running():
        for key in ("a", "b"):
            assert isinstance(await gateway.own.accept(message(key)), Accepted)
        await asyncio.sleep(0.3)
        assert not gateway.stored + gateway.messages.stored
        gateway.messages.moved = {}
        await eventually(lambda: set(gateway.messages.stored) == {"a", "b"})
        await gateway.own.accept(message("c"))
        await eventually(lambda: set(gateway.messages.stored) == {"a", "b", "c"})
    assert not gateway.stored


async def test_a_message_waits_if_only_another_cell_knows_of_the_return(tmp_path: Path):
    gateway = Gateway(tmp_path)
    gateway.messages.moved = {MOVED.application: MOVED}
    gateway.intakes.learn(replace(MOVED, home="c1", revision=MOVED.revision + 1))
    async with gateway.running():
        assert await gateway.own.accept(message("a")) == Accepted(message("a").id, is_spooled=True)
        gateway.messages.moved = {}
        await eventually(lambda: gateway.messages.stored == ["a"])


async def cell_of_an_application_learned_in_reverse(folder: Path) -> str:
    """Learn two moves of an application, the later one first; return the cell that gets its next message."""
    gateway = Gateway(folder)
    for assignment in (MOVED, replace(MOVED, home="c1", revision=MOVED.revision - 1)):
        gateway.intakes.learn(assignment)
    async with gateway.running():
        await gateway.own.accept(message("a"))
    return "c2" if gateway.stored == ["a"] else "c1"


async def test_an_older_move_of_an_application_does_not_replace_a_later_one(tmp_path: Path):
    assert await cell_of_an_application_learned_in_reverse(tmp_path) == "c2"


async def test_mutant_without_the_revision_the_older_move_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def learn_all(self: CellIntakes, assignment: ApplicationAssignment) -> None:
        self._moved[assignment.application] = assignment

    monkeypatch.setattr(CellIntakes, "learn", learn_all)
    assert await cell_of_an_application_learned_in_reverse(tmp_path) == "c1"


async def test_a_restarted_gateway_forwards_waiting_messages(tmp_path: Path):
    first = Gateway(tmp_path)
    first.messages.moved, first.refused = {MOVED.application: MOVED}, {MOVED.application}
    async with first.running():
        await first.own.accept(message("a"))
    second = Gateway(tmp_path)
    second.messages.moved = {MOVED.application: MOVED}
    async with second.running():
        await eventually(lambda: second.stored == ["a"])


async def test_without_gateways_another_cells_message_is_refused(tmp_path: Path):
    messages = Messages()
    messages.moved = {MOVED.application: MOVED}
    writer = EventWriter(Shelf(), messages=messages)
    found = [result async for result in writer.bring([Record(1, encode(message("a")))])]
    assert [type(one) for one in found] == [Refused]
    assert "belongs to the cell c2" in found[0].reason


async def test_a_cell_refuses_messages_of_an_application_not_yet_arrived():
    cell = Cell()
    cell.applications = [replace(MOVED, home="c1", revision=3)]
    with pytest.raises(CellUnavailable, match=f"application {MOVED.application} belongs to c1"):
        await cell.store.append([EVENT, message("a")])
    assert cell.learned == cell.applications
    assert not cell.stored
    cell.applications = [replace(MOVED, revision=7)]
    assert len(await cell.store.append([message("a")])) == 1


@pytest.mark.parametrize(
    ("reference", "status", "answer"),
    [("acme", 200, {"found": True}), ("other", 200, {"found": False}), ("away", 503, {"ok": False, "error": "away"})],
)
async def test_a_cell_reports_whether_it_has_an_application(reference: str, status: int, answer: dict[str, Any]):
    cell = Cell()
    body = json.dumps({"organization": "org", "reference": reference}).encode()
    found = await cell.request("POST", APPLICATIONS_PATH, sign(SECRET, body), body)
    assert (found[0], json.loads(found[1])) == (status, answer)
    assert cell.asked == [("org", reference)]
    assert (await cell.request("POST", APPLICATIONS_PATH, sign("whsec_" + "A" * 32, body), body))[0] == 401
    assert (await cell.request("POST", APPLICATIONS_PATH, sign(SECRET, b"[]"), b"[]"))[0] == 400
    assert (await cell.request("GET", APPLICATIONS_PATH, {}, b""))[0] == 405
    assert cell.asked == [("org", reference)]


class Asking:
    """An application finder of the cell c1, with the responses of c2's and c3's gateways."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[str] = []
        self.answers: dict[str, Any] = {"c2": b'{"found":false}', "c3": b'{"found":false}'}
        members = {name: {"url": f"http://{name}", "accepts_new": True} for name in ("c1", "c2", "c3")}
        given = {"name": "c1", "secret": "whsec_" + "A" * 32, "members": members}
        settings = config.load(None, {}).model_copy(
            update={"tables": {"boathook_cells:package": {"cells": CellsSettings.model_validate(given)}}}
        )
        monkeypatch.setattr(RemoteClient, "request", self.request)
        self.finder = ApplicationFinder(settings)

    async def request(self, _method: str, url: str, *, timeout_s: float, **_: Any) -> HttpResponse:
        name = url.removeprefix("http://").removesuffix(APPLICATIONS_PATH)
        self.asked.append(name)
        answer = self.answers[name]
        if answer is None:
            await asyncio.sleep(timeout_s)
            raise FetchFailed("no answer came")
        return HttpResponse(200, {}, answer)


async def test_application_lookups_query_all_cells_and_are_cached(monkeypatch: pytest.MonkeyPatch):
    asking = Asking(monkeypatch)
    asking.answers["c3"] = b'{"found":true}'
    assert await asyncio.gather(*(asking.finder.find("org", "acme") for _ in range(50))) == ["c3"] * 50
    assert sorted(asking.asked) == ["c2", "c3"]
    asking.answers["c3"] = b"junk"
    assert await asking.finder.find("org", "other") is None
    assert await asking.finder.find("org", "other") is None
    assert len(asking.asked) == 4


async def test_an_unavailable_cell_delays_a_lookup_by_a_second_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("boathook_cells.finder.ASK_TIMEOUT_S", 0.2)
    asking = Asking(monkeypatch)
    asking.answers |= {"c2": None, "c3": b'{"found":true}'}
    assert await asyncio.wait_for(asking.finder.find("org", "a"), 5) is None
    await eventually(lambda: not asking.finder._asking)
    assert await asking.finder.find("org", "a") == "c3"
    assert await asking.finder.find("org", "b") == "c3"
    assert asking.asked.count("c2") == 1


async def test_without_cells_no_lookup_is_made():
    assert await ApplicationFinder(config.load(None, {})).find("org", "acme") is None


@pytest.mark.parametrize("path", ["/cells/events", "/CELLS/Events/", "/cells/applications"])
def test_a_source_cannot_have_a_path_of_the_cells(tmp_path: Path, path: str):
    file = tmp_path / "boathook.toml"
    section = f'[cells]\nname = "c1"\nsecret = "{SECRET}"\n[cells.members]\nc1 = {{ url = "https://c1", accepts_new = true }}\n'
    source = f'[sources.shop]\nprovider = "hmac"\nsecrets = ["a long secret"]\npaths = ["{path}"]\n'
    file.write_text(source)
    assert config.load(file).sources["shop"].paths == (path,)
    file.write_text(section + source)
    with pytest.raises(ConfigError, match=r"sources\.shop\.paths.*belongs to boathook itself"):
        config.load(file)
