"""Beginners' mistakes: each gets one sentence with the problem and the fix."""

import socket
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from boathook import config
from boathook.cli import main
from boathook.domain.errors import ConfigError
from boathook.server import supervisor
from tests.databases import with_database, with_user

EVENT = "evt_01h455vb4pex5vsknk084sn02q4"
STRIPE = """
    [sources.stripe]
    secrets = ["whsec_a_secret_of_stripe"]
"""
APP = '[server]\napp = "shop:hook"\n'
HOOKS = 'from boathook import Boathook, Event\nhook = Boathook()\n@hook.on("{}", "*")\nasync def pay(event: Event) -> None: ...\n'


WITH_HOOK = "from boathook import Boathook, Event, SyncTransaction, Transaction\nhook = Boathook()\n"
CHORE = "async def clean(): ...\n"


def with_signature(arguments: str) -> str:
    """Return shop.py with a handler of these arguments."""
    return f'{WITH_HOOK}@hook.on("stripe")\nasync def pay{arguments}: ...\n'


class Mistake(NamedTuple):
    """A mistake and the texts that its error must contain."""

    typed: str
    settings: str | None
    """boathook.toml below the database's URL; None for no file."""
    named: tuple[str, ...]
    code: int = 2
    handlers: str = ""
    """shop.py, if there is one."""
    url: str = "{url}"
    toml: str | None = None
    """boathook.toml as it is, without a database's URL."""
    environment: Mapping[str, str] = {}


