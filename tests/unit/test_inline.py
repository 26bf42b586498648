"""Keeping senders waiting: replied to at once, found even without a notification, and never longer than allowed."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from boathook.config import load
from boathook.db.replies import ReplyStatus
from boathook.domain.errors import ConfigError, DatabaseUnavailable
from boathook.domain.replies import Reply
from boathook.ingest import reply_waiter
from boathook.ingest.reply_waiter import PendingReply, ReplyOutcome, ReplyWaiter, inline_policy, inline_sources
from boathook.providers import find_recipe
from tests.support import eventually

YES = Reply(status=200, body=b"yes", content_type="text/plain")


class FakeStore:
    """Event states, as read by a reply waiter."""

    def __init__(self) -> None:
        self.known: dict[UUID, ReplyStatus] = {}
        self.looks = 0
        self.trouble: Exception | None = None

    def open(self) -> UUID:
        event_id = uuid4()
        self.known[event_id] = ReplyStatus(event_id, None, is_open=True)
        return event_id

    def end(self, event_id: UUID, reply: Reply | None) -> None:
        self.known[event_id] = ReplyStatus(event_id, reply, is_open=False)

    async def find(self, event_ids: Sequence[UUID]) -> list[ReplyStatus]:
        self.looks += 1
        if self.trouble is not None:
            raise self.trouble
        return [self.known[event_id] for event_id in event_ids]


@asynccontextmanager
async def open_room(store: FakeStore, max_waiting: int = 10) -> AsyncIterator[ReplyWaiter]:
    room = ReplyWaiter(store.find, max_waiting=max_waiting)
    task = asyncio.create_task(room.run())
    try:
        yield room
    finally:
        task.cancel()


async def stays() -> dict[str, Any]:
    await asyncio.Event().wait()
    return {}


def ask(room: ReplyWaiter, event_id: UUID, seconds: float = 5.0, *, is_new: bool = True) -> Any:
    return asyncio.create_task(room.ask(PendingReply(event_id, is_new), seconds, stays))


async def test_a_notification_answers_waiters_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reply_waiter, "POLL_INTERVAL_S", 60.0)
    store = FakeStore()
    async with open_room(store) as room:
        event_id = store.open()
        asked = [ask(room, event_id), ask(room, event_id)]
        await asyncio.sleep(0)
        store.end(event_id, YES)
        room.on_notification(str(event_id))
        assert [await one for one in asked] == [(YES, ReplyOutcome.ANSWERED)] * 2


async def test_a_handler_may_be_quicker_than_its_senders_way_into_the_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reply_waiter, "POLL_INTERVAL_S", 60.0)
    store = FakeStore()
    async with open_room(store) as room:
        event_id = store.open()
        store.end(event_id, YES)
        room.on_notification(str(event_id))
        assert await ask(room, event_id) == (YES, ReplyOutcome.ANSWERED)


async def test_polling_finds_a_reply_without_a_notification() -> None:
    store = FakeStore()
    async with open_room(store) as room:
        event_id = store.open()
        asked = ask(room, event_id)
        await asyncio.sleep(0)
        store.end(event_id, YES)
        assert await asked == (YES, ReplyOutcome.ANSWERED)


async def test_mutant_without_polling_a_lost_notification_loses_the_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reply_waiter, "POLL_INTERVAL_S", 60.0)
    store = FakeStore()
    async with open_room(store) as room:
        event_id = store.open()
        asked = ask(room, event_id, 0.5)
        await asyncio.sleep(0)
        store.end(event_id, YES)
        assert await asked == (None, ReplyOutcome.FALLBACK)


async def test_a_duplicate_is_looked_up_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reply_waiter, "POLL_INTERVAL_S", 60.0)
    store = FakeStore()
    async with open_room(store) as room:
        event_id = store.open()
        store.end(event_id, YES)
        assert await ask(room, event_id, is_new=False) == (YES, ReplyOutcome.ANSWERED)


async def test_an_event_finished_without_a_reply_falls_back() -> None:
    store = FakeStore()
    async with open_room(store) as room:
        event_id = store.open()
        store.end(event_id, None)
        assert await asyncio.wait_for(ask(room, event_id, 60), 300) == (None, ReplyOutcome.FALLBACK)


async def test_waiting_ends_at_the_deadline_and_frees_the_slot() -> None:
    store = FakeStore()
    async with open_room(store, max_waiting=1) as room:
        loop = asyncio.get_running_loop()
        for _ in range(3):
            began = loop.time()
            assert await ask(room, store.open(), 0.1) == (None, ReplyOutcome.FALLBACK)
            assert 0.09 <= loop.time() - began < 20
        assert await ask(room, store.open(), -1.0) == (None, ReplyOutcome.FALLBACK)


async def test_beyond_the_limit_no_more_senders_wait() -> None:
    store = FakeStore()
    async with open_room(store, max_waiting=2) as room:
        inside = [ask(room, store.open()) for _ in range(2)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert await asyncio.wait_for(ask(room, store.open()), 2) == (None, ReplyOutcome.FALLBACK)
        assert not any(one.done() for one in inside)
        for one in inside:
            one.cancel()


async def test_a_disconnect_frees_the_slot() -> None:
    store = FakeStore()
    async with open_room(store, max_waiting=1) as room:
        leaves = asyncio.Event()

        async def receive() -> dict[str, Any]:
            await leaves.wait()
            return {"type": "http.disconnect"}

        first = asyncio.create_task(room.ask(PendingReply(store.open(), is_new=True), 60, receive))
        await asyncio.sleep(0)
        leaves.set()
        assert await first == (None, ReplyOutcome.GONE)
        event_id = store.open()
        store.end(event_id, YES)

        async def is_in() -> bool:
            return bool(await ask(room, event_id, is_new=False) == (YES, ReplyOutcome.ANSWERED))

        await eventually(is_in)


async def test_closing_answers_every_waiting_sender_in_time() -> None:
    store = FakeStore()
    async with open_room(store) as room:
        asked = ask(room, store.open(), 60)
        await asyncio.sleep(0)
        room.close(0.1)
        assert await asyncio.wait_for(asked, 300) == (None, ReplyOutcome.FALLBACK)
        assert await asyncio.wait_for(ask(room, store.open(), 60), 300) == (None, ReplyOutcome.FALLBACK)


@pytest.mark.parametrize("trouble", [DatabaseUnavailable("away"), RuntimeError("a surprise")])
async def test_polling_resumes_after_a_database_error(trouble: Exception) -> None:
    store = FakeStore()
    async with open_room(store) as room:
        event_id = store.open()
        store.trouble = trouble
        asked = ask(room, event_id)
        await eventually(lambda: store.looks > 1)
        store.trouble = None
        store.end(event_id, YES)
        assert await asked == (YES, ReplyOutcome.ANSWERED)


async def test_notifications_of_other_events_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reply_waiter, "MAX_RECENT", 3)
    room = ReplyWaiter(FakeStore().find, max_waiting=1)
    for _ in range(10):
        room.on_notification(str(uuid4()))
    room.on_notification("no id")
    assert len(room._seen) == 3


def settings(folder: Path, **keys: object) -> Any:
    lines = [f"{key} = {str(value).lower() if isinstance(value, bool) else repr(value)}" for key, value in keys.items()]
    file = folder / "boathook.toml"
    file.write_text("\n".join(["[sources.stripe]", "secrets = ['whsec_x']", *lines]))
    return load(file)


def test_the_deadline_defaults_to_the_providers(tmp_path: Path) -> None:
    policy = inline_policy(settings(tmp_path, mode="inline"), "stripe")
    recipe = find_recipe("stripe")
    assert policy is not None
    assert policy.within_s == pytest.approx(recipe.answer_within_s * 0.7 if recipe.answer_within_s else 2.0)
    assert (policy.fallback, policy.forbidden_statuses >= {403, 406, 410}) == (None, True)
    assert inline_policy(settings(tmp_path), "stripe") is None
    assert inline_sources(settings(tmp_path)) == {}
    assert set(inline_sources(settings(tmp_path, mode="inline"))) == {"stripe"}


def test_the_fallback_reply_is_configured_by_the_source(tmp_path: Path) -> None:
    policy = inline_policy(settings(tmp_path, mode="inline", fallback_body="<Response/>",
                                    fallback_content_type="text/xml"), "stripe")  # fmt: skip
    assert policy is not None
    assert policy.fallback == Reply(status=200, body=b"<Response/>", content_type="text/xml")
    empty = inline_policy(settings(tmp_path, mode="inline", fallback_status=503), "stripe")
    assert empty is not None
    assert empty.fallback == Reply(status=503, body=b"", content_type="text/plain; charset=utf-8")


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"reply_within_s": 3_600.0}, ["sources.stripe.reply_within_s", "waits only"]),
        ({"fallback_content_type": "text/xml"}, ["sources.stripe.fallback_content_type", "fallback_body"]),
        ({"fallback_status": 409}, ["sources.stripe.fallback_status", "409"]),
    ],
)
def test_an_impossible_policy_is_named_with_its_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: dict[str, object], words: list[str]
) -> None:
    from msgspec.structs import replace

    recipe = replace(find_recipe("stripe"), answer_within_s=10.0, stop_statuses=frozenset({409}))
    monkeypatch.setattr(reply_waiter, "find_source_recipe", lambda _source, _provider: recipe)
    with pytest.raises(ConfigError) as caught:
        inline_policy(settings(tmp_path, mode="inline", **keys), "stripe")
    for word in words:
        assert word in str(caught.value)
