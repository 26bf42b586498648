"""What browsers, readers and users may do at a mount, without a network; attacks, each with a mutant without the check."""

import asyncio
import json
import time
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any, Self

import jwt.api_jwt
import pytest

from boathook.config.tables import MountSettings
from boathook.db.database import Database
from boathook.domain.errors import InvalidValue
from boathook.domain.model import MountRole
from boathook_apps import mount_access, mounts
from boathook_apps.browser_access import BrowserAccess
from boathook_apps.mount_access import MountAccess
from tests.postgres.api_client import make_context, make_token
from tests.postgres.server.test_mounts import MountClient
from tests.support import eventually
from tests.unit.test_user_tokens import KeyServer, claims, make_tokens, public_jwk, sign

PAGE = "https://dashboard.example"
OTHER_PAGES = ("https://evil.example", "null", "", f"{PAGE}.evil.example", "http://dashboard.example", f"{PAGE}:8443")
CORS = MountSettings(origins=(PAGE,))
USERS = MountSettings(origins=(PAGE,), roles={"viewer": MountRole.READER, "boss": MountRole.OPERATOR})


async def key(db: Database, role: MountRole = MountRole.READER, mount: str = "/yard") -> str:
    return await make_token(make_context(db), mount=mount, role=role)


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def preflight(origin: str, method: str = "DELETE") -> dict[str, str]:
    return {
        "origin": origin,
        "access_control_request_method": method,
        "access_control_request_headers": "authorization,content-type",
    }


# Keys of one mount


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
async def test_a_reader_may_read(db, method: str):
    client = await MountClient(db).request(method=method, **bearer(await key(db)))
    assert client.status == 200
    assert client.seen[0]["state"]["role"] == "reader"
    assert client.seen[0]["state"]["actor"].startswith("api:key_")


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "TRACE", "PROPFIND", "get"])
async def test_a_reader_may_not_change(db, method: str):
    client = await MountClient(db).request(method=method, **bearer(await key(db)))
    assert (client.status, client.seen) == (403, [])


