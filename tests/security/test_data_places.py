"""Sender input cannot choose files, exhaust memory of others, or make a pattern slow.

Also absences: nothing executes code from data, and nothing changes the audit log.
"""

import ast
import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from uuid import UUID

import pytest

import boathook
from boathook.config import load
from boathook.config.loader import SOURCE_NAME
from boathook.domain.errors import BoathookError, ConfigError
from boathook.domain.filters import Pattern, Router
from boathook.domain.model import Accepted, NewEvent
from boathook.http.limits import RateLimiter
from boathook.ingest import handshake_secrets
from boathook.ingest import pipeline as ingest
from boathook.ingest.app import IngestApp
from boathook.ingest.event_builder import EventBuilder
from boathook.ingest.event_writer import ReceiptWaiter
from boathook.ingest.handshake_secrets import HandshakeSecrets
from boathook.ingest.pipeline import IngestPipeline
from boathook.ingest.reply_waiter import PendingReply, ReplyOutcome
from boathook.ingest.responses import Response, error_response
from boathook.ingest.sources import compile_sources
from boathook.service.sending import openapi_import
from tests.acceptance.conftest import payload, signed
from tests.support import too_dear

# Paths.

PIECES = (
    "../", "..\\", "%2e%2e%2f", "..%2f", "%2e%2e/", "..%c0%af", "..%252f", "....//", "/", "//", "~/", "./",
    "\x00", "%00", "\n", "CON", "NUL.txt", "C:\\", "file:", "\uff0e\uff0e/", "\u2025/", "..;/", "$(id)", "`id`", "|id",
)  # fmt: skip
NAMES = [
    *PIECES,
    *(f"{piece}etc/passwd" for piece in PIECES),
    *(f"{piece * 6}tmp/x" for piece in PIECES[:8]),
    *(f"shop{piece}" for piece in PIECES),
    "x" * 5_000, "." * 300, "..", ".", "", " ", "\ud800",
]  # fmt: skip


def escaped(folder: Path) -> list[str]:
    """Return the files outside the folder's dedicated subfolder."""
    return [
        str(file)
        for file in folder.rglob("*")
        if file.is_file() and file.parent != folder / "inner" / handshake_secrets.FOLDER
    ]


def save_all(folder: Path) -> None:
    inner = folder / "inner"
    inner.mkdir()
    for name in NAMES:
        try:
            HandshakeSecrets(inner).save(name, "secret_0123456789abcdef")
        except (OSError, ValueError, BoathookError):
            continue  # a name no file can have


def test_no_source_name_escapes_the_handshake_secrets_folder(tmp_path: Path):
    save_all(tmp_path)
    assert escaped(tmp_path) == []
    assert len(list((tmp_path / "inner" / handshake_secrets.FOLDER).iterdir())) > 50


def test_mutant_with_unquoted_names_files_escape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(handshake_secrets, "quote", lambda name, safe: name)
    save_all(tmp_path)
    assert escaped(tmp_path) != []


@pytest.mark.parametrize("name", [name for name in NAMES if name.isprintable()], ids=ascii)
def test_a_source_cannot_have_a_name_that_is_a_path(name: str, tmp_path: Path):
    file = tmp_path / "boathook.toml"
    file.write_text(f"[sources.{json.dumps(name)}]\nprovider = 'stripe'\nsecrets = ['x']\n")
    if SOURCE_NAME.fullmatch(name):
        assert "/" not in name
        assert "\\" not in name
        return
    with pytest.raises(ConfigError, match="invalid source name"):
        load(file)


# Patterns.

SUBJECTS = {
    "one letter": "a" * 1_000_000,
    "and another at the end": "a" * 999_999 + "!",
    "dots": "a." * 500_000,
    "only dots": "." * 1_000_000,
}
PATTERNS = (
    "*", "*.*", "a*", "*a", "*a*a*a*a*a*b", "*.a*.*.a*.*.a*.*b", "**", "*" * 50 + "b", "a*" * 60 + "b", "*a.a*" * 40,
    "(a+)+$", "(a|a)*b", "([a-zA-Z]+)*!", "a?" * 30, "*[a-z]*[a-z]*!",
)  # fmt: skip
MAX = 60
"""Times the unit of `too_dear`, half a millisecond or so; a pattern that runs back would take hours."""


@pytest.mark.parametrize("subject", SUBJECTS)
def test_no_pattern_of_types_is_slow_on_a_megabyte(subject: str):
    text = SUBJECTS[subject]
    dear = {}
    for pattern in PATTERNS:
        if (cost := too_dear(partial(Pattern(pattern).matches, text), most=MAX)) is not None:
            dear[pattern] = cost
    assert dear == {}


@pytest.mark.extended("the mutant of a test that stays: it shows that the test can fail")
def test_mutant_as_a_regular_expression_a_pattern_takes_too_long():
    text = "a" * 2_000

    def run_back() -> None:
        re.fullmatch("a*" * 5 + "b", text[:85])

    assert too_dear(run_back, most=MAX) is not None


# Deserialisation.

SOURCE = Path(boathook.__file__).parent
FORBIDDEN = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "jsonpickle", "yaml"}
CALLS = {"eval", "exec", "compile", "__import__"}


