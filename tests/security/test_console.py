"""Attacks on the console: every route without permission, hostile URLs, and password guessing.

What is tried is made from the routes themselves, so that one that is added is attacked as well.
"""

import asyncio
import base64
import random
import re
import secrets
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from ipaddress import ip_network
from typing import Any, ClassVar
from urllib.parse import quote

import httpx
import msgspec
import pytest
from starlette.routing import Route

from boathook.db import operators as operator_database
from boathook.db.database import Database
from boathook.db.operators import ClientInfo
from boathook.domain import ids
from boathook.domain.model import Role
from boathook.server.asgi_guard import apply_forwarded_headers
from boathook.service.access import login_rate, operators, passwords
from boathook.service.access.authorization import ACCESS_RULES
from boathook.service.access.identity_provider import AuthorizationRequest
from boathook.service.access.login_rate import LoginRateLimiter
from boathook.service.access.sign_in_link import LINK_PATH
from boathook.service.caller import HOST
from boathook.service.catalogue import operators as operator_actions
from boathook.service.catalogue.operation import Operation
from boathook.service.catalogue.operators import OperatorNamed
from boathook_console import login as signing_in
from boathook_console.areas import AREAS
from boathook_console.login import PROVIDER_CALLBACK_PATH, PROVIDER_START_PATH
from boathook_console.routes import BASE, ConsoleContext, RouteSpec
from boathook_console.shared import context
from boathook_pages.security import csrf_token
from boathook_portal.pages import all_pages
from tests.permission_matrix import is_covered
from tests.postgres.api_client import make_token
from tests.postgres.portal_client import ORIGIN, ConsoleApp, PageClient, open_console
from tests.support import sampled

ENTRIES = [entry for area in AREAS for entry in area.entries]
FORMS = [entry for entry in ENTRIES if entry.method == "POST"]
OPEN = {
    f"{BASE}/static/{{path:path}}", f"{BASE}/csp-reports", f"{BASE}/sign-in", LINK_PATH, PROVIDER_START_PATH, PROVIDER_CALLBACK_PATH,
}  # fmt: skip
"""What needs no session."""
OUTSIDERS = ("nobody", "invented", "disabled", "expired", "idle", "customer", "program")
FORGED: tuple[dict[str, str], ...] = (
    {"origin": "https://evil.example"},
    {"origin": "null"},
    {"origin": f"{ORIGIN}.evil.example"},
    {"origin": ORIGIN, "sec-fetch-site": "cross-site"},
    {"origin": ORIGIN, "sec-fetch-site": "same-site"},
    {"origin": ""},
)
PASSWORD = "a long and quiet harbour"


@dataclass
class AttackTarget:
    """A console with data of every kind, and the sessions of users with and without access."""

    console: ConsoleApp
    database: Database
    sessions: dict[str, str]
    places: dict[str, str]

    def path(self, entry: RouteSpec) -> str:
        """Return an address of a route that leads to something."""
        area = entry.path.split("/")[1] if "/" in entry.path else ""
        known = {**self.places, "id": self.places.get(f"id of {area}", "x"), "name": self.places.get(area, "x")}
        return BASE + re.sub(r"\{(\w+)(:\w+)?\}", lambda found: known.get(found[1], "x"), entry.path)

    async def send(self, entry: RouteSpec, who: str, *, csrf: str | None = None, **headers: str) -> httpx.Response:
        """Request a page or submit its form as one of the users."""
        async with PageClient(self.console.app) as browser:
            session = self.sessions[who]
            browser.cookies.update({"boathook": session, "boathook-portal": session} if session else {})
            if entry.method == "GET":
                # A stream has no end: of it, the head alone is asked for.
                ask = browser.head if entry.path.endswith("/live") else browser.get
                return await ask(self.path(entry), headers=headers)
            form = {"csrf": csrf_token(session) if csrf is None else csrf, **_FIELDS}
            headers = {"origin": ORIGIN, **headers}
            if not headers["origin"]:
                del browser.headers["origin"], headers["origin"]
            return await browser.post(self.path(entry), data=form, headers=headers)

    async def state(self) -> dict[str, str]:
        """Return the state of all tables except the times of last use."""
        tables = await self.database.fetch("select tablename from pg_tables where schemaname = 'boathook'")
        names = [row["tablename"] for row in tables if row["tablename"] != "operator_session"]
        read = "select coalesce(md5(string_agg(t::text, '|' order by t::text)), '') from boathook.{} t"
        return {name: await self.database.fetchval(read.format(name)) for name in names}


