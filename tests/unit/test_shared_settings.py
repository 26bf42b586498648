"""The settings of what gateways share: each mistake is named with its key and its fix, and no password is shown."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from boathook.config import Settings, load, packages
from boathook.domain.errors import ConfigError
from boathook.service.operating.doctor import check_settings
from boathook.service.shown_settings import list_settings
from boathook_redis.settings import read_url


def settings(url: str) -> Settings:
    return load(overrides={"shared.redis": url})


def test_postgresql_shares_unless_redis_is_named():
    assert read_url(load()) == ""


@pytest.mark.parametrize(
    "url", ["redis://r", "redis://r:6379/3", "rediss://:pass@[::1]:6380", "redis://u:p@r/0?ssl_ca_certs=x"]
)
def test_a_valid_url_is_accepted(url: str):
    assert read_url(settings(url)) == url


def test_an_address_may_be_a_reference(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("REDIS_URL", "redis://:secret@r:6379/0")
    assert read_url(settings("env:REDIS_URL")) == "redis://:secret@r:6379/0"
    (tmp_path / "url").write_text("redis://r/1\n")
    assert read_url(settings(f"file:{tmp_path / 'url'}")) == "redis://r/1"
    monkeypatch.setenv("BOATHOOK_SHARED_REDIS", "redis://r/2")
    assert read_url(load()) == "redis://r/2"


@pytest.mark.parametrize("url", ["r:6379", "http://:secret@r", "postgresql://:secret@r/0"])
def test_another_kind_of_address_is_refused(url: str):
    with pytest.raises(ConfigError, match=r"shared\.redis: must be a redis:// or rediss:// URL") as found:
        settings(url)
    assert "secret" not in str(found.value)


@pytest.mark.parametrize(
    "url", ["redis://", "redis:///0", "redis://r:none", "redis://r:99999", "redis://r/name", "env:REDIS_URL"]
)
def test_an_invalid_url_is_refused_at_start(url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("REDIS_URL", "http://:secret@r")
    with pytest.raises(ConfigError, match=r"shared\.redis: must be an address such as") as found:
        check_settings(settings(url))
    assert "secret" not in str(found.value)


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(packages, "find_spec", lambda name: None if name == "redis" else find_spec(name))
    with pytest.raises(ConfigError, match=r"pip install 'boathook\[redis\]'"):
        read_url(settings("redis://r"))
    assert read_url(load()) == ""


def test_no_password_is_shown():
    shown = {one.key: one.value for one in list_settings(settings("redis://user:secret@r:6379/0"))}
    assert "secret" not in shown["shared.redis"]
    assert "r:6379" in shown["shared.redis"]
    assert "secret" not in repr(settings("redis://user:secret@r:6379/0").tables)
