"""How far long work has come, on a terminal."""

from collections.abc import Callable

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from boathook.cli.context import err


class Progress:
    """A bar on a terminal, or a running count where it is not known how much there is to do; elsewhere silence."""

    def __init__(self, title: str, total: int | None = None) -> None:
        columns = (TextColumn(title), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._bar = Bar(*columns, console=err, transient=True, disable=not err.is_terminal)
        self._task = self._bar.add_task(title, total=total)

    def __enter__(self) -> Callable[[int], None]:
        """Show it, and return what is told how much is done."""
        self._bar.start()
        return self._report

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def _report(self, done: int) -> None:
        self._bar.update(self._task, completed=done)
