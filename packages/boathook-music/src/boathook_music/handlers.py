"""Handles events: receives callbacks, and stores wanted files."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from boathook import HTTP_DEFAULTS, Breaker, ConfigError, Dead, Event, Ignore, Retry, RetryPolicy, Transaction
from boathook_app_tools.downloads import STORAGE, Download, DownloadFailed, StorageUnavailable, StoredFile, keep
from boathook_music import alerts, client_events, files, tracks
from boathook_music.app import (
    APPLICATION,
    SOURCE,
    callbacks_total,
    file_bytes_total,
    files_total,
    hook,
    incoming,
    settings,
    storage,
)
from boathook_music.callbacks import Callback, Stage, count_clips, read_callbacks
from boathook_music.files import FileRef
from boathook_music.kinds import FORMATS, Kind
from boathook_music.tracks import CallbackResult, Delivery

DAY_S: Final = 86_400.0
FILE_RETRY: Final = RetryPolicy(first_s=2, factor=4, max_delay_s=6 * 3_600, max_attempts=16, max_age_s=3 * DAY_S)
"""Files are retried for as long as their URLs are likely to work."""
MAX_S: Final = 900.0


@hook.on(SOURCE, "*", retry=RetryPolicy(max_attempts=12, max_delay_s=900, max_age_s=DAY_S))
async def receive(event: Event, tx: Transaction) -> Ignore | Dead | None:
    """Record a callback and apply it to its track, or keep it until the track exists; reply with the result.

    A callback whose stage is not known fails: a later version may read it when it is replayed.
    """
    kind = event.headers.get("x-webhook-event", "")
    callbacks = read_callbacks(event.json, kind=kind, max_clips=settings().max_clips)
    if not callbacks:
        event.reply({"ok": True, "status": "ignored"})
        return Ignore("it names no task")
    delivery = Delivery(event_id=event.id, delivery_id=event.dedup_key, received_at=event.accepted_at)
    if (listed := count_clips(event.json)) > settings().max_clips:
        hook.log.warning("music_clips_left_out", delivery=delivery.delivery_id, listed=listed, max=settings().max_clips)
    if any(callback.stage is Stage.UNKNOWN for callback in callbacks):
        return await _fail_unknown(delivery, callbacks)
    applied = _counted(await tracks.take(tx, delivery, callbacks))
    is_waiting = any(result.result == "waiting" for result in applied)
    results = [{"task_id": result.task_id, "stage": result.stage.value, "status": result.result} for result in applied]
    body = {"ok": True, "status": "waiting" if is_waiting else applied[0].result, "tracks": results}
    event.reply(body, status=202 if is_waiting else 200)
    return None


async def _fail_unknown(delivery: Delivery, callbacks: Sequence[Callback]) -> Dead:
    """Take those callbacks whose stage is known, in a transaction of their own: the handler's is rolled back."""
    readable = [callback for callback in callbacks if callback.stage is not Stage.UNKNOWN]
    unknown = [callback for callback in callbacks if callback.stage is Stage.UNKNOWN]
    async with hook.transaction() as tx:
        _counted(await tracks.take(tx, delivery, readable))
        await alerts.fire_unknown_stage(tx)
    callbacks_total.add(len(unknown), stage=Stage.UNKNOWN, result="failed")
    tasks = [callback.task_id for callback in unknown]
    hook.log.warning("music_stage_unknown", delivery=delivery.delivery_id, stage=unknown[0].word, tasks=tasks)
    stages = ", ".join(stage.value for stage in Stage if stage is not Stage.UNKNOWN)
    problem = f"{unknown[0].word[:100]!r} is none of the stages" if unknown[0].word else "it names none of the stages"
    return Dead("UNKNOWN_STAGE", f"{problem} {stages}; the track {tasks[0][:100]} is unchanged")


def _counted(results: list[CallbackResult]) -> list[CallbackResult]:
    for callback in results:
        callbacks_total.add(stage=callback.stage, result=callback.result)
    return results


@hook.on(
    None,
    files.WANTED,
    application=APPLICATION,
    retry=FILE_RETRY,
    timeout=MAX_S,
    retry_on=(*HTTP_DEFAULTS, StorageUnavailable, ConfigError),
    breaker=Breaker(dependency=STORAGE, errors=(StorageUnavailable,)),
    # A limit, so that slow servers cannot occupy all worker slots and delay callbacks.
    concurrency=lambda: settings().files_at_once,
)
async def store(event: Event, tx: Transaction) -> Ignore | Retry | Dead | None:
    """Fetch a wanted file, put it into storage, and record that."""
    request = event.json
    ref = FileRef(**{**request, "kind": Kind(request["kind"])})
    source = await files.find(tx, ref)
    if source is None:
        return Ignore("the file is no longer needed")
    try:
        file = StoredFile(**await event.once("put", _keep, ref.kind, *source))
    except DownloadFailed as error:
        return await _download_failed(event, ref, error)
    # The lock of its track first: two transactions that store its last two files do not see each other's.
    await tracks.lock(tx, ref.task_id)
    if not await files.mark_stored(tx, ref, file):
        return Ignore("the file is no longer needed")
    await client_events.announce(tx, ref.task_id)
    files_total.add(kind=ref.kind, result="stored")
    file_bytes_total.add(file.size, kind=ref.kind)
    return None


async def _keep(kind: Kind, url: str, stem: str) -> dict[str, Any]:
    config = settings()
    work = Download(
        url=url,
        stem=stem,
        kind=kind,
        formats=FORMATS[kind],
        max_bytes=config.max_audio if kind is Kind.AUDIO else config.max_cover,
        timeout_s=config.download_timeout_s,
        incoming=incoming(),
        http=hook.http,
        storage=storage(),
    )
    return asdict(await keep(work))


async def _download_failed(event: Event, ref: FileRef, error: DownloadFailed) -> Retry | Dead:
    """Record the failure in a separate transaction, because the handler's is rolled back."""
    is_final = error.is_final or event.attempt >= FILE_RETRY.max_attempts
    async with hook.transaction() as tx:
        await tracks.lock(tx, ref.task_id)
        await files.mark_failed(tx, ref, is_final=is_final, code=error.code, error=str(error))
        await client_events.announce(tx, ref.task_id)
    files_total.add(kind=ref.kind, result="failed" if is_final else "retrying")
    hook.log.warning("music_file_not_kept", **asdict(ref), code=error.code, error=str(error), is_final=is_final)
    if error.is_final:
        return Dead(error.code, str(error), error.dependency)
    if isinstance(error, StorageUnavailable):  # which the breaker counts
        raise error
    return Retry(code=error.code, dependency=error.dependency)
