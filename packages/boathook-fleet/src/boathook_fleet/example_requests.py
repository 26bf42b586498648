"""Varies the requests that senders document or send; those in ``examples`` are copies of `tests/reality`."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from boathook_app_tools.simulation import read_example, require_fields
from boathook_fleet.ruby import read_hash

_FOLDER: Final = Path(__file__).with_name("examples")


def vary(name: str, values: Mapping[str, Any], *, event: str | None = None) -> dict[str, Any]:
    """Return RentProg's example *name* with other values in its payload, which is encoded as in the example.

    Args:
        name: the file's name, without ``.json``.
        values: by field; the other fields are left out. A field that the example does not have is an error.
        event: another name for the event.
    """
    document = read(name)
    payload = document["payload"]
    fields = payload if isinstance(payload, dict) else _decoded(payload)
    require_fields(name, fields, values)
    overrides = {field: values[field] for field in fields if field in values}
    return {**document, "event": event or document["event"], "payload": _encoded_like(payload, overrides)}


def read(name: str) -> dict[str, Any]:
    """Return an example as it is."""
    return read_example(_FOLDER, name)


def _decoded(text: str) -> dict[str, Any]:
    if "=>" not in text:
        fields: dict[str, Any] = json.loads(text)
        return fields
    parsed = read_hash(text)
    assert parsed is not None, text
    return parsed


def _encoded_like(payload: Any, fields: dict[str, Any]) -> Any:
    if isinstance(payload, dict):
        return fields
    if "=>" in payload:
        return write_hash(fields)
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":"))


def write_hash(value: Any) -> str:
    """Format a value the way Ruby prints it."""
    match value:
        case None:
            return "nil"
        case Mapping():
            pairs = (f"{write_hash(str(key))}=>{write_hash(inner)}" for key, inner in value.items())
            return "{" + ", ".join(pairs) + "}"
        case list() | tuple():
            return "[" + ", ".join(map(write_hash, value)) + "]"
        case str():
            return json.dumps(value, ensure_ascii=False)
        case _:
            return json.dumps(value)
