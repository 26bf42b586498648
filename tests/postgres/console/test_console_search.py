"""The search over pages and objects, for the command palette and the search box, and the page of settings."""

import re

import pytest

from boathook.db.database import Database
from boathook.db.queries import endpoint_stats
from boathook.db.route_registry import register
from boathook.domain.messages import Message
from boathook.domain.model import Role, Route
from boathook.service.sending import endpoints, messages
from boathook.service.sending.endpoints import NewEndpoint
from boathook.service.sending.messages import JSON_TYPE
from tests.postgres.portal_client import ConsoleApp, PageClient, Tenant, open_console

FRAGMENT = {"hx-request": "true"}


@pytest.fixture
async def console(db: Database):
    async with open_console(db, sources__shop__provider="stripe") as console:
        yield console


@pytest.fixture
async def anna(console: ConsoleApp) -> PageClient:
    return await console.operator()


@pytest.fixture
async def tenant(console: ConsoleApp, db: Database) -> Tenant:
    await register(db, "shop:hook", [Route(recipient="handler:billing.apply", app="shop:hook", source="shop")])
    return await console.tenant("harbour<b>", uid="harbour")


async def options(pages: PageClient, words: str) -> dict[str, str]:
    """Return the options of the palette for a text: the address of each by its title."""
    answer = await pages.get("/console/search", params={"q": words}, headers=FRAGMENT)
    assert answer.status_code == 200, answer.text
    found = re.findall(r'role="option"[^>]*href="([^"]*)"><span class="title">(.*?)</span>', answer.text)
    return {title: url for url, title in found}


async def test_each_kind_of_object_is_found_by_a_part_of_its_name(anna: PageClient, tenant: Tenant):
    application = f"/console/applications/{tenant.application.shown_id}"
    endpoint = f"{application}/endpoints/{tenant.endpoint.shown_id}"
    assert (await options(anna, ""))["Failed deliveries"] == "/console/dead"
    assert (await options(anna, "fail"))["Failed deliveries"] == "/console/dead"
    assert (await options(anna, "SHO"))["shop"] == "/console/sources/shop"
    assert (await options(anna, "apply"))["billing.apply"] == "/console/handlers/billing.apply"
    found = await options(anna, "harbour")
    assert found["harbour&lt;b&gt;"] == application
    assert found[tenant.endpoint.url.replace("<b>", "&lt;b&gt;")] == endpoint
    assert found["Search events for \N{LEFT DOUBLE QUOTATION MARK}harbour\N{RIGHT DOUBLE QUOTATION MARK}"].endswith(
        "/console/events?q=harbour"
    )
    assert endpoint in (await options(anna, tenant.endpoint.shown_id)).values()
    assert application in (await options(anna, tenant.application.shown_id)).values()
    unknown = tenant.endpoint.shown_id[:-1] + ("0" if tenant.endpoint.shown_id[-1] != "0" else "1")
    assert [url for url in (await options(anna, unknown)).values() if "/events?" not in url] == []


async def test_an_id_or_key_opens_its_page_without_scripts(anna: PageClient, tenant: Tenant, db: Database):
    event = tenant.message.replace("msg_", "evt_")
    for words, url in (
        (tenant.message, f"/console/events/{event}"),
        (event, f"/console/events/{event}"),
        (f"{event.replace('evt_', 'dlv_')}_0", f"/console/events/{event}?delivery=0"),
        (event.replace("evt_", "rej_"), f"/console/rejections/{event.replace('evt_', 'rej_')}"),
    ):
        answer = await anna.get("/console/search", params={"q": words})
        assert (answer.status_code, answer.headers["location"]) == (303, url), words
        assert (await options(anna, words)).keys() >= {words.replace("msg_", "evt_")}
    nothing = await anna.get("/console/search", params={"q": "no such words"})
    assert (nothing.status_code, nothing.headers["location"]) == (303, "/console/events?q=no+such+words")
    page = await anna.get_page("/console/search?q=billing")
    assert re.search(r'<h1>Search</h1>.*href="/console/handlers/billing.apply"', page, re.DOTALL)
    assert '<form class="jump" action="/console/search"' in page
    assert "write 200 characters at most" in await anna.get_page(f"/console/search?q={'x' * 201}")
    assert "must not contain control characters" in await anna.get_page("/console/search?q=%00")


async def test_an_event_is_found_by_its_key(anna: PageClient, console: ConsoleApp, tenant: Tenant):
    async with console.context.work(actor="test") as work:
        message = Message(
            application=tenant.application.shown_id,
            type="thing.done",
            payload=b"{}",
            content_type=JSON_TYPE,
            id="order-17",
        )
        row, _ = await messages.create(work, tenant.application, message)
    answer = await anna.get("/console/search?q=order-17")
    assert answer.headers["location"] == f"/console/events/{row.shown_id.replace('msg_', 'evt_')}"


async def test_search_hides_pages_and_tenants_out_of_reach(console: ConsoleApp, anna: PageClient, tenant: Tenant):
    vera = await console.operator("vera", Role.VIEWER)
    assert {"Settings", "Operators"} <= (await options(anna, "")).keys()
    assert not {"Settings", "Operators"} & (await options(vera, "")).keys()
    assert "Settings" not in await options(vera, "setti")
    assert "shop" in await options(vera, "shop")
    other = await console.tenant("foreign", organization="other")
    assert not [url for url in await options(anna, "foreign") if other.application.shown_id in url]
    assert len(await options(anna, "foreign")) == 1
    assert len(await options(anna, other.endpoint.shown_id)) == 1


async def test_the_answer_is_short_however_many_there_are(
    console: ConsoleApp, anna: PageClient, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
):
    async with console.context.work(actor="test") as work:
        for number in range(8):
            await endpoints.create(work, tenant.application, NewEndpoint(url=f"http://127.0.0.1:8999/many/{number}"))
    assert len(await options(anna, "many")) == 6
    monkeypatch.setattr(endpoint_stats, "MAX_SEARCHED", 8)
    assert tenant.endpoint.shown_id not in str((await options(anna, "harbour")).values())


async def test_the_settings_page_shows_changes_and_searches_words(anna: PageClient, console: ConsoleApp):
    page = await anna.get_page("/console/settings")
    assert "outbound.allow" in page
    assert "command line" in page
    assert "server.gateways" not in page
    whole = await anna.get_page("/console/settings?show=all")
    assert "server.gateways" in whole
    found = await anna.get_page("/console/settings?show=all&q=GATEWAYS%20server")
    rows = re.findall(r'<th scope="row" class="mono setting">(.*?)</th>', found)
    assert rows == ["server.gateways"]
    none = await anna.get_page("/console/settings?q=server.gateways")
    assert "1 more with its default" in none
    assert "No changed settings match" in none
    vera = await console.operator("vera", Role.VIEWER)
    await vera.get_page("/console/settings", 403)
