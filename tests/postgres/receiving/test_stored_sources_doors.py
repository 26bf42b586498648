"""Stored sources by the API and in the console: the same rules, no secret shown again, admins only."""

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from boathook.api.app import openapi_document
from boathook.config import SourceSettings
from boathook.db.database import Database
from boathook.domain.model import Role
from boathook.providers import RECIPES
from boathook.service.receiving import source_secrets
from tests.postgres.api_client import KEY, ApiClient, make_operator_token, make_token, open_api_client
from tests.postgres.portal_client import ConsoleApp, open_console

GIT = {
    "git": SourceSettings.model_validate({"provider": "github", "secrets": ["in the file"], "paths": ["/hooks/git"]})
}


def own(folder: Path) -> dict[str, Any]:
    return {"server__data_dir": str(folder), "outbound__encryption_keys": [KEY]}


@pytest.fixture
async def api(db: Database, tmp_path: Path) -> AsyncIterator[ApiClient]:
    async with open_api_client(db, **own(tmp_path)) as client:
        client.context.live_settings.configured = client.context.settings = client.context.settings.with_sources(GIT)
        yield client


@pytest.fixture
async def console(db: Database, tmp_path: Path) -> AsyncIterator[ConsoleApp]:
    async with open_console(db, **own(tmp_path)) as opened:
        opened.context.live_settings.configured = opened.context.settings = opened.context.settings.with_sources(GIT)
        yield opened


# The API


async def test_a_source_is_created_read_changed_and_deleted(api: ApiClient):
    body = {
        "name": "shop",
        "provider": "stripe",
        "secret": "whsec_quiet_of_the_tests",
        "settings": {"paths": ["/hooks/shop"]},
    }
    made = await api.ask(201, "POST", "/source", body)
    assert (made["name"], made["stored"], made["problem"], made["secret"]) == ("shop", True, None, None)
    assert made["paths"] == ["/in/shop", "/hooks/shop"]
    assert made["settings"] == {"paths": ["/hooks/shop"]}
    assert made["createdBy"].startswith("api:key_")
    listed = await api.ask(200, "GET", "/source")
    assert [(one["name"], one["stored"]) for one in listed["data"]] == [("git", False), ("shop", True)]
    assert "quiet" not in str(listed)
    changed = await api.ask(200, "PATCH", "/source/shop", {"settings": {"rate": 5, "paths": None}})
    assert changed["settings"] == {"rate": 5.0}
    put = await api.ask(200, "PUT", "/source/shop", {"provider": "stripe", "settings": {"max_body": 100}})
    assert put["settings"] == {"max_body": 100}
    await api.ask(204, "DELETE", "/source/shop")
    await api.ask(404, "GET", "/source/shop")
    await api.ask(404, "DELETE", "/source/shop")


async def test_a_generated_secret_is_returned_once(api: ApiClient):
    made = await api.ask(201, "POST", "/source", {"name": "hub", "provider": "github", "generateSecret": True})
    assert len(made["secret"]) > 30
    assert made["secret"] not in str(await api.ask(200, "GET", "/source/hub"))


async def test_hidden_values_that_are_sent_back_stay(api: ApiClient):
    settings = {"username": "u", "password": "a quiet password"}
    made = await api.ask(201, "POST", "/source", {"name": "basic", "provider": "token", "settings": settings})
    assert made["settings"] == {"username": "u", "password": "(hidden)"}
    body = {"provider": "token", "settings": {**made["settings"], "rate": 3}}
    await api.ask(200, "PUT", "/source/basic", body)
    stored = await api.context.refresh_settings()
    assert (stored.sources["basic"].password, stored.sources["basic"].rate) == ("a quiet password", 3)


