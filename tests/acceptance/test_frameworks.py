"""The shops of examples/ in their frameworks: with Django's test runner, and as processes that serve real requests."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace

import httpx
import psycopg
import pytest

from boathook import ConfigError
from boathook.django import DjangoBoathook, apps
from boathook.testing import sign
from tests.acceptance.conftest import free_port
from tests.databases import libpq_environment
from tests.guards.documents import ROOT, blocks
from tests.support import until

SECRET = "whsec_of_the_shop"
SETTINGS = '[database]\nurl = "env:SHOP_DATABASE_URL"\n[sources.stripe]\nsecrets = ["env:STRIPE_SECRET"]\n'
DJANGO = ["manage.py", "boathook"]
SERVE = ["-m", "boathook", "serve"]
TABLES = "import shop_flask; shop_flask.Base.metadata.create_all(shop_flask.engine)"


def environment(url: str, port: int = 0, **more: str) -> dict[str, str]:
    """Return the variables of a shop: where its database is, for boathook, for SQLAlchemy and for Django."""
    ours = {"SHOP_DATABASE_URL": url, "STRIPE_SECRET": SECRET, "BOATHOOK_SERVER_BIND": f"127.0.0.1:{port}"}
    return {**os.environ, "DJANGO_SETTINGS_MODULE": "shop.settings", **libpq_environment(url), **ours, **more}


def run(folder: Path, variables: Mapping[str, str], *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=dict(variables), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@contextlib.contextmanager
def process(folder: Path, variables: Mapping[str, str], *arguments: str) -> Iterator[None]:
    log = folder / "process.log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            [sys.executable, *arguments], cwd=folder, env=dict(variables), stdout=output, stderr=output
        )
    try:
        yield
        assert server.poll() is None, log.read_text()
    finally:
        server.terminate()
        try:
            code = server.wait(60)
        except subprocess.TimeoutExpired:
            server.kill()
            raise
    assert code in {0, -15}, log.read_text()[-3000:]


def is_answered(url: str) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(url, timeout=300).status_code < 500
    return False


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "examples", tmp_path, dirs_exist_ok=True)
    shutil.copytree(ROOT / "examples/shop_django", tmp_path, dirs_exist_ok=True)
    (tmp_path / "boathook.toml").write_text(SETTINGS)
    return tmp_path


class TestExamples:
    def order_and_pay(self, base: str) -> None:
        """Order twice, pay, and see the order paid; only one of the two orders is stored and published."""
        until(lambda: is_answered(f"{base}/orders/none"))
        order = {"id": "o1", "amount": 500}
        assert [httpx.post(f"{base}/orders", json=order, timeout=300).status_code for _ in range(2)] == [201, 409]
        paid = {"id": "evt_1", "type": "payment_intent.succeeded", "data": {"object": {"metadata": {"order": "o1"}}}}
        body = json.dumps(paid).encode()
        answer = httpx.post(f"{base}/in/stripe", content=body, headers=sign("stripe", SECRET, body), timeout=300)
        assert answer.status_code == 200, answer.text
        until(lambda: httpx.get(f"{base}/orders/o1", timeout=300).json()["is_paid"])

    @pytest.mark.extended("starts several servers of its own")
    @pytest.mark.parametrize(
        ("app", "setup", "command"),
        [
            ("shop_flask:hook", ["-c", TABLES], SERVE),
            ("", ["manage.py", "migrate"], [*DJANGO, "serve"]),
            ("", ["manage.py", "migrate"], [*DJANGO, "dev"]),
            ("shop_fastapi:hook", None, ["-m", "uvicorn", "shop_fastapi:app", "--port"]),
        ],
        ids=["flask", "django", "django dev", "fastapi"],
    )
    def test_orders_are_stored_published_and_paid(self, folder, pg_url, app, setup, command):
        port = free_port()
        variables = environment(pg_url, port, **({"BOATHOOK_SERVER_APP": app} if app else {}))
        if setup is not None:
            run(folder, variables, *setup)
        run(folder, variables, "-m", "boathook", "applications", "create", "Acme", "--uid", "acme")
        more = [str(port)] if command[-1] == "--port" else []
        with process(folder, variables, *command, *more):
            self.order_and_pay(f"http://127.0.0.1:{port}")
        with psycopg.connect(pg_url) as connection:
            found = connection.execute("select type from boathook.event where origin = 'published'").fetchall()
        assert found == [("order.created",)]

    def test_a_failing_handler_shows_its_traceback_under_uvicorn(self, folder, pg_url):
        port = free_port()
        variables = environment(pg_url, port, BOATHOOK_SERVER_APP="shop_fastapi:hook", BOATHOOK_LOG_FORMAT="text")
        body = b'{"id":"evt_1","type":"payment_intent.succeeded","data":{"object":{"metadata":{}}}}'
        with process(folder, variables, "-m", "uvicorn", "shop_fastapi:app", "--port", str(port)):
            until(lambda: is_answered(f"http://127.0.0.1:{port}/orders/none"))
            headers = sign("stripe", SECRET, body)
            httpx.post(f"http://127.0.0.1:{port}/in/stripe", content=body, headers=headers, timeout=300)
            until(lambda: "KeyError: 'order'\n    Traceback" in (folder / "process.log").read_text())
        assert re.search(r'File ".*/shop_fastapi.py", line \d+, in ', (folder / "process.log").read_text())

    @pytest.mark.extended("starts several servers of its own")
    def test_a_fastapi_application_behind_boathook(self, folder, pg_url):
        port = free_port()
        mounted = [block.text for block in blocks(ROOT / "docs/how-to/fastapi.md") if "hook.mount" in block.text]
        (folder / "front.py").write_text(mounted[0])
        with process(folder, environment(pg_url, port, BOATHOOK_SERVER_APP="front:hook"), *SERVE):
            until(lambda: is_answered(f"http://127.0.0.1:{port}/orders"))
            assert httpx.get(f"http://127.0.0.1:{port}/orders", timeout=300).json() == []
            assert "/openapi.json" in httpx.get(f"http://127.0.0.1:{port}/docs", timeout=300).text


class TestDjango:
    @pytest.mark.extended("starts several servers of its own")
    def test_the_tests_of_the_example_pass(self, folder, admin_url):
        """Its handlers are discovered, and its test database has boathook's schema."""
        variables = environment(admin_url, PGDATABASE=f"shop_{uuid.uuid4().hex}")
        (folder / "boathook.toml").write_text('[sources.stripe]\nsecrets = ["env:STRIPE_SECRET"]\n')
        run(folder, variables, "-W", "ignore", "manage.py", "test", "--noinput")

    @pytest.mark.parametrize(
        ("given", "url"),
        [
            ({"NAME": "shop"}, "postgresql:///shop"),
            ({"NAME": "shop", "PORT": 5433}, "postgresql://localhost:5433/shop"),
            (
                {"NAME": "sh/op", "USER": "me", "PASSWORD": "p@ss:/", "HOST": "db.test", "PORT": "5433"},
                "postgresql://me:p%40ss%3A%2F@db.test:5433/sh%2Fop",
            ),
            (
                {"NAME": "shop", "USER": "me", "HOST": "/run/pg", "PORT": 5433, "OPTIONS": {"sslmode": "require", "pool": {}}},
                "postgresql://me@/shop?sslmode=require&host=/run/pg&port=5433",
            ),
        ],
    )  # fmt: skip
    def test_boathook_connects_to_the_database_of_the_project(self, monkeypatch, given, url):
        monkeypatch.setattr(apps, "connections", {"default": SimpleNamespace(settings_dict=given)})
        assert apps.database_url() == url

    @pytest.mark.parametrize(
        ("text", "is_postgresql", "source", "found"),
        [
            (SETTINGS, True, "stripe", []),
            (SETTINGS, False, "stripe", ["boathook.E001"]),
            ("[server]\nbindd = 1\n", True, "stripe", ["boathook.E002"]),
            (None, True, "stripe", ["boathook.W001"]),
            (SETTINGS, True, "strpe", ["boathook.W002"]),
            (SETTINGS.replace("STRIPE_SECRET", "NO_SUCH_SECRET"), True, "stripe", ["boathook.E002"]),
            (SETTINGS.replace("env:STRIPE_SECRET", "sk_live_51H0000"), True, "stripe", ["boathook.E002"]),
            (SETTINGS.replace("env:STRIPE_SECRET", SECRET), True, "stripe", ["boathook.W002"]),
            (SETTINGS + '[outbound]\nencryption_keys = ["abc"]\n', True, "stripe", ["boathook.E002"]),
        ],
    )
    def test_the_system_checks(self, tmp_path, monkeypatch, text, is_postgresql, source, found):
        monkeypatch.setenv("STRIPE_SECRET", SECRET)
        hook = DjangoBoathook()
        hook.on(source, name="paid")(lambda event: None)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(apps, "hook", hook)
        monkeypatch.setattr(apps, "is_postgresql", lambda: is_postgresql)
        if text is not None:
            (tmp_path / "boathook.toml").write_text(text)
        messages = apps.check_project()
        assert [message.id for message in messages] == found
        assert all(message.msg and message.hint for message in messages)

    def test_an_async_handler_is_refused(self):
        async def paid(event) -> None: ...

        with pytest.raises(ConfigError, match="handler paid is async"):
            DjangoBoathook().on("stripe")(paid)
