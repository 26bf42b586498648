"""The parser reads from every simulated request the change that the simulator intended."""

from itertools import groupby

import pytest

from boathook_fleet.example_requests import vary, write_hash
from boathook_fleet.jobs import Refusals
from boathook_fleet.parse import Change, Unknown, read
from boathook_fleet.ruby import read_hash
from boathook_fleet.simulator import Sender, Simulation
from boathook_fleet.status import Figures

SENDER = Sender(token="t", umnico_token="u")


@pytest.mark.parametrize("seed", range(5))
def test_every_request_parses_to_the_intended_change(seed):
    simulation = Simulation(SENDER, histories=60, seed=seed)
    expected = simulation.expected()
    accepted = [[one for one in history if one.expect == 200] for history in simulation.histories]
    # A repetition of the newest request of an object is no event.
    events = [read(body) for history in accepted for body, _ in groupby(one.body for one in history)]
    assert sum(isinstance(one, Unknown) for one in events) == expected.unknown
    changes = [one for one in events if isinstance(one, Change)]
    assert len(changes) == expected.changes
    assert {(one.entity, one.id) for one in changes} == {
        place for place, thing in expected.things.items() if not thing.is_stub
    }


def test_an_example_is_varied_in_its_own_encoding_and_with_its_own_fields_only():
    ruby = vary("car_update_ruby", {"id": 5, "mileage": [1, 2]})
    assert ruby == {"event": "car_update", "payload": '{"id"=>5, "mileage"=>[1, 2]}'}
    text = vary("booking_update_text", {"id": 5, "state": ["a", None]})
    assert text == {"event": "booking_update", "payload": '{"id":5,"state":["a",null]}'}
    assert vary("client_destroy_object", {"id": 5}) == {"event": "client_destroy", "payload": {"id": 5}}
    with pytest.raises(ValueError, match="car_update_ruby has no field wings"):
        vary("car_update_ruby", {"id": 5, "wings": 2})


def test_equal_seeds_give_equal_histories():
    one, other, third = (Simulation(SENDER, histories=20, seed=seed) for seed in (1, 1, 2))
    assert [request.path for request in one.requests] == [request.path for request in other.requests]
    assert set(one.expected().things) == set(other.expected().things)
    own = [{place for place in each.expected().things if place[0] != "branch"} for each in (one, third)]
    assert not own[0] & own[1]


@pytest.mark.parametrize("seed", range(5))
def test_a_branch_that_a_car_has_left_is_not_expected(seed):
    """Both changes may be applied at once, and then no row has ever referenced it."""
    objects = Simulation(SENDER, histories=3, seed=seed).expected().things
    current = {str(thing.data["company_id"]) for thing in objects.values() if "company_id" in thing.data}
    assert {id for entity, id in objects if entity == "branch"} == current


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
