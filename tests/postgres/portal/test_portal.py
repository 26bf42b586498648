"""The customers' portal: who may enter, what each may see and do there, and that no data of other customers can be reached."""

import html
import itertools
import re
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

import pytest
from msgspec.structs import replace

from boathook.db import api_keys
from boathook.db import applications as application_rows
from boathook.domain import ids
from boathook.service.access import keys, portal_sessions
from boathook.service.access.authorization import ACCESS_RULES, Capability, Principal
from boathook.service.caller import HOST
from boathook.service.catalogue import event_types
from boathook.service.catalogue.event_types import EventTypeCreate
from boathook.service.sending import endpoints
from boathook.service.sending.endpoints import NewEndpoint
from boathook_console.shared import context as visits
from boathook_console.shared.context import Page
from boathook_pages.security import csrf_token
from boathook_portal import pages
from boathook_portal.pages import PortalContext, all_pages
from tests.postgres.api_client import make_token
from tests.postgres.portal_client import ConsoleApp, PageClient, Tenant, open_console

PAGES = sorted(all_pages(), key=lambda page: (page.path, page.method))
NAMES = [f"{page.method} {page.path}" for page in PAGES]
YESTERDAY = f"{datetime.now(UTC) - timedelta(days=1):%Y-%m-%dT%H:%M}"
FORMS: dict[str, dict[str, str]] = {
    "/endpoints": {"url": "http://127.0.0.1:8999/foreign"},
    "/endpoints/{endpoint}/edit": {"url": "http://127.0.0.1:8999/taken", "authKind": "keep", "mtlsKind": "keep"},
    "/endpoints/{endpoint}/rotate": {"grace": "0"},
    "/endpoints/{endpoint}/recover": {"since": YESTERDAY},
    "/endpoints/{endpoint}/replay-missing": {"since": YESTERDAY},
}


@pytest.fixture
async def console(db):
    async with open_console(db) as console:
        yield console


class CustomerData:
    """One customer with data on every page of its portal."""

    def __init__(self, console: ConsoleApp, tenant: Tenant, places: dict[str, str]) -> None:
        self.console = console
        self.tenant = tenant
        self.places = places

    def path(self, page: Page) -> str:
        return "/portal" + page.path.format(**self.places)

    def form(self, page: Page) -> dict[str, str]:
        name = self.tenant.endpoint.shown_id
        return {"typed": name, "endpoint": name, **FORMS.get(page.path, {})}

    async def state(self) -> list[Any]:
        """Return everything that is stored of the customer."""
        database, application = self.console.context.database, self.tenant.application
        name, recipient = self.tenant.endpoint.shown_id, self.tenant.endpoint.recipient
        looks = (
            ("select * from boathook.application where id = $1", application.id),
            ("select * from boathook.endpoint where application_id = $1 order by id", application.id),
            ("select * from boathook.endpoint_secret where endpoint_id = $1 order by id", self.tenant.endpoint.id),
            ("select * from boathook.delivery where recipient = $1 order by event_id, ordinal", recipient),
            ("select id, body from boathook.event where application = $1 order by id", application.shown_id),
            ("select * from boathook.task where application_id = $1 order by id", application.id),
            ("select * from boathook.audit where subject = $1 order by id", name),
        )
        return [[tuple(row.values()) for row in await database.fetch(sql, value)] for sql, value in looks]

    async def send(self, page: Page, token: str, **changes: str) -> Any:
        """Request a page or submit its form with this token."""
        pages = PageClient(self.console.app)
        pages.cookies.set("boathook-portal", token)
        if page.method == "GET":
            return await pages.get(self.path(page))
        return await pages.post(self.path(page), data={"csrf": csrf_token(token), **self.form(page), **changes})


