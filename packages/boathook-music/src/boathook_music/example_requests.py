"""Varies the callbacks that resellers document; those in ``examples`` are copies of `tests/reality`."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from boathook_app_tools.simulation import read_example, require_fields

_FOLDER: Final = Path(__file__).with_name("examples")


def vary(name: str, task_id: str, *, code: int | None = None, clips: Sequence[Mapping[str, Any]] = ()) -> bytes:
    """Return the example *name* about another task.

    Args:
        name: the file's name, without ``.json``.
        task_id: replaces the example's.
        code: replaces the example's.
        clips: each replaces fields of a song of the example. A field that the song does not have is an error.
    """
    document = read_example(_FOLDER, name)
    holder = document.get("data", document)
    (key,) = holder.keys() & {"task_id", "taskId"}
    holder[key] = task_id
    if code is not None:
        document["code"] = code
    songs = holder.get("data") or []
    for song, values in zip(songs, clips, strict=False):
        require_fields(f"a song of {name}", song, values)
        song.update(values)
    return json.dumps(document).encode()
