"""Generates callbacks of a reseller, and the results expected once all of them are handled.

Everything derives from the seed: histories of single songs, each with its own problems, interleaved.
"""

import base64
import hashlib
import hmac
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Final

from boathook_app_tools.simulation import SimulatedRequest, interleave
from boathook_music.example_requests import vary
from boathook_music.file_server import content_of
from boathook_music.kinds import Kind
from boathook_music.stages import Status


@dataclass(frozen=True, slots=True)
class Registration:
    """A song's order, which registers its track at this point of the sequence."""

    task_id: str
    title: str


Step = SimulatedRequest | Registration
_EXAMPLES: Final[Mapping[str, Sequence[str]]] = {
    "text": ("callback_text",),
    "first": ("callback_first",),
    "complete": ("callback_complete", "callback_complete_short"),
    "error": ("callback_error", "callback_error_field"),
}
"""The examples of each stage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedState:
    """The expected data at the end."""

    tracks: Mapping[str, Status]
    waiting: frozenset[str]
    """Tasks that are never registered: their callbacks wait."""
    files: Mapping[tuple[str, str, Kind], str | None]
    """By task, clip and kind: the SHA-256 of the stored file; None for a file that cannot be fetched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reseller:
    """The simulated sender, and the server of the files."""

    secret: str = field(repr=False)
    files: str
    """URL of the `file_server`, such as ``http://127.0.0.1:9000``."""
    at: float
    """The time of sending, in seconds since 1970."""
    path: str = "/generate-music-callb"


@dataclass(slots=True)
class _SimulatedTask:
    """One song's steps, and the expected results."""

    task_id: str
    steps: list[Step] = field(default_factory=list)
    status: Status | None = None
    """None if it is never registered."""
    files: dict[tuple[str, str, Kind], str | None] = field(default_factory=dict)


