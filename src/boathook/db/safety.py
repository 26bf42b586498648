"""Checks whether a server's commits are durable: at the start, and with each heartbeat."""

from collections.abc import Mapping
from typing import Any, Final

import asyncpg
import msgspec

from boathook.db.statements import load

SQL: Final = load(__file__)
MIN_SERVER_VERSION: Final = 140000
MAX_STALLED: Final = 32
"""Commits waiting for a synchronous standby at which no more are started: each occupies a server connection."""

_REMEDIES: Final = {
    "fsync": "Set fsync = on in postgresql.conf and restart it.",
    "full_page_writes": "Set full_page_writes = on in postgresql.conf and reload it.",
    "synchronous_commit": "Set synchronous_commit = on in postgresql.conf, for the role and for the database.",
}
_WEAK: Final = {
    "off": "so a crash can lose what handlers commit in sessions of their own",
    "local": "so what handlers commit in sessions of their own does not wait for the synchronous standby",
    "remote_write": "so what handlers commit in sessions of their own may not be on the synchronous standby's disk",
}


class Safety(msgspec.Struct, frozen=True):
    """The safety problems of a server, as sentences with their fixes."""

    lossy: tuple[str, ...] = ()
    """Settings that lose commits in a crash, whatever a session requests."""
    weak: tuple[str, ...] = ()
    """Defaults of sessions that request nothing, such as handlers' own. boathook's sessions request durable commits."""
    stalled: int = 0
    """Commits of this role that have waited for a synchronous standby for more than three seconds."""

    @property
    def kind(self) -> tuple[object, ...]:
        """The part that is compared; the number of waiting commits changes all the time."""
        return self.lossy, self.weak, bool(self.stalled)

    @property
    def is_doubtful(self) -> bool:
        """Whether an operator should check the server."""
        return any(self.kind)

    def reasons(self, *, allow_lossy: bool = False) -> list[str]:
        """Return why commits on the server are not safe."""
        return [*(() if allow_lossy else self.lossy), *([describe_stall(self.stalled)] if self.stalled else ())]


def assess_safety(row: asyncpg.Record | Mapping[str, Any]) -> Safety:
    """Evaluate a row of `read_safety`."""
    lossy = tuple(
        f"{name} is off on this server, so it can lose events after boathook has answered 2xx. {_REMEDIES[name]}"
        for name in ("fsync", "full_page_writes")
        if row[name] == "off"
    )
    return Safety(lossy, _weak(row["synchronous_commit"], row["synchronous_standby_names"]), row["stalled"])


def _weak(level: str, standbys: str) -> tuple[str, ...]:
    if level != "off" and not (level in _WEAK and standbys):
        return ()
    return (f"synchronous_commit is {level} on this server, {_WEAK[level]}. {_REMEDIES['synchronous_commit']}",)


def describe_stall(commits: int) -> str:
    """Return a sentence about commits that wait for a standby."""
    return (
        f"{commits} commits have waited for a synchronous standby for more than 3 s. Start the standby, or take it out"
        " of synchronous_standby_names."
    )


def commit_level(setting: str) -> str:
    """Return the synchronous_commit level of boathook's sessions if the server's is *setting*."""
    return "remote_apply" if setting == "remote_apply" else "on"
