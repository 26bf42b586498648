"""Functions for the simulators of apps: reading examples, interleaving, sending, waiting, and reporting the result."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, Protocol, TypeVar
from urllib.parse import urlsplit

import typer

from boathook import Boathook, BoathookError
from boathook_app_tools.terminal import print_json, print_rows, say

Step = TypeVar("Step")


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRequest:
    """One request."""

    method: str = "POST"
    path: str
    headers: Mapping[str, str]
    body: bytes
    expect: int = 200
    """The expected status of the response."""


def read_example(folder: Path, name: str) -> dict[str, Any]:
    """Return a sender's example, the file *name* without ``.json``, of its own so that it may be changed."""
    document: dict[str, Any] = json.loads(_example_text(folder / f"{name}.json"))
    return document


@cache
def _example_text(file: Path) -> str:
    return file.read_text(encoding="utf-8")


def require_fields(example_name: str, example: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Raise ValueError if *values* have a field that the example *example_name* does not have: it would be invented."""
    if unknown := values.keys() - example.keys():
        raise ValueError(f"{example_name} has no field {', '.join(sorted(unknown))}")


def interleave(histories: Sequence[Sequence[Step]], dice: random.Random) -> Iterator[Step]:
    """Yield the steps of all histories, interleaved at random, each history in its own order."""
    turns = [number for number, history in enumerate(histories) for _ in history]
    dice.shuffle(turns)
    rest = [iter(history) for history in histories]
    for number in turns:
        yield next(rest[number])


Url = Annotated[str, typer.Option("--url", help="Where boathook serves; loopback must be in outbound.allow.")]
Seed = Annotated[int | None, typer.Option("--seed", help="Makes up the same again.", show_default=False)]
Wait = Annotated[
    float,
    typer.Option("--wait", min=0, help="Seconds without any change after which an inconsistency is reported."),
]
HERE: Final = "http://127.0.0.1:8080"
WAIT_S: Final = 60.0

_POLL_S: Final = 0.2
_MAX_WAITS: Final = 10
"""Multiple of the wait after which waiting ends, whatever is still in progress."""
_MAX_OPEN: Final = 500
_MAX_SENTENCES: Final = 20


class Request(Protocol):
    """A generated request."""

    @property
    def method(self) -> str:
        """The HTTP method, such as ``POST``."""
        ...

    @property
    def path(self) -> str:
        """Including the query."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """All headers except those that every client adds itself."""
        ...

    @property
    def body(self) -> bytes:
        """The bytes to send."""
        ...


@dataclass(slots=True)
class ResponseCounts:
    """The responses to generated requests."""

    statuses: Counter[int] = field(default_factory=Counter)
    unexpected: list[str] = field(default_factory=list)
    """A sentence for each unexpected response."""

    def note(self, request: Request, status: int, expected_statuses: Collection[int]) -> None:
        """Count a response; *expected_statuses* holds its expected statuses."""
        self.statuses[status] += 1
        if status not in expected_statuses:
            # The query may contain a secret.
            path, expected = request.path.partition("?")[0], " or ".join(map(str, sorted(expected_statuses)))
            self.unexpected.append(f"{request.method} {path} was answered {status}, not {expected}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationResult:
    """The result of a simulation."""

    seed: int
    answers: ResponseCounts
    effects: Mapping[str, int]
    """The expected effects, in the app's own terms, such as "payments applied"."""
    differences: Sequence[str]
    """A sentence for each difference between the data and the expected results."""
    is_finished: bool = True
    """Whether nothing was in progress that could still change the data."""

    @property
    def is_right(self) -> bool:
        """Whether all responses and all data are as expected."""
        return not self.answers.unexpected and not self.differences

    def as_row(self) -> dict[str, Any]:
        """Return it as it is printed, with only the first sentences."""
        return {
            "sent": self.answers.statuses.total(),
            "answers": {str(status): number for status, number in sorted(self.answers.statuses.items())},
            "unexpected": len(self.answers.unexpected),
            "effects": dict(self.effects),
            "differences": _first(self.differences),
            "surprises": _first(self.answers.unexpected),
            "finished": self.is_finished,
            "seed": self.seed,
        }


def pick_seed(seed: int | None) -> int:
    """Return *seed*, or a random seed."""
    return random.SystemRandom().randrange(2**31) if seed is None else seed


async def send(hook: Boathook, url: str, request: Request) -> tuple[int, bytes]:
    """Send one request to the boathook at *url*; return the response's status and body.

    Raises:
        BoathookError: *url* is invalid, unreachable, or not allowed.
    """
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.netloc:
        raise BoathookError(f"--url: {url!r} is not an address; use one such as {HERE}")
    target = url.rstrip("/") + request.path
    try:
        answer = await hook.http.request(
            request.method, target, headers=request.headers, body=request.body, timeout_s=30
        )
    except BoathookError as error:
        secret = request.path.partition("?")[2]
        because = str(error).replace(secret, "...") if secret else str(error)
        raise BoathookError(
            f"--url {url}: {because}; is `boathook serve` running there, and for an address of this machine,"
            ' is allow = ["127.0.0.0/8"] under [outbound] in boathook.toml?'
        ) from None
    return answer.status, answer.body


async def settle(
    compare: Callable[[], Awaitable[list[str]]], is_busy: Callable[[], Awaitable[bool]], wait_s: float
) -> tuple[list[str], bool]:
    """Return the differences, and whether they are final.

    It compares until there are no differences, or until they have not changed for *wait_s* seconds and nothing is in
    progress.

    Args:
        compare: returns the differences; equal differences must give equal texts.
        is_busy: returns whether work is in progress that may change them.
        wait_s: the time a slow machine may need for one change.
    """
    clock = asyncio.get_running_loop().time
    gives_up_at, quiet_at = clock() + _MAX_WAITS * wait_s, clock() + wait_s
    differences = await compare()
    while differences:
        await asyncio.sleep(_POLL_S)
        before, differences = differences, await compare()
        if differences == before and clock() >= quiet_at and not await is_busy():
            return differences, True
        if clock() >= gives_up_at:
            return differences, False
        if differences != before or clock() >= quiet_at:
            quiet_at = clock() + wait_s
    return [], True


async def has_open(hook: Boathook, *, recipients: Sequence[str] = ()) -> bool:
    """Return whether deliveries of an app are running or overdue.

    Those that wait for their next attempt do not count: an app may delay some indefinitely.

    Args:
        hook: the app's `Boathook`.
        recipients: patterns of recipients in addition to the app's handlers.
    """
    for recipient in (f"handler:{hook.name}.*", *recipients):
        if await hook.operations.deliveries(recipient=recipient, state="leased", limit=1):
            return True
        rows = await hook.operations.deliveries(recipient=recipient, state="pending", limit=_MAX_OPEN)
        if any(row.due_at <= datetime.now(UTC) for row in rows):
            return True
    return False


def finish(trial: SimulationResult, *, as_json: bool) -> None:
    """Print the result of a simulation. Raises typer.Exit with 1 unless everything is as expected."""
    row = trial.as_row()
    if as_json:
        print_json(row)
    else:
        sentences = [*row.pop("surprises"), *row.pop("differences")]
        print_rows([row | {"answers": _listed(row["answers"]), "effects": _listed(row["effects"])}], as_json=False)
        for sentence in sentences:
            say(sentence)
    if not trial.is_right:
        raise typer.Exit(1)


def _listed(numbers: Mapping[str, int]) -> str:
    return ", ".join(f"{name}: {number}" for name, number in numbers.items())


def _first(sentences: Sequence[str]) -> list[str]:
    rest = len(sentences) - _MAX_SENTENCES
    return [*sentences[:_MAX_SENTENCES], *([f"and {rest} more"] if rest > 0 else [])]
