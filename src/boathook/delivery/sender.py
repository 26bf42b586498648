"""A sender process: finds what endpoints are owed, sends it signed, and records what came of it.

Four loops share the lanes of `delivery.endpoint_queues`. *Discovering* walks over endpoints with due work. *Claiming*
leases it, as far as places, rates and breakers allow, and hands it to the courier. *Settling* writes the answers in
batches. *Renewing* prolongs the leases held, as a request may take longer than one lasts.
"""

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

from boathook.config import Settings
from boathook.db.database import DUE_CHANNEL, Database, wait_for_database
from boathook.db.deliveries import DeliveryStore
from boathook.db.endpoint_deliveries import BreakerRules, ClaimedSend, EndpointDeliveryStore, FinishedSend
from boathook.db.secret_box import SecretBox, open_secret_box
from boathook.delivery.endpoint_queues import Attempt, ClaimRequest, EndpointQueue, EndpointQueues
from boathook.delivery.http_executor import HttpExecutor
from boathook.delivery.prepared_endpoint import prepare_endpoint
from boathook.delivery.result_writer import ResultWriter
from boathook.domain import ids
from boathook.domain.endpoints import read_retry
from boathook.domain.errors import DatabaseError
from boathook.domain.policy import Complete, DeadLetter, RetryAt
from boathook.observability import meters, tracing
from boathook.observability.failpoints import failpoint
from boathook.observability.log import get_logger

PACE_S: Final = 0.002
"""Shortest time between two claims."""
_IDLE_S: Final = 0.02
"""Shortest time between two looks, where the first found nothing."""
_PAGE: Final = 500
_SHARE: Final = 0.1
"""Discovering takes no more than this share of the time."""
_CONNECTIONS: Final = 4
_BEAT_S: Final = 0.5
_RENEW_AGAIN_S: Final = 1.0
"""Seconds after which leases are prolonged that could not be because PostgreSQL was away."""
_LAST_S: Final = 2.0
_LONGEST_PAUSE_S: Final = 1.0
_PROBE_HOLD_S: Final = 10.0
"""How long a probe belongs to its sender past the endpoint's timeout."""
_PROBE_AGAIN_S: Final = 1.0
_UNANSWERED_S: Final = 60.0
"""Past its endpoint's timeout, after which a request is given up that was not answered, not even as failed."""
_DAY_S: Final = 86_400.0


