"""Writes log lines, as one JSON object each or as text; never bodies or secrets, with control characters escaped.

Text is for a terminal: attempts and requests are sentences, other lines show their fields.

Lines go through a bounded buffer and a dedicated thread. A slow or stopped reader of standard error loses lines, which
are counted, and never blocks the server.
"""

import atexit
import contextlib
import json
import logging
import math
import os
import re
import sys
import threading
import time
import traceback as tracebacks
from collections.abc import Mapping, MutableMapping
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final, Literal

import structlog

from boathook.observability import meters as emit

MAX_FIELD: Final = 500
"""Maximum characters of one field; a traceback may be twenty times as long."""
_MAX_WAITING: Final = 20_000
_PIPE_BUF: Final = 4_096
_LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_SENSITIVE_FIELD: Final = re.compile(r"secret|password|authorization|cookie|token|body|signature", re.IGNORECASE)
# The bounded length of the scheme keeps matching linear, even for a megabyte of text from a client.
_URL_PASSWORD: Final = re.compile(r"(\w{1,20}://[^\s/:@]*:)[^\s/@]+@")
_MAX_ELEMENTS: Final = 50
_MAX_INT: Final = 2**63

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

Fields = MutableMapping[str, Any]
Logger = structlog.typing.FilteringBoundLogger

_quote = json.JSONEncoder(ensure_ascii=True, default=str).encode
_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=True, default=str).encode


class LineWriter:
    """Writes lines to a file descriptor in its own thread; drops and counts them if it cannot."""

    def __init__(self, descriptor: int = 2) -> None:
        self._descriptor = descriptor
        self._lines: list[bytes] = []
        self._wake = threading.Event()
        self._is_writing = False
        self._thread: threading.Thread | None = None

    def write(self, line: bytes) -> None:
        """Queue one line, including its newline."""
        if len(self._lines) >= _MAX_WAITING:
            emit.count("boathook_log_lines_dropped_total")
            return
        self._lines.append(line)
        if len(self._lines) == 1:
            self._start_writing()

    def _start_writing(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="boathook-log", daemon=True)
            self._thread.start()
            atexit.register(self.flush)
        self._wake.set()

    def flush(self, timeout_s: float = 1.0) -> None:
        """Wait until all queued lines are written, for at most *timeout_s*."""
        deadline = time.monotonic() + timeout_s
        while (self._lines or self._is_writing) and time.monotonic() < deadline:
            time.sleep(0.005)

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            self._is_writing = True
            lines, self._lines = self._lines, []
            # If this fails, the reader has closed the pipe, and the lines are lost either way.
            with contextlib.suppress(OSError):
                self._put(b"".join(lines))
            self._is_writing = False
            time.sleep(0.02)

    def _put(self, data: bytes) -> None:
        # Writes of at most 4 KiB are atomic on a pipe, so lines of several processes do not mix.
        start = 0
        while start < len(data):
            end = data.rfind(b"\n", start, start + _PIPE_BUF) + 1 or data.find(b"\n", start) + 1
            start += os.write(self._descriptor, data[start:end])


_writer = LineWriter()


class _LineLogger:
    """The last step of structlog's chain: queues the rendered line."""

    def msg(self, line: str) -> None:
        _writer.write(line.encode("ascii", "backslashreplace") + b"\n")

    log = debug = info = warning = error = critical = exception = msg


def configure(
    level: str = "info", form: Literal["auto", "json", "text"] = "auto", *, is_guest: bool = False, **bound: Any
) -> None:
    """Configure logging for this process; *bound* fields, such as ``process="gateway-0"``, are added to every line.

    A guest in the process of another program leaves that program's `logging` alone, and its structlog if it uses one.
    """
    global _level, _bound
    if is_guest and structlog.is_configured() and structlog.get_config()["processors"][0] is not _add_bound:
        return
    is_terminal = sys.stderr.isatty()
    is_json = form == "json" or (form == "auto" and not is_terminal)
    render_plain = _render_colored if is_terminal and not os.environ.get("NO_COLOR") else _render_text
    _level, _bound = _LEVELS[level], bound
    structlog.configure(
        processors=[_add_bound, _add_traceback, _redact, _render_json if is_json else render_plain],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=lambda *_: _LineLogger(),
        cache_logger_on_first_use=False,
    )
    if not is_guest:
        logging.basicConfig(handlers=[_StdlibHandler()], level=max(_LEVELS[level], logging.WARNING), force=True)


