"""Rules: what figures of several hosts over time make of thresholds, and which settings make no sense."""

from datetime import UTC, datetime, timedelta
from typing import ClassVar

import pytest
from pydantic import ValidationError

from boathook import Boathook, config
from boathook.alerts.notifier import check_channels
from boathook.alerts.rules import MetricWindow, SeriesSelector, compile_rules, evaluate_rule
from boathook.db.metric_samples import HostSample
from boathook.domain.errors import ConfigError
from boathook.observability.metric_snapshot import Buckets, MetricSnapshot, decode
from boathook.observability.metrics import METRICS, MetricKind

NOW = datetime(2026, 1, 2, tzinfo=UTC)
ACCEPTED, REJECTED = "boathook_events_accepted_total", "boathook_rejections_total"


def ago(seconds):
    return NOW - timedelta(seconds=seconds)


def window(*, lookback_s=900.0):
    return MetricWindow(METRICS, lookback_s)


def snapshot(at, series):
    """Return a snapshot of ``{metric: {labels: value}}``."""
    made = MetricSnapshot(at=at)
    for name, of in series.items():
        kinds = {
            MetricKind.COUNTER: made.counters,
            MetricKind.GAUGE: made.gauges,
            MetricKind.HISTOGRAM: made.histograms,
        }
        kinds[METRICS[name].kind][name] = of
    return made


def chart(*told):
    """Return a window of ``(host, seconds ago, {metric: {labels: value}})`` with counter values of that time."""
    made, before = window(), dict[str, MetricSnapshot]()
    for host, seconds, series in sorted(told, key=lambda one: -one[1]):
        now = snapshot(ago(seconds).timestamp(), series)
        made.add([HostSample(host, ago(seconds), now.since(before.get(host, now)))])
        before[host] = now
    return made


def settings_with(**rules):
    tables = config.defaults()
    tables["notifications"]["rules"] = rules
    return config.Settings.model_validate(tables)


def rule(**keys):
    return next(one for one in compile_rules(settings_with(mine=keys)) if one.name == "mine")


def readings(one, of, now=NOW):
    return [
        (found.subject, round(found.value, 6), found.is_raised, found.is_held)
        for found in evaluate_rule(one, of, now, 60)
    ]


class TestChart:
    def test_increases_of_hosts_are_added_up(self):
        made = chart(
            *(("a", s, {ACCEPTED: {("stripe",): 100 - s}}) for s in (60, 30, 0)),
            *(("b", s, {ACCEPTED: {("stripe",): 10 - s / 10}}) for s in (60, 30, 0)),
        )
        assert made.increases(SeriesSelector(ACCEPTED), ago(60)) == {"": 66}
        assert made.increases(SeriesSelector(ACCEPTED, by=("source", "host")), ago(60)) == {
            "stripe, a": 60,
            "stripe, b": 6,
        }

    def test_a_counter_reset_counts_from_zero(self):
        made = chart(*(("a", s, {ACCEPTED: {("stripe",): value}}) for s, value in ((40, 90), (20, 5), (0, 7))))
        assert made.increases(SeriesSelector(ACCEPTED), ago(60)) == {"": 2}

    def test_a_new_series_counts_in_full_and_the_first_sample_not_at_all(self):
        made = chart(("a", 40, {ACCEPTED: {("old",): 9}}), ("a", 0, {ACCEPTED: {("old",): 9, ("new",): 3}}))
        assert made.increases(SeriesSelector(ACCEPTED, by=("source",)), ago(60)) == {"old": 0, "new": 3}

    def test_levels_of_hosts_are_added_up_or_the_highest_counts(self):
        spool, oldest = "boathook_spool_events", "boathook_spool_oldest_seconds"
        made = chart(("a", 5, {spool: {(): 3}, oldest: {(): 8}}), ("b", 2, {spool: {(): 4}, oldest: {(): 6}}))
        assert made.values(SeriesSelector(spool), ago(60)) == {"": 7}
        assert made.values(SeriesSelector(oldest), ago(60)) == {"": 8}
        assert made.values(SeriesSelector(spool, by=("host",)), ago(60)) == {"a": 3, "b": 4}

    def test_a_stale_host_has_no_gauge_value(self):
        made = chart(("a", 120, {"boathook_spool_events": {(): 3}}))
        assert made.values(SeriesSelector("boathook_spool_events"), ago(60)) == {}

    def test_a_repeated_sample_counts_once(self):
        made = chart(("a", 40, {ACCEPTED: {("s",): 1}}), ("a", 0, {ACCEPTED: {("s",): 2}}))
        made.add([HostSample("a", ago(0), MetricSnapshot(counters={ACCEPTED: {("s",): 1}}))])
        assert made.increases(SeriesSelector(ACCEPTED), ago(60)) == {"": 1}

    def test_incompatible_metrics_of_another_version_are_ignored(self):
        stored = """{"counters": {"unknown_total": [[[], 1]], "boathook_requests_total": [[["one label"], 1]]},
            "histograms": {"boathook_ack_seconds": [[[], [1, 2], 3.0]]}}"""
        made = window()
        made.add([HostSample("a", ago(0), decode(stored))])
        assert made.increases(SeriesSelector("boathook_requests_total"), ago(60)) == {}
        one = rule(metric="boathook_ack_seconds", measure="p95", above=0)
        assert readings(one, made) == []

    def test_a_late_sample_is_inserted_at_its_time(self):
        made = chart(*(("a", s, {ACCEPTED: {("s",): 100 - s}}) for s in (60, 30, 0)))
        made.add([HostSample("a", ago(45), MetricSnapshot(counters={ACCEPTED: {("s",): 7}}))])
        assert made.increases(SeriesSelector(ACCEPTED), ago(60)) == {"": 67}
        assert made.increases(SeriesSelector(ACCEPTED), ago(40)) == {"": 60}

    def test_old_samples_are_dropped(self):
        made = chart(("a", 100, {}), ("b", 10, {}))
        made.tidy(ago(100 - 86_400))
        assert made.latest == ago(10)
        made.tidy(ago(-86_400))
        assert made.latest is None


