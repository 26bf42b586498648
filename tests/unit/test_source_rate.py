"""One rate over many gateways: held by an honest store, and neither closed nor opened by a wrong one."""

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from boathook.domain.rate_leases import LeaseRequest
from boathook.http.limits import RateLimiter
from boathook.ingest import source_rate
from boathook.ingest.source_rate import LEASE_INTERVAL_S, MAX_GATEWAYS, TOKEN_LIFE_S, SourceRate

STEP_S = 0.01
LEASE_STEPS = round(LEASE_INTERVAL_S / STEP_S)
SLACK_S = TOKEN_LIFE_S + 4 * LEASE_INTERVAL_S
"""How long tokens may be under way between the time at which the store earns them and the request that uses them."""
Store = Callable[[LeaseRequest, float], object]


class HonestStore:
    """A store that behaves like the statement lease_tokens and the Redis script."""

    def __init__(self) -> None:
        self.allowed_at: dict[str, float] = {}

    def __call__(self, request: LeaseRequest, now: float) -> int:
        gap = 1 / request.per_second
        at = max(self.allowed_at.get(request.source, 0.0), now) + request.spent * gap
        taken = min(request.wanted, max(0, request.burst - math.ceil((at - now) / gap)))
        self.allowed_at[request.source] = min(at + taken * gap, now + 2 * request.burst * gap + 1)
        return taken


class Gateways:
    """Some gateways on a virtual clock, each with its requests in each step."""

    def __init__(
        self, number: int, per_second: float, burst: int, store: Store, *, kind: type[SourceRate] = SourceRate
    ) -> None:
        self.per_second, self.burst, self.store = per_second, burst, store
        self.now = 1_000.0
        self.rates = [kind("shop", per_second, burst, gateways=number) for _ in range(number)]
        self.passed: list[list[float]] = [[] for _ in self.rates]
        self.refused = 0
        self._needs = [False] * number
        self._steps = 0
        for place, rate in enumerate(self.rates):
            rate.need_tokens = self._note_need(place)

    def _note_need(self, place: int) -> Callable[[], None]:
        def note() -> None:
            self._needs[place] = True

        return note

    def run(self, seconds: float, demand: Callable[[int], Sequence[int]]) -> None:
        """Offer each gateway the number of requests that *demand* returns for a step."""
        for _ in range(round(seconds / STEP_S)):
            self._steps += 1
            self.now += STEP_S
            for place, (rate, number) in enumerate(zip(self.rates, demand(self._steps), strict=True)):
                if self._needs[place] or (self._steps + place) % LEASE_STEPS == 0:
                    self._needs[place] = False
                    self._lease(rate)
                for _ in range(number):
                    if rate.wait_s("", self.now) == 0:
                        self.passed[place].append(self.now)
                    else:
                        self.refused += 1

    def _lease(self, rate: SourceRate) -> None:
        request = rate.ask(self.now)
        if request is None:
            return
        try:
            granted = self.store(request, self.now)
        except OSError:
            rate.fail(request)
        else:
            rate.grant(request, granted, self.now)


def excess(times: Sequence[float], per_second: float) -> float:
    """Return how many requests passed in the worst window, beyond the rate in it."""
    worst, lowest = 0.0, math.inf
    for number, time in enumerate(sorted(times)):
        lowest = min(lowest, number - per_second * time)
        worst = max(worst, number + 1 - per_second * time - lowest)
    return worst


def everything(gateways: Gateways) -> list[float]:
    return [time for times in gateways.passed for time in times]


def flood(gateways: Gateways, seconds: float, number: int = 3) -> None:
    gateways.run(seconds, lambda _step: [number] * len(gateways.rates))


RATES = st.floats(0.5, 60.0)
BURSTS = st.integers(1, 120)
NUMBERS = st.integers(2, 6)
WRONG = st.one_of(
    st.integers(-(10**18), 10**18), st.integers(0, 5), st.none(), st.floats(), st.text(max_size=3), st.just([1]),
    st.just("fail"), st.just("repeat"),
)  # fmt: skip


def wrong_store(answers: Sequence[Any]) -> Store:
    """Return a store with arbitrary results, failures and repeated results."""
    given: list[Any] = [0]

    def answer(_request: LeaseRequest, _now: float) -> object:
        found = answers[len(given) % len(answers)]
        if found == "fail":
            given.append(0)
            raise ConnectionError("away")
        given.append(random.Random(len(given)).choice(given) if found == "repeat" else found)
        return given[-1]

    return answer


