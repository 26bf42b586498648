"""One log record is one line: no text of senders, handlers or receivers can forge, colour or stretch a record.

The corpus goes through every part of a real boathook that says something of what it was given: ids and types of
events, headers, paths, what handlers raise, return and log, and what endpoints answer.
"""

import contextlib
import json
import re
import socket
import subprocess
import sys
import textwrap
import threading
import urllib.parse
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import boathook
from tests.acceptance.conftest import BoathookProcess, payload, signed
from tests.acceptance.svix.server import OUTBOUND, ROLES, Application, BoathookServer, open_database, wait_for_api
from tests.support import until

MARK = "FORGED"
RECORD = '{"at":"2026-01-01T00:00:00.000Z","level":"error","event":"FORGED","part":"worker"}'
CORPUS: dict[str, str] = {
    "a record behind a newline": f"x\n{RECORD}\n",
    "a line of text behind CR LF": f"x\r\n12:00:00.000 error   {MARK}  part=worker",
    "a lone CR": f"x\r12:00:00.000 error   {MARK}",
    "an end of the string": f'x","event":"{MARK}","y":"',
    "a backslash before the end": f'x\\","event":"{MARK}","y":"\\',
    "a colour": f"\x1b[31m{MARK}\x1b[0m",
    "a title of the terminal": f"\x1b]0;{MARK}\x07",
    "a cursor that goes up": f"\x1b[1A\x1b[2K{MARK}",
    "an eight-bit escape": f"\x9b31m{MARK}\x9d0;x\x9c",
    "a line separator": f"x\u2028{RECORD}\u2029{RECORD}",
    "a next line": f"x\x85{RECORD}",
    "other separators": f"x\x0b{MARK}\x0c{MARK}\x1c{MARK}\x1d{MARK}\x1e{MARK}",
    "right to left": f"\u202e{MARK}\u2066\u200f",
    "nothing to be seen": f"\u200b\ufeff{MARK}\xad",
    "a NUL": f"x\x00{MARK}",
    "a delete": f"x\x7f\x08{MARK}",
    "half a character": f"\ud800{MARK}\udfff",
    "holes": f"%s%n{{0}}{{event}}$(id)`id`{MARK}",
    "an address with a password": "postgresql://shop:geheim@db/x FORGED",
    "far too long": "y" * 1_000_000,
    "a long word before an address": "y" * 500_000 + "://",
    "many lines": f"{MARK}\n" * 20_000,
}
UNSTORABLE = 2
"""How many of them PostgreSQL has no text for."""
MAX_LENGTH = 64_000
"""Bytes of the longest line: a traceback of 10,000 characters, each written as at most six."""
# Every event the code logs, so that a busy machine's lines count as known and a forged one does not.
EVENTS = {"accepted", "duplicate", "conflict", "refused"} | {
    name
    for module in Path(boathook.__file__).parent.rglob("*.py")
    for name in re.findall(
        r'(?:\.(?:debug|info|warning|error|exception)\(\s*|_EVENT = )"([a-z_]+)"', module.read_text("utf-8")
    )
}

SHOP = """
import logging
from boathook import Boathook, Dead, Event, Ignore, RetryPolicy, Transaction

hook = Boathook()
ONCE = RetryPolicy(first_s=0.05, max_attempts=1)

class Evil(Exception):
    def __str__(self):
        raise RuntimeError("FORGED")

@hook.on("stripe", "raise.*", retry=ONCE)
async def raises(event: Event) -> None:
    text = event.json["text"]
    error = type(text.replace("\\x00", "")[:200], (RuntimeError,), {})(text)
    error.add_note(text[:2000]) if "\\ud800" not in text else None
    raise error from ValueError(text)

@hook.on("stripe", "dead.*", retry=ONCE)
async def dies(event: Event) -> Dead:
    return Dead(event.json["text"], event.json["text"])

@hook.on("stripe", "ignore.*", retry=ONCE)
def ignores(event: Event) -> Ignore:
    return Ignore(event.json["text"])

@hook.on("stripe", "log.*", retry=ONCE)
def logs(event: Event) -> None:
    logging.getLogger(event.json["text"][:300]).warning("%s", event.json["text"])
    logging.getLogger("shop").warning("%s and %s", event.json["text"])

@hook.on("stripe", "sql.*", retry=ONCE)
async def stores(event: Event, tx: Transaction) -> None:
    await tx.execute("insert into shop.started (event_key) values ($1)", event.json["text"])

@hook.on("stripe", "evil.*", retry=ONCE)
async def evil(event: Event) -> None:
    raise Evil

async def page(scope, receive, send):
    if scope["type"] == "http":
        raise RuntimeError(scope["path"] + "\\n" + str(scope["headers"]))

hook.mount("/yard", page, is_open=True)
"""