async def test_an_operator_rotates_the_secret_of_a_source_by_the_api(api: ApiClient):
    """No key of an organization may: whoever has a secret can forge its events."""
    await api.ask(201, "POST", "/source", {"name": "hub", "provider": "github", "generateSecret": True})
    await api.ask(403, "POST", "/source/hub/secret", {})
    operator = api.as_token(await make_operator_token(api.context))
    made = await operator.ask(201, "POST", "/source/hub/secret", {"note": "rotation", "expireOthers": 3_600})
    assert (made["source"], made["othersExpired"], len(made["secret"]) > 30) == ("hub", 1, True)
    listed = (await operator.ask(200, "GET", "/source/hub/secret"))["data"]
    assert [(line["name"] == made["id"], line["expiresAt"] is None) for line in listed] == [
        (True, True),
        (False, False),
    ]
    assert made["secret"] not in str(listed)
    old = listed[1]["name"]
    assert (await operator.ask(200, "POST", f"/source/hub/secret/{old}/keep", {}))["expiresAt"] is None
    ended = await operator.ask(200, "POST", f"/source/hub/secret/{old}/expire", {"after": 60})
    assert ended["expiresAt"] is not None
    [problem] = (await operator.ask(422, "POST", f"/source/hub/secret/{old}/expire", {"after": 9e9}))["detail"]
    assert (problem["loc"], problem["msg"]) == (["body", "after"], "write a time from 0 to 30 days")
    assert await operator.ask(200, "DELETE", f"/source/hub/secret/{old}") == {
        "id": old,
        "source": "hub",
        "removed": True,
    }
    await operator.ask(404, "DELETE", f"/source/hub/secret/{old}")
    await operator.ask(404, "GET", "/source/nothing/secret")
    assert (await operator.ask(400, "POST", "/source/hub/handshake-secret"))["code"] == "no_handshake_secret"


async def test_lists_are_paged_both_ways(api: ApiClient):
    for name in ("b", "a.b", "c-d"):
        await api.ask(201, "POST", "/source", {"name": name, "provider": "github", "generateSecret": True})
    first = await api.ask(200, "GET", "/source?limit=2")
    assert [one["name"] for one in first["data"]] == ["a.b", "b"]
    assert not first["done"]
    second = await api.ask(200, "GET", f"/source?limit=2&iterator={first['iterator']}")
    assert [one["name"] for one in second["data"]] == ["c-d", "git"]
    assert second["done"]
    back = await api.ask(200, "GET", f"/source?limit=2&iterator={second['prevIterator']}")
    assert [one["name"] for one in back["data"]] == ["a.b", "b"]
    down = await api.ask(200, "GET", "/source?limit=2&order=descending")
    assert [one["name"] for one in down["data"]] == ["git", "c-d"]


@pytest.mark.parametrize(
    ("body", "loc", "words"),
    [
        ({"name": "a/b", "provider": "github"}, ["body", "name"], "letters"),
        ({"name": "a", "provider": "githup"}, ["body", "settings", "provider"], "github"),
        ({"name": "a", "provider": "github"}, ["body", "secret"], "paste its secret"),
        ({"name": "a", "provider": "github", "secret": "env:HOME"}, ["body", "secret"], "the secret itself"),
        ({"name": "a", "provider": "github", "secret": "x"}, ["body", "secret"], "fewer than 6 characters"),
        ({"name": "a", "provider": "token", "settings": {"username": "u", "password": "x"}},
         ["body", "settings", "password"], "fewer than 6 characters"),
        ({"name": "a", "provider": "github", "secret": "x", "settings": {"paths": ["/hooks/git"]}},
         ["body", "settings", "paths"], "source 'git'"),
        ({"name": "a", "provider": "github", "secret": "x", "settings": {"public_url": "file:/etc/passwd"}},
         ["body", "settings", "public_url"], "reference"),
        ({"name": "a", "provider": "github", "secret": "x", "settings": {"secrets": ["y"]}}, ["body", "secret"], "add them"),
        ({"name": "a", "provider": "github", "secret": "x", "settings": 7}, ["body", "settings"], "dictionary"),
    ],
)  # fmt: skip
async def test_wrong_bodies_are_refused_at_their_place(
    api: ApiClient, body: dict[str, Any], loc: list[str], words: str
):
    answer = await api.ask(422, "POST", "/source", body)
    assert answer["detail"][0]["loc"] == loc
    assert words in answer["detail"][0]["msg"]
    assert [one["name"] for one in (await api.ask(200, "GET", "/source"))["data"]] == ["git"]