_FIELDS = {
    "name": "taken.over",
    "role": "admin",
    "password": "a password of somebody else",
    "note": "because",
    "typed": "purge",
    "url": "http://127.0.0.1:8999/foreign",
    "length": "4",
    "rule": "*",
    "subject": "*",
    "do": "replay",
    "document": "{}",
}


@pytest.fixture
async def target(db: Database) -> AsyncIterator[AttackTarget]:
    async with open_console(db) as console:
        yield await _prepare_target(console, db)


async def _prepare_target(console: ConsoleApp, db: Database) -> AttackTarget:
    tenant = await console.tenant("acme")
    sessions = {"nobody": "", "invented": secrets.token_urlsafe(32), "customer": await console.token(tenant)}
    sessions["program"] = await _key_of(console)
    roles = {"viewer": Role.VIEWER, "operator": Role.OPERATOR, "other": Role.ADMIN}
    for name in ("viewer", "operator", "admin", "other", "disabled", "expired", "idle"):
        browser = await console.operator(name, roles.get(name, Role.ADMIN))
        sessions[name] = browser.cookies["boathook"]
    ours = "operator_id = (select id from boathook.operator where name = $1)"
    await db.execute("update boathook.operator set disabled_at = now() where name = 'disabled'")
    await db.execute(f"update boathook.operator_session set expires_at = now() where {ours}", "expired")
    await db.execute(f"update boathook.operator_session set seen_at = now() - interval '90 days' where {ours}", "idle")
    event = ids.read(ids.MESSAGE, tenant.message)
    await db.execute(
        "update boathook.delivery set state = 'dead', dead_at = now(), code = 'http-500' where event_id = $1", event
    )
    letter = ids.show_delivery(event, 0)
    key = await db.fetchval("select id from boathook.api_key where not is_portal")
    places = {
        "application": tenant.application.shown_id,
        "endpoint": tenant.endpoint.shown_id,
        "message": tenant.message,
        "operators": "viewer",
        "id of events": tenant.message,
        "id of dead": letter,
        "id of keys": ids.show(ids.API_KEY, key),
        "kind": "csv",
    }
    return AttackTarget(console, db, sessions, places)


async def _key_of(console: ConsoleApp) -> str:
    return await make_token(console.context, name="a program")


def test_every_route_is_attacked(target: AttackTarget):
    routes = [
        route for site in target.console.app.sites.values() for route in site._router.routes if isinstance(route, Route)
    ]
    covered = {BASE + entry.path for entry in ENTRIES}
    portal = {"/portal" + page.path for page in all_pages()}
    others = {route.path for route in routes} - covered - portal - OPEN
    assert all(path.startswith("/portal") for path in others), others


@pytest.mark.parametrize("who", sampled(OUTSIDERS, keep=2))
async def test_visitors_without_a_session_see_and_change_nothing(target: AttackTarget, who: str):
    before = await target.state()
    for entry in ENTRIES:
        answer = await target.send(entry, who)
        assert answer.status_code == 303, f"{entry}: {answer.status_code}"
        assert answer.headers["location"].startswith(f"{BASE}/sign-in?next=%2Fconsole")
        assert not answer.content
        fragment = await target.send(entry, who, **{"hx-request": "true"})
        assert (fragment.status_code, fragment.content) == (401, b"")
    assert await target.state() == before


@pytest.mark.parametrize("who", [Role.VIEWER, Role.OPERATOR])
async def test_no_role_gets_beyond_its_permissions(target: AttackTarget, who: Role):
    before, denied = await target.state(), 0
    for entry in ENTRIES:
        if not is_covered(ACCESS_RULES[entry.permission], who):
            answer = await target.send(entry, who.value)
            assert answer.status_code == 403, f"{entry}: {answer.status_code}"
            denied += 1
    assert denied
    assert await target.state() == before


@pytest.mark.parametrize("who", sampled(Role, keep=1))
async def test_get_requests_change_nothing(target: AttackTarget, who: Role):
    before = await target.state()
    for entry in ENTRIES:
        if entry.method == "GET":
            answer = await target.send(entry, who.value)
            assert answer.status_code < 500, f"{entry}: {answer.status_code}"
            assert (answer.status_code == 403) is not is_covered(ACCESS_RULES[entry.permission], who), (
                f"{entry}: {answer.status_code}"
            )
    assert await target.state() == before