def fails(_request: LeaseRequest, _now: float) -> object:
    raise ConnectionError("away")


class TestSingleGateway:
    @given(RATES, BURSTS, st.lists(st.floats(0, 0.5), min_size=1, max_size=100))
    def test_a_gateway_that_is_alone_limits_as_a_limiter_does(self, per_second: float, burst: int, gaps: list[float]):
        alone, limiter, now = SourceRate("shop", per_second, burst), RateLimiter(per_second, burst), 0.0
        for gap in gaps:
            now += gap
            assert alone.wait_s("", now) == limiter.wait_s("", now)
            assert alone.ask(now) is None

    def test_a_single_gateway_calls_only_the_limiter(self):
        rate = SourceRate("shop", 1, 1)
        assert rate.wait_s == rate.ceiling.wait_s

    def test_a_last_remaining_gateway_gets_the_whole_rate(self):
        rate = SourceRate("shop", 10, 10, gateways=3)
        assert rate.ask(5.0) is not None
        rate.set_gateways(1)
        assert rate.ask(5.0) is None
        assert [rate.wait_s("", 5.0) for _ in range(11)].count(0) == 10


@given(NUMBERS, RATES, BURSTS, st.lists(st.integers(0, 4), min_size=6, max_size=6), st.integers(1, 60))
def test_gateways_hold_one_rate(number: int, per_second: float, burst: int, weights: list[int], period: int):
    gateways = Gateways(number, per_second, burst, HonestStore())
    gateways.run(6.0, lambda step: [weights[place] if (step // period + place) % 3 else 0 for place in range(number)])
    assert excess(everything(gateways), per_second) <= 1.5 * burst + 3 * number + per_second * SLACK_S


@pytest.mark.parametrize("weights", [[60, 60, 60, 60], [200, 0, 0, 0], [100, 100, 0, 0]])
def test_a_burst_is_shared_by_all_gateways(weights: Sequence[int]):
    gateways = Gateways(4, 0.001, 80, HonestStore())
    gateways.run(1.0, lambda step: weights if step % 10 == 0 else [0] * 4)
    assert 80 - 4 <= len(everything(gateways)) <= 1.5 * 80  # each gateway keeps a token


def over_the_long_run(demand: Sequence[int], kind: type[SourceRate] = SourceRate) -> float:
    """Return how much passes over four gateways, as a share of the rate, with so many requests in each step."""
    gateways = Gateways(4, 40.0, 20, HonestStore(), kind=kind)
    gateways.run(40.0, lambda step: [number if number > 1 else number * (step % 12 == 0) for number in demand])
    return len(everything(gateways)) / (40.0 * 40.0)


@pytest.mark.parametrize("demand", [[3, 3, 3, 3], [3, 1, 1, 1], [3, 3, 0, 0], [3, 0, 0, 0]])
def test_in_the_long_run_the_rate_is_used_and_not_exceeded(demand: Sequence[int]):
    assert 0.95 <= over_the_long_run(demand) <= 1.02


class Unreported(SourceRate):
    """Mutant: what passes by the floor is not reported."""

    def ask(self, now: float) -> LeaseRequest | None:
        self._spent = 0
        return super().ask(now)


class Unshared(SourceRate):
    """Mutant: each gateway has the whole rate, as before there were leases."""

    def set_gateways(self, gateways: int) -> None:
        super().set_gateways(1)


@pytest.mark.parametrize("mutant", [Unreported, Unshared])
def test_mutant_the_rate_is_exceeded(mutant: type[SourceRate]):
    assert over_the_long_run([3, 3, 3, 3], mutant) > 1.2


def test_one_busy_gateway_gets_the_unused_rate():
    gateways = Gateways(5, 50.0, 50, HonestStore())
    gateways.run(20.0, lambda _step: [2, 0, 0, 0, 0])
    assert len(gateways.passed[0]) >= 0.95 * 20 * 50


@pytest.mark.parametrize(("per_second", "every"), [(1.0, 200), (5.0, 40), (20.0, 10), (100.0, 2)])
def test_half_the_rate_on_one_gateway_passes_unlimited(per_second: float, every: int):
    gateways = Gateways(4, per_second, max(1, int(per_second)), HonestStore())
    gateways.run(10.0 + 8 / per_second, lambda _step: [0, 0, 0, 0])
    gateways.run(60.0, lambda step: [1 if step % every == 0 else 0, 0, 0, 0])
    assert gateways.refused == 0


def test_gateways_without_requests_ask_rarely():
    asked = []
    honest = HonestStore()

    def store(request: LeaseRequest, now: float) -> int:
        asked.append(request)
        return honest(request, now)

    gateways = Gateways(3, 10.0, 10, store)
    gateways.run(60.0, lambda _step: [0, 0, 0])
    assert len(asked) == 3  # each has one token, and needs no more


def test_a_slow_rate_is_not_leased_constantly():
    asked = []

    def store(request: LeaseRequest, now: float) -> int:
        asked.append(now)
        return 0

    gateways = Gateways(2, 0.001, 1, store)
    gateways.run(60.0, lambda _step: [0, 0])
    assert len(asked) <= 2 * 7


@given(NUMBERS, RATES, BURSTS, st.lists(WRONG, min_size=1, max_size=20))
@example(3, 10.0, 10, [10**18])
@example(3, 10.0, 10, [-(10**18)])
@example(3, 10.0, 10, ["fail"])
def test_no_store_opens_a_gateway_beyond_the_rate_of_one(
    number: int, per_second: float, burst: int, answers: list[Any]
):
    gateways = Gateways(number, per_second, burst, wrong_store(answers))
    flood(gateways, 4.0)
    for times in gateways.passed:
        assert excess(times, per_second) <= burst + 1e-6


@given(NUMBERS, RATES, BURSTS, st.lists(WRONG, min_size=1, max_size=20))
@example(3, 10.0, 10, [0])
@example(3, 10.0, 10, [-(10**18)])
@example(3, 10.0, 10, ["fail"])
def test_no_store_closes_a_gateway_below_its_part(number: int, per_second: float, burst: int, answers: list[Any]):
    gateways = Gateways(number, per_second, burst, wrong_store(answers))
    part, least = RateLimiter(per_second / number, 1), 0
    flood(gateways, 4.0)
    for step in range(400):
        least += part.wait_s("", 1_000.0 + step * STEP_S) == 0
    for times in gateways.passed:
        assert len(times) >= least - 1


def opened_by_a_liar() -> float:
    gateways = Gateways(3, 10.0, 10, lambda _request, _now: 10**18)
    flood(gateways, 5.0)
    return excess(gateways.passed[0], 10.0)


def test_a_huge_answer_opens_nothing():
    assert opened_by_a_liar() <= 10 + 1e-6


def test_mutant_without_the_ceiling_it_does(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(RateLimiter, "wait_s", lambda *_: 0.0)
    assert opened_by_a_liar() > 100


def passed_with_a_wrong_store(before: Store | None = None, kind: type[SourceRate] = SourceRate) -> int:
    """Return how many requests of a gateway pass in ten seconds while the store grants nothing."""
    gateways = Gateways(4, 20.0, 20, before or HonestStore(), kind=kind)
    gateways.run(20.0, lambda _step: [1, 0, 0, 0])
    gateways.store = lambda _request, _now: 0
    gateways.passed[0].clear()
    gateways.run(10.0, lambda _step: [1, 0, 0, 0])
    return len(gateways.passed[0])


def test_empty_grants_leave_a_gateway_its_share():
    assert passed_with_a_wrong_store() >= 10 * 20 / 4 - 1


def test_mutant_without_the_floor_nothing_passes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(source_rate.Floor, "wait_s", lambda *_: 1.0)
    assert passed_with_a_wrong_store() <= 25


def test_mutant_a_gateway_in_debt_for_its_lease_is_blocked(monkeypatch: pytest.MonkeyPatch):
    def take(self: source_rate.Floor, now: float) -> None:
        self._refill(now)
        self._tokens -= 1

    monkeypatch.setattr(source_rate.Floor, "take", take)
    assert passed_with_a_wrong_store() <= 25


def recovered(granted: object, kind: type[SourceRate] = SourceRate) -> int:
    """Return how many requests pass in ten seconds with an honest store, which has answered nonsense before."""
    gateways = Gateways(4, 20.0, 20, lambda _request, _now: granted, kind=kind)
    gateways.run(1.0, lambda _step: [1, 0, 0, 0])
    gateways.store = HonestStore()
    gateways.passed[0].clear()
    gateways.run(10.0, lambda _step: [1, 0, 0, 0])
    return len(gateways.passed[0])


@pytest.mark.parametrize("granted", [-(10**18), -1, 10**18, None, "7", math.nan, math.inf, [3], {}])
def test_a_wrong_grant_is_recovered_from(granted: object):
    assert recovered(granted) >= 0.9 * 10 * 20


class Trusting(SourceRate):
    """Mutant: it adds the store's grant unchecked."""

    def grant(self, request: LeaseRequest, granted: object, asked_at: float) -> None:
        super().grant(request, granted, asked_at)
        self._leased += granted  # type: ignore[operator]


def test_mutant_a_negative_grant_is_never_recovered_from():
    assert recovered(-(10**18), Trusting) < 0.5 * 10 * 20


def test_tokens_of_a_late_answer_have_expired():
    rate = SourceRate("shop", 100.0, 100, gateways=2)
    for _ in range(40):
        rate.wait_s("", 10.0)
    request = rate.ask(10.0)
    assert request is not None
    assert request.wanted > 30
    rate.grant(request, request.wanted, 10.0)
    late = 10.0 + TOKEN_LIFE_S
    floor = max(1, 100 // 4)
    passed = [rate.wait_s("", late) for _ in range(60)].count(0)
    assert passed <= floor + 1


def test_an_outage_of_the_store_leaves_no_debt_for_later():
    gateways = Gateways(4, 20.0, 20, fails)
    flood(gateways, 60.0)
    assert sum(map(len, gateways.passed)) == pytest.approx(60 * 20, rel=0.05)
    gateways.store = HonestStore()
    before = len(gateways.passed[0])
    gateways.run(10.0, lambda _step: [1, 0, 0, 0])
    assert len(gateways.passed[0]) - before >= 0.8 * 10 * 20


@pytest.mark.parametrize(("counted", "used"), [(0, 1), (-5, 1), (10**12, MAX_GATEWAYS)])
def test_a_count_that_cannot_be_leaves_a_part(counted: int, used: int):
    rate = SourceRate("shop", 10.0, 10, gateways=2)
    rate.set_gateways(counted)
    waits = [rate.wait_s("", 1.0) for _ in range(200)]
    assert max(waits) <= used / 10.0 + 1e-6


@given(st.integers(2, 50), RATES, BURSTS)
def test_a_client_that_waits_as_told_passes(number: int, per_second: float, burst: int):
    rate, now = SourceRate("shop", per_second, burst, gateways=number), 5.0
    for _ in range(3 * burst):
        wait_s = rate.wait_s("", now)
        if wait_s > 0:
            now += wait_s + 1e-6
            assert rate.wait_s("", now) == 0


class _Forgetful(SourceRate):
    """Mutant: forgets what was spent while the store did not answer."""

    def fail(self, request: LeaseRequest) -> None:
        self._can_have_more = False


class _Hoarding(SourceRate):
    """Mutant: reports all that was spent, however long the store was away."""

    def fail(self, request: LeaseRequest) -> None:
        self._spent += request.spent


def spent_while_failing(kind: type[SourceRate], outages: int) -> tuple[int, int]:
    """Return what passed a gateway while each lease failed, and what it reports afterwards."""
    rate = kind("shop", 20.0, 40, gateways=2)
    now, passed = 1_000.0, 0
    for _ in range(outages):
        now += LEASE_INTERVAL_S
        while rate.wait_s("", now) == 0:
            passed += 1
        request = rate.ask(now)
        assert request is not None
        rate.fail(request)
    reported = rate.ask(now + LEASE_INTERVAL_S)
    assert reported is not None
    return passed, reported.spent


def test_what_was_spent_while_leasing_failed_is_charged_later():
    passed, reported = spent_while_failing(SourceRate, 3)
    assert 0 < passed == reported
    passed, reported = spent_while_failing(_Forgetful, 3)
    assert reported < passed


def test_a_long_outage_of_the_store_is_not_charged_in_full():
    """A gateway reports no more than it can have passed within a second, or the source would be closed for as long."""
    rate = SourceRate("shop", 20.0, 40, gateways=2)
    passed, reported = spent_while_failing(SourceRate, 10_000)
    assert reported <= rate.floor.max_spent < passed
    assert spent_while_failing(_Hoarding, 10_000)[1] > rate.floor.max_spent
