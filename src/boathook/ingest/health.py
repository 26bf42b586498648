"""Serves the health endpoints of a gateway: liveness, readiness, self-test and metrics."""

import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Generic, TypeVar

from boathook.db.database import Database
from boathook.db.events import run_self_test
from boathook.db.health import CHECK_TIMEOUT_S, NOT_REACHED, database_problems
from boathook.db.metric_samples import read_since
from boathook.domain.errors import BoathookError, DatabaseError
from boathook.domain.model import ProofStrength
from boathook.http.asgi import Asgi, Receive, Send
from boathook.http.limits import ConnectionLimiter
from boathook.ingest.event_builder import EventBuilder
from boathook.ingest.intake import Intake, Mode
from boathook.ingest.sources import CompiledSource
from boathook.observability.exposition import history_to_json, to_json, to_prometheus
from boathook.observability.live_metrics import LiveMetrics
from boathook.verification.verifier import Rejected, Request, Verified

_PROMETHEUS: Final = b"text/plain; version=0.0.4; charset=utf-8"
_JSON: Final = b"application/json"

METRICS_MAX_AGE_S: Final = 1.0
"""Maximum age of a cached metrics response; metric files of other processes are as old."""
_HISTORY_MAX_AGE_S: Final = 5.0
"""Maximum age of a cached response about the last hour: hosts add a sample every ten seconds."""
_READINESS_MAX_AGE_S: Final = 0.25
"""Maximum age of a database check; concurrent requests share its result."""

Response = tuple[int, bytes, bytes]
"""Status, content type and body."""
Result = TypeVar("Result")

_NO_HISTORY: Final = 503, _JSON, b'{"ok":false,"error":"PostgreSQL does not answer"}\n'


class _SharedResult(Generic[Result]):
    """Shares one result among concurrent and closely following callers."""

    def __init__(self, find: Callable[[], Awaitable[Result]], keep_s: float) -> None:
        self._find, self._keep_s = find, keep_s
        self._finding: asyncio.Task[Result] | None = None
        self._until = 0.0

    async def get(self) -> Result:
        """Return the cached or pending result; compute a new one if it has expired."""
        if self._finding is None or (self._finding.done() and time.monotonic() >= self._until):
            self._finding = asyncio.create_task(self._renewed())
        return await asyncio.shield(self._finding)

    async def _renewed(self) -> Result:
        health = await self._find()
        self._until = time.monotonic() + self._keep_s
        return health


