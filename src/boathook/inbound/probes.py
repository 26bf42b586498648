"""What operators and their machines ask a gateway: is it alive, is it ready, does it work, what has it counted."""

import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, Generic, TypeVar

from boathook.domain.errors import BoathookError
from boathook.domain.model import Grade
from boathook.inbound.app import Asgi, Receive, Send
from boathook.inbound.arrival import Arrivals
from boathook.inbound.condition import ANSWER_WITHIN_S, journal_problems
from boathook.inbound.gates import Gate
from boathook.inbound.intake import Intake, Mode
from boathook.inbound.limits import Connections
from boathook.inbound.verify import Rejected, Request, Verified
from boathook.journal.database import Database
from boathook.journal.rehearsal import rehearse
from boathook.telemetry.exporters import History, to_prometheus

_PROMETHEUS: Final = b"text/plain; version=0.0.4; charset=utf-8"
_JSON: Final = b"application/json"

_COUNTED_S: Final = 1.0
"""How old an answer that tells what was counted may be; files of other processes are as old."""
_LOOKED_S: Final = 0.25
"""How old a look at the journal may be; who asks meanwhile gets what the first one found."""

Reply = tuple[int, bytes, bytes]
"""Status, content type and body."""
Answer = TypeVar("Answer")


class _Shared(Generic[Answer]):
    """One answer for all who ask at about the same time."""

    def __init__(self, find: Callable[[], Awaitable[Answer]], keep_s: float) -> None:
        self._find, self._keep_s = find, keep_s
        self._finding: asyncio.Task[Answer] | None = None
        self._until = 0.0

    async def get(self) -> Answer:
        """Return the answer that is being found, or was found lately; else find one."""
        if self._finding is None or (self._finding.done() and time.monotonic() >= self._until):
            self._finding = asyncio.create_task(self._renewed())
        return await asyncio.shield(self._finding)

    async def _renewed(self) -> Answer:
        found = await self._find()
        self._until = time.monotonic() + self._keep_s
        return found


