"""Tests in their own process report the same as in this one."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLUGIN = """
pytest_plugins = ["tests.own_process"]
def pytest_configure(config):
    config.addinivalue_line("markers", "own_process: as in the project")
"""
TESTS = """
import os, sys
import pytest

HERE = os.getpid()
calls = []

@pytest.fixture(scope="module")
def shared():
    calls.append("set up")
    yield os.getpid()
    print("torn down")

def test_before(shared):
    assert os.getpid() == HERE

@pytest.mark.own_process
def test_passes_elsewhere(shared):
    calls.append("elsewhere")
    assert os.getpid() != HERE

@pytest.mark.own_process
def test_fails_elsewhere():
    assert "this" == "that"

@pytest.mark.own_process
def test_dies():
    os._exit(7)

@pytest.mark.own_process
@pytest.mark.skip(reason="not today")
def test_is_skipped():
    pass

def test_after(shared):
    assert shared == HERE
    assert calls == ["set up"]
"""


def test_each_outcome_is_reported(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester.makeconftest(PLUGIN)
    pytester.makepyfile(TESTS)
    result = pytester.runpytest_subprocess("-p", "no:schemathesis", "-p", "no:xdist")
    result.assert_outcomes(passed=3, failed=2, skipped=1)
    result.stdout.fnmatch_lines(["*'this' == 'that'*", "*the process of this test ended with 7 before it reported*"])
