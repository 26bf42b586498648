"""The demo's reading of the four systems' results, and the environment passed to them."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from boathook_demo.folder import Folder, environment
from boathook_demo.screen import print_systems
from boathook_demo.systems import EVENTS_PER_S, AppSimulators, SimulationResult, read_result

RIGHT = {
    "sent": 7,
    "answers": {"200": 4, "202": 1, "401": 2},
    "unexpected": 0,
    "effects": {"payments applied": 3, "waiting": 1},
    "differences": [],
    "surprises": [],
    "seed": 5,
}


def test_a_successful_result_is_read():
    found = read_result(0, json.dumps(RIGHT), "")
    assert found == SimulationResult(sent=7, taken=5, effects={"payments applied": 3, "waiting": 1})
    assert found.summary == "3 payments applied, 1 waiting"


def test_reported_differences_are_returned():
    row = RIGHT | {
        "differences": ["anna: 2 payments applied, not 3"],
        "surprises": ["POST / was answered 500, not 200"],
    }
    found = read_result(1, json.dumps(row), "")
    assert found.complaints == ("POST / was answered 500, not 200", "anna: 2 payments applied, not 3")


def test_an_unfinished_system_is_reported_briefly():
    row = RIGHT | {"differences": [f"car {n}: " + "x" * 5_000 for n in range(30)], "finished": False}
    found = read_result(1, json.dumps(row), "")
    assert not found.is_finished
    console = Console(record=True, width=200, file=io.StringIO())
    print_systems(console, {"fleet": found})
    shown = console.export_text()
    assert "not finished yet" in shown
    assert "differ\n" not in shown
    assert len(shown) < 6_000


@pytest.mark.parametrize(
    ("code", "output"),
    [
        (0, ""),
        (1, ""),
        (0, "[]"),
        (0, "{}"),
        (2, json.dumps(RIGHT)),
        (1, json.dumps(RIGHT)),
        (0, json.dumps(RIGHT | {"sent": 0, "answers": {}})),
        (-9, '{"sent": 7'),
    ],
)
def test_invalid_output_is_a_complaint(code: int, output: str):
    found = read_result(code, output, "long ago\nboathook:\n\n nobody\nanswers\n")
    assert found.complaints == (f"its simulate ended with exit code {code}: boathook: nobody answers",)


@pytest.mark.parametrize(
    ("ended", "are_right"),
    [
        ({}, False),
        (dict.fromkeys(EVENTS_PER_S, SimulationResult(sent=1)), True),
        ({name: SimulationResult(sent=1) for name in EVENTS_PER_S if name != "music"}, False),
        (
            {
                **dict.fromkeys(EVENTS_PER_S, SimulationResult(sent=1)),
                "music": SimulationResult(sent=1, complaints=("a file is missing",)),
            },
            False,
        ),
    ],
)
def test_systems_pass_only_when_all_have_passed(tmp_path: Path, ended: dict[str, SimulationResult], *, are_right: bool):
    systems = AppSimulators(Folder(tmp_path), 8080, 20, print)
    systems._ended = ended
    assert systems.are_right is are_right


def test_user_settings_do_not_reach_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("BOATHOOK_BIND", "WEBHOOK_RATE_RPS", "TELEGRAM_BOT_TOKEN"):
        monkeypatch.setenv(name, "mine")
    monkeypatch.setenv("PATH", "/bin")
    found = environment(Folder(tmp_path))
    assert found["PATH"] == "/bin"
    assert "mine" not in found.values()
