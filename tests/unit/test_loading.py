"""Apps are found, checked and merged with the settings, and every error names its location."""

import importlib.util
import itertools
import json
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace

import pytest

from boathook import config
from boathook.cli.apps import tables
from boathook.config import Settings
from boathook.config.faults import is_secret
from boathook.domain.errors import ConfigError
from boathook.handlers.hooks import Hooks
from boathook.handlers.sessions import django, psycopg_async, psycopg_sync, sqlalchemy_async, sqlalchemy_sync
from boathook.observability.metrics import METRICS
from boathook.server.installed_apps import installed_apps, module_of
from boathook.server.loading import bind, load_app, load_apps, load_hooks, migrations_of, settings_of, with_apps
from boathook.server.supervisor import _slots

_NUMBERS = itertools.count()

CELLS = """
    [cells]
    name = "c1"
    secret = "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
    [cells.members]
    c1 = { url = "https://c1.example", accepts_new = true }
    c2 = { url = "https://c2.example" }
    c3 = { url = "https://c3.example" }
"""
PLAIN = """
    from typing import Annotated
    from pydantic import BaseModel, Field, SecretStr
    from boathook import Boathook

    class Plan(BaseModel, extra="forbid"):
        id: str
        price: Annotated[float, Field(gt=0)]

    class Own(BaseModel, extra="forbid"):
        secret: str = "s3cret"
        api_token: Annotated[str, Field(max_length=4)] = ""
        plans: list[Plan] = []

    hook = Boathook("shelf", settings=Own)

    @hook.sources
    def sources(settings):
        return {"books": {"provider": "hmac", "secret": settings.secret, "header": "X-Mac", "paths": ["/webhooks/books"]}}

    @hook.on("books", "book.*")
    def lend(event):
        pass
"""

Place = Callable[..., Settings]


@pytest.fixture(autouse=True)
def same_metrics() -> Iterator[None]:
    """Forget the metrics that a test's apps declare."""
    known = dict(METRICS)
    yield
    METRICS.clear()
    METRICS.update(known)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Write modules and a boathook.toml that loads them, each under a name of its own; return the settings."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def write(*modules: str, toml: str = "", app: str = "") -> Settings:
        names = [f"shelf_{next(_NUMBERS)}" for _ in modules]
        for name, code in zip(names, modules, strict=True):
            (tmp_path / f"{name}.py").write_text(dedent(code))
        (tmp_path / "boathook.toml").write_text(
            f"[apps]\nload = {json.dumps(names)}\n{dedent(toml)}\n[server]\napp = {json.dumps(app.format(*names))}\n"
        )
        return config.load()

    return write


def complaint(call: Callable[[], object]) -> str:
    with pytest.raises(ConfigError) as caught:
        call()
    return str(caught.value)


