"""A sender process: finds what endpoints are owed, sends it signed, and records what came of it.

Four loops share the lanes of `boathook.dispatch.lanes`. *Discovering* walks over endpoints with due work. *Claiming*
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
from boathook.dispatch.lanes import Flight, Lane, Lanes, Plan
from boathook.dispatch.mailing import Mailing
from boathook.dispatch.posts import prepare
from boathook.dispatch.settling import Settling
from boathook.domain import ids
from boathook.domain.endpoints import read_retry
from boathook.domain.errors import JournalError
from boathook.domain.policy import Bury, Settle, TryAgain
from boathook.journal.database import DUE_CHANNEL, Database, reached
from boathook.journal.deliveries import DeliveryStore
from boathook.journal.sending import BreakerRules, Ended, Send, SendStore
from boathook.journal.vault import Vault, open_vault
from boathook.telemetry import emit, tracing
from boathook.telemetry.crashpoints import crash_point
from boathook.telemetry.log import get_logger

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

    def __init__(self, settings: Settings, *, own: Database, vault: Vault, sender_id: str) -> None:
        outbound = settings.outbound
        self._settings = settings
        self._lease_s = settings.worker.lease_s
        self._poll_s = settings.worker.poll_s
        self._id = sender_id
        self._own = own
        self._vault = vault
        self._policy = read_retry(outbound.retry)
        self._store = SendStore(own, worker=sender_id, is_traced=tracing.current() is not None)
        self._leases = DeliveryStore(own, endpoint_policy=self._policy)
        self._lanes = Lanes(outbound.concurrency, outbound.endpoint_concurrency)
        rules = BreakerRules(
            outbound.breaker_after,
            outbound.breaker_pause_s,
            outbound.breaker_longest_s,
            outbound.disable_after_days * _DAY_S,
        )
        self._settling = Settling(self._store, rules, self._settled)
        self._held: set[Flight] = set()
        """Everything under lease here."""
        self._unaddressed: dict[UUID, Lane] = {}
        """Lanes with claims that are newer than what is known of their endpoint."""
        self._ahead = timedelta()
        """How far the journal's clock is ahead of this host's."""
        self._met = 0
        """Endpoints found due so far."""
        self._hint = asyncio.Event()
        self._wake = asyncio.Event()
        self._is_stopping = False
        self._mailing: Mailing | None = None
        self._log = get_logger("sender").bind(worker=sender_id)

    async def run(self, stop: asyncio.Event, beat: Callable[[], None], *, predecessors: Sequence[str] = ()) -> None:
        """Work until *stop* is set, then finish what is under way."""
        self._mailing = mailing = Mailing(self._settings, now=self._now, done=self._ended, turn=self._turn)
        await self._own.listen(DUE_CHANNEL, lambda _payload: self._hint.set())
        loops = [self._discover(), self._claim(predecessors), self._settling.run(), self._renew(), self._beat(beat)]
        tasks = [asyncio.create_task(loop) for loop in loops]
        stopping = asyncio.create_task(stop.wait())
        try:
            done, _ = await asyncio.wait([stopping, *tasks], return_when=asyncio.FIRST_COMPLETED)
            for task in done - {stopping}:
                task.result()
            await self._drain(tasks[:2])
        finally:
            mailing.close()
            await _end([stopping, *tasks])

    async def _drain(self, feeding: Sequence["asyncio.Task[None]"]) -> None:
        """Start nothing more, give back what waits, let what is under way finish, and give back what does not."""
        self._is_stopping = True
        self._hint.set()
        self._wake.set()
        await asyncio.wait(feeding, timeout=_LAST_S)
        await _end(feeding)
        with contextlib.suppress(JournalError):
            await self._give_back(self._lanes.empty())
        await self._until(lambda: not self._lanes.running, self._settings.server.drain_s)
        await self._until(lambda: self._settling.is_idle, _LAST_S)
        with contextlib.suppress(JournalError):
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
            except JournalError as error:
                self._log.warning("discover_failed", error=str(error))
                await self._own.pulse.until_back()
            self._lanes.sweep(time.monotonic())
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
                await self._give_back(self._lanes.meet(due))
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
            except JournalError as error:
                pause_s = min(_LONGEST_PAUSE_S, pause_s * 4)
                self._log.warning("claim_failed", error=str(error), pause_s=round(pause_s, 3))
                if self._own.pulse.is_away:
                    await self._own.pulse.until_back()
                    pause_s = PACE_S
            await asyncio.sleep(pause_s)
            if wait_s > 0:
                await _wait(self._wake, wait_s)

    async def _claim_due(self) -> float:
        """Claim once; returns the seconds until there may be more to claim, unless something happens before."""
        self._wake.clear()
        await self._address()
        self._launch()
        await self._give_back(self._lanes.barred(time.monotonic()))
        plans, wake_at = self._lanes.plan(time.monotonic(), self._now())
        plans = await self._allowed(plans)
        if not plans:
            return self._poll_s if wake_at is None else max(PACE_S, min(self._poll_s, wake_at - time.monotonic()))
        began = time.monotonic()
        wants = [plan.lane.want(plan.slots, began, is_probe=plan.is_probe) for plan in plans]
        try:
            sends = await self._store.claim(wants, lease_s=self._lease_s)
        except JournalError:
            # Whether or not it was made: a probe that is not known here must not bar its lane for ever.
            _end_probes(plan.lane for plan in plans if plan.is_probe)
            raise
        if sends:
            crash_point("send.after_claim")
            self._ahead = sends[0].claimed_at - datetime.now(UTC)
        self._accept(plans, sends, began + self._lease_s)
        await self._return_unused(plans, sends)
        await self._address()
        self._launch()
        return 0.0

    async def _allowed(self, plans: Sequence[Plan]) -> list[Plan]:
        """Keep of the plans what rates allow, and of probes those that this sender may make."""
        granted = await self._metered(plans)
        # A probe that no request may be made for would bar its lane.
        probes = await self._probes([plan.lane for plan in granted if plan.is_probe])
        refused = [plan for plan in granted if plan.is_probe and plan.lane.endpoint_id not in probes]
        await self._return_tokens([(plan.lane, plan.slots) for plan in refused])
        return [plan for plan in granted if plan not in refused]

    async def _metered(self, plans: Sequence[Plan]) -> list[Plan]:
        metered = [(plan.lane.endpoint_id, plan.slots, plan.lane.rate) for plan in plans if plan.lane.rate is not None]
        tokens = await self._store.take_tokens(metered) if metered else {}
        granted = []
        for plan in plans:
            slots = plan.slots
            if plan.lane.rate is not None:
                slots, next_s = tokens.get(plan.lane.endpoint_id, (0, 1.0))
                if slots < plan.slots:
                    plan.lane.rests_until = time.monotonic() + max(PACE_S, next_s)
            if slots:
                granted.append(Plan(plan.lane, slots, plan.is_probe))
        return granted

    async def _return_tokens(self, unused: Sequence[tuple[Lane, int]]) -> None:
        tokens = [
            (lane.endpoint_id, number, lane.rate) for lane, number in unused if lane.rate is not None and number > 0
        ]
        if tokens:
            await self._store.return_tokens(tokens)

    async def _probes(self, lanes: Sequence[Lane]) -> set[UUID]:
        if not lanes:
            return set()
        hold_s = self._settings.outbound.timeout_s + _PROBE_HOLD_S
        taken = await self._store.take_probes([lane.endpoint_id for lane in lanes], hold_s=hold_s)
        for lane in lanes:
            lane.is_probing = lane.endpoint_id in taken
            # Another sender has it; the next look tells how it went.
            lane.open_until = taken.get(lane.endpoint_id, self._now() + timedelta(seconds=_PROBE_AGAIN_S))
        return set(taken)

    def _accept(self, plans: Sequence[Plan], sends: Sequence[Send], lease_until: float) -> None:
        flights: dict[UUID, list[Flight]] = {plan.lane.endpoint_id: [] for plan in plans}
        lanes = {plan.lane.endpoint_id: plan.lane for plan in plans}
        for send in sends:
            lane = lanes[send.endpoint_id]
            lane.is_ailing = send.is_ailing
            flight = Flight(send, lane, lease_until)
            flights[send.endpoint_id].append(flight)
            self._held.add(flight)
            if lane.destination is None or not lane.destination.is_good(send.revision):
                lane.destination = None
                self._unaddressed[lane.endpoint_id] = lane
        for plan in plans:
            self._lanes.accept(plan, flights[plan.lane.endpoint_id])

    async def _return_unused(self, plans: Sequence[Plan], sends: Sequence[Send]) -> None:
        """Give back the tokens and the probes that no claim was made with."""
        used: dict[UUID, int] = {}
        for send in sends:
            used[send.endpoint_id] = used.get(send.endpoint_id, 0) + 1
        idle = [plan.lane for plan in plans if plan.is_probe and plan.lane.endpoint_id not in used]
        _end_probes(idle)
        await self._return_tokens([(plan.lane, plan.slots - used.get(plan.lane.endpoint_id, 0)) for plan in plans])
        if idle:
            held = {lane.endpoint_id: lane.open_until for lane in idle if lane.open_until is not None}
            await self._store.release_probes(held, after_s=_PROBE_AGAIN_S)
            for lane in idle:
                lane.open_until = self._now() + timedelta(seconds=_PROBE_AGAIN_S)

    async def _address(self) -> None:
        """Find out where the claims go whose endpoint was changed since the last one; until then they wait."""
        if not self._unaddressed:
            return
        addresses = await self._store.load(list(self._unaddressed), self._vault)
        timeout_s = self._settings.outbound.timeout_s
        for key, lane in list(self._unaddressed.items()):
            del self._unaddressed[key]
            if key in addresses:
                lane.destination = prepare(addresses[key], policy=self._policy, timeout_s=timeout_s)
            else:
                await self._give_back(self._lanes.dismiss(lane))

    # Sending

    def _launch(self) -> None:
        """Send what has a place."""
        now = time.monotonic()
        flights: list[Flight] = []
        for flight in self._lanes.take(now):
            if now > flight.lease_until:
                # The keeper takes it from here, or has.
                self._lanes.finish(flight, None, now)
                self._lose({flight})
                continue
            destination = flight.lane.destination
            flight.overdue_at = now + _UNANSWERED_S + (0.0 if destination is None else destination.timeout_s)
            flights.append(flight)
        if self._mailing is not None:
            self._mailing.send(flights)

    def _ended(self, flight: Flight, ended: Ended, took_s: float) -> None:
        if not flight.is_sent:
            return  # given up as unanswered
        self._lanes.finish(flight, took_s, time.monotonic())
        if flight.lane.concurrency is not None:
            self._lanes.rouse(flight.lane)
        self._settling.put(flight, ended)

    def _turn(self) -> None:
        self._launch()
        self._wake.set()

    def _settled(self, flight: Flight, ended: Ended, is_held: bool) -> None:
        self._held.discard(flight)
        if not is_held:
            emit.count("boathook_leases_lost_total", recipient="endpoint")
            self._log.warning("lease_lost", **_words(ended))
            return
        what = _OUTCOMES[type(ended.move)]
        emit.count("boathook_sends_total", outcome=what)
        if isinstance(ended.move, TryAgain):
            self._remind(flight.lane, ended.move)
        if ended.send.is_ordered:
            self._rouse(flight.lane)  # the next one of its order key is free
        if not isinstance(ended.move, Settle):
            self._log.warning(
                "send_failed", **_words(ended), outcome=what, code=ended.move.code, error=ended.move.error
            )
        elif self._log.is_enabled_for(logging.DEBUG):
            self._log.debug("sent", **_words(ended), status=ended.status)

    def _remind(self, lane: Lane, move: TryAgain) -> None:
        """Look for a retry at its very moment, where the next poll would be late."""
        wait_s = (move.due_at - self._now()).total_seconds()
        if wait_s < self._poll_s:
            asyncio.get_running_loop().call_later(max(0.0, wait_s) + PACE_S, self._rouse, lane)

    def _rouse(self, lane: Lane) -> None:
        self._lanes.rouse(lane)
        self._wake.set()

    # Leases

    async def _give_back(self, flights: Sequence[Flight]) -> None:
        if not flights:
            return
        # What cannot be given back is renewed no more either, so that the keeper finds it.
        self._held.difference_update(flights)
        _end_probes(flight.lane for flight in flights if flight.send.is_probe)
        await self._leases.give_back([flight.send for flight in flights])

    async def _renew(self) -> None:
        period_s = pause_s = self._lease_s / 3
        while True:
            await asyncio.sleep(pause_s)
            pause_s = period_s
            now = time.monotonic()
            self._give_up(now)
            old = [flight for flight in self._held if flight.lease_until - now < self._lease_s - period_s / 2]
            if not old:
                continue
            try:
                lost = await self._leases.renew([flight.send for flight in old], lease_s=self._lease_s)
            except JournalError as error:
                self._log.warning("renew_failed", error=str(error), leases=len(old))
                pause_s = min(period_s, _RENEW_AGAIN_S)
                continue
            gone = {flight for flight in old if _key(flight.send) in lost}
            for flight in old:
                flight.lease_until = now + self._lease_s
            # One under way cannot be called back; its settling finds the fence gone.
            self._lanes.drop({flight for flight in gone if not flight.is_sent})
            self._lose(gone)

    def _give_up(self, now: float) -> None:
        """Let go of requests not answered at all, which is a fault of ours; the keeper takes them from here."""
        silent = {flight for flight in self._held if flight.is_sent and now > flight.overdue_at}
        for flight in silent:
            self._log.error("request_unanswered", delivery=ids.show_delivery(flight.send.event_id, flight.send.ordinal))
            self._lanes.finish(flight, None, now)
        self._lose(silent)

    def _lose(self, gone: set[Flight]) -> None:
        self._held -= gone
        for flight in gone:
            if flight.send.is_probe and not flight.is_sent:
                flight.lane.is_probing = False

    def _now(self) -> datetime:
        """Return the journal's time, as far as the latest claim told."""
        return datetime.now(UTC) + self._ahead

    async def _beat(self, beat: Callable[[], None]) -> None:
        while True:
            beat()
            emit.gauge("boathook_sending", self._lanes.running)
            emit.gauge("boathook_endpoint_breakers_open", sum(lane.open_until is not None for lane in self._lanes))
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
    database, vault = settings.database, open_vault(settings)
    dial = functools.partial(
        Database.open,
        database.url,
        purpose="sender",
        size=_CONNECTIONS,
        connect_timeout_s=database.connect_timeout_s,
        statement_timeout_s=database.statement_timeout_s,
        is_reset=False,
    )
    async with reached(stop, dial) as own:
        if own is not None:
            sender = Sender(settings, own=own, vault=vault, sender_id=sender_id)
            await sender.run(stop, beat, predecessors=predecessors)


def _end_probes(lanes: Iterable[Lane]) -> None:
    for lane in lanes:
        lane.is_probing = False


async def _end(tasks: Sequence["asyncio.Task[Any]"]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks, timeout=_LAST_S)


async def _wait(event: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


def _key(send: Send) -> tuple[UUID, int, int]:
    return send.event_id, send.ordinal, send.fence


def _words(ended: Ended) -> dict[str, Any]:
    """Return what a log line says about an attempt; an endpoint's address may hold a secret, so it is left out."""
    return {
        "delivery": ids.show_delivery(ended.send.event_id, ended.send.ordinal),
        "endpoint": ids.show(ids.ENDPOINT, ended.send.endpoint_id),
        "attempt": ended.send.attempt,
    }


_OUTCOMES: Final = {Settle: "succeeded", TryAgain: "retry", Bury: "dead"}