async def test_configured_sources_are_read_only_and_names_are_taken(api: ApiClient):
    body = {"provider": "github", "secret": "x"}
    assert (await api.ask(409, "POST", "/source", {**body, "name": "git"}))["code"] == "source_exists"
    assert (await api.ask(400, "PATCH", "/source/git", {"settings": {"rate": 1}}))["code"] == "configured_source"
    assert (await api.ask(400, "DELETE", "/source/git"))["code"] == "configured_source"


async def test_other_organizations_and_tenants_see_no_sources(api: ApiClient):
    other = api.as_token(await make_token(api.context, "another"))
    await api.ask(201, "POST", "/app", {"name": "acme", "uid": "acme"})
    tenant = api.as_token(await make_token(api.context, application="acme"))
    for client, status in ((other, 404), (tenant, 403)):
        await client.ask(status, "GET", "/source")
        await client.ask(status, "POST", "/source", {"name": "a", "provider": "github", "generateSecret": True})
        await client.ask(status, "DELETE", "/source/git")


def test_the_openapi_document_has_the_routes():
    paths = openapi_document()["paths"]
    assert set(paths["/api/v1/source"]) == {"get", "post"}
    assert set(paths["/api/v1/source/{source_name}"]) == {"get", "put", "patch", "delete"}


# The console


async def test_an_admin_adds_changes_and_removes_a_source(console: ConsoleApp):
    pages = await console.operator()
    assert "Add a source" in await pages.get_page("/console/sources")
    assert "/console/sources-new/stripe" in await pages.get_page("/console/sources-senders/stripe")
    form = await pages.get_page("/console/sources-new/stripe")
    assert "/in/stripe" in form
    assert "[sources.stripe]" in form, "the alternative in boathook.toml"
    values = {"name": "shop", "secret": "whsec_quiet_of_the_tests", "paths": "/hooks/shop /hooks/other", "rate": "50"}
    added = await pages.submit_form("/console/sources-new/stripe", values)
    assert added.headers["location"] == "/console/sources/shop"
    page = await pages.get_page("/console/sources/shop")
    assert "/hooks/other" in page
    assert "Send a test request" in page
    assert "quiet" not in page
    edit = await pages.get_page("/console/sources/shop/edit")
    assert 'value="/hooks/shop /hooks/other"' in edit
    await pages.submit_form("/console/sources/shop/edit", {"paths": "/hooks/new", "rate": ""})
    source = (await console.context.refresh_settings()).sources["shop"]
    assert (source.paths, source.rate, source.provider) == (("/hooks/new",), None, "stripe")
    assert "shop" in await pages.get_page("/console/sources")
    removed = await pages.submit_form("/console/sources/shop/delete", on="/console/sources/shop")
    assert removed.headers["location"] == "/console/sources"
    await pages.get_page("/console/sources/shop", 404)
    audit = await console.context.database.fetch(
        "select action, actor from boathook.audit where subject = 'shop' order by id"
    )
    assert [row["action"] for row in audit] == ["source.add", "source.change", "source.remove"]
    assert {row["actor"] for row in audit} == {"console:anna"}


async def test_a_generated_secret_is_shown_once_with_the_steps_at_the_sender(console: ConsoleApp):
    pages = await console.operator()
    answer = await pages.submit_form("/console/sources-new/github", {"name": "hub", "generate": "yes"}, status=200)
    secret = re.search(r"<code>([0-9a-f]{40,})</code>", answer.text)
    assert secret
    assert "http://portal.localhost/in/hub" in answer.text
    assert secret[1] not in await pages.get_page("/console/sources/hub")


async def test_a_secret_setting_is_hidden_and_kept_if_left_empty(console: ConsoleApp):
    pages = await console.operator()
    values = {"name": "basic", "username": "u", "password": "a quiet password"}
    await pages.submit_form("/console/sources-new/token", values)
    for path in ("/console/sources/basic", "/console/sources/basic/edit"):
        assert "quiet" not in await pages.get_page(path)
    await pages.submit_form("/console/sources/basic/edit", {"username": "v", "password": ""})
    source = (await console.context.refresh_settings()).sources["basic"]
    assert (source.username, source.password) == ("v", "a quiet password")