@pytest.fixture
async def customer(console: ConsoleApp, db) -> CustomerData:
    tenant = await console.tenant("acme")
    async with console.context.work(actor="test", caller=HOST) as work:
        await event_types.create(work, EventTypeCreate(name="thing.done", description="a thing is done"))
    event, attempt = ids.read(ids.MESSAGE, tenant.message), ids.make(1_900_000_000_000, 7)
    await db.execute(
        "insert into boathook.attempt (event_id, ordinal, number, outcome, worker, started_at, ended_at, id, recipient,"
        " url, status, duration_ms, response, is_manual) values ($1, 0, 1, 'failed', 'w', now(), now(), $2, $3,"
        " 'http://x/', 500, 5, 'no', false)",
        event, attempt, tenant.endpoint.recipient,
    )  # fmt: skip
    task = ids.make(1_900_000_000_000, 8)
    await db.execute(
        "insert into boathook.task (id, organization, application_id, endpoint_id, kind, state, request) values"
        " ($1, 'default', $2, $3, 'endpoint.recover', 'failed', '{\"since\": \"2026-01-01T00:00:00+00:00\","
        " \"until\": \"2026-01-02T00:00:00+00:00\"}')",
        task, tenant.application.id, tenant.endpoint.id,
    )  # fmt: skip
    places = {
        "endpoint": tenant.endpoint.shown_id,
        "message": tenant.message,
        "attempt": ids.show(ids.ATTEMPT, attempt),
        "task": ids.show(ids.TASK, task),
        "name": "thing.done",
    }
    return CustomerData(console, tenant, places)


# No data of other customers


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
async def test_the_customer_itself_reaches_every_page_and_form(customer: CustomerData, page: Page):
    before = await customer.state()
    answer = await customer.send(page, await customer.console.token(customer.tenant))
    assert answer.status_code in {200, 303}, answer.text
    if page.method == "POST" and page.path != "/endpoints/{endpoint}/enable":
        assert await customer.state() != before


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
async def test_another_customer_reaches_nothing_of_it(customer: CustomerData, page: Page):
    console = customer.console
    sister, other_organization = await console.tenant("sister"), await console.tenant("stranger", "elsewhere")
    before = await customer.state()
    for token in (await console.token(sister), await console.token(other_organization)):
        answer = await customer.send(page, token)
        names_ours = any(f"{{{name}}}" in page.path for name in ("endpoint", "message"))
        if names_ours:
            assert answer.status_code == 404, answer.text
        for word in (
            customer.tenant.endpoint.shown_id,
            customer.tenant.endpoint.url,
            "secret_of",
            customer.tenant.message,
        ):
            is_our_own_word = word in answer.request.url.path
            assert is_our_own_word or word not in answer.text
    assert await customer.state() == before


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
async def test_an_invalid_token_reaches_no_page(customer: CustomerData, page: Page, db):
    console = customer.console
    expired, revoked = await console.token(customer.tenant), await console.token(customer.tenant)
    plain = await make_token(console.context, application=customer.tenant.application.shown_id)
    whole = await make_token(console.context)
    hashed = keys.hash_token
    await db.execute("update boathook.api_key set expires_at = now() where token_sha256 = $1", hashed(expired))
    await db.execute("update boathook.api_key set revoked_at = now() where token_sha256 = $1", hashed(revoked))
    before = await customer.state()
    for token in ("bhk_nobody", expired, revoked, plain, whole, "", "\x7f"):
        answer = await customer.send(page, token)
        assert answer.status_code == 401, answer.text
        assert customer.tenant.endpoint.url not in answer.text
    assert await customer.state() == before


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
async def test_a_view_token_changes_nothing_and_sees_no_secret(customer: CustomerData, page: Page):
    token = await customer.console.token(customer.tenant, capabilities=[Capability.VIEW_BASE])
    before = await customer.state()
    answer = await customer.send(page, token)
    is_open = ACCESS_RULES[page.permission].capability is Capability.VIEW_BASE
    assert answer.status_code in ({200, 303} if is_open else {403}), answer.text
    assert "whsec_" not in answer.text
    assert await customer.state() == before


@pytest.mark.parametrize("page", [page for page in PAGES if page.method == "POST"], ids=lambda page: page.path)
async def test_each_form_needs_its_own_capability(customer: CustomerData, page: Page):
    others = [one for one in Capability if one is not ACCESS_RULES[page.permission].capability]
    before = await customer.state()
    answer = await customer.send(page, await customer.console.token(customer.tenant, capabilities=others))
    assert answer.status_code == 403
    assert await customer.state() == before
    alone = await customer.console.token(customer.tenant, capabilities=[ACCESS_RULES[page.permission].capability])
    assert (await customer.send(page, alone)).status_code in {200, 303}


