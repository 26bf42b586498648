"""Hostile texts for the parsers of untrusted input: a result or a known error, fast, and no crash.

Each runs in a fork with a limit of processor time, so that a crash, or a time that grows faster than the text, is seen.
"""

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from starlette.requests import Request

from boathook.api.errors import ApiError
from boathook.api.route import read_json
from boathook.domain.errors import InvalidValue
from boathook.domain.filters import compile_filter
from boathook.domain.json_document import MAX_DEPTH, parse
from boathook.domain.json_text import format_json
from boathook.providers.request_reader import read_form
from boathook.service.receiving.conflicts import _compare
from boathook.service.sending import endpoint_values
from boathook.service.sending.endpoint_values import MAX_PEM
from boathook.service.sending.openapi_import import read_webhooks
from boathook.verification.json_schema import check_schema, validate
from boathook_billing.tilda import read_order
from boathook_console import login
from boathook_console.event_types import EventTypeForm
from boathook_fleet.parse import read
from boathook_fleet.ruby import read_hash
from tests.support import exit_code

SIZE = 120_000


def made(*pieces: str) -> list[str]:
    """Return texts of 120,000 characters: a piece over and over, and nested with its end."""
    ends = str.maketrans("[{<(", "]}>)")
    nested = [
        piece * depth + "0" + "".join(char.translate(ends) for char in reversed(piece) if char in "[{") * depth
        for piece in pieces
        for depth in (MAX_DEPTH, 900, SIZE // len(piece) // 2)
    ]
    return [piece * (SIZE // len(piece)) for piece in pieces] + nested


TEXTS = [
    *made("[", '{"a":', '[{"a":', "? ", "- ", "<a>", "&a=", "%", '"', "\\", "9", "{a=>", "{:a=>", "a[", "\\u0000", " "),
    "[" + "0," * (SIZE // 2) + "0]",
    "{" + ",".join(f'"{n}":0' for n in range(SIZE // 10)) + "}",
    '{"a":' + "9" * SIZE + "}",
    '{"a":1e' + "9" * SIZE + "}",
    '{"payment":' + "[" * 5_000 + "}",
    "payment=" + "[" * 500_000,
    "&".join(f"a{n}=b" for n in range(SIZE // 10)),
]


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


PARSERS: dict[str, Callable[[str], Any]] = {
    "the API's bodies": lambda text: read_json(text.encode()),
    "bodies of events": lambda text: parse(text.encode()),
    "forms of senders": lambda text: read_form(text.encode()),
    "laid out": format_json,
    "filters": lambda text: compile_filter(_json(text)),
    "schemas": lambda text: check_schema(_json(text)),
    "payloads": lambda text: validate(_json(text), {"1": {"items": {"type": "object"}, "uniqueItems": True}}),
    "the form of an event type": lambda text: EventTypeForm(schemas=text, example=text).check_schemas(),
    "OpenAPI": read_webhooks,
    "two bodies compared": lambda text: _compare(text.encode(), text[1:].encode()),
    "fleet": lambda text: read(text.encode()),
    "fleet, Ruby": read_hash,
    "billing, Tilda": lambda text: read_order(text.encode()),
}
KNOWN = (ApiError, InvalidValue, ValueError)


def _through(parser: Callable[[str], Any]) -> None:
    for text in TEXTS:
        try:
            parser(text)
        except KNOWN:
            continue


@pytest.mark.parametrize("name", PARSERS)
def test_no_hostile_text_crashes_a_parser_or_takes_long(name):
    assert exit_code(lambda: _through(PARSERS[name]), cpu_s=30) == 0


@pytest.mark.extended("the mutant of a test that stays: it shows that the test can fail")
def test_mutant_a_parser_without_bounds_ends_its_process():
    assert exit_code(lambda: _through(lambda text: yaml.load(text, yaml.CSafeLoader)), cpu_s=30) < 0


def test_a_hostile_sign_in_cookie_is_ignored():
    nested = base64.urlsafe_b64encode(b'{"unknown":' + b"[" * 9_000)
    cookie = f"{login.ATTEMPT_COOKIE}=".encode() + nested
    assert login._read_attempt(Request({"type": "http", "headers": [(b"cookie", cookie)]})) is None


@pytest.mark.parametrize("name", ["certificate", "key"])
def test_a_certificate_and_its_key_have_a_bound(name):
    pair = {"certificate": "", "key": ""} | {name: "x" * (MAX_PEM + 1)}
    with pytest.raises(InvalidValue, match="65,536 characters") as refused:
        endpoint_values.read_pair(pair)
    assert refused.value.where == ("auth", "mtls", name)