@pytest.mark.parametrize(
    ("provider", "form", "field", "words"),
    [
        ("stripe", {"name": "a/b", "secret": "x"}, "name", "letters"),
        ("stripe", {"name": "git", "secret": "x"}, "name", "boathook.toml"),
        ("stripe", {"name": "a", "secret": ""}, "secret", "paste its secret"),
        ("stripe", {"name": "a", "secret": "env:HOME"}, "secret", "the secret itself"),
        ("github", {"name": "a", "secret": "x"}, "secret", "fewer than 6 characters"),
        ("stripe", {"name": "a", "secret": "x", "rate": "many"}, "rate", "number"),
        ("stripe", {"name": "a", "secret": "x", "schema": "{"}, "schema", "invalid JSON"),
        ("stripe", {"name": "a", "secret": "x", "paths": "/hooks/git"}, "paths", "source &#39;git&#39;"),
        ("stripe", {"name": "a", "secret": "x", "public_url": "env:HOME"}, "public_url", "reference"),
        ("twilio", {"name": "a", "secret": "x"}, "public_url", "signs the URL"),
        ("unsigned", {"name": "a"}, "unsigned", "not signed"),
    ],
)  # fmt: skip
async def test_an_invalid_form_shows_the_error_at_its_field(
    console: ConsoleApp, provider: str, form: dict[str, str], field: str, words: str
):
    pages = await console.operator()
    answer = await pages.submit_form(f"/console/sources-new/{provider}", form, status=400)
    assert words in answer.text
    assert f'name="{field}"' in answer.text
    assert 'value="x"' not in answer.text, "a secret is entered again"
    assert set((await console.context.refresh_settings()).sources) == {"git"}


@pytest.mark.parametrize("role", [Role.VIEWER, Role.OPERATOR])
async def test_only_admins_add_sources(console: ConsoleApp, role: Role):
    pages = await console.operator(role=role)
    assert "Add a source" not in await pages.get_page("/console/sources")
    await pages.get_page("/console/sources-new/stripe", 403)
    await pages.get_page("/console/sources/git/edit", 403)


async def test_configured_sources_have_no_form(console: ConsoleApp):
    pages = await console.operator()
    page = await pages.get_page("/console/sources/git")
    assert "/console/sources/git/edit" not in page
    assert "/console/sources/git/delete" not in page
    await pages.get_page("/console/sources/git/edit", 404)


async def test_a_stored_source_that_is_not_used_is_reported(console: ConsoleApp):
    pages = await console.operator()
    values = {"name": "shop", "secret": "whsec_quiet_of_the_tests", "paths": "/hooks/shop"}
    await pages.submit_form("/console/sources-new/stripe", values)
    clash = SourceSettings.model_validate({"provider": "github", "secrets": ["x"], "paths": ["/hooks/shop"]})
    live = console.context.live_settings
    live.configured = live.configured.with_sources({**GIT, "other": clash})
    live.is_known = False
    live._version = None
    assert "not served" in await pages.get_page("/console/sources")
    page = await pages.get_page("/console/sources/shop")
    assert "answered 503" in page
    assert "/hooks/shop is a path of the source" in page
    await pages.submit_form("/console/sources/shop/edit", {"paths": "/hooks/moved"})
    assert "answered 503" not in await pages.get_page("/console/sources/shop")


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
async def test_every_sender_has_a_form(console: ConsoleApp, recipe):
    pages = await console.operator()
    form = await pages.get_page(f"/console/sources-new/{recipe.name}")
    assert f"[sources.{recipe.name}]" in form
    for setting in recipe.settings:
        assert f'name="{setting.name}"' in form


async def test_secrets_of_a_stored_source_can_be_rotated_there(console: ConsoleApp):
    pages = await console.operator()
    await pages.submit_form("/console/sources-new/stripe", {"name": "shop", "secret": "whsec_first_of_the_tests"})
    await pages.submit_form(
        "/console/sources/shop/secrets", {"secret": "whsec_second_of_the_tests"}, on="/console/sources/shop"
    )
    async with console.context.work() as work:
        assert len(await source_secrets.list_secrets(work, "shop")) == 2
