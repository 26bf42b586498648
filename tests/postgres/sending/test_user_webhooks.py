"""An app whose users manage their own webhooks: by its API, on its pages, and what is not theirs."""

import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from boathook.config import load
from boathook.db.migrations import migrate
from boathook.domain.errors import ConfigError
from boathook.handlers.api import Boathook
from boathook.server.loading import bound
from boathook_pages import JsonApi, Pages
from boathook_pages.languages import Languages
from boathook_pages.sign_in import SignIn, User
from boathook_pages.user_webhooks import Kind, UserWebhooks, add_pages, add_routes, table

BASE = "http://desk.example"
URL = "https://shop.example/hooks"
KINDS = {
    "cars": Kind("cars", "cars.*", ("cars.NEW", "cars.GONE")),
    "trips": Kind("trips", "trips.*", ("trips.NEW",)),
}


class Client(User):
    @property
    def application(self) -> str:
        return f"desk-{self.id}"


@dataclass
class Desk:
    """The app, and one of its users with a token."""

    hook: Boathook
    sign_in: SignIn[Client]
    webhooks: UserWebhooks

    async def add(self, name: str) -> tuple[Client, httpx.AsyncClient]:
        """Create a user, and return it with a client of its API and pages."""
        async with self.hook.transaction() as tx:
            user, token = await self.sign_in.add(tx, name, with_token=True)
            await self.hook.operations.put_application(tx, user.application, name=name)
        (mount,) = self.hook.manifest.mounts
        transport = httpx.ASGITransport(app=mount.app, root_path="/desk")
        headers = {"origin": BASE, "accept": "text/html", "authorization": f"Bearer {token}"}
        async with httpx.AsyncClient(transport=transport, base_url=BASE, headers=headers) as browser:
            assert (await browser.post("/desk/sign-in", data={"token": token})).status_code == 303
            cookies = browser.cookies
        return user, httpx.AsyncClient(transport=transport, base_url=BASE, headers=headers, cookies=cookies)

    async def publish(self, user: Client, type: str) -> None:
        async with self.hook.transaction() as tx:
            await self.webhooks.publish(tx, user, type, {"type": type})


@pytest.fixture
async def desk(tmp_path: Path, pg_url: str) -> AsyncIterator[Desk]:
    (tmp_path / "migrations").mkdir()
    (tmp_path / "migrations/0001_first.sql").write_text(
        "create schema desk;\n-- include: sign_in 1\n-- include: webhooks 1\n"
    )
    hook = Boathook("desk", migrations=tmp_path / "migrations")
    languages = Languages(tmp_path)
    sign_in = SignIn(hook, token_prefix="dsk_", user=Client)
    pages = Pages(hook, "/desk", title="Desk", folder=tmp_path, languages=languages, sign_in=sign_in)
    api = JsonApi(hook, sign_in, languages)
    webhooks = UserWebhooks(
        hook, languages, kinds=KINDS, test_payload=lambda number: {"test": number}, limit=lambda: 2, never=("boats",)
    )
    add_routes(webhooks, api)
    add_pages(webhooks, pages)
    pages.mount(routes=api.routes())
    await migrate(pg_url, [("desk", tmp_path / "migrations")])
    async with bound(load(overrides={"database.url": pg_url, "apps.load": ["desk"]}), [hook]):
        yield Desk(hook, sign_in, webhooks)


async def create(client: httpx.AsyncClient, **types: bool) -> Any:
    made = await client.post("/desk/api/webhooks", json={"url": URL, "types": types})
    assert made.status_code == 201, made.text
    return made.json()