MISTAKES = {
    "unknown provider": Mistake(
        "config check",
        '[sources.shop]\nprovider = "strpe"\nsecrets = ["x"]',
        ("sources.shop.provider", "perhaps stripe?"),
    ),
    "missing secret": Mistake("config check", "[sources.stripe]", ("sources.stripe.secrets",)),
    "variable of a secret not set": Mistake(
        "config check",
        '[sources.stripe]\nsecrets = ["env:NO_SUCH_VARIABLE"]',
        ("sources.stripe.secrets", "NO_SUCH_VARIABLE"),
    ),
    "secret with a list": Mistake(
        "config check", '[sources.stripe]\nsecret = ["x"]', ("sources.stripe.secret", "secrets")
    ),
    "port out of range": Mistake(
        "config check", '[server]\nbind = "127.0.0.1:99999"', ("server.bind", "127.0.0.1:8080")
    ),
    "address without a port": Mistake(
        "config check", '[server]\nbind = "localhost"', ("server.bind", 'such as "localhost:8080"')
    ),
    "unknown section": Mistake(
        "config check", "[sorces.stripe]", ("unknown section [sorces]", "did you mean sources?")
    ),
    "typo beside another mistake": Mistake(
        "config check", '[sources.stripe]\nsecrets = 5\n[server]\nbnd = "x"', ("server.bnd", "server.bind")
    ),
    "no TOML": Mistake("config check", "[server\n", ("boathook.toml", "line 3")),
    "duration as text": Mistake("config check", '[worker]\nlease_s = "soon"', ("worker.lease_s", "number")),
    "no retry schedule": Mistake("config check", '[worker]\nretry = "soon"', ("worker.retry",)),
    "handler of an unknown source": Mistake(
        "config check", APP + STRIPE, ("handler:pay", "'strip'", "did you mean 'stripe'?"), 0, HOOKS.format("strip")
    ),
    "error in the handlers' file": Mistake(
        "config check", APP, ("shop.py", "line 2"), handlers="x = 1\nhook = Boathok()\n"
    ),
    "no file of handlers": Mistake("config check", '[server]\napp = "sohp:hook"', ("server.app", "sohp")),
    "no such attribute": Mistake(
        "config check", '[server]\napp = "shop:hok"', ("server.app", "hok", "hook"), handlers=HOOKS.format("stripe")
    ),
    "database's URL without a scheme": Mistake(
        "events list", "", ("database.url", "postgresql://"), url="localhost/shop"
    ),
    "database unreachable": Mistake(
        "events list",
        "",
        ("database.url cannot be reached", "start the server"),
        1,
        url="postgresql://127.0.0.1:1/shop",
    ),
    "no such database": Mistake(
        "events list", "", ("database.url", "no_such_database", "correct its"), 1, url="{missing}"
    ),
    "no such user": Mistake("events list", "", ("database.url", "no_such_user", "correct its"), 1, url="{stranger}"),
    "no database": Mistake("events list", None, ("database.url", "boathook serve")),
    "no such settings file": Mistake("-c nope.toml config check", "", ("nope.toml",)),
    "folder as settings file": Mistake("-c . config check", "", ("cannot read",)),
    "unknown command": Mistake("event list", "", ("'event'", "events")),
    "unknown option": Mistake("events list --sorce stripe", "", ("--sorce", "--source")),
    "missing argument": Mistake("events show", "", ("ID",)),
    "id that does not exist": Mistake(f"events show {EVENT}", "", ("no event", EVENT), 1),
    "beginning that does not exist": Mistake("events show evt_01h455vb", "", ("no event", "evt_01h455vb"), 1),
    "id of another kind": Mistake(f"dead show {EVENT}", "", ("dlv_", "event")),
    "no id": Mistake("dead replay 5", "", ("dlv_", "'5'")),
    "time in words": Mistake("events list --since yesterday", "", ("yesterday", "2h")),
    "limit in words": Mistake("events list --limit many", "", ("--limit", "integer")),
    "lifetime without a unit": Mistake("keys create --expires 30", "", ("'30'", "30d")),
    "payload that is no JSON": Mistake("send --application acme --type a.b --data {", "", ("--data", "JSON")),
    "schema that is no JSON": Mistake("event-types create a.b --schema {", "", ("--schema", "JSON")),
    "unknown application": Mistake("send --application nobody --type a.b", "", ("'nobody'", "applications create"), 1),
    "field without a value": Mistake("trigger stripe --set amount", STRIPE, ("--set", "NAME=VALUE", "'amount'")),
    "unknown source": Mistake("trigger strip", STRIPE, ("'strip'", "stripe"), 1),
    "unknown event type": Mistake(
        "config check",
        APP + '[sources.github]\nsecrets = ["a long secret of github"]',
        ("'pull_requst.opened'", "did you mean 'pull_request.opened'?"),
        0,
        HOOKS.format("github").replace("*", "pull_requst.opened"),
    ),
    "wrong port": Mistake(
        "trigger stripe --url localhost:{free}", STRIPE, ("no response from localhost:", "boathook serve")
    ),
    "folder as a file": Mistake("trigger stripe --file .", STRIPE, ("cannot read .: Is a directory",)),
    "another data folder": Mistake(
        "events list --data-dir nowhere", None, ("nowhere", "database.url", "boathook migrate")
    ),
    "no boathook runs": Mistake("trigger stripe", STRIPE + '[server]\nbind = "127.0.0.1:{free}"', ("boathook serve",)),
    "no such file": Mistake("trigger stripe --file nope.json", STRIPE, ("nope.json",)),
    "unknown provider of a project": Mistake("init --source strpe shop", None, ("strpe", "stripe")),
    "nothing selected": Mistake("dead replay", "", ("--all", "--source")),
    "name of a variable as a secret": Mistake(
        "config check",
        '[sources.stripe]\nsecrets = ["STRIPE_SECRET"]',
        ("sources.stripe.secrets[0]", 'write "env:STRIPE_SECRET"', "begins with whsec_"),
    ),
    "reference of a shell as a secret": Mistake(
        "config check", '[sources.stripe]\nsecrets = ["${STRIPE_SECRET}"]', ('write "env:STRIPE_SECRET"',)
    ),
    "API key as a secret": Mistake(
        "config check",
        '[sources.stripe]\nsecrets = ["sk_live_51H0000"]',
        ("sources.stripe.secrets[0]", "begins with whsec_", "API key"),
    ),
    "API key of Paddle as a secret": Mistake(
        "config check", '[sources.paddle]\nsecrets = ["pdl_live_apikey_01"]', ("begins with pdl_ntfset_", "API key")
    ),
    "name of a variable as a key in hexadecimal": Mistake(
        "config check", '[sources.adyen]\nsecrets = ["ADYEN_KEY"]', ("sources.adyen.secrets[0]", '"env:ADYEN_KEY"')
    ),
    "name of a variable as a chosen secret": Mistake(
        "config check", '[sources.github]\nsecrets = ["GITHUB_SECRET"]', ('write "env:GITHUB_SECRET"',), 0
    ),
    "secret of one character": Mistake(
        "config check", '[sources.github]\nsecrets = ["x"]', ("sources.github.secrets[0]", "6 characters", "random")
    ),
    "secret of one character at the start": Mistake(
        "serve", '[sources.github]\nsecrets = ["x"]', ("sources.github.secrets[0]", "6 characters", "random")
    ),
    "secret in the file": Mistake(
        "config check",
        '[sources.github]\nsecrets = ["a long secret of github"]',
        ("sources.github.secrets[0]", "env:NAME"),
        0,
    ),
    "short key": Mistake(
        "config check", '[outbound]\nencryption_keys = ["abc"]', ("outbound.encryption_keys[0]", "16", "token_urlsafe")
    ),
    "name of a variable as a key": Mistake(
        "config check", '[outbound]\nencryption_keys = ["OUR_ENCRYPTION_KEY"]', ('"env:OUR_ENCRYPTION_KEY"',), 0
    ),
    "seconds with a unit": Mistake("config check", '[worker]\ntimeout_s = "30s"', ("worker.timeout_s", "write 30")),
    "days in hours": Mistake("config check", '[console]\nidle_hours = "2 days"', ("console.idle_hours", "write 48")),
    "bytes with a unit": Mistake("config check", '[limits]\nmax_body = "1MB"', ("limits.max_body", "write 1048576")),
    "open quotes": Mistake("config check", '[server]\napp = "shop:hook', ("boathook.toml", "line", "close the quotes")),
    "text without quotes": Mistake("config check", "[server]\napp = shop:hook", ("boathook.toml", "in quotes")),
    "YAML": Mistake("config check", "server:\n  bind: x", ("boathook.toml", "[server]", 'bind = "127.0.0.1:8080"')),
    "network with host bits": Mistake(
        "config check", '[outbound]\nallow = ["10.0.0.1/8"]', ("outbound.allow[0]", 'write "10.0.0.0/8"')
    ),
    "embedded PostgreSQL in production": Mistake(
        "config check", None, ("server.production", "set database.url"), 0, toml="[server]\nproduction = true\n"
    ),
    "list as a path": Mistake(
        "config check",
        APP,
        ("hook.on('stripe')", "order_by", "without brackets"),
        handlers=HOOKS.format("stripe").replace('"*"', 'order_by=["data.id"]'),
    ),
    "list of types": Mistake(
        "config check",
        APP,
        ("types", '"a.b", "c.d" without brackets'),
        handlers=HOOKS.format("stripe").replace('"*"', '["a.b", "c.d"]'),
    ),
    "number as a policy": Mistake(
        "config check",
        APP,
        ("handler pay", "retry", "RetryPolicy(max_attempts=5)", "5"),
        handlers=HOOKS.format("stripe").replace('"*"', "retry=5"),
    ),
    "text as a timeout": Mistake(
        "config check",
        APP,
        ("handler pay", "timeout", "seconds", "'30s'"),
        handlers=HOOKS.format("stripe").replace('"*"', 'timeout="30s"'),
    ),
    "text in a policy": Mistake(
        "config check",
        APP,
        ("RetryPolicy.max_attempts", "number", "shop.py"),
        handlers="from boathook import RetryPolicy\n"
        + HOOKS.format("stripe").replace('"*"', 'retry=RetryPolicy(max_attempts="5")'),
    ),
    "library that is not installed": Mistake(
        "config check",
        APP,
        ("shop.py", 'pip install "boathook[sqlalchemy]"'),
        handlers="import sqlalchemy.no_such_part\n",
    ),
    "module with a similar name": Mistake(
        "config check", '[server]\napp = "shpo:hook"', ("server.app", "did you mean shop?"), handlers=HOOKS.format("a")
    ),
    "type without its second part": Mistake(
        "config check",
        APP + '[sources.github]\nsecrets = ["a long secret of github"]',
        ("'issues'", "GitHub", 'hook.on("github", "issues.*")'),
        1,
        HOOKS.format("github").replace('"*"', '"issues"'),
    ),
    "misspelled second part of a type": Mistake(
        "config check",
        APP + STRIPE,
        ("'payment_intent.suceeded'", "did you mean 'payment_intent.succeeded'?"),
        0,
        HOOKS.format("stripe").replace('"*"', '"payment_intent.suceeded"'),
    ),
    "variable with a typo": Mistake(
        "config check", "", ("BOATHOOK_BINDD", "did you mean BOATHOOK_BIND?"), 0, environment={"BOATHOOK_BINDD": "x"}
    ),
    "no file at BOATHOOK_CONFIG": Mistake(
        "config check", "", ("BOATHOOK_CONFIG", "nope.toml"), environment={"BOATHOOK_CONFIG": "nope.toml"}
    ),
    "another database in a variable": Mistake(
        "config check",
        None,
        ("database.url", "env:OUR_DATABASE", "postgresql://"),
        toml='[database]\nurl = "env:OUR_DATABASE"\n',
        environment={"OUR_DATABASE": "mysql://localhost/shop"},
    ),
    "unset variable of a key": Mistake(
        "config check",
        '[outbound]\nencryption_keys = ["env:NO_SUCH_KEY"]',
        ("outbound.encryption_keys[0]", "NO_SUCH_KEY is not set"),
    ),
    "unset variable of a proxy": Mistake(
        "config check", '[outbound]\nproxy = "env:NO_SUCH_PROXY"', ("outbound.proxy", "NO_SUCH_PROXY is not set")
    ),
    "source without a provider": Mistake(
        "config check", '[sources.shop]\nsecrets = ["x"]', ("sources.shop.provider", 'provider = "hmac"')
    ),
    "unknown type in a schema": Mistake(
        "config check",
        STRIPE + '[sources.stripe.schema]\ntype = "objct"',
        ("sources.stripe.schema", "'objct'", "'object'"),
    ),
    "host of a database that is unknown": Mistake(
        "events list", "", ("database.url", "'no-such-host.invalid'"), 1, url="postgresql://no-such-host.invalid/shop"
    ),
    "port alone": Mistake("config check", '[server]\nbind = ":9000"', ("server.bind", '"127.0.0.1:9000"')),
    "port as a number": Mistake("config check", "[server]\nbind = 9000", ("server.bind", '"127.0.0.1:9000"')),
    "port as a setting": Mistake("config check", "[server]\nport = 9000", ("server.port", 'write bind = "127.0.0.1:')),
    "host of a database as a setting": Mistake(
        "config check", None, ("database.host", 'write url = "postgresql://'), toml='[database]\nhost = "db"\n'
    ),
    "setting of another section": Mistake(
        "config check", "[server]\ntimeout_s = 5", ("server.timeout_s", "did you mean worker.timeout_s?")
    ),
    "setting outside of a section": Mistake(
        "config check", None, ("bind is outside of a section", "below [server]"), toml='bind = "127.0.0.1:9000"\n'
    ),
    "array of sources": Mistake(
        "config check", '[[sources]]\nname = "stripe"', ("sources must be a table", "[sources.NAME]")
    ),
    "provider as a section": Mistake(
        "config check", "[stripe]\n", ("nothing reads the section [stripe]", "write [sources.stripe]"), 0
    ),
    "section of no app": Mistake("config check", "[billing]\n", ("nothing reads the section [billing]",), 0),
    "text as a whole number": Mistake(
        "config check", '[server]\nworkers = "four"', ("server.workers", "must be a whole number", "'four'")
    ),
    "word as a switch": Mistake(
        "config check", '[spool]\nenabled = "maybe"', ("spool.enabled", "must be true or false", "'maybe'")
    ),
    "number as text": Mistake("config check", "[worker]\nretry = 5", ("worker.retry", "in quotes", 'write "5"')),
    "text as a list": Mistake("config check", '[server]\nroles = "worker"', ("server.roles", 'write ["worker"]')),
    "list as a table": Mistake(
        "config check", '[notifications]\nchannels = ["ops"]', ("notifications.channels", "must be a table")
    ),
    "unknown kind of a channel": Mistake(
        "config check", '[notifications.channels.ops]\nkind = "slak"', ("channels.ops: kind must be one of", "'slack'")
    ),
    "list in a variable": Mistake(
        "config check",
        STRIPE,
        ("BOATHOOK_SOURCES_STRIPE_SECRETS", "must be a list"),
        environment={"BOATHOOK_SOURCES_STRIPE_SECRETS": '["whsec_x"'},
    ),
    "address without a scheme": Mistake(
        "config check", '[server]\npublic_url = "hooks.shop.com"', ("server.public_url", '"https://hooks.shop.com"')
    ),
    "space after env:": Mistake(
        "config check", '[sources.stripe]\nsecrets = ["env: KEY"]', ("sources.stripe.secrets[0]", 'write "env:KEY"')
    ),
    "dollar after env:": Mistake(
        "config check", '[sources.stripe]\nsecrets = ["env:$KEY"]', ("sources.stripe.secrets[0]", 'write "env:KEY"')
    ),
    "capital env:": Mistake(
        "config check", '[sources.github]\nsecrets = ["ENV:KEY"]', ("sources.github.secrets[0]", 'write "env:NAME"')
    ),
    "other name for secrets": Mistake(
        "config check", '[sources.github]\nsigning_secret = "x"', ("sources.github.signing_secret", "perhaps secrets?")
    ),
    "variable in quotes": Mistake(
        "config check",
        '[sources.github]\nsecrets = ["env:GITHUB_KEY"]',
        ("sources.github.secrets[0]", "GITHUB_KEY is in quotes"),
        0,
        environment={"GITHUB_KEY": '"a long secret of github"'},
    ),
    "variable with a line break": Mistake(
        "config check",
        '[sources.github]\nsecrets = ["env:GITHUB_KEY"]',
        ("sources.github.secrets[0]", "GITHUB_KEY begins or ends with white space"),
        0,
        environment={"GITHUB_KEY": "a long secret of github\n"},
    ),
    "missing file of a secret": Mistake(
        "config check",
        '[sources.github]\nsecrets = ["file:nope"]',
        ("sources.github.secrets[0]", "nope: No such file", "correct the path"),
    ),
    "slash in a password": Mistake(
        "config check", "", ("database.url", "its user or password", "%2F"), url="postgresql://u:p/w@db:5432/shop"
    ),
    "port of a database": Mistake(
        "config check", "", ("database.url", "no number as its port"), url="postgresql://u:p@db:54x/shop"
    ),
    "Python's True": Mistake("config check", "[spool]\nenabled = True", ("boathook.toml", "write true")),
    "curly quotes": Mistake("config check", "[server]\nbind = “::1”", ("boathook.toml", "straight quotes")),
    "comment with slashes": Mistake("config check", "// mine", ("boathook.toml", "begins with #")),
    "path of Windows": Mistake("config check", '[server]\ndata_dir = "C:\\users"', ("boathook.toml", "single quotes")),
    "open list": Mistake("config check", '[server]\nroles = ["worker"\n[log]', ("boathook.toml", "list", "with ]")),
    "file as a data folder": Mistake(
        "config check",
        '[server]\ndata_dir = "shop.py"',
        ("server.data_dir", "shop.py is not a folder"),
        handlers="x = 1\n",
    ),
    "variable with a misspelt beginning": Mistake(
        "config check", "", ("BOATHOK_BIND", "begins almost as BOATHOOK_"), 0, environment={"BOATHOK_BIND": "x"}
    ),
    "variable of a port": Mistake(
        "config check", "", ("BOATHOOK_PORT", "did you mean BOATHOOK_BIND?"), 0, environment={"BOATHOOK_PORT": "9000"}
    ),
    "no handlers": Mistake(
        "config check",
        APP,
        ("shop:hook has no handlers", "@hook.on"),
        0,
        handlers="from boathook import Boathook\nhook = Boathook()\n",
    ),
    "file as an app": Mistake("config check", '[server]\napp = "./shop.py:hook"', ("server.app", '"shop:hook"')),
    "class as an app": Mistake(
        "config check",
        APP,
        ("server.app", "write hook = Boathook()"),
        handlers="from boathook import Boathook\nhook = Boathook\n",
    ),
    "object of a framework as an app": Mistake(
        "config check",
        '[server]\napp = "shop:app"',
        ("it is of class object", "did you mean shop:hook?"),
        handlers="from boathook import Boathook\napp, hook = object(), Boathook()\n",
    ),
    "module of a file": Mistake(
        "config check", '[server]\napp = "shop.hooks:hook"', ("shop is a file", "hooks.py"), handlers=HOOKS.format("a")
    ),
    "misspelt module of a package": Mistake(
        "config check", '[apps]\nload = ["biling"]', ("apps.load", "did you mean billing?")
    ),
    "policy without names": Mistake(
        "config check",
        APP,
        ("shop.py, line 4", "retry=RetryPolicy(5)"),
        handlers="from boathook import RetryPolicy\n" + HOOKS.format("stripe").replace('"*"', "retry=RetryPolicy(5)"),
    ),
    "unknown argument": Mistake(
        "config check", APP, ("'type'", "shop.py, line 3"), handlers=HOOKS.format("stripe").replace('"*"', 'type="a"')
    ),
    "number as a name": Mistake(
        "config check", APP, ("name: write text",), handlers=HOOKS.format("stripe").replace('"*"', "name=5")
    ),
    "function as a path": Mistake(
        "config check",
        APP,
        ("order_by: write text such as",),
        handlers=HOOKS.format("stripe").replace('"*"', "order_by=lambda event: event.id"),
    ),
    "filter without a part": Mistake(
        "config check",
        APP,
        ("filter.amount", '{"body": {"amount": 5}}'),
        handlers=HOOKS.format("stripe").replace('"*"', 'filter={"amount": 5}'),
    ),
    "two types in one text": Mistake(
        "config check",
        APP + STRIPE,
        ("one type with a separator", 'hook.on("stripe", "charge.failed", "charge.succeeded")'),
        0,
        HOOKS.format("stripe").replace('"*"', '"charge.failed, charge.succeeded"'),
    ),
    "type with other separators": Mistake(
        "config check",
        APP + STRIPE,
        ("did you mean 'payment_intent.succeeded'?",),
        0,
        HOOKS.format("stripe").replace('"*"', '"payment_intent_succeeded"'),
    ),
    "argument that gets no value": Mistake(
        "config check", APP, ("handler pay", "tx gets no value"), handlers=with_signature("(event, *, tx)")
    ),
    "event as the second argument": Mistake(
        "config check", APP, ("handler pay", "(pay(event, tx))"), handlers=with_signature("(tx, event: Event)")
    ),
    "transaction of async functions": Mistake(
        "config check",
        APP,
        ("handler pay", "without async", "tx: SyncTransaction"),
        handlers=with_signature("(event, tx: Transaction)").replace("async def", "def"),
    ),
    "transaction of other functions": Mistake(
        "config check",
        APP,
        ("handler pay", "async function", "tx: Transaction"),
        handlers="from __future__ import annotations\n" + with_signature("(event, tx: SyncTransaction)"),
    ),
    "generator as a handler": Mistake(
        "config check", APP, ("handler pay", "yield"), handlers=with_signature("(event)").replace("...", "yield 1")
    ),
    "interval as text": Mistake(
        "config check", APP, ("hook.every", "seconds", "'5m'"), handlers=WITH_HOOK + '@hook.every("5m")\n' + CHORE
    ),
    "interval without parentheses": Mistake(
        "config check", APP, ("write @hook.every(60)",), handlers=WITH_HOOK + "@hook.every\n" + CHORE
    ),
    "chore with an argument": Mistake(
        "config check",
        APP,
        ("hook.every", "no arguments"),
        handlers=WITH_HOOK + "@hook.every(5)\n" + CHORE.replace("()", "(now)"),
    ),
    "nothing mounted": Mistake(
        "config check", APP, ("hook.mount", "ASGI"), handlers=WITH_HOOK + 'hook.mount("/shop", None)\n'
    ),
    "sessionmaker of the other kind": Mistake(
        "config check",
        APP,
        ("write sqlalchemy_async(async_sessionmaker(engine))", "not a sessionmaker"),
        handlers="from sqlalchemy.orm import sessionmaker\nfrom boathook.handlers.sessions import sqlalchemy_async\n"
        + HOOKS.format("stripe").replace('"*"', "session=sqlalchemy_async(sessionmaker())"),
    ),
    "unknown capability": Mistake("applications portal acme --may Everything", "", ("--may", "ViewBase")),
}