async def test_an_attempt_shows_the_names_of_custom_headers_only(customer: CustomerData, db):
    await db.execute(
        """update boathook.attempt set request_headers = '[["x-shop", "[custom]"], ["webhook-id", "m-1"]]'"""
    )
    (page,) = [page for page in PAGES if page.path == "/endpoints/{endpoint}/attempts/{message}/{attempt}"]
    token = await customer.console.token(customer.tenant, capabilities=[Capability.VIEW_BASE])
    text = (await customer.send(page, token)).text
    for part in ("x-shop", "[custom]", "m-1", "values of custom headers are not recorded"):
        assert part in text


async def test_without_the_capability_check_a_view_token_changes_things(customer: CustomerData, monkeypatch):
    monkeypatch.setattr(Principal, "may", lambda _principal, _capability: True)
    token = await customer.console.token(customer.tenant, capabilities=[Capability.VIEW_BASE])
    before = await customer.state()
    (page,) = [page for page in PAGES if page.path == "/endpoints/{endpoint}/disable"]
    assert (await customer.send(page, token)).status_code == 303
    assert await customer.state() != before


async def test_without_the_application_check_a_token_reaches_another(customer: CustomerData, monkeypatch):
    sister = await customer.console.tenant("sister")
    whole = vars(PortalContext)["side"].fget

    def of_acme(portal_session: PortalContext) -> Any:
        return replace(whole(portal_session), reference="acme")

    monkeypatch.setattr(PortalContext, "side", property(of_acme))
    (page,) = [page for page in PAGES if (page.method, page.path) == ("GET", "/endpoints/{endpoint}")]
    answer = await customer.send(page, await customer.console.token(sister))
    assert answer.status_code == 404, "the SQL finds a caller's own application only"
    find = application_rows.find

    async def find_any(connection: Any, organization: str, reference: str, **_only: Any) -> Any:
        return await find(connection, organization, reference)

    monkeypatch.setattr(application_rows, "find", find_any)
    answer = await customer.send(page, await customer.console.token(sister))
    assert customer.tenant.endpoint.url in answer.text


async def test_a_message_is_not_sent_to_another_customers_endpoint(customer: CustomerData):
    sister = await customer.console.tenant("sister")
    (page,) = [page for page in PAGES if page.path == "/messages/{message}/resend"]
    before = await customer.state()
    customer.places["message"] = sister.message
    answer = await customer.send(page, await customer.console.token(sister))
    assert answer.status_code == 404
    assert await customer.state() == before


async def test_a_task_of_another_endpoint_is_not_shown(customer: CustomerData):
    async with customer.console.context.work(actor="test") as work:
        other = await endpoints.create(work, customer.tenant.application, NewEndpoint(url="http://127.0.0.1:8999/b"))
    customer.places["endpoint"] = other.shown_id
    (page,) = [page for page in PAGES if page.path == "/endpoints/{endpoint}/tasks/{task}"]
    assert (await customer.send(page, await customer.console.token(customer.tenant))).status_code == 404


# Forms that were forged


@pytest.mark.parametrize("page", [page for page in PAGES if page.method == "POST"], ids=lambda page: page.path)
async def test_a_form_of_another_site_or_session_does_nothing(customer: CustomerData, page: Page):
    token, other = await customer.console.token(customer.tenant), await customer.console.token(customer.tenant)
    before = await customer.state()
    for csrf in ("", csrf_token(other), "x"):
        assert (await customer.send(page, token, csrf=csrf)).status_code == 403
    pages = PageClient(customer.console.app)
    pages.cookies.set("boathook-portal", token)
    form = {"csrf": csrf_token(token), **customer.form(page)}
    for headers in ({"origin": "https://evil.example"}, {"origin": "null"}, {"sec-fetch-site": "cross-site"}):
        assert (await pages.post(customer.path(page), data=form, headers=headers)).status_code == 403
    assert await customer.state() == before


