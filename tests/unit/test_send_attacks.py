"""Attacks on the sending side that once came through, each held off."""

import time
from typing import Any
from uuid import UUID

import pytest
from pydantic import TypeAdapter, ValidationError

from boathook.admin.api.fields import Moment
from boathook.admin.endpoint_values import read_headers
from boathook.admin.keys import MadeKey
from boathook.domain.conditions import Budget, compile_condition
from boathook.domain.errors import InvalidValue
from boathook.inbound.schemas import MAX_PATTERNS_S, check_schema
from boathook.journal.api_keys import Key
from boathook.outbound.attempt import REDACTED, Target, redact, secrets_of
from boathook.outbound.outgoing import Answer, Outgoing
from boathook.outbound.signer import make_secret, read_signer


def test_a_moment_that_is_outside_of_the_calendar_in_utc_is_a_wrong_value():
    for text in ("0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"):
        with pytest.raises(ValidationError, match="outside the years 1 to 9999"):
            TypeAdapter(Moment).validate_python(text)


@pytest.mark.parametrize("letters", ["ab/", "a"])
def test_hiding_secrets_takes_little_time_whatever_secrets_and_response_are_chosen(letters):
    long = (letters * 4_096)[:4_000]
    headers = {f"x-key-{number}": f"{long}{number}" for number in range(50)}
    target = Target(url="http://x/", signers=(read_signer(make_secret()),), timeout_s=1, headers=headers)
    secrets = secrets_of(target)
    assert len(secrets) >= 50
    began = time.process_time()
    redact(b"." * 100 + long.encode() + b"!", secrets)
    once_s = time.process_time() - began
    began = time.process_time()
    for secret in secrets:
        # What a look at every possible end of each secret costs.
        for length in range(len(secret) - 1, 7, -1):
            long.encode().endswith(secret[:length])
    assert once_s < (time.process_time() - began) / 2


def test_a_cut_secret_is_hidden_though_its_beginning_comes_again_and_again():
    secret = b"abcdefgh" * 200 + b"ijkl"
    for cut in range(8, len(secret), 37):
        found = redact(b"told: " + secret[:cut], (secret,))
        assert found == b"told: " + REDACTED.encode()
    assert redact(b"abcdefgh-", (secret,)) == b"abcdefgh-"


def test_headers_are_not_too_many_characters_together():
    read_headers({f"x-{number}": "v" * 4_000 for number in range(4)})
    with pytest.raises(InvalidValue, match="together"):
        read_headers({f"x-{number}": "v" * 4_000 for number in range(5)})


def test_a_long_list_of_values_takes_no_longer_to_look_through_than_a_short_one():
    def took_s(length: int) -> float:
        fits = compile_condition({"in": list(map(str, range(length)))}, "filter", Budget())
        assert fits("0")
        began = time.process_time()
        for _ in range(2_000):
            assert not fits("none of them")
        return time.process_time() - began

    assert took_s(20_000) < 20 * took_s(2) + 0.05


def test_lists_of_values_tell_json_types_apart():
    fits = compile_condition({"in": [1, "1", False, None]}, "filter", Budget())
    assert all(map(fits, (1, 1.0, "1", False, None)))
    assert not any(map(fits, (True, 0, 0.0, "", [1], {"1": 1})))


def test_requests_that_appear_in_a_log_show_no_secrets():
    outgoing = Outgoing(
        url="https://user:hunter2@example.com/hunter2",
        headers=(("authorization", "Bearer hunter2"),),
        body=b"hunter2",
        timeout_s=1,
        basic=("user", "hunter2"),
    )
    assert "hunter2" not in repr(Answer(outgoing, 0, {}, b"", 0.0, None, ""))
    assert "hunter2" not in repr(MadeKey(Key(id=UUID(int=1), organization="o", application_id=None), "hunter2"))


def test_a_schema_of_patterns_that_are_slow_to_make_ready_is_refused_soon():
    slow: dict[str, Any] = {"patternProperties": {f"\\w{{80}}{number}": {} for number in range(1_000)}}
    began = time.thread_time()
    with pytest.raises(ValueError, match="too long to make ready"):
        check_schema({"properties": {"a": {"items": [slow]}}})
    assert time.thread_time() - began < 4 * MAX_PATTERNS_S
    check_schema({"properties": {f"p{number}": {"pattern": f"^[a-z]{{1,{number}}}$"} for number in range(1, 60)}})