class TestThresholds:
    def test_above_and_clear(self):
        one = rule(metric="boathook_oldest_due_seconds", above=10, clear=5)
        assert readings(one, chart(("a", 0, {"boathook_oldest_due_seconds": {(): 11}}))) == [("", 11, True, True)]
        assert readings(one, chart(("a", 0, {"boathook_oldest_due_seconds": {(): 10}}))) == [("", 10, False, True)]
        assert readings(one, chart(("a", 0, {"boathook_oldest_due_seconds": {(): 5}}))) == [("", 5, False, False)]

    def test_below(self):
        one = rule(metric="boathook_connections", below=1)
        assert readings(one, chart(("a", 0, {"boathook_connections": {(): 0}}))) == [("", 0, True, True)]
        assert readings(one, chart(("a", 0, {"boathook_connections": {(): 1}}))) == [("", 1, False, False)]

    def test_times_requires_an_increase_above_the_usual_level(self):
        one = rule(metric=REJECTED, by=["source"], measure="increase", over_s=900, above=20, times=3)
        quiet = chart(("a", 900, {REJECTED: {("s", "x"): 0}}), ("a", 0, {REJECTED: {("s", "x"): 21}}))
        assert readings(one, quiet) == [("s", 21, True, True)]
        # Twenty in each quarter of an hour is usual here, so 21 must not raise an alert.
        usual = chart(*(("a", s, {REJECTED: {("s", "x"): (86_400 - s) / 45}}) for s in range(85_500, 0, -900)),
                      ("a", 0, {REJECTED: {("s", "x"): 1_921}}))  # fmt: skip
        ((_, value, is_raised, is_held),) = readings(one, usual)
        assert (value > 20, is_raised, is_held) == (True, False, True)

    def test_a_share_is_raised_only_from_at_least_events_on(self):
        one = rule(
            metric=REJECTED, by=["source"], measure="share", against=[{"metric": ACCEPTED}], above=0.5, at_least=10
        )
        first = ("a", 200, {REJECTED: {("s", "x"): 0}, ACCEPTED: {("s",): 0}})
        few = chart(first, ("a", 0, {REJECTED: {("s", "x"): 6}, ACCEPTED: {("s",): 3}}))
        many = chart(first, ("a", 0, {REJECTED: {("s", "x"): 8}, ACCEPTED: {("s",): 2}}))
        assert readings(one, few) == [("s", 0.666667, False, True)]
        assert readings(one, many) == [("s", 0.8, True, True)]

    def test_percentiles(self):
        one = rule(metric="boathook_ack_seconds", measure="p95", above=0.5, at_least=20)
        bounds = METRICS["boathook_ack_seconds"].bounds
        counts = [0] * (len(bounds) + 1)
        slow = list(counts)
        slow[bounds.index(1.0)] = 20

        made = window()
        for seconds, found in ((100, Buckets(tuple(counts), 0.0)), (0, Buckets(tuple(slow), 18.0))):
            made.add(
                [HostSample("a", ago(seconds), MetricSnapshot(histograms={"boathook_ack_seconds": {("s",): found}}))]
            )
        ((_, value, is_raised, _),) = readings(one, made)
        assert 0.5 < value <= 1.0
        assert is_raised

    def test_unless_something_has_risen(self):
        one = rule(
            metric="boathook_backlog",
            labels={"state": "due"},
            above=0,
            unless=[{"metric": "boathook_endpoint_requests_total"}],
        )
        idle = chart(
            *(
                ("a", s, {"boathook_backlog": {("h", "due"): 4}, "boathook_endpoint_requests_total": {("x",): 7}})
                for s in (60, 0)
            )
        )
        busy = chart(
            *(
                ("a", s, {"boathook_backlog": {("h", "due"): 4}, "boathook_endpoint_requests_total": {("x",): 7 - s}})
                for s in (60, 0)
            )
        )
        assert readings(one, idle) == [("", 4, True, True)]
        assert readings(one, busy) == []


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"above": 1}, "rules.mine.metric: set either metric or rows"),
        ({"metric": "boathook_nothing_total", "above": 1}, "rules.mine.metric: unknown metric"),
        ({"metric": ACCEPTED, "measure": "increase"}, "rules.mine.above: set either above or below"),
        ({"metric": ACCEPTED, "above": 1, "below": 1}, "rules.mine.above: set either above or below"),
        ({"metric": ACCEPTED, "measure": "p95", "above": 1}, "is a counter, which does not support it"),
        ({"metric": "boathook_backlog", "measure": "increase", "above": 1}, "is a gauge"),
        ({"metric": ACCEPTED, "above": 1}, "is a counter, which does not support it"),
        (
            {"metric": ACCEPTED, "measure": "increase", "by": ["shop"], "above": 1},
            "has the labels source, host, not 'shop'",
        ),
        ({"metric": ACCEPTED, "above": 1, "clear": 2}, "rules.mine.clear: the alert would clear while it fires"),
        ({"metric": ACCEPTED, "measure": "share", "above": 1}, "rules.mine.against: is missing"),
        (
            {"metric": ACCEPTED, "measure": "increase", "above": 1, "unless": [{"metric": "boathook_backlog"}]},
            "rules.mine.unless.measure",
        ),
    ],
)
def test_an_invalid_rule_is_refused_by_its_key(keys, message):
    with pytest.raises(ConfigError) as caught:
        rule(**keys)
    assert message in str(caught.value)


