"""Valid live messages, and a subscription's queue."""

import asyncio
import json

import pytest

from boathook.db.pubsub import CHANNEL, MAX_BYTES, MAX_QUEUED, Subscriber, Subscription, notify_call
from boathook.domain.errors import InvalidMessage


def test_a_message_travels_as_json_with_its_channel():
    call, (channel, text) = notify_call("fleet.cars", {"id": 7, "name": "Жук\x00"})
    assert call.sql(lambda n: f"${n}").startswith("select pg_catalog.pg_notify(")
    assert channel == CHANNEL
    assert json.loads(text) == {"c": "fleet.cars", "m": {"id": 7, "name": "Жук\x00"}}
    assert "\x00" not in str(text), "PostgreSQL keeps no NUL"


def test_the_largest_message_is_published_and_one_byte_more_refused():
    frame = len(notify_call("c", "")[1][1].encode())
    assert len(notify_call("c", "x" * (MAX_BYTES - frame))[1][1]) == MAX_BYTES
    with pytest.raises(InvalidMessage, match="7,901 bytes of JSON, more than 7,900; send an id"):
        notify_call("c", "x" * (MAX_BYTES - frame + 1))
    with pytest.raises(InvalidMessage, match="bytes of JSON"):
        notify_call("c", "ж" * 4000)


@pytest.mark.parametrize("channel", ["", "a b", "x" * 101, "a\n", "a;drop", "ж"])
def test_a_channel_is_a_plain_name(channel: str):
    with pytest.raises(InvalidMessage, match="must be named by"):
        notify_call(channel, 1)
    with pytest.raises(InvalidMessage, match="must be named by"):
        Subscriber(None).subscribe(channel)


@pytest.mark.parametrize("message", [object(), {1: object()}, "\ud800"])
def test_values_that_are_not_json_are_refused(message: object):
    with pytest.raises(InvalidMessage, match="live message on c: the message must be valid as JSON"):
        notify_call("c", message)


async def test_a_reader_that_is_too_slow_misses_the_oldest():
    hearing = Subscription("c")
    for n in range(MAX_QUEUED + 5):
        hearing.put(n)
    assert [await anext(hearing) for _ in range(MAX_QUEUED)] == list(range(5, MAX_QUEUED + 5))


async def test_a_reader_waits_for_the_next_message():
    hearing = Subscription("c")
    waiting = asyncio.create_task(anext(hearing))
    await asyncio.sleep(0)
    assert not waiting.done()
    hearing.put("x")
    assert await waiting == "x"
