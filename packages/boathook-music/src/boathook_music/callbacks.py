"""Parses callbacks of all resellers into one format."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from typing import Any, Final

import msgspec

MAX_ID: Final = 200
MAX_URL: Final = 2_000
_MAX_TEXT: Final = 500
_TASK_KEYS: Final = ("task_id", "taskId")
_STAGE_KEYS: Final = ("callbackType", "stage", "status", "state")
_OWN_STAGE_KEYS: Final = ("callbackType", "stage", "status")
"""Those at the top level; the recipe of the source reads the same fields in the same order."""
_CLIP_LISTS: Final = ("data", "response.sunoData", "sunoData", "clips")
_AUDIO_KEYS: Final = ("audio_url", "audioUrl", "source_audio_url", "sourceAudioUrl")
_COVER_KEYS: Final = ("image_url", "imageUrl", "source_image_url", "sourceImageUrl", "image_large_url")


class Stage(StrEnum):
    """The stage of a song, as a callback reports it."""

    TEXT = "text"
    FIRST = "first"
    COMPLETE = "complete"
    ERROR = "error"
    UNKNOWN = "unknown"


_WORDS: Final = {
    "text": Stage.TEXT,
    "text_success": Stage.TEXT,
    "first": Stage.FIRST,
    "first_success": Stage.FIRST,
    "complete": Stage.COMPLETE,
    "completed": Stage.COMPLETE,
    "success": Stage.COMPLETE,
    "succeeded": Stage.COMPLETE,
    "error": Stage.ERROR,
    "fail": Stage.ERROR,
    "failed": Stage.ERROR,
}


class Clip(msgspec.Struct, frozen=True, kw_only=True):
    """One of the songs of a task."""

    id: str
    title: str = ""
    duration_s: Decimal | None = None
    audio_url: str | None = None
    cover_url: str | None = None


def encode_clips(clips: Sequence[Clip]) -> str:
    """Return clips as JSON, for `decode_clips`."""
    return msgspec.json.encode(clips).decode()


def decode_clips(text: str) -> tuple[Clip, ...]:
    """Return the clips from the JSON of `encode_clips`."""
    return msgspec.json.decode(text, type=tuple[Clip, ...])


@dataclass(frozen=True, slots=True, kw_only=True)
class Callback:
    """The content of a callback about one task."""

    task_id: str
    stage: Stage
    code: int | None = None
    """The reseller's own code, similar to an HTTP status: 400 and above are errors."""
    word: str = field(default="", compare=False)
    """The reseller's own word for the stage; empty if there is none."""
    message: str = ""
    clips: tuple[Clip, ...] = ()


def read_callbacks(document: object, *, kind: str = "", max_clips: int = 20) -> tuple[Callback, ...]:
    """Return the callbacks in a body, one per task; empty if it names none. Never raises.

    Bodies of kie.ai and similar resellers name one task. Those of musicapi.ai and sunoapi.com list clips, each of which
    is a separate task. *kind* is the event type from a header, such as ``song.completed``.
    """
    if not isinstance(document, Mapping):
        return ()
    data = document.get("data")
    inner = data if isinstance(data, Mapping) else {}
    task_id = next((id for holder in (inner, document) for key in _TASK_KEYS if (id := read_id(holder.get(key)))), "")
    code, message = read_code(document.get("code")), _message(document, inner)
    if not task_id:
        return tuple(_by_clip(data, code, message, kind, max_clips))
    words = [*_words(inner, _STAGE_KEYS), *_words(document, _OWN_STAGE_KEYS), *filter(None, [kind])]
    return (
        Callback(
            task_id=task_id,
            stage=_stage(code, words),
            word=next(iter(words), ""),
            code=code,
            message=message,
            clips=read_clips(inner or document)[:max_clips],
        ),
    )


def read_clips(holder: Mapping[str, Any]) -> tuple[Clip, ...]:
    """Return the songs in a callback's ``data``, each once."""
    clips: dict[str, Clip] = {}
    for _, clip in _clips(holder):
        clips.setdefault(clip.id, clip)
    return tuple(clips.values())


