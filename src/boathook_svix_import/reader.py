"""Reads an environment from Svix's HTTP API, page by page, with bounded retries."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, ClassVar, Final, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from boathook.config import Settings
from boathook.domain.errors import ConfigError, FetchFailed
from boathook.domain.redaction import RedactedStruct
from boathook.http_client.client import Client, unguarded_settings
from boathook.http_client.messages import HttpResponse
from boathook.http_client.retry_after import read_retry_after

JsonObject = Mapping[str, Any]
"""One object as the API returns it."""

Found = TypeVar("Found")

_PAGE: Final = 250
_TRIES: Final = 8
_TIMEOUT_S: Final = 30.0
_MAX_WAIT_S: Final = 300.0
_MAX_ANSWER: Final = 64 * 1_048_576
_MAX_CONCURRENCY: Final = 8
"""Maximum concurrent requests for one application's endpoints."""
_TRANSIENT: Final = frozenset({408, 423, 425, 429, 500, 502, 503, 504})
_ABSENT: Final = frozenset({404, 405, 410, 501})
"""The object does not exist, or the server has no such route."""
_MAX_DETAIL: Final = 300

OPERATIONAL: Final = "/operational-webhook"
"""The owner path of the endpoints of operational webhooks."""


def application_path(id: str) -> str:
    """Return the owner path of an application's endpoints."""
    return f"/app/{quote(id, safe='')}"


class RemoteEndpoint(RedactedStruct, frozen=True, kw_only=True):
    """An endpoint with its secret, headers and transformation."""

    hidden_fields: ClassVar[frozenset[str]] = frozenset({"headers", "secret"})

    wire: JsonObject
    secret: str | None
    """The signing secret; None if the server does not return it."""
    headers: Mapping[str, Any] = msgspec.field(default_factory=dict)
    sensitive: Sequence[str] = ()
    """Names of headers whose values are not shown."""
    transformation: JsonObject | None = None

    @property
    def id(self) -> str:
        """Its id on the server."""
        return str(self.wire["id"])


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """Parts of an environment that cannot be imported."""

    settings: JsonObject = msgspec.field(default_factory=dict)
    connectors: Sequence[JsonObject] = ()
    sources: Sequence[JsonObject] = ()
    """Sources of its ingest API."""