class TestTheListOfModules:
    @pytest.mark.parametrize("name", ["no module", "shop:hook", "", "a..b", "9lives", "../x"])
    def test_a_name_that_no_module_can_have_is_refused(self, name: str):
        assert "apps.load[0]: must be the name of an installed app" in complaint(
            lambda: config.load(overrides={"apps.load": [name]})
        )

    def test_a_module_listed_twice_is_refused(self):
        assert "is listed twice" in complaint(lambda: config.load(overrides={"apps.load": ["a", "b", "a"]}))

    def test_apps_may_be_listed_in_the_environment(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setenv("BOATHOOK_APPS_LOAD", "billing,shop")
        assert config.load().apps.load == ("billing", "shop")


class TestInstalledApps:
    def test_a_name_is_an_installed_app(self, tmp_path: Path):
        (tmp_path / "boathook.toml").write_text('[apps]\nload = ["billing"]\n[billing]\nsecret = "of-the-sender"\n')
        [hook] = load_apps(config.load(tmp_path / "boathook.toml"))
        assert (hook.name, module_of("billing")) == ("billing", "boathook_billing")

    def test_being_installed_loads_nothing(self):
        assert "billing" in installed_apps()
        assert load_apps(config.load()) == ()

    @pytest.mark.parametrize("name", ["billing", "cashdesk", "fleet", "music"])
    def test_the_former_module_is_an_error_that_says_what_to_write(self, name: str):
        said = complaint(lambda: config.load(overrides={"apps.load": [f"boathook.apps.{name}"]}))
        assert f'the app "{name}" of the package boathook-{name}: install it, and write "{name}"' in said

    def test_a_module_with_the_name_of_an_installed_app_is_refused(self, tmp_path: Path):
        (tmp_path / "boathook.toml").write_text('[apps]\nload = ["billing"]\n')
        (tmp_path / "billing.py").write_text("raise SystemExit")
        said = complaint(lambda: load_apps(config.load(tmp_path / "boathook.toml")))
        assert f"the module {tmp_path / 'billing.py'}" in said
        assert 'write "boathook_billing" for the app, or rename the module' in said

    def test_a_ready_made_app_that_is_not_installed_says_how_to_install_it(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr("boathook.server.installed_apps.installed_apps", dict)
        assert "pip install boathook-fleet" in complaint(
            lambda: load_apps(config.load(overrides={"apps.load": ["fleet"]}))
        )

    def test_two_packages_with_one_name_are_refused(self, monkeypatch: pytest.MonkeyPatch):
        points = [EntryPoint("shop", module, "boathook.apps") for module in ("here", "there")]
        monkeypatch.setattr("importlib.metadata.entry_points", lambda *, group: points)
        assert "two installed packages declare the app 'shop': here and there" in complaint(installed_apps)

    def test_a_misspelt_name_is_answered_with_the_near_one(self):
        assert "did you mean billing?" in complaint(lambda: load_apps(config.load(overrides={"apps.load": ["biling"]})))


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("import nowhere_at_all", "importing shelf_{n} fails: ModuleNotFoundError: No module named 'nowhere_at_all' ("),
        ("from boathook.pages import Pages", "No module named 'boathook.pages' ("),
        ("from boathook.pages import Pages", "line 1); it is boathook_pages now"),
        ("import boathook.sign_in", "line 1); it is boathook_pages.sign_in now"),
        ("def one():\n    1 / 0\none()", "shelf_{n}.py, line 2, in one; called from "),
        ("def one():\n    1 / 0\none()", "shelf_{n}.py, line 3)"),
        ("1 / 0", "importing shelf_{n} fails: ZeroDivisionError: division by zero"),
        ("other = 1", "apps.load: shelf_{n}:hook must be a Boathook object, but there is no such attribute"),
        ("hook = 1", "apps.load: shelf_{n}:hook must be a Boathook object, but it is of class int"),
        ("from boathook import Boathook\nhook = Boathook()", "shelf_{n}: invalid app name ''"),
        ("from boathook import Boathook\nhook = Boathook('server')", "shelf_{n}: invalid app name 'server'"),
        ("from boathook import Boathook\nhook = Boathook('Shelf')", "shelf_{n}: invalid app name 'Shelf'"),
        ("from boathook import Boathook\nhook = Boathook('boathook')", "shelf_{n}: invalid app name 'boathook'"),
        (
            "from boathook import Boathook\nhook = Boathook('shelf')\nhook.counter('boathook_backlog', 'Mine.')",
            "the metric boathook_backlog already exists",
        ),
        (
            "from boathook import Boathook\nhook = Boathook('shelf')\nhook.sources(lambda settings: 1 / 0)",
            "the sources of shelf_{n} fail: ZeroDivisionError",
        ),
        (
            """
            from boathook import Boathook
            hook = Boathook('shelf')
            hook.sources(lambda settings: {'books': {'provider': 'hmac', 'max_body': 0, 'secret': 'abc'}})
            """,
            "apps.load: shelf_{n}: sources.books.max_body: must be at least 1",
        ),
    ],
)
def test_an_app_that_cannot_be_loaded_is_explained(place: Place, code: str, says: str):
    settings = place(code)
    number = settings.apps.load[0].rpartition("_")[2]
    assert says.replace("{n}", number) in complaint(lambda: with_apps(settings))


