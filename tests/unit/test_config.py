"""Settings: their sources and layers, and errors about invalid ones."""

from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boathook.config import SECTIONS, Settings, SourceSettings, defaults, load
from boathook.domain.errors import ConfigError
from boathook.service.shown_settings import all_settings, find_settings, list_settings


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(folder: Path, text: str) -> Path:
    path = folder / "boathook.toml"
    path.write_text(text)
    return path


def complaint(folder: Path, text: str, overrides: dict[str, Any] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        load(write(folder, text), overrides)
    return str(caught.value)


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/", "must have a name in each part"),
        ("//evil", "must have a name in each part"),
        ("/a//b", "must have a name in each part"),
        ("/a/../b", "must have a name in each part"),
        ("/./a", "must have a name in each part"),
        ("/a\\\\b", "must start with"),
        ("/%61pi/v1", "must start with"),
        ("/API/v1/app", "belongs to boathook itself"),
        ("/api", "belongs to boathook itself"),
        ("/Console", "belongs to boathook itself"),
        ("/console/", "belongs to boathook itself"),
        ("/IN/other", "belongs to boathook itself"),
        ("/in", "belongs to boathook itself"),
        ("/Metrics/", "belongs to boathook itself"),
    ],
)
def test_a_source_cannot_have_a_path_of_boathook_itself(tmp_path, path, why):
    file = tmp_path / "boathook.toml"
    file.write_text(f'[sources.shop]\nprovider = "hmac"\nsecrets = ["a long secret"]\npaths = ["{path}"]\n')
    with pytest.raises(ConfigError, match=rf"sources\.shop\.paths.*{why}"):
        load(file)


@pytest.mark.parametrize("path", ["/webhooks/stripe", "/a/", "/consoles", "/api/v12", "/cells", "/inbox", "/a.b/..c"])
def test_a_source_may_have_another_path(tmp_path, path):
    file = tmp_path / "boathook.toml"
    file.write_text(f'[sources.shop]\nprovider = "hmac"\nsecrets = ["a long secret"]\npaths = ["{path}"]\n')
    assert load(file).sources["shop"].paths == (path,)


def test_every_default_is_written_once_and_valid():
    settings = load(None)
    for section in SECTIONS:
        table = getattr(settings, section)
        assert set(defaults()[section]) == set(type(table).model_fields), section
        for name, field in type(table).model_fields.items():
            assert field.is_required(), f"{section}.{name} has a second default in the code"


def test_the_layers_override_one_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = write(tmp_path, '[server]\nbind = "127.0.0.1:1"\nworkers = 2\ngateways = 2\n')
    assert load(file).server.bind == "127.0.0.1:1"
    monkeypatch.setenv("BOATHOOK_BIND", "127.0.0.1:2")
    assert load(file).server.bind == "127.0.0.1:2"
    monkeypatch.setenv("BOATHOOK_SERVER_BIND", "127.0.0.1:3")
    monkeypatch.setenv("BOATHOOK_SERVER_WORKERS", "3")
    assert (load(file).server.bind, load(file).server.workers) == ("127.0.0.1:3", 3)
    flags = load(file, {"server.bind": "[::1]:4", "server": {"workers": 4, "roles": None}})
    assert (flags.server.host, flags.server.port, flags.server.workers) == ("::1", 4, 4)
    assert (flags.server.gateways, flags.server.roles) == (2, ("gateway", "worker", "keeper", "console"))
    assert load(file, {"server.port": 9}).server.bind == "127.0.0.1:9"


def test_the_file_in_the_working_folder_is_found(tmp_path: Path):
    write(tmp_path, "[server]\nworkers = 7\n")
    assert load().server.workers == 7


