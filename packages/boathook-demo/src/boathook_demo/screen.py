"""The demo's output: a live table, the consistency check, and suggestions for next steps."""

import asyncio
import contextlib
import json
import os
import shlex
import shutil
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from boathook.db.database import Database
from boathook.db.integrity import IntegrityReport
from boathook.domain.errors import DatabaseUnavailable
from boathook.testing import sign
from boathook_demo import reconciliation
from boathook_demo.customer import ReceiverLog
from boathook_demo.folder import Folder
from boathook_demo.outage import Outage
from boathook_demo.reconciliation import States
from boathook_demo.sample_events import SenderLog, SendResult
from boathook_demo.systems import SimulationResult

_ISSUE = {"id": 1, "number": 1, "title": "Hello from a shell", "state": "open", "updated_at": "2026-01-01T00:00:00Z"}
_GITHUB = {"action": "opened", "issue": _ISSUE}
_DELIVERY = "4c8f1d52-7a3b-4e7e-9a53-0d7a3d2f1b60"
_STRIPE = {"id": "evt_hello_from_a_shell", "type": "payment_intent.succeeded", "data": {"object": {"amount": 4200}}}


def write(folder: Folder, port: int, secret: str, *, is_serving: bool, has_apps: bool) -> Iterator[str]:
    """Yield the lines to print; *secret* is that of the source github."""
    program = _program()
    command = f"{program} --config {_relative(folder.configuration)}"
    if is_serving:
        yield "# What to try next, in another terminal. This boathook keeps running until Ctrl-C."
    else:
        yield "# What to try next. boathook has stopped; this starts it again on the same data, until Ctrl-C:"
        yield f"{command} serve"
        yield ""
        yield "# Then, in another terminal:"
    yield "# an event as GitHub signs it, over the body alone, so the line works for ever; again, it is a duplicate"
    yield _github(port, secret)
    yield "# one as Stripe signs it, over the time and the body"
    yield _stripe(port, folder.secret_file("stripe"))
    yield ""
    yield "# What there is, and what is to be decided:"
    yield f"{command} events list --limit 5"
    yield f"{command} dead list --limit 5"
    yield f"{command} dead replay --all --yes"
    yield f"{command} rejections list --limit 5"
    yield f"{command} check"
    if not has_apps:
        return
    yield ""
    yield "# The four systems: who has paid, which cars there are, which songs were made"
    yield f"{command} billing subscriptions --json"
    yield f"{command} fleet cars"
    yield f"{command} music tracks list"
    yield f"# the cash registers' cabinet is http://127.0.0.1:{port}/cabinet/ and requires the token that this prints"
    yield f"{command} cashdesk users add 'Tea & Co'"


def _github(port: int, secret: str) -> str:
    body = json.dumps(_GITHUB)
    headers = sign("github", secret, body.encode(), id=_DELIVERY) | {"x-github-event": "issues"}
    options = " ".join(f"-H {shlex.quote(f'{name}: {value}')}" for name, value in headers.items())
    return f"curl -sS http://127.0.0.1:{port}/in/github {options} -d {shlex.quote(body)}; echo"


def _stripe(port: int, secret: Path) -> str:
    body = json.dumps(_STRIPE)
    return (
        f"body={shlex.quote(body)}; t=$(date +%s); "
        f'v1=$(printf \'%s.%s\' "$t" "$body" | openssl dgst -sha256 -hmac "$(cat {_relative(secret)})" '
        "| sed 's/.* //'); "
        f"curl -sS http://127.0.0.1:{port}/in/stripe -H 'content-type: application/json' "
        '-H "stripe-signature: t=$t,v1=$v1" -d "$body"; echo'
    )


def _relative(path: Path) -> str:
    """Quote *path* for a shell, relative to the working folder if it is below it."""
    return shlex.quote(os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path))


def _program() -> str:
    """Return the command that starts this boathook in the current shell."""
    script = Path(sys.executable).parent / "boathook"
    path = shutil.which("boathook")
    if path is not None and Path(path).absolute() == script:
        return "boathook"
    return _relative(script) if script.exists() else f"{shlex.quote(sys.executable)} -m boathook"


_REFRESH_INTERVAL_S = 0.5
_LINE_INTERVAL_S = 2.0
_RATE_WINDOW_S = 5.0
_MAX_COMPLAINTS = 10
_MAX_COMPLAINT_CHARS = 200

_ANSWERS = (SendResult.ACCEPTED, SendResult.DUPLICATE, SendResult.CONFLICT, SendResult.REJECTED)
_STATES = ("succeeded", "ignored", "retrying", "dead", "waiting")
_STYLES = {
    "accepted": "green",
    "succeeded": "green",
    "conflict": "yellow",
    "retrying": "yellow",
    "rejected": "red",
    "dead": "red",
}


