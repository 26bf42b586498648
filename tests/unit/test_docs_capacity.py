"""The page on capacity is the measured cost of an event, multiplied."""

import json

import pytest

from scripts import docs_capacity
from scripts.docs_capacity import BEGIN, END, MEASURED

COSTS = {
    "measured_on": "2026-01-01", "body_bytes": 1_000, "brokers": 3,
    "in_gateway_us": 60, "in_postgres_us": 20, "in_log_bytes": 2_000, "in_stored_bytes": 1_800,
    "out_sender_us": 104, "out_postgres_us": 30, "out_log_bytes": 1_600, "out_stored_bytes": 1_200,
    "buffered_gateway_us": 68, "buffered_brokers_us": 30, "buffered_bytes_per_broker": 1_200,
}  # fmt: skip


def row(text: str, name: str) -> list[str]:
    line = next(line for line in text.splitlines() if line.startswith(f"| {name}"))
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


@pytest.mark.parametrize(
    ("name", "cells"),
    [
        ("gateways: processor", ["60 µs", "0.6 cores", "6 cores", "60 cores"]),
        ("PostgreSQL: processor", ["50 µs", "0.5 cores", "5 cores", "50 cores"]),
        ("PostgreSQL: log", ["3,600 B", "36 MB/s", "360 MB/s", "3.6 GB/s"]),
        ("PostgreSQL: stored a day", ["3,000 B", "2.6 TB", "26 TB", "260 TB"]),
        ("each broker", ["1,200 B", "12 MB/s", "120 MB/s", "1.2 GB/s"]),
        ("network", ["5,600 B", "56 MB/s", "560 MB/s", "5.6 GB/s"]),
        ("senders: processor", ["104 µs", "1 core", "10 cores", "100 cores"]),
        ("30 days of history", ["1,000"]),
        ("1 day of history", ["31,000"]),
        ("16 cores", ["190,000"]),
        ("200 MB/s of log", ["56,000"]),
    ],
)
def test_each_amount_is_the_cost_of_an_event_times_the_rate(name: str, cells: list[str]):
    assert row(docs_capacity.tables(COSTS), name) == cells


def test_the_tightest_limit_is_first():
    rates = [limit.events_per_s for limit in docs_capacity.limits(COSTS)]
    assert rates == sorted(rates)
    slow = COSTS | {"out_postgres_us": 1_000_000}
    assert docs_capacity.limits(slow)[0].name.startswith("16 cores")


def test_only_text_between_the_marks_is_replaced():
    page = docs_capacity.page(f"before\n{BEGIN}stale\n{END}after\n")
    assert page.startswith(f"before\n{BEGIN}")
    assert page.endswith(f"{END}after\n")
    assert "stale" not in page
    assert docs_capacity.tables(json.loads(MEASURED.read_text())) in page
    assert docs_capacity.page(page) == page


def test_a_page_without_its_marks_is_refused():
    with pytest.raises(ValueError, match="lost the marks"):
        docs_capacity.page("before\n")