def test_folders_in_the_file_are_relative_to_it(tmp_path: Path):
    (tmp_path / "etc").mkdir()
    settings = load(write(tmp_path / "etc", '[server]\ndata_dir = "data"\n'))
    assert settings.server.data_dir == tmp_path / "etc" / "data"
    assert load(None, {"server.data_dir": "here"}).server.data_dir == tmp_path / "here"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[server]\nbnid = 'x'", ["boathook.toml", "server.bnid", "did you mean server.bind?"]),
        ("[limit]\nmax_body = 3", ["[limit]", "did you mean limits?"]),
        ("[limits]\nmax_body = -3", ["boathook.toml", "limits.max_body", "-3"]),
        ("[limits]\nmax_body = 'much'", ["limits.max_body", "whole number", "much"]),
        ("[worker]\nretry = 'soon'", ["boathook.toml", "worker.retry", "exponential", "5, 60, 3600", "'soon'"]),
        ("[outbound]\nretry = '5, -1'", ["boathook.toml", "outbound.retry", "a wait is 0 to", "-1"]),
        ("[sources.shop]\nprovider = 'generic-hmac'\nretry = '5 60'", ["sources.shop.retry", "5, 60, 3600", "'5 60'"]),
        ("[limits]\ncontent_encodings = ['br']", ["limits.content_encodings[0]", "'gzip'", "'br'"]),
        ("[server]\nbind = '8080'", ["server.bind", "127.0.0.1:8080"]),
        ("[server]\nbind = 'x:99999'", ["server.bind"]),
        ("[server]\npublic_url = 'hooks.example.com'", ["server.public_url", "https://"]),
        ("[tracing]\nlink = 'https://traces.example'", ["tracing.link", "{trace_id}"]),
        ("[tracing]\nlink = 'javascript:{trace_id}'", ["tracing.link", "https://"]),
        ("[server]\ntrusted_proxies = ['10.0.0.1/8']", ["server.trusted_proxies[0]", "host bits"]),
        ("[server]\nroles = ['gatway']", ["server.roles[0]", "'gateway'"]),
        ("[database]\nurl = 'mysql://user:hunter2@x'", ["database.url", "postgresql://"]),
        ("workers = 1", ["workers", "[server]"]),
        ("[server", ["boathook.toml", "not valid TOML"]),
        ("[sources]\nstripe = 1", ["sources.stripe", "[sources.stripe]"]),
        ("[sources.a]\nsekrets = ['env:X']", ["sources.a.sekrets", "did you mean sources.a.secrets?"]),
        ("[sources.a]\nsecrts = ['env:X']", ["sources.a.secrts", "did you mean sources.a.secrets?"]),
        ("[sources.a]\npath = ['/x']", ["sources.a.path", "did you mean sources.a.paths?"]),
        ("[sources.a]\nmode = 'inlin'", ["sources.a.mode", "'store' or 'inline'"]),
        ("[sources.a]\nfallback_status = 500", ["sources.a", "fallback_status", 'mode = "inline"']),
        ("[sources.a]\nmode = 'inline'\nfallback_status = 100", ["sources.a.fallback_status", "200"]),
        ("[sources.a]\nmode = 'inline'\nfallback_status = 302", ["fallback_status", "302"]),
        ("[sources.a]\nmode = 'inline'\nfallback_status = 410", ["fallback_status", "410"]),
        (
            "[sources.a]\nmode = 'inline'\nfallback_content_type = 'a'",
            ["sources.a.fallback_content_type", "text/plain"],
        ),
        ("[sources.a]\nmode = 'inline'\nreply_within_s = 0", ["sources.a.reply_within_s", "0"]),
        ("[retention]\nevents_days = 1_000_000", ["retention.events_days", "36500"]),
        ("[worker]\nlease_s = inf", ["worker.lease_s", "finite", "inf"]),
        ("[worker]\nlease_s = nan", ["worker.lease_s", "nan"]),
        ("[sources.a]\nrate = inf", ["sources.a.rate", "finite", "inf"]),
        ("[sources.a]\nsecrets = ['evn:HUNTER2']", ["sources.a.secrets[0]", "env:NAME"]),
        ("[sources.a]\nsecrets = ['']", ["sources.a.secrets[0]", "empty"]),
        ("[sources.a]\nsecret = ['env:HUNTER2']", ["sources.a.secret is one secret", "sources.a.secrets for a list"]),
        ("[sources.a]\nsecrets = 'env:HUNTER2'", ["sources.a.secrets", 'must be a list; write ["env:NAME"]']),
        ("[sources.a]\npaths = ['hooks']", ["sources.a.paths[0]", 'start with "/"']),
        ("[sources.a]\npaths = ['/metrics']", ["sources.a.paths[0]", "belongs to boathook"]),
        ("[sources.a]\npaths = ['/x']\n[sources.b]\npaths = ['/x']", ["sources.b.paths", "/x", "'a'"]),
    ],
)
def test_a_wrong_setting_is_named_with_its_fix(tmp_path: Path, text: str, words: list[str]):
    message = complaint(tmp_path, text)
    for word in words:
        assert word in message
    assert "\n" not in message
    assert "hunter2" not in message.replace("evn:", "").lower(), "a secret is repeated in the message"


