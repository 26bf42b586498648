"""The garbage collector of a child process: off while the process starts, and blind from then on to what that made.

Nothing is collected in between: of a hundred thousand objects two in a hundred could go, and looking for them takes
as long as importing a large library.
"""

import gc


def finish_startup() -> None:
    """Let the collector work, and leave what start-up made out of every collection."""
    gc.freeze()
    gc.enable()


def tune_for_latency() -> None:
    """Do the same, and collect seldom: each collection shows in the slowest answers."""
    finish_startup()
    gc.set_threshold(10_000, 20, 50)
