"""A schema can need many steps for any body: a thread validates, within a bound, and the event loop goes on."""

import asyncio
import contextlib
import json
import random
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from boathook.config import load
from boathook.domain.errors import InvalidMessage
from boathook.ingest import health
from boathook.ingest.pipeline import MAX_BODY_IN_LOOP, IngestPipeline
from boathook.ingest.sources import compile_sources
from boathook.service.sending import event_types
from boathook.verification import json_schema
from boathook.verification.verifier import Verifier
from tests.unit import test_direct
from tests.unit.test_direct import SECRET, Side, request

SCHEMA = {"type": "object", "required": ["a"]}
BOMB = {
    "definitions": {
        "n0": {},
        **{f"n{n}": {"allOf": [{"$ref": f"#/definitions/n{n - 1}"}] * 2} for n in range(1, 40)},
    },
    "$ref": "#/definitions/n39",
}
"""Every level doubles the work."""
TOO_LONG = "it takes more than 50,000 steps to check by the schema"
IN_LOOP = threading.main_thread().name


@pytest.fixture
def validated(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the threads that validate, in order."""
    threads: list[str] = []
    fault = json_schema._fault

    def record_and_validate(validator: Any, document: Any) -> str | None:
        threads.append(threading.current_thread().name)
        return fault(validator, document)

    monkeypatch.setattr(json_schema, "_fault", record_and_validate)
    return threads


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """Return the files of the schemas."""
    for name, schema in {"usual": SCHEMA, "bomb": BOMB}.items():
        (tmp_path / name).write_text(json.dumps(schema))
    return {name: str(tmp_path / name) for name in ("usual", "bomb")}


async def send(monkeypatch: pytest.MonkeyPatch, schema: str, body: bytes, *, is_direct: bool) -> str:
    """Send a body to a source whose schema is in a file; return the answer."""
    source = {"provider": "hmac", "secrets": [SECRET], "schema": schema, "header": "x-hub-signature-256"}
    monkeypatch.setitem(test_direct.SOURCES, "checked", source | {"prefix": "sha256="})
    side = Side(is_direct=is_direct)
    await side.intake.start()
    answer = await side.talk([request("/in/checked", body=body)], 1)
    await side.intake.drain()
    return answer


BODIES = {
    "small": b'{"a": 1}',
    "in one piece": b'{"a": "' + b"x" * (MAX_BODY_IN_LOOP // 8) + b'"}',
    "above the limit": b'{"a": "' + b"x" * MAX_BODY_IN_LOOP + b'"}',
}


@pytest.mark.parametrize("is_direct", [False, True])
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
async def test_a_thread_validates_bodies_of_any_size(
    body: bytes, is_direct: bool, validated: list[str], files: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "HTTP/1.1 200 " in await send(monkeypatch, files["usual"], body, is_direct=is_direct)
    (thread,) = validated
    assert thread.startswith("ingest-compute")


@pytest.mark.parametrize("is_direct", [False, True])
async def test_a_bomb_ends_at_its_bound_in_a_thread(
    is_direct: bool, validated: list[str], files: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = await send(monkeypatch, files["bomb"], BODIES["small"], is_direct=is_direct)
    assert "HTTP/1.1 400 " in answer
    assert TOO_LONG in answer
    assert IN_LOOP not in validated


async def test_the_loop_goes_on_while_a_body_is_validated(
    files: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_end = threading.Event(), threading.Event()
    fault = json_schema._fault

    def wait_and_validate(validator: Any, document: Any) -> str | None:
        begun.set()
        assert may_end.wait(60)
        return fault(validator, document)

    monkeypatch.setattr(json_schema, "_fault", wait_and_validate)
    sent = asyncio.create_task(send(monkeypatch, files["usual"], BODIES["small"], is_direct=True))
    # The test itself runs on the loop: it comes to set `may_end` because validating does not hold that.
    await asyncio.to_thread(begun.wait, 60)
    may_end.set()
    assert "HTTP/1.1 200 " in await sent


async def test_mutant_a_body_validated_on_the_loop_is_detected(
    validated: list[str], files: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    compute = IngestPipeline._compute

    async def compute_in_loop(self: IngestPipeline, _is_long: bool, function: Any, *args: Any) -> Any:
        return await compute(self, False, function, *args)

    monkeypatch.setattr(IngestPipeline, "_compute", compute_in_loop)
    await send(monkeypatch, files["usual"], BODIES["above the limit"], is_direct=True)
    assert validated == [IN_LOOP]


async def test_a_message_is_validated_in_a_thread_within_the_same_bound(
    validated: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def read_schemas(*_: Any) -> Any:
        return {"1": BOMB}

    monkeypatch.setattr(event_types, "read_schemas", read_schemas)
    with pytest.raises(InvalidMessage, match=TOO_LONG):
        await event_types.check_payload(cast("Any", None), organization="o", type="invoice.paid", payload={"a": 1})
    assert len(validated) == 1
    assert IN_LOOP not in validated


async def test_a_check_of_readiness_validates_in_a_thread(validated: list[str], files: dict[str, str]) -> None:
    settings = load(None, {"sources": {"open": {"provider": "hmac", "unsigned": True, "schema": files["bomb"]}}})
    assert await health.check_source(compile_sources(settings)["/in/open"]) is None
    assert len(validated) == 1
    assert IN_LOOP not in validated


def test_a_pattern_that_takes_long_is_stopped_at_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock is a stand-in that advances with the characters that were matched."""
    assert matched_chars(monkeypatch, cost_s=2e-4) == [64, 256]
    assert matched_chars(monkeypatch, cost_s=1e-9) == [64, 256, 1_024, 4_096, 16_384, 65_536, 100_000]


def matched_chars(monkeypatch: pytest.MonkeyPatch, cost_s: float) -> list[int]:
    """Return the lengths of the texts that the engine is given for a text of 100,000 characters."""
    lengths: list[int] = []

    def match(text: str) -> bool:
        lengths.append(len(text))
        return True

    monkeypatch.setattr(json_schema, "_regex", lambda _pattern: match)
    monkeypatch.setattr(json_schema, "time", SimpleNamespace(thread_time=lambda: cost_s * sum(lengths)))
    token = json_schema._steps.set([json_schema.MAX_STEPS])
    with contextlib.suppress(json_schema.StepLimitExceeded):
        json_schema._matches("a", "a" * 100_000)
    json_schema._steps.reset(token)
    return lengths


@pytest.mark.parametrize("pattern", ["(?:[01]*1([01]{0,90}){0,90}x){3}", "[01]*1[01]{950}x"])
def test_a_pattern_with_many_states_ends_at_the_bound(pattern: str) -> None:
    text = "".join(random.Random(1).choices("01", k=200_000))
    assert json_schema.validate(text, {"1": {"pattern": pattern}}) == TOO_LONG


@pytest.mark.parametrize(
    ("pattern", "text"), [("^.{0,4000}$", "é" * 4_000), ("^[a-z ]+$", "a word " * 20_000), ("x$", "y" * 200_000 + "x")]
)
def test_usual_patterns_match_long_texts(pattern: str, text: str) -> None:
    assert json_schema.validate(text, {"1": {"pattern": pattern}}) is None
    assert "does not match" in str(json_schema.validate(text + "!", {"1": {"pattern": pattern}}))


async def test_a_small_body_of_another_source_needs_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []
    verify = Verifier.verify

    def record_and_verify(self: Verifier, *given: Any) -> Any:
        threads.append(threading.current_thread().name)
        return verify(self, *given)

    monkeypatch.setattr(Verifier, "verify", record_and_verify)
    side = Side(is_direct=True)
    await side.intake.start()
    assert "HTTP/1.1 200 " in await side.talk([request()], 1)
    await side.intake.drain()
    assert threads == [IN_LOOP]