class Probes:
    """Answers every path that is no source's.

    Args:
        database: gives the journal's connections; None while PostgreSQL has not been reached yet.
        intake: None where nothing is taken in yet.
        connections: those of the listener.
        console_problem: says what keeps the API and the console from answering, None where nothing does.
        is_draining: whether the gateway is stopping.
    """

    def __init__(
        self,
        history: History,
        *,
        is_draining: Callable[[], bool],
        database: Callable[[], Database | None] = lambda: None,
        intake: Intake | None = None,
        gates: Iterable[Gate] = (),
        arrivals: Arrivals | None = None,
        fallback: Asgi | None = None,
        connections: Connections | None = None,
        console_problem: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._history = history
        self._is_draining = is_draining
        self._find_database = database
        self._intake = intake
        self._gates = {gate.source: gate for gate in gates}
        self._arrivals = arrivals
        self._fallback = fallback
        self._connections = connections
        self._console_problem = console_problem
        self._pages: dict[str, Callable[[], Awaitable[Reply]]] = {
            "/healthz": self._health,
            "/readyz": self._readiness,
            "/selftest": _Shared(self._selftest, 0).get,
            "/metrics": _Shared(self._prometheus, _COUNTED_S).get,
            "/metrics.json": _Shared(self._metrics, _COUNTED_S).get,
            "/metrics/history": _Shared(self._last_hour, _COUNTED_S).get,
        }
        self._journal_problems = _Shared(self._look_at_journal, _LOOKED_S)

    @property
    def _database(self) -> Database | None:
        return self._find_database()

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Answer one HTTP request."""
        page = self._pages.get(scope["path"])
        if page is None:
            if self._fallback is not None:
                await self._fallback(scope, receive, send)
                return
            status, kind, body = 404, _JSON, b'{"ok":false,"error":"not found"}'
        elif scope["method"] not in {"GET", "HEAD"}:
            status, kind, body = 405, _JSON, b'{"ok":false,"error":"method not allowed"}'
        else:
            status, kind, body = await page()
        headers = [(b"content-type", kind), (b"cache-control", b"no-store")]
        if status == 405:
            headers.append((b"allow", b"GET, HEAD"))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _health(self) -> Reply:
        return 200, _JSON, _dump({"ok": True, "pid": os.getpid()})

    async def _readiness(self) -> Reply:
        problems = []
        if self._is_draining():
            problems.append("stopping")
        journal = await self._journal_problems.get()
        takes = self._intake is not None and self._intake.takes_without_journal
        if not takes:
            problems += journal
        notes = list(journal) if takes else []
        if (console := self._console_problem()) is not None:
            # Without PostgreSQL nothing but the intake can work, and that is to go on.
            (notes or problems).append(console)
        if self._intake is not None and self._intake.is_refusing:
            problems.append("the spool takes no events: its disk is full, fails or does not answer")
        if self._connections is not None and self._connections.is_scarce:
            count = f"{self._connections.total:,} of {self._connections.most:,} connections are open"
            notes.append(f"{count}; idle ones are closed for new clients")
        if self._database is not None:
            notes += self._database.pulse.safety.weak
        return 503 if problems else 200, _JSON, _dump({"ok": not problems, "problems": problems, "notes": notes})

    async def _look_at_journal(self) -> list[str]:
        return await journal_problems(self._database)

    async def _selftest(self) -> Reply:
        checks = [await _timed("journal", self._check_journal()), await _timed("accept", self._check_accept())]
        if self._intake is not None and self._intake.spool is not None:
            checks.append(await _timed("spool", self._check_spool(self._intake)))
        checks += [await _timed(f"source {gate.source}", _check_gate(gate)) for gate in self._gates.values()]
        is_ok = all(check["ok"] for check in checks)
        return 200 if is_ok else 503, _JSON, _dump({"ok": is_ok, "checks": checks})

    async def _check_journal(self) -> str | None:
        return "; ".join(await journal_problems(self._database)) or None

    async def _check_accept(self) -> str | None:
        if self._database is None or self._arrivals is None:
            return "PostgreSQL has not been reached yet"
        now = time.time()
        verified = Verified(
            grade=Grade.NONE,
            type="boathook.selftest",
            dedup_key=f"selftest:{now}:{os.urandom(8).hex()}",
            replay_material=None,
            volatile=(),
            kept_headers={},
            timestamp=None,
        )
        event = self._arrivals.event("boathook.selftest", verified, b"{}", "application/json", now)
        (event,) = await self._arrivals.route_again([event])
        return await rehearse(self._database, event, self._arrivals.new_id(now))

    async def _check_spool(self, intake: Intake) -> str | None:
        if intake.spool is None:
            return None
        await intake.spool.rehearse()
        if intake.mode is not Mode.DIRECT:
            return f"{intake.spool.depth.records} events wait in the spool, as PostgreSQL does not take them"
        return None

    async def _prometheus(self) -> Reply:
        return 200, _PROMETHEUS, to_prometheus(self._history.now()).encode()

    async def _metrics(self) -> Reply:
        return 200, _JSON, _dump(self._history.to_json())

    async def _last_hour(self) -> Reply:
        return 200, _JSON, _dump({"minutes": self._history.last_hour()})


async def _timed(name: str, check: Awaitable[str | None]) -> dict[str, Any]:
    started = time.monotonic()
    try:
        problem = await asyncio.wait_for(check, ANSWER_WITHIN_S)
    except (BoathookError, TimeoutError) as error:
        problem = str(error) or "no answer in time"
    spent_ms = round((time.monotonic() - started) * 1000, 2)
    return {"name": name, "ok": problem is None, "ms": spent_ms, "problem": problem}


async def _check_gate(gate: Gate) -> str | None:
    """Knock with a request that nobody signed: only a source that says `unsigned` may let it in."""
    path = f"/in/{gate.source}"
    request = Request(
        method="POST", url=f"http://localhost{path}", path=path, query="", headers={}, body=b"{}", client="127.0.0.1"
    )
    verdict = gate.verifier.verify(request, time.time())
    if not gate.is_unsigned and not isinstance(verdict, Rejected):
        return "a request without any proof was let in"
    return None


def _dump(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"