def test_default_rules_are_valid_and_can_be_overridden_by_key():
    settings = settings_with(error_rate={"above": 0.5}, spool_in_use={"enabled": False})
    rules = {one.name: one for one in compile_rules(settings)}
    assert rules["error_rate"].settings.above == 0.5
    assert rules["error_rate"].settings.measure == "share"
    assert "spool_in_use" not in rules
    assert "dead_letters" in rules


class TestRulesOfApps:
    def test_app_rules_are_prefixed_with_the_app(self):
        hook = Boathook("shop")
        hook.alert_rule("late", "{subject} is late", metric=ACCEPTED, measure="increase", below=1)
        (rule,) = (hook.manifest.alert_rules or {}).items()
        assert (rule[0], rule[1].metric, rule[1].below) == ("shop.late", ACCEPTED, 1)

    @pytest.mark.parametrize("keys", [{"abve": 1}, {"above": "much"}, {"severity": "grave"}])
    def test_a_key_that_is_wrong_is_named(self, keys):
        with pytest.raises(ConfigError, match=rf"hook.alert_rule: shop.late.{next(iter(keys))}"):
            Boathook("shop").alert_rule("late", "it is late", metric=ACCEPTED, **keys)

    def test_two_of_one_name_are_refused(self):
        hook = Boathook("shop")
        hook.alert_rule("late", "it is late", metric=ACCEPTED, above=1)
        with pytest.raises(ConfigError, match="two rules are named"):
            hook.alert_rule("late", "it is late", metric=ACCEPTED, above=2)


