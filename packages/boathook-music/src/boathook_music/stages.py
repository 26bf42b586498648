"""Decides how a callback moves a track: forward only."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

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
_ORDER: Final = (Status.PENDING, Status.TEXT, Status.FIRST, Status.COMPLETE)


def step(status: Status, stage: Stage) -> Step:
    """Return the effect of a callback with this stage on a track with this status.

    An error is final, unless the songs arrive anyway. Songs that have arrived are kept, whatever error follows.
    """
    match status, stage:
        case Status.DELETED, _:
            return Late("the track was deleted")
        case _, Stage.UNKNOWN:
            return Late("its stage is not known")
        case Status.COMPLETE, Stage.ERROR:
            return Late("the track is complete already")
        case Status.COMPLETE, Stage.COMPLETE:
            return AddData()
        case _, Stage.COMPLETE:
            return Forward(Status.COMPLETE)
        case Status.FAILED, _:
            return Late("the track has failed already")
        case _, Stage.ERROR:
            return Forward(Status.FAILED)
    to = Status(stage.value)
    return Forward(to) if _ORDER.index(to) > _ORDER.index(status) else Late(f"the track is at {status} already")
