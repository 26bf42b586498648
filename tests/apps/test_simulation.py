"""The app simulators' counts, waiting and output."""

import json
import types
from dataclasses import dataclass, field

import pytest
import typer

from boathook_app_tools import simulation
from boathook_app_tools.simulation import ResponseCounts, SimulationResult, finish, settle


@dataclass(frozen=True)
class Request:
    path: str = "/hook?token=hidden"
    method: str = "POST"
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


def trial(*, differences: tuple[str, ...] = (), statuses: tuple[int, ...] = (200,)) -> SimulationResult:
    answers = ResponseCounts()
    for status in statuses:
        answers.note(Request(), status, {200, 202})
    return SimulationResult(seed=5, answers=answers, effects={"things kept": 2}, differences=differences)


def test_an_unexpected_status_is_reported_without_url_secrets():
    answers = ResponseCounts()
    for status in (200, 202, 503):
        answers.note(Request(), status, {200, 202})
    assert answers.statuses == {200: 1, 202: 1, 503: 1}
    assert answers.unexpected == ["POST /hook was answered 503, not 200 or 202"]


def test_one_object_is_printed_as_json(capsys: pytest.CaptureFixture[str]):
    finish(trial(statuses=(200, 200, 202)), as_json=True)
    assert json.loads(capsys.readouterr().out) == {
        "sent": 3,
        "answers": {"200": 2, "202": 1},
        "unexpected": 0,
        "effects": {"things kept": 2},
        "differences": [],
        "surprises": [],
        "finished": True,
        "seed": 5,
    }


@pytest.mark.parametrize("wrong", [trial(differences=("a is b",)), trial(statuses=(200, 500))])
def test_any_deviation_exits_with_1(wrong: SimulationResult, capsys: pytest.CaptureFixture[str]):
    for as_json in (True, False):
        with pytest.raises(typer.Exit) as ended:
            finish(wrong, as_json=as_json)
        assert ended.value.exit_code == 1
        said = capsys.readouterr().out
        assert "a is b" in said or "POST /hook was answered 500" in said


def test_only_the_first_differences_are_listed(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(typer.Exit):
        finish(trial(differences=tuple(f"thing {n} differs" for n in range(100))), as_json=True)
    told = json.loads(capsys.readouterr().out)["differences"]
    assert (len(told), told[-1]) == (21, "and 80 more")


class Clock:
    """The time that `settle` sees."""

    now = 0.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()

    class Loop:
        def time(self) -> float:
            return clock.now

    async def sleep(_seconds: float) -> None: ...

    monkeypatch.setattr(simulation, "asyncio", types.SimpleNamespace(get_running_loop=Loop, sleep=sleep))
    return clock


async def is_idle() -> bool:
    return False


async def test_books_are_waited_for_until_they_agree():
    found = [["a"], ["a"], []]

    async def compare() -> list[str]:
        return found.pop(0)

    assert await settle(compare, is_idle, 60) == ([], True)
    assert found == []


async def test_lasting_differences_are_reported():
    async def compare() -> list[str]:
        return ["a"]

    assert await settle(compare, is_idle, 0.3) == (["a"], True)


async def test_waiting_continues_while_differences_change(clock: Clock):
    """As on a busy machine: each change takes nearly as long as is waited for one."""
    found = [[*"abcdefgh"[left:]] for left in range(9) for _ in range(4)]

    async def compare() -> list[str]:
        clock.now += 0.25
        return found.pop(0)

    assert await settle(compare, is_idle, 2.0) == ([], True)
    assert clock.now > 2.0


async def test_waiting_continues_while_work_is_in_progress(clock: Clock):
    asked = 0

    async def compare() -> list[str]:
        clock.now += 0.5
        return [] if asked == 3 else ["a"]

    async def is_busy() -> bool:
        nonlocal asked
        asked += 1
        return True

    assert await settle(compare, is_busy, 2.0) == ([], True)


async def test_work_in_progress_for_too_long_is_unfinished(clock: Clock):
    async def compare() -> list[str]:
        clock.now += 1.0
        return ["a"]

    async def is_busy() -> bool:
        return True

    assert await settle(compare, is_busy, 2.0) == (["a"], False)
    assert clock.now >= 20.0
