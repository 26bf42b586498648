"""Legacy environment variables apply, the table overrides them, and invalid values are named."""

import os
import shutil
from pathlib import Path

import pytest

from boathook import ConfigError
from boathook_fleet import hook, settings
from boathook_fleet.settings import PRESET, FleetSettings, read_size
from tests.commands import boathook_command


@pytest.fixture(autouse=True)
def bare(monkeypatch):
    for name in PRESET:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("name", "text", "key", "value"),
    [
        ("WEBHOOK_JSON_LIMIT", "256kb", "max_body", 262_144),
        ("WEBHOOK_JSON_LIMIT", "1MB", "max_body", 1_048_576),
        ("WEBHOOK_JSON_LIMIT", "5000", "max_body", 5_000),
        ("WEBHOOK_RATE_RPS", "50", "rate", 50.0),
        ("WEBHOOK_RATE_RPS", "0", "rate", 0.0),
        ("WEBHOOK_RATE_BURST", "60", "burst", 60),
        ("WEBHOOK_ACK_SLA_MS", "250", "ack_sla_ms", 250.0),
        ("WEBHOOK_DEDUP_TTL_SEC", "86400", "dedup_window_s", 86_400.0),
        ("WEBHOOK_ASYNC_CONCURRENCY", "3", "concurrency", 3),
        ("WEBHOOK_BATCH_WINDOW_MS", "1500", "window_s", 1.5),
        ("WEBHOOK_DLQ_RETRY_SEC", "60, 3600", "dead_retry_s", (60.0, 3_600.0)),
        ("WEBHOOK_DLQ_TTL_DAYS", "7", "dead_days", 7.0),
    ],
)
def test_legacy_environment_variables_are_a_preset(name, text, key, value, monkeypatch):
    monkeypatch.setenv(name, text)
    assert getattr(FleetSettings.model_validate({}), key) == value


def test_every_variable_of_the_preset_is_tested():
    judged = {mark.args[1][row][0] for mark in test_legacy_environment_variables_are_a_preset.pytestmark
              for row in range(len(mark.args[1]))}  # fmt: skip
    assert judged == set(PRESET)


def test_the_table_wins_over_the_environment(monkeypatch):
    monkeypatch.setenv("WEBHOOK_RATE_RPS", "50")
    assert FleetSettings.model_validate({"rate": 7}).rate == 7


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("WEBHOOK_JSON_LIMIT", "lots"),
        ("WEBHOOK_JSON_LIMIT", "1gb"),
        ("WEBHOOK_JSON_LIMIT", "-1kb"),
        ("WEBHOOK_RATE_RPS", "nan"),
        ("WEBHOOK_RATE_RPS", "-5"),
        ("WEBHOOK_ACK_SLA_MS", "0"),
        ("WEBHOOK_DEDUP_TTL_SEC", "0"),
        ("WEBHOOK_ASYNC_CONCURRENCY", "0"),
        ("WEBHOOK_ASYNC_CONCURRENCY", "2.5"),
        ("WEBHOOK_DLQ_RETRY_SEC", "60;70"),
    ],
)
def test_an_invalid_variable_is_an_error_naming_it(name, text, monkeypatch):
    monkeypatch.setenv(name, text)
    with pytest.raises(ConfigError, match=name):
        FleetSettings.model_validate({})


def test_the_handlers_concurrency_follows_the_settings():
    hook.bind(FleetSettings.model_validate({"concurrency": 3}), None)
    try:
        assert hook.handlers["fleet.note"].max_concurrency == 3
        assert hook.handlers["fleet.apply"].max_concurrency == 3
        assert hook.handlers["fleet.fetch"].max_concurrency == 2
    finally:
        hook.bind(None, None)


def test_the_sources_have_their_paths_and_policy():
    found = FleetSettings.model_validate(
        {"secrets": ["a"], "umnico_secrets": ["b"], "rate": 0, "scheme": "hmac"}
    ).sources()
    assert found["rentprog"]["paths"] == ["/api/rentprog/webhook", "/webhook/rentprog-webhook-create"]
    assert found["umnico"]["paths"] == ["/api/umnico/webhook"]
    assert found["rentprog"]["scheme"] == "hmac"
    assert "rate" not in found["rentprog"]
    assert "umnico" not in FleetSettings.model_validate({"secrets": ["a"]}).sources()


def test_sizes_are_read_with_and_without_units():
    assert [read_size(text) for text in ("1kb", "2k", "1024b", "3 mb")] == [1_024, 2_048, 1_024, 3_145_728]


def test_the_sample_configuration_loads_as_it_is(tmp_path):
    sample = Path(settings.__file__).with_name("boathook.toml")
    shutil.copy(sample, tmp_path)
    done = boathook_command("config", "check", cwd=tmp_path, env=os.environ)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 sources" in done.stdout
