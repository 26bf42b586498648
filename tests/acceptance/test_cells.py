"""Two cells as processes, each on a database of its own: a source of one is received by the other, and moved.

So is an application, while messages are published to it.
"""

import base64
import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from boathook_cells.directory import choose_cell
from tests.acceptance.conftest import SECRET as STRIPE_SECRET
from tests.acceptance.conftest import BoathookProcess, boathook_processes, payload, signed
from tests.acceptance.svix.receiver import Mailbox, Receiver
from tests.databases import Pool
from tests.support import until

SECRET = "whsec_" + base64.b64encode(b"the secret that all cells share").decode()
CELLS = ("c1", "c2")


@dataclass
class Cells:
    """The processes of two cells and the URLs of their databases, by name."""

    processes: dict[str, BoathookProcess] = field(default_factory=dict)
    databases: dict[str, str] = field(default_factory=dict)
    tokens: dict[str, str] = field(default_factory=dict)
    """A token of the API for each cell, once it was asked for."""

    def home(self) -> str:
        """Return the cell that the source belongs to before it is assigned."""
        return choose_cell("stripe", CELLS)

    def send(self, cell: str, key: str, path: str = "/in/stripe") -> httpx.Response:
        """Send an event to the gateways of a cell."""
        return self.send_event(cell, payload(key), path)

    def send_event(self, cell: str, event: dict[str, Any], path: str = "/in/stripe") -> httpx.Response:
        """Send an event with this body to the gateways of a cell."""
        body, headers = signed(event)
        return httpx.post(self.processes[cell].base + path, content=body, headers=headers, timeout=60)

    def read(self, cell: str, sql: str) -> list[str]:
        """Return the first column of a query in a cell's database."""
        with psycopg.connect(self.databases[cell], autocommit=True) as connection:
            return [row[0] for row in connection.execute(sql).fetchall()]

    def stored(self, cell: str) -> list[str]:
        """Return the keys of the events that a cell has stored."""
        return self.read(cell, "select dedup_key from boathook.event")

    def messages(self, cell: str) -> dict[str, Any]:
        """Return the ids of the messages that a cell has stored, by their publishers' ids."""
        with psycopg.connect(self.databases[cell], autocommit=True) as connection:
            rows = connection.execute("select dedup_key, id from boathook.event where origin = 'published'")
            return dict(rows.fetchall())

    def effects(self, cell: str) -> list[str]:
        """Return the keys of the events that a cell's handler has worked on."""
        return self.read(cell, "select event_key from shop.effect")

    def ask(self, cell: str, method: str, path: str, body: Any = None, key: str = "") -> httpx.Response:
        """Send a request to the API of a cell."""
        if cell not in self.tokens:
            self.tokens[cell] = self.processes[cell].cli("keys", "create", "--scope", "organization", "--json").stdout
        token = json.loads(self.tokens[cell])["token"]
        headers = {"authorization": f"Bearer {token}"} | ({"idempotency-key": key} if key else {})
        url = f"{self.processes[cell].base}/api/v1{path}"
        return httpx.request(method, url, json=body, headers=headers, timeout=60)

    def move(self, to: str, source: str = "stripe") -> str:
        """Move a source; return the command's output."""
        return self.processes["c1"].cli("cells", "move", source, "--to", to).stdout


def settings(name: str, processes: Sequence[BoathookProcess], urls: Sequence[str]) -> str:
    text = '\n[outbound]\nallow = ["127.0.0.0/8"]\nencryption_keys = ["a key that is the same in all cells"]\n'
    text += f'\n[sources.own]\nprovider = "stripe"\nsecrets = ["{STRIPE_SECRET}"]\n[cells]\nname = "{name}"\nsecret = "{SECRET}"\n'
    for cell, process, url in zip(CELLS, processes, urls, strict=True):
        text += f'[cells.members.{cell}]\nurl = "{process.base}"\ndatabase = "{url}"\naccepts_new = true\n'
    return text