class TestSettings:
    def channel(self, **keys):
        tables = config.defaults()
        tables["notifications"]["channels"] = {"ops": keys}
        return config.Settings.model_validate(tables)

    MAIL: ClassVar = {"kind": "email", "host": "mail.example.com", "sender": "a@example.com", "to": ["b@example.com"]}

    def test_a_valid_channel_is_accepted(self):
        assert self.channel(**self.MAIL).notifications.channels["ops"].port == 587

    @pytest.mark.parametrize(
        ("keys", "message"),
        [
            ({**MAIL, "to": []}, "to"),
            ({**MAIL, "to": ["nobody"]}, "invalid address"),
            ({**MAIL, "sender": "a@b.c\nBcc: d@e.f"}, "invalid address"),
            ({**MAIL, "username": "anna"}, "belong together"),
            ({**MAIL, "username": "anna", "password": "x", "security": "none"}, "not sent unencrypted"),
            ({"kind": "pigeon"}, "pigeon"),
            ({"kind": "slack"}, "url"),
            ({"kind": "telegram", "token": "evn:TOKEN", "chat": "1"}, "env:NAME"),
        ],
    )
    def test_an_invalid_channel_is_refused(self, keys, message):
        with pytest.raises(ValidationError, match=message):
            self.channel(**keys)

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("quiet_hours", "22-7"),
            ("quiet_hours", "25:00-07:00"),
            ("quiet_zone", "Berlin"),
            ("evaluation_interval_s", 0),
        ],
    )
    def test_an_invalid_setting_is_refused(self, key, value):
        with pytest.raises(ConfigError, match=f"notifications.{key}"):
            config.load(None, {f"notifications.{key}": value})

    def test_a_rule_with_an_unknown_channel_is_refused(self):
        with pytest.raises(ValidationError, match=r"unknown channel 'nobody'"):
            settings_with(mine={"metric": ACCEPTED, "above": 1, "channels": ["nobody"]})

    def test_a_secret_may_use_a_variable_named_like_a_setting(self, tmp_path, monkeypatch):
        monkeypatch.setenv("BOATHOOK_NOTIFICATIONS_TOKEN", "12:abc")
        file = tmp_path / "boathook.toml"
        file.write_text(
            '[notifications.channels.ops]\nkind = "telegram"\nchat = "1"\ntoken = "env:BOATHOOK_NOTIFICATIONS_TOKEN"\n'
        )
        check_channels(config.load(file))
        monkeypatch.delenv("BOATHOOK_NOTIFICATIONS_TOKEN")
        with pytest.raises(ConfigError, match=r"notifications.channels.ops.token"):
            check_channels(config.load(file))


def test_downsampling_keeps_the_increases():
    made = chart(*(("a", s, {ACCEPTED: {("stripe",): 1000 - s}}) for s in range(0, 1000, 10)))
    before = made.increases(SeriesSelector(ACCEPTED), ago(900))
    made._downsample(ago(300), 60)
    assert 40 <= len(made._hosts["a"]) <= 45
    assert made.increases(SeriesSelector(ACCEPTED), ago(300)) == {"": 300}
    assert abs(made.increases(SeriesSelector(ACCEPTED), ago(900))[""] - before[""]) <= 60


def test_samples_from_a_fast_clock_do_not_hide_later_ones():
    chart, now = window(), datetime(2026, 1, 2, tzinfo=UTC)
    chart.add([HostSample("a", now + timedelta(hours=1), MetricSnapshot(gauges={"boathook_connections": {(): 5}}))])
    chart.tidy(now)
    assert chart.latest is None
    chart.add([HostSample("a", now, MetricSnapshot(gauges={"boathook_connections": {(): 7}}))])
    assert chart.values(SeriesSelector("boathook_connections"), now - timedelta(minutes=1)) == {"": 7}


@pytest.mark.parametrize(
    ("name", "labels", "before", "after", "subjects"),
    [
        ("requests_refused_unread", ("github", "body_too_large"), 0, 1, ["github"]),
        ("requests_refused_unread", ("github", "content_encoding"), 4, 5, ["github"]),
        ("requests_refused_unread", ("github", "signature_mismatch"), 0, 99, []),
        ("wrong_address", ("", "unknown_path"), 0, 5, [""]),
        ("wrong_address", ("github", "method_not_allowed"), 0, 5, [""]),
        ("wrong_address", ("", "unknown_path"), 0, 4, []),
    ],
)
def test_refused_requests_raise_alerts(
    name: str, labels: tuple[str, str], before: int, after: int, subjects: list[str]
) -> None:
    made = chart(("a", 60, {REJECTED: {labels: before}}), ("a", 0, {REJECTED: {labels: after}}))
    built_in = next(one for one in compile_rules(settings_with()) if one.name == name)
    assert [subject for subject, _, is_raised, _ in readings(built_in, made) if is_raised] == subjects
