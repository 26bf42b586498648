"""Runs handlers in a test, on a session of the test and without a server."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Generator, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager, nullcontext
from typing import Any, Final, assert_never

from msgspec.structs import replace

from boathook.db.route_registry import Routing
from boathook.db.sql_functions import sqlstate
from boathook.domain.errors import ConfigError, HandlerMisuse, NotFound
from boathook.domain.filters import Router
from boathook.domain.json_document import UNREADABLE, parse
from boathook.domain.messages import Message
from boathook.domain.model import Accepted, Claim, NewDelivery, Published
from boathook.domain.policy import Dead, Failure, Ignore, Retry, Success, WaitFor, describe_wait
from boathook.handlers.api import Boathook
from boathook.handlers.event import Event, ReplySlot
from boathook.handlers.handler import Handler
from boathook.handlers.outbox import CompiledRoutes, Outbox
from boathook.handlers.runner import Unsuccessful, invoke, is_cancelled, make_failure, read_outcome
from boathook.handlers.sessions import library_of, refusing_commit
from boathook.handlers.threads import ThreadPool
from boathook.handlers.transaction import SyncTransaction, Transaction
from boathook.testing.events import RememberedEffects
from boathook.testing.results import HandlerResult, PublishedMessage, RunResult, print_failures

_HAS_ENDED: Final = "the handler ended the transaction that was opened for it"
_NO_SCHEMA: Final = frozenset({"3F000", "42883"})
"""SQLSTATEs of a missing schema and of a missing function."""
_LIBRARIES: Final = frozenset({"asyncpg", "django", "psycopg", "sqlalchemy"})
"""The libraries whose sessions can be rolled back."""


class HandlerRun:
    """The handlers of one event, to be run: ``await`` it, or use it as an asynchronous context manager."""

    def __init__(self, hook: Boathook, event: Event, session: Any) -> None:
        self._hook = hook
        self._event = event
        self._session = session
        self._stack = AsyncExitStack()

    def __await__(self) -> Generator[Any, None, RunResult]:
        return self._run().__await__()

    async def _run(self) -> RunResult:
        __tracebackhide__ = True  # pytest then shows the test's line with the error
        async with self as result:
            return result

    async def __aenter__(self) -> RunResult:
        __tracebackhide__ = True
        async with AsyncExitStack() as stack:
            handlers = _matching(self._hook, self._event)
            for handler in handlers:
                _check_async(handler, self._session)
            if self._session is not None:
                await stack.enter_async_context(rolled_back(self._session))
            with _recording(self._hook) as outbox:
                attempts = [_Attempt(handler, self._event, outbox) for handler in handlers]
                for attempt in attempts:
                    await attempt.run(self._session)
            self._stack = stack.pop_all()
        return _result(attempts)

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()


def run(hook: Boathook, event: Event, *, session: Any = None) -> HandlerRun:
    """Run the handlers of *hook* that match an event, each in a savepoint of a transaction that is rolled back.

    ``result = await run(...)`` rolls back at once. In ``async with run(...) as result:`` the session shows the effects
    until the end of the block. If the session is inside a transaction already, only what the handlers did in it is
    rolled back. A handler's exception is part of the result; it is not raised.

    Args:
        hook: Declares the handlers.
        event: The event, as `boathook.testing.event` returns it.
        session: What the handlers get: an open asyncpg connection for those that take a `Transaction`, else the session
            of their library. Its database needs boathook's schema if they publish or call `Transaction.newer`.

    Raises:
        NotFound: no handler matches; the message lists the handlers.
        ConfigError: a handler needs another session; the message says which.
    """
    return HandlerRun(hook, event, session)


@contextmanager
def run_sync(hook: Boathook, event: Event, *, session: Any = None) -> Iterator[RunResult]:
    """Do what `run` does for functions without ``async`` and their sync sessions, in the calling thread.

    It is a context manager: ``with run_sync(...) as result:``.
    """
    handlers = _matching(hook, event)
    for handler in handlers:
        _check_sync(handler, session)
    with ExitStack() as stack:
        if session is not None:
            stack.enter_context(_rolled_back_sync(session))
        with _recording(hook) as outbox:
            attempts = [_Attempt(handler, event, outbox) for handler in handlers]
            for attempt in attempts:
                attempt.run_sync(session)
        yield _result(attempts)


class _RecordingOutbox(Outbox):
    """Publishes as usual, with the handlers of *hook* as if they were registered, and keeps what was stored."""

    def __init__(self, hook: Boathook) -> None:
        super().__init__()
        self.messages: list[PublishedMessage] = []
        self._routes = hook.routes("")

    def cache_routes(self, organization: str, application: str, routing: Routing) -> CompiledRoutes:
        if routing.application is None and not routing.routes:
            declared = tuple(route for route in self._routes if route.application == application)
            routing = replace(routing, routes=declared)
        return super().cache_routes(organization, application, routing)

    async def publish(self, session: Any, message: Message, *, passes_on: bool = True) -> Published:
        return self._kept(message, await super().publish(session, message, passes_on=passes_on))

    def publish_sync(self, session: Any, message: Message) -> Published:
        return self._kept(message, super().publish_sync(session, message))

    def _kept(self, message: Message, outcome: Published) -> Published:
        if isinstance(outcome, Accepted):
            draft = self.draft(message)
            document = parse(draft.body)
            self.messages.append(
                PublishedMessage(
                    application=message.application,
                    type=message.type,
                    payload=draft.body if document is UNREADABLE else document,
                    channels=draft.channels,
                    tags=draft.tags,
                )
            )
        return outcome


@contextmanager
def _recording(hook: Boathook) -> Iterator[_RecordingOutbox]:
    recorder = _RecordingOutbox(hook)
    previous, hook._outbox = hook._outbox, recorder  # noqa: SLF001 the outbox is not part of the public API
    try:
        yield recorder
    finally:
        hook._outbox = previous  # noqa: SLF001 the same


class _Attempt:
    """One handler's attempt at an event."""

    def __init__(self, handler: Handler, event: Event, outbox: _RecordingOutbox) -> None:
        self.handler = handler
        self.slot = ReplySlot(frozenset())
        self.messages: list[PublishedMessage] = []
        effects = event._effects  # noqa: SLF001 no part of the public API
        if not isinstance(effects, RememberedEffects):
            raise ConfigError("the event of run and run_sync is made by boathook.testing.event")
        self._effects = effects.of(handler.recipient)
        self._event = replace(event, recipient=handler.recipient, _effects=self._effects, _slot=self.slot)
        self._outbox = outbox
        self._outcome: Success | Ignore | Retry | WaitFor | Dead | Failure = Success()
        self._error: BaseException | None = None

    async def run(self, session: Any) -> None:
        with self._ended(session):
            async with nullcontext() if session is None else _savepoint(session):
                value = await self._call(session)
                self._conclude(value)

    def run_sync(self, session: Any) -> None:
        with self._ended(session), nullcontext() if session is None else _savepoint_sync(session):
            self._conclude(invoke(self.handler, self._event, session))

    async def _call(self, session: Any) -> object:
        if not self.handler.takes_session or self.handler.session is not None:
            if not self.handler.is_async:
                return await self._thread(session)
            return await invoke(self.handler, self._event, session)
        transaction = Transaction(session, self._claim())
        if self.handler.is_async:
            return await invoke(self.handler, self._event, transaction)
        return await self._thread(SyncTransaction(transaction, asyncio.get_running_loop()))

    async def _thread(self, session: Any) -> object:
        return await ThreadPool().run(lambda: invoke(self.handler, self._event, session)).future

    def _conclude(self, value: object) -> None:
        self._outcome = read_outcome(value)
        if isinstance(self._outcome, Retry | WaitFor | Dead):
            raise Unsuccessful(self._outcome)

    @contextmanager
    def _ended(self, session: Any) -> Iterator[None]:
        """Record how the attempt in the block ended."""
        first = len(self._outbox.messages)
        try:
            yield
        except Unsuccessful:
            pass
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            # As in a worker: whatever the user's code raises, unless the test itself is cancelled.
            if isinstance(error, asyncio.CancelledError) and is_cancelled():
                raise
            _check_schema(error, session)
            self._error = HandlerMisuse(_HAS_ENDED) if _is_ended(session) else error
            self._outcome = make_failure(self._error, self.handler)
        messages = self._outbox.messages[first:]
        self.messages = messages if isinstance(self._outcome, Success | Ignore) else []

    def _claim(self) -> Claim:
        event = self._event
        return Claim(
            event_id=event.id,
            ordinal=0,
            recipient=event.recipient,
            fence=1,
            attempt=event.attempt,
            attempts_before=0,
            enqueued_at=event.accepted_at,
            order_key=None,
            suspect=False,
        )

    @property
    def result(self) -> HandlerResult:
        name, effects = self.handler.name, dict(self._effects.results)
        match self._outcome:
            case Success():
                return HandlerResult(handler=name, outcome="succeeded", effects=effects)
            case Ignore(reason):
                return HandlerResult(handler=name, outcome="ignored", note=reason, effects=effects)
            case Retry(code=code, dependency=dependency):
                return HandlerResult(handler=name, outcome="retry", code=code, dependency=dependency, effects=effects)
            case WaitFor() as wait:
                return HandlerResult(
                    handler=name, outcome="waiting", code=wait.code, note=describe_wait(wait), effects=effects
                )
            case Dead(code, note, dependency):
                return HandlerResult(
                    handler=name, outcome="dead", code=code, note=note, dependency=dependency, effects=effects
                )
            case Failure() as failure:
                return HandlerResult(
                    handler=name,
                    outcome="failed",
                    code=failure.code,
                    error=failure.error,
                    traceback=failure.traceback,
                    exception=self._error,
                    is_final=failure.is_final,
                    dependency=failure.dependency,
                    effects=effects,
                )
            case _:
                assert_never(self._outcome)


