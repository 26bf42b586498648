"""Generates the files of a new project: settings, one handler, and tests that pass."""

import json
import secrets
from enum import StrEnum
from textwrap import indent
from typing import Final

from boathook.config import SCHEMA_URL
from boathook.providers import find_recipe
from boathook.providers.recipe import Recipe
from boathook.providers.schemes import Asymmetric, NoProof
from boathook.service.receiving.source_secrets import generate_secret
from boathook.verification.provider_signer import make_keys

PUBLIC_URL: Final = "https://hooks.example.com"
"""Stands for the address at which senders reach boathook."""

_HOOKS: Final = '''\
"""Handlers: each is called for the events it selects; give those that call a service ``retry_on=HTTP_DEFAULTS``."""

from pathlib import Path

from boathook import Boathook, Event, Transaction

hook = Boathook("shop", migrations=Path(__file__).with_name("migrations"))


@hook.on({selection})
async def {name}(event: Event, tx: Transaction) -> None:
    """Store {what}, in the transaction that completes the delivery."""
{body}'''
_TESTS: Final = '''\
"""Tests of the handlers; run them with pytest.

`deliver` sends a signed request to a boathook with a PostgreSQL of its own, and waits for the handler.
"""

from collections.abc import Callable

from boathook.testing import DeliverResult

Deliver = Callable[..., DeliverResult]


{test}'''
_MIGRATION: Final = """\
-- Applied once, by `boathook dev`, `boathook serve` or `boathook migrate`. Write changes into 0002_what.sql and so on.
create schema shop;
create table shop.{table};
"""
_STRIPE: Final = {
    "name": "record_payment",
    "what": "a payment",
    "selection": '"stripe", "payment_intent.succeeded"',
    "body": """\
payment = event.json["data"]["object"]
await tx.execute("insert into shop.payment values ($1, $2)", payment["id"], payment["amount"])
""",
    "table": "payment (id text primary key, amount bigint not null)",
    "test": """\
def test_payment_is_stored_once(deliver: Deliver) -> None:
    first, again = [deliver("stripe", type="payment_intent.succeeded", id="evt_1") for _ in range(2)]
    assert first.outcome == "succeeded"
    assert again.is_duplicate
""",
}
_ANY: Final = {
    "name": "record_event",
    "what": "an event",
    "selection": '"{provider}"',
    "body": """\
await tx.execute("insert into shop.received values ($1, $2)", event.dedup_key, event.type)
""",
    "table": "received (key text primary key, type text not null)",
    "test": """\
def test_event_is_stored(deliver: Deliver) -> None:
    assert deliver("{provider}").outcome == "succeeded"
""",
}