_level = _LEVELS["warning"]
_bound: dict[str, Any] = {}


def get_logger(name: str) -> Logger:
    """Return a logger whose lines carry ``part=name``; its methods take an event and fields."""
    logger: Logger = structlog.get_logger(part=name)
    return logger


def is_on(level: str) -> bool:
    """Return whether lines of *level* are written, so that a hot path can skip preparing them."""
    return _LEVELS[level] >= _level


def is_text() -> bool:
    """Return whether lines are text for a terminal, not JSON."""
    return _render_json not in structlog.get_config()["processors"]


def flush() -> None:
    """Wait briefly until all lines are written; call it before os._exit."""
    _writer.flush()


class OnceFilter:
    """Lets a process log each subject once; when it is full, it forgets all, so that memory is bounded.

    Args:
        max_subjects: how many subjects are remembered.
    """

    def __init__(self, max_subjects: int) -> None:
        self._max_subjects = max_subjects
        self._logged: set[int] = set()

    def is_new(self, *subject: str) -> bool:
        """Return whether a subject, such as a cause and its recipient, is to be logged; remember it."""
        key = hash(subject)
        if key in self._logged:
            return False
        if len(self._logged) >= self._max_subjects:
            self._logged.clear()
        self._logged.add(key)
        return True


class RequestLog:
    """Writes request lines on the hot path, in the same format as other lines at a third of the cost."""

    def __init__(self, name: str) -> None:
        self._tail = "".join(f',"{key}":{_encode(value)}' for key, value in {"part": name, **_bound}.items())
        self._second = 0
        self._stamp = ""
        self._structured = structlog.get_logger(part=name)
        self._is_json = not is_text()

    def info(self, event: str, now: float, fields: dict[str, Any]) -> None:
        """Write *event* with *fields*; the caller caps their texts and removes secrets."""
        if not self._is_json:
            self._structured.info(event, **fields)
            return
        second = int(now)
        if second != self._second:
            self._second = second
            self._stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        head = f'{{"at":"{self._stamp}.{int((now - second) * 1000):03d}Z","level":"info","event":"{event}",'
        _writer.write(f"{head}{_encode(fields)[1:-1]}{self._tail}}}\n".encode("ascii"))


def _add_bound(_: Any, level: str, fields: Fields) -> Fields:
    now = datetime.now(UTC)
    head = {
        "at": f"{now:%Y-%m-%dT%H:%M:%S}.{now.microsecond // 1000:03d}Z",
        "level": level,
        "event": fields.pop("event"),
    }
    return {**head, **fields, **_bound}


def _add_traceback(_: Any, __: str, fields: Fields) -> Fields:
    error = fields.pop("exc_info", None)
    if error is True:
        error = sys.exc_info()[1]
    if isinstance(error, BaseException):
        fields["error"] = f"{type(error).__name__}: {_safe_str(error)}"
        fields["traceback"] = "".join(tracebacks.format_exception(error))
    return fields


def _redact(_: Any, __: str, fields: Fields) -> Fields:
    for key, value in fields.items():
        fields[key] = _redact_value(key, value, MAX_FIELD * 20 if key == "traceback" else MAX_FIELD)
    return fields


def _redact_value(key: str, value: Any, longest: int) -> Any:
    """Return *value* in a form that every format can write: bounded numbers and texts, also within lists and dicts."""
    match value:
        case float() if not math.isfinite(value):
            return str(value)  # JSON has no such numbers
        case int() if abs(value) > _MAX_INT:
            return "[a huge number]"
        case None | int() | float():
            return value
        case _ if _SENSITIVE_FIELD.search(key):
            return "[hidden]"
        case list() | tuple():
            return [_redact_text(_safe_str(element), longest) for element in value[:_MAX_ELEMENTS]]
        case dict():
            pairs = ((_safe_str(name), _safe_str(element)) for name, element in islice(value.items(), _MAX_ELEMENTS))
            return {_redact_text(name, longest): _redact_value(name, element, longest) for name, element in pairs}
        case _:
            return _redact_text(_safe_str(value), longest)


