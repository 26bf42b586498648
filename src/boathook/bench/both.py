"""Taking in and delivering at once, against taking in alone: every event that comes in goes out to an endpoint."""

import asyncio
import time
from pathlib import Path
from statistics import median
from typing import Any, Final

from boathook.bench.ingest import CONNECTIONS
from boathook.bench.load import TYPES, Load, drive, prepare
from boathook.bench.posting import PLACES, urls
from boathook.bench.receivers import SETTINGS, Field, lay_out, relay, wait_for_all
from boathook.bench.stage import Stage
from boathook.domain.errors import ConfigError

_PER_SECOND: Final = 30_000
_ROUNDS: Final = 3


def both(stage: Stage, seconds: float) -> dict[str, Any]:
    """Take requests in as fast as they come, with a sender beside and without, in turn.

    With a sender beside, time runs until the last of the events is delivered, so that no backlog flatters the figure.
    """
    alone, beside = [], []
    for number in range(_ROUNDS):
        with stage.corpus() as corpus:
            stage.report(f"round {number + 1} of {_ROUNDS}: signing requests")
            prepare(corpus, int(_PER_SECOND * seconds), parts=1)
            stage.report("  taking in alone")
            alone.append(_take_in(stage, corpus, seconds, roles="gateway,keeper"))
            stage.report("  taking in and delivering")
            beside.append(_take_in(stage, corpus, seconds, roles="gateway,worker,keeper"))
    return {
        "ratio_to_ceiling": round(median(b / a for b, a in zip(beside, alone, strict=True)), 3),
        "both_per_s": round(median(beside)),
        "ingest_alone_per_s": round(median(alone)),
        "connections": CONNECTIONS,
    }


def _take_in(stage: Stage, corpus: Path, seconds: float, *, roles: str) -> float:
    """Return events a second: taken in, and where there is a sender, delivered too."""
    with stage.module("sink", str(PLACES)) as sink:
        field = lay_out(stage, urls(sink.port, len(TYPES)))
        relay(field, "stripe", TYPES)
        with stage.serve(field.database_url, roles=roles, app="", more=SETTINGS) as server:
            load = drive(corpus, server.port, connections=CONNECTIONS, seconds=seconds)
            if load.refused or load.broken:
                raise ConfigError(f"{load.refused} requests of the bench were refused, {load.broken} broke")
            tail_s = _wait(field, load) if "worker" in roles else 0.0
    return load.requests / (load.seconds + tail_s)


def _wait(field: Field, load: Load) -> float:
    """Return the seconds until all that was taken in is delivered."""
    began = time.perf_counter()
    asyncio.run(wait_for_all(field, load.requests))
    return time.perf_counter() - began