_MAIN: Final = '''\
"""The application: `uvicorn main:app --reload` serves it, receives webhooks and runs the handlers."""

from boathook.fastapi import Webhooks
from fastapi import FastAPI

webhooks = Webhooks()
app = FastAPI()
app.include_router(webhooks.router)


@app.get("/")
async def show_sources() -> list[str]:
    """Show where webhooks arrive."""
    return [f"/in/{name}" for name in webhooks.settings.sources]
'''
_MAIN_TESTS: Final = '''\
"""A test of the application; run it with pytest."""

from main import app


def test_webhooks_are_routes_of_the_application() -> None:
    assert app.url_path_for("webhooks:{provider}") == "/in/{provider}"
'''
_MANAGE: Final = '''\
"""The commands: `python manage.py migrate`, then `python manage.py boathook dev`."""

import os
import sys

from django.core.management import execute_from_command_line

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    execute_from_command_line(sys.argv)
'''
_DJANGO_SETTINGS: Final = '''\
"""Settings of the project.

They are read from the environment, and from `.env` beside this project. PGDATABASE and the other variables of
PostgreSQL say where its database is. DJANGO_DEBUG=1 is for development only.
"""

import os
from pathlib import Path

from django.core.exceptions import ImproperlyConfigured
from dotenv import load_dotenv

BASE_DIR = Path(__file__).resolve().parent.parent
load_dotenv(BASE_DIR / ".env", interpolate=False)

DEBUG = os.environ.get("DJANGO_DEBUG", "").lower() in {"1", "true", "yes", "on"}
SECRET_KEY = os.environ.get("DJANGO_SECRET_KEY", "")
if not SECRET_KEY:
    raise ImproperlyConfigured(
        "DJANGO_SECRET_KEY is not set; "
        "write one with: python -c 'import secrets; print(secrets.token_urlsafe(50))'"
    )
ALLOWED_HOSTS = os.environ.get("DJANGO_ALLOWED_HOSTS", "localhost,127.0.0.1").split(",")
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = not DEBUG
ROOT_URLCONF = "config.urls"
STATIC_URL = "static/"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = [
    "webhooks",
    "boathook.django",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in (
        "UserAttributeSimilarityValidator",
        "MinimumLengthValidator",
        "CommonPasswordValidator",
        "NumericPasswordValidator",
    )
]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": os.environ.get("PGDATABASE", "postgres"),
        "USER": os.environ.get("PGUSER", ""),
        "PASSWORD": os.environ.get("PGPASSWORD", ""),
        "HOST": os.environ.get("PGHOST", ""),
        "PORT": os.environ.get("PGPORT", ""),
    }
}
'''
_DJANGO_URLS: Final = '''\
"""The pages of the project."""

from django.contrib import admin
from django.urls import path

urlpatterns = [path("admin/", admin.site.urls)]
'''
_DJANGO_MODELS: Final = '''\
"""The tables."""

from django.db import models


class Received(models.Model):
    """An event that was handled."""

    key = models.TextField(primary_key=True)
    type = models.TextField()
'''
_DJANGO_MIGRATION: Final = '''\
"""The first tables."""

from django.db import migrations, models


class Migration(migrations.Migration):
    """Creates the table of events."""

    initial = True
    operations = [
        migrations.CreateModel(
            name="Received",
            fields=[
                ("key", models.TextField(primary_key=True, serialize=False)),
                ("type", models.TextField()),
            ],
        ),
    ]
'''
_DJANGO_HOOKS: Final = '''\
"""Handlers, called inside transaction.atomic; give those that call a service ``retry_on=HTTP_DEFAULTS``."""

from boathook import Event
from boathook.django import hook
from webhooks.models import Received


@hook.on("{provider}")
def record_event(event: Event) -> None:
    """Store an event, in the transaction that completes the delivery."""
    Received.objects.create(key=event.dedup_key, type=event.type)
'''
_DJANGO_TESTS: Final = '''\
"""Tests of the handlers; run them with `python manage.py test`."""

from boathook.django import hook
from boathook.testing import event, run_sync
from django.db import connection
from django.test import TestCase
from webhooks.models import Received


class HandlersTest(TestCase):
    def test_an_event_is_stored(self) -> None:
        with run_sync(hook, event("{provider}"), session=connection) as result:
            self.assertEqual(result.outcome, "succeeded")
            self.assertEqual(Received.objects.count(), 1)
'''


_DJANGO_ENV_EXAMPLE: Final = """\
# A long random text of your own; DJANGO_DEBUG=1 in development only.
DJANGO_SECRET_KEY=
DJANGO_DEBUG=
"""


class ProjectKind(StrEnum):
    """The framework of a new project."""

    PLAIN = "plain"
    FASTAPI = "fastapi"
    DJANGO = "django"


NEXT_COMMANDS: Final = {
    ProjectKind.PLAIN: "boathook dev",
    ProjectKind.FASTAPI: "uvicorn main:app --reload",
    ProjectKind.DJANGO: "python manage.py migrate && python manage.py boathook dev",
}
"""The command that runs a new project for the first time."""