@contextlib.contextmanager
def running_cells(folder: Path, urls: Sequence[str], wired: Sequence[str], handlers: str = "") -> Iterator[Cells]:
    """Run two cells on the databases *urls*, whose servers reach them by the URLs *wired*, with more *handlers*."""
    with boathook_processes(folder, urls[0]) as make:
        made = [make(roles="gateway,worker,keeper,console", senders=1, start=False, database_url=url) for url in wired]
        for name, process in zip(CELLS, made, strict=True):
            with (process.folder / "boathook.toml").open("a") as file:
                file.write(settings(name, made, urls))
            with (process.folder / "shop.py").open("a") as file:
                file.write(handlers)
            process.start(wait=False)
        for process in made:
            process.wait_ready()
        yield Cells(dict(zip(CELLS, made, strict=True)), dict(zip(CELLS, urls, strict=True)))


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory, databases: Pool) -> Iterator[Cells]:
    with databases.database() as one, databases.database() as other:
        urls = (one, other)
        with running_cells(tmp_path_factory.mktemp("cells"), urls, urls) as found:
            yield found


def other_than(cell: str) -> str:
    return next(name for name in CELLS if name != cell)


def settle(cells: Cells, cell: str, key: str) -> None:
    """Wait until no event bypasses the other cell's gateways, whose dedup cache would recognize it."""
    cells.send(cell, key)
    until(lambda: key in cells.stored(cell))


def test_an_event_is_stored_in_the_cell_of_its_source(cells: Cells):
    home = cells.home()
    elsewhere = other_than(home)
    first = cells.send(elsewhere, "evt_forwarded")
    assert first.status_code == 200
    assert first.json()["duplicate"] is False
    until(lambda: "evt_forwarded" in cells.effects(home))
    assert "evt_forwarded" not in cells.stored(elsewhere)
    again = cells.send(home, "evt_forwarded")
    assert (again.json()["event_id"], again.json()["duplicate"]) == (first.json()["event_id"], True)


def test_cells_list_shows_each_cell(cells: Cells):
    rows = {row["name"]: row for row in cells.processes["c1"].listing("cells", "list")}
    assert {name: row["problem"] for name, row in rows.items()} == dict.fromkeys(CELLS, "")
    assert rows["c1"]["is_own"]


