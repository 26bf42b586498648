"""What may be told live, and how one reader's messages wait for it."""

import asyncio
import json

import pytest

from boathook.domain.errors import InvalidMessage
from boathook.journal.broadcasts import CHANNEL, MOST_BYTES, MOST_KEPT, Ear, Hearing, tell


def test_a_message_travels_as_json_with_its_channel():
    call, (channel, text) = tell("fleet.cars", {"id": 7, "name": "Жук\x00"})
    assert call.sql(lambda n: f"${n}").startswith("select pg_catalog.pg_notify(")
    assert channel == CHANNEL
    assert json.loads(text) == {"c": "fleet.cars", "m": {"id": 7, "name": "Жук\x00"}}
    assert "\x00" not in str(text), "PostgreSQL keeps no NUL"


def test_a_message_as_large_as_may_be_is_told_and_one_byte_more_is_not():
    frame = len(tell("c", "")[1][1].encode())
    assert len(tell("c", "x" * (MOST_BYTES - frame))[1][1]) == MOST_BYTES
    with pytest.raises(InvalidMessage, match="7,901 bytes of JSON, more than 7,900; send an id"):
        tell("c", "x" * (MOST_BYTES - frame + 1))
    with pytest.raises(InvalidMessage, match="bytes of JSON"):
        tell("c", "ж" * 4000)


@pytest.mark.parametrize("channel", ["", "a b", "x" * 101, "a\n", "a;drop", "ж"])
def test_a_channel_is_a_plain_name(channel: str):
    with pytest.raises(InvalidMessage, match="must be named by"):
        tell(channel, 1)
    with pytest.raises(InvalidMessage, match="must be named by"):
        Ear(None).hear(channel)


@pytest.mark.parametrize("message", [object(), {1: object()}, "\ud800"])
def test_what_json_cannot_hold_is_refused(message: object):
    with pytest.raises(InvalidMessage, match="broadcast on c: the message must be what JSON can hold"):
        tell("c", message)


async def test_a_reader_that_is_too_slow_misses_the_oldest():
    hearing = Hearing("c")
    for n in range(MOST_KEPT + 5):
        hearing.put(n)
    assert [await anext(hearing) for _ in range(MOST_KEPT)] == list(range(5, MOST_KEPT + 5))


async def test_a_reader_waits_for_what_comes():
    hearing = Hearing("c")
    waiting = asyncio.create_task(anext(hearing))
    await asyncio.sleep(0)
    assert not waiting.done()
    hearing.put("x")
    assert await waiting == "x"
