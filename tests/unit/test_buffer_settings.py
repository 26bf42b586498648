"""The settings of the brokers: each mistake is named with its key and its fix."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from boathook.config import Settings, load, packages
from boathook.domain.errors import ConfigError
from boathook_rabbitmq.access import read_access

GOOD = {"kind": "rabbitmq", "hosts": ["mq1:5672", "[::1]:5671"], "user": "boathook", "password": "env:BROKER_PASSWORD"}


def settings(**buffer: object) -> Settings:
    return load(overrides={f"buffer.{key}": value for key, value in {**GOOD, **buffer}.items()})


@pytest.fixture(autouse=True)
def password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKER_PASSWORD", "secret")


def test_brokers_are_read_with_their_secret():
    found = read_access(settings(vhost="v"))
    assert found.hosts == (("mq1", 5672), ("::1", 5671))
    assert (found.vhost, found.user, found.password, found.tls) == ("v", "boathook", "secret", None)
    assert "secret" not in repr(found)


@pytest.mark.parametrize(("change", "message"), [
    ({"kind": "disk", "then": "refuse"}, 'then: "refuse" needs another kind than "disk"'),
    ({"hosts": []}, "hosts: is empty"),
    ({"hosts": ["mq1"]}, "must be an address and a port"),
    ({"hosts": ["amqp://mq1:5672"]}, "without scheme and login"),
    ({"user": ""}, "set buffer.user and buffer.password"),
    ({"password": ""}, "set buffer.user and buffer.password"),
    ({"ca_file": "ca.pem"}, "ca_file: needs buffer.tls = true"),
    ({"confirm_s": 0}, "buffer.confirm_s"),
    ({"kind": "kafka"}, "buffer.kind"),
    ({"mode": "always"}, "buffer.mode is not a setting"),
    ({"management_url": "mq1:15672"}, "buffer.management_url"),
])  # fmt: skip
def test_an_invalid_setting_is_named(change: dict[str, object], message: str):
    with pytest.raises(ConfigError) as found:
        settings(**change)
    assert message in str(found.value)
    assert "secret" not in str(found.value)


def test_a_disk_fallback_needs_the_spool():
    with pytest.raises(ConfigError, match=r'buffer.then: "disk" needs spool.enabled = true'):
        load(overrides={"buffer": GOOD, "spool.enabled": False})


@pytest.mark.parametrize(("make", "has_spool", "accepts"), [
    (load, True, True),
    (lambda: load(overrides={"spool.enabled": False}), False, False),
    (settings, True, True),
    (lambda: settings(then="refuse"), False, True),
])  # fmt: skip
def test_which_places_there_are(make: Callable[[], Settings], has_spool: bool, accepts: bool):
    found = make()
    assert (found.has_spool, found.accepts_without_database) == (has_spool, accepts)


def test_a_file_of_certificates_is_checked(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"buffer.ca_file: cannot read"):
        read_access(settings(tls=True, ca_file=str(tmp_path / "none.pem")))
    (tmp_path / "ca.pem").write_text("no certificate")
    with pytest.raises(ConfigError, match=r"buffer.ca_file: .* contains no certificates"):
        read_access(settings(tls=True, ca_file=str(tmp_path / "ca.pem")))
    assert read_access(settings(tls=True)).tls is not None


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(packages, "find_spec", lambda name: None if name == "aio_pika" else find_spec(name))
    with pytest.raises(ConfigError, match=r"pip install 'boathook\[rabbitmq\]'"):
        read_access(settings())