def dangers(text: str) -> Iterator[str]:
    """Yield what in a module's text runs code out of data."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Import | ast.ImportFrom | ast.Call | ast.keyword):
            continue  # quickly: a match of each pattern with each of a million nodes takes seconds
        match node:
            case ast.Import(names=names):
                yield from (name.name for name in names if name.name.partition(".")[0] in FORBIDDEN)
            case ast.ImportFrom(module=str(module)) if module.partition(".")[0] in FORBIDDEN:
                yield module
            case ast.Call(func=ast.Name(id=name)) if name in CALLS:
                yield f"{name}()"
            case ast.keyword(arg="shell", value=ast.Constant(value=True)):
                yield "shell=True"


def test_nothing_runs_code_out_of_data():
    found = {str(path.relative_to(SOURCE)): sorted(dangers(path.read_text())) for path in SOURCE.rglob("*.py")}
    assert len(found) > 200
    assert {path: what for path, what in found.items() if what} == {"service/sending/openapi_import.py": ["yaml"]}


@pytest.mark.parametrize("tag", ["python/object/apply:os.system", "python/name:os.system", "python/object/new:type"])
def test_the_yaml_reader_creates_only_plain_values(tag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BoathookError):
        openapi_import.read_yaml(f"!!{tag} ['touch ran']")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "text", ["import pickle", "from marshal import loads", "eval('1')", "import yaml", "run('x', shell=True)"]
)
def test_mutant_each_of_them_is_detected(text: str):
    assert list(dangers(text)) != []


# The audit.

CHANGES = re.compile(
    r"(update|delete\s+from|truncate(\s+table)?|drop\s+table|merge\s+into)\s+(only\s+)?boathook\.audit\b"
    # A seal is put beside what a row says, and changes nothing of that.
    r"(?!\s+set\s+sealed_as\s*=\s*\w+,\s*seal\s*=\s*\w+\s+where\b)",
    re.IGNORECASE,
)


def changing(text: str) -> bool:
    """Return whether a text has a statement that changes or deletes audit rows."""
    return CHANGES.search(text) is not None


def test_no_statement_changes_or_deletes_audit_rows():
    statements = [path for path in SOURCE.rglob("*") if path.suffix in {".sql", ".py"}]
    assert any("insert into boathook.audit" in path.read_text() for path in statements)
    assert [str(path) for path in statements if changing(path.read_text())] == []


@pytest.mark.parametrize(
    "text",
    [
        "update boathook.audit set note = ''",
        "DELETE FROM boathook.audit",
        "truncate boathook.audit",
        "update boathook.audit set sealed_as = 1, seal = x, note = '' where id = 1",
    ],
)
def test_mutant_a_statement_that_does_is_detected(text: str):
    assert changing(f"-- name: x\n{text};")


# Memory that good senders need.


class Sink:
    """An intake that stores nothing and records its events."""

    def __init__(self) -> None:
        self.taken: list[NewEvent] = []

    def put(self, event: NewEvent, waiter: ReceiptWaiter) -> None:
        self.taken.append(event)
        waiter.set_result(Accepted(event.id))


class Door:
    """The ingest application with an inline source, spoken to without a socket."""

    def __init__(self) -> None:
        sources = {
            "stripe": {"provider": "stripe", "secrets": ["whsec_acceptance"], "mode": "inline", "reply_within_s": 0.2}
        }
        settings = load(Path("/dev/null"), {"sources": sources})
        self.sink, self.asked = Sink(), list[PendingReply]()
        self.rate = RateLimiter(100.0, 50)
        router = Router((), 1)

        async def read() -> Router:
            return router

        pipeline = IngestPipeline(
            compile_sources(settings), self.sink, EventBuilder(router, read), quarantine=None, client_rate=self.rate
        )
        self.app = IngestApp(pipeline, others=None, reply_waiter=self)

    async def ask(self, question: PendingReply, _seconds: float, _receive: object) -> tuple[None, ReplyOutcome]:
        self.asked.append(question)
        return None, ReplyOutcome.FALLBACK

    async def post(self, body: bytes, headers: dict[str, str], client: str = "192.0.2.1") -> int:
        sent: list[dict[str, object]] = []

        async def receive() -> dict[str, object]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: dict[str, object]) -> None:
            sent.append(message)

        scope = {
            "path": "/in/stripe", "raw_path": b"/in/stripe", "query_string": b"", "method": "POST", "client": (client, 1),
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        }  # fmt: skip
        await self.app(scope, receive, send)
        return int(str(sent[0]["status"]))


async def occupied(door: Door) -> list[str]:
    """Send forged requests, then a genuine one; return the resources that the former took."""
    for number in range(400):
        key = f"evt_{number % 20}"
        body, _ = signed(payload(key))
        await door.post(body, signed(payload(key), secret="whsec_wrong")[1], client=f"203.0.113.{number % 100}")
    found = [f"intake: {len(door.sink.taken)}"] * bool(door.sink.taken) + [f"places: {len(door.asked)}"] * bool(
        door.asked
    )
    statuses = [await door.post(*signed(payload(f"evt_{number}"))) for number in range(20)]
    return found + [f"refused: {statuses}"] * (statuses != [200] * 20)


async def test_forgeries_use_no_slot_no_dedup_key_and_no_other_clients_rate():
    door = Door()
    assert await occupied(door) == []
    assert len(door.sink.taken) == len(door.asked) == 20


async def test_mutant_a_shared_rate_and_a_slot_before_the_proof_are_detected(monkeypatch: pytest.MonkeyPatch):
    door = Door()
    wait_s = door.rate.wait_s
    monkeypatch.setattr(door.rate, "wait_s", lambda _client, now: wait_s("all", now))

    def asking(*args: object, **named: object) -> Response:
        door.asked.append(PendingReply(UUID(int=1), is_new=True))
        return error_response(*args, **named)

    monkeypatch.setattr(ingest, "error_response", asking)
    found = await occupied(door)
    assert any(one.startswith("places") for one in found)
    assert any(one.startswith("refused") for one in found)
