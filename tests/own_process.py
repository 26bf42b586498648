"""Runs tests marked `own_process` in a fork of the test process: a pytest plugin.

A test that exhausts the recursion limit can leave its interpreter unable to compile another line, which would end the
whole run as soon as another test fails.
"""

import gc
import os
import pickle
import traceback
from collections.abc import Sequence
from typing import NoReturn

import pytest
from _pytest.runner import runtestprotocol


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run a marked test in a fork, and report its reports."""
    if item.get_closest_marker("own_process") is None:
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in _run(item):
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    # The previous test left open the fixtures that both share.
    item.session._setupstate.teardown_exact(nextitem)
    return True


def _run(item: pytest.Item) -> Sequence[pytest.TestReport]:
    reading, writing = os.pipe()
    if (pid := os.fork()) == 0:
        os.close(reading)
        _report_to(writing, item)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        written = pipe.read()
    _, status = os.waitpid(pid, 0)
    if not written:
        code = os.waitstatus_to_exitcode(status)
        message = f"the process of this test ended with {code} before it reported"
        call = pytest.CallInfo.from_call(lambda: pytest.fail(message, pytrace=False), when="call")
        return [pytest.TestReport.from_item_and_call(item, call)]
    hook = item.config.hook
    return [hook.pytest_report_from_serializable(config=item.config, data=data) for data in pickle.loads(written)]


def _report_to(writing: int, item: pytest.Item) -> NoReturn:
    try:
        gc.freeze()  # what earlier tests have left unclosed is no fault of this one
        hook = item.config.hook
        # Tears down what is this test's alone; the fixtures it shares with others are the parent's.
        reports = runtestprotocol(item, log=False, nextitem=item.parent)
        data = [hook.pytest_report_to_serializable(config=item.config, report=report) for report in reports]
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(pickle.dumps(data))
    except BaseException:  # noqa: BLE001 - the parent sees that nothing was written
        traceback.print_exc()
    finally:
        os._exit(0)
