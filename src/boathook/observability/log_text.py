"""Renders log lines as text for a terminal: attempts and requests as sentences, other lines with their fields."""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

_encode = json.JSONEncoder(ensure_ascii=True, default=str).encode

_RED, _GREEN, _YELLOW, _DIM = 31, 32, 33, 2
_COLORS: Final = {
    "ok": _GREEN,
    "ignored": _YELLOW,
    "failed": _RED,
    "dead": _RED,
    "refused": _RED,
    "conflict": _YELLOW,
    "no handler": _YELLOW,
    "debug": _DIM,
    "warning": _YELLOW,
    "error": _RED,
}
"""ANSI colour by result or level."""
_ATTEMPTS: Final = frozenset({"attempt_ended", "attempt_failed", "sent", "send_failed"})
_RESULTS: Final = {"succeeded": "ok", "retry": "failed"}
"""Results whose outcome has another name in the log."""


def render_text(fields: Mapping[str, Any], *, is_colored: bool = False) -> str:
    """Return a log line as text; only a traceback takes more lines, which are indented.

    No field can add a line or a control character: texts with such characters are written as JSON.
    """
    head, word, tail = _sentence(fields)
    color = _COLORS.get(word.strip()) if is_colored else None
    lines = [f"{_local_time(str(fields['at']))} {head}{_paint(word, color)}{tail}".rstrip()]
    lines += [_paint(f"    {show(line)}", color) for line in str(fields.get("traceback") or "").splitlines()]
    return "\n".join(lines)


def _sentence(fields: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return a line's beginning, the word that is coloured, and the rest."""
    event = str(fields["event"])
    if event in _ATTEMPTS:
        outcome = str(fields.get("outcome"))
        return f"{_subject(fields)} -> {_recipient(fields)}  ", _RESULTS.get(outcome, outcome), _ending(fields)
    if event == "event_unhandled":
        return f"{_subject(fields)} -> ", "no handler", "  stored"
    if fields.get("part") == "ingest" and "status" in fields:
        detail = fields.get("event_id") or fields.get("reason") or ""
        return f"{_value(fields.get('source'))}  ", event, f"  {fields['status']}{_took(fields)}  {show(str(detail))}"
    left = ("at", "level", "event", "part", "traceback")
    shown = " ".join(f"{key}={_value(value)}" for key, value in fields.items() if key not in left)
    return "", f"{fields['level']!s:7}", f" {show(event)}  {shown}"


def _subject(fields: Mapping[str, Any]) -> str:
    """Return what was delivered: the source, if there is one, and the event's type."""
    return " ".join(_value(fields[key]) for key in ("source", "type") if fields.get(key)) or "message"


def _recipient(fields: Mapping[str, Any]) -> str:
    return _value(str(fields.get("recipient") or fields.get("endpoint")).removeprefix("handler:"))


def _ending(fields: Mapping[str, Any]) -> str:
    wait_s = fields.get("retry_in_s")
    again = "" if wait_s is None else f"  again in {wait_s:g} s"
    error = fields.get("error") or fields.get("code")
    return f"{_took(fields)}{again}{'' if error is None else f'  {show(str(error))}'}"


def _took(fields: Mapping[str, Any]) -> str:
    milliseconds = fields["ms"] if "ms" in fields else 1000 * fields["took_s"] if "took_s" in fields else None
    return "" if milliseconds is None else f"  {milliseconds:.{0 if milliseconds >= 10 else 1}f} ms"


def _local_time(at: str) -> str:
    return f"{datetime.fromisoformat(at).astimezone():%H:%M:%S}"


def _paint(text: str, color: int | None) -> str:
    return text if color is None else f"\x1b[{color}m{text}\x1b[0m"


def _value(value: Any) -> str:
    """Return a value as one word: quoted as JSON if it has spaces."""
    text = str(value)
    return text if text and text.isascii() and text.isprintable() and " " not in text else _encode(text)


def show(text: str) -> str:
    """Return a text as it is if it is printable ASCII, else with the escapes of JSON."""
    return text if text.isascii() and text.isprintable() else _encode(text)[1:-1]