async def test_mutant_where_every_method_only_reads(db, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(mounts, "SAFE_METHODS", {"GET", "DELETE"})
    client = await MountClient(db).request(method="DELETE", **bearer(await key(db)))
    assert client.status == 200


async def test_an_operator_may_change(db):
    client = await MountClient(db).request(method="DELETE", **bearer(await key(db, MountRole.OPERATOR)))
    assert (client.status, client.seen[0]["state"]["role"]) == (200, "operator")


@pytest.mark.parametrize("mount", ["/other", "/yard/inner", "/yar", "/", "/yard2"])
async def test_a_key_of_another_mount_is_refused(db, mount: str):
    client = await MountClient(db).request(**bearer(await key(db, mount=mount)))
    assert (client.status, client.seen) == (403, [])


async def test_mutant_that_does_not_compare_the_mount(db, monkeypatch: pytest.MonkeyPatch):
    init = MountAccess.__init__
    monkeypatch.setattr(MountAccess, "__init__", lambda self, _path, *more: init(self, "/other", *more))
    client = await MountClient(db).request(**bearer(await key(db, mount="/other")))
    assert client.status == 200


async def test_a_key_has_both_a_mount_and_a_role(db):
    for given in ({"mount": "/yard"}, {"role": MountRole.READER}, {"mount": "yard", "role": MountRole.READER}):
        with pytest.raises(InvalidValue):
            await make_token(make_context(db), **given)


async def test_creating_a_key_is_audited(db):
    await key(db)
    assert await db.fetchval("select note from boathook.audit where action = 'key.create'") == "reader of /yard"


# Paths and queries


@pytest.mark.parametrize(
    "path", ["/yard/../other", "/yard/..", "/yard/./x", "/yard/x/../../other", "/yard/..\\other", "/yard/a\0b"]
)
async def test_a_path_that_leads_elsewhere_is_refused(db, path: str):
    client = await MountClient(db).request(path=path, **bearer(await key(db)))
    assert (client.status, client.seen) == (400, [])


@pytest.mark.parametrize("path", ["/yard/..a", "/yard/a..", "/yard/.well-known/x", "/yard/..."])
async def test_a_name_with_dots_is_a_name(db, path: str):
    assert (await MountClient(db).request(path=path, **bearer(await key(db)))).status == 200


@pytest.mark.parametrize(
    "form", ["token={}", "access_token={}", "a=1&x={}", "%74oken={}", "q=Bearer%20{}", "Access_Token=x"]
)
async def test_a_token_in_the_url_is_refused_even_beside_a_valid_one(db, form: str):
    token = await key(db)
    for credentials in ({}, bearer(token)):
        client = await MountClient(db).request(query=form.format(token), **credentials)
        assert (client.status, client.seen) == (400, [])
        assert json.loads(client.got[1]["body"])["code"] == "token_in_url"


async def test_a_users_token_in_the_url_is_refused(db):
    client = await MountClient(db).request(query=f"id_token={sign(claims())}", **bearer(await key(db)))
    assert (client.status, client.seen) == (400, [])
    socket = await MountClient(db).request("websocket", query=f"t={sign(claims())}")
    assert (socket.status, socket.seen) == (400, [])


async def test_other_queries_pass(db):
    client = await MountClient(db).request(query="after=tok_1&token=&since=41&name=eyJ", **bearer(await key(db)))
    assert client.status == 200


async def test_mutant_without_the_checks_of_the_target(db, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(mounts, "check_target", lambda *_, **__: None)
    token = await key(db)
    assert (await MountClient(db).request(path="/yard/../other", **bearer(token))).status == 200
    assert (await MountClient(db).request(query=f"token={token}", **bearer(token))).status == 200


# CORS


async def test_a_preflight_of_an_allowed_page_needs_no_token(db):
    client = await MountClient(db, own=CORS).request(method="OPTIONS", **preflight(PAGE))
    assert (client.status, client.seen) == (204, [])
    assert client.headers["access-control-allow-origin"] == PAGE
    assert client.headers["access-control-allow-headers"] == "authorization,content-type"
    assert "DELETE" in client.headers["access-control-allow-methods"]
    assert client.headers["vary"] == "origin"
    assert "access-control-allow-credentials" not in client.headers


@pytest.mark.parametrize("origin", OTHER_PAGES)
async def test_a_preflight_of_another_page_is_refused(db, origin: str):
    client = await MountClient(db, own=CORS).request(method="OPTIONS", **preflight(origin))
    assert (client.status, client.seen) == (403, [])
    assert not [name for name in client.headers if name.startswith("access-control-")]


async def test_a_preflight_without_configured_origins_is_refused(db):
    client = await MountClient(db).request(method="OPTIONS", **preflight(PAGE))
    assert (client.status, client.seen) == (401, [])
    assert not [name for name in client.headers if name.startswith("access-control-")]


async def test_odd_header_names_are_not_repeated(db):
    headers = {**preflight(PAGE), "access_control_request_headers": "authorization, x\x0b<b>"}
    client = await MountClient(db, own=CORS).request(method="OPTIONS", **headers)
    assert "access-control-allow-headers" not in client.headers


async def test_an_allowed_page_reads_answers_and_errors(db):
    token = await key(db)
    for credentials, method, status in ((bearer(token), "GET", 200), ({}, "GET", 401), (bearer(token), "POST", 403)):
        client = await MountClient(db, own=CORS).request(method=method, origin=PAGE, **credentials)
        assert client.status == status
        assert client.headers["access-control-allow-origin"] == PAGE, "a page reads why it was refused"
        assert client.headers["vary"] == "origin"
        assert "access-control-allow-credentials" not in client.headers


@pytest.mark.parametrize("origin", OTHER_PAGES)
async def test_another_page_cannot_read_an_answer(db, origin: str):
    client = await MountClient(db, own=CORS).request(origin=origin, **bearer(await key(db)))
    assert "access-control-allow-origin" not in client.headers
    assert client.headers["vary"] == "origin"


async def test_mutant_that_allows_every_origin(db, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(BrowserAccess, "_is_allowed", lambda _self, origins: bool(origins))
    client = await MountClient(db, own=CORS).request(origin="https://evil.example", **bearer(await key(db)))
    assert client.headers["access-control-allow-origin"] == "https://evil.example"


async def test_an_applications_own_cors_headers_do_not_widen_the_settings():
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    own = [(b"Access-Control-Allow-Origin", b"*"), (b"access-control-allow-credentials", b"true")]
    scope = {"headers": [(b"origin", b"https://evil.example")]}
    start = {"type": "http.response.start", "status": 200, "headers": own}
    await BrowserAccess([PAGE], "", is_open=True).restrict(scope, send)(start)
    assert not [name for name, _ in sent[-1]["headers"] if name.lower().startswith(b"access-control-")]
    await BrowserAccess([], "", is_open=True).restrict(scope, send)(start)
    assert sent[-1]["headers"][:2] == own, "without origins in the settings the application decides"


# Security headers


@pytest.mark.parametrize("is_open", [True, False])
async def test_every_answer_has_security_headers(db, is_open: bool):
    token = await key(db)
    for credentials, status in ((bearer(token), 200), ({}, 200 if is_open else 401)):
        headers = (await MountClient(db, is_open=is_open).request(**credentials)).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["referrer-policy"] == "same-origin"
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert ("cache-control" in headers) is not is_open or status == 401
        assert is_open or headers["cache-control"] == "no-store"


async def test_an_applications_own_security_headers_stay():
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    own = [(b"Content-Security-Policy", b"frame-ancestors https://a.test"), (b"cache-control", b"max-age=60")]
    start = {"type": "http.response.start", "status": 200, "headers": own}
    await BrowserAccess([], "", is_open=False).restrict({"headers": []}, send)(start)
    names = [name.lower() for name, _ in sent[-1]["headers"]]
    assert names.count(b"content-security-policy") == names.count(b"cache-control") == 1
    assert b"x-content-type-options" in names


# WebSockets


class Socket:
    """A WebSocket of a browser to a mount."""

    def __init__(self, client: MountClient, **headers: str) -> None:
        self.client = client
        self.task = asyncio.create_task(client.request("websocket", host="api.example", **headers))

    async def send(self, message: object) -> None:
        await eventually(lambda: bool(self.client.got))
        text = message if isinstance(message, str) else json.dumps(message)
        self.client.events.put_nowait({"type": "websocket.receive", "text": text})

    async def opened(self) -> "Socket":
        """Wait until the application has it."""
        await eventually(lambda: bool(self.client.seen))
        return self

    async def leave(self) -> None:
        self.client.events.put_nowait({"type": "websocket.disconnect", "code": 1000})
        await self.task

    async def closed(self) -> int:
        """Return the code with which it is closed."""
        await asyncio.wait_for(self.task, 300)
        assert self.client.got[-1]["type"] == "websocket.close"
        return int(self.client.got[-1]["code"])


async def test_a_browser_sends_its_token_first(db):
    socket = Socket(MountClient(db, own=CORS), origin=PAGE)
    await socket.send({"token": await key(db)})
    await socket.opened()
    assert socket.client.seen[0]["state"]["role"] == "reader"
    assert [message["type"] for message in socket.client.got] == ["websocket.accept"], "it is accepted once"
    await socket.leave()


@pytest.mark.parametrize(
    "message",
    [
        "",
        "bhk_x",
        "{}",
        '{"token": null}',
        '{"token": ""}',
        '{"token": "bhk_wrong"}',
        '{"token": "x", "y": 1}',
        "[" * 9_000,
    ],
)
async def test_a_wrong_first_message_closes_the_websocket(db, message: str):
    socket = Socket(MountClient(db))
    await socket.send(message)
    assert await socket.closed() == 1008
    assert socket.client.seen == []


async def test_a_websocket_that_sends_no_token_is_closed(db, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(mount_access, "FIRST_MESSAGE_S", 0.05)
    socket = Socket(MountClient(db))
    assert await socket.closed() == 1008
    assert socket.client.seen == []


async def test_a_websocket_of_another_mounts_key_is_closed(db):
    socket = Socket(MountClient(db))
    await socket.send({"token": await key(db, mount="/other")})
    assert await socket.closed() == 1008


async def test_a_token_that_cannot_be_checked_is_no_wrong_token(pg_url):
    gone = await Database.open(pg_url, purpose="test", size=1)
    await gone.close()
    socket = Socket(MountClient(gone))
    await socket.send({"token": "bhk_any"})
    assert await socket.closed() == 1013


@pytest.mark.parametrize("origin", OTHER_PAGES)
async def test_a_websocket_of_another_page_is_refused_before_its_token(db, origin: str):
    client = await MountClient(db, own=CORS).request("websocket", host="api.example", origin=origin)
    assert (client.status, client.seen) == (403, [])


@pytest.mark.parametrize("headers", [{"origin": "https://api.example"}, {}])
async def test_own_pages_and_programs_may_open_a_websocket_with_a_token(db, headers: dict[str, str]):
    socket = Socket(MountClient(db, own=CORS), **headers)
    await socket.send({"token": await key(db)})
    await (await socket.opened()).leave()


# Users


async def test_a_user_gets_the_role_of_their_claim(db):
    for groups, role in ((["viewer"], "reader"), ("boss", "operator"), (["viewer", "boss", "x"], "operator")):
        client = MountClient(db, own=USERS, user_tokens=make_tokens()[0])
        await client.request(origin=PAGE, **bearer(sign(claims(roles=groups))))
        assert client.status == 200
        state = client.seen[0]["state"]
        assert (state["role"], state["actor"]) == (role, "user:u17")


@pytest.mark.parametrize("groups", [["Viewer"], ["stranger"], [], None, {"viewer": 1}, ["reader"], ["operator"]])
async def test_unknown_claims_give_no_role(db, groups: Any):
    client = MountClient(db, own=USERS, user_tokens=make_tokens()[0])
    await client.request(**bearer(sign(claims(roles=groups))))
    assert (client.status, client.seen) == (403, [])


async def test_a_user_with_the_role_of_a_reader_may_not_change(db):
    client = MountClient(db, own=USERS, user_tokens=make_tokens()[0])
    await client.request(method="DELETE", **bearer(sign(claims())))
    assert (client.status, client.seen) == (403, [])


async def test_a_users_token_opens_no_mount_without_roles(db):
    client = MountClient(db, own=CORS, user_tokens=make_tokens()[0])
    await client.request(**bearer(sign(claims())))
    assert (client.status, client.seen) == (401, [])


async def test_an_invalid_users_token_is_answered_401(db):
    client = MountClient(db, own=USERS, user_tokens=make_tokens()[0])
    await client.request(**bearer(sign(claims(aud="shop"))))
    assert (client.status, client.seen) == (401, [])
    assert client.headers["www-authenticate"] == "Bearer"


async def test_an_issuer_that_is_away_is_answered_503(db):
    tokens, server = make_tokens(KeyServer(public_jwk(sign.__globals__["KEY"])))
    server.keys = []
    client = MountClient(db, own=USERS, user_tokens=tokens)
    await client.request(**bearer(sign(claims())))
    assert (client.status, client.headers["retry-after"]) == (503, "10")


async def test_an_api_key_still_works_beside_users_tokens(db):
    client = MountClient(db, own=USERS, user_tokens=make_tokens()[0])
    await client.request(**bearer(await key(db)))
    assert client.status == 200


class LaterClock(datetime):
    """A clock two hours ahead."""

    @classmethod
    def now(cls, tz: Any = None) -> Self:
        return super().now(tz) + timedelta(hours=2)


async def test_a_websocket_ends_when_its_users_token_expires(db, monkeypatch: pytest.MonkeyPatch):
    verified = []
    tokens, _ = make_tokens()
    verify = tokens.verify

    async def counted(token: str) -> Any:
        verified.append(token)
        return await verify(token)

    monkeypatch.setattr(tokens, "verify", counted)
    socket = Socket(MountClient(db, own=USERS, user_tokens=tokens, recheck_s=0.05), origin=PAGE)
    await socket.send({"token": sign(claims())})
    await socket.opened()
    await eventually(lambda: len(verified) >= 3)
    assert not socket.task.done(), "a valid token keeps it open"
    monkeypatch.setattr(jwt.api_jwt, "datetime", LaterClock)
    assert await socket.closed() == 1008


async def test_mutant_without_the_recheck_an_expired_token_keeps_its_websocket(db, monkeypatch: pytest.MonkeyPatch):
    rechecked = asyncio.Event()

    async def recheck(*_: Any) -> None:
        rechecked.set()

    monkeypatch.setattr(mounts.MountedApp, "_recheck", recheck)
    socket = Socket(MountClient(db, own=USERS, user_tokens=make_tokens()[0], recheck_s=0.05), origin=PAGE)
    await socket.send({"token": sign(claims())})
    await socket.opened()
    await asyncio.wait_for(rechecked.wait(), 300)
    monkeypatch.setattr(jwt.api_jwt, "datetime", LaterClock)
    await asyncio.sleep(0)
    assert not socket.task.done()
    await socket.leave()


async def test_a_websocket_is_checked_again_at_the_end_of_its_token(db, monkeypatch: pytest.MonkeyPatch):
    """The pause is the token's remaining time, if that is shorter than the interval."""
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        await asyncio.Event().wait()

    monkeypatch.setattr(mounts, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": sleep}))
    for exp_in_s in (5, 3_600):
        now = int(time.time())
        socket = Socket(MountClient(db, own=USERS, user_tokens=make_tokens()[0]), origin=PAGE)
        await socket.send({"token": sign(claims(exp=now + exp_in_s))})
        await socket.opened()
        await eventually(lambda: bool(pauses))
        await socket.leave()
    assert 1 <= pauses[0] <= 15
    assert pauses[1] == 30
