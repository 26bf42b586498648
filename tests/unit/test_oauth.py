"""Access tokens by client credentials, from a token server on loopback."""

import asyncio
import base64
import contextlib
import json
import time
from urllib.parse import parse_qs

import pytest

from boathook.domain.errors import FetchFailed
from boathook.http_client import oauth
from boathook.http_client.oauth import TokenCache
from tests.support import eventually
from tests.unit.receivers import Receiver, outbound


def token_response(status=200, **fields):
    body = json.dumps(fields).encode()
    return b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%s" % (status, len(body), body)


GOOD = token_response(access_token="tok-1", token_type="Bearer", expires_in=3600)


@contextlib.asynccontextmanager
async def open_tokens(**changes):
    one = TokenCache(outbound(**changes))
    try:
        yield one
    finally:
        one.close()


async def test_a_token_is_requested_by_client_credentials_and_cached():
    async with Receiver((GOOD,)) as server, open_tokens() as tokens:
        for _ in range(3):
            assert await tokens.token(server.url, "my id", "s:cret/ü", "a b") == "tok-1"
        [request] = server.requests
    assert request.lines[0].startswith("POST ")
    assert request.headers["content-type"] == "application/x-www-form-urlencoded"
    assert parse_qs(request.body.decode()) == {"grant_type": ["client_credentials"], "scope": ["a b"]}
    assert base64.b64decode(request.headers["authorization"].removeprefix("Basic ")) == b"my+id:s%3Acret%2F%C3%BC"


async def test_concurrent_callers_share_a_request_per_client():
    async with Receiver((0.1, GOOD)) as server, open_tokens() as tokens:
        found = await asyncio.gather(*(tokens.token(server.url, "id", "secret") for _ in range(50)))
        assert (set(found), len(server.requests)) == ({"tok-1"}, 1)
        await tokens.token(server.url, "id", "secret", "scope")
        await tokens.token(server.url, "id", "other")
        await tokens.token(server.url, "id2", "secret")
        assert len(server.requests) == 4


async def test_cancelling_one_caller_keeps_the_shared_request():
    async with Receiver((0.2, GOOD)) as server, open_tokens() as tokens:
        first = asyncio.create_task(tokens.token(server.url, "id", "secret"))
        second = asyncio.create_task(tokens.token(server.url, "id", "secret"))
        await asyncio.sleep(0)
        first.cancel()
        assert (await second, len(server.requests)) == ("tok-1", 1)


async def test_a_token_is_used_until_shortly_before_its_end(monkeypatch):
    async with Receiver((GOOD,)) as server, open_tokens() as tokens:
        await tokens.token(server.url, "id", "secret")
        began = time.monotonic()
        monkeypatch.setattr(time, "monotonic", lambda: began + 3_500)
        await tokens.token(server.url, "id", "secret")
        assert len(server.requests) == 1
        monkeypatch.setattr(time, "monotonic", lambda: began + 3_580)
        await tokens.token(server.url, "id", "secret")
        assert len(server.requests) == 2


async def test_a_dropped_token_is_requested_again():
    async with Receiver((GOOD,)) as server, open_tokens() as tokens:
        tokens.drop(await tokens.token(server.url, "id", "secret"))
        await tokens.token(server.url, "id", "secret")
        assert len(server.requests) == 2


@pytest.mark.own_process
@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (token_response(401, error="invalid_client", hint="canary"), "status 401"),
        (token_response(201, access_token="t"), "status 201"),
        (token_response(302), "status 302"),
        (token_response(token_type="Bearer"), "no access_token"),
        (token_response(access_token=""), "no access_token"),
        (token_response(access_token=5), "no access_token"),
        (token_response(access_token="a\r\nx: y"), "no access_token"),
        (token_response(access_token="ü"), "no access_token"),
        (token_response(access_token="t" * 20_000), "no access_token"),
        (token_response(access_token="t", token_type="mac"), "type Bearer"),
        (token_response(access_token="t", token_type=5), "type Bearer"),
        (token_response(access_token="t" * 70_000), "larger than"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n[]", "not a JSON object"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\ncanary", "not a JSON object"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 60000\r\n\r\n" + b"[" * 60_000, "not a JSON object"),
        ("reset", "the request to the token server failed"),
    ],
)
async def test_a_failure_is_cached_and_reported_without_the_response(answer, words, monkeypatch):
    async with Receiver((answer,)) as server, open_tokens() as tokens:
        with pytest.raises(FetchFailed, match=words) as caught:
            await tokens.token(server.url, "id", "secret")
        assert "canary" not in str(caught.value)
        with pytest.raises(FetchFailed, match="not tried again"):
            await tokens.token(server.url, "id", "secret")
        assert server.accepted == 1
        server.script = (GOOD,)
        later = time.monotonic() + oauth.FAILED_S + 1
        monkeypatch.setattr(time, "monotonic", lambda: later)
        assert await tokens.token(server.url, "id", "secret") == "tok-1"


@pytest.mark.parametrize("life", [None, "soon", -5, 0, float("inf"), "3600", [], True])
async def test_odd_token_lifetimes_are_tolerated(life):
    async with Receiver((token_response(access_token="t", expires_in=life),)) as server, open_tokens() as tokens:
        assert await tokens.token(server.url, "id", "secret") == "t"


async def test_token_servers_pass_the_same_guard():
    async with Receiver((GOOD,)) as server, open_tokens(allow=[]) as tokens:
        for url in (server.url, "http://169.254.169.254/latest", "file:///etc/passwd", "http://127.0.0.1:6379/"):
            with pytest.raises(FetchFailed, match="the request to the token server failed"):
                await tokens.token(url, "id", "secret")
        assert server.accepted == 0


async def test_a_closed_token_cache_answers_at_once():
    async with Receiver((30.0,)) as server, open_tokens() as tokens:
        waiting = asyncio.create_task(tokens.token(server.url, "id", "secret"))
        await eventually(lambda: server.requests)
        tokens.close()
        with pytest.raises(FetchFailed, match="shutting down"):
            await waiting
        with pytest.raises(FetchFailed, match="shutting down"):
            await tokens.token(server.url, "id2", "secret")
