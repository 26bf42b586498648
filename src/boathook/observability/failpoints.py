"""Named failpoints at which a test can kill, freeze or fail this process, between two irreversible actions.

``BOATHOOK_CRASH_POINT=claim.after_commit:3:kill`` kills the process with SIGKILL the third time it reaches that point;
``stop`` freezes it with SIGSTOP, ``raise`` raises `FailpointHit`. An optional path after the action makes the point
fire once in all processes with this setting: the process that fires creates that file, and no process fires once it
exists. Several settings are separated by commas, and each counts its own hits. Processes that are restarted after each
kill therefore go through all of them. If the variable is unset, as everywhere but in fault tests, a failpoint is a call
of an empty function.
"""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Final

VARIABLE: Final = "BOATHOOK_CRASH_POINT"

FAILPOINTS: Final = (
    "accept.before_commit",
    "accept.after_commit",
    "accept.before_reply",
    "publish.before_commit",
    "publish.after_commit",
    "spool.before_write",
    "spool.after_sync",
    "drain.before_commit",
    "drain.after_commit",
    "drain.before_finish",
    "drain.after_finish",
    "claim.after_commit",
    "handler.before_effect",
    "handler.after_effect",
    "handler.before_commit",
    "handler.after_commit",
    "retry.before_schedule",
    "retry.after_schedule",
    "dead.before_move",
    "dead.after_move",
    "send.after_claim",
    "send.after_response",
    "send.before_settle",
    "send.after_settle",
    "keeper.before_reap",
    "keeper.after_reap",
)
"""All failpoints; fault tests are generated from this list, so that none is forgotten."""


class FailpointHit(RuntimeError):
    """Raised by the action ``raise``."""


def arm(setting: str | None) -> Callable[[str], None]:
    """Return the function to call at each failpoint.

    Raises:
        ValueError: a part of *setting* is not ``name:count:action`` or ``name:count:action:path`` with a known name and
            action.
    """
    if not setting:
        return _pass
    points = [_arm_one(point) for point in setting.split(",")]

    def armed(passed: str) -> None:
        for point in points:
            point(passed)

    return armed


def _arm_one(setting: str) -> Callable[[str], None]:
    name, _, rest = setting.partition(":")
    hits, _, rest = rest.partition(":")
    action, _, path = rest.partition(":")
    if name not in FAILPOINTS or not hits.isdecimal() or int(hits) < 1 or action not in _ACTIONS:
        raise ValueError(f"{VARIABLE} must be point:count:{'|'.join(_ACTIONS)} with one of {', '.join(FAILPOINTS)}")
    hits_left = int(hits)

    def armed(passed: str) -> None:
        nonlocal hits_left
        if passed == name:
            hits_left -= 1
            if hits_left == 0 and _is_first(path):
                _ACTIONS[action](name)

    return armed


def _pass(passed: str) -> None:
    pass


def _is_first(path: str) -> bool:
    try:
        if path:
            Path(path).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _kill(_name: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _stop(_name: str) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _raise(name: str) -> None:
    raise FailpointHit(name)


_ACTIONS: Final[dict[str, Callable[[str], None]]] = {"kill": _kill, "stop": _stop, "raise": _raise}

failpoint: Final = arm(os.environ.get(VARIABLE))
"""Fire the failpoint of this name, if it is armed."""
