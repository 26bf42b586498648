"""Log lines as text: one sentence each, and no field can forge a line."""

import io
import re
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boathook.observability import log
from boathook.observability.log import render_text

HANDLER = {
    "recipient": "handler:record_payment",
    "source": "stripe",
    "type": "payment_intent.succeeded",
    "part": "worker",
}
LINES = [
    (
        {"event": "attempt_ended", **HANDLER, "outcome": "succeeded", "took_s": 0.0123},
        "stripe payment_intent.succeeded -> record_payment  ok  12 ms",
    ),
    (
        {"event": "attempt_ended", **HANDLER, "outcome": "ignored", "took_s": 0.0012},
        "stripe payment_intent.succeeded -> record_payment  ignored  1.2 ms",
    ),
    (
        {
            "event": "attempt_failed", **HANDLER, "outcome": "retry", "took_s": 0.02, "retry_in_s": 4.0, "code": "KeyError",
            "error": "KeyError: 'customer'", "traceback": 'Traceback:\n  File "hooks.py", line 3\n',
        },
        ("stripe payment_intent.succeeded -> record_payment  failed  20 ms  again in 4 s  KeyError: 'customer'\n"
        '    Traceback:\n      File "hooks.py", line 3'),
    ),
    (
        {"event": "attempt_failed", **HANDLER, "outcome": "dead", "took_s": 2.0, "code": "GONE", "error": None},
        "stripe payment_intent.succeeded -> record_payment  dead  2000 ms  GONE",
    ),
    ({"event": "sent", "endpoint": "ep_1", "outcome": "succeeded", "took_s": 0.01}, "message -> ep_1  ok  10 ms"),
    ({"event": "event_unhandled", "source": "stripe", "type": "a.b"}, "stripe a.b -> no handler  stored"),
    (
        {"event": "refused", "part": "ingest", "source": "stripe", "status": 401, "reason": "signature_wrong", "ms": 0.41},
        "stripe  refused  401  0.4 ms  signature_wrong",
    ),
    (
        {"event": "no_source_at_path", "part": "ingest", "method": "POST", "path": "/in/strip"},
        "POST /in/strip  refused  404  no source has this path",
    ),
    (
        {
            "event": "no_source_at_path", "part": "ingest", "method": "POST", "path": "/in/Stripe", "status": 404,
            "detail": "no source has this path; upper case; did you mean /in/stripe",
        },
        "POST /in/Stripe  refused  404  no source has this path; upper case; did you mean /in/stripe",
    ),
    (
        {
            "event": "refused", "part": "ingest", "source": "stripe", "status": 413, "reason": "body_too_large", "ms": 0.41,
            "detail": "the body has 2,000,000 bytes; max_body is 1 MiB (limits.max_body)",
        },
        "stripe  refused  413  0.4 ms  the body has 2,000,000 bytes; max_body is 1 MiB (limits.max_body)",
    ),
    (
        {"event": "accepted", "part": "ingest", "source": "stripe", "status": 200, "event_id": "evt_1", "ms": 3},
        "stripe  accepted  200  3.0 ms  evt_1",
    ),
    (
        {"level": "warning", "event": "child_ended", "part": "server", "child": "worker-0", "how": "signal SIGKILL"},
        'warning child_ended  child=worker-0 how="signal SIGKILL"',
    ),
]  # fmt: skip


def line(**fields: object) -> dict[str, object]:
    return {"at": "2026-01-31T12:01:03.250Z", "level": "info", **fields}


@pytest.mark.parametrize(("fields", "text"), LINES, ids=[str(fields["event"]) for fields, _ in LINES])
def test_a_line_describes_the_operation(fields: dict[str, object], text: str):
    shown = render_text(line(**fields))
    assert re.match(r"\d\d:01:03 ", shown), "the local time"
    assert shown[9:] == text


def test_on_a_terminal_the_result_is_coloured():
    ended, failed = (render_text(line(**LINES[n][0]), is_colored=True) for n in (0, 2))
    assert "\x1b[32mok\x1b[0m" in ended
    assert failed.count("\x1b[31m") == 3, "the result, and each line of the traceback"


@given(st.text(), st.sampled_from(["attempt_ended", "event_unhandled", "accepted", "anything"]))
def test_no_field_adds_a_line_or_a_control_character(text: str, event: str):
    fields = {"source": text, "type": text, "recipient": text, "error": text, "outcome": "ok", "event_id": text}
    shown = render_text(line(event=event, part="ingest", status=200, **fields))
    assert shown.isascii()
    assert shown.isprintable()


@pytest.mark.parametrize(
    ("form", "is_terminal", "start"),
    [("auto", True, b"\\d\\d:"), ("auto", False, b"\\{"), ("json", True, b"\\{"), ("text", False, b"\\d\\d:")],
)
def test_the_form_suits_the_reader(form: str, is_terminal: bool, start: bytes, monkeypatch: pytest.MonkeyPatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal, raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(log._writer, "write", written.write)
    log.configure("info", form)
    log.get_logger("test").error("wrong", why="because")
    assert re.match(start, written.getvalue())
    assert (b"\x1b[31m" in written.getvalue()) == (is_terminal and form == "auto")
