"""What a host tells by itself while PostgreSQL is away: nobody can be elected then, and this is what must be told of.

It judges the rules about hosts (``by = ["host"]``) by its own figures. What it has told it writes into the journal as
soon as that is back, before it tells it any figure, so that the keeper goes on from there and tells it no second time.
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from boathook.config.tables import Settings
from boathook.dispatch.alarms.chart import HOST, Chart
from boathook.dispatch.alarms.rules import USUAL_S, Rule, read
from boathook.dispatch.alarms.telling import bulletin_id, new_id, told_of
from boathook.domain.alarms import AlarmState, Standing, move
from boathook.domain.telling import Bulletin, Kind
from boathook.journal import alarms as kept
from boathook.journal.alarms import Alarm, HostSeries
from boathook.journal.database import Connection, Database
from boathook.outbound.notifier import Notifier, NotSent
from boathook.telemetry.log import get_logger

_AGAIN_S: Final = 30.0
"""Seconds between two tries to reach a channel."""
_LOG = get_logger("alarms")

Place = tuple[str, str]
"""A rule and a subject."""


class Alone:
    """The alarms of one host."""

    def __init__(self, settings: Settings, rules: tuple[Rule, ...], host: str, notifier: Notifier) -> None:
        self._settings = settings
        self._rules = [rule for rule in rules if rule.pick is not None and HOST in rule.pick.by]
        self._host = host
        self._notifier = notifier
        self._metrics = frozenset[str]().union(*(rule.metrics for rule in self._rules))
        self._reach_s = max((rule.reach_s for rule in self._rules), default=0.0)
        self._chart = Chart()
        self._standings: dict[Place, Standing] = {}
        self._told: dict[Place, Alarm] = {}
        """Those that people know of, or are being told of."""
        self._unwritten: dict[Place, Alarm] = {}
        """Of these, the ones that the journal does not know of."""
        self._untold: dict[Place, set[str]] = {}
        self._tried_at: dict[str, datetime] = {}

    async def look(self, series: Mapping[str, list[list[Any]]]) -> None:
        """Judge what this host has counted, and tell what is the matter."""
        now = datetime.now(UTC)
        self._chart.forget_after(now)
        mine = {name: rows for name, rows in series.items() if name in self._metrics}
        self._chart.add([HostSeries(self._host, now, mine)])
        self._chart.tidy(now, kept_s=USUAL_S, reach_s=self._reach_s)
        for rule in self._rules:
            found = {one.subject: one for one in read(rule, self._chart, now, USUAL_S)}
            known = {subject for name, subject in self._standings if name == rule.name}
            for subject in known | {subject for subject, one in found.items() if one.is_raised}:
                place = rule.name, subject
                standing = move(self._standings.pop(place, None), found.get(subject), rule.patience, now)
                if standing is not None and standing.state is not AlarmState.RECOVERED:
                    self._standings[place] = standing
                    self._note(rule, place, standing)
        await self._tell(now)

    def _note(self, rule: Rule, place: Place, standing: Standing) -> None:
        if standing.state is AlarmState.FIRING and place not in self._told:
            self._told[place] = self._unwritten[place] = _alarm(rule, place, standing)
            self._untold[place] = set(self._settings.notifications.channels_of(rule.settings))
            _LOG.warning("alarm_fires", rule=rule.name, subject=place[1], value=standing.value, alone=True)

    async def _tell(self, now: datetime) -> None:
        due = {name for names in self._untold.values() for name in names if self._may_try(name, now)}
        for name in sorted(due):
            self._tried_at[name] = now
            places = [place for place, names in self._untold.items() if name in names]
            rules = self._settings.notifications.rules
            told = [told_of(rules, self._told[place], Kind.FIRES) for place in places]
            bulletin = Bulletin(bulletin_id(new_id()), now, told, self._settings.server.public_url)
            outcome = await self._notifier.send(name, bulletin)
            if isinstance(outcome, NotSent):
                _LOG.warning("notice_failed", channel=name, error=outcome.error, alone=True)
                continue
            for place in places:
                self._untold[place].discard(name)

    def _may_try(self, name: str, now: datetime) -> bool:
        tried_at = self._tried_at.get(name)
        return tried_at is None or now - tried_at >= timedelta(seconds=_AGAIN_S)

    async def hand_over(self, database: Database) -> None:
        """Write what was told into the journal, and learn what is known there. Raises JournalError."""
        async with database.transaction() as connection:
            if self._unwritten:
                now = await kept.take_turn(connection)
                opened = {(one.rule, one.subject): one for one in await kept.list_open(connection)}
                for place, alarm in self._unwritten.items():
                    await self._write(connection, place, alarm, opened.get(place), now)
            mine = [one for one in await kept.list_open(connection) if self._is_mine(one)]
        self._unwritten.clear()
        self._untold.clear()
        self._standings = {(one.rule, one.subject): one.standing for one in mine}
        self._told = {(one.rule, one.subject): one for one in mine if one.told_at is not None}

    def _is_mine(self, alarm: Alarm) -> bool:
        return any(rule.name == alarm.rule for rule in self._rules) and self._host in alarm.subject.split(", ")

    async def _write(
        self, connection: Connection, place: Place, alarm: Alarm, known: Alarm | None, now: datetime
    ) -> None:
        """Open an alarm in the journal, or bring the one there up to date; whom nobody could tell, the keeper tells."""
        if known is not None and known.told_at is not None:
            return
        wanted = self._settings.notifications.channels_of(self._rule(place).settings)
        untold = self._untold.get(place, set())
        told_at = now if wanted and untold != set(wanted) else None
        written = replace(alarm, id=known.id if known is not None else alarm.id, told_at=told_at)
        await (kept.insert if known is None else kept.save)(connection, written)
        if untold and told_at is not None:
            await kept.insert_notices(connection, written, "fires", dict.fromkeys(untold, now))

    def _rule(self, place: Place) -> Rule:
        return next(rule for rule in self._rules if rule.name == place[0])


def _alarm(rule: Rule, place: Place, standing: Standing) -> Alarm:
    return Alarm(
        id=new_id(),
        rule=rule.name,
        subject=place[1],
        severity=rule.settings.severity,
        state=AlarmState.FIRING,
        since=standing.since,
        value=standing.value,
        worst=standing.value,
        fired_at=standing.since,
    )
