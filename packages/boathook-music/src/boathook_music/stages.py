"""Decides how a callback moves a track: forward only."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, assert_never

from boathook_music.callbacks import Stage


class Status(StrEnum):
    """The status of a track."""

    PENDING = "pending"
    TEXT = "text"
    FIRST = "first"
    COMPLETE = "complete"
    FAILED = "failed"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True)
class Forward:
    """The track moves to this status."""

    status: Status


@dataclass(frozen=True, slots=True)
class AddData:
    """The track is already complete; new data of the callback is added."""


@dataclass(frozen=True, slots=True)
class Late:
    """The track does not change."""

    why: str


Step = Forward | AddData | Late

_ORDER: Final = {Status.PENDING: 0, Status.TEXT: 1, Status.FIRST: 2, Status.COMPLETE: 3}


def step(status: Status, stage: Stage) -> Step:
    """Return the effect of a callback with this stage on a track with this status.

    An error is final, unless the songs arrive anyway. Songs that have arrived are kept, whatever error follows.
    """
    if status is Status.DELETED:
        return Late("the track was deleted")
    match stage:
        case Stage.UNKNOWN:
            return Late("its stage is not known")
        case Stage.ERROR:
            return _fail(status)
        case Stage.COMPLETE:
            return AddData() if status is Status.COMPLETE else Forward(Status.COMPLETE)
        case Stage.TEXT | Stage.FIRST:
            return _go_on(status, Status(stage.value))
        case _:
            assert_never(stage)


def _fail(status: Status) -> Step:
    if status is Status.COMPLETE:
        return Late("the track is complete already")
    return Late("the track has failed already") if status is Status.FAILED else Forward(Status.FAILED)


def _go_on(status: Status, to: Status) -> Step:
    if status is Status.FAILED:
        return Late("the track has failed already")
    return Forward(to) if _ORDER[to] > _ORDER[status] else Late(f"the track is at {status} already")