class HostileReceiver:
    """A receiver whose status lines and bodies are the corpus."""

    def __init__(self) -> None:
        self._bound = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._bound.getsockname()[1]}/"
        self._texts = [text[:2000].replace("\r", "").replace("\n", "") for text in CORPUS.values()]
        self.served = 0
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._bound.accept()
                with client, contextlib.suppress(OSError):
                    client.settimeout(5)
                    client.recv(65_536)
                    raw = self._texts[self.served % len(self._texts)].encode("utf-8", "surrogatepass")
                    self.served += 1
                    client.sendall(b"HTTP/1.1 500 %b\r\nx-text: %b\r\nconnection: close\r\n\r\n%b" % (raw, raw, raw))

    def close(self) -> None:
        self._bound.close()


def serve(folder: Path, url: str, form: str) -> BoathookProcess:
    running = BoathookProcess(folder, url, roles=ROLES, extra=OUTBOUND.replace('"json"', f'"{form}"'), senders=1)
    (folder / "shop.py").write_text(textwrap.dedent(SHOP))
    return running


def drive(server: BoathookServer, hostile: HostileReceiver) -> Counter[str]:
    """Send the corpus everywhere; return how many lines of each word that must make."""
    running = server.running
    kinds = ("raise", "dead", "ignore", "log", "sql", "evil")
    with httpx.Client(base_url=running.base, timeout=300) as client:
        for name, text in CORPUS.items():
            for kind in kinds:
                body, headers = signed(payload(f"{kind} {name}", f"{kind}.{text[:5000]}", text=text[:1_000_000]))
                assert client.post("/in/stripe", content=body, headers=headers).status_code == 200
            body, headers = signed(payload(text[:900_000], f"other.{name}"))
            assert client.post("/in/stripe", content=body, headers=headers).status_code == 200
            shown = urllib.parse.quote(text[:500].encode("utf-8", "surrogatepass"))
            printable = re.sub(r"[^\x20-\x7e\x80-\xff]", "?", text[:500]).strip().encode("latin-1", "replace")
            assert client.get(f"/yard/{shown}", headers={"x-text": printable}).status_code in {400, 404, 500}
            forgery = {"stripe-signature": printable, "content-type": printable, "user-agent": printable}
            assert client.post(f"/in/stripe?{shown}", content=text[:5000].encode("utf-8", "replace"), headers=forgery).status_code == 401  # fmt: skip
            assert client.get(f"/in/{shown or 'x'}").status_code in {400, 404, 405}
        application = Application(server.api)
        application.endpoint(hostile.url, retrySchedule=[])
        for _ in CORPUS:
            application.send()
    until(lambda: hostile.served >= len(CORPUS))
    ends = "select count(*) from boathook.delivery where state = 'dead' union all select count(*) from boathook.delivery_archive"
    until(
        lambda: [n for (n,) in server.query(ends)] == [4 * len(CORPUS) + UNSTORABLE, 3 * len(CORPUS) - UNSTORABLE],
        timeout=300,
    )
    assert running.stop() == 0
    return Counter(
        {
            "accepted": 7 * len(CORPUS),
            "attempt_failed": 3 * len(CORPUS) + UNSTORABLE,
            "attempt_ended": 3 * len(CORPUS) - UNSTORABLE,
            "send_failed": len(CORPUS),
            "refused": len(CORPUS),
        }
    )


def faults_of_json(log: bytes, expected: Counter[str]) -> list[str]:
    """Return the faults of a log in JSON format."""
    found, seen = [], Counter[str]()
    for line in log.split(b"\n")[:-1]:
        if len(line) > MAX_LENGTH or re.search(rb"[^\x20-\x7e]", line):
            found.append(f"not plain: {line[:100]!r}")
        record = json.loads(line)
        seen[record["event"]] += 1
        if record["part"] in {"worker", "ingest", "http", "sender", "server"} and record["event"] not in EVENTS:
            found.append(f"odd: {record['event'][:100]}")
        if b"geheim" in line and record["part"] not in {
            "ingest",
            "http",
        }:  # a dedup key is shown as its sender has written it
            found.append("a password")
    return found + [f"{word}: {seen[word]} lines, not {n}" for word, n in expected.items() if seen[word] != n]


