"""Generates callbacks of a reseller, and the results expected once all of them are handled.

Everything derives from the seed: histories of single songs, each with its own problems, interleaved.
"""

import base64
import hashlib
import hmac
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

from boathook.apps.music.kinds import Kind
from boathook.apps.music.stages import Status
from boathook.apps.music.studio import content_of
from boathook.apps.trials import Letter, tell_in_turns


@dataclass(frozen=True, slots=True)
class Registration:
    """A song's order, which registers its track at this point of the sequence."""

    task_id: str
    title: str


Step = Letter | Registration


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
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
    """URL of the `studio`, such as ``http://127.0.0.1:9000``."""
    at: float
    """The time of sending, in seconds since 1970."""
    path: str = "/api/suno/callback"


@dataclass(slots=True)
class _Story:
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
        self._stories = [self._story(number) for number in range(songs)]
        self.steps: Final[Sequence[Step]] = tuple(tell_in_turns([story.steps for story in self._stories], self._random))

    def expected(self) -> Books:
        """Return the expected data once all steps are handled."""
        known = [story for story in self._stories if story.status is not None]
        return Books(
            tracks={story.task_id: story.status for story in known if story.status is not None},
            waiting=frozenset(story.task_id for story in self._stories if story.status is None),
            files={name: digest for story in known for name, digest in story.files.items()},
        )

    def _story(self, number: int) -> _Story:
        story = _Story(task_id=hashlib.md5(f"{self._seed}/{number}".encode(), usedforsecurity=False).hexdigest())
        # The first songs cover each kind once.
        kinds: tuple[Callable[[_Story], None], ...] = (
            self._usual, self._registered_late, self._shuffled, self._failed, self._rescued, self._failed_too_late,
            self._forged, self._recaptured, self._never_registered, self._expired, self._page, self._broken,
        )  # fmt: skip
        kinds[number % len(kinds) if number < len(kinds) else self._random.randrange(len(kinds))](story)
        return story

    def _usual(self, story: _Story) -> None:
        story.status = Status.COMPLETE
        story.steps = [self._order(story), *self._copies(story, "text"), *self._copies(story, "first")]
        story.steps += self._copies(story, "complete")

    def _registered_late(self, story: _Story) -> None:
        story.status = Status.COMPLETE
        story.steps = [self._letter(story, stage, expect=202) for stage in ("text", "first", "complete")]
        story.steps.append(self._order(story))

    def _shuffled(self, story: _Story) -> None:
        story.status = Status.COMPLETE
        requests = [self._letter(story, stage) for stage in ("text", "first", "complete")]
        self._random.shuffle(requests)
        story.steps = [self._order(story), *requests]

    def _failed(self, story: _Story) -> None:
        story.status = Status.FAILED
        code = self._random.choice([200, 400, 451, 500, 531])
        story.steps = [self._order(story), self._letter(story, "text"), self._letter(story, "error", code=code)]
        story.steps.append(self._letter(story, "first"))

    def _rescued(self, story: _Story) -> None:
        story.status = Status.COMPLETE
        story.steps = [self._order(story), self._letter(story, "error", code=500), self._letter(story, "complete")]

    def _failed_too_late(self, story: _Story) -> None:
        story.status = Status.COMPLETE
        story.steps = [self._order(story), self._letter(story, "complete"), self._letter(story, "error", code=500)]

    def _forged(self, story: _Story) -> None:
        """An attacker sends a callback with the delivery id of a later one, with other URLs."""
        story.status = Status.COMPLETE
        header = {"x-delivery-id": f"delivery-{next(self._numbers)}-{story.task_id}"}
        forged = self._body(story, "complete", "/forged/", note=False)
        story.steps = [
            self._order(story),
            self._sent(story, forged, header, expect=401, secret="somebody-elses"),  # noqa: S106 - not the right one
            self._letter(story, "complete", header=header),
        ]

    def _recaptured(self, story: _Story) -> None:
        """A received request is sent again with another delivery id."""
        story.status = Status.COMPLETE
        body = self._body(story, "complete")
        story.steps = [self._order(story)]
        for expect in (200, 202):
            header = {"x-delivery-id": f"delivery-{next(self._numbers)}-{story.task_id}"}
            story.steps.append(self._sent(story, body, header, expect=expect))

    def _never_registered(self, story: _Story) -> None:
        story.steps = [self._letter(story, "complete", expect=202)]

    def _expired(self, story: _Story) -> None:
        self._with_files(story, "/gone/")

    def _page(self, story: _Story) -> None:
        self._with_files(story, "/page/")

    def _broken(self, story: _Story) -> None:
        """The server breaks off in the middle of each file, once."""
        self._with_files(story, "/broken/")

    def _with_files(self, story: _Story, folder: str) -> None:
        story.status = Status.COMPLETE
        story.steps = [self._order(story), self._sent(story, self._body(story, "complete", folder), {})]

    def _order(self, story: _Story) -> Registration:
        return Registration(story.task_id, f"Song {story.task_id[:6]}")

    def _copies(self, story: _Story, stage: str) -> list[Step]:
        """Return one to three copies of a callback, with or without a delivery id."""
        request = self._letter(story, stage, header=self._random.choice([None, {}]))
        return [request] * self._random.choice([1, 1, 2, 3])

    def _letter(
        self,
        story: _Story,
        stage: str,
        *,
        code: int = 200,
        expect: int = 200,
        header: Mapping[str, str] | None = None,
    ) -> Letter:
        if header is None:
            name = self._random.choice(["x-delivery-id", "x-webhook-id"])
            header = {name: f"delivery-{next(self._numbers)}-{story.task_id}"}
        return self._sent(story, self._body(story, stage, code=code), header, expect=expect)

    def _body(
        self, story: _Story, stage: str, folder: str = "/files/", *, code: int = 200, note: bool = True
    ) -> dict[str, Any]:
        clips = [f"{story.task_id[:8]}-{number}" for number in (1, 2)]
        is_complete = stage == "complete"
        data: list[dict[str, Any]] | None = [self._clip(clip, folder) for clip in clips] if is_complete else []
        if is_complete and note:
            for clip in clips:
                story.files |= {(story.task_id, clip, kind): self._digest(clip, kind, folder) for kind in Kind}
        if stage == "error":
            data = None
        message = "generation failed" if code >= 400 or stage == "error" else f"{stage} generated successfully."
        return {"code": code, "msg": message, "data": {"callbackType": stage, "task_id": story.task_id, "data": data}}

    def _clip(self, clip: str, folder: str) -> dict[str, Any]:
        base = self._reseller.files
        return {
            "id": clip,
            "audio_url": f"{base}{folder}{clip}.mp3",
            "image_url": f"{base}{folder}{clip}.jpeg",
            "title": "Night lights",
            "tags": "electrifying, rock",
            "model_name": "chirp-v4-5",
            "duration": 198.44,
        }

    def _digest(self, clip: str, kind: Kind, folder: str) -> str | None:
        name = f"{folder}{clip}.{'mp3' if kind is Kind.AUDIO else 'jpeg'}"
        content = content_of(name) if folder in {"/files/", "/broken/"} else None
        return None if content is None else hashlib.sha256(content).hexdigest()

    def _sent(
        self,
        story: _Story,
        document: Mapping[str, Any],
        header: Mapping[str, str],
        *,
        expect: int = 200,
        secret: str | None = None,
    ) -> Letter:
        timestamp = str(int(self._reseller.at))
        key = (secret or self._reseller.secret).encode()
        proof = base64.b64encode(hmac.digest(key, f"{story.task_id}.{timestamp}".encode(), "sha256")).decode()
        headers = {
            "content-type": "application/json",
            "x-webhook-timestamp": timestamp,
            "x-webhook-signature": proof,
            **header,
        }
        return Letter(path=self._reseller.path, headers=headers, body=json.dumps(document).encode(), expect=expect)
