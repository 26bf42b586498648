"""Finds the cell that has an application."""

import asyncio
import json
import time
from collections import OrderedDict
from typing import Final

import msgspec

from boathook.config import Settings
from boathook.domain.errors import FetchFailed
from boathook.service.remote import RemoteClient
from boathook_cells.forwarding import ApplicationQuestion, sign
from boathook_cells.settings import APPLICATIONS_PATH, find_cells, read_secret

ASK_TIMEOUT_S: Final = 1.0
"""How long a request for an unknown application may wait for the other cells."""
_KNOWN_S: Final = 5.0
"""How long their answer is remembered."""
_MAX_KNOWN: Final = 10_000
_MAX_ASKING: Final = 1_000
_MAX_QUESTIONS: Final = 32
_MAX_ANSWER: Final = 4_096


class ApplicationFinder:
    """Finds the other cell that has an application by querying the gateways of all at once; caches the answers.

    Args:
        settings: name the cells.
    """

    def __init__(self, settings: Settings) -> None:
        cells = find_cells(settings)
        self._cells = {} if cells is None else cells.others
        self._secret = read_secret(settings) if self._cells else ""
        self._client = RemoteClient(settings if self._cells else None)
        self._known: OrderedDict[tuple[str, str], tuple[float, str | None]] = OrderedDict()
        self._asking: dict[tuple[str, str], asyncio.Task[str | None]] = {}
        self._questions = asyncio.Semaphore(_MAX_QUESTIONS)
        self._silent_until: dict[str, float] = {}
        """Cells that did not answer: they are not queried for a while."""

    async def find(self, organization: str, reference: str) -> str | None:
        """Return the cell that has an application, by any of its names; None if none reports it within a second."""
        key = organization, reference
        until, cell = self._known.get(key, (0.0, None))
        if not self._cells or until > time.monotonic():
            return cell
        if key not in self._asking:
            if len(self._asking) >= _MAX_ASKING:
                return None
            self._asking[key] = asyncio.create_task(self._ask(*key), name="cells:ask")
            self._asking[key].add_done_callback(lambda _: self._asking.pop(key))
        try:
            async with asyncio.timeout(ASK_TIMEOUT_S):
                return await asyncio.shield(self._asking[key])
        except TimeoutError:
            return None

    async def _ask(self, organization: str, reference: str) -> str | None:
        body = msgspec.json.encode(ApplicationQuestion(organization, reference))
        async with self._questions:
            cells = [name for name in self._cells if self._silent_until.get(name, 0.0) <= time.monotonic()]
            answers = await asyncio.gather(*(self._has_application(name, body) for name in cells))
        owner = next((name for name, has_it in zip(cells, answers, strict=True) if has_it), None)
        self._known[organization, reference] = time.monotonic() + _KNOWN_S, owner
        self._known.move_to_end((organization, reference))
        if len(self._known) > _MAX_KNOWN:
            self._known.popitem(last=False)
        return owner

    async def _has_application(self, cell: str, body: bytes) -> bool:
        url = self._cells[cell].url.rstrip("/") + APPLICATIONS_PATH
        headers = {"content-type": "application/json", **sign(self._secret, body)}
        try:
            answer = await self._client.request(
                "POST", url, headers=headers, body=body, timeout_s=ASK_TIMEOUT_S, max_bytes=_MAX_ANSWER
            )
            return answer.status == 200 and bool(json.loads(answer.body)["found"])
        except FetchFailed:
            self._silent_until[cell] = time.monotonic() + _KNOWN_S
            return False
        except (ValueError, KeyError, TypeError):
            return False