async def test_a_webhook_is_created_changed_and_deleted_with_its_endpoint(desk: Desk):
    user, client = await desk.add("anna")
    async with client:
        made = await create(client, cars=True)
        assert (made["types"], made["sending"]) == ({"cars": True, "trips": False}, True)
        path = f"/desk/api/webhooks/{made['id']}"
        patched = (await client.patch(path, json={"types": {"trips": True}})).json()
        assert patched["types"] == {"cars": True, "trips": True}
        async with desk.hook.transaction() as tx:
            (endpoint,) = await desk.hook.operations.endpoints(tx, user.application)
        assert sorted(endpoint.event_types or ()) == ["cars.*", f"test.webhook-{made['id']}.*", "trips.*"]
        put = (await client.put(path, json={"fields": {"url": URL, "types": {}, "isActive": True}})).json()
        assert (put["types"], put["sending"]) == ({"cars": False, "trips": False}, False)
        assert (await client.get(f"{path}/secret")).json()["secret"].startswith("whsec_")
        assert (await client.post(f"{path}/test")).status_code == 409
        assert (await client.delete(path)).status_code == 204
        assert (await client.get(path)).status_code == 404
        async with desk.hook.transaction() as tx:
            assert await desk.hook.operations.endpoints(tx, user.application) == []


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"types": {"boats": True}}, "types.boats"), ({"types": {"cars": 1}}, "types.cars"),
        ({"types": {"planes": False}}, "types.planes"), ({"url": "http://10.0.0.1/"}, "url"),
        ({"url": "https://a:b@shop.example/"}, "url"), ({"url": "https://shop.example/\n"}, "url"),
        ({"isActive": "yes"}, "isActive"),
    ],
)  # fmt: skip
async def test_a_wrong_field_is_refused_by_name(desk: Desk, change: dict[str, Any], field: str):
    _, client = await desk.add("anna")
    async with client:
        answer = await client.post("/desk/api/webhooks", json={"url": URL, "types": {"boats": False}} | change)
        assert (answer.status_code, answer.json()["error"]["field"]) == (400, field)
        within = await client.post(
            "/desk/api/webhooks", json={"fields": {"url": URL, "types": {"boats": False}} | change}
        )
        # What only the outbound rules of the server forbid is found after the body was read.
        place = "" if change.get("url") == "http://10.0.0.1/" else "fields."
        assert within.json()["error"]["field"] == place + field


async def test_there_is_a_limit(desk: Desk):
    _, client = await desk.add("anna")
    async with client:
        for _ in range(2):
            await create(client)
        refused = await client.post("/desk/api/webhooks", json={"url": URL, "types": {}})
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "limit_reached")


ABOUT_ONE: tuple[tuple[str, str, Any], ...] = (
    ("GET", "", None), ("PUT", "", {"url": URL, "types": {}}), ("PATCH", "", {"types": {}}), ("GET", "/secret", None),
    ("POST", "/test", None), ("GET", "/attempts", None), ("GET", "/deliveries", None),
    ("GET", "/deliveries/dlv_01h455vb4pex5vsknk084sn02q4_0", None),
    ("POST", "/replay", {"delivery": "dlv_01h455vb4pex5vsknk084sn02q4_0"}), ("DELETE", "", None),
)  # fmt: skip


async def test_anothers_webhook_is_not_there(desk: Desk):
    _, mine = await desk.add("anna")
    _, theirs = await desk.add("berta")
    async with mine, theirs:
        made = await create(theirs, cars=True)
        for method, path, body in ABOUT_ONE:
            answer = await mine.request(method, f"/desk/api/webhooks/{made['id']}{path}", json=body)
            assert answer.status_code == 404, f"{method} {path}"
        for path in ("", "/delete"):
            page = await mine.get(f"/desk/webhooks/{made['id']}{path}")
            assert (page.status_code, URL in page.text) == (404, False)
        assert (await theirs.get("/desk/api/webhooks")).json()["data"] == [made]


async def test_mutant_without_the_user_in_the_query_anothers_webhook_is_there(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
):
    sql = table.SQL["find_webhook"]
    monkeypatch.setitem(table.SQL, "find_webhook", sql.replace("user_id = $1", "$1 > 0"))
    _, mine = await desk.add("anna")
    _, theirs = await desk.add("berta")
    async with mine, theirs:
        made = await create(theirs, cars=True)
        assert (await mine.get(f"/desk/api/webhooks/{made['id']}")).status_code == 200