class Sender(threading.Thread):
    """Sends events to both cells in turn, and each fifth one a second time to the other cell much later."""

    def __init__(self, cells: Cells, prefix: str) -> None:
        super().__init__()
        self._cells = cells
        self._prefix = prefix
        self.accepted: list[str] = []
        self.refused: list[str] = []
        self.stopped = threading.Event()

    def run(self) -> None:
        number = 0
        while not self.stopped.is_set():
            self._send(CELLS[number % 2], f"{self._prefix}_{number}")
            if number >= 20 and number % 5 == 0:
                self._send(CELLS[number // 5 % 2], f"{self._prefix}_{number - 20}")
            number += 1
            self.stopped.wait(0.01)

    def has_accepted(self, number: int) -> bool:
        """Return whether as many events were answered 200."""
        return len(self.accepted) >= number

    def _send(self, cell: str, key: str) -> None:
        answer = self._cells.send(cell, key)
        (self.accepted if answer.status_code == 200 else self.refused).append(key)


def move_under_load(cells: Cells, prefix: str, moves: int) -> tuple[Sender, list[str], list[str]]:
    """Move the source back and forth while it sends; return the sender, and what both cells stored and worked on."""
    sender = Sender(cells, prefix)
    sender.start()
    try:
        for number in range(moves):
            until(partial(sender.has_accepted, len(sender.accepted) + 40))
            cells.move(CELLS[number % 2])
    finally:
        sender.stopped.set()
        sender.join()
    wanted = set(sender.accepted)

    def found(read: Callable[[str], list[str]]) -> list[str]:
        return [key for cell in CELLS for key in read(cell) if key.startswith(prefix)]

    until(lambda: set(found(cells.stored)) >= wanted and set(found(cells.effects)) >= wanted, timeout=60)
    return sender, found(cells.stored), found(cells.effects)


def test_a_move_under_load_loses_and_repeats_nothing(cells: Cells):
    sender, stored, effects = move_under_load(cells, "evt_moved", moves=3)
    assert not sender.refused
    assert sorted(stored) == sorted(set(sender.accepted))
    assert sorted(effects) == sorted(set(sender.accepted))
    assert {cell for cell in CELLS if any(key.startswith("evt_moved") for key in cells.stored(cell))} == set(CELLS)
    for process in cells.processes.values():
        assert json.loads(process.cli("check", "--json").stdout)["balanced"]


def test_events_wait_while_the_cell_of_their_source_is_down(cells: Cells):
    cells.move("c2")
    cells.move("c1", "own")
    settle(cells, "c2", "evt_before_outage")
    cells.processes["c2"].kill_all()
    accepted = [f"evt_outage_{number}" for number in range(30)]
    assert {cells.send("c1", key).status_code for key in accepted} == {200}
    shown = cells.processes["c1"].cli("cells", "list", "--json", check=False)
    rows = map(json.loads, shown.stdout.splitlines())
    assert (shown.returncode, [row["name"] for row in rows if row["problem"]]) == (1, ["c2"])
    c1 = cells.processes["c1"]
    assert "for the cell c2:" in c1.cli("spool", "status").stdout.splitlines()
    assert {row["key"] for row in c1.listing("spool", "inspect", "--limit", "0")} == set(accepted)
    assert cells.send("c1", "evt_own", "/in/own").status_code == 200
    until(lambda: "evt_own" in cells.stored("c1"))  # a busy gateway may have spooled it first
    cells.processes["c2"].start()
    until(lambda: set(cells.stored("c2")) >= set(accepted))
    until(lambda: set(cells.effects("c2")) >= set(accepted))
    assert not set(cells.stored("c1")) & set(accepted)


def is_stored_again(cells: Cells, key: str, move: Callable[[str], None]) -> bool:
    """Return whether an event is stored a second time if its sender repeats it after a move."""
    cells.move("c1")
    settle(cells, "c1", f"{key}_before")
    assert cells.send("c1", key).json()["duplicate"] is False
    move("c2")
    settle(cells, "c2", f"{key}_after")
    cells.send("c2", key)
    until(lambda: cells.processes["c2"].listing("spool", "inspect", "--limit", "0") == [])
    return cells.stored("c2").count(key) == 1


def test_a_repeated_event_is_recognized_after_a_move(cells: Cells):
    assert not is_stored_again(cells, "evt_recognized", cells.move)


def test_without_its_keys_it_would_be_stored_again(cells: Cells):
    def assign_only(to: str) -> None:
        for url in cells.databases.values():
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute("update boathook.source_assignment set home = %s, revision = revision + 1", [to])

    assert is_stored_again(cells, "evt_again", assign_only)


def test_an_interrupted_move_delays_events_without_duplicates(cells: Cells):
    cells.move("c1")
    settle(cells, "c1", "evt_start")
    with psycopg.connect(cells.databases["c1"], autocommit=True) as connection:
        connection.execute(
            "update boathook.source_assignment set home = 'c2', revision = revision + 1 where source = 'stripe'"
        )
    late = [f"evt_late_{number}" for number in range(6)]
    for number, key in enumerate(late):
        assert cells.send(CELLS[number % 2], key).status_code == 200
    for cell in CELLS:
        assert cells.send(cell, "evt_start").status_code == 200
    assert cells.send("c1", "evt_meanwhile", "/in/own").status_code == 200
    shown = cells.processes["c1"].cli("cells", "assign")
    assert "repeat `boathook cells move stripe --to c2`" in shown.stdout + shown.stderr
    assert not set(late) & {*cells.stored("c1"), *cells.stored("c2")}
    cells.move("c2")
    until(lambda: set(cells.effects("c2")) >= set(late))
    assert sorted(key for key in cells.stored("c2") if key in {*late, "evt_start"}) == sorted(late)


def test_routes_and_assignments_are_shown(cells: Cells):
    run = cells.processes["c1"].cli
    run("cells", "assign")
    assert not run("cells", "assign", "--json").stdout
    assert "copied" in cells.move("c2")
    rows = {row["source"]: row for row in cells.processes["c2"].listing("cells", "routes")}
    assert (rows["stripe"]["cell"], rows["stripe"]["is_assigned"], rows["stripe"]["disagreeing"]) == ("c2", True, [])
    lines = run("cells", "routes", "--format", "nginx").stdout.splitlines()
    base = cells.processes["c2"].base
    assert f"location = /webhooks/stripe {{ proxy_pass {base}; proxy_set_header Host $host; }}" in lines
    findings = {row["check"]: row for row in cells.processes["c1"].listing("doctor") if row["check"] == "cells"}
    assert findings["cells"]["found"] == "this is c1 of 2; all sources are assigned"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(("stripe", "--to", "c9"), "there is no cell c9"), (("nothing", "--to", "c2"), "there is no source nothing")],
)
def test_a_move_to_nowhere_is_refused(cells: Cells, arguments: tuple[str, ...], says: str):
    done = cells.processes["c1"].cli("cells", "move", *arguments, check=False)
    assert done.returncode != 0
    assert says in done.stderr


