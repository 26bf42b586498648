"""Client of RentProg's API: fetches whole objects, within the rates that all workers share.

A company's token is exchanged for one of some minutes, which is kept in memory. Which path finds an object by its id is
documented differently, so all are tried; that of the last success comes first.
"""

import asyncio
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote

from boathook import Boathook, Retry
from boathook_app_tools.statements import load_statements
from boathook_fleet.parse import clean
from boathook_fleet.words import Entity

SQL: Final = load_statements(__file__)
DEPENDENCY: Final = "rentprog"
PATHS: Final[Mapping[Entity, tuple[str, ...]]] = {
    entity: (f"/{entity}s/{{id}}", f"/{entity}/{{id}}", f"/search_{entity}s?query={{id}}")
    for entity in (Entity.CAR, Entity.CLIENT, Entity.BOOKING)
}
"""The paths of an object by its id, most likely first."""
MAX_BYTES: Final = 1_048_576
"""Maximum bytes of a response."""
MAX_WAIT_S: Final = 30.0
"""Maximum seconds that a request waits for its turn; a longer wait ends the attempt."""
_TOKEN_LIFE_S: Final = 240.0
_TOKEN_MARGIN_S: Final = 5.0
_PAUSE_S: Final = 60.0
"""Seconds without requests after the status 429 without ``Retry-After``."""
_MAX_PAUSE_S: Final = 3_600.0


class UnusableResponse(Exception):
    """The response is none that the API documents; a later one may be."""

    status_code = 502
    dependency = DEPENDENCY


class RateReached(Exception):
    """The rate is used up; `retry` is what the handler returns."""

    def __init__(self, after_s: float) -> None:
        super().__init__(after_s)
        self.retry = Retry(after=after_s, code="RENTPROG_RATE", dependency=DEPENDENCY)


@dataclass(frozen=True, slots=True)
class _Token:
    text: str
    until: float
    """Seconds since 1970."""


class RentProgApi:
    """Fetches objects of the companies whose tokens are in ``[fleet.branches]``."""

    def __init__(self, hook: Boathook) -> None:
        self._hook = hook
        self._tokens: dict[str, _Token] = {}
        self._paths: dict[Entity, str] = {}

    async def fetch(self, entity: Entity, id: str, branch: str | None) -> dict[str, Any] | None:
        """Return the fields of an object, or None if no company has it; that of *branch* is asked first.

        Raises:
            RateReached: it is not this request's turn.
            FetchFailed, UnusableResponse: a request failed.
        """
        companies = [company for company, settings in self._hook.settings.branches.items() if settings.token]
        known_path = self._paths.get(entity)
        for company in sorted(companies, key=lambda company: company != branch):
            for path in sorted(PATHS[entity], key=lambda path: path != known_path):
                document = await self._get(company, path.format(id=quote(id, safe="")), "search" in path)
                for fields in _objects(document, entity):
                    if str(fields.get("id")) == id:
                        self._paths[entity] = path
                        return fields
        return None

    async def _get(self, company: str, path: str, is_search: bool) -> Any:
        """Return a response's JSON, or None if the server has nothing at the path."""
        kind = "search" if is_search else "read"
        response = await self._request(kind, path, await self._token(company))
        if response.status == 401:
            del self._tokens[company]
            response = await self._request(kind, path, await self._token(company))
        if response.status == 404:
            return None
        return self._read(response)

    async def _token(self, company: str) -> str:
        token = self._tokens.get(company)
        if token is None or token.until < time.time():
            secret = self._hook.resolve(self._hook.settings.branches[company].token, f"branches.{company}.token")
            answer = self._read(await self._request("login", f"/get_token?company_token={quote(secret, safe='')}"))
            text = answer.get("token") if isinstance(answer, dict) else None
            if not isinstance(text, str) or not text.isprintable() or not text.isascii():
                raise UnusableResponse("get_token has answered without a token")
            token = self._tokens[company] = _Token(text, _expiry(answer.get("exp")) - _TOKEN_MARGIN_S)
        return token.text

    async def _request(self, kind: str, path: str, token: str = "") -> Any:
        """Send a GET request when it is its turn. A response with the status 429 pauses the requests of all workers."""
        api = self._hook.settings.api
        await self._take_turn(kind, 60.0 / getattr(api, f"{kind}_per_minute"))
        headers = {"accept": "application/json"} | ({"authorization": f"Bearer {token}"} if token else {})
        response = await self._hook.http.request(
            "GET", f"{api.url.rstrip('/')}{path}", headers=headers, timeout_s=api.timeout_s, max_bytes=MAX_BYTES
        )
        if response.status == 429:
            after = response.headers.get("retry-after", "")
            pause_s = min(float(after), _MAX_PAUSE_S) if after.isascii() and after.isdigit() else _PAUSE_S
            async with self._hook.transaction() as tx:
                await tx.execute(SQL["pause"], kind, pause_s)
            raise RateReached(pause_s)
        return response

    async def _take_turn(self, kind: str, interval_s: float) -> None:
        async with self._hook.transaction() as tx:
            wait_s = await tx.fetchval(SQL["take_turn"], kind, interval_s, MAX_WAIT_S)
            after_s = await tx.fetchval(SQL["next_turn"], kind) if wait_s is None else 0.0
        if wait_s is None:
            raise RateReached(after_s)
        await asyncio.sleep(wait_s)

    @staticmethod
    def _read(response: Any) -> Any:
        response.raise_for_status()
        try:
            return clean(json.loads(response.body))
        except (ValueError, RecursionError):
            raise UnusableResponse(f"{response.origin}: the response is not JSON") from None


def _objects(document: Any, entity: Entity) -> Iterator[dict[str, Any]]:
    """Yield the objects in a response: the document itself, or those in a list or a wrapper."""
    if isinstance(document, dict):
        wrapped = [document[key] for key in ("data", str(entity), f"{entity}s") if key in document]
        if wrapped and "id" not in document:
            document = wrapped[0]
    for item in document if isinstance(document, list) else [document]:
        if isinstance(item, dict):
            yield item


def _expiry(text: Any) -> float:
    """Return when a token ends, in seconds since 1970; some minutes from now if the response does not say."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except (TypeError, ValueError, OverflowError, OSError):
        return time.time() + _TOKEN_LIFE_S