async def test_forged_forms_are_refused(target: AttackTarget):
    before = await target.state()
    for entry in FORMS:
        for csrf in ("", "x", "é", csrf_token(target.sessions["other"])):
            answer = await target.send(entry, "admin", csrf=csrf)
            assert answer.status_code == 403, f"{entry} with the token {csrf!r}: {answer.status_code}"
        for headers in FORGED:
            answer = await target.send(entry, "admin", **headers)
            assert answer.status_code == 403, f"{entry} with {headers}: {answer.status_code}"
    assert await target.state() == before


async def test_without_the_check_of_roles_a_viewer_would_make_an_admin(target: AttackTarget, monkeypatch):
    monkeypatch.setattr(ConsoleContext, "may", lambda _visit, _role: True)
    (entry,) = [one for one in FORMS if one.path == "/operators"]
    assert (await target.send(entry, "viewer")).status_code == 403, "the operation checks it too"
    monkeypatch.setattr(Operation, "check_caller", lambda _operation, _work: None)
    assert (await target.send(entry, "viewer")).status_code == 303
    assert await target.database.fetchval("select role from boathook.operator where name = 'taken.over'") == "admin"


async def test_without_the_checks_of_forms_another_site_would_make_an_admin(target: AttackTarget, monkeypatch):
    monkeypatch.setattr(context, "check_origin", lambda _request, _url: None)
    monkeypatch.setattr(context, "check_csrf_token", lambda _session, _given: None)
    (entry,) = [one for one in FORMS if one.path == "/operators"]
    assert (await target.send(entry, "admin", csrf="", origin="https://evil.example")).status_code == 303
    assert await target.database.fetchval("select true from boathook.operator where name = 'taken.over'")


# Hostile addresses


HOSTILE = (
    "\x00", "a\x00b", "%", "\\", "'\"", "\u202e", "\U0001f600", "-1", "99999999999999999999", "1e309", "nan", "٣", "²",
    "999999d", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "2026-13-45", "2026-01-31T12:00~1",
    "9999-12-31T23:59:59-14:00~5", "2026-01-31T12:00:00+00:00~99999999999999999999999", "../..", "a" * 3_000,
    "9999-12-31T23:59:59-14:00~dlv_00000000000000000000000000_0", "evt_7zzzzzzzzzzzzzzzzzzzzzzzzz", "{{7*7}}", "\r\nx: y",
    "dlv_7zzzzzzzzzzzzzzzzzzzzzzzzz_99999999999", "qtask_7zzzzzzzzzzzzzzzzzzzzzzzzz", "/", "http://[", "[1,",
)  # fmt: skip
WISHES = ("q", "text", "key", "source", "application", "type", "state", "since", "until", "below", "keep", "recipient",
          "code", "page", "after", "before", "actor", "action", "subject", "portal", "span", "length", "result", "answer",
          "channel", "id", "item", "delivery", "iterator", "order")  # fmt: skip


@pytest.mark.extended("tries hostile input once more; the tables of hostile input stay")
async def test_hostile_addresses_are_answered_with_a_page(target: AttackTarget):
    seed = secrets.randbelow(10**6)
    chance = random.Random(seed)
    async with PageClient(target.console.app) as browser:
        browser.cookies.set("boathook", target.sessions["admin"])
        for address in _hostile_addresses(target, chance):
            answer = await browser.get(address)
            where = f"seed {seed}: {answer.status_code} of {address}"
            assert answer.status_code < 500, where
            assert answer.status_code in {200, 303} or "<h1" in answer.text, where
            assert "content-security-policy" in answer.headers, where


def _hostile_addresses(target: AttackTarget, chance: random.Random) -> Iterator[str]:
    for entry in ENTRIES:
        if entry.method == "POST" or entry.path.endswith("/live"):
            continue
        for _ in range(6):
            wishes = chance.sample(WISHES, 5)
            query = "&".join(f"{wish}={quote(chance.choice(HOSTILE))}" for wish in wishes)
            yield f"{target.path(entry)}?{query}"
        if "{" in entry.path:
            for word in chance.sample(HOSTILE, 4):
                parts = (quote(word, safe="") if part.startswith("{") else part for part in entry.path.split("/"))
                yield BASE + "/".join(parts)


