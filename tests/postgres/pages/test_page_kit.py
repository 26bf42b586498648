"""An app with pages, users and two languages: what its users see, and attacks on them."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import psycopg
import pytest
from argon2 import PasswordHasher
from pydantic import BaseModel, Field
from starlette.responses import Response
from typer.testing import CliRunner

from boathook.config import load
from boathook.db.migrations import migrate
from boathook.db.operators import ClientInfo
from boathook.domain.errors import AlreadyExists, ConfigError, InvalidState, InvalidValue, NotFound
from boathook.handlers.api import Boathook
from boathook.server.loading import bind, bound
from boathook.service.access import passwords
from boathook.service.access.login_rate import LoginRateLimiter
from boathook_pages import ApiRequest, JsonApi, PageRequest, Pages, Refusal
from boathook_pages.kit import site
from boathook_pages.languages import Languages
from boathook_pages.sign_in import SignIn, User

BASE = "http://desk.example"
SLOW_HASHER = passwords.HASHER
PASSWORD = "correct horse battery"
TRANSLATIONS = """
msgid ""
msgstr ""
"Content-Type: text/plain; charset=utf-8\\n"
"Plural-Forms: nplurals=3; plural=(n%10==1 && n%100!=11 ? 0 : n%10>=2 && n%10<=4 && (n%100<10 || n%100>=20) ? 1 : 2);\\n"

msgid "Desk"
msgstr "Рабочий стол"

msgid "Saved %(name)s."
msgstr "Сохранено: %(name)s."

msgid "One note"
msgid_plural "%(num)s notes"
msgstr[0] "%(num)s заметка"
msgstr[1] "%(num)s заметки"
msgstr[2] "%(num)s заметок"
"""
LIST = """
{% extends "boathook/base.html" %}
{% import "boathook/parts.html" as ui with context %}
{% block main %}
<h1>{{ _("Desk") }}</h1>
<p id="count">{% trans num=notes | length %}One note{% pluralize %}{{ num }} notes{% endtrans %}</p>
<p id="total">{{ amount(123450, "RUB") }}</p>
<ul>{% for note in notes %}<li>{{ note.text }} {{ ui.time(note.made_at) }}</li>{% endfor %}</ul>
<form method="post" action="{{ url("/notes") }}">{{ ui.csrf() }}{{ ui.field("text", "Text", error=error) }}</form>
{% endblock %}
"""


class Note(BaseModel):
    text: str = Field(min_length=2)


@dataclass
class Desk:
    """The app, bound to a database, and its users."""

    hook: Boathook
    sign_in: SignIn[User]
    pages: Pages
    url: str

    def browser(self, **headers: str) -> httpx.AsyncClient:
        """Return a new browser."""
        (mount,) = self.hook.manifest.mounts
        transport = httpx.ASGITransport(app=mount.app, root_path="/desk", client=("192.0.2.7", 4000))
        accepted = {"origin": BASE, "accept": "text/html"}
        return httpx.AsyncClient(transport=transport, base_url=BASE, headers=accepted | headers)

    async def add(self, name: str, *roles: str, password: str | None = PASSWORD, with_token: bool = False) -> Any:
        """Create a user; return it with its token."""
        async with self.hook.transaction() as tx:
            return await self.sign_in.add(tx, name, password=password, roles=roles, with_token=with_token)

    def rows(self, sql: str) -> list[Any]:
        """Query the database."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            return connection.execute(sql).fetchall()