def project_files(provider: str, kind: ProjectKind = ProjectKind.PLAIN) -> dict[str, str]:
    """Return the files of a new project with one source, by path; `.env` contains a new secret.

    Raises:
        ConfigError: there is no such provider; the message suggests similar names.
    """
    recipe = find_recipe(provider)
    own = _django_files(recipe) if kind is ProjectKind.DJANGO else _hooks(recipe)
    server = {
        ProjectKind.PLAIN: '[apps]\nload = ["hooks"]\n\n',
        ProjectKind.FASTAPI: '[server]\nbind = "127.0.0.1:8000"\n\n[apps]\nload = ["hooks"]\n\n',
        ProjectKind.DJANGO: "",
    }
    if kind is ProjectKind.FASTAPI:
        own |= {"main.py": _MAIN, "test_main.py": _MAIN_TESTS.replace("{provider}", recipe.name)}
    return {
        "boathook.toml": f"#:schema {SCHEMA_URL}\n{server[kind]}{source_settings(recipe)}",
        **own,
        ".env.example": _environment(recipe, "") + (_DJANGO_ENV_EXAMPLE if kind is ProjectKind.DJANGO else ""),
        ".env": _environment(recipe, _new_secret(recipe)) + (_django_env() if kind is ProjectKind.DJANGO else ""),
        ".gitignore": ".env\n.boathook/\n__pycache__/\n",
    }


def _hooks(recipe: Recipe) -> dict[str, str]:
    """Return the handlers of a project, their tables and their tests."""
    example = _STRIPE if recipe.name == "stripe" else _ANY
    parts = {key: text.replace("{provider}", recipe.name) for key, text in example.items()}
    return {
        "hooks.py": _HOOKS.format_map({**parts, "body": indent(parts["body"], "    ")}),
        "migrations/0001_first.sql": _MIGRATION.format_map(parts),
        "test_hooks.py": _TESTS.format_map(parts),
    }


def _django_files(recipe: Recipe) -> dict[str, str]:
    """Return a Django project with one app."""
    return {
        "manage.py": _MANAGE,
        "config/__init__.py": '"""The project."""\n',
        "config/settings.py": _DJANGO_SETTINGS,
        "config/urls.py": _DJANGO_URLS,
        "webhooks/__init__.py": '"""Handles webhooks."""\n',
        "webhooks/hooks.py": _DJANGO_HOOKS.replace("{provider}", recipe.name),
        "webhooks/models.py": _DJANGO_MODELS,
        "webhooks/migrations/__init__.py": '"""Migrations."""\n',
        "webhooks/migrations/0001_initial.py": _DJANGO_MIGRATION,
        "webhooks/tests.py": _DJANGO_TESTS.replace("{provider}", recipe.name),
    }


def _django_env() -> str:
    key = secrets.token_urlsafe(50)
    return f"# For development, made up by `boathook init`.\nDJANGO_SECRET_KEY={key}\nDJANGO_DEBUG=1\n"


def source_settings(recipe: Recipe) -> str:
    """Return the table of a provider's source, as it is written into boathook.toml."""
    lines = [f"[sources.{recipe.name}]"]
    if recipe.takes_secrets:
        lines.append(f'secrets = ["env:{secret_variable(recipe)}"]')
    if isinstance(recipe.proof, NoProof):
        lines.append("unsigned = true")
    if recipe.signs_url:
        lines.append(f'public_url = "{PUBLIC_URL}"')
    settings = {**recipe.sample.settings, **recipe.example_settings}
    lines += [f'{name} = "{value}"' for name, value in settings.items()]
    return "\n".join(lines) + "\n"


def secret_variable(recipe: Recipe) -> str:
    """Return the environment variable that holds the provider's secret, or its public key."""
    word = recipe.name.upper().replace("-", "_")
    return f"{word}_PUBLIC_KEY" if isinstance(recipe.proof, Asymmetric) else f"{word}_SECRET"


def _new_secret(recipe: Recipe) -> str:
    if isinstance(recipe.proof, Asymmetric):
        return make_keys(recipe.name, **recipe.sample.settings).public
    return generate_secret(recipe)


def _environment(recipe: Recipe, secret: str) -> str:
    """Return the file with the variable of the source's secret; empty for a sender without one."""
    if not recipe.takes_secrets:
        return ""
    comment = "# Made up by `boathook init`, for requests of `boathook trigger`." if secret else f"# See {recipe.docs}"
    return f"{comment}\n{secret_variable(recipe)}={json.dumps(secret) if secret else ''}\n"