async def test_the_pages_do_the_same(desk: Desk):
    _, client = await desk.add("anna")
    async with client:
        assert "There are none yet." in (await client.get("/desk/")).text
        token = re.search(r'name="csrf" value="([0-9a-f]+)"', (await client.get("/desk/webhooks/new")).text)
        assert token is not None
        form = {"csrf": token[1], "url": URL, "cars": "yes", "active": "yes"}
        made = await client.post("/desk/webhooks/new", data=form, follow_redirects=True)
        assert "The webhook was created." in made.text
        (webhook,) = (await client.get("/desk/api/webhooks")).json()["data"]
        assert webhook["types"] == {"cars": True, "trips": False}
        path = f"/desk/webhooks/{webhook['id']}"
        assert "whsec_" in (await client.post(f"{path}/secret", data=form)).text
        again = await client.post(path, data=form | {"url": "http://10.0.0.1/"})
        assert (again.status_code, "http://10.0.0.1/" in again.text) == (400, True)
        await client.post(f"{path}/active", data=form | {"active": "no"})
        assert (await client.get(f"/desk/api/webhooks/{webhook['id']}")).json()["isActive"] is False
        assert "inactive" in (await client.get("/desk/")).text
        await client.post(f"{path}/active", data=form)
        sent = await client.post(f"{path}/test", data=form, follow_redirects=True)
        assert "A test event is on its way" in sent.text
        (delivery,) = (await client.get(f"/desk/api/webhooks/{webhook['id']}/deliveries")).json()["data"]
        replayed = await client.post(f"{path}/replay", data=form | {"delivery": delivery["id"]}, follow_redirects=True)
        assert "That was not dropped" in replayed.text
        assert (await client.post(f"{path}/delete", data=form)).status_code == 303
        assert "There are none yet." in (await client.get("/desk/")).text


async def test_an_event_of_the_millisecond_asked_for_is_listed(desk: Desk):
    """Ids have millisecond precision, and a time asked for has microseconds."""
    user, client = await desk.add("anna")
    async with client:
        await desk.publish(user, "cars.NEW")
        hour_ago = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
        [event] = (await client.get("/desk/api/events", params={"since": hour_ago})).json()["data"]
        within = (datetime.fromisoformat(event["createdAt"]) + timedelta(microseconds=999)).isoformat()
        after = (datetime.fromisoformat(event["createdAt"]) + timedelta(milliseconds=1)).isoformat()
        listed = [
            (await client.get("/desk/api/events", params={"since": text})).json()["data"] for text in (within, after)
        ]
    assert listed == [[event], []]


async def test_events_since_a_time_are_ones_own_in_pages(desk: Desk):
    user, client = await desk.add("anna")
    other, theirs = await desk.add("berta")
    since = datetime.now(UTC).isoformat()
    async with client, theirs:
        for type in ("cars.NEW", "trips.NEW", "cars.GONE", "elsewhere.NEW"):
            await desk.publish(user, type)
        await desk.publish(other, "cars.NEW")
        shown, after = [], ""
        while True:
            page = (await client.get(f"/desk/api/events?since={since}&limit=2{after}")).json()
            shown += page["data"]
            if page["next"] is None:
                break
            after = f"&after={page['next']}"
        assert [event["body"]["type"] for event in shown] == ["cars.NEW", "trips.NEW", "cars.GONE"]
        trips = (await client.get(f"/desk/api/events?since={since}&types=trips")).json()["data"]
        assert [event["type"] for event in trips] == ["trips.NEW"]
        old = (datetime.now(UTC) - timedelta(days=91)).isoformat()
        for query, field in [(f"since={old}", "since"), (f"since={since}&types=boats", "types"), ("", "since")]:
            answer = await client.get(f"/desk/api/events?{query}")
            assert (answer.status_code, answer.json()["error"]["field"]) == (400, field)


async def test_a_deleted_application_is_created_again(desk: Desk, pg_url: str):
    user, client = await desk.add("anna")
    async with client:
        async with desk.hook.transaction() as tx:
            await tx.execute("delete from boathook.application where uid = $1", user.application)
        await desk.publish(user, "cars.NEW")
        events = (await client.get(f"/desk/api/events?since={datetime.now(UTC).date()}T00:00:00Z")).json()["data"]
    assert [json.dumps(event["body"]) for event in events] == ['{"type": "cars.NEW"}']


def test_the_table_is_required(tmp_path: Path):
    (tmp_path / "0001_first.sql").write_text("create schema desk;\n-- include: sign_in 1\n")
    hook = Boathook("desk", migrations=tmp_path)
    with pytest.raises(ConfigError, match="no migration of desk has the line `-- include: webhooks 1`"):
        UserWebhooks(hook, Languages(tmp_path), kinds=KINDS, test_payload=lambda number: {"test": number})