class SvixClient:
    """Reads one environment.

    Args:
        settings: the proxy and certificates; the server may be in any network.
        url: the server's URL, with or without ``/api/v1``.
        token: an API token of the environment.
        say: called with the reason and delay of each retry.
        sleep: waits for a number of seconds.

    Every method raises ConfigError if the token is rejected, and FetchFailed if a request failed permanently, with the
    status of the response, if any.
    """

    def __init__(
        self,
        settings: Settings,
        url: str,
        token: str,
        *,
        say: Callable[[str], None] = lambda _: None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._client = Client(unguarded_settings(settings))
        self._root = url.rstrip("/").removesuffix("/api/v1")
        self._headers = {"authorization": f"Bearer {token}", "accept": "application/json"}
        self._say = say
        self._sleep = sleep
        self._turn = asyncio.Semaphore(_MAX_CONCURRENCY)

    def close(self) -> None:
        """Abort the requests in progress."""
        self._client.close()

    async def event_types(self) -> list[JsonObject]:
        """Return all event types, including archived ones, with their schemas."""
        return await self._read_all("/event-type", "name", include_archived="true", with_content="true")

    async def has_event_type(self, name: str) -> bool:
        """Return whether there is an event type of this name, archived or not."""
        return await self._find(f"/event-type/{quote(name, safe='')}") is not None

    def applications(self) -> AsyncIterator[JsonObject]:
        """Yield all applications."""
        return self._list("/app", "id")

    async def application(self, id: str) -> JsonObject | None:
        """Return an application by id."""
        return await self._find(application_path(id))

    async def endpoints(self, owner: str) -> list[RemoteEndpoint] | None:
        """Return the endpoints of `application_path` or `OPERATIONAL`; None if the server has no such owner."""
        also = (403,) if owner == OPERATIONAL else ()
        rows = await _none_if_absent(self._read_all(f"{owner}/endpoint", "id"), *also)
        if rows is None:
            return None
        complete = await asyncio.gather(*(self._complete(owner, row) for row in rows))
        return [endpoint for endpoint in complete if endpoint is not None]

    async def endpoint(self, owner: str, id: str) -> RemoteEndpoint | None:
        """Return one endpoint of an owner."""
        wire = await self._find(f"{owner}/endpoint/{quote(id, safe='')}")
        return None if wire is None else await self._complete(owner, wire)

    async def environment(self) -> Environment:
        """Return the parts of the environment that cannot be imported, as far as the server has routes for them."""
        path = "/environment/export"
        exported = await _none_if_absent(self._read(path, method="POST"), 403) or {}
        sources = await _none_if_absent(self._read_all("/source", "id", api="/ingest/api/v1"), 403)
        return Environment(
            settings=_member(path, exported, "settings", dict),
            connectors=[
                connector for connector in _member(path, exported, "connectors", list) if isinstance(connector, dict)
            ],
            sources=sources or (),
        )

    async def _complete(self, owner: str, wire: JsonObject) -> RemoteEndpoint | None:
        """Return an endpoint with its secret, headers and transformation; None if it was deleted meanwhile."""
        path = f"{owner}/endpoint/{quote(str(wire['id']), safe='')}"
        async with self._turn:
            secret = await self._find(f"{path}/secret")
            if secret is None and await self._find(path) is None:
                return None
            headers = await self._find(f"{path}/headers") or {}
            transformation = None if owner == OPERATIONAL else await self._find(f"{path}/transformation")
        return RemoteEndpoint(
            wire=wire,
            secret=None if secret is None else str(secret.get("key") or "") or None,
            headers=_member(path, headers, "headers", dict),
            sensitive=_member(path, headers, "sensitive", list),
            transformation=transformation,
        )

    async def _list(self, path: str, key: str, *, api: str = "/api/v1", **params: str) -> AsyncIterator[JsonObject]:
        """Yield each row of a list once, even if the list changes while it is read."""
        seen: set[str] = set()
        iterators: set[str] = set()
        params = {"limit": str(_PAGE), **params}
        while True:
            page = _object(path, await self._request("GET", f"{api}{path}?{urlencode(params)}"))
            for row in _rows(path, page, key):
                if row[key] not in seen:
                    seen.add(row[key])
                    yield row
            if page.get("done") is True:
                return
            iterator = page.get("iterator")
            if not isinstance(iterator, str) or iterator in iterators:
                raise FetchFailed(f"the list {path} does not end: its iterator stays at {iterator!r}")
            iterators.add(iterator)
            params["iterator"] = iterator

    async def _find(self, path: str) -> JsonObject | None:
        return await _none_if_absent(self._read(path))

    async def _read(self, path: str, *, method: str = "GET") -> JsonObject:
        return _object(path, await self._request(method, f"/api/v1{path}"))

    async def _read_all(self, path: str, key: str, *, api: str = "/api/v1", **params: str) -> list[JsonObject]:
        return [row async for row in self._list(path, key, api=api, **params)]

    async def _request(self, method: str, path: str) -> bytes:
        for attempt in range(_TRIES):
            try:
                answer = await self._client.request(
                    method,
                    self._root + path,
                    headers=self._headers,
                    timeout_s=_TIMEOUT_S,
                    max_bytes=_MAX_ANSWER,
                )
            except FetchFailed as error:
                if error.is_final or error.status is not None or attempt == _TRIES - 1:
                    raise
                await self._wait(_backoff_s(attempt), str(error))
                continue
            if answer.status not in _TRANSIENT or attempt == _TRIES - 1:
                return self._body(method, path, answer)
            await self._wait(_wait_s(answer, attempt), f"{self._root} answers {answer.status}")
        raise AssertionError("the last attempt returns or raises")

    async def _wait(self, seconds: float, reason: str) -> None:
        self._say(f"{reason}; trying again in {seconds:g} s")
        await self._sleep(seconds)

    def _body(self, method: str, path: str, answer: HttpResponse) -> bytes:
        if answer.is_ok:
            return answer.body
        if answer.status == 401:
            raise ConfigError(f"--token: {self._root} refuses it: {_detail(answer)}")
        if 300 <= answer.status < 400:
            location = answer.headers.get("location", "elsewhere")
            raise FetchFailed(f"{self._root} redirects to {location}; use that URL for --from", status=answer.status)
        raise FetchFailed(
            f"{method} {path.partition('?')[0]} returned {answer.status}: {_detail(answer)}", status=answer.status
        )


async def _none_if_absent(reading: Awaitable[Found], *also: int) -> Found | None:
    """Return the result of *reading*; None if the server does not have it, which statuses *also* mean too."""
    try:
        return await reading
    except FetchFailed as error:
        if error.status in _ABSENT or error.status in also:
            return None
        raise


def _object(path: str, body: bytes) -> JsonObject:
    try:
        document = msgspec.json.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise FetchFailed(f"{path} did not return a JSON object; is --from the URL of a Svix API?")
    return document


def _rows(path: str, page: JsonObject, key: str) -> Sequence[JsonObject]:
    rows = page.get("data")
    if not isinstance(rows, list) or not all(isinstance(row, dict) and isinstance(row.get(key), str) for row in rows):
        raise FetchFailed(f"{path}: data is not a list of objects with {key}; is --from the address of a Svix API?")
    return rows


def _member(path: str, wire: JsonObject, name: str, type: type[Found]) -> Found:
    """Return a member of an object; empty if missing. Raises FetchFailed if it has another type."""
    value = wire.get(name)
    if value is None:
        return type()
    if not isinstance(value, type):
        raise FetchFailed(f"{path}: {name} is not in the format of Svix's API", status=200)
    return value


def _detail(answer: HttpResponse) -> str:
    return answer.body.decode("utf-8", "replace").strip()[:_MAX_DETAIL] or "without a word"


def _backoff_s(attempt: int) -> float:
    return min(0.5 * 2.0**attempt, 30.0)


def _wait_s(answer: HttpResponse, attempt: int) -> float:
    """Return the delay before a retry: Retry-After, in seconds or as a date, else exponential back-off."""
    seconds = read_retry_after(answer.headers.get("retry-after", ""), time.time())
    return _backoff_s(attempt) if seconds is None else min(seconds, _MAX_WAIT_S)