def test_a_rejected_request_is_accepted_in_the_cell_of_its_source_only(cells: Cells):
    cells.move("c2")
    body, headers = signed(payload("evt_rejected"), secret="whsec_of_another_shop")
    assert (
        httpx.post(cells.processes["c1"].base + "/in/stripe", content=body, headers=headers, timeout=60).status_code
        == 401
    )
    configuration = cells.processes["c1"].folder / "boathook.toml"
    text = configuration.read_text()
    try:
        configuration.write_text(text.replace(f'secrets = ["{STRIPE_SECRET}"]', 'secrets = ["whsec_of_another_shop"]'))
        (rejection,) = until(lambda: cells.processes["c1"].listing("rejections", "list"))
        done = cells.processes["c1"].cli("rejections", "reverify", rejection["id"], check=False)
    finally:
        configuration.write_text(text)
    assert done.returncode != 0
    assert "the source stripe belongs to the cell c2; do this there" in done.stdout + done.stderr
    assert "evt_rejected" not in cells.stored("c1")


PAID: dict[str, Any] = {"eventType": "invoice.paid", "payload": {"n": 1}}


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


def make_application(cells: Cells, uid: str, inbox: Mailbox) -> str:
    """Create an application in c1 with an endpoint; return its id."""
    made = cells.ask("c1", "POST", "/app", {"name": uid, "uid": uid})
    assert made.status_code == 201, made.text
    assert cells.ask("c1", "POST", f"/app/{uid}/endpoint", {"url": inbox.url}).status_code == 201
    return str(made.json()["id"])


def find_key(request: Any) -> str:
    return str(request.json["key"])


class Publisher(threading.Thread):
    """Publishes one message after the other, and follows the answers to the cell of the application."""

    def __init__(self, cells: Cells, uid: str) -> None:
        super().__init__()
        self._cells = cells
        self._uid = uid
        self._cell = "c1"
        self.ids: dict[str, str] = {}
        """The id of each accepted message, by its publisher's id."""
        self.moves = 0
        self.unexpected: list[str] = []
        self.stopped = threading.Event()

    def run(self) -> None:
        number = 0
        while not self.stopped.is_set():
            self._publish(f"{self._uid}_{number}")
            number += 1

    def has_accepted(self, number: int) -> bool:
        return len(self.ids) >= number

    def _publish(self, key: str) -> None:
        message = {"eventType": "invoice.paid", "eventId": key, "payload": {"key": key}}
        while True:
            answer = self._cells.ask(self._cell, "POST", f"/app/{self._uid}/msg", message)
            if answer.status_code != 421:
                break
            self._cell = answer.json()["cell"]
            assert self._cells.processes[self._cell].base == answer.json()["url"]
            self.moves += 1
            self.stopped.wait(0.02)
        if answer.status_code == 202:
            self.ids[key] = answer.json()["id"]
        else:
            self.unexpected.append(f"{key}: {answer.status_code} {answer.text}")