def declare(folder: Path, setting: str = "auto", **options: Any) -> tuple[Boathook, SignIn[User], Pages]:
    """Declare the app, with its files in a folder."""
    for name in ("templates", "migrations", "static", "locale/ru/LC_MESSAGES"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "templates/list.html").write_text(LIST)
    (folder / "static/own.css").write_text("p { margin: 0; }")
    (folder / "locale/ru/LC_MESSAGES/messages.po").write_text(TRANSLATIONS)
    (folder / "migrations/0001_first.sql").write_text(
        "create schema desk;\n-- include: sign_in 1\n"
        "create table desk.notes (id bigint generated always as identity, user_id bigint references desk.users,"
        " text text, made_at timestamptz default '2026-01-02 03:04:05+00');\n"
    )
    hook = Boathook("desk", migrations=folder / "migrations")
    languages = Languages(folder / "locale", setting=lambda: setting, time_zone=lambda: "Asia/Tbilisi")
    sign_in: SignIn[User] = SignIn(hook, roles=("staff",), token_prefix="dsk_")
    pages = Pages(hook, "/desk", title="Desk", folder=folder, languages=languages, sign_in=sign_in, **options)
    pages.nav("/", "Desk")
    pages.nav("/staff", "Staff only", role="staff")

    @pages.get("/")
    async def show(request: PageRequest, error: str = "", status: int = 200) -> Response:
        notes = await request.tx.fetch("select * from desk.notes order by id")
        return request.page("list.html", status, notes=notes, error=error)

    @pages.post("/notes")
    async def add(request: PageRequest) -> Response:
        note = request.read(Note)
        await request.tx.execute("insert into desk.notes (user_id, text) values ($1, $2)", request.user.id, note.text)
        if note.text == "refuse":
            raise Refusal("Not this one.", status=409)
        return request.redirect("/", languages.gettext("Saved %(name)s.", name=note.text))

    @pages.get("/staff", role="staff")
    async def staff(request: PageRequest) -> Response:
        return request.page("list.html", notes=[], error="")

    @pages.get("/public", is_public=True)
    async def public(request: PageRequest) -> Response:
        return request.page("list.html", notes=[], error="")

    pages.mount()
    return hook, sign_in, pages


@pytest.fixture(autouse=True)
def cheap_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passwords, "HASHER", PasswordHasher(time_cost=1, memory_cost=8, parallelism=1))


@pytest.fixture
async def desk(tmp_path: Path, pg_url: str) -> AsyncIterator[Desk]:
    hook, sign_in, pages = declare(tmp_path)
    await migrate(pg_url, [("desk", tmp_path / "migrations")])
    async with bound(load(overrides={"database.url": pg_url, "apps.load": ["desk"]}), [hook]):
        yield Desk(hook, sign_in, pages, pg_url)


async def log_in(
    browser: httpx.AsyncClient, name: str = "anna", password: str = PASSWORD, **form: str
) -> httpx.Response:
    return await browser.post("/desk/sign-in", data={"name": name, "password": password, **form})


async def csrf(browser: httpx.AsyncClient) -> str:
    found = re.search(r'name="csrf" value="([0-9a-f]+)"', (await browser.get("/desk/")).text)
    assert found is not None
    return found[1]


# An API


class NotesQuery(BaseModel):
    limit: int = Field(default=50, ge=1)
    text: str | None = None


@pytest.mark.parametrize(
    ("path", "status", "error"),
    [
        ("/notes?limit=7", 200, None),
        ("/notes?limit=0", 400, {"code": "bad_field", "field": "limit", "message": "limit: it must be at least 1"}),
        ("/notes?text=%00", 400, {"code": "bad_field", "field": "text", "message": "text: it must not contain NUL"}),
        ("/absent", 404, {"code": "not_found", "message": "there is no note 7"}),
        ("/wrong", 400, {"code": "bad_field", "field": "notes.0", "message": "notes.0: it is too long"}),
        ("/nowhere", 404, {"code": "not_found", "message": "Not Found"}),
    ],
)
async def test_an_api_without_users_leaves_them_to_its_mount(
    tmp_path: Path, pg_url: str, path: str, status: int, error: Any
):
    hook = Boathook("desk")
    api = JsonApi(hook, None, Languages(tmp_path), "/notes-api")

    async def list_notes(request: ApiRequest) -> Any:
        assert request.user is None
        return 200, {"limit": request.read_query(NotesQuery).limit}

    async def absent(_request: ApiRequest) -> Any:
        raise NotFound("there is no note 7")

    async def wrong(_request: ApiRequest) -> Any:
        raise InvalidValue("it is too long", "notes", 0)

    async def download(_request: ApiRequest) -> Any:
        return Response(b"notes", headers={"content-security-policy": "sandbox"})

    api.add("/notes", GET=list_notes)
    api.add("/absent", GET=absent)
    api.add("/wrong", GET=wrong)
    api.add("/download", GET=download)
    api.mount()
    (mount,) = hook.manifest.mounts
    assert (mount.path, mount.is_open) == ("/notes-api", False)
    transport = httpx.ASGITransport(app=mount.app, root_path="/notes-api")
    async with (
        bound(load(overrides={"database.url": pg_url, "apps.load": ["desk"]}), [hook]),
        httpx.AsyncClient(transport=transport, base_url=BASE) as client,
    ):
        answer = await client.get(f"/notes-api{path}")
        downloaded = await client.get("/notes-api/download")
    assert (answer.status_code, answer.json().get("error")) == (status, error)
    assert error is not None or answer.json() == {"limit": 7}
    assert (downloaded.content, downloaded.headers["content-security-policy"]) == (b"notes", "sandbox")


