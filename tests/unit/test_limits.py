"""Rates, connection limits, and client addresses."""

import resource
from ipaddress import ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boathook.http import limits
from boathook.http.limits import LIGHT_CLIENT_CONNECTIONS, ConnectionLimiter, RateLimiter, client_address, client_key
from boathook.server.gateway import limit_connections

OURS = (ip_network("10.0.0.0/8"), ip_network("fd00::/8"))


def test_a_burst_passes_and_then_the_rate_counts():
    rate = RateLimiter(10, 3)
    assert [rate.wait_s("a", 0.0) for _ in range(3)] == [0, 0, 0]
    assert rate.wait_s("a", 0.0) == pytest.approx(0.1)
    assert rate.wait_s("b", 0.0) == 0
    assert rate.wait_s("a", 0.1001) == 0
    assert rate.wait_s("a", 0.1001) > 0


@given(st.floats(0.5, 1000), st.integers(1, 50), st.lists(st.floats(0, 0.5), min_size=1, max_size=200))
def test_never_more_than_burst_and_rate_pass(per_second: float, burst: int, gaps: list[float]):
    rate, now, passed = RateLimiter(per_second, burst), 0.0, 0
    for gap in gaps:
        now += gap
        passed += rate.wait_s("x", now) == 0
    assert passed <= burst + now * per_second + 1e-6


@given(st.floats(0.5, 100), st.integers(1, 20))
def test_a_client_that_waits_as_told_passes(per_second: float, burst: int):
    rate, now = RateLimiter(per_second, burst), 0.0
    for _ in range(burst * 3):
        now += rate.wait_s("x", now) + 1e-9
        if rate.wait_s("x", now) > 1e-6:
            now += 1 / per_second
    assert rate.wait_s("x", now + 1 / per_second + 1e-6) == 0


def test_memory_is_bounded_for_many_clients():
    rate = RateLimiter(1, 5, max_keys=100)
    for n in range(10_000):
        rate.wait_s(f"client-{n}", n / 1000)
        assert len(rate) <= 100


def test_forgetting_hits_the_paid_up_first():
    rate = RateLimiter(1, 1, max_keys=10)
    for n in range(9):
        rate.wait_s(f"old-{n}", 0.0)
    rate.wait_s("busy", 100.0)
    rate.wait_s("new", 100.0)
    assert rate.wait_s("busy", 100.0) > 0


def test_connections_are_counted_up_and_down():
    connections = ConnectionLimiter(3, 2)
    assert [connections.open("a"), connections.open("a"), connections.open("a")] == [True, True, False]
    assert connections.open("b") is True
    assert connections.open("c") is False
    connections.close("a")
    assert connections.open("c") is True
    assert connections.total == 3


def test_a_trusted_proxy_is_exempt_from_the_limit_for_one():
    connections = ConnectionLimiter(10, 1)
    assert [connections.open("10.0.0.1", is_exempt=True) for _ in range(5)] == [True] * 5


class Idle:
    """A connection that waits for its client."""

    def __init__(self, connections: ConnectionLimiter, client: str) -> None:
        self._connections, self.client, self.is_open = connections, client, connections.open(client)
        if self.is_open:
            connections.mark_idle(client, self)

    def evict(self) -> None:
        self.is_open = False
        self._connections.close(self.client)

    def __repr__(self) -> str:
        return self.client


def test_at_the_limit_the_largest_clients_longest_idle_is_evicted():
    connections = ConnectionLimiter(6, 4)
    held = [Idle(connections, client) for client in "abbbbc"]
    assert Idle(connections, "d").is_open
    assert [one.is_open for one in held] == [True, False, True, True, True, True]
    held[2].evict()
    assert connections.total == 5


def test_a_client_at_its_limit_loses_its_own():
    connections = ConnectionLimiter(10, 2)
    held = [Idle(connections, client) for client in "bbb"] + [Idle(connections, client) for client in "aaa"]
    assert [one.is_open for one in held] == [False, True, True, False, True, True]


def test_a_connection_with_something_under_way_is_not_evicted():
    connections = ConnectionLimiter(2, 2)
    busy, idle = Idle(connections, "a"), Idle(connections, "b")
    connections.mark_busy("a", busy)
    assert Idle(connections, "c").is_open
    assert (busy.is_open, idle.is_open) == (True, False)
    connections.mark_busy("c", idle)
    connections.close("a")
    assert connections.total == 1


def test_nothing_is_evicted_without_an_idle_connection():
    connections = ConnectionLimiter(1, 2)
    assert connections.open("a")
    assert not connections.open("b")
    assert connections.total == 1


def test_an_eighth_of_the_places_is_for_clients_with_few():
    connections = ConnectionLimiter(160, 1_000)
    opened = sum(connections.open("attacker") for _ in range(200))
    assert opened == 140
    assert connections.is_nearly_full
    assert sum(connections.open("sender") for _ in range(200)) == LIGHT_CLIENT_CONNECTIONS


def test_a_trusted_proxy_is_evicted_last_and_not_limited():
    connections = ConnectionLimiter(32, 1)
    proxy = "10.0.0.1"
    assert all(connections.open(proxy, is_exempt=True) for _ in range(30))
    first, other = Idle(connections, "b"), Idle(connections, "c")
    assert connections.open(proxy, is_exempt=True)
    assert not first.is_open
    assert other.is_open


@pytest.mark.parametrize(
    ("address", "key"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::/64", "2001:db8:1:2::/64"),
        ("", ""),
        ("no address", "no address"),
    ],
)
def test_a_client_is_an_address_or_a_prefix(address: str, key: str):
    assert client_key(address) == key


def _opened_from_one_prefix() -> int:
    connections = ConnectionLimiter(4_096, 1_024)
    return sum(connections.open(f"2001:db8::{n:x}") for n in range(4_096))


def test_all_addresses_of_one_prefix_have_the_places_of_one_client():
    assert _opened_from_one_prefix() == 1_024


def test_mutant_by_address_one_prefix_takes_all(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "client_key", lambda address: address)
    assert _opened_from_one_prefix() > 3_000


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
def test_the_client_address_is_the_last_untrusted_one(peer: str, forwarded: str | None, client: str):
    assert client_address(peer, forwarded, OURS) == client


@given(st.text(max_size=200))
def test_no_header_raises_or_impersonates_another_peer(text: str):
    assert client_address("1.2.3.4", text, OURS) == "1.2.3.4"
    client_address("10.0.0.1", text, OURS)


@pytest.mark.parametrize(
    ("soft", "hard", "raised", "connections"),
    [
        (8_000, 8_000, None, 4_096),
        (1_024, 524_288, 4_352, 4_096),
        (1_024, 2_000, 2_000, 1_744),
        (100, 100, 100, 50),
        (1_024, resource.RLIM_INFINITY, 4_352, 4_096),
    ],
)
def test_a_gateway_has_as_many_connections_as_it_may_open_files(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, raised: int | None, connections: int
):
    limits_set: list[tuple[int, tuple[int, int]]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda *given: limits_set.append(given))
    assert limit_connections(4_096) == connections
    assert limits_set == ([] if raised is None else [(resource.RLIMIT_NOFILE, (raised, hard))])