async def test_every_response_carries_the_policy(target: AttackTarget):
    async with PageClient(target.console.app) as browser:
        for method, path in (
            ("DELETE", "/console"), ("POST", "/console"), ("PUT", "/console/sign-in"), ("POST", "/console/static/x"),
            ("GET", "/console/static/x"), ("GET", "/console/csp-reports"), ("POST", "/console/csp-reports"),
            ("GET", "/portal/static/x"), ("PATCH", "/portal/endpoints"), ("GET", "/portal/nothing"), ("GET", "/console/x"),
        ):  # fmt: skip
            answer = await browser.request(method, path)
            assert "default-src 'none'" in answer.headers["content-security-policy"], (method, path)
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.status_code in {204, 404, 405}
            assert answer.status_code != 405 or ("Method not allowed" in answer.text and answer.headers["allow"])


# Password guessing


@contextmanager
def held_comparisons() -> Iterator[None]:
    """Let every comparison of passwords wait until the block ends."""
    let_go = threading.Event()
    passwords.PASSWORD_POOL.submit(let_go.wait, 60)
    try:
        yield
    finally:
        let_go.set()


def guess(console: ConsoleApp, name: str, password: str = "guessed, and wrong") -> "asyncio.Task[httpx.Response]":
    return asyncio.create_task(
        PageClient(console.app).post(f"{BASE}/sign-in", data={"name": name, "password": password, "next": BASE})
    )


async def until_waiting(number: int) -> None:
    async with asyncio.timeout(300):
        while passwords._waiting < number:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.01)


async def _ended(guesses: list["asyncio.Task[httpx.Response]"]) -> list[int]:
    return [answer.status_code for answer in await asyncio.gather(*guesses)]


@pytest.mark.extended("tries hostile input once more; the tables of hostile input stay")
async def test_password_guessing_keeps_no_request_from_the_database(target: AttackTarget):
    most = passwords.MAX_WAITING + 1
    with held_comparisons():
        waiting = [guess(target.console, f"nobody-{number}") for number in range(most)]
        await until_waiting(most)
        (entry,) = [one for one in ENTRIES if (one.method, one.path) == ("GET", "/account")]
        asked = [target.send(entry, "viewer") for _ in range(20)]
        answers = await asyncio.wait_for(asyncio.gather(*asked), 300)
        assert {answer.status_code for answer in answers} == {200}
        too_many = await asyncio.wait_for(guess(target.console, "one-more"), 300)
        assert too_many.status_code == 503
        assert "too many sign-ins are in progress" in too_many.text
    assert await _ended(waiting) == [401] * most


@pytest.mark.extended("the mutant of a test that stays: it shows that the test can fail")
async def test_without_a_limit_password_guesses_queue_up(target: AttackTarget, monkeypatch):
    monkeypatch.setattr(passwords, "MAX_WAITING", 10**6)
    with held_comparisons():
        waiting = [guess(target.console, f"nobody-{number}") for number in range(12)]
        await until_waiting(12)
    assert await _ended(waiting) == [401] * 12


NEXT_PASSWORD = "another harbour, as quiet"


async def _change_own(console: ConsoleApp, own: PageClient) -> None:
    form = {"present": PASSWORD, "password": NEXT_PASSWORD}
    await own.submit_form(f"{BASE}/account/password", form, on=f"{BASE}/account")


async def _change_by_an_admin(console: ConsoleApp, own: PageClient) -> None:
    form = {"password": NEXT_PASSWORD}
    admin = await console.operator("root")
    await admin.submit_form(f"{BASE}/operators/zoe/password", form, on=f"{BASE}/operators")


async def _disable(console: ConsoleApp, own: PageClient) -> None:
    admin = await console.operator("root")
    await admin.submit_form(f"{BASE}/operators/zoe/disable", on=f"{BASE}/operators")


async def sessions_left(console: ConsoleApp, change: Callable[[ConsoleApp, PageClient], Awaitable[None]]) -> list[bool]:
    """Return which of an operator's two browsers are still signed in after a change made in the first of them."""
    async with console.context.work(actor="test") as work:
        made = await operators.create(work, "zoe", Role.ADMIN, PASSWORD)
        begun = [
            await operators.start_session(work, made, timedelta(hours=1), ClientInfo("127.0.0.1", "test"))
            for _ in range(2)
        ]
    browsers = [PageClient(console.app) for _ in begun]
    for browser, session in zip(browsers, begun, strict=True):
        browser.cookies.set("boathook", session.token)
    assert [(await browser.get(BASE)).status_code for browser in browsers] == [200, 200]
    await change(console, browsers[0])
    return [(await browser.get(BASE)).status_code == 200 for browser in browsers]