def _result(attempts: Sequence[_Attempt]) -> RunResult:
    succeeded = [
        attempt
        for attempt in attempts
        if attempt.slot.reply is not None and attempt.result.outcome in {"succeeded", "ignored"}
    ]
    handlers = tuple(attempt.result for attempt in attempts)
    print_failures(handlers)
    return RunResult(
        handlers=handlers,
        published=tuple(message for attempt in attempts for message in attempt.messages),
        reply=succeeded[0].slot.reply if succeeded else None,
    )


def _matching(hook: Boathook, event: Event) -> list[Handler]:
    """Return the handlers that a worker would run, in their order. Raises NotFound."""
    if not isinstance(event, Event):
        raise ConfigError(f"run takes an event of boathook.testing.event, not {type(event).__name__}")
    router = Router(hook.routes(hook.name), 0)
    matched: Sequence[NewDelivery]
    if event.item_path is None:
        matched = router.route(
            source=event.source,
            application=event.application,
            type=event.type,
            headers=event.headers,
            body=event.body,
        )
    else:
        items = [(event.type, event.item)]
        matched = router.route_items(source=str(event.source), headers=event.headers, items=items)
    by_recipient = {handler.recipient: handler for handler in hook.handlers.values()}
    handlers = [by_recipient[run.recipient] for run in matched]
    if not handlers:
        raise NotFound(_describe_missing(hook, event, router))
    return handlers