def test_handlers_of_a_source_that_the_app_does_not_use_have_no_route(place: Place):
    settings = place(
        """
        from boathook import Boathook
        hook = Boathook('shelf')
        hook.sources(lambda settings: {'books': {'provider': 'stripe', 'secret': 'abc'}, 'maps': None})

        @hook.on('books')
        @hook.on('maps')
        def lend(event):
            pass

        @hook.on('maps')
        def unfold(event):
            pass
        """
    )
    settings, [hook] = with_apps(settings)
    assert "maps" not in settings.sources
    assert [(route.recipient, route.source) for route in hook.routes("shelf")] == [("handler:shelf.lend", "books")]
    assert set(hook.handlers) == {"shelf.lend", "shelf.unfold"}, "deliveries that exist are still handled"


def test_a_module_that_is_not_there_is_named(place: Place):
    place()
    settings = config.load(overrides={"apps.load": ["no_such_module_anywhere"]})
    assert "apps.load: there is no module 'no_such_module_anywhere' in" in complaint(lambda: load_apps(settings))


class TestAppTable:
    def test_is_checked_and_filled_with_defaults(self, place: Place):
        settings = place(PLAIN, toml='[shelf]\nplans = [{id = "month", price = 3}]')
        [hook] = load_apps(settings)
        own = settings_of(hook, settings)
        assert own is not None
        assert own.model_dump() == {"secret": "s3cret", "api_token": "", "plans": [{"id": "month", "price": 3.0}]}

    @pytest.mark.parametrize(
        ("toml", "says"),
        [
            (
                '[[shelf.plans]]\nid = "month"\nprice = -1',
                "boathook.toml: shelf.plans[0].price: must be greater than 0 (it is -1)",
            ),
            ('[[shelf.plans]]\nid = "month"', "boathook.toml: shelf.plans[0].price: is missing"),
            ('[shelf]\ncolour = "red"', "boathook.toml: shelf.colour: is not a setting"),
            ("[shelf]\nsecret = 12", "boathook.toml: shelf.secret: must be text in quotes"),
            (
                '[shelf]\napi_token = "abcdef"',
                "boathook.toml: shelf.api_token: string should have at most 4 characters",
            ),
        ],
    )
    def test_a_wrong_key_is_named_with_the_file(self, place: Place, toml: str, says: str):
        settings = place(PLAIN, toml=toml)
        said = complaint(lambda: load_apps(settings))
        assert says in said
        assert "abcdef" not in said

    def test_an_error_about_the_whole_table_reveals_no_secret(self, place: Place):
        code = """
            from pydantic import BaseModel, model_validator
            from boathook import Boathook

            class Own(BaseModel, extra="allow"):
                @model_validator(mode="after")
                def check(self):
                    raise ValueError("add a plan")

            hook = Boathook("shelf", settings=Own)
        """
        settings = place(code, toml='[shelf]\nsecret = "hush"\n[[shelf.shops]]\ntoken = "hush"')
        assert complaint(lambda: load_apps(settings)).endswith("boathook.toml: shelf: add a plan")

    def test_an_apps_own_settings_error_is_passed_on(self, place: Place):
        code = """
            from pydantic import BaseModel, model_validator
            from boathook import Boathook, ConfigError

            class Own(BaseModel, extra="allow"):
                @model_validator(mode="before")
                @classmethod
                def check(cls, given):
                    raise ConfigError("the environment variable SHELF is nonsense")

            hook = Boathook("shelf", settings=Own)
        """
        said = complaint(lambda: load_apps(place(code, toml="[shelf]")))
        assert said.endswith("boathook.toml: shelf: the environment variable SHELF is nonsense")

    def test_a_table_of_no_app_is_ignored(self, place: Place):
        settings, _ = with_apps(place(PLAIN, toml="[warehouse]\nrows = 3"))
        assert settings.extra["warehouse"] == {"rows": 3}

    def test_are_available_to_the_app_once_bound(self, place: Place):
        settings = place(PLAIN, toml='[shelf]\nsecret = "env:NOT_SET"')
        [hook] = load_apps(settings)
        assert "known once boathook loads it" in complaint(lambda: hook.settings)
        bind(settings, [hook])
        assert hook.settings.secret == "env:NOT_SET"

    @pytest.mark.parametrize(
        "key", ["secret", "a.api_key", "x.secrets[1]", "token", "password", "plans[0].signing_keys"]
    )
    def test_a_secret_is_known_by_its_name(self, key: str):
        assert is_secret(key)

    @pytest.mark.parametrize("key", ["monkey", "key_encoding", "secretary", "tokens_per_day", "dedup_fields"])
    def test_other_names_are_not_secrets(self, key: str):
        assert not is_secret(key)