async def test_without_the_forms_token_another_site_would_change_things(customer: CustomerData, monkeypatch):
    monkeypatch.setattr(visits, "check_csrf_token", lambda _session, _given: None)
    (page,) = [page for page in PAGES if page.path == "/endpoints/{endpoint}/disable"]
    before = await customer.state()
    assert (await customer.send(page, await customer.console.token(customer.tenant), csrf="")).status_code == 303
    assert await customer.state() != before


async def test_without_the_key_check_an_api_key_is_accepted(customer: CustomerData, monkeypatch):
    async def find_any(context: Any, token: str) -> Any:
        async with context.work() as work:
            return await api_keys.find(work.connection, keys.hash_token(token))

    monkeypatch.setattr(pages, "find_key", find_any)
    plain = await make_token(customer.console.context, application=customer.tenant.application.shown_id)
    (page,) = [page for page in PAGES if (page.method, page.path) == ("GET", "/endpoints/{endpoint}")]
    assert (await customer.send(page, plain)).status_code == 200


async def test_another_site_cannot_sign_a_customer_in_to_its_own_portal(console: ConsoleApp):
    tenant = await console.tenant("acme")
    pages = PageClient(console.app)
    answer = await pages.post(
        "/portal/enter", data={"key": await console.token(tenant)}, headers={"origin": "https://evil.example"}
    )
    assert answer.status_code == 403
    assert "set-cookie" not in answer.headers


# The way in and out


async def test_a_link_signs_in_and_its_token_is_on_no_page(customer: CustomerData):
    token = await customer.console.token(customer.tenant)
    pages = await customer.console.enter_portal(token)
    assert "no-store" in (await pages.get("/portal/endpoints")).headers["cache-control"]
    for page in PAGES:
        if page.method == "GET":
            answer = await pages.get(customer.path(page))
            assert token not in answer.text + str(answer.headers)
    assert (await pages.get("/portal/here")).status_code == 204
    assert (await PageClient(customer.console.app).get("/portal/here")).status_code == 401


async def test_revoking_a_token_ends_its_session(customer: CustomerData, db):
    pages = await customer.console.portal_session(customer.tenant)
    await pages.get_page("/portal/endpoints")
    await db.execute("update boathook.api_key set revoked_at = now()")
    await pages.get_page("/portal/endpoints", 401)


async def test_leaving_revokes_the_link(customer: CustomerData):
    token = await customer.console.token(customer.tenant)
    pages = await customer.console.enter_portal(token)
    await pages.submit_form("/portal/leave", on="/portal/endpoints")
    answer = await PageClient(customer.console.app).post("/portal/enter", data={"key": token})
    assert answer.status_code == 401


async def test_portal_actions_are_audited_with_the_key(customer: CustomerData, db):
    pages = await customer.console.portal_session(customer.tenant)
    there = f"/portal/endpoints/{customer.tenant.endpoint.shown_id}"
    await pages.submit_form(f"{there}/secret", on=there, status=200)
    row = await db.fetchrow("select actor, action from boathook.audit order by id desc limit 1")
    assert row["actor"].startswith("portal:key_")
    assert row["action"] == "endpoint.secret.show"
    await pages.submit_form(f"{there}/disable", on=there)
    assert "Disabled by a portal user" in await pages.get_page(there)
    operator = await customer.console.operator()
    home = f"/console/applications/{customer.tenant.application.shown_id}"
    assert "by a portal user" in await operator.get_page(home + there.removeprefix("/portal"))


async def test_only_event_types_with_the_links_flags_are_shown(console: ConsoleApp):
    tenant = await console.tenant("acme")
    async with console.context.work(actor="test", caller=HOST) as work:
        await event_types.create(work, EventTypeCreate(name="plain.one", description="for all"))
        await event_types.create(work, EventTypeCreate(name="beta.one", description="for few", feature_flags=["beta"]))
    few, all_others = await console.portal_session(tenant, feature_flags=["beta"]), await console.portal_session(tenant)
    for path in ("/portal/event-types", "/portal/endpoints/new"):
        assert "beta.one" in await few.get_page(path)
        page = await all_others.get_page(path)
        assert "plain.one" in page
        assert "beta.one" not in page
    await few.get_page("/portal/event-types/beta.one")
    await all_others.get_page("/portal/event-types/beta.one", 404)