def _describe_missing(hook: Boathook, event: Event, router: Router) -> str:
    origin = event.source or f"application {event.application}"
    if router.fits(source=event.source, application=event.application, type=event.type):
        return f"a handler takes {event.type!r} of {origin}, but its filter= does not match this event"
    lines = [
        f"{handler.name} takes {line.source or line.application or 'any source'}: {', '.join(line.types)}"
        for handler in hook.handlers.values()
        for line in handler.lines
    ]
    handlers = "; ".join(lines) if lines else "it has none: import the module that defines them"
    return f"no handler of this Boathook takes {event.type!r} of {origin}; {handlers}"


def _wanted(handler: Handler) -> str:
    if handler.session is not None:
        return "the session of its own library"
    kind = "a Transaction" if handler.is_async else "a SyncTransaction"
    return f"{kind}, which is on an asyncpg connection"


def _check_async(handler: Handler, session: Any) -> None:
    """Raise ConfigError if `run` cannot run a handler on this session."""
    if not handler.takes_session:
        return
    _check_given(handler, session)
    if not _is_async(session):
        fix = "is async; pass an async session" if handler.is_async else "has a sync session; use `with run_sync(...)`"
        raise ConfigError(f"handler {handler.name} {fix}")
    if handler.session is None and library_of(session) != "asyncpg":
        raise ConfigError(
            f"handler {handler.name} takes {_wanted(handler)}: pass session=await asyncpg.connect(...), or declare the"
            " handler with session="
        )


