"""The parser reads from every simulated request the change that the simulator intended."""

import pytest

from boathook.apps.fleet.alarms import compose
from boathook.apps.fleet.jobs import Refusals
from boathook.apps.fleet.parse import Change, Unknown, read
from boathook.apps.fleet.ruby import read_hash
from boathook.apps.fleet.simulator import Sender, Simulation, write_hash
from boathook.apps.fleet.status import Figures

SENDER = Sender(token="t", umnico_token="u")


@pytest.mark.parametrize("seed", range(5))
def test_every_request_parses_to_the_intended_change(seed):
    simulation = Simulation(SENDER, histories=60, seed=seed)
    expected = simulation.expected()
    said = [read(request.body) for request in simulation.requests if request.expect == 200]
    unknown = {
        request.body
        for request in simulation.requests
        if request.expect == 200 and isinstance(read(request.body), Unknown)
    }
    assert len(unknown) == expected.unknown
    told = {(one.entity, one.id) for one in said if isinstance(one, Change)}
    assert told == {place for place, thing in expected.things.items() if not thing.is_stub}
    assert (
        len({(one.entity, one.id, one.stamp, one.action) for one in said if isinstance(one, Change)})
        == expected.changes
    )


def test_equal_seeds_give_equal_histories():
    one, other, third = (Simulation(SENDER, histories=20, seed=seed) for seed in (1, 1, 2))
    assert [request.path for request in one.requests] == [request.path for request in other.requests]
    assert set(one.expected().things) == set(other.expected().things)
    assert not set(one.expected().things) & set(third.expected().things)


def test_every_problem_is_simulated():
    requests = Simulation(SENDER, histories=40, seed=1).requests
    assert {200, 400, 401} == {request.expect for request in requests}
    assert len({request.body for request in requests}) < len(requests), "no duplicates"
    assert {request.path.partition("?")[0] for request in requests} >= {
        "/api/rentprog/webhook", "/webhook/rentprog-webhook-create", "/api/umnico/webhook"
    }  # fmt: skip


def test_ruby_hashes_round_trip():
    value = {"id": 1, "a": None, "b": 'x "y" \\ {', "c": 1.5, "d": {"e": "ж"}, "f": True, "g": ""}
    assert read_hash(write_hash(value)) == value


@pytest.mark.parametrize(("number", "words"), [(1, "fire"), (2, "fire\n(and 1 more)"), (58, "fire\n(and 57 more)")])
def test_repeats_are_collapsed_into_one_message(number, words):
    assert compose("fire", number) == words


def figures(**refused: int) -> Figures:
    series = [{"labels": {"source": "rentprog", "reason": reason}, "value": n} for reason, n in refused.items()]
    foreign = {"labels": {"source": "stripe", "reason": "stale"}, "value": 9}
    return Figures({"metrics": {"boathook_rejections_total": {"series": [*series, foreign]}}}, "handler:fleet.")


def test_refused_requests_are_logged_by_how_many_more_they_are():
    refusals = Refusals()
    assert refusals.count_new(figures(wrong_token=5)) == {}
    assert refusals.count_new(figures(wrong_token=7, too_large=1)) == {
        ("rentprog", "wrong_token"): 2,
        ("rentprog", "too_large"): 1,
    }
    assert refusals.count_new(figures(wrong_token=7, too_large=1)) == {}
    assert refusals.count_new(figures(wrong_token=2)) == {("rentprog", "wrong_token"): 2}, "a counter begun anew"