def test_an_api_with_users_is_open_to_their_tokens(tmp_path: Path):
    hook, sign_in, pages = declare(tmp_path)
    JsonApi(hook, sign_in, pages.languages, "/notes-api").mount()
    assert hook.manifest.mounts[-1].is_open


# Signing in


async def test_a_user_signs_in_works_and_signs_out(desk: Desk):
    await desk.add("Anna")
    async with desk.browser() as browser:
        asked = await browser.get("/desk/?page=2")
        assert (asked.status_code, asked.headers["location"]) == (303, "/desk/sign-in")
        done = await log_in(browser)
        assert (done.status_code, done.headers["location"]) == (303, "/desk/")
        cookie = done.headers["set-cookie"].lower()
        assert all(word in cookie for word in ("desk_session=", "httponly", "samesite=strict", "path=/desk"))
        token = await csrf(browser)
        saved = await browser.post("/desk/notes", data={"csrf": token, "text": "tea & milk"}, follow_redirects=True)
        assert "Saved tea &amp; milk." in saved.text
        assert "<li>tea &amp; milk" in saved.text
        assert "Saved" not in (await browser.get("/desk/")).text
        assert (await browser.post("/desk/sign-out", data={"csrf": token})).status_code == 303
        assert (await browser.get("/desk/")).status_code == 303
    assert desk.rows("select count(*) from desk.sessions") == [(0,)]


async def test_the_browser_returns_to_the_page_that_it_asked_for(desk: Desk):
    await desk.add("anna")
    async with desk.browser() as browser:
        asked = await browser.get("/desk/staff")
        assert asked.headers["location"] == "/desk/sign-in?next=%2Fstaff"
        form = (await browser.get(asked.headers["location"])).text
        assert 'name="next" value="/staff"' in form
        assert (await log_in(browser, next="/staff")).headers["location"] == "/desk/staff"


@pytest.mark.parametrize(
    "target",
    [
        "https://evil.example/",
        "//evil.example",
        "/\\evil.example",
        "/../console",
        "/%2e%2e/console",
        "evil",
        "/sign-in",
    ],
)
async def test_no_sign_in_leads_elsewhere(desk: Desk, target: str):
    await desk.add("anna")
    async with desk.browser() as browser:
        assert (await log_in(browser, next=target)).headers["location"] == "/desk/"


async def test_mutant_a_target_that_is_not_checked_leads_elsewhere(desk: Desk, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Pages, "safe_path", lambda _self, path: path)
    monkeypatch.setattr(Pages, "url", lambda _self, path: path)
    await desk.add("anna")
    async with desk.browser() as browser:
        assert (await log_in(browser, next="//evil.example")).headers["location"] == "//evil.example"


@pytest.mark.parametrize(
    ("name", "password"), [("anna", "wrong horse battery"), ("berta", PASSWORD), ("anna", "x" * 2_000)]
)
async def test_a_wrong_name_or_password_opens_no_session(desk: Desk, name: str, password: str):
    await desk.add("anna")
    async with desk.browser() as browser:
        done = await log_in(browser, name, password)
    assert (done.status_code, "set-cookie" in done.headers) == (401, False)
    assert "Wrong name or password." in done.text