HEADS = [
    re.compile(rb"\d\d:\d\d:\d\d " + rest)
    for rest in (
        rb"(?:debug  |info   |warning|error  ) (?P<word>\S+)",
        rb"\S+  (?P<word>accepted|refused|duplicate|conflict)  \d{3}  ",
        rb"(?P<request>[A-Z]+ \S+)  refused  \d{3}  ",
        rb"\S.*? -> (?P<recipient>\S+)  (?P<result>ok|ignored|failed|dead)  ",
    )
]


def word_of_text(line: bytes) -> str | None:
    """Return the event of a line in text format; None for a line that begins no record."""
    head = next((found.groupdict() for found in (head.match(line) for head in HEADS) if found), None)
    if head is None:
        return None
    if "word" in head:
        return head["word"].decode()
    if "request" in head:
        return "no_source_at_path"
    kind = ("sent", "send_failed") if head["recipient"].startswith(b"ep_") else ("attempt_ended", "attempt_failed")
    return kind[head["result"] in {b"failed", b"dead"}]


def faults_of_text(log: bytes, expected: Counter[str]) -> list[str]:
    """Return the faults of a log in text format, where indented lines belong to the record above."""
    found, seen = [], Counter[str]()
    for line in log.split(b"\n")[:-1]:
        if len(line) > MAX_LENGTH or re.search(rb"[^\x20-\x7e]", line):
            found.append(f"not plain: {line[:100]!r}")
        word = word_of_text(line)
        if word is None and not line.startswith(b"    "):
            found.append(f"no record: {line[:100]!r}")
        elif word is not None:
            seen[word] += 1
        if b"geheim" in line and b" accepted " not in line:
            found.append("a password")
    return found + [f"{word}: {seen[word]} lines, not {n}" for word, n in expected.items() if seen[word] != n]


JUDGES = {"json": faults_of_json, "text": faults_of_text}


@pytest.fixture
def hostile() -> Iterator[HostileReceiver]:
    receiver = HostileReceiver()
    yield receiver
    receiver.close()


@pytest.mark.parametrize(
    "form", ["json", pytest.param("text", marks=pytest.mark.extended("differs in the form of its lines only"))]
)
def test_one_input_is_one_line(form: str, admin_url: str, pg_template: str, tmp_path: Path, hostile: HostileReceiver):
    with open_database(admin_url, pg_template) as url:
        running = serve(tmp_path, url, form)
        try:
            wait_for_api(running.start())
            expected = drive(BoathookServer(running), hostile)
        finally:
            running.kill_all()
    log = (tmp_path / "serve.log").read_bytes()
    assert len(log) > 10_000
    assert JUDGES[form](log, expected) == []
    assert log.count(MARK.encode()) > len(CORPUS), "what was written is to be read there, only harmlessly"


TELL = """
import json, sys
from boathook.observability import log
texts, form, mutant = json.load(sys.stdin), sys.argv[1], sys.argv[2]
log.configure("info", form, process="p")
if mutant == "raw":
    log._escape = log._value = str
    log._encode = lambda fields: json.dumps(fields, ensure_ascii=False, default=str).replace("\\\\n", "\\n")
if mutant == "whole":
    log._redact_text = lambda text, longest: text
tell = log.get_logger("test")
for text in texts:
    tell.info("seen", path=text, many=[text], named={text: text}, error=ValueError(text), raw=text.encode("utf-8", "replace"))
log._writer.flush(20)
"""


def told(form: str, mutant: str = "") -> bytes:
    done = subprocess.run(
        [sys.executable, "-c", TELL, form, mutant],
        input=json.dumps(list(CORPUS.values())).encode(),
        capture_output=True,
        timeout=300,
        check=True,
    )
    return done.stderr


@pytest.mark.parametrize("form", ["json", "text"])
def test_every_kind_of_value_is_made_harmless(form: str):
    assert JUDGES[form](told(form), Counter(seen=len(CORPUS))) == []


@pytest.mark.extended("the mutant of a test that stays: it shows that the test can fail")
@pytest.mark.parametrize("mutant", ["raw", "whole"])
@pytest.mark.parametrize("form", ["json", "text"])
def test_mutant_without_escapes_or_caps_a_violation_is_detected(form: str, mutant: str):
    try:
        found = JUDGES[form](told(form, mutant), Counter(seen=len(CORPUS)))
    except ValueError:
        return  # no JSON any more
    assert found != []