def test_an_application_moves_under_load_and_loses_and_doubles_nothing(cells: Cells, receiver: Receiver):
    inbox = receiver.mailbox()
    application = make_application(cells, "loaded", inbox)
    publisher = Publisher(cells, "loaded")
    cells.ask("c2", "GET", "/app")
    publisher.start()
    try:
        for cell in ("c2", "c1", "c2"):
            until(partial(publisher.has_accepted, len(publisher.ids) + 20))
            assert f"{application} belongs to {cell} now" in cells.move(cell, application)
        until(partial(publisher.has_accepted, len(publisher.ids) + 20))
    finally:
        publisher.stopped.set()
        publisher.join()
    assert not publisher.unexpected
    assert publisher.moves >= 3
    until(lambda: {find_key(one) for one in list(inbox.received)} >= publisher.ids.keys())
    assert {(find_key(one), one.message) for one in inbox.received} == set(publisher.ids.items())
    stored = [key for cell in CELLS for key in cells.stored(cell) if key.startswith("loaded_")]
    assert sorted(stored) == sorted(publisher.ids)
    again = {"eventType": "invoice.paid", "eventId": "loaded_0", "payload": {"key": "loaded_0"}}
    assert cells.ask("c2", "POST", "/app/loaded/msg", again).status_code == 409
    for process in cells.processes.values():
        assert json.loads(process.cli("check", "--json").stdout)["balanced"]
    (shown,) = [
        one for one in cells.processes["c2"].listing("cells", "routes", "--applications") if one["uid"] == "loaded"
    ]
    assert (shown["application"], shown["cell"], shown["left"], shown["is_moving"]) == (
        application,
        "c2",
        ["c1"],
        False,
    )


def ask_until_known(cells: Cells, method: str, path: str, body: Any) -> httpx.Response | None:
    """Ask c2 for an application of c1; return the response unless c1 timed out."""
    answer = cells.ask("c2", method, path, body)
    return answer if answer.status_code == 421 else None


def test_a_wrong_cell_answers_421_with_the_url_of_the_right_one(cells: Cells, receiver: Receiver):
    import svix
    from svix.exceptions import HttpError

    make_application(cells, "only-in-c1", receiver.mailbox())
    right, wrong = (cells.processes[cell].base for cell in CELLS)
    for method, path, body in (("GET", "", None), ("POST", "/msg", PAID), ("POST", "/endpoint", {"url": right})):
        # On a busy machine, the other cell may take longer than the second that a request waits for it.
        answer = until(partial(ask_until_known, cells, method, f"/app/only-in-c1{path}", body))
        assert (answer.json()["code"], answer.json()["url"]) == ("wrong_cell", right)
    assert cells.ask("c2", "GET", "/app/in-no-cell").status_code == 404
    token = json.loads(cells.tokens["c2"])["token"]
    client = svix.Svix(token, svix.SvixOptions(server_url=wrong))
    until(partial(ask_until_known, cells, "GET", "/app/only-in-c1", None))
    with pytest.raises(HttpError) as error:
        client.message.create("only-in-c1", svix.api.MessageIn(event_type="invoice.paid", payload={"n": 1}))
    assert (error.value.status_code, error.value.code) == (421, "wrong_cell")
    assert right in error.value.detail