def test_handlers_retry_for_most_of_a_day_unless_overridden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    text = "[sources.shop]\nprovider = 'generic-hmac'\nretry = 'none'\n[sources.bank]\nprovider = 'generic-hmac'\n"
    retries = load(write(tmp_path, text)).retry_defaults()
    assert retries.of("bank") == retries.of(None) == retries.policy
    assert retries.policy.max_attempts == 12
    waits = [[retries.policy.wait_s(attempt, luck) for attempt in range(1, 12)] for luck in (0.0, 0.5, 1.0)]
    assert 15 * 3_600 < sum(waits[0]) < sum(waits[2]) < 24 * 3_600 < retries.policy.max_age_s
    assert waits[1] == sorted(waits[1])
    assert retries.of("shop").max_attempts == 1
    monkeypatch.setenv("BOATHOOK_WORKER_RETRY", "5, 60")
    monkeypatch.setenv("BOATHOOK_SOURCES_SHOP_RETRY", "7")
    retries = load(write(tmp_path, text)).retry_defaults()
    assert (retries.of("bank").delays_s, retries.of("shop").delays_s) == ((5.0, 60.0), (7.0,))


def test_a_wrong_variable_and_a_wrong_flag_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert "command line: server.gateway" in complaint(tmp_path, "", {"server.gateway": 3})
    assert "command line: nope" in complaint(tmp_path, "", {"nope": 3})
    monkeypatch.setenv("BOATHOOK_LIMITS_MAX_BODY", "x")
    assert "BOATHOOK_LIMITS_MAX_BODY" in complaint(tmp_path, "")
    monkeypatch.delenv("BOATHOOK_LIMITS_MAX_BODY")
    monkeypatch.setenv("BOATHOOK_SERVER_BNID", "x")
    assert "did you mean BOATHOOK_SERVER_BIND?" in complaint(tmp_path, "")
    monkeypatch.delenv("BOATHOOK_SERVER_BNID")
    monkeypatch.setenv("BOATHOOK_DATABSE_URL", "postgresql://db.internal/shop")
    assert "did you mean BOATHOOK_DATABASE_URL?" in complaint(tmp_path, "")


def test_variables_that_kubernetes_adds_are_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_HTTP", "PORT", "PORT_8080_TCP", "PORT_8080_TCP_ADDR"):
        monkeypatch.setenv(f"BOATHOOK_{name}", "10.0.0.1")
    assert load(write(tmp_path, "")).server.bind


@pytest.mark.parametrize("service", ["BOATHOOK", "BOATHOOK_SERVER", "BOATHOOK_CONSOLE", "BOATHOOK_DATABASE"])
def test_links_of_services_with_names_like_sections_are_ignored(monkeypatch: pytest.MonkeyPatch, service: str):
    # https://kubernetes.io/docs/tutorials/services/connect-applications-service/#environment-variables
    links = {
        "SERVICE_HOST": "10.0.0.11", "SERVICE_PORT": "80", "SERVICE_PORT_HTTP": "80", "PORT": "tcp://10.0.0.11:80",
        "PORT_80_TCP": "tcp://10.0.0.11:80", "PORT_80_TCP_PROTO": "tcp", "PORT_80_TCP_PORT": "80",
        "PORT_80_TCP_ADDR": "10.0.0.11",
    }  # fmt: skip
    before = load().unknown_variables
    for name, value in links.items():
        monkeypatch.setenv(f"{service}_{name}", value)
    assert load().unknown_variables == before


def test_an_unknown_variable_is_a_warning_unless_a_setting_refers_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("BOATHOOK_BINDD", "x")
    monkeypatch.setenv("BOATHOOK_TOKEN_OF_SHOP", "x")
    known = load(write(tmp_path, "[shop]\ntoken = 'env:BOATHOOK_TOKEN_OF_SHOP'\n")).unknown_variables
    assert ("did you mean BOATHOOK_BIND?" in known["BOATHOOK_BINDD"], "BOATHOOK_TOKEN_OF_SHOP" in known) == (
        True,
        False,
    )
    assert "BOATHOOK_TOKEN_OF_SHOP" in load(write(tmp_path, "")).unknown_variables


