"""Access to a mounted application, with real keys and without a network."""

import asyncio

import pytest

from boathook import config
from boathook.config.tables import MountSettings
from boathook.db.database import Database
from boathook.handlers.manifest import Mount
from boathook.http.asgi import read_headers
from boathook.service.access import keys
from boathook.service.access.user_tokens import UserTokens
from boathook_apps.browser_access import BrowserAccess
from boathook_apps.mounts import Lifespan, MountedApp
from tests.postgres.api_client import make_context, make_token
from tests.support import eventually


class MountClient:
    """Calls a mount, and records the application's requests and the responses."""

    def __init__(
        self,
        db: Database,
        *,
        is_open: bool = False,
        recheck_s: float = 30.0,
        own: MountSettings | None = None,
        user_tokens: UserTokens | None = None,
        **settings: object,
    ) -> None:
        """*own* are the settings of the mount."""
        self.seen: list[dict] = []
        self.got: list[dict] = []
        self.events: asyncio.Queue[dict] = asyncio.Queue()
        life = Lifespan(self._app)
        life.is_up = True
        self.life = life
        mount = Mount(path="/yard", app=self._app, is_open=is_open)
        loaded = config.load(None, settings).model_copy(update={"mounts": {"/yard": own or MountSettings()}})
        self.door = MountedApp(mount, life, loaded, db, user_tokens, recheck_s=recheck_s)

    async def _app(self, scope, receive, send) -> None:
        self.seen.append(scope)
        if scope["type"] == "websocket":
            assert (await receive())["type"] == "websocket.connect"
            await send({"type": "websocket.accept"})
            while (await receive())["type"] != "websocket.disconnect":
                pass
        else:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"in"})

    async def _send(self, message: dict) -> None:
        self.got.append(message)
        if message["type"] == "websocket.close":
            self.events.put_nowait({"type": "websocket.disconnect", "code": message["code"]})

    async def request(
        self,
        kind: str = "http",
        peer: str = "192.0.2.1",
        *,
        method: str = "GET",
        path: str = "/yard",
        query: str = "",
        **headers: str,
    ) -> "MountClient":
        if kind == "websocket":
            self.events.put_nowait({"type": "websocket.connect"})
        raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        scope = {
            "type": kind,
            "path": path,
            "method": method,
            "scheme": "http" if kind == "http" else "ws",
            "query_string": query.encode(),
            "headers": raw,
            "client": (peer, 5),
            "subprotocols": headers.get("sec_websocket_protocol", "").replace(",", " ").split(),
        }
        await self.door(scope, self.events.get, self._send)
        return self

    @property
    def status(self) -> int:
        return self.got[0]["status"]

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the response; repeated ones are joined."""
        return read_headers(self.got[0]["headers"])


async def test_a_key_grants_access_and_sets_the_actor(db):
    token = await make_token(make_context(db))
    client = await MountClient(db).request(authorization=f"Bearer {token}")
    assert client.status == 200
    assert client.seen[0]["state"]["actor"].startswith("api:key_")


async def test_without_a_key_the_application_is_not_called(db):
    client = await MountClient(db).request()
    assert (client.status, client.seen) == (401, [])


async def test_an_open_mount_needs_no_key_or_postgresql(pg_url):
    closed = await Database.open(pg_url, purpose="test", size=1)
    await closed.close()
    client = await MountClient(closed, is_open=True).request()
    assert client.status == 200
    assert "actor" not in client.seen[0]["state"]


async def test_a_protected_mount_answers_503_without_postgresql(pg_url):
    closed = await Database.open(pg_url, purpose="test", size=1)
    await closed.close()
    client = await MountClient(closed).request(authorization="Bearer bhk_any")
    assert (client.status, client.seen) == (503, [])
    assert b"retry-after" in dict(client.got[0]["headers"])


async def test_an_application_that_has_not_started_is_answered_for(db):
    client = MountClient(db, is_open=True)
    client.life.is_up = False
    await client.request()
    assert (client.status, client.seen) == (503, [])


async def test_a_websocket_ends_soon_after_its_token_was_revoked(db, monkeypatch: pytest.MonkeyPatch):
    asked = []

    find_principal = keys.find_principal

    async def find(*arguments):
        asked.append(1)
        return await find_principal(*arguments)

    monkeypatch.setattr(keys, "find_principal", find)
    context = make_context(db)
    token = await make_token(context)
    client = MountClient(db, recheck_s=0.05)
    requesting = asyncio.create_task(client.request("websocket", authorization=f"Bearer {token}"))
    await eventually(lambda: len(asked) >= 3)
    assert not requesting.done(), "a valid token keeps it open"
    await db.execute("update boathook.api_key set revoked_at = now()")
    await asyncio.wait_for(requesting, 300)
    assert client.got[-1] == {
        "type": "websocket.close",
        "code": 1008,
        "reason": "this token is not valid any more",
    }


async def test_a_cross_site_websocket_is_refused_despite_a_valid_key(db):
    token = await make_token(make_context(db))
    client = await MountClient(db).request(
        "websocket", host="a.test", origin="https://evil.test", authorization=f"Bearer {token}"
    )
    assert (client.status, client.seen) == (403, [])


async def test_without_the_origin_check_it_is_accepted(db, monkeypatch: pytest.MonkeyPatch):
    """The mutant: the check is removed."""
    monkeypatch.setattr(BrowserAccess, "may_open_socket", lambda *_: True)
    token = await make_token(make_context(db))
    client = MountClient(db)
    requesting = asyncio.create_task(
        client.request("websocket", host="a.test", origin="https://evil.test", authorization=f"Bearer {token}")
    )
    await eventually(lambda: client.seen)
    client.events.put_nowait({"type": "websocket.disconnect", "code": 1000})
    await requesting
    assert client.got[0]["type"] == "websocket.accept"


async def test_an_app_sees_the_client_behind_a_trusted_proxy(db):
    client = MountClient(db, is_open=True, **{"server.trusted_proxies": ["10.0.0.0/8"]})
    forwarded = {"x_forwarded_for": "198.51.100.7, 203.0.113.9, 10.0.0.2", "x_forwarded_proto": "https"}
    await client.request(peer="10.0.0.1", **forwarded)
    assert (client.seen[0]["client"], client.seen[0]["scheme"]) == (("203.0.113.9", 5), "https")


async def test_forwarded_headers_of_untrusted_peers_are_ignored(db):
    client = MountClient(db, is_open=True, **{"server.trusted_proxies": ["10.0.0.0/8"]})
    await client.request(peer="192.0.2.1", x_forwarded_for="203.0.113.9", x_forwarded_proto="https")
    assert (client.seen[0]["client"], client.seen[0]["scheme"]) == (("192.0.2.1", 5), "http")
