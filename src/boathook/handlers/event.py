"""The event that a handler receives: its JSON is parsed on demand, and it stores results of side effects."""

import asyncio
import hashlib
import inspect
import json
from collections import defaultdict
from collections.abc import Awaitable, Callable
from functools import cached_property
from typing import Any

import msgspec
from msgspec.structs import asdict

from boathook.db.deliveries import DeliveryStore
from boathook.domain import ids, model
from boathook.domain.errors import HandlerMisuse
from boathook.domain.filters import ABSENT
from boathook.domain.json_document import UNREADABLE, get_path, parse, split_path
from boathook.domain.model import Claim
from boathook.domain.replies import Reply, make_reply


class SideEffects:
    """Runs and records the side effects of one attempt."""

    def __init__(self, store: DeliveryStore, claim: Claim) -> None:
        self._store = store
        self._claim = claim
        self._loop = asyncio.get_running_loop()
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def once(self, name: str, do: Callable[[], Awaitable[Any]], *, ends_with_handler: bool) -> Any:
        """Return the stored result of *name*, or run *do*, store its result and return it.

        The result is stored after the call, even if the handler's timeout has expired by then.

        Args:
            name: identifies the side effect.
            do: runs it.
            ends_with_handler: whether *do* is cancelled with the handler; a thread cannot be.
        """
        async with self._locks[name]:
            value = await self._store.find_side_effect(self._claim, name)
            if value is not None:
                return json.loads(value)
            if ends_with_handler:
                return await asyncio.shield(self._save(name, await do()))

            async def run() -> Any:
                return await self._save(name, await do())

            return await asyncio.shield(run())

    async def _save(self, name: str, value: object) -> Any:
        result = _encode(name, value)
        await self._store.save_side_effect(self._claim, name, result)
        return json.loads(result)

    def once_sync(self, name: str, do: Callable[[], Any]) -> Any:
        """Do the same from a thread, running *do* in that thread."""
        value = self._wait(self._store.find_side_effect(self._claim, name))
        if value is not None:
            return json.loads(value)
        result = _encode(name, do())
        self._wait(self._store.save_side_effect(self._claim, name, result))
        return json.loads(result)

    @staticmethod
    def read_back(name: str, result: object) -> Any:
        """Return a result as later attempts get it. Raises HandlerMisuse if JSON cannot hold it."""
        return json.loads(_encode(name, result))

    def _wait(self, awaitable: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(awaitable, self._loop).result()


def _encode(name: str, result: object) -> str:
    try:
        return json.dumps(result, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise HandlerMisuse(
            f"once({name!r}) can only remember values that are valid as JSON, but its function returned "
            f"{type(result).__name__}: {error}. It has been done and is not remembered."
        ) from None


class ReplySlot(msgspec.Struct):
    """Holds one attempt's reply to a waiting sender until the attempt succeeds."""

    forbidden_statuses: frozenset[int]
    """Statuses that are never sent to this sender."""
    reply: Reply | None = None


class Event(model.Event, frozen=True, kw_only=True, dict=True):
    """One accepted fact, immutable, as passed to a handler."""

    attempt: int
    """The number of this attempt, from 1."""
    recipient: str
    """The recipient of the delivery, such as ``handler:upgrade``."""
    item_path: str | None = None
    """Path in the JSON body of the item that is delivered, such as ``events.3``; None for the whole event. With a path,
    `type` is the type of the item."""
    _effects: SideEffects
    _slot: ReplySlot | None = None
    """None if the source's senders do not wait for a handler."""

    def __repr__(self) -> str:
        return f"Event({', '.join(f'{name}={getattr(self, name)!r}' for name in _PUBLIC_FIELDS)})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Event):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in _PUBLIC_FIELDS)

    __hash__ = None  # type: ignore[assignment]  # the headers are a mapping, which has no hash

    @property
    def request_id(self) -> str | None:
        """The id under which the gateway logged and answered the request, if its source has ``keep_request_id``."""
        return self.headers.get(model.REQUEST_ID)

    @cached_property
    def json(self) -> Any:
        """The body, parsed as JSON on first access.

        Raises:
            ValueError: the body is not JSON; the message names the event.
        """
        try:
            return msgspec.json.decode(self.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            # The lenient parser accepts every body that was verified and routed: a lone surrogate in one item must not
            # make a batch unreadable.
            document = parse(self.body)
            if document is not UNREADABLE:
                return document
            raise ValueError(
                f"the body of {ids.show(ids.EVENT, self.id)} ({self.content_type or 'no content type'}) is not JSON: "
                f"{error}. Use event.body for its bytes."
            ) from None

    @cached_property
    def item(self) -> Any:
        """The item of the body that is delivered, for senders of batches; else `json`.

        Raises:
            ValueError: the body is not JSON, or the item is missing; the message names the event.
        """
        if self.item_path is None:
            return self.json
        value = get_path(self.json, split_path(self.item_path), ABSENT)
        if value is ABSENT:
            raise ValueError(f"the body of {ids.show(ids.EVENT, self.id)} has no item at {self.item_path!r}")
        return value

    def idempotency_key(self, name: str) -> str:
        """Return a key for external services that is the same for every attempt and replay."""
        subject = str(self.id) if self.item_path is None else f"{self.id}#{self.item_path}"
        return hashlib.sha256(f"{subject}/{self.recipient}/{name}".encode()).hexdigest()[:40]

    def reply(self, body: object, *, status: int = 200, content_type: str | None = None) -> None:
        """Reply to the sender with *body* if the source has ``mode = "inline"``; otherwise do nothing.

        Bytes are sent unchanged, text as UTF-8, anything else as JSON; *content_type* defaults accordingly. The reply
        is committed together with the handler's success. A failed attempt sends no reply, and its retry starts without
        one. The last call counts. If there are several handlers, the first to finish replies.

        Raises:
            HandlerMisuse: this reply cannot be sent to the sender; the message says what to write.
        """
        if self._slot is None:
            return
        try:
            self._slot.reply = make_reply(body, status, content_type, self._slot.forbidden_statuses)
        except ValueError as error:
            raise HandlerMisuse(f"event.reply: {error}") from None

    async def once(self, name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call *function* and store its result, so that later attempts get the result without another call.

        The result is committed immediately, independent of the handler's transaction: a rollback does not undo it. It
        must be JSON-serializable. A crash between the call and that commit leads to a second call, so use an
        idempotency key: a parameter named ``idempotency_key`` is filled in automatically.

        Raises:
            LeaseLost: another worker holds the delivery, so nothing was called.
            HandlerMisuse: the result is not JSON; the delivery is dead-lettered, as a retry would repeat the call.
        """
        keyed = self._with_key(name, function, kwargs)
        is_async = inspect.iscoroutinefunction(function)

        async def do() -> Any:
            if is_async:
                return await function(*args, **keyed)
            result = await asyncio.to_thread(function, *args, **keyed)
            return await result if inspect.isawaitable(result) else result

        return await self._effects.once(name, do, ends_with_handler=is_async)

    def once_sync(self, name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Do what `once` does from a sync handler, calling *function* in its thread."""
        keyed = self._with_key(name, function, kwargs)
        return self._effects.once_sync(name, lambda: function(*args, **keyed))

    def _with_key(self, name: str, function: Callable[..., Any], kwargs: dict[str, Any]) -> dict[str, Any]:
        if "idempotency_key" in kwargs or not _takes_key(function):
            return kwargs
        return {**kwargs, "idempotency_key": self.idempotency_key(name)}


_PUBLIC_FIELDS = tuple(name for name in Event.__struct_fields__ if not name.startswith("_"))


def make_event(event: model.Event, claim: Claim, store: DeliveryStore, slot: ReplySlot | None = None) -> Event:
    """Return *event* as the handler of *claim* receives it."""
    fields = asdict(event) | {"attempt": claim.attempt, "recipient": claim.recipient, "item_path": claim.item_path}
    if claim.item_type is not None:
        fields["type"] = claim.item_type
    return Event(**fields, _effects=SideEffects(store, claim), _slot=slot)


def _takes_key(function: Callable[..., Any]) -> bool:
    try:
        return "idempotency_key" in inspect.signature(function).parameters
    except (TypeError, ValueError):  # a builtin without a signature takes no such key
        return False