def test_the_environment_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = write(tmp_path, "[worker]\ntimeout_s = 7\n")
    monkeypatch.setenv("BOATHOOK_CONFIG", str(file))
    assert (load().worker.timeout_s, load().file) == (7.0, file)
    (tmp_path / "other.toml").write_text("[worker]\ntimeout_s = 8\n")
    assert load(tmp_path / "other.toml").worker.timeout_s == 8.0, "a flag comes before the environment"
    monkeypatch.setenv("BOATHOOK_CONFIG", str(tmp_path / "nope.toml"))
    with pytest.raises(ConfigError, match=r"BOATHOOK_CONFIG: there is no file .*nope\.toml"):
        load()


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_a_file_with_a_byte_order_mark_is_read(tmp_path: Path, ends: str):
    file = tmp_path / "boathook.toml"
    file.write_bytes(b"\xef\xbb\xbf" + f"[worker]{ends}timeout_s = 7{ends}".encode())
    assert load(file).worker.timeout_s == 7.0
    file.write_text("[worker]\ntimeout_s = 7\n", encoding="utf-16")
    with pytest.raises(ConfigError, match="save it as UTF-8"):
        load(file)


@pytest.mark.parametrize("driver", ["", "+asyncpg", "+psycopg", "+psycopg2"])
def test_a_url_of_sqlalchemy_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, driver: str):
    url = f"postgresql{driver}://user@host/shop"
    assert load(None, {"database.url": url}).database_url() == "postgresql://user@host/shop"
    monkeypatch.setenv("SHOP_URL", url)
    assert load(None, {"database.url": "env:SHOP_URL"}).database_url() == "postgresql://user@host/shop"


def test_a_variable_that_a_secret_refers_to_is_no_unknown_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("BOATHOOK_SOURCES_SECRET_OF_SHOP", "s")
    text = "[sources.shop]\nsecrets = ['env:BOATHOOK_SOURCES_SECRET_OF_SHOP']"
    assert load(write(tmp_path, text)).secrets_of("shop") == ("s",)
    assert "BOATHOOK_SOURCES_SECRET_OF_SHOP" in complaint(tmp_path, "")


def test_lists_and_source_keys_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("BOATHOOK_SERVER_ROLES", "gateway, keeper")
    monkeypatch.setenv("BOATHOOK_SERVER_TRUSTED_PROXIES", '["10.0.0.0/8"]')
    monkeypatch.setenv("BOATHOOK_SOURCES_MY_SHOP_MAX_BODY", "77")
    settings = load(write(tmp_path, "[sources.my-shop]\n"))
    assert settings.server.roles == ("gateway", "keeper")
    assert settings.server.trusted_proxies == (ip_network("10.0.0.0/8"),)
    assert settings.sources["my-shop"].max_body == 77


def test_secrets_are_read_from_variables_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "secret.txt").write_text("from-file\n")
    text = "[sources.a]\nsecrets = ['env:A_SECRET', 'file:secret.txt', 'plain']\n[sources.b]\nsecret = 'file:none'\n"
    settings = load(write(tmp_path, text))
    with pytest.raises(ConfigError, match=r"sources\.a\.secrets\[0\].*A_SECRET is not set"):
        settings.secrets_of("a")
    monkeypatch.setenv("A_SECRET", "from-env")
    assert settings.secrets_of("a") == ("from-env", "from-file", "plain")
    with pytest.raises(ConfigError, match=r"sources\.b\.secrets\[0\].*cannot read.*none"):
        settings.secrets_of("b")


def test_no_secret_shows_in_a_representation(tmp_path: Path):
    text = "[database]\nurl = 'postgresql://u:canary1@h/d'\n[sources.a]\nsecrets = ['canary2']\npassword = 'canary3'\nusername = 'u'\n"
    assert "canary" not in repr(load(write(tmp_path, text)))


def test_settings_of_a_recipe_are_shown_only_where_they_hold_no_secret(tmp_path: Path):
    text = "[sources.a]\nprovider = 'hmac'\nheader = 'X-Sig'\nkey2 = 'canary1'\nkey3 = 'env:KEY3'\nkeys = ['canary2']\n"
    shown = all_settings(load(write(tmp_path, text)))["sources"]["a"]
    assert "canary" not in str(shown)
    assert (shown["header"], shown["key2"], shown["key3"]) == ("X-Sig", "(hidden)", "env:KEY3")