# The operator's way to make a link


async def test_a_link_is_made_with_a_button_shown_once_and_noted(console: ConsoleApp, db):
    tenant = await console.tenant("acme")
    anna = await console.operator()
    home = f"/console/applications/{tenant.application.shown_id}"
    form = {"lifetime": "3600", "capabilities": "CreateAttempts", "theme": "dark", "colour": "#AA0044"}
    answer = await anna.submit_form(f"{home}/portal", form, on=home, status=200)
    link = re.search(r"http://portal.localhost/portal\?theme=dark&amp;colour=aa0044#key=(bhk_[\w-]+)", answer.text)
    assert link, answer.text
    pages = await console.enter_portal(link[1])
    page = await pages.get_page(f"/portal/endpoints/{tenant.endpoint.shown_id}")
    assert "Send a test" in page
    assert "Show the secret" not in page
    assert (
        await db.fetchval("select actor from boathook.audit where action = 'key.create_for_portal'") == "console:anna"
    )
    left = await db.fetchval("select expires_at - now() from boathook.api_key where is_portal")
    assert timedelta(minutes=59) < left <= timedelta(hours=1)
    await anna.submit_form(f"{home}/portal/end", on=home)
    await pages.get_page("/portal/endpoints", 401)
    await anna.submit_form(f"{home}/portal", {"lifetime": "9" * 9}, on=home, status=400)
    await anna.submit_form(f"{home}/portal", {"lifetime": "3600", "colour": "red;}"}, on=home, status=400)


# Within the owner's product


async def test_no_page_may_show_the_portal_within_it_unless_it_is_named(console: ConsoleApp, db):
    tenant = await console.tenant("acme")
    answer = await (await console.portal_session(tenant)).get("/portal/endpoints")
    assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
    assert answer.headers["x-frame-options"] == "DENY"
    async with open_console(db, console__embed_origins=["https://app.example.com"]) as embeddable:
        answer = await (await embeddable.portal_session(tenant)).get("/portal/endpoints")
        assert "frame-ancestors https://app.example.com;" in answer.headers["content-security-policy"]
        assert "x-frame-options" not in answer.headers
        answer = await (await embeddable.operator()).get("/console/applications")
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]


@pytest.mark.parametrize(("scheme", "is_embedded"), list(itertools.product(("http", "https"), (False, True))))
async def test_the_cookie_is_as_open_as_it_must_be(db, scheme: str, is_embedded: bool):
    origins = ["https://app.example.com"] if is_embedded else []
    async with open_console(db, console__embed_origins=origins) as console:
        pages = PageClient(console.app, f"{scheme}://portal.localhost")
        answer = await pages.post("/portal/enter", data={"key": await console.token(await console.tenant("acme"))})
    (cookie, *_) = answer.headers.get_list("set-cookie")
    assert "HttpOnly" in cookie
    assert "Path=/portal" in cookie
    assert ("; Secure" in cookie) is (scheme == "https")
    assert cookie.startswith("__Secure-boathook-portal=") is (scheme == "https")
    assert ("SameSite=None; Partitioned" in cookie) is (scheme == "https" and is_embedded)
    assert ("SameSite=Lax" in cookie) is not (scheme == "https" and is_embedded)


async def test_invalid_theme_parameters_are_ignored(console: ConsoleApp):
    pages = PageClient(console.app)
    page = await pages.get_page("/portal?theme=dark&colour=ff8800")
    assert '<html lang="en" data-theme="dark">' in page
    assert 'href="/portal/look.css?theme=dark&amp;colour=ff8800"' in page
    assert "--accent: #ff8800" in (await pages.get("/portal/look.css?colour=ff8800")).text
    for query in ('theme="><script>', "colour=red;}*{display:none", "theme=evil&colour=ff88001"):
        page = await pages.get_page(f"/portal?{query}")
        assert "look.css" not in page
        assert "data-theme" not in page
        assert (await pages.get(f"/portal/look.css?{query}")).text == ""