async def test_an_unknown_name_takes_as_long_as_a_known_one(desk: Desk, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(passwords, "HASHER", SLOW_HASHER)
    await desk.add("anna")
    compared: list[str] = []

    def compare(known: str, given: str) -> bool:
        compared.append(known)
        return SLOW_HASHER.verify(known, given)

    monkeypatch.setattr(passwords, "HASHER", SimpleNamespace(verify=compare))
    async with desk.browser() as browser:
        await log_in(browser, "anna", "wrong horse battery")
        await log_in(browser, "berta", "wrong horse battery")
    assert [known.rsplit("$", 2)[0] for known in compared] == [compared[0].rsplit("$", 2)[0]] * 2


async def test_guessing_is_limited(desk: Desk):
    await desk.add("anna")
    async with desk.browser() as browser:
        answers = [(await log_in(browser, "anna", "wrong horse battery")).status_code for _ in range(12)]
        assert (await log_in(browser)).status_code == 429
    assert answers == [401] * 10 + [429] * 2


async def test_mutant_without_the_limit_guessing_goes_on(desk: Desk, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(LoginRateLimiter, "take", lambda *_: True)
    await desk.add("anna")
    async with desk.browser() as browser:
        answers = [(await log_in(browser, "anna", "wrong horse battery")).status_code for _ in range(12)]
    assert answers == [401] * 12


async def test_a_disabled_user_is_signed_out_and_stays_out(desk: Desk):
    user, token = await desk.add("anna", with_token=True)
    async with desk.browser() as browser:
        await log_in(browser)
        async with desk.hook.transaction() as tx:
            await desk.sign_in.disable(tx, user)
        assert (await browser.get("/desk/")).status_code == 303
        assert (await log_in(browser)).status_code == 401
        async with desk.hook.transaction() as tx:
            assert await desk.sign_in.find_by_token(tx, token) is None
            await desk.sign_in.enable(tx, user)
            assert await desk.sign_in.find_by_token(tx, token) == user
        assert (await log_in(browser)).status_code == 303


async def test_a_session_expires(desk: Desk):
    await desk.add("anna")
    async with desk.browser() as browser:
        await log_in(browser)
        assert (await browser.get("/desk/")).status_code == 200
        desk.rows("update desk.sessions set expires_at = now() returning 1")
        assert (await browser.get("/desk/")).status_code == 303


async def test_only_hashes_are_stored(desk: Desk):
    _, token = await desk.add("anna", with_token=True)
    async with desk.browser() as browser:
        await log_in(browser)
        session = browser.cookies["desk_session"]
    stored = str(desk.rows("select u::text from desk.users u") + desk.rows("select s::text from desk.sessions s"))
    assert not [secret for secret in (PASSWORD, token, token[4:], session) if secret in stored]
    assert "$argon2id$" in stored


async def test_a_token_opens_a_session_too(desk: Desk):
    _, token = await desk.add("anna", password=None, with_token=True)
    async with desk.browser() as browser:
        assert (await browser.post("/desk/sign-in", data={"token": "dsk_wrong"})).status_code == 401
        assert (await browser.post("/desk/sign-in", data={"token": token})).status_code == 303
        assert (await browser.get("/desk/")).status_code == 200


async def test_the_password_is_changed_with_the_current_one(desk: Desk):
    await desk.add("anna")
    async with desk.browser() as browser, desk.browser() as other:
        await log_in(browser)
        await log_in(other)
        form = {"csrf": await csrf(browser), "current": "wrong horse battery", "new": "another horse battery"}
        assert (await browser.post("/desk/account", data=form)).status_code == 401
        assert (
            await browser.post("/desk/account", data=form | {"current": PASSWORD, "new": "short"})
        ).status_code == 400
        assert (await browser.post("/desk/account", data=form | {"current": PASSWORD})).status_code == 303
        assert (await browser.get("/desk/")).status_code == 200
        assert (await other.get("/desk/")).status_code == 303
        assert (
            (await log_in(other)).status_code,
            (await log_in(other, password="another horse battery")).status_code,
        ) == (
            401,
            303,
        )


# Forged forms


@pytest.mark.parametrize(
    ("origin", "token"),
    [
        (BASE, ""), (BASE, "0" * 64), (BASE, "é"), ("https://evil.example", "own"), ("null", "own"),
        ("http://desk.example:8080", "own"), ("http://desk.example/path", "own"), ("http://x@desk.example", "own"),
    ],
)  # fmt: skip
async def test_forged_forms_are_refused(desk: Desk, origin: str, token: str):
    await desk.add("anna")
    async with desk.browser() as browser:
        await log_in(browser)
        form = {"csrf": await csrf(browser) if token == "own" else token, "text": "stolen"}
        for path in ("/desk/notes", "/desk/sign-out", "/desk/account"):
            answer = await browser.post(path, data=form, headers={"origin": origin})
            assert answer.status_code == 403, path
        if token == "own":
            assert (await log_in(browser, next=origin)).status_code == 303
            done = await browser.post("/desk/sign-in", data={"name": "anna"}, headers={"origin": origin})
            assert done.status_code == 403
    assert desk.rows("select count(*) from desk.notes") == [(0,)]


@pytest.mark.parametrize("check", ["check_csrf_token", "check_origin"])
async def test_mutant_without_a_check_a_forged_form_counts(desk: Desk, monkeypatch: pytest.MonkeyPatch, check: str):
    monkeypatch.setattr(site, check, lambda *_args, **_kwargs: None)
    await desk.add("anna")
    async with desk.browser() as browser:
        await log_in(browser)
        is_csrf = check == "check_csrf_token"
        form = {"csrf": "0" if is_csrf else await csrf(browser), "text": "stolen"}
        headers = {"origin": BASE if is_csrf else "https://evil.example"}
        assert (await browser.post("/desk/notes", data=form, headers=headers)).status_code == 303
    assert desk.rows("select text from desk.notes") == [("stolen",)]


async def test_with_a_public_url_only_its_origin_counts(tmp_path: Path, pg_url: str):
    hook, sign_in, pages = declare(tmp_path, public_url=lambda: "https://desk.example")
    await migrate(pg_url, [("desk", tmp_path / "migrations")])
    async with bound(load(overrides={"database.url": pg_url, "apps.load": ["desk"]}), [hook]):
        desk = Desk(hook, sign_in, pages, pg_url)
        await desk.add("anna")
        async with desk.browser() as browser, desk.browser(origin="https://desk.example") as right:
            assert (await log_in(browser)).status_code == 403
            done = await log_in(right)
    assert (done.status_code, "secure" in done.headers["set-cookie"].lower()) == (303, True)


# Pages


async def test_pages_have_security_headers_and_bring_all_files_along(desk: Desk):
    async with desk.browser() as browser:
        for path in ("/desk/public", "/desk/sign-in", "/desk/nowhere"):
            page = await browser.get(path)
            assert "default-src 'none'" in page.headers["content-security-policy"]
            assert "unsafe" not in page.headers["content-security-policy"]
            assert (page.headers["x-frame-options"], page.headers["cache-control"]) == ("DENY", "no-store")
            assert "<script" not in page.text
            links = [link for link in re.findall(r'(?:href|src)="([^"#]+)"', page.text) if "/static/" in link]
            assert links
            assert [(await browser.get(link)).status_code for link in links] == [200] * len(links)
        css = await browser.get(desk.pages._files.url("own/own.css"))
        assert (css.status_code, "immutable" in css.headers["cache-control"]) == (200, True)
        assert (await browser.get("/desk/static/../migrations/0001_first.sql")).status_code == 404
        assert (await browser.get("/desk/static/own/%2e%2e/migrations/0001_first.sql")).status_code == 404


async def test_a_role_opens_its_pages(desk: Desk):
    anna, _ = await desk.add("anna")
    async with desk.browser() as browser:
        await log_in(browser)
        refused = await browser.get("/desk/staff")
        assert (refused.status_code, "Your account may not open this page." in refused.text) == (403, True)
        assert "Staff only" not in (await browser.get("/desk/")).text
        async with desk.hook.transaction() as tx:
            await desk.sign_in.set_roles(tx, anna, ["staff"])
        assert (await browser.get("/desk/staff")).status_code == 200
        assert "Staff only" in (await browser.get("/desk/")).text


async def test_a_refusal_rolls_back_and_is_shown(desk: Desk):
    await desk.add("anna")
    async with desk.browser() as browser:
        await log_in(browser)
        refused = await browser.post("/desk/notes", data={"csrf": await csrf(browser), "text": "refuse"})
        assert (refused.status_code, "Not this one." in refused.text) == (409, True)
        short = await browser.post("/desk/notes", data={"csrf": await csrf(browser), "text": "x"})
        assert (short.status_code, "text: write at least 2 characters" in short.text) == (400, True)
    assert desk.rows("select count(*) from desk.notes") == [(0,)]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/desk/nowhere", 404), ("DELETE", "/desk/", 405), ("GET", "/desk/notes", 405)],
)
async def test_a_request_without_a_page_is_answered_by_one(desk: Desk, method: str, path: str, status: int):
    async with desk.browser() as browser:
        answer = await browser.request(method, path)
    assert (answer.status_code, "Not possible" in answer.text) == (status, True)


async def test_without_the_database_pages_say_so(desk: Desk):
    with psycopg.connect(desk.url, autocommit=True) as connection:
        connection.execute("alter table desk.sessions rename to gone")
    async with desk.browser(cookie="desk_session=x") as browser:
        answer = await browser.get("/desk/")
    assert (answer.status_code, "This cannot be done now." in answer.text) == (503, True)


async def test_a_form_that_is_too_large_is_413(desk: Desk):
    async with desk.browser() as browser:
        answer = await browser.post("/desk/sign-in", data={"name": "x" * 1_100_000})
    assert answer.status_code == 413


# Languages


@pytest.mark.parametrize(
    ("header", "language"),
    [
        ("", "en"), ("ru", "ru"), ("ru-RU,ru;q=0.9,en;q=0.8", "ru"), ("en;q=0.5,ru;q=0.7", "ru"), ("de,ru;q=0.1", "ru"),
        ("ru;q=0,en", "en"), ("ru;q=2", "en"), ("*", "en"), ("," * 5_000 + "ru", "en"), ("ru;q=0.0001", "en"),
    ],
)  # fmt: skip
async def test_a_browser_without_a_choice_gets_its_language(desk: Desk, header: str, language: str):
    async with desk.browser(**{"accept-language": header}) as browser:
        assert f'<html lang="{language}">' in (await browser.get("/desk/public")).text


async def test_a_users_own_choice_is_kept(desk: Desk):
    await desk.add("anna")
    async with desk.browser() as browser:
        await log_in(browser)
        form = {"csrf": await csrf(browser), "language": "ru", "next": "/"}
        assert (await browser.post("/desk/language", data=form)).status_code == 303
        page = await browser.get("/desk/")
        assert '<p id="count">0 заметок</p>' in page.text
        assert "1\u00a0234,50\u00a0₽" in page.text
        saved = await browser.post("/desk/notes", data=form | {"text": "чай"}, follow_redirects=True)
        assert "Сохранено: чай." in saved.text
        assert '<p id="count">1 заметка</p>' in saved.text
        assert "2 янв. 2026\u202f\N{CYRILLIC SMALL LETTER GHE}., 07:04:05" in saved.text
        assert (
            "напишите не меньше символов, чем 2" in (await browser.post("/desk/notes", data=form | {"text": "x"})).text
        )
    async with desk.browser() as other:
        await log_in(other)
        assert '<html lang="ru">' in (await other.get("/desk/")).text
    assert desk.rows("select language from desk.users") == [("ru",)]


async def test_a_choice_without_a_user_is_kept_by_the_browser(desk: Desk):
    async with desk.browser() as browser:
        done = await browser.post("/desk/language", data={"language": "ru", "next": "/public"})
        assert done.headers["location"] == "/desk/public"
        assert "Выйти" not in (await browser.get("/desk/public")).text
        assert "<h1>Войти</h1>" in (await browser.get("/desk/sign-in")).text
        assert (await browser.post("/desk/language", data={"language": "xx"})).status_code == 400
        forged = {"origin": "https://evil.example"}
        assert (await browser.post("/desk/language", data={"language": "en"}, headers=forged)).status_code == 403


async def test_the_setting_fixes_the_language(tmp_path: Path, pg_url: str):
    hook, sign_in, pages = declare(tmp_path, "ru")
    await migrate(pg_url, [("desk", tmp_path / "migrations")])
    async with (
        bound(load(overrides={"database.url": pg_url, "apps.load": ["desk"]}), [hook]),
        Desk(hook, sign_in, pages, pg_url).browser(**{"accept-language": "en"}) as browser,
    ):
        page = (await browser.get("/desk/public")).text
    assert '<html lang="ru">' in page
    assert "/desk/language" not in page
    assert pages.languages.gettext("Saved %(name)s.", name="x") == "Сохранено: x."


def test_texts_outside_of_a_request(tmp_path: Path):
    _, _, pages = declare(tmp_path)
    texts = pages.languages
    assert texts.ngettext("One note", "%(num)s notes", 5) == "5 notes"
    with texts.using("ru"):
        assert [texts.ngettext("One note", "%(num)s notes", n) for n in (1, 3, 5, 21)] == [
            "1 заметка", "3 заметки", "5 заметок", "21 заметка",
        ]  # fmt: skip
        assert texts.gettext("not translated") == "not translated"
        assert texts.format_number(1234567) == "1\u00a0234\u00a0567"
    with texts.using("de"):
        assert texts.format_amount(1050, "JPY") == "¥1,050"
    assert texts.current == "en"


# Users and migrations


async def test_names_roles_and_passwords_are_checked(desk: Desk):
    await desk.add("anna")
    for name, roles, password in [
        ("", (), PASSWORD),
        ("a\nb", (), PASSWORD),
        ("b", ("boss",), PASSWORD),
        ("b", (), "short"),
    ]:
        with pytest.raises(InvalidValue):
            await desk.add(name, *roles, password=password)
    with pytest.raises(AlreadyExists):
        await desk.add("ANNA")
    first, _ = await desk.add("shop", password=None)
    second, _ = await desk.add("shop", password=None)
    async with desk.hook.transaction() as tx:
        assert (await desk.sign_in.find(tx, str(second.id))) == second
        with pytest.raises(InvalidState, match=f"name the id, one of {first.id}, {second.id}"):
            await desk.sign_in.find(tx, "shop")
        with pytest.raises(NotFound, match="there is no user 99999"):
            await desk.sign_in.find(tx, "9" * 40)
        await desk.sign_in.set_password(tx, first, PASSWORD)
    with pytest.raises(AlreadyExists):
        async with desk.hook.transaction() as tx:
            await desk.sign_in.set_password(tx, second, PASSWORD)


def test_operators_manage_users_by_commands(tmp_path: Path, pg_url: str):
    hook, sign_in, _ = declare(tmp_path)
    asyncio.run(migrate(pg_url, [("desk", tmp_path / "migrations")]))
    bind(load(overrides={"database.url": pg_url, "apps.load": ["desk"]}), [hook])
    commands = sign_in.commands()

    def run(*words: str) -> list[Any]:
        done = CliRunner().invoke(commands, [*words], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return [json.loads(line) for line in done.output.splitlines()]

    (made,) = run("add", "anna", "--role", "staff", "--json")
    assert (made["name"], made["roles"], made["token"][:4]) == ("anna", ["staff"], "dsk_")
    assert asyncio.run(_check(pg_url, hook, sign_in, made["password"]))
    (renewed,) = run("password", "anna", "--json")
    assert renewed["password"] != made["password"]
    assert run("roles", "anna", "--json")[0]["roles"] == []
    assert run("disable", str(made["id"]), "--json")[0]["is_disabled"] is True
    assert run("enable", "anna", "--json")[0]["is_disabled"] is False
    assert [row["name"] for row in run("list", "--json")] == ["anna"]
    run("delete", "anna")
    assert run("list", "--json") == []


async def _check(url: str, hook: Boathook, sign_in: SignIn[User], password: str) -> bool:
    async with bound(load(overrides={"database.url": url, "apps.load": ["desk"]}), [hook]):
        return await sign_in.log_in("anna", password, ClientInfo("192.0.2.1", "")) is not None


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("-- include: sign_in", "must look like `-- include: sign_in 1`"),
        ("-- include: sign_in 1 Staff", "must look like `-- include: sign_in 1`"),
        ("-- include: sign_in 7", "nothing to include as sign_in 7; known are: sign_in 1"),
        ("-- include: ../secret 1", "must look like"),
        ("-- include: absent_tools.orders 1", "absent_tools is not an installed package with a folder `included`"),
        ("-- include: boathook_app_tools.orders 1", "nothing to include as orders 1; known are: imported_row 1"),
    ],
)
async def test_a_wrong_include_is_an_error_that_names_the_file(tmp_path: Path, pg_url: str, line: str, message: str):
    (tmp_path / "0001_first.sql").write_text(f"create schema desk;\n{line}\n")
    with pytest.raises(ConfigError, match=re.escape(message)) as error:
        await migrate(pg_url, [("desk", tmp_path)])
    assert str(tmp_path / "0001_first.sql") in str(error.value)