CHANGES = ((_change_own, [True, False]), (_change_by_an_admin, [False, False]), (_disable, [False, False]))


@pytest.mark.parametrize(("change", "left"), CHANGES)
async def test_a_change_of_the_password_ends_every_other_session(target: AttackTarget, change: Any, left: list[bool]):
    assert await sessions_left(target.console, change) == left


@pytest.mark.extended("the mutant of a test that stays: it shows that the test can fail")
@pytest.mark.parametrize(("change", "left"), CHANGES[:2])
async def test_without_ending_sessions_they_survive_a_password_change(
    target: AttackTarget, monkeypatch, change: Any, left: list[bool]
):
    async def keep(*_values: object, **_more: object) -> None:
        pass

    monkeypatch.setattr(operator_database, "end_sessions", keep)
    assert await sessions_left(target.console, change) == [True, True] != left


async def _new_password(console: ConsoleApp) -> None:
    hashed = passwords.HASHER.hash("another password than before")
    await console.context.database.execute("update boathook.operator set password_hash = $1 where name = 'zoe'", hashed)


async def _kept_out(console: ConsoleApp) -> None:
    async with console.context.work(actor="test", caller=HOST) as work:
        await operator_actions.disable(work, OperatorNamed(name="zoe"))


@pytest.mark.parametrize("change", [_new_password, _kept_out])
async def test_a_password_revoked_while_compared_is_refused(
    target: AttackTarget, change: Callable[[ConsoleApp], Awaitable[Any]]
):
    async with target.console.context.work(actor="test") as work:
        await operators.create(work, "zoe", Role.ADMIN, PASSWORD)
    with held_comparisons():
        signing_in = guess(target.console, "zoe", PASSWORD)
        await until_waiting(1)
        await change(target.console)
    assert (await signing_in).status_code == 401
    assert not await target.database.fetchval(
        "select count(*) from boathook.operator_session s join boathook.operator o on o.id = operator_id where name = 'zoe'"
    )


def test_login_limits_normalize_names_and_networks():
    tries = LoginRateLimiter()
    names = ("Adrian", "ADRIAN", "adr\u0130an", "\uff41drian", "adri\u0301an")
    let = [tries.take(names[number % 5], f"2001:db8::{number:x}") for number in range(40)]
    assert sum(let) == 10
    assert not tries.take("adrian", "2001:db8:0:0:ffff::1")
    assert tries.take("adrian", "2001:db8:0:1::1")


def test_a_guessing_client_does_not_lock_out_the_owner():
    tries = LoginRateLimiter()
    for _ in range(1_000):
        tries.take("anna", "192.0.2.66")
    assert not tries.take("anna", "192.0.2.66")
    assert tries.take("anna", "198.51.100.1")


def test_many_clients_that_guess_one_name_are_slowed_down_together():
    tries = LoginRateLimiter()
    let = sum(tries.take("anna", f"192.0.2.{number % 250}") for number in range(2_000))
    assert 100 < let < 200


def test_made_up_names_do_not_evict_other_counts(monkeypatch):
    monkeypatch.setattr(login_rate, "MAX_BUCKETS", 100)
    tries = LoginRateLimiter()
    for number in range(2_000):
        tries.take("anna", f"192.0.{number % 250}.1")
    assert not tries.take("anna", "198.51.100.1")
    for number in range(1_000):
        tries.take(f"made up {number}", "203.0.113.66")
    assert not tries.take("anna", "198.51.100.2")
    assert not tries.take("another one", "203.0.113.66")


def test_own_logins_do_not_raise_the_guess_limit_of_an_address():
    tries = LoginRateLimiter()
    let = 0
    for number in range(1_000):
        let += tries.take(f"colleague {number}", "192.0.2.66")
        if tries.take("insider", "192.0.2.66"):
            tries.forget("insider", "192.0.2.66")
    assert let <= 61


def test_many_operators_can_sign_in_from_one_address():
    tries = LoginRateLimiter()
    for number in range(1_000):
        assert tries.take(f"colleague {number}", "192.0.2.66")
        tries.forget(f"colleague {number}", "192.0.2.66")