def _check_sync(handler: Handler, session: Any) -> None:
    """Raise ConfigError if `run_sync` cannot run a handler on this session."""
    if handler.is_async:
        raise ConfigError(f"handler {handler.name} is async; use `await run(...)`")
    if not handler.takes_session:
        return
    if handler.session is None:
        raise ConfigError(f"handler {handler.name} takes {_wanted(handler)}; use `await run(...)`")
    _check_given(handler, session)
    if _is_async(session):
        raise ConfigError(f"handler {handler.name} is sync; pass a sync session")


def _check_given(handler: Handler, session: Any) -> None:
    if session is None:
        raise ConfigError(f"handler {handler.name} takes {_wanted(handler)}; pass an open one as session=")
    if library_of(session) not in _LIBRARIES:
        raise _unknown_session(session)


def _is_ended(session: Any) -> bool:
    """Return whether an asyncpg connection has no transaction any more; other libraries refuse to end it."""
    return session is not None and library_of(session) == "asyncpg" and not session.is_in_transaction()


def _check_schema(error: BaseException, session: Any) -> None:
    """Raise ConfigError if a handler failed because the test's database lacks boathook's schema."""
    if session is not None and sqlstate(error) in _NO_SCHEMA and "boathook" in str(error):
        raise ConfigError(
            "the database of session= lacks boathook's schema, which publish and newer need: run `boathook migrate`"
            " on it, or use the database of the fixture boathook_server"
        ) from error


def _is_async(session: Any) -> bool:
    """Return whether the methods of a session of a supported library are awaited."""
    return library_of(session) == "asyncpg" or inspect.iscoroutinefunction(getattr(session, "execute", None))


@asynccontextmanager
async def rolled_back(session: Any) -> AsyncIterator[None]:
    """Roll back what the block does through an async session: to where it began, if a transaction is open."""
    match library_of(session):
        case "asyncpg":
            is_savepoint = session.is_in_transaction()
            transaction = session.transaction()
            await transaction.start()
            try:
                yield
            finally:
                # If the handler ended the test's transaction, the savepoint is gone; the result says so.
                if session.is_in_transaction() or not is_savepoint:
                    await transaction.rollback()
        case "psycopg":
            async with session.transaction(force_rollback=True):
                yield
        case "sqlalchemy":
            transaction = await (session.begin_nested() if session.in_transaction() else session.begin())
            try:
                yield
            finally:
                if transaction.is_active:
                    await transaction.rollback()
        case _:
            raise _unknown_session(session)


@asynccontextmanager
async def _savepoint(session: Any) -> AsyncIterator[None]:
    """Roll back what the block does through an async session if it raises, or ends the _savepoint."""
    if library_of(session) != "sqlalchemy":
        async with session.transaction():
            yield
        return
    async with session.begin_nested() as nested:
        with refusing_commit(session.sync_session, nested.sync_transaction):
            yield


@contextmanager
def _rolled_back_sync(session: Any) -> Iterator[None]:
    """Roll back what the block does through a sync session: to where it began, if a transaction is open."""
    match library_of(session):
        case "psycopg":
            with session.transaction(force_rollback=True):
                yield
        case "sqlalchemy":
            transaction = session.begin_nested() if session.in_transaction() else session.begin()
            try:
                yield
            finally:
                if transaction.is_active:
                    transaction.rollback()
        case "django":
            from django.db import transaction as blocks

            with blocks.atomic(session.alias):
                try:
                    yield
                finally:
                    blocks.set_rollback(True, session.alias)
        case _:
            raise _unknown_session(session)


@contextmanager
def _savepoint_sync(session: Any) -> Iterator[None]:
    """Do the same through a sync session."""
    match library_of(session):
        case "django":
            from django.db import transaction

            with transaction.atomic(session.alias):
                yield
        case "sqlalchemy":
            with session.begin_nested() as nested, refusing_commit(session, nested):
                yield
        case _:
            with session.transaction():
                yield


def _unknown_session(session: Any) -> ConfigError:
    """Return the error for a session that handlers cannot run on."""
    name = f"{type(session).__module__}.{type(session).__qualname__}"
    return ConfigError(
        f"session= is a {name}; pass an asyncpg connection, or a session of SQLAlchemy, psycopg or Django that the test"
        " has opened"
    )