def test_sign_in_needs_its_tables(tmp_path: Path):
    (tmp_path / "0001_first.sql").write_text("create schema desk;\n-- include: sign_in 1\n")
    SignIn(Boathook("desk", migrations=tmp_path))
    with pytest.raises(ConfigError, match="no migration of desk has the line `-- include: sign_in 1 staff_`"):
        SignIn(Boathook("desk", migrations=tmp_path), prefix="staff_")
    with pytest.raises(ConfigError, match="no migration of desk has the line `-- include: sign_in 1`"):
        SignIn(Boathook("desk"))
    with pytest.raises(ConfigError, match="prefix='x; drop'"):
        SignIn(Boathook("desk", migrations=tmp_path), prefix="x; drop")


async def test_a_prefix_names_other_tables(tmp_path: Path, pg_url: str):
    (tmp_path / "0001_first.sql").write_text(
        "create schema desk;\ncreate table desk.users (id int);\n-- include: sign_in 1 staff_\n"
    )
    hook = Boathook("desk", migrations=tmp_path)
    sign_in: SignIn[User] = SignIn(hook, prefix="staff_")
    assert await migrate(pg_url, [("desk", tmp_path)]) == ["desk/0001_first"]
    async with (
        bound(load(overrides={"database.url": pg_url, "apps.load": ["desk"]}), [hook]),
        hook.transaction() as tx,
    ):
        user, _ = await sign_in.add(tx, "anna", password=PASSWORD)
        assert await sign_in.list_all(tx) == [user]


