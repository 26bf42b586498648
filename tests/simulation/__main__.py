# ruff: noqa: T201 this is a program for a terminal
"""Replays one seed, or runs many: ``python -m tests.simulation --seed 7`` or ``--seeds 1-1000``, with ``--sending`` for those of sending."""

import argparse
import sys
import time
from collections.abc import Callable

from tests.simulation.runner import Result, replay_line, run, run_sending, simulating, tidy
from tests.simulation.sometimes import REACHED

Play = Callable[[int], Result]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="print the trace of this seed")
    parser.add_argument("--seeds", help="run these, such as 1-1000")
    parser.add_argument("--sending", action="store_true", help="run seeds of sending to endpoints")
    chosen = parser.parse_args()
    play = run_sending if chosen.sending else run
    with simulating():
        if chosen.seed is not None:
            return _show(chosen.seed, play)
        first, _, last = (chosen.seeds or "1-1000").partition("-")
        return _run_many(range(int(first), int(last or first) + 1), play)


def _show(seed: int, play: Play) -> int:
    result = play(seed)
    print("\n".join(result.trace))
    print(f"seed {seed}: {result.steps} steps, {result.virtual_s:.1f} virtual seconds, trace {result.hash}")
    for violation in result.violations:
        print(f"VIOLATION {violation}")
    return 1 if result.violations else 0


def _run_many(seeds: range, play: Play) -> int:
    began, steps, virtual_s, failed = time.process_time(), 0, 0.0, 0
    for count, seed in enumerate(seeds):
        result = play(seed)
        steps += result.steps
        virtual_s += result.virtual_s
        if result.violations:
            failed += 1
            print(f"{replay_line(seed, 'sending' if play is run_sending else '')}\n    {result.violations[0][:300]}")
        tidy(count)
    took_s = time.process_time() - began
    for what, number in sorted(REACHED.items()):
        print(f"{number:8} {what}")
    print(
        f"{len(seeds)} seeds, {failed} failed, {took_s:.1f} s of CPU: {len(seeds) / took_s * 60:.0f} seeds/min, "
        f"{steps / took_s:.0f} steps/s, {virtual_s / took_s:.0f} virtual seconds/s"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
