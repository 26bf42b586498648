"""How apps are tried out: what is counted, how long books are waited for, and what is printed."""

import json
from dataclasses import dataclass, field

import pytest
import typer

from boathook.apps.trials import Answers, Trial, finish, settle


@dataclass(frozen=True)
class Request:
    path: str = "/hook?token=hidden"
    method: str = "POST"
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


def trial(*, differences: tuple[str, ...] = (), statuses: tuple[int, ...] = (200,)) -> Trial:
    answers = Answers()
    for status in statuses:
        answers.note(Request(), status, {200, 202})
    return Trial(seed=5, answers=answers, effects={"things kept": 2}, differences=differences)


def test_an_answer_that_should_have_been_another_is_told_without_the_secret_in_the_address():
    answers = Answers()
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
        "seed": 5,
    }


@pytest.mark.parametrize("wrong", [trial(differences=("a is b",)), trial(statuses=(200, 500))])
def test_whatever_is_not_as_it_must_be_ends_with_1(wrong: Trial, capsys: pytest.CaptureFixture[str]):
    for as_json in (True, False):
        with pytest.raises(typer.Exit) as ended:
            finish(wrong, as_json=as_json)
        assert ended.value.exit_code == 1
        said = capsys.readouterr().out
        assert "a is b" in said or "POST /hook was answered 500" in said


def test_of_many_differences_the_first_are_told(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(typer.Exit):
        finish(trial(differences=tuple(f"thing {n} differs" for n in range(100))), as_json=True)
    told = json.loads(capsys.readouterr().out)["differences"]
    assert (len(told), told[-1]) == (21, "and 80 more")


async def test_books_are_waited_for_until_they_agree():
    found = [["a"], ["a"], []]

    async def compare() -> list[str]:
        return found.pop(0)

    assert await settle(compare, 60) == []
    assert found == []


async def test_books_that_never_agree_are_told_of_in_the_end():
    async def compare() -> list[str]:
        return ["a"]

    assert await settle(compare, 0.3) == ["a"]