class Sender:
    """One process's sending, on connections it is given."""

    def __init__(self, settings: Settings, *, own: Database, secret_box: SecretBox, sender_id: str) -> None:
        outbound = settings.outbound
        self._settings = settings
        self._lease_s = settings.worker.lease_s
        self._poll_s = settings.worker.poll_s
        self._id = sender_id
        self._own = own
        self._secret_box = secret_box
        self._policy = read_retry(outbound.retry)
        self._store = EndpointDeliveryStore(own, worker=sender_id, is_traced=tracing.current() is not None)
        self._leases = DeliveryStore(own, endpoint_policy=self._policy)
        self._queues = EndpointQueues(outbound.concurrency, outbound.endpoint_concurrency)
        rules = BreakerRules(
            outbound.breaker_after,
            outbound.breaker_pause_s,
            outbound.breaker_longest_s,
            outbound.disable_after_days * _DAY_S,
        )
        self._result_writer = ResultWriter(self._store, rules, self._settled)
        self._held: set[Attempt] = set()
        """Everything under lease here."""
        self._unprepared: dict[UUID, EndpointQueue] = {}
        """Lanes with claims that are newer than what is known of their endpoint."""
        self._ahead = timedelta()
        """How far the journal's clock is ahead of this host's."""
        self._met = 0
        """Endpoints found due so far."""
        self._hint = asyncio.Event()
        self._wake = asyncio.Event()
        self._is_stopping = False
        self._executor: HttpExecutor | None = None
        self._log = get_logger("sender").bind(worker=sender_id)

    async def run(self, stop: asyncio.Event, beat: Callable[[], None], *, predecessors: Sequence[str] = ()) -> None:
        """Work until *stop* is set, then finish what is under way."""
        self._executor = executor = HttpExecutor(self._settings, now=self._now, done=self._ended, turn=self._turn)
        await self._own.listen(DUE_CHANNEL, lambda _payload: self._hint.set())
        loops = [
            self._discover(),
            self._claim(predecessors),
            self._result_writer.run(),
            self._renew(),
            self._beat(beat),
        ]
        tasks = [asyncio.create_task(loop) for loop in loops]
        stopping = asyncio.create_task(stop.wait())
        try:
            done, _ = await asyncio.wait([stopping, *tasks], return_when=asyncio.FIRST_COMPLETED)
            for task in done - {stopping}:
                task.result()
            await self._drain(tasks[:2])
        finally:
            executor.close()
            await _end([stopping, *tasks])

    async def _drain(self, feeding: Sequence["asyncio.Task[None]"]) -> None:
        """Start nothing more, give back what waits, let what is under way finish, and give back what does not."""
        self._is_stopping = True
        self._hint.set()
        self._wake.set()
        await asyncio.wait(feeding, timeout=_LAST_S)
        await _end(feeding)
        with contextlib.suppress(DatabaseError):
            await self._give_back(self._queues.empty())
        await self._until(lambda: not self._queues.running, self._settings.server.drain_s)
        await self._until(lambda: self._result_writer.is_idle, _LAST_S)
        with contextlib.suppress(DatabaseError):
            await self._give_back(list(self._held))

    @staticmethod
    async def _until(condition: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        # Two conditions at the end of a process need no event each.
        while not condition() and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    # Discovering

    async def _discover(self) -> None:
        while not self._is_stopping:
            self._hint.clear()
            next_at: datetime | None = None
            met = self._met
            try:
                next_at = await self._walk()
            except DatabaseError as error:
                self._log.warning("discover_failed", error=str(error))
                await self._own.monitor.wait_until_available()
            self._queues.remove_idle(time.monotonic())
            # Most announcements are meant for handlers, so a look that found nothing is not repeated at once.
            await asyncio.sleep(PACE_S if self._met > met else _IDLE_S)
            wait_s = self._poll_s if next_at is None else (next_at - self._now()).total_seconds()
            await _wait(self._hint, min(self._poll_s, max(PACE_S, wait_s)))

    async def _walk(self) -> datetime | None:
        """Look at all endpoints with pending work once; returns when the next of those not due will be."""
        after, next_at = "", None
        while not self._is_stopping:
            began = time.monotonic()
            page = await self._store.find_due(after, _PAGE)
            for due in page.due:
                await self._give_back(self._queues.upsert(due))
            if page.due:
                self._met += len(page.due)
                self._wake.set()
            next_at = min((at for at in (next_at, page.next_due_at) if at is not None), default=None)
            after = page.after
            await asyncio.sleep((time.monotonic() - began) / _SHARE)
            if not after:
                break
        return next_at

    # Claiming

    async def _claim(self, predecessors: Sequence[str]) -> None:
        pause_s = PACE_S
        while not self._is_stopping:
            wait_s = 0.0
            try:
                if predecessors:
                    await self._leases.reap(dead_workers=predecessors)
                    predecessors = ()
                wait_s = await self._claim_due()
                pause_s = PACE_S
            except DatabaseError as error:
                pause_s = min(_LONGEST_PAUSE_S, pause_s * 4)
                self._log.warning("claim_failed", error=str(error), pause_s=round(pause_s, 3))
                if self._own.monitor.is_unavailable:
                    await self._own.monitor.wait_until_available()
                    pause_s = PACE_S
            await asyncio.sleep(pause_s)
            if wait_s > 0:
                await _wait(self._wake, wait_s)

    async def _claim_due(self) -> float:
        """Claim once; returns the seconds until there may be more to claim, unless something happens before."""
        self._wake.clear()
        await self._prepare_endpoints()
        self._launch()
        await self._give_back(self._queues.paused(time.monotonic()))
        plans, wake_at = self._queues.plan(time.monotonic(), self._now())
        plans = await self._allowed(plans)
        if not plans:
            return self._poll_s if wake_at is None else max(PACE_S, min(self._poll_s, wake_at - time.monotonic()))
        began = time.monotonic()
        wants = [plan.queue.want(plan.slots, began, is_probe=plan.is_probe) for plan in plans]
        try:
            sends = await self._store.claim(wants, lease_s=self._lease_s)
        except DatabaseError:
            # Whether or not it was made: a probe that is not known here must not bar its lane for ever.
            _end_probes(plan.queue for plan in plans if plan.is_probe)
            raise
        if sends:
            failpoint("send.after_claim")
            self._ahead = sends[0].claimed_at - datetime.now(UTC)
        self._accept(plans, sends, began + self._lease_s)
        await self._return_unused(plans, sends)
        await self._prepare_endpoints()
        self._launch()
        return 0.0

    async def _allowed(self, plans: Sequence[ClaimRequest]) -> list[ClaimRequest]:
        """Keep of the plans what rates allow, and of probes those that this sender may make."""
        granted = await self._metered(plans)
        # A probe that no request may be made for would bar its lane.
        probes = await self._probes([plan.queue for plan in granted if plan.is_probe])
        refused = [plan for plan in granted if plan.is_probe and plan.queue.endpoint_id not in probes]
        await self._return_tokens([(plan.queue, plan.slots) for plan in refused])
        return [plan for plan in granted if plan not in refused]

    async def _metered(self, plans: Sequence[ClaimRequest]) -> list[ClaimRequest]:
        metered = [
            (plan.queue.endpoint_id, plan.slots, plan.queue.rate) for plan in plans if plan.queue.rate is not None
        ]
        tokens = await self._store.take_tokens(metered) if metered else {}
        granted = []
        for plan in plans:
            slots = plan.slots
            if plan.queue.rate is not None:
                slots, next_s = tokens.get(plan.queue.endpoint_id, (0, 1.0))
                if slots < plan.slots:
                    plan.queue.rate_limited_until = time.monotonic() + max(PACE_S, next_s)
            if slots:
                granted.append(ClaimRequest(plan.queue, slots, plan.is_probe))
        return granted

    async def _return_tokens(self, unused: Sequence[tuple[EndpointQueue, int]]) -> None:
        tokens = [
            (queue.endpoint_id, number, queue.rate) for queue, number in unused if queue.rate is not None and number > 0
        ]
        if tokens:
            await self._store.return_tokens(tokens)

    async def _probes(self, queues: Sequence[EndpointQueue]) -> set[UUID]:
        if not queues:
            return set()
        hold_s = self._settings.outbound.timeout_s + _PROBE_HOLD_S
        taken = await self._store.take_probes([queue.endpoint_id for queue in queues], hold_s=hold_s)
        for queue in queues:
            queue.is_probing = queue.endpoint_id in taken
            # Another sender has it; the next look tells how it went.
            queue.open_until = taken.get(queue.endpoint_id, self._now() + timedelta(seconds=_PROBE_AGAIN_S))
        return set(taken)

    def _accept(self, plans: Sequence[ClaimRequest], sends: Sequence[ClaimedSend], lease_until: float) -> None:
        attempts: dict[UUID, list[Attempt]] = {plan.queue.endpoint_id: [] for plan in plans}
        queues = {plan.queue.endpoint_id: plan.queue for plan in plans}
        for send in sends:
            queue = queues[send.endpoint_id]
            queue.is_unhealthy = send.is_unhealthy
            attempt = Attempt(send, queue, lease_until)
            attempts[send.endpoint_id].append(attempt)
            self._held.add(attempt)
            if queue.endpoint is None or not queue.endpoint.is_current(send.revision):
                queue.endpoint = None
                self._unprepared[queue.endpoint_id] = queue
        for plan in plans:
            self._queues.accept(plan, attempts[plan.queue.endpoint_id])

    async def _return_unused(self, plans: Sequence[ClaimRequest], sends: Sequence[ClaimedSend]) -> None:
        """Give back the tokens and the probes that no claim was made with."""
        used: dict[UUID, int] = {}
        for send in sends:
            used[send.endpoint_id] = used.get(send.endpoint_id, 0) + 1
        idle = [plan.queue for plan in plans if plan.is_probe and plan.queue.endpoint_id not in used]
        _end_probes(idle)
        await self._return_tokens([(plan.queue, plan.slots - used.get(plan.queue.endpoint_id, 0)) for plan in plans])
        if idle:
            held = {queue.endpoint_id: queue.open_until for queue in idle if queue.open_until is not None}
            await self._store.release_probes(held, after_s=_PROBE_AGAIN_S)
            for queue in idle:
                queue.open_until = self._now() + timedelta(seconds=_PROBE_AGAIN_S)

    async def _prepare_endpoints(self) -> None:
        """Find out where the claims go whose endpoint was changed since the last one; until then they wait."""
        if not self._unprepared:
            return
        addresses = await self._store.load(list(self._unprepared), self._secret_box)
        timeout_s = self._settings.outbound.timeout_s
        for key, queue in list(self._unprepared.items()):
            del self._unprepared[key]
            if key in addresses:
                queue.endpoint = prepare_endpoint(addresses[key], policy=self._policy, timeout_s=timeout_s)
            else:
                await self._give_back(self._queues.remove(queue))

    # Sending

    def _launch(self) -> None:
        """Send what has a place."""
        now = time.monotonic()
        attempts: list[Attempt] = []
        for attempt in self._queues.take(now):
            if now > attempt.lease_until:
                # The keeper takes it from here, or has.
                self._queues.finish(attempt, None, now)
                self._lose({attempt})
                continue
            endpoint = attempt.queue.endpoint
            attempt.overdue_at = now + _UNANSWERED_S + (0.0 if endpoint is None else endpoint.timeout_s)
            attempts.append(attempt)
        if self._executor is not None:
            self._executor.send(attempts)

    def _ended(self, attempt: Attempt, ended: FinishedSend, took_s: float) -> None:
        if not attempt.is_sent:
            return  # given up as unanswered
        self._queues.finish(attempt, took_s, time.monotonic())
        if attempt.queue.concurrency is not None:
            self._queues.resume(attempt.queue)
        self._result_writer.put(attempt, ended)

    def _turn(self) -> None:
        self._launch()
        self._wake.set()

    def _settled(self, attempt: Attempt, ended: FinishedSend, is_held: bool) -> None:
        self._held.discard(attempt)
        if not is_held:
            meters.count("boathook_leases_lost_total", recipient="endpoint")
            self._log.warning("lease_lost", **_words(ended))
            return
        what = _OUTCOMES[type(ended.move)]
        meters.count("boathook_sends_total", outcome=what)
        if isinstance(ended.move, RetryAt):
            self._remind(attempt.queue, ended.move)
        if ended.send.is_ordered:
            self._resume(attempt.queue)  # the next one of its order key is free
        if not isinstance(ended.move, Complete):
            self._log.warning(
                "send_failed", **_words(ended), outcome=what, code=ended.move.code, error=ended.move.error
            )
        elif self._log.is_enabled_for(logging.DEBUG):
            self._log.debug("sent", **_words(ended), status=ended.status)

    def _remind(self, queue: EndpointQueue, move: RetryAt) -> None:
        """Look for a retry at its very moment, where the next poll would be late."""
        wait_s = (move.due_at - self._now()).total_seconds()
        if wait_s < self._poll_s:
            asyncio.get_running_loop().call_later(max(0.0, wait_s) + PACE_S, self._resume, queue)

    def _resume(self, queue: EndpointQueue) -> None:
        self._queues.resume(queue)
        self._wake.set()

    # Leases

    async def _give_back(self, attempts: Sequence[Attempt]) -> None:
        if not attempts:
            return
        # What cannot be given back is renewed no more either, so that the keeper finds it.
        self._held.difference_update(attempts)
        _end_probes(attempt.queue for attempt in attempts if attempt.send.is_probe)
        await self._leases.release_claims([attempt.send for attempt in attempts])

    async def _renew(self) -> None:
        period_s = pause_s = self._lease_s / 3
        while True:
            await asyncio.sleep(pause_s)
            pause_s = period_s
            now = time.monotonic()
            self._give_up(now)
            old = [attempt for attempt in self._held if attempt.lease_until - now < self._lease_s - period_s / 2]
            if not old:
                continue
            try:
                lost = await self._leases.renew([attempt.send for attempt in old], lease_s=self._lease_s)
            except DatabaseError as error:
                self._log.warning("renew_failed", error=str(error), leases=len(old))
                pause_s = min(period_s, _RENEW_AGAIN_S)
                continue
            gone = {attempt for attempt in old if _key(attempt.send) in lost}
            for attempt in old:
                attempt.lease_until = now + self._lease_s
            # One under way cannot be called back; its settling finds the fence gone.
            self._queues.drop({attempt for attempt in gone if not attempt.is_sent})
            self._lose(gone)

    def _give_up(self, now: float) -> None:
        """Let go of requests not answered at all, which is a fault of ours; the keeper takes them from here."""
        silent = {attempt for attempt in self._held if attempt.is_sent and now > attempt.overdue_at}
        for attempt in silent:
            self._log.error(
                "request_unanswered", delivery=ids.show_delivery(attempt.send.event_id, attempt.send.ordinal)
            )
            self._queues.finish(attempt, None, now)
        self._lose(silent)

    def _lose(self, gone: set[Attempt]) -> None:
        self._held -= gone
        for attempt in gone:
            if attempt.send.is_probe and not attempt.is_sent:
                attempt.queue.is_probing = False

    def _now(self) -> datetime:
        """Return the journal's time, as far as the latest claim told."""
        return datetime.now(UTC) + self._ahead

    async def _beat(self, beat: Callable[[], None]) -> None:
        while True:
            beat()
            meters.gauge("boathook_sending", self._queues.running)
            meters.gauge("boathook_endpoint_breakers_open", sum(queue.open_until is not None for queue in self._queues))
            await asyncio.sleep(_BEAT_S)


async def run_sender(
    settings: Settings,
    *,
    sender_id: str,
    stop: asyncio.Event,
    beat: Callable[[], None],
    predecessors: Sequence[str] = (),
) -> None:
    """Run one sender until *stop* is set; what it has begun is finished or given back first.

    Args:
        sender_id: Never used before; names the holder of this process's leases.
        beat: Called twice a second while the event loop is alive.
        predecessors: Ids of senders known to be dead, whose leases are taken back at once.

    Raises:
        ConfigError: an encryption key or the proxy cannot be read.
    """
    database, secret_box = settings.database, open_secret_box(settings)
    dial = functools.partial(
        Database.open,
        database.url,
        purpose="sender",
        size=_CONNECTIONS,
        connect_timeout_s=database.connect_timeout_s,
        statement_timeout_s=database.statement_timeout_s,
        is_reset=False,
    )
    async with wait_for_database(stop, dial) as own:
        if own is not None:
            sender = Sender(settings, own=own, secret_box=secret_box, sender_id=sender_id)
            await sender.run(stop, beat, predecessors=predecessors)


def _end_probes(queues: Iterable[EndpointQueue]) -> None:
    for queue in queues:
        queue.is_probing = False


async def _end(tasks: Sequence["asyncio.Task[Any]"]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks, timeout=_LAST_S)


async def _wait(event: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


def _key(send: ClaimedSend) -> tuple[UUID, int, int]:
    return send.event_id, send.ordinal, send.fence


def _words(ended: FinishedSend) -> dict[str, Any]:
    """Return what a log line says about an attempt; an endpoint's address may hold a secret, so it is left out."""
    return {
        "delivery": ids.show_delivery(ended.send.event_id, ended.send.ordinal),
        "endpoint": ids.show(ids.ENDPOINT, ended.send.endpoint_id),
        "attempt": ended.send.attempt,
    }


_OUTCOMES: Final = {Complete: "succeeded", RetryAt: "retry", DeadLetter: "dead"}
