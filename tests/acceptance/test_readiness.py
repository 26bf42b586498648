"""`/readyz` is 200 only once every role of the process answers, the API and the console too."""

from collections.abc import Callable

import httpx
import pytest

from tests.acceptance.conftest import BoathookProcess, payload, signed
from tests.support import until

HELD_UP = """
import time
from pathlib import Path
from boathook.server import interfaces

build = interfaces.AppBuilder

def held_up(*args):
    while not Path("go").exists():
        time.sleep(0.01)
    return build(*args)

interfaces.AppBuilder = held_up
"""
"""A sitecustomize.py that keeps the API and the console from coming up until there is a file."""
NOT_COUNTED = "\ninterfaces.Interfaces.problem = None\n"
PAGES = {"/api/v1/health": 204, "/console/sign-in": 200}


BROWSER = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


def start(boathook: Callable[..., BoathookProcess], site: str) -> BoathookProcess:
    running = boathook(roles="gateway,console", start=False)
    (running.folder / "sitecustomize.py").write_text(site)
    running.start(wait=False)
    until(lambda: httpx.get(f"{running.base}/healthz", timeout=300).status_code == 200)
    return running


def statuses(running: BoathookProcess) -> dict[str, int]:
    return {page: httpx.get(f"{running.base}{page}", timeout=300).status_code for page in PAGES}


def test_a_gateway_is_ready_once_its_api_and_console_answer(boathook: Callable[..., BoathookProcess]):
    running = start(boathook, HELD_UP)
    told = httpx.get(f"{running.base}/readyz", timeout=300)
    assert told.status_code == 503
    assert told.json()["problems"] == ["the API and the console are starting"]
    assert statuses(running) == dict.fromkeys(PAGES, 503)
    waiting = httpx.get(f"{running.base}/console", headers=BROWSER, timeout=300)
    assert waiting.status_code == 503
    assert '<meta http-equiv="refresh" content="1">' in waiting.text, "the page reloads by itself"
    assert httpx.get(f"{running.base}/console", timeout=300).json()["code"] == "unavailable"
    assert "child_ready" not in running.log()
    body, headers = signed(payload("evt_early"))
    assert httpx.post(f"{running.base}/webhooks/stripe", content=body, headers=headers).status_code == 200
    (running.folder / "go").touch()
    until(lambda: httpx.get(f"{running.base}/readyz", timeout=300).status_code == 200)
    assert statuses(running) == PAGES
    running.wait_logged("child_ready")

    root = httpx.get(running.base, headers=BROWSER, timeout=300)
    assert (root.status_code, root.headers["location"]) == (302, "/console")
    program = httpx.get(running.base, timeout=300)
    assert (program.status_code, program.json()["name"], program.json()["console"]) == (200, "boathook", "/console")


@pytest.mark.extended("the mutant of a test that stays: it shows that the test can fail")
def test_mutant_a_console_that_is_not_counted(boathook: Callable[..., BoathookProcess]):
    running = start(boathook, HELD_UP + NOT_COUNTED)
    until(lambda: httpx.get(f"{running.base}/readyz", timeout=300).status_code == 200)
    assert statuses(running) == dict.fromkeys(PAGES, 503)


HIDDEN = ("/%63onsole/sign-in", "/%61pi/v1/health", "/console%2fsign-in", "/%6Detrics", "/metrics%2Ejson")
UNHIDDEN = "\nfrom boathook.ingest import app\napp.has_needless_escapes = lambda raw_path: False\n"


@pytest.mark.parametrize(
    ("site", "is_refused"),
    [
        ("", True),
        pytest.param(
            UNHIDDEN,
            False,
            marks=pytest.mark.extended("the mutant of a test that stays: it shows that the test can fail"),
        ),
    ],
    ids=["refused", "mutant"],
)
def test_a_percent_encoded_path_is_refused_outside_of_sources(
    boathook: Callable[..., BoathookProcess], site: str, *, is_refused: bool
):
    running = start(boathook, site)
    running.wait_ready()
    answers = [httpx.get(f"{running.base}{path}", timeout=300) for path in HIDDEN]
    assert [answer.status_code for answer in answers] == ([400] * 5 if is_refused else [200, 204, 200, 200, 200])
    if is_refused:
        assert "percent-encodes" in answers[0].json()["error"]
        body, headers = signed(payload("evt_encoded"))
        address = f"{running.base}/webhooks/%73tripe"
        assert httpx.post(address, content=body, headers=headers).status_code == 200
