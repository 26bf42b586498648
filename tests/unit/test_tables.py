"""Tables on narrow and wide terminals, and numbers with their nouns."""

from datetime import UTC, datetime
from types import SimpleNamespace

import msgspec
import pytest

from boathook.cli import output
from boathook.cli.context import UNLIMITED_WIDTH, out
from boathook.cli.output import CODE, ID, RECIPIENT, STATE, Column
from boathook.cli.top import SortOrder, dashboard
from boathook.domain.health import Health, HealthState
from boathook.domain.plurals import counted
from boathook.observability.metric_snapshot import BacklogCounts
from boathook.service.operating.activity_health import ActivityHealth
from boathook.service.operating.live_stats import RecipientActivity, SourceActivity, summarize

ROW = SimpleNamespace(
    id="dlv_01h455vb4pex5vsknk084sn02q4_0",
    state="succeeded",
    code="HTTP_503",
    recipient="endpoint:ep_01h455vb4pex5vsknk084sn02q4",
    type="invoice.payment_failed",
    note="the receiver did not answer",
)
COLUMNS = (ID, STATE, Column("type"), CODE, RECIPIENT, Column("note"))


@pytest.mark.parametrize(
    ("width", "titles"),
    [
        (40, ["id", "state", "code", "recipient"]),
        (80, ["id", "state", "code", "recipient"]),
        (105, ["id", "state", "type", "code", "recipient"]),
        (120, ["id", "state", "type", "code", "recipient", "note"]),
        (UNLIMITED_WIDTH, ["id", "state", "type", "code", "recipient", "note"]),
    ],
)
def test_ids_and_codes_are_never_truncated(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int, titles: list[str]
):
    monkeypatch.setattr(out, "_width", width)
    output.print_table(COLUMNS, [ROW])
    head, line = capsys.readouterr().out.splitlines()
    assert head.split() == titles
    assert {ROW.id, ROW.state, ROW.code, ROW.recipient} <= set(line.split())
    assert (ROW.note in line) is (width == UNLIMITED_WIDTH)


@pytest.mark.parametrize(
    ("width", "titles"),
    [
        (40, "recipient done/s dead"),
        (60, "recipient done/s failed/s <10s <1m dead"),
        (100, "recipient done/s failed/s <10s <1m <10m <1h older later work dead"),
    ],
)
def test_top_omits_columns_where_the_terminal_is_narrow(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int, titles: str
):
    seen = msgspec.structs.replace(
        summarize([]),
        sources=[SourceActivity("stripe", 1.0, 0.0, 0.0, 0.0, 0.0)],
        recipients=[RecipientActivity("handler:record_payment", 1.0, 0.0, BacklogCounts())],
    )
    monkeypatch.setattr(out, "_width", width)
    out.print(dashboard(seen, SortOrder.PENDING))
    lines = capsys.readouterr().out.splitlines()
    assert titles in [" ".join(line.split()) for line in lines]
    assert not any("…" in line for line in lines if "record" in line or "/s" in line)


def test_top_shows_the_health_of_sources_and_recipients(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    until = datetime(2026, 11, 28, 12, 3, 4, tzinfo=UTC)
    healths = {"handler:pay": Health(HealthState.PAUSED, until), "endpoint": Health(HealthState.FAILING)}
    seen = msgspec.structs.replace(
        summarize([]),
        sources=[SourceActivity("stripe", 1.0, 0.0, 0.0, 0.0, 0.0)],
        recipients=[RecipientActivity(name, 1.0, 0.0, BacklogCounts()) for name in (*healths, "handler:new")],
    )
    judged = ActivityHealth(healths, {"stripe": Health(HealthState.HEALTHY)}).add_to(seen)
    assert [one.health for one in judged.sources] == ["healthy"]
    assert [one.health for one in judged.recipients] == ["paused", "failing", None]
    monkeypatch.setattr(out, "_width", 140)
    out.print(dashboard(judged, SortOrder.PENDING))
    rows = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    for row in ("stripe healthy 1.0", "handler:pay paused until 12:03:04 1.0", "all endpoints failing 1.0"):
        assert any(line.startswith(row) for line in rows), rows
    out.print(dashboard(seen, SortOrder.PENDING))
    assert "health" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("number", "noun", "expected"),
    [
        (1, "source", "1 source"),
        (0, "source", "0 sources"),
        (1_200, "delivery", "1,200 deliveries"),
        (2, "dead letter", "2 dead letters"),
        (2, "key", "2 keys"),
        (3, "process", "3 processes"),
    ],
)
def test_a_noun_agrees_with_its_number(number: int, noun: str, expected: str):
    assert counted(number, noun) == expected
