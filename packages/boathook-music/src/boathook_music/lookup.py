"""Asks the reseller for songs whose callback has not come: its ``record-info``, with growing pauses.

Source: https://docs.sunoapi.org/suno-api/get-music-generation-details; kie.ai has the same.
"""

import json
from collections.abc import Mapping
from typing import Any, Final, Literal
from urllib.parse import quote

from boathook import BoathookError
from boathook_app_tools.statements import load_statements
from boathook_music import tracks
from boathook_music.app import gettext, hook, lookups_total, settings
from boathook_music.callbacks import Callback, Stage, read_clips, read_code, read_id, read_text, stage_of
from boathook_music.settings import LookupSettings

MAX_ASKS: Final = 20
"""Songs asked for in one run, one after another."""
MAX_BYTES: Final = 1_048_576
_PATH: Final = "/api/v1/generate/record-info?taskId="
_ABOUT_ALL: Final = frozenset({401, 403, 405, 408, 425, 429, 430, 455})
"""Codes and statuses that concern the key or the service, not the task; so do those from 500."""
SQL: Final = load_statements(__file__)

Result = Literal["applied", "unchanged"]


class LookupFailed(BoathookError):
    """The reseller did not tell the state of a task.

    Args:
        message: one sentence, without the key.
        concerns_all: whether asking for other tasks would fail too.
    """

    def __init__(self, message: str, *, concerns_all: bool = False) -> None:
        super().__init__(message)
        self.concerns_all = concerns_all


def read_record(body: bytes, task_id: str, *, max_clips: int = 20) -> Callback | None:
    """Return what a response of ``record-info`` says about a task, or None if there is no news.

    Raises:
        LookupFailed: it says nothing about the task.
    """
    data = data_of(read_document(body))
    if not isinstance(data, Mapping) or read_id(data.get("taskId")) != task_id:
        raise LookupFailed(gettext("the response is about no task, or about another one"))
    return _news(data, task_id, max_clips)


def read_document(body: bytes) -> Mapping[str, Any]:
    """Return a response of the reseller's API; empty if it is not an object. Raises LookupFailed: it is not JSON."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        raise LookupFailed(gettext("the response is not JSON"), concerns_all=True) from None
    return document if isinstance(document, Mapping) else {}


def data_of(document: Mapping[str, Any]) -> object:
    """Return the ``data`` of a response. Raises LookupFailed: its code is not 200."""
    code = read_code(document.get("code"))
    if code != 200:
        problem = gettext(
            "the response has the code %(code)s: %(said)s", code=code, said=read_text(document.get("msg"))
        )
        raise LookupFailed(problem, concerns_all=_concerns_all(code or 500))
    return document.get("data")


def _news(data: Mapping[str, Any], task_id: str, max_clips: int) -> Callback | None:
    word = read_text(data.get("status"))
    clips = read_clips(data)[:max_clips]
    match word:
        case "PENDING":
            return None
        case "CALLBACK_EXCEPTION":
            # The callback failed, not the songs; unconfirmed is whether they are listed then.
            if not clips or not all(clip.audio_url for clip in clips):
                return None
            stage = Stage.COMPLETE
        case _:
            stage = stage_of(word)
    if stage is Stage.UNKNOWN:
        raise LookupFailed(gettext("the status %(status)r is not known", status=word))
    return Callback(
        task_id=task_id,
        stage=stage,
        word=word,
        code=read_code(data.get("errorCode")),
        message=read_text(data.get("errorMessage")),
        clips=clips if stage is Stage.COMPLETE else (),
    )


async def ask_due() -> int:
    """Ask for the songs whose time has come, until a failure concerns all of them; return how many were asked for."""
    config = settings().lookup
    if not config.key:
        return 0
    count = 0
    while count < MAX_ASKS:
        async with hook.transaction() as tx:
            row = await tx.fetchrow(SQL["claim_due"], config.after_s, config.max_interval_s, config.stop_after_h)
        if row is None:
            break
        count += 1
        try:
            await _ask_for(row["task_id"], row["asks"], config)
        except LookupFailed as error:
            if error.concerns_all:
                break
    return count


async def ask_now(task_id: str) -> Result:
    """Ask for one song. Raises LookupFailed, also if there is no such track or look-ups are not configured."""
    config = settings().lookup
    if not config.key:
        raise LookupFailed(gettext('look-ups need the API key of the reseller; set key = "env:NAME" in [music.lookup]'))
    async with hook.transaction() as tx:
        row = await tx.fetchrow(SQL["claim_named"], task_id)
    if row is None:
        raise LookupFailed(gettext("there is no track %(task)r; see `boathook music tracks list`", task=task_id[:100]))
    return await _ask_for(task_id, row["asks"], config)


async def _ask_for(task_id: str, asks: int, config: LookupSettings) -> Result:
    try:
        body = await fetch(_PATH + quote(task_id, safe=""), config)
        callback = read_record(body, task_id, max_clips=settings().max_clips)
    except LookupFailed as error:
        lookups_total.add(result="failed")
        hook.log.warning("music_lookup_failed", task_id=task_id, asks=asks, error=str(error))
        async with hook.transaction() as tx:
            await tx.execute(SQL["mark_ask_failed"], task_id, str(error)[:500])
        raise
    result: Result = "unchanged"
    if callback is not None:
        async with hook.transaction() as tx:
            if await tracks.take_record(tx, callback, name=f"record-info:{task_id}:{asks}"):
                result = "applied"
    lookups_total.add(result=result)
    return result


async def fetch(path: str, config: LookupSettings) -> bytes:
    """Return the response of the reseller's API to a GET. Raises LookupFailed."""
    try:
        response = await hook.http.request(
            "GET",
            config.url.rstrip("/") + path,
            headers={"authorization": f"Bearer {hook.resolve(config.key, 'lookup.key')}", "accept": "application/json"},
            timeout_s=config.timeout_s,
            max_bytes=MAX_BYTES,
        )
    except BoathookError as error:
        raise LookupFailed(str(error), concerns_all=True) from None
    if response.status != 200:
        problem = gettext("the response has the status %(status)d", status=response.status)
        raise LookupFailed(problem, concerns_all=_concerns_all(response.status))
    return bytes(response.body)


def _concerns_all(code: int) -> bool:
    return code in _ABOUT_ALL or code >= 500
