"""A cell whose PostgreSQL is away while an application moves."""

from pathlib import Path

import httpx
import pytest

from tests.acceptance.conftest import wait_for_copy
from tests.acceptance.svix.receiver import Receiver
from tests.acceptance.test_cells import find_key, make_application, running_cells
from tests.acceptance.test_start_during_outage import target_of, through
from tests.databases import Pool
from tests.faults.rig.proxy import Proxy
from tests.support import until


@pytest.mark.extended("unit tests pass on the messages of a moved application")
def test_a_message_that_waited_for_the_database_during_a_move_arrives_by_the_new_cell(
    tmp_path: Path, databases: Pool
) -> None:
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