@dataclass(frozen=True, slots=True)
class ScreenData:
    """The figures shown at one time."""

    sender_log: SenderLog
    states: States
    published: int
    rate: float
    """Requests answered per second, recently."""

    def numbers(self, source: str) -> list[int]:
        """Return a source's figures in the order of the columns; the empty name stands for published events.

        Deliveries to endpoints belong to events that are counted at their source.
        """
        accepted = 0 if source == reconciliation.ENDPOINTS else self.published
        replies = self.sender_log.replies.get(source, Counter({SendResult.ACCEPTED: accepted}))
        states: Counter[str] = self.states.get(source, Counter())
        return [replies[reply] for reply in _ANSWERS] + [states[state] for state in _STATES]

    def totals(self) -> dict[str, int]:
        """Return the figures over all sources, by column."""
        rows = [self.numbers(source) for source in (*self.sender_log.replies, "", reconciliation.ENDPOINTS)]
        return dict(zip((*map(str, _ANSWERS), *_STATES), map(sum, zip(*rows, strict=True)), strict=True))

    @property
    def rate_summary(self) -> str:
        """The rate and the senders' response times, as text."""
        p50, p99 = self.sender_log.wait_ms(0.5), self.sender_log.wait_ms(0.99)
        return f"{self.rate:.0f} requests/s   ack p50 {p50:.1f} ms   p99 {p99:.1f} ms"


class Screen:
    """Updates the live table; without a terminal, prints a line periodically."""

    def __init__(self, console: Console, database: Database, sender_log: SenderLog) -> None:
        self._console = console
        self._database = database
        self._sender_log = sender_log
        self._marks: deque[tuple[float, int]] = deque()
        self._stored: tuple[States, int] = {}, 0
        self.footer = ""
        """The line below the table."""

    async def read_figures(self) -> ScreenData:
        """Read the current figures; those of the store stay as they were while PostgreSQL is stopped."""
        now = time.monotonic()
        self._marks.append((now, self._sender_log.answered))
        while now - self._marks[0][0] > _RATE_WINDOW_S:
            self._marks.popleft()
        (start, before), (end, after) = self._marks[0], self._marks[-1]
        with contextlib.suppress(DatabaseUnavailable):
            self._stored = await reconciliation.count_states(self._database)
        rate = (after - before) / max(end - start, _REFRESH_INTERVAL_S)
        return ScreenData(self._sender_log, *self._stored, rate)

    async def show(self, is_over: asyncio.Event) -> None:
        """Show the figures until *is_over* is set, then the final figures."""
        self._marks.append((time.monotonic(), self._sender_log.answered))
        if self._console.is_terminal:
            with Live(await self._frame(), console=self._console, auto_refresh=False) as live:
                while not await _is_set(is_over, _REFRESH_INTERVAL_S):
                    live.update(await self._frame(), refresh=True)
                live.update(_table(await self.read_figures()), refresh=True)
            return
        while not await _is_set(is_over, _LINE_INTERVAL_S):
            self._console.print(_line(await self.read_figures()), soft_wrap=True)
        self._console.print(_table(await self.read_figures()))

    async def _frame(self) -> RenderableType:
        return Group(_table(await self.read_figures()), Text(self.footer, style="dim"))


async def _is_set(event: asyncio.Event, seconds: float) -> bool:
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return False
    return True


def _table(view: ScreenData) -> Table:
    """Draw the figures, one per row, so that the table fits a terminal of 80 columns."""
    sources = (*view.sender_log.replies, "", reconciliation.ENDPOINTS)
    columns = [view.numbers(source) for source in sources]
    table = Table(box=box.SIMPLE_HEAD, caption=view.rate_summary, caption_justify="left", pad_edge=False)
    table.add_column("", min_width=9)
    for name in (*(source or "published" for source in sources), "all"):
        table.add_column(name, justify="right", min_width=6, style="bold" if name == "all" else "")
    for row, (name, total) in enumerate(view.totals().items()):
        numbers = [str(column[row]) if column[row] else "·" for column in columns]
        table.add_row(name, *numbers, str(total), style=_STYLES.get(name, "") if total else "dim")
        if row == len(_ANSWERS) - 1:
            table.add_section()
    return table


def _line(view: ScreenData) -> Text:
    figures = "  ".join(f"{name} {number}" for name, number in view.totals().items())
    return Text(f"{figures}  {view.rate_summary}")


def print_books(
    console: Console,
    books: IntegrityReport,
    sender_log: SenderLog,
    complaints: list[str],
    records: Mapping[str, ReceiverLog],
) -> None:
    """Print the results of both checks, and all differences."""
    console.print(_balance(books))
    console.print(_verdict(books, sender_log, complaints))
    if not complaints:
        console.print(_sent(records, is_once=not sender_log.had_outage))
    _print_complaints(console, "ledger", complaints)
    for violation in books.violations:
        examples = ", ".join(map(str, violation.examples))
        text = f"  check: {violation.check}: {violation.count}. {violation.meaning} {examples}"
        console.print(Text(text), soft_wrap=True)


