"""Batches of records as messages: they round-trip, and damage is detected with minimal loss."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from boathook_rabbitmq.batch import (
    MAX_RECORDS,
    MAX_SERIES,
    UNNUMBERED,
    Batch,
    UnreadableBatch,
    contiguous_batches,
    decode_batch,
    encode_batch,
)
from boathook_rabbitmq.queues import BUFFER_QUEUES, queue_of
from tests.support import examples

PAYLOADS = st.lists(st.binary(min_size=1, max_size=40), max_size=6)


@given(series=st.integers(0, MAX_SERIES), first=st.integers(1, 1 << 40), payloads=PAYLOADS)
def test_batch_round_trips(series: int, first: int, payloads: list[bytes]):
    batch = decode_batch(encode_batch(series, first, payloads))
    assert batch == Batch(series, first, tuple(payloads))
    assert batch.last == first + len(payloads) - 1


@settings(max_examples=examples(500))
@given(payloads=st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=6), data=st.data())
def test_a_flipped_bit_is_detected_and_loses_at_most_one_record(payloads: list[bytes], data):
    message = bytearray(encode_batch(5, 1, payloads))
    place = data.draw(st.integers(0, len(message) - 1))
    message[place] ^= 1 << data.draw(st.integers(0, 7))
    if place < len(message) - sum(map(len, payloads)):
        with pytest.raises(UnreadableBatch):
            decode_batch(bytes(message))
        return
    found = decode_batch(bytes(message))
    assert found.payloads.count(None) == 1
    assert all(one in {None, payload} for one, payload in zip(found.payloads, payloads, strict=True))


@given(payloads=st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=6), data=st.data())
def test_a_cut_message_gives_only_whole_records(payloads: list[bytes], data):
    message = encode_batch(5, 1, payloads)
    end = data.draw(st.integers(0, len(message) - 1))
    try:
        found = decode_batch(message[:end])
    except UnreadableBatch:
        return
    assert None in found.payloads
    assert all(one in {None, payload} for one, payload in zip(found.payloads, payloads, strict=True))


@settings(max_examples=examples(1000))
@given(st.binary(max_size=200))
def test_other_bytes_are_refused(message: bytes):
    with pytest.raises(UnreadableBatch):
        decode_batch(message)


def test_an_excessive_record_count_is_refused():
    head = struct.pack("<8sQQI", b"bhbatch1", 1, 1, MAX_RECORDS + 1)
    with pytest.raises(UnreadableBatch):
        decode_batch(head + bytes(10_000))


def test_a_gateway_always_has_the_same_queue_and_gateways_are_spread():
    names = [f"host{number}/gateway-0" for number in range(200)]
    queues = [queue_of(name) for name in names]
    assert queues == [queue_of(name) for name in names]
    assert set(queues) == set(BUFFER_QUEUES)


def batch(first: int, count: int, *, series: int = 7) -> Batch:
    return Batch(series, first, (b"x",) * count)


@pytest.mark.parametrize(
    ("batches", "runs"),
    [
        ([], []),
        ([batch(1, 1), batch(2, 1), batch(3, 2)], [(1, 4)]),
        ([batch(1, 1), batch(3, 1)], [(1, 1), (3, 3)]),
        ([batch(2, 1), batch(1, 1)], [(2, 2), (1, 1)]),
        ([batch(1, 1), batch(1, 1)], [(1, 1), (1, 1)]),
        ([batch(1, 1), batch(2, 1, series=8)], [(1, 1), (2, 2)]),
        ([batch(1, 1), batch(2, 1, series=UNNUMBERED), batch(2, 1)], [(1, 2)]),
        ([batch(1, 1), batch(2, 0), batch(2, 1)], [(1, 1), (2, 1), (2, 2)]),
    ],
)
def test_batches_share_a_mark_if_nothing_can_be_missing_between_them(batches: list[Batch], runs: list[tuple[int, int]]):
    assert [(first.first, last.last) for first, last in contiguous_batches(batches)] == runs
