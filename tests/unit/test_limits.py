"""Rates, connection counts, and whose address counts."""

from ipaddress import ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boathook.inbound.limits import Connections, Rate, client_address

OURS = (ip_network("10.0.0.0/8"), ip_network("fd00::/8"))


def test_a_burst_passes_and_then_the_rate_counts():
    rate = Rate(10, 3)
    assert [rate.wait_s("a", 0.0) for _ in range(3)] == [0, 0, 0]
    assert rate.wait_s("a", 0.0) == pytest.approx(0.1)
    assert rate.wait_s("b", 0.0) == 0
    assert rate.wait_s("a", 0.1001) == 0
    assert rate.wait_s("a", 0.1001) > 0


@given(st.floats(0.5, 1000), st.integers(1, 50), st.lists(st.floats(0, 0.5), min_size=1, max_size=200))
def test_never_more_than_burst_and_rate_pass(per_second: float, burst: int, gaps: list[float]):
    rate, now, passed = Rate(per_second, burst), 0.0, 0
    for gap in gaps:
        now += gap
        passed += rate.wait_s("x", now) == 0
    assert passed <= burst + now * per_second + 1e-6


@given(st.floats(0.5, 100), st.integers(1, 20))
def test_who_waits_as_told_passes(per_second: float, burst: int):
    rate, now = Rate(per_second, burst), 0.0
    for _ in range(burst * 3):
        now += rate.wait_s("x", now) + 1e-9
        if rate.wait_s("x", now) > 1e-6:
            now += 1 / per_second
    assert rate.wait_s("x", now + 1 / per_second + 1e-6) == 0


def test_memory_stays_bounded_whatever_clients_do():
    rate = Rate(1, 5, most_keys=100)
    for n in range(10_000):
        rate.wait_s(f"client-{n}", n / 1000)
        assert len(rate) <= 100


def test_forgetting_hits_the_paid_up_first():
    rate = Rate(1, 1, most_keys=10)
    for n in range(9):
        rate.wait_s(f"old-{n}", 0.0)
    rate.wait_s("busy", 100.0)
    rate.wait_s("new", 100.0)
    assert rate.wait_s("busy", 100.0) > 0


def test_connections_are_counted_up_and_down():
    connections = Connections(3, 2)
    assert [connections.open("a"), connections.open("a"), connections.open("a")] == [True, True, False]
    assert connections.open("b") is True
    assert connections.open("c") is False
    connections.close("a")
    assert connections.open("c") is True
    assert connections.total == 3


def test_a_trusted_proxy_is_exempt_from_the_limit_for_one():
    connections = Connections(10, 1)
    assert [connections.open("10.0.0.1", is_exempt=True) for _ in range(5)] == [True] * 5


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("1.2.3.4", None, "1.2.3.4"),
        ("1.2.3.4", "9.9.9.9", "1.2.3.4"),
        ("10.0.0.1", None, "10.0.0.1"),
        ("10.0.0.1", "9.9.9.9", "9.9.9.9"),
        ("10.0.0.1", "6.6.6.6, 9.9.9.9", "9.9.9.9"),
        ("10.0.0.1", "6.6.6.6, 9.9.9.9, 10.2.2.2", "9.9.9.9"),
        ("10.0.0.1", "10.1.1.1, 10.2.2.2", "10.1.1.1"),
        ("10.0.0.1", "9.9.9.9:1234", "9.9.9.9"),
        ("10.0.0.1", "[2001:db8::1]:99", "2001:db8::1"),
        ("fd00::1", "2001:DB8::1", "2001:db8::1"),
        ("::ffff:10.0.0.1", "9.9.9.9", "9.9.9.9"),
        ("10.0.0.1", "evil, 10.2.2.2", "10.2.2.2"),
        ("10.0.0.1", "'; drop table--", "10.0.0.1"),
        ("10.0.0.1", "", "10.0.0.1"),
        ("10.0.0.1", ",,,", "10.0.0.1"),
        ("", "9.9.9.9", ""),
    ],
)
def test_the_address_is_the_last_that_no_proxy_of_ours_vouches_for(peer: str, forwarded: str | None, client: str):
    assert client_address(peer, forwarded, OURS) == client


@given(st.text(max_size=200))
def test_no_header_raises_or_impersonates_another_peer(text: str):
    assert client_address("1.2.3.4", text, OURS) == "1.2.3.4"
    client_address("10.0.0.1", text, OURS)