class HealthEndpoints:
    """Serves every path that belongs to no source.

    Args:
        live_metrics: the metrics of this host.
        is_draining: whether the gateway is stopping.
        database: returns the database; None until PostgreSQL has been reached.
        database_problem: returns why there is no database.
        intake: None if the process accepts no events yet.
        compiled_sources: returns the sources for the self-test, by name.
        event_builder: builds the event of the self-test; None until PostgreSQL has been reached.
        fallback: serves the paths that are not health endpoints; None answers 404.
        connections: the connection limiter of the listener.
        interfaces_problem: returns why the API and the pages cannot answer, or None.
    """

    def __init__(
        self,
        live_metrics: LiveMetrics,
        *,
        is_draining: Callable[[], bool],
        database: Callable[[], Database | None] = lambda: None,
        database_problem: Callable[[], str] = lambda: NOT_REACHED,
        intake: Intake | None = None,
        compiled_sources: Callable[[], Mapping[str, CompiledSource]] = dict,
        event_builder: EventBuilder | None = None,
        fallback: Asgi | None = None,
        connections: ConnectionLimiter | None = None,
        interfaces_problem: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._live_metrics = live_metrics
        self._is_draining = is_draining
        self._find_database = database
        self._database_problem = database_problem
        self._intake = intake
        self._find_sources = compiled_sources
        self._event_builder = event_builder
        self._fallback = fallback
        self._connections = connections
        self._interfaces_problem = interfaces_problem
        self._pages: dict[str, Callable[[], Awaitable[Response]]] = {
            "/healthz": self._health,
            "/readyz": self._readiness,
            "/selftest": _SharedResult(self._selftest, 0).get,
            "/metrics": _SharedResult(self._prometheus, METRICS_MAX_AGE_S).get,
            "/metrics.json": _SharedResult(self._metrics, METRICS_MAX_AGE_S).get,
            "/metrics/history": _SharedResult(self._last_hour, _HISTORY_MAX_AGE_S).get,
        }
        self._database_problems = _SharedResult(self._find_database_problems, _READINESS_MAX_AGE_S)

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

    async def _health(self) -> Response:
        return 200, _JSON, _dump({"ok": True, "pid": os.getpid()})

    async def _readiness(self) -> Response:
        problems = []
        if self._is_draining():
            problems.append("stopping")
        database_issues = await self._database_problems.get()
        takes = self._intake is not None and self._intake.accepts_without_database
        if not takes:
            problems += database_issues
        notes = list(database_issues) if takes else []
        if (problem := self._interfaces_problem()) is not None:
            # Without PostgreSQL, only the intake can work, and it must continue.
            (notes or problems).append(problem)
        if self._intake is not None and self._intake.is_rejecting:
            problems.append(self._intake.rejection_reason)
        if self._intake is not None and self._intake.buffer is not None and self._intake.buffer.warning:
            notes.append(self._intake.buffer.warning)
        if self._connections is not None and self._connections.is_nearly_full:
            count = f"{self._connections.total:,} of {self._connections.max_total:,} connections are open"
            notes.append(f"{count}; idle ones are closed for new clients")
        if self._database is not None:
            notes += self._database.monitor.safety.weak
        return 503 if problems else 200, _JSON, _dump({"ok": not problems, "problems": problems, "notes": notes})

    async def _find_database_problems(self) -> list[str]:
        database = self._database
        return [self._database_problem()] if database is None else await database_problems(database)

    async def _selftest(self) -> Response:
        checks = [await _timed("database", self._check_database()), await _timed("accept", self._check_accept())]
        if self._intake is not None and self._intake.buffer is not None:
            checks.append(await _timed("spool", self._check_buffer(self._intake)))
        checks += [
            await _timed(f"source {compiled.source}", check_source(compiled))
            for compiled in self._find_sources().values()
        ]
        is_ok = all(check["ok"] for check in checks)
        return 200 if is_ok else 503, _JSON, _dump({"ok": is_ok, "checks": checks})

    async def _check_database(self) -> str | None:
        return "; ".join(await self._find_database_problems()) or None

    async def _check_accept(self) -> str | None:
        if self._database is None or self._event_builder is None:
            return self._database_problem()
        now = time.time()
        verified = Verified(
            grade=ProofStrength.NONE,
            type="boathook.selftest",
            dedup_key=f"selftest:{now}:{os.urandom(8).hex()}",
            replay_material=None,
            volatile=(),
            kept_headers={},
            timestamp=None,
        )
        event = self._event_builder.event("boathook.selftest", verified, b"{}", "application/json", now)
        (event,) = await self._event_builder.reroute([event])
        return await run_self_test(self._database, event, self._event_builder.new_id(now))

    async def _check_buffer(self, intake: Intake) -> str | None:
        if intake.buffer is None:
            return None
        await intake.buffer.check_writable()
        if intake.mode is Mode.DIRECT:
            return None
        reason = "because PostgreSQL does not accept them" if intake.mode is Mode.SPOOLING else "for older ones"
        return f"{intake.buffer.waiting_events} events wait to be stored, {reason}"

    async def _prometheus(self) -> Response:
        # Rendering a thousand series takes milliseconds; keep it off the event loop.
        return 200, _PROMETHEUS, await asyncio.to_thread(lambda: to_prometheus(self._live_metrics.now()))

    async def _metrics(self) -> Response:
        now = self._live_metrics.now()
        return 200, _JSON, _dump(to_json(now, self._live_metrics.recent(now)))

    async def _last_hour(self) -> Response:
        database = self._database
        if database is None:
            return _NO_HISTORY
        try:
            samples = await read_since(database, datetime.now(UTC) - timedelta(hours=1), 60)
        except DatabaseError:
            return _NO_HISTORY
        minutes = history_to_json((sample.at.timestamp(), sample.snapshot) for sample in samples)
        return 200, _JSON, _dump({"minutes": minutes})


async def _timed(name: str, check: Awaitable[str | None]) -> dict[str, Any]:
    started = time.monotonic()
    try:
        problem = await asyncio.wait_for(check, CHECK_TIMEOUT_S)
    except (BoathookError, TimeoutError) as error:
        problem = str(error) or "no answer in time"
    spent_ms = round((time.monotonic() - started) * 1000, 2)
    return {"name": name, "ok": problem is None, "ms": spent_ms, "problem": problem}


async def check_source(compiled: CompiledSource) -> str | None:
    """Send an unsigned request: only a source configured as `unsigned` may accept it."""
    path = f"/in/{compiled.source}"
    request = Request(
        method="POST", url=f"http://localhost{path}", path=path, query="", headers={}, body=b"{}", client="127.0.0.1"
    )
    # In a thread, because a schema may take long for any body.
    verdict = await asyncio.to_thread(compiled.verifier.verify, request, time.time())
    if not compiled.is_unsigned and not isinstance(verdict, Rejected):
        return "a request without any proof was accepted"
    return None


def _dump(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"