def print_systems(console: Console, outcomes: Mapping[str, SimulationResult]) -> None:
    """Print the four systems' own reports, and all their complaints."""
    table = Table(title="The four systems", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("", "sent", "taken", "refused", "result", "books"):
        table.add_column(name, justify="right" if name in {"sent", "taken", "refused"} else "left")
    for name, outcome in outcomes.items():
        numbers = (str(number) for number in (outcome.sent, outcome.taken, outcome.sent - outcome.taken))
        table.add_row(name, *numbers, outcome.summary, _books_of(outcome))
    console.print()
    console.print(table)
    if not any(outcome.complaints for outcome in outcomes.values()):
        console.print(Text("Each receiver's own record matches all that was sent to it.", style="green"))
    for name, outcome in outcomes.items():
        if not outcome.is_finished:
            console.print(Text(f"  {name}: not finished yet; what differs so far:"), soft_wrap=True)
        _print_complaints(console, name, outcome.complaints)


def print_outage(console: Console, outage: Outage) -> None:
    """Print what became of the senders' requests while PostgreSQL was stopped."""
    console.print()
    if outage.seconds and not outage.complaints:
        text = (
            f"PostgreSQL was stopped for {outage.seconds:.0f} s: {outage.buffered} events waited with RabbitMQ, and"
            f" {outage.answered} requests were\n"
            "answered 2xx until it had them all. No genuine request got another answer."
        )
        console.print(Text(text, style="green"))
    _print_complaints(console, "outage", outage.complaints)


def print_services(console: Console, lines: Sequence[tuple[str, bool]]) -> None:
    """Print what was done with the servers beside PostgreSQL."""
    for sentence, is_used in lines:
        console.print(Text(f"{sentence}.", style="green" if is_used else "bold red"), soft_wrap=True)


def _books_of(outcome: SimulationResult) -> Text:
    if not outcome.is_finished:
        return Text("not finished yet", style="yellow")
    return Text("differ", style="bold red") if outcome.complaints else Text("agree", style="green")


def _print_complaints(console: Console, server: str, complaints: Sequence[str]) -> None:
    for complaint in complaints[:_MAX_COMPLAINTS]:
        text = complaint if len(complaint) <= _MAX_COMPLAINT_CHARS else complaint[: _MAX_COMPLAINT_CHARS - 1] + "…"
        console.print(Text(f"  {server}: {text}"), soft_wrap=True)
    if len(complaints) > _MAX_COMPLAINTS:
        console.print(f"  {server}: and {len(complaints) - _MAX_COMPLAINTS} more")


def _balance(report: IntegrityReport) -> Table:
    balance = report.balance
    finished = balance.succeeded + balance.ignored + balance.dead
    table = Table(title="Totals", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name, justify in (("what came in", "left"), ("", "right"), ("what became of it", "left"), (" ", "right")):
        table.add_column(name, justify="right" if justify == "right" else "left")
    rows = (
        ("events received", balance.received, "succeeded", balance.succeeded),
        ("events published", balance.published, "ignored, with a reason", balance.ignored),
        ("rejected", balance.rejections, "dead letters", balance.dead),
        ("conflicts kept", balance.conflicting_requests, "still open", balance.pending + balance.leased),
        ("attempts made", balance.attempts, "missing", balance.missing),
    )
    for label, number, right, other in rows:
        table.add_row(label, str(number), right, str(other))
    table.add_section()
    created = balance.deliveries + balance.replayed
    there = finished + balance.pending + balance.leased + balance.purged
    table.add_row("deliveries created", str(created), "deliveries there", str(there), style="bold")
    return table


def _sent(records: Mapping[str, ReceiverLog], *, is_once: bool) -> Text:
    accepted = sum(len(record.taken) for record in records.values())
    unavailable_count = sum(record.unavailable_count for record in records.values())
    return Text(
        f"A customer's server has verified {accepted} messages at {len(records)} addresses{', each once' * is_once};\n"
        f"while one of them was down it turned {unavailable_count} requests away.",
        style="green",
    )


def _verdict(report: IntegrityReport, sender_log: SenderLog, complaints: list[str]) -> Text:
    sent, forged = sum(sent_event.is_acknowledged for sent_event in sender_log.sent.values()), len(sender_log.forged)
    if report.is_consistent and not complaints:
        return Text(
            f"The store is consistent ({report.checks} checks) and matches the senders' own record:\n"
            f"each of the {sent} events answered 2xx is stored once and has had its effects once,\n"
            f"and none of {forged} forgeries became an event.",
            style="green",
        )
    return Text(
        f"Inconsistent: {len(report.violations)} of {report.checks} checks of the store, and "
        f"{len(complaints)} entries of the senders' record.",
        style="bold red",
    )