def test_a_shown_setting_has_its_default_and_its_origin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("BOATHOOK_SERVER_WORKERS", "3")
    file = write(
        tmp_path,
        "[server]\ngateways = 1\n[notifications.rules.slow_acknowledgements]\nabove = 0.9\n"
        "[sources.a]\nsecrets = ['canary']\n[database]\nurl = 'postgresql://u:canary@h/d'\n",
    )
    settings = load(file, {"server.bind": "127.0.0.1:9"})
    changed = {one.key: one for one in find_settings(settings, "", is_changed_only=True)}
    shown = {key: (one.value, one.default, one.origin) for key, one in changed.items()}
    assert shown["server.workers"] == ("3", "1", "environment variable BOATHOOK_SERVER_WORKERS")
    assert shown["server.bind"] == ("127.0.0.1:9", "127.0.0.1:8080", "command line")
    assert shown["sources.a.secrets"] == ('["(hidden)"]', "[]", str(file))
    assert shown["notifications.rules.slow_acknowledgements.above"] == ("0.9", "0.5", str(file))
    assert not [
        key for key in changed if key.startswith("notifications.") and not key.endswith(".slow_acknowledgements.above")
    ]
    assert "server.gateways" not in changed
    assert "canary" not in str(list_settings(settings))
    found = find_settings(settings, "WORKERS environment", is_changed_only=False)
    assert [one.key for one in found] == ["server.workers"]
    assert len(find_settings(settings, "", is_changed_only=False)) > 100
    assert find_settings(settings, "no such thing", is_changed_only=False) == []
    assert Settings.model_validate_json(settings.model_dump_json()).origins == settings.origins


def test_other_tables_are_kept_for_apps(tmp_path: Path):
    settings = load(write(tmp_path, "[billing]\ncurrency = 'eur'\n"))
    assert settings.extra == {"billing": {"currency": "eur"}}


def test_only_explicit_source_options_reach_the_provider(tmp_path: Path):
    settings = load(
        write(tmp_path, "[sources.a]\nprovider = 'hmac'\nheader = 'X-Sig'\nmax_body = 9\nsecrets = ['x']\n")
    )
    assert settings.options_of("a") == {"header": "X-Sig"}
    assert set(SourceSettings.model_fields) >= {"provider", "secrets", "paths", "unsigned", "tolerance_s"}


def test_provider_options_resolve_secret_references(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("BOATHOOK_SOURCES_KEY", "k")
    monkeypatch.setenv("BOATHOOK_SOURCES_A_REGIONS", '["eu", "us"]')
    (tmp_path / "token.txt").write_text("t\n")
    text = (
        "[sources.a]\nmerchant_id = 7\npassword2 = 'env:BOATHOOK_SOURCES_KEY'\n"
        "tokens = ['file:token.txt', 'plain']\nregions = []\nheader = 'X-Sig'\nlater = 'env:MISSING'\n"
    )
    settings = load(write(tmp_path, text))
    with pytest.raises(ConfigError, match=r"sources\.a\.later: .*MISSING is not set"):
        settings.options_of("a")
    monkeypatch.setenv("MISSING", "found")
    assert settings.options_of("a") == {
        "header": "X-Sig",
        "merchant_id": 7,
        "password2": "k",
        "tokens": ["t", "plain"],
        "regions": ["eu", "us"],
        "later": "found",
    }
    assert Settings.model_validate_json(settings.model_dump_json()) == settings
    assert "plain" not in repr(settings)


@given(st.dictionaries(st.sampled_from(["workers", "gateways"]), st.integers(1, 99)), st.floats(0.1, 1e6))
def test_settings_round_trip_to_a_child_process(server: dict[str, int], drain_s: float):
    settings = load(Path("/dev/null"), {"server": {**server, "drain_s": drain_s, "trusted_proxies": ["::1/128"]}})
    assert Settings.model_validate_json(settings.model_dump_json()) == settings


@pytest.mark.parametrize("name", ["two words", "a/b", "", "-a", "café"])
def test_a_source_name_must_be_valid_in_a_url(tmp_path: Path, name: str):
    file = tmp_path / "boathook.toml"
    file.write_text(f'[sources."{name}"]\nprovider = "stripe"\n', encoding="utf-8")
    with pytest.raises(ConfigError, match="invalid source name"):
        load(file)