class TestAppSources:
    def test_are_sources_like_all_others(self, place: Place):
        settings, _ = with_apps(place(PLAIN, toml='[shelf]\nsecret = "env:SHELF"'))
        books = settings.sources["books"]
        assert (books.provider, books.secrets, books.paths) == ("hmac", ("env:SHELF",), ("/webhooks/books",))

    def test_user_settings_override_app_sources_by_key(self, place: Place):
        toml = '[sources.books]\npaths = ["/mine"]\nmax_body = 500'
        settings, _ = with_apps(place(PLAIN, toml=toml))
        books = settings.sources["books"]
        assert (books.provider, books.paths, books.max_body) == ("hmac", ("/mine",), 500)
        assert books.options == {"header": "X-Mac"}

    def test_other_sources_stay(self, place: Place):
        settings, _ = with_apps(place(PLAIN, toml='[sources.github]\nsecret = "abc"'))
        assert sorted(settings.sources) == ["books", "github"]

    def test_a_path_that_another_source_has_is_refused(self, place: Place):
        settings = place(PLAIN, toml='[sources.github]\nsecret = "abc"\npaths = ["/webhooks/books"]')
        assert "sources.books.paths: /webhooks/books is taken by source 'github'" in complaint(
            lambda: with_apps(settings)
        )

    def test_adding_them_again_changes_nothing(self, place: Place):
        once, _ = with_apps(place(PLAIN, toml='[sources.books]\npaths = ["/mine"]'))
        assert with_apps(once)[0] == once

    def test_settings_round_trip_to_a_child_as_json(self, place: Place):
        once, _ = with_apps(place(PLAIN, toml='[sources.books]\npaths = ["/mine"]\naddresses = ["10.0.0.0/8"]'))
        told = Settings.model_validate_json(once.model_dump_json())
        assert told.sources == once.sources
        assert with_apps(told)[0].sources == once.sources