async def test_svix_react_appearance_is_kept_with_the_session(customer: CustomerData):
    pages = PageClient(customer.console.app)
    icon = "https://cdn.example.com/logo.png"
    look = {"darkMode": "true", "primaryColor": "#ff8800", "icon": icon, "fontFamily": "Inter"}
    entrance = await pages.get(f"/portal?{urlencode(look)}")
    assert f'<img src="{icon}" alt=""' in entrance.text
    assert "img-src 'self' https://cdn.example.com;" in entrance.headers["content-security-policy"]
    entered = await pages.post("/portal/enter", data={"key": await customer.console.token(customer.tenant), **look})
    assert entered.status_code == 204
    inside = await pages.get("/portal/endpoints")
    assert 'data-theme="dark"' in inside.text
    assert f'<img src="{icon}" alt=""' in inside.text
    assert "img-src 'self' https://cdn.example.com;" in inside.headers["content-security-policy"]
    (sheet,) = re.findall(r'href="(/portal/look.css[^"]*)"', inside.text)
    rules = (await pages.get(html.unescape(sheet))).text
    assert 'font-family: "Inter"' in rules
    assert "--accent: #ff8800" in rules


LOGO = "data:image/svg+xml,<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>"


async def test_the_portal_has_the_name_and_the_logo_of_the_settings(db):
    async with open_console(db, console__portal_name="Acme <hooks>", console__portal_logo=LOGO) as console:
        pages = await console.portal_session(await console.tenant("acme"))
        page = await pages.get_page("/portal/endpoints")
        assert "Acme &lt;hooks&gt;</p>" in page
        assert "· Acme &lt;hooks&gt;</title>" in page
        assert "boathook</title>" not in page
        (address,) = set(re.findall(r'(?:src|href)="(/portal/static/logo\?v=\w+)"', page))
        logo = await PageClient(console.app).get(address)
        assert (logo.status_code, logo.headers["content-type"]) == (200, "image/svg+xml")
        assert "immutable" in logo.headers["cache-control"]
        # Opened by itself, the file is a document of the portal's origin: its scripts must not run.
        assert logo.headers["content-security-policy"].endswith("sandbox")
        assert logo.headers["x-content-type-options"] == "nosniff"
        assert "boathook</title>" in await (await console.operator()).get_page("/console/applications")
        assert (await PageClient(console.app).get("/console/static/logo")).status_code == 404


async def test_an_endpoint_page_shows_how_to_verify_in_each_language(customer: CustomerData, db):
    there = f"/portal/endpoints/{customer.tenant.endpoint.shown_id}"
    page = await (await customer.console.portal_session(customer.tenant)).get_page(there)
    for language in ("Python", "JavaScript", "Go", "Ruby", "PHP", "Java", "Rust"):
        assert f"<summary>{language}</summary>" in page
    async with open_console(db, outbound__header_prefixes=["svix"]) as console:
        page = await (await console.portal_session(customer.tenant)).get_page(there)
    assert "<summary>Python</summary>" not in page
    assert "svix-signature" in page


EVIL_ICON = urlencode({"icon": "https://x.example; script-src *"})


async def test_an_icon_cannot_change_the_policy_of_a_page(console: ConsoleApp):
    wrong = await PageClient(console.app).get(f"/portal?{EVIL_ICON}")
    assert "x.example" not in wrong.headers["content-security-policy"]
    assert "x.example" not in wrong.text


async def test_an_unchecked_icon_changes_the_content_security_policy(
    console: ConsoleApp, monkeypatch: pytest.MonkeyPatch
):
    """The mutant of the test above."""
    monkeypatch.setattr(portal_sessions, "_is_icon", lambda _address: True)
    wrong = await PageClient(console.app).get(f"/portal?{EVIL_ICON}")
    assert "https://x.example; script-src *;" in wrong.headers["content-security-policy"]


async def test_files_of_the_portal_are_served_below_it(console: ConsoleApp):
    pages = PageClient(console.app)
    page = await pages.get_page("/portal")
    files = re.findall(r'(?:href|src)="(/[^"]+\?v=[^"]+)"', page)
    assert files
    for file in files:
        assert file.startswith("/portal/static/")
        assert (await pages.get(file)).status_code == 200
