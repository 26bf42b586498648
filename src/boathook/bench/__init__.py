"""Measures boathook against its own ceiling and against the servers people write first, in one run.

Machines are noisy and shared, so every figure worth quoting is a ratio of two measurements that took turns.
"""

from collections.abc import Callable
from typing import Any, Final

from boathook.bench import both, console, deliver, handle, ingest, isolation, latency, spool
from boathook.bench.stage import Stage
from boathook.domain.errors import ConfigError

BENCHES: dict[str, Callable[[Stage, float], dict[str, Any]]] = {
    "ingest": ingest.ingest,
    "duplicates": ingest.duplicates,
    "handle": handle.handle,
    "latency": latency.latency,
    "deliver": deliver.deliver,
    "fanout": deliver.fanout,
    "isolation": isolation.isolation,
    "both": both.both,
    "spool": spool.spool,
    "console": console.console,
}
"""Each bench takes a stage and the seconds one measurement may last, and returns its figures."""
_STOPS_THE_SERVER: Final = {"spool"}
_ONLY_READS: Final = {"console"}


def run(
    name: str,
    *,
    seconds: float = 6.0,
    events: int = 100_000,
    database_url: str = "",
    report: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Run one bench and return its figures.

    Args:
        name: one of `BENCHES`.
        seconds: how long a single measurement lasts; a bench makes up to a dozen.
        events: how long a history `console` looks at.
        database_url: a PostgreSQL whose role may create databases; empty starts an embedded one, as do benches that
            have to stop it.
        report: hears what is being measured.

    Raises:
        ConfigError: there is no such bench, or something it needs is missing.
    """
    if name not in BENCHES:
        raise ConfigError(f"there is no bench {name!r}; choose one of {', '.join(BENCHES)}")
    url = "" if name in _STOPS_THE_SERVER else database_url
    with Stage(url, report, events=events, is_log_filled=name not in _ONLY_READS) as stage:
        return {"bench": name, **BENCHES[name](stage, seconds)}
