"""Builds a program for each official client, runs it, and plays the scenario with it.

A program calls its client's methods with the client's own types, as it is told line by line, and answers what the
client read. Between the client and boathook a proxy records what both really said.

The versions are pinned in `clients/`: by requirements/dev.lock, npm/package-lock.json, go/go.sum, java/jars.sha256 and
rust/Cargo.lock. What is built stays in build/svix-clients.
"""

import fcntl
import hashlib
import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from tests.acceptance.svix.receiver import Answer, Receiver
from tests.acceptance.svix.scenario import CLIENT_FAULTS, METHODS, Method, Step, current_name
from tests.npm import find_program, install
from tests.support import until

SOURCES = Path(__file__).parent / "clients"
BUILT = Path(__file__).parents[3] / "build" / "svix-clients"
BUILD_TIMEOUT_S = 3_000
UNSENT = {("message.create", "idempotencyKey"), ("message.create", "withContent")}
"""Options that are not in every query: the key is a header, and clients of 1.x want no content back."""
JSON = "application/json"
FILTERED = re.compile(r"(operational_webhook[._])?endpoint\.(create|update|patch)")
"""Methods of older clients whose bodies say filterTypes for eventTypes."""


def need(program: str, *least: int) -> str:
    """Return where a program of a language is; skip the test if it is not installed, or is older than *least*."""
    path = shutil.which(program)
    if path is None:
        pytest.skip(f"the client of this language needs {program}, which is not installed")
    shown = run(path, "version" if program == "go" else "-version" if program == "javac" else "--version", cwd=SOURCES)
    version = tuple(map(int, re.findall(r"\d+", shown)))
    if version < least:
        pytest.skip(f"the client of this language needs {program} {'.'.join(map(str, least))}, not {shown.strip()}")
    return path


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """Run a build step at low priority and return its output."""
    done = subprocess.run(
        ["nice", "-n", "10", *command],
        cwd=cwd,
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=BUILD_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"{command}: {done.stdout[-1000:]}{done.stderr[-3000:]}"
    return done.stdout


@contextmanager
def folder(name: str) -> Iterator[Path]:
    """Yield the folder of one client's build; of several runs one builds at a time."""
    path = BUILT / name
    path.mkdir(parents=True, exist_ok=True)
    with (path / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield path


def python() -> list[str | Path]:
    return [sys.executable, SOURCES / "client.py"]


def npm() -> list[str | Path]:
    install(SOURCES / "npm", timeout=300)
    return [find_program("node"), SOURCES / "npm" / "client.mjs"]


def go() -> list[str | Path]:
    compiler = need("go", 1, 21)
    with folder("go") as built:
        run(
            compiler, "build", "-mod=readonly", "-p=2", "-o", built / "client", ".",
            cwd=SOURCES / "go", GOTOOLCHAIN="local",
        )  # fmt: skip
    return [built / "client"]


def java() -> list[str | Path]:
    compiler, virtual_machine, maven = need("javac", 17), need("java"), need("mvn")
    lines = (SOURCES / "java" / "jars.sha256").read_text().splitlines()
    wanted = {name: digest for digest, name in map(str.split, lines)}
    with folder("java") as built:
        jars = built / "jars"
        if hashes(jars) != wanted:
            shutil.rmtree(jars, ignore_errors=True)
            run(
                maven, "--quiet", "--batch-mode", "dependency:copy-dependencies", "-DincludeScope=runtime",
                f"-DoutputDirectory={jars}", cwd=SOURCES / "java",
            )  # fmt: skip
        assert hashes(jars) == wanted, "the jars are not those of jars.sha256"
        run(compiler, "-proc:none", "-d", built, "-cp", f"{jars}/*", "Client.java", cwd=SOURCES / "java")
    return [virtual_machine, "-cp", f"{built}{os.pathsep}{jars}/*", "Client"]


def hashes(jars: Path) -> dict[str, str]:
    return {jar.name: hashlib.sha256(jar.read_bytes()).hexdigest() for jar in jars.glob("*.jar")}


def rust() -> list[str | Path]:
    cargo = need("cargo", 1, 88)
    with folder("rust") as built:
        run(cargo, "build", "--quiet", "--locked", "--jobs=2", cwd=SOURCES / "rust", CARGO_TARGET_DIR=str(built))
    return [built / "debug" / "client"]


PROGRAMS: Mapping[str, Callable[[], list[str | Path]]] = {
    "Python": python,
    "npm": npm,
    "Go": go,
    "Java": java,
    "Rust": rust,
}


def methods_in_crate() -> Counter[str]:
    """Return the methods that the Rust client's source has, by the last part of their names."""
    text = run(need("cargo", 1, 88), "metadata", "--locked", "--format-version=1", cwd=SOURCES / "rust")
    manifest = next(one["manifest_path"] for one in json.loads(text)["packages"] if one["name"] == "svix")
    found: Counter[str] = Counter()
    for file in (Path(manifest).parent / "src" / "api").glob("*.rs"):
        source = re.sub(r'#\[cfg\(feature = "svix_beta"\)\]\s+pub async fn', "", file.read_text())
        found.update(re.findall(r"pub async fn (\w+)", source))
    return found


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request and its answer."""

    method: str
    path: str
    query: Mapping[str, list[str]]
    body: Any
    status: int
    answer: Any
    media_type: str


class Recorder:
    """A proxy in front of boathook that remembers every exchange; *tamper* may change an answer first."""

    def __init__(self, target: str) -> None:
        self.exchanges: list[Exchange] = []
        self.tamper: Callable[[httpx.Response], httpx.Response] = lambda answer: answer
        upstream = httpx.Client(base_url=target, timeout=300)
        recorder = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                kept = {name: value for name, value in self.headers.items() if name.lower() not in HOP_BY_HOP}
                answer = recorder.tamper(upstream.request(self.command, self.path, content=body, headers=kept))
                url = urlsplit(self.path)
                media_type = answer.headers.get("content-type", "")
                recorder.exchanges.append(
                    Exchange(
                        self.command,
                        url.path,
                        parse_qs(url.query, keep_blank_values=True),
                        json.loads(body) if body else None,
                        answer.status_code,
                        answer.json() if answer.content and media_type.startswith(JSON) else answer.text,
                        media_type,
                    )
                )
                self.send_response(answer.status_code)
                for name, value in answer.headers.items():
                    if name.lower() not in HOP_BY_HOP:
                        self.send_header(name, value)
                if answer.status_code != 204:
                    self.send_header("content-length", str(len(answer.content)))
                self.end_headers()
                self.wfile.write(answer.content)

            def log_message(self, *_: object) -> None:
                pass

        for verb in ("GET", "POST", "PUT", "PATCH", "DELETE"):
            setattr(Handler, f"do_{verb}", Handler.handle_any)

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True

        self._upstream = upstream
        self._server = Server(("127.0.0.1", 0), Handler)
        self.base = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self._upstream.close()


HOP_BY_HOP = {"connection", "content-encoding", "content-length", "date", "host", "keep-alive", "server",
              "transfer-encoding"}  # fmt: skip


class Client:
    """A running program with one official client."""

    def __init__(self, command: list[str | Path], base: str) -> None:
        self._process = subprocess.Popen(
            [*command, base], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.offered: list[str] = self._read()
        self.names = {current_name(name): name for name in self.offered}

    def call(self, **task: Any) -> dict[str, Any]:
        self._process.stdin.write(json.dumps(task) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> Any:
        line = self._process.stdout.readline()
        assert line, f"the program ended: {self._process.communicate()[1][-3000:]}"
        return json.loads(line)

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


class Play:
    """One client's run of the scenario; every call is checked."""

    def __init__(self, language: str, client: Client, recorder: Recorder, token: str, receiver: Receiver) -> None:
        self.client = client
        self.recorder = recorder
        self.faults = CLIENT_FAULTS.get(language, {})
        self.good, self.bad, self.ops = receiver.mailbox(), receiver.mailbox(Answer(500, b"broken")), receiver.mailbox()
        now = datetime.now(UTC).replace(microsecond=0)
        self.kept = {
            "token": token,
            "good_url": self.good.url,
            "bad_url": self.bad.url,
            "ops_url": self.ops.url,
            "hour_ago": (now - timedelta(hours=1)).isoformat(),
            "yesterday": (now - timedelta(days=1)).isoformat(),
            "long_ago": (now - timedelta(days=20)).isoformat(),
        }
        self.called: set[str] = set()

    def take(self, step: Step) -> None:
        """Make a step's call and check it; do nothing if the client has no such method."""
        name = self.client.names.get(step.method)
        if name is None or (step.after and not self._can(step.after)):
            return
        self.called.add(step.method)
        if not self._can(step.method):
            self._judge_fault(name, step)
            return
        if step.is_awaited:
            until(lambda: self._is_there(name, step))
        faults = self._call(name, step)
        assert faults == [], (step, faults, self.recorder.exchanges[-1:])

    def _can(self, method: str) -> bool:
        return method in self.client.names and method not in self.faults

    def _judge_fault(self, name: str, step: Step) -> None:
        """Make a call known to fail in the client; fail once it succeeds."""
        seen = len(self.recorder.exchanges)
        answer = self._make(name, step, step.body, {})
        assert "failure" in answer, f"CLIENT_FAULTS names a call that the client can make: {step.method}"
        assert self.recorder.exchanges[seen:] == []

    def _make(self, name: str, step: Step, body: Any, options: Mapping[str, Any]) -> dict[str, Any]:
        path = self._filled(list(step.path))
        return self.client.call(token=self._filled(step.token), method=name, path=path, body=body, options=options)

    def _is_there(self, name: str, step: Step) -> bool:
        return self._call(name, step) == []

    def _call(self, name: str, step: Step) -> list[str]:
        """Make the call and return its faults."""
        body = self._body(name, step)
        options = self._filled(dict(step.options))
        seen = len(self.recorder.exchanges)
        answer = self._make(name, step, body, options)
        made = self.recorder.exchanges[seen:]
        if len(made) != 1:
            return [f"{len(made)} requests were made: {answer}"]
        faults = [
            *self._request_faults(made[0], METHODS[step.method], step, body, options),
            *answer_faults(made[0], step),
            *reading_faults(made[0], step, answer),
            *value_faults(self._filled(step.value), answer),
        ]
        if not faults:
            self.kept |= {kept: pick(answer["value"], path) for kept, path in step.keep.items()}
        return faults

    def _body(self, name: str, step: Step) -> Any:
        body = self._filled(step.body)
        if body and self.is_older and FILTERED.fullmatch(name):
            return {"filterTypes" if key == "eventTypes" else key: value for key, value in body.items()}
        return body

    @property
    def is_older(self) -> bool:
        """Whether the client is of the generation that says update and filterTypes."""
        return "endpoint.update" in self.client.offered

    def _filled(self, value: Any) -> Any:
        """Return a value with placeholders replaced by kept values."""
        match value:
            case str() if value.startswith("$"):
                return self.kept[value[1:]]
            case dict():
                return {key: self._filled(one) for key, one in value.items()}
            case list():
                return [self._filled(one) for one in value]
            case _:
                return value

    def _request_faults(
        self, made: Exchange, method: Method, step: Step, body: Any, options: Mapping[str, Any]
    ) -> Iterator[str]:
        path = method.path
        for parameter, value in zip(method.parameters, step.path, strict=True):
            path = path.replace(f"{{{parameter}}}", self._filled(value))
        if (made.method, made.path) != (method.verb, path):
            yield f"{made.method} {made.path} was requested instead of {method.verb} {path}"
        if body and not agrees(sorted_lists(body), sorted_lists(sent_body(made))):
            yield f"the client sent {made.body}"
        for key, value in options.items():
            [sent] = made.query.get(snake(key), [""])
            if (step.method, key) not in UNSENT and not agrees(",".join(sorted(sent.split(","))), written(value)):
                yield f"the client sent {key}={sent}"


def sorted_lists(value: Any) -> Any:
    """Return a value with its lists of texts sorted: some clients keep them as sets."""
    match value:
        case dict():
            return {key: sorted_lists(one) for key, one in value.items()}
        case [*several] if all(isinstance(one, str) for one in several):
            return sorted(several)
        case list():
            return [sorted_lists(one) for one in value]
        case _:
            return value


def answer_faults(made: Exchange, step: Step) -> Iterator[str]:
    """Yield the faults of boathook's response."""
    usual = METHODS[step.method].status
    if made.status != step.status if step.status else made.status not in usual:
        yield f"boathook answered {made.status}"
    if made.status != 204 and not made.media_type.startswith(JSON):
        yield f"the answer is {made.media_type}"


def reading_faults(made: Exchange, step: Step, answer: Mapping[str, Any]) -> Iterator[str]:
    """Yield the differences between the client's result and boathook's response."""
    if "failure" in answer:
        yield f"the client failed: {answer['failure']}"
    elif made.status >= 400:
        if answer.get("status") != made.status or not agrees(answer["error"], made.answer):
            yield f"the client took for the error {answer}"
    else:
        shown = made.answer
        if step.method == "message.create":  # clients of 1.x want no content back, and show what they sent
            shown = shown | {"payload": sent_body(made)["payload"]}
        if "value" not in answer or not agrees(answer["value"], shown):
            yield f"the client read {answer}"


def value_faults(wanted: Any, answer: Mapping[str, Any]) -> Iterator[str]:
    """Yield the differences between the client's result and the expected value."""
    value = answer.get("value", answer.get("error"))
    if not holds(value, renamed(wanted, value)):
        yield f"the client read {value}"


def agrees(read: Any, sent: Any) -> bool:
    """Whether a client's value equals the sent one; null fields may be omitted, times lose microseconds."""
    match read:
        case None:
            return True
        case dict():
            return isinstance(sent, dict) and all(
                value is None or agrees(value, sent.get(key, sent.get(snake(key)))) for key, value in read.items()
            )
        case list():
            return (
                isinstance(sent, list)
                and len(read) == len(sent)
                and all(agrees(one, other) for one, other in zip(read, sent, strict=True))
            )
        case str() if read != sent:
            return isinstance(sent, str) and moment(read) is not None and moment(read) == moment(sent)
        case _:
            return bool(read == sent)


def sent_body(made: Exchange) -> Any:
    """Return the body of a request; the Java client sends every payload as raw text."""
    raw = (made.body or {}).get("transformationsParams", {}).get("rawPayload")
    return made.body if raw is None else made.body | {"payload": json.loads(raw)}


def snake(name: str) -> str:
    return re.sub("([A-Z])", r"_\1", name).lower()


def moment(text: str) -> datetime | None:
    """Return a time with its microseconds cut off, or None for another text."""
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        return None
    return parsed.replace(microsecond=parsed.microsecond // 1000 * 1000)


def holds(value: Any, wanted: Any) -> bool:
    """Whether *value* has all that is *wanted*; lists are as long, mappings may have more."""
    match wanted:
        case None:
            return True
        case dict():
            return isinstance(value, dict) and all(key in value and holds(value[key], wanted[key]) for key in wanted)
        case list():
            return (
                isinstance(value, list)
                and len(value) == len(wanted)
                and all(holds(one, other) for one, other in zip(value, wanted, strict=True))
            )
        case _:
            return bool(wanted == value)


def renamed(wanted: Any, value: Any) -> Any:
    """Return the expected value with the names of the older client generation."""
    if isinstance(wanted, dict) and isinstance(value, dict) and "eventTypes" in wanted and "filterTypes" in value:
        return {"filterTypes" if key == "eventTypes" else key: one for key, one in wanted.items()}
    return wanted


def pick(value: Any, path: str) -> Any:
    for part in path.split("."):
        value = value[int(part)] if part.isdigit() else value[part]
    return value


def written(value: Any) -> str:
    """Return an option as written in a query."""
    match value:
        case bool():
            return str(value).lower()
        case list():
            return ",".join(sorted(value))
        case _:
            return str(value)