class Simulator:
    """Generates the callbacks of *songs* songs.

    Args:
        reseller: the sender.
        songs: the number of songs.
        seed: equal seeds give equal callbacks.
    """

    def __init__(self, reseller: Reseller, *, songs: int = 20, seed: int = 1) -> None:
        self._reseller = reseller
        self._random = random.Random(seed)
        self._numbers = count(1)
        self._seed = seed
        self._tasks = [self._make_task(number) for number in range(songs)]
        self.steps: Final[Sequence[Step]] = tuple(interleave([task.steps for task in self._tasks], self._random))

    def expected(self) -> ExpectedState:
        """Return the expected data once all steps are handled."""
        known_tasks = [task for task in self._tasks if task.status is not None]
        return ExpectedState(
            tracks={task.task_id: task.status for task in known_tasks if task.status is not None},
            waiting=frozenset(task.task_id for task in self._tasks if task.status is None),
            files={name: digest for task in known_tasks for name, digest in task.files.items()},
        )

    def _make_task(self, number: int) -> _SimulatedTask:
        task = _SimulatedTask(task_id=hashlib.md5(f"{self._seed}/{number}".encode(), usedforsecurity=False).hexdigest())
        # The first songs cover each kind once.
        kinds: tuple[Callable[[_SimulatedTask], None], ...] = (
            self._usual, self._registered_late, self._shuffled, self._failed, self._rescued, self._failed_too_late,
            self._forged, self._recaptured, self._never_registered, self._expired, self._page, self._broken,
            self._without_songs,
        )  # fmt: skip
        kinds[number % len(kinds) if number < len(kinds) else self._random.randrange(len(kinds))](task)
        return task

    def _usual(self, task: _SimulatedTask) -> None:
        task.status = Status.COMPLETE
        task.steps = [self._order(task), *self._copies(task, "text"), *self._copies(task, "first")]
        task.steps += self._copies(task, "complete")

    def _registered_late(self, task: _SimulatedTask) -> None:
        task.status = Status.COMPLETE
        task.steps = [self._request(task, stage, expect=202) for stage in ("text", "first", "complete")]
        task.steps.append(self._order(task))

    def _shuffled(self, task: _SimulatedTask) -> None:
        task.status = Status.COMPLETE
        requests = [self._request(task, stage) for stage in ("text", "first", "complete")]
        self._random.shuffle(requests)
        task.steps = [self._order(task), *requests]

    def _failed(self, task: _SimulatedTask) -> None:
        task.status = Status.FAILED
        code = self._random.choice([200, 400, 451, 500, 531])
        task.steps = [self._order(task), self._request(task, "text"), self._request(task, "error", code=code)]
        task.steps.append(self._request(task, "first"))

    def _rescued(self, task: _SimulatedTask) -> None:
        task.status = Status.COMPLETE
        task.steps = [self._order(task), self._request(task, "error", code=500), self._request(task, "complete")]

    def _failed_too_late(self, task: _SimulatedTask) -> None:
        task.status = Status.COMPLETE
        task.steps = [self._order(task), self._request(task, "complete"), self._request(task, "error", code=500)]

    def _forged(self, task: _SimulatedTask) -> None:
        """An attacker sends a callback with the delivery id of a later one, with other URLs."""
        task.status = Status.COMPLETE
        header = {"x-delivery-id": f"delivery-{next(self._numbers)}-{task.task_id}"}
        forged = self._body(task, "complete", "/forged/", note=False)
        task.steps = [
            self._order(task),
            self._sent(task, forged, header, expect=401, secret="somebody-elses"),  # noqa: S106 - not the right one
            self._request(task, "complete", header=header),
        ]

    def _recaptured(self, task: _SimulatedTask) -> None:
        """A received request is sent again with another delivery id."""
        task.status = Status.COMPLETE
        body = self._body(task, "complete")
        task.steps = [self._order(task)]
        for expect in (200, 202):
            header = {"x-delivery-id": f"delivery-{next(self._numbers)}-{task.task_id}"}
            task.steps.append(self._sent(task, body, header, expect=expect))

    def _never_registered(self, task: _SimulatedTask) -> None:
        task.steps = [self._request(task, "complete", expect=202)]

    def _expired(self, task: _SimulatedTask) -> None:
        self._with_files(task, "/gone/")

    def _page(self, task: _SimulatedTask) -> None:
        self._with_files(task, "/page/")

    def _broken(self, task: _SimulatedTask) -> None:
        """The server breaks off in the middle of each file, once."""
        self._with_files(task, "/broken/")

    def _with_files(self, task: _SimulatedTask, folder: str) -> None:
        task.status = Status.COMPLETE
        task.steps = [self._order(task), self._sent(task, self._body(task, "complete", folder), {})]

    def _without_songs(self, task: _SimulatedTask) -> None:
        """A proxy forwards only task and stage, twice."""
        task.status = Status.COMPLETE
        body = vary("document_complete", task.task_id)
        header = {"x-delivery-id": f"delivery-{next(self._numbers)}-{task.task_id}"}
        task.steps = [self._order(task), *[self._sent(task, body, header)] * 2]

    def _order(self, task: _SimulatedTask) -> Registration:
        return Registration(task.task_id, f"Song {task.task_id[:6]}")

    def _copies(self, task: _SimulatedTask, stage: str) -> list[Step]:
        """Return one to three copies of a callback, with or without a delivery id."""
        request = self._request(task, stage, header=self._random.choice([None, {}]))
        return [request] * self._random.choice([1, 1, 2, 3])

    def _request(
        self,
        task: _SimulatedTask,
        stage: str,
        *,
        code: int | None = None,
        expect: int = 200,
        header: Mapping[str, str] | None = None,
    ) -> SimulatedRequest:
        if header is None:
            name = self._random.choice(["x-delivery-id", "x-webhook-id"])
            header = {name: f"delivery-{next(self._numbers)}-{task.task_id}"}
        return self._sent(task, self._body(task, stage, code=code), header, expect=expect)

    def _body(
        self, task: _SimulatedTask, stage: str, folder: str = "/files/", *, code: int | None = None, note: bool = True
    ) -> bytes:
        names = [f"{task.task_id[:8]}-{number}" for number in (1, 2)]
        if stage == "complete" and note:
            for name in names:
                task.files |= {(task.task_id, name, kind): self._digest(name, kind, folder) for kind in Kind}
        clips = [self._clip(name, folder) for name in names]
        return vary(self._random.choice(_EXAMPLES[stage]), task.task_id, code=code, clips=clips)

    def _clip(self, clip: str, folder: str) -> dict[str, str]:
        base = self._reseller.files
        return {"id": clip, "audio_url": f"{base}{folder}{clip}.mp3", "image_url": f"{base}{folder}{clip}.jpeg"}

    def _digest(self, clip: str, kind: Kind, folder: str) -> str | None:
        name = f"{folder}{clip}.{'mp3' if kind is Kind.AUDIO else 'jpeg'}"
        content = content_of(name) if folder in {"/files/", "/broken/"} else None
        return None if content is None else hashlib.sha256(content).hexdigest()

    def _sent(
        self,
        task: _SimulatedTask,
        body: bytes,
        header: Mapping[str, str],
        *,
        expect: int = 200,
        secret: str | None = None,
    ) -> SimulatedRequest:
        timestamp = str(int(self._reseller.at))
        key = (secret or self._reseller.secret).encode()
        proof = base64.b64encode(hmac.digest(key, f"{task.task_id}.{timestamp}".encode(), "sha256")).decode()
        headers = {
            "content-type": "application/json",
            "x-webhook-timestamp": timestamp,
            "x-webhook-signature": proof,
            **header,
        }
        return SimulatedRequest(path=self._reseller.path, headers=headers, body=body, expect=expect)