async def test_a_state_that_no_provider_writes_is_refused_with_a_page(db: Database):
    cookie = base64.urlsafe_b64encode(msgspec.json.encode(AuthorizationRequest())).decode()
    issuer = {"console__oidc_issuer": "http://127.0.0.1:1", "console__oidc_client_id": "boathook"}
    async with open_console(db, **issuer) as console:
        browser = PageClient(console.app)
        answer = await browser.get(
            f"{PROVIDER_CALLBACK_PATH}?state=%C3%A9&code=x", headers={"cookie": f"boathook_attempt={cookie}"}
        )
    assert answer.status_code == 400
    assert "another sign-in attempt" in answer.text


async def test_password_changes_are_limited_in_an_open_session(target: AttackTarget, monkeypatch):
    async def is_wrong(_operator: object, _password: str) -> bool:
        return False

    monkeypatch.setattr(operators, "is_password_of", is_wrong)
    (entry,) = [one for one in FORMS if one.path == "/account/password"]
    answers = [await target.send(entry, "viewer") for _ in range(12)]
    assert ["too many attempts" in answer.text for answer in answers] == [False] * 10 + [True] * 2
    assert {answer.status_code for answer in answers} == {400}


@pytest.mark.parametrize(("trusted", "is_believed"), [("127.0.0.0/8", True), ("192.0.2.0/24", False)])
async def test_forwarded_headers_are_used_only_from_a_trusted_proxy(
    target: AttackTarget, trusted: str, is_believed: bool
):
    async def behind(scope: Any, receive: Any, send: Any) -> None:
        await target.console.app(apply_forwarded_headers(scope, (ip_network(trusted),)), receive, send)

    async with target.console.context.work(actor="test") as work:
        await operators.create(work, "zoe", Role.ADMIN, PASSWORD)
    form = {"name": "zoe", "password": PASSWORD, "next": "//evil.example"}
    async with PageClient(behind) as browser:
        headers = {"x-forwarded-proto": "https", "x-forwarded-for": "203.0.113.9, 198.51.100.7"}
        answer = await browser.post(f"{BASE}/sign-in", data=form, headers=headers)
    assert answer.headers["location"] == BASE
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith("__Host-boathook=") is is_believed
    assert ("Secure" in cookie) is is_believed
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    noted = "select note from boathook.audit where action = 'operator.sign_in' and actor = 'console:zoe'"
    assert await target.database.fetchval(noted) == ("198.51.100.7" if is_believed else "127.0.0.1")


class TestHostName:
    """A name that another site points at this server is refused, so that its pages cannot read the console."""

    HOSTS: ClassVar = {
        "localhost": True, "localhost:8080": True, "127.0.0.1": True, "[::1]:8080": True, "Hooks.Example": True,
        "hooks.example:443": True, "rebound.example": False, "hooks.example.evil.example": False, "": False,
        "192.0.2.7": False, "[": False, "localhost.evil.example": False,
    }  # fmt: skip

    @pytest.mark.parametrize("host", HOSTS)
    async def test_the_console_answers_for_its_own_names(self, db: Database, host: str):
        async with open_console(db, server__public_url="https://hooks.example") as opened:
            browser = PageClient(opened.app)
            answer = await browser.get("/console/sign-in", headers={"host": host})
            assert answer.status_code == (200 if self.HOSTS[host] else 421)
            assert "script-src 'self'" in answer.headers["content-security-policy"]
            assert (await browser.get("/portal", headers={"host": host})).status_code == 200
            assert (await browser.post("/console/csp-reports", headers={"host": host})).status_code == 204

    @pytest.mark.parametrize(("bind", "status"), [("0.0.0.0:8080", 200), ("127.0.0.1:8080", 421), ("[::]:8080", 200)])
    async def test_an_address_is_answered_if_all_are_bound(self, db: Database, bind: str, status: int):
        async with open_console(db, server__bind=bind) as opened:
            answer = await PageClient(opened.app).get("/console/sign-in", headers={"host": "192.0.2.7:8080"})
        assert answer.status_code == status


@pytest.mark.parametrize(
    ("wanted", "page"),
    [
        ("/console/events?type=a..b", "/console/events?type=a..b"),
        ("/console/events/..%2f..%2fapi", "/console"),
        ("/console/../..", "/console"),
        ("/console/%2E%2e/api/v1/app", "/console"),
        ("/console/./x", "/console"),
        ("/console/..", "/console"),
        ("/console/x..y", "/console/x..y"),
    ],
)
def test_the_page_after_signing_in_is_one_of_the_console(wanted: str, page: str):
    assert signing_in.safe_redirect_path(wanted) == page