@pytest.fixture(scope="module")
def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize("mistake", [pytest.param(mistake, id=name) for name, mistake in MISTAKES.items()])
def test_the_error_names_the_problem_and_the_fix(
    mistake: Mistake,
    tmp_path: Path,
    shared_url: str,
    unused_port: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "shop", raising=False)
    if mistake.settings is not None:
        url = mistake.url.format(
            url=shared_url,
            missing=with_database(shared_url, "no_such_database"),
            stranger=with_user(shared_url, "no_such_user"),
        )
        text = f'[database]\nurl = "{url}"\n' + textwrap.dedent(mistake.settings).replace("{free}", str(unused_port))
        (tmp_path / "boathook.toml").write_text(text)
    if mistake.toml is not None:
        (tmp_path / "boathook.toml").write_text(mistake.toml)
    for name, value in mistake.environment.items():
        monkeypatch.setenv(name, value)
    if mistake.handlers:
        (tmp_path / "shop.py").write_text(mistake.handlers)
    with pytest.raises(SystemExit) as ended:
        main(mistake.typed.replace("{free}", str(unused_port)).split())
    answer = capsys.readouterr()
    assert (ended.value.code, [part for part in mistake.named if part not in answer.err]) == (mistake.code, []), (
        answer.err
    )
    assert "Traceback" not in answer.err + answer.out
    assert len(answer.err.splitlines()) <= 3


def test_a_port_in_use_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(supervisor, "BIND_S", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as other:
        settings = config.load(None, {"server.bind": f"127.0.0.1:{other.getsockname()[1]}"})
        with pytest.raises(ConfigError, match=r"server\.bind: .*another process.*--port or server\.bind"):
            supervisor.bind(settings)
