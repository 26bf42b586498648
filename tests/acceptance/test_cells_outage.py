"""Messages to an application of another cell while a cell or its PostgreSQL is away."""

import json
from pathlib import Path

import httpx
import pytest

from tests.acceptance.conftest import payload, wait_for_copy
from tests.acceptance.svix.receiver import Receiver
from tests.acceptance.test_cells import find_key, make_application, running_cells
from tests.acceptance.test_start_during_outage import target_of, through
from tests.databases import Pool
from tests.faults.rig.proxy import Proxy
from tests.support import until


@pytest.mark.extended("unit tests pass on the messages of a moved application")
def test_a_message_buffered_during_a_move_arrives_by_the_new_cell(tmp_path: Path, databases: Pool) -> None:
    receiver = Receiver()
    inbox = receiver.mailbox()
    with (
        databases.database() as one,
        databases.database() as other,
        Proxy(target_of(one)) as wire,
        running_cells(tmp_path, (one, other), (through(one, wire.port), other)) as cells,
    ):
        application = make_application(cells, "waiting", inbox)

        def publish(key: str) -> httpx.Response:
            message = {"eventType": "invoice.paid", "eventId": key, "payload": {"key": key}}
            return cells.ask("c1", "POST", "/app/waiting/msg", message)

        first = publish("waiting_first")
        inbox.wait(1)
        wait_for_copy(cells.processes["c1"], "waiting")
        wire.set(is_refusing=True)
        wire.reset()
        try:
            late = until(lambda: answer if (answer := publish("waiting_late")).status_code == 202 else None)
            assert "waiting_late" not in cells.stored("c1")
            # The command has the database's own URL.
            cells.processes["c2"].cli("cells", "move", application, "--to", "c2")
        finally:
            wire.heal()
        until(lambda: "waiting_late" in cells.stored("c2"))
        until(lambda: {find_key(one) for one in inbox.received} == {"waiting_first", "waiting_late"})
        assert {one.message for one in inbox.received} == {first.json()["id"], late.json()["id"]}
        assert "waiting_late" not in cells.stored("c1")
        assert publish("waiting_after").status_code == 421
        until(lambda: cells.processes["c1"].listing("cells", "list")[0]["waiting"] == 0)
    receiver.close()


RELAY = """
@hook.on("stripe", "relay.*", retry=QUICK)
async def relay(event: Event, tx: Transaction) -> None:
    key = event.dedup_key
    await hook.publish(tx, application=event.json["application"], type="invoice.paid", payload={"key": key}, id=key)
    if event.type == "relay.late" and event.attempt < 3:
        raise ConnectionError("the bank is away")
"""


@pytest.mark.extended("starts two cells; tests/postgres/cells/test_cells_app.py stays")
def test_a_message_published_for_a_down_cell_arrives_there_once(tmp_path: Path, databases: Pool) -> None:
    receiver = Receiver()
    inbox = receiver.mailbox()
    with (
        databases.database() as one,
        databases.database() as other,
        running_cells(tmp_path, (one, other), (one, other), RELAY) as cells,
    ):
        c1, c2 = cells.processes.values()
        cells.move("c1")
        application = make_application(cells, "relayed", inbox)
        cells.move("c2", application)
        c2.kill_all()
        kinds = {"relay_now": "relay.now", "relay_late": "relay.late", "relay_also": "relay.now"}
        for key, kind in kinds.items():
            assert cells.send_event("c1", payload(key, kind, application=application)).status_code == 200
        shown = c1.cli("send", "--application", application, "--type", "invoice.paid", "--id", "relay_sent", "--data",
            '{"key": "relay_sent"}').stdout  # fmt: skip
        assert "(is passed on to the cell c2)" in shown
        keys = {*kinds, "relay_sent"}
        until(lambda: set(cells.messages("c1")) == keys)
        until(lambda: cells.read("c1", "select 1 from boathook.attempt where code = 'ConnectionError' and ordinal = 0"))
        c2.start()
        until(lambda: {find_key(one) for one in list(inbox.received)} == keys)
        until(lambda: not cells.read("c1", "select 1 from boathook.delivery"))
        assert cells.messages("c2") == cells.messages("c1")
        assert sorted(find_key(one) for one in inbox.received) == sorted(keys)
        for process in (c1, c2):
            assert json.loads(process.cli("check", "--json").stdout)["balanced"]
    receiver.close()