def _message(document: Mapping[str, Any], inner: Mapping[str, Any]) -> str:
    texts = (document.get("msg"), document.get("message"), inner.get("msg"), inner.get("error"), document.get("error"))
    return next(filter(None, map(read_text, texts)), "")


def _words(holder: Mapping[str, Any], keys: tuple[str, ...]) -> list[str]:
    return [word for key in keys if (word := read_text(holder.get(key)))]


def count_clips(document: object) -> int:
    """Return the number of clips in a body, without the limit."""
    if not isinstance(document, Mapping):
        return 0
    data = document.get("data")
    holder = data if isinstance(data, Mapping) and data else document
    return len({clip.id for _, clip in _clips(holder)})


def read_id(value: object) -> str:
    """Return a normalized id, or an empty text if it is invalid."""
    text = _clean(str(value)) if isinstance(value, str | int) and not isinstance(value, bool) else ""
    return text if text.isprintable() and 0 < len(text) <= MAX_ID else ""


def _by_clip(data: object, code: int | None, message: str, kind: str, limit: int) -> Iterator[Callback]:
    seen: set[str] = set()
    for raw, clip in _clips({"data": data}):
        task_id = read_id(raw.get("task_id") or raw.get("taskId")) or read_id(raw.get("clip_id") or raw.get("id"))
        if not task_id or task_id in seen or len(seen) >= limit:
            continue
        seen.add(task_id)
        words = [*_words(raw, ("state", "status")), *filter(None, [kind])]
        yield Callback(
            task_id=task_id,
            stage=_stage(code, words),
            word=next(iter(words), ""),
            code=code,
            message=message,
            clips=(clip,),
        )


def _clips(holder: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], Clip]]:
    for path in _CLIP_LISTS:
        value: Any = holder
        for part in path.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if isinstance(value, list):
            yield from ((raw, _clip(raw, number)) for number, raw in enumerate(value, 1) if isinstance(raw, Mapping))
            return


def _clip(raw: Mapping[str, Any], number: int) -> Clip:
    return Clip(
        id=read_id(raw.get("id") or raw.get("clip_id") or raw.get("clipId")) or f"clip-{number}",
        title=read_text(raw.get("title")),
        duration_s=_seconds(raw.get("duration")),
        audio_url=_first_url(raw, _AUDIO_KEYS),
        cover_url=_first_url(raw, _COVER_KEYS),
    )


def _stage(code: int | None, words: Sequence[str]) -> Stage:
    """Return the stage that the first of *words* names, or ERROR if the code or any of them says so."""
    stages = list(map(stage_of, words))
    if (code is not None and code >= 400) or Stage.ERROR in stages:
        return Stage.ERROR
    return stages[0] if stages else Stage.UNKNOWN


def stage_of(word: str) -> Stage:
    """Return the stage that a reseller's word means."""
    # musicapi.ai writes song.completed; others write complete.
    text = word.lower().removeprefix("song.")
    return _WORDS.get(text, Stage.ERROR if text.endswith(("_failed", "_error")) else Stage.UNKNOWN)


def read_code(value: object) -> int | None:
    """Return a code as a number, or None if it is none."""
    if isinstance(value, bool):
        return None
    text = str(value) if isinstance(value, int | str) else ""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 9 else None


def read_text(value: object) -> str:
    """Return a text that PostgreSQL can store, shortened; empty for other values."""
    return _clean(value)[:_MAX_TEXT] if isinstance(value, str) else ""


def _seconds(value: object) -> Decimal | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        seconds = Decimal(str(value))
    except InvalidOperation:
        return None
    # By the value's own method: math.isfinite raises ValueError for a signaling NaN.
    return round(seconds, 3) if seconds.is_finite() and 0 <= seconds < 1_000_000 else None


def _first_url(raw: Mapping[str, Any], keys: tuple[str, ...]) -> str | None:
    return next((url for key in keys if _is_url(url := raw.get(key))), None)


def _is_url(value: object) -> bool:
    is_text = isinstance(value, str) and len(value) <= MAX_URL and value.isprintable()
    return is_text and str(value).startswith(("http://", "https://"))


def _clean(text: str) -> str:
    # PostgreSQL stores neither NUL nor lone surrogates.
    return text.replace("\x00", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode().strip()