def _safe_str(value: object) -> str:
    """Return ``str(value)``; if that raises, as a user's exception may, return a placeholder."""
    try:
        return str(value)
    except Exception:  # noqa: BLE001 - a foreign class may raise anything
        return f"[a {type(value).__name__} that cannot be shown]"


def _redact_text(text: str, longest: int) -> str:
    if "://" in text:
        text = _URL_PASSWORD.sub(r"\1***@", text)
    return text if len(text) <= longest else f"{text[:longest]}… ({len(text)} characters)"


def _render_json(_: Any, __: str, fields: Fields) -> str:
    return _encode(dict(fields))


def _render_text(_: Any, __: str, fields: Fields) -> str:
    return render_text(fields)


def _render_colored(_: Any, __: str, fields: Fields) -> str:
    return render_text(fields, is_colored=True)


def render_text(fields: Mapping[str, Any], *, is_colored: bool = False) -> str:
    """Return a log line as text; only a traceback takes more lines, which are indented.

    No field can add a line or a control character: texts with such characters are written as JSON.
    """
    head, word, tail = _sentence(fields)
    color = _COLORS.get(word.strip()) if is_colored else None
    lines = [f"{_local_time(str(fields['at']))} {head}{_paint(word, color)}{tail}".rstrip()]
    lines += [_paint(f"    {_escape(line)}", color) for line in str(fields.get("traceback") or "").splitlines()]
    return "\n".join(lines)


def _sentence(fields: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return a line's beginning, the word that is coloured, and the rest."""
    event = str(fields["event"])
    if event in _ATTEMPTS:
        outcome = str(fields.get("outcome"))
        return f"{_subject(fields)} -> {_recipient(fields)}  ", _RESULTS.get(outcome, outcome), _ending(fields)
    if event == "event_unhandled":
        return f"{_subject(fields)} -> ", "no handler", "  stored"
    if event == "no_source_at_path":
        return f"{_value(fields['method'])} {_value(fields['path'])}  ", "refused", _not_found(fields)
    if fields.get("part") == "ingest" and "status" in fields:
        detail = _escape(str(fields.get("event_id") or fields.get("detail") or fields.get("reason") or ""))
        return f"{_value(fields.get('source'))}  ", event, f"  {fields['status']}{_took(fields)}  {detail}"
    printed_keys = ("at", "level", "event", "part", "traceback")
    rest = " ".join(f"{key}={_value(value)}" for key, value in fields.items() if key not in printed_keys)
    return "", f"{fields['level']!s:7}", f" {_escape(event)}  {rest}"


def _not_found(fields: Mapping[str, Any]) -> str:
    return f"  {fields.get('status', 404)}  {_escape(str(fields.get('detail') or 'no source has this path'))}"


def _subject(fields: Mapping[str, Any]) -> str:
    """Return what was delivered: the source, if there is one, and the event's type."""
    return " ".join(_value(fields[key]) for key in ("source", "type") if fields.get(key)) or "message"


def _recipient(fields: Mapping[str, Any]) -> str:
    return _value(str(fields.get("recipient") or fields.get("endpoint")).removeprefix("handler:"))


def _ending(fields: Mapping[str, Any]) -> str:
    wait_s = fields.get("retry_in_s")
    again = "" if wait_s is None else f"  again in {wait_s:g} s"
    error = fields.get("error") or fields.get("code")
    dependency = f"  ({_value(fields['dependency'])})" if fields.get("dependency") else ""
    return f"{_took(fields)}{again}{'' if error is None else f'  {_escape(str(error))}'}{dependency}"


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
    return text if text and text.isascii() and text.isprintable() and " " not in text else _quote(text)


def _escape(text: str) -> str:
    """Return a text as it is if it is printable ASCII, else with the escapes of JSON."""
    return text if text.isascii() and text.isprintable() else _quote(text)[1:-1]


class _StdlibHandler(logging.Handler):
    """Forwards log records of libraries from the standard library's logging."""

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        level = next(name for name, number in reversed(_LEVELS.items()) if number <= max(record.levelno, 10))
        getattr(structlog.get_logger(part=record.name), level)(_message(record), exc_info=error)


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # noqa: BLE001 - a record whose arguments do not match must not fail its caller
        return _safe_str(record.msg)


configure("warning", "text", is_guest=True)  # until the process configures logging; it may be a user's program