class TestSeveral:
    def test_of_one_name_are_refused(self, place: Place):
        settings = place(PLAIN, PLAIN)
        first, second = settings.apps.load
        assert complaint(lambda: load_apps(settings)) == (
            f"{first} and {second} are both called 'shelf'; load one of them"
        )

    def test_with_one_metric_of_two_meanings_are_refused(self, place: Place):
        one = "from boathook import Boathook\nhook = Boathook('one')\nhook.counter('shelf_lent_total', 'Lent.')"
        two = "from boathook import Boathook\nhook = Boathook('two')\nhook.gauge('shelf_lent_total', 'Lent.')"
        settings = place(one, two)
        assert "the metric shelf_lent_total already exists" in complaint(lambda: load_apps(settings))

    def test_app_handlers_are_loaded_with_the_users(self, place: Place):
        mine = "from boathook import Boathook\nhook = Boathook()\n@hook.on('books')\ndef read(event): pass\n"
        settings = place(PLAIN, app="mine:hook")
        Path("mine.py").write_text(mine)
        hooks = load_hooks(settings)
        assert sorted(hooks.handlers) == ["read", "shelf.lend"]
        [app] = settings.apps.load
        routes = hooks.routes(timeout_s=5, retries=settings.retry_defaults())
        assert {owner: [route.recipient for route in some] for owner, some in routes.items()} == {
            app: ["handler:shelf.lend"],
            "mine:hook": ["handler:read"],
        }

    def test_a_user_handler_cannot_take_an_apps_name(self, place: Place):
        mine = "from boathook import Boathook\nhook = Boathook()\n@hook.on('books', name='shelf.lend')\ndef f(event): pass\n"
        settings = place(PLAIN, app="mine_too:hook")
        Path("mine_too.py").write_text(mine)
        assert "mine_too:hook: the handler shelf.lend already exists" in complaint(lambda: load_hooks(settings))

    @pytest.mark.parametrize(
        ("code", "why"),
        [
            (
                "Boathook()\n@hook.on('books', name='cells.c9')",
                "is a name of boathook's own handlers; take another name=",
            ),
            ("Boathook('cells')\n@hook.on('books')", "are both called 'cells'"),
        ],
    )
    def test_a_handler_cannot_take_a_name_of_a_package_in_use(self, place: Place, code: str, why: str):
        settings = place(toml=CELLS, app="mine_cells:hook")
        module = Path("mine_cells.py")
        module.write_text(f"from boathook import Boathook\nhook = {code}\ndef f(event): pass\n")
        sys.modules.pop("mine_cells", None)
        assert why in complaint(lambda: load_hooks(settings))

    def test_have_a_handler_for_each_other_cell(self, place: Place):
        settings = place(toml=CELLS)
        assert sorted(load_hooks(settings).handlers) == ["cells.c2", "cells.c3"]
        assert [role for role, _ in _slots(settings)].count("worker") == settings.server.workers > 0
        assert load_hooks(place()).handlers == {}
        assert "worker" not in [role for role, _ in _slots(place())]

    def test_published_counts_are_added_up(self):
        hooks = Hooks({"a": SimpleNamespace(name="", handlers={}, published=2), "b": SimpleNamespace(name="", handlers={}, published=3)})  # type: ignore[dict-item]  # fmt: skip
        assert hooks.published == 5


@pytest.mark.parametrize(
    ("declares", "what"),
    [
        ("hook.sources(lambda settings: {})", "sources"),
        ("hook.commands(object())", "commands"),
        ("hook.manifest.migrations = '.'", "migrations"),
    ],
)
def test_app_only_declarations_are_refused_in_user_handlers(place: Place, declares: str, what: str):
    settings = place(f"from boathook import Boathook\nhook = Boathook('shelf')\n{declares}", app="{0}:hook")
    said = complaint(lambda: load_app(settings))
    assert f"declares {what}, which only apps may do" in said


def test_only_apps_with_migrations_have_a_folder(place: Place):
    [hook] = load_apps(place(PLAIN))
    assert migrations_of([hook]) == []
    hook.manifest.migrations = Path("here")
    assert migrations_of([hook]) == [("shelf", Path("here"))]


def test_without_apps_nothing_is_imported(place: Place):
    settings = place()
    assert with_apps(settings) == (settings, ())


def test_no_secret_of_an_apps_table_is_shown(place: Place):
    code = PLAIN.replace('secret: str = "s3cret"', 'secret: str = "s3cret"\n        pin: SecretStr = SecretStr("1234")')
    toml = """
        [shelf]
        api_token = "abcd"
        [warehouse]
        rows = 3
        signing_keys = ["hush", "env:KEY"]
        [warehouse.passwords]
        clerk = "hush"
    """
    shown = tables(place(code, toml=toml))
    assert shown == {
        "shelf": {"secret": "(hidden)", "pin": "(hidden)", "api_token": "(hidden)", "plans": []},
        "warehouse": {"rows": 3, "signing_keys": ["(hidden)", "env:KEY"], "passwords": {"clerk": "(hidden)"}},
    }


@pytest.mark.parametrize(
    ("declare", "extra"),
    [
        (sqlalchemy_async, "sqlalchemy"), (sqlalchemy_sync, "sqlalchemy"), (psycopg_async, "psycopg"),
        (psycopg_sync, "psycopg"), (lambda _factory: django(), "django"),
    ],
)  # fmt: skip
def test_a_session_without_its_library_is_refused_where_it_is_declared(
    monkeypatch: pytest.MonkeyPatch, declare: Callable[..., object], extra: str
):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(ConfigError, match=rf'pip install "boathook\[{extra}\]"'):
        declare(lambda: None)