def test_a_page_needs_users_or_is_public(tmp_path: Path):
    hook, languages = Boathook("desk"), Languages(tmp_path)
    pages = Pages(hook, "/desk", title="Desk", folder=tmp_path, languages=languages)
    with pytest.raises(ConfigError, match="/ needs users"):
        pages.get("/")


async def test_the_app_of_the_documentation_works(tmp_path: Path, pg_url: str):
    page = (Path(__file__).parents[3] / "docs/how-to/pages.md").read_text()
    blocks = {
        language: re.search(rf"```{language}\n(.*?)```", page, re.DOTALL)[1] for language in ("sql", "python", "html")
    }
    (tmp_path / "migrations").mkdir()
    (tmp_path / "migrations/0001_first.sql").write_text(
        f"{blocks['sql']}\ncreate table shop.orders (id bigint, total bigint, made_at timestamptz, note text);"
    )
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates/orders.html").write_text(blocks["html"])
    module: dict[str, Any] = {"__file__": str(tmp_path / "shop.py"), "__name__": "shop"}
    exec(compile(blocks["python"], "shop.py", "exec"), module)
    await migrate(pg_url, [("shop", tmp_path / "migrations")])
    with psycopg.connect(pg_url, autocommit=True) as connection:
        connection.execute("insert into shop.orders values (7, 1050, '2026-01-02 03:04:05+00')")
    hook = module["hook"]
    async with bound(load(overrides={"database.url": pg_url, "apps.load": ["shop"]}), [hook]):
        async with hook.transaction() as tx:
            await module["sign_in"].add(tx, "anna", password=PASSWORD, roles=["support"])
        transport = httpx.ASGITransport(app=hook.manifest.mounts[0].app, root_path="/shop/staff")
        async with httpx.AsyncClient(transport=transport, base_url=BASE, headers={"origin": BASE}) as browser:
            assert (await browser.post("/shop/staff/sign-in", data={"name": "anna", "password": PASSWORD})).is_redirect
            shown = (await browser.get("/shop/staff/")).text
            assert all(text in shown for text in ("10.50", "One order", "UTC"))
            token = re.search(r'name="csrf" value="([0-9a-f]+)"', shown)[1]
            form = {"csrf": token, "text": "call back"}
            saved = await browser.post("/shop/staff/orders/7/note", data=form, follow_redirects=True)
            assert "The note was saved." in saved.text
            assert "There is no order 8." in (await browser.post("/shop/staff/orders/8/note", data=form)).text
