"""The `Boathook` object: what an app declares, and the services that boathook provides while it runs."""

from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from boathook.config import RetentionSettings
from boathook.db.sql_functions import SIGNAL
from boathook.domain.due import ANY_DUE
from boathook.domain.errors import ConfigError, InvalidValue
from boathook.domain.messages import Message
from boathook.domain.model import Receipt, Route
from boathook.domain.policy import MAX_KEY, Breaker, ErrorRule, RetryDefaults, RetryPolicy, is_key
from boathook.handlers.app_alerts import AppAlert
from boathook.handlers.collector import add_due
from boathook.handlers.event import Event
from boathook.handlers.handler import Handler, combine, make_handler, make_route_spec
from boathook.handlers.manifest import (
    USUAL_BOUNDS,
    AppMetric,
    Asgi,
    Channels,
    Check,
    Chore,
    Manifest,
    Mount,
    Sources,
    make_metric,
    make_mirror,
)
from boathook.handlers.metric_history import MetricPoint
from boathook.handlers.outbox import Outbox, receipt_of
from boathook.handlers.platform import Http, Operations, Platform
from boathook.handlers.sessions import AsyncSessions, SyncSessions, call, call_sync
from boathook.handlers.transaction import SyncTransaction, Transaction
from boathook.observability.log import get_logger
from boathook.observability.metrics import LabelValue, LabelValues, MetricKind

__all__ = ["Boathook", "Event", "SyncTransaction", "Transaction"]

Function = TypeVar("Function", bound=Callable[..., Any])
Result = TypeVar("Result")


class Boathook:
    """Declares the handlers of one app, publishes its events, and gives access to boathook's services.

    Args:
        name: For an app listed in ``apps.load``: the name of its table in boathook.toml, its database schema and its
            command, and the prefix of its handlers, ``name.function``.
        settings: Model that validates that table; `settings` is then an instance of it. References such as ``env:NAME``
            stay unresolved until `resolve` is called.
        migrations: A folder of ``NNNN_what.sql`` files, each applied once, in order, by ``boathook migrate``.
    """

    def __init__(
        self, name: str = "", *, settings: type[BaseModel] | None = None, migrations: Path | None = None
    ) -> None:
        self.name = name
        self.handlers: dict[str, Handler] = {}
        self.manifest = Manifest(settings=settings, migrations=migrations)
        self.log = get_logger(name or "app")
        self._settings: BaseModel | None = None
        self._platform: Platform | None = None
        self._outbox = Outbox()

    @property
    def settings(self) -> Any:
        """The app's own settings. Raises ConfigError before boathook has loaded the app."""
        if self._settings is None:
            raise ConfigError(
                f"the settings of {self.name or 'an app without a name'} are known once boathook loads it"
            )
        return self._settings

    @property
    def platform(self) -> Platform:
        """The services for a running app. Raises ConfigError if boathook does not run the app."""
        if self._platform is None:
            raise ConfigError(f"{self.name or 'this app'} is not loaded by boathook, so it has no database")
        return self._platform

    def bind(
        self, settings: BaseModel | None, platform: Platform | None, retention: RetentionSettings | None = None
    ) -> None:
        """Set the app's settings, its platform, and how long its messages are remembered, when boathook loads it."""
        self._settings = settings
        self._platform = platform
        if retention is not None:
            self._outbox = Outbox.of(retention)

    def sources(self, function: Sources) -> Sources:
        """Make the decorated function declare the sources that the app needs.

        It takes the app's settings and returns the tables ``[sources.NAME]`` by name. Keys that the operator sets in
        boathook.toml take precedence. None instead of a table: with these settings, the app's handlers of that source
        are not used.
        """
        self.manifest.sources = function
        return function

    def channels(self, function: Channels) -> Channels:
        """Make the decorated function declare channels for alerts, from settings that the app has for them.

        It takes the app's settings and returns the tables ``[notifications.channels.NAME]`` by name. A channel of
        that name in boathook.toml takes precedence.
        """
        self.manifest.channels = function
        return function

    def check(self, function: Check) -> Check:
        """Make the decorated function check the app's settings, at the start and for doctor and ``config check``.

        It takes the app's settings, and whether ``server.production`` is true. It yields what is valid and probably not
        meant, as pairs of a sentence and its fix. It raises `ConfigError` for what must prevent a start.
        """
        self.manifest.check = function
        return function

    def ignored_variables(self, variables: Mapping[str, tuple[str, str]]) -> None:
        """Name environment variables of a system that the app replaces, which have no effect here.

        Those that are set are named at the start, by doctor and by ``config check``, unless a setting refers to them as
        ``env:NAME``.

        Args:
            variables: by name, why the variable has no effect, and what to do instead.
        """
        self.manifest.ignored_variables = dict(variables)

    def every(self, seconds: float, *, name: str | None = None) -> Callable[[Function], Function]:
        """Run the decorated function periodically; it is async and takes no arguments.

        It runs in one process across all hosts, the elected keeper, and never concurrently with itself. An error is
        logged, and the function runs again at the next interval. A run that takes longer than the interval delays the
        next one. Move CPU-bound or blocking work to ``asyncio.to_thread``, or it blocks the keeper. The run is
        cancelled with `asyncio.CancelledError` when boathook stops or another process becomes the keeper.
        """
        if callable(seconds):
            raise ConfigError("hook.every needs its interval in seconds: write @hook.every(60)")

        def decorate(function: Function) -> Function:
            title = name or str(getattr(function, "__name__", "chore"))
            chore = Chore(name=title, every_s=seconds, function=function)
            self.manifest.add_chore(chore)
            return function

        return decorate

    def mount(self, path: str, app: Asgi, *, is_open: bool = False) -> None:
        """Serve an ASGI application, including WebSockets, at *path* and all paths below it, on the gateway's port.

        The application gets *path* as ASGI's ``root_path``, so frameworks match their routes against the rest. At ``/``
        it gets every path that is not boathook's own.

        Unless *is_open* is set, clients must send a token as ``Authorization: Bearer TOKEN``, or a browser's WebSocket
        as its first message ``{"token": "TOKEN"}``: that of an API key (``boathook keys create``), or of a user as
        ``[jwt]`` and ``[mounts."/PATH"]`` allow. ``scope["state"]`` has the ``actor`` and their ``role``: a ``reader``
        gets no further than ``GET``, ``HEAD``, ``OPTIONS`` and WebSockets, an ``operator`` may do everything.

        Source paths take precedence over mounted paths, and longer mounted paths over shorter ones.

        Raises:
            ConfigError: *path* does not start with a slash, is not a plain path, or is already mounted.
        """
        if not path.startswith("/"):
            raise ConfigError(f'hook.mount: {path!r} must start with "/"')
        self.manifest.add_mount(Mount(path=path.removesuffix("/"), app=app, is_open=is_open))

    def commands(self, app: Any) -> None:
        """Run a `typer.Typer` as ``boathook <name> ...``."""
        self.manifest.commands = app

    def counter(self, name: str, help: str, *labels: str) -> AppMetric:
        """Declare a counter; count with ``.add(n, label=value)``. It appears in /metrics."""
        return make_metric(self.name, MetricKind.COUNTER, name, help, labels)

    def gauge(self, name: str, help: str, *labels: str) -> AppMetric:
        """Declare a gauge; set it with ``.set(value, label=value)``. Values of several processes are added up."""
        return make_metric(self.name, MetricKind.GAUGE, name, help, labels)

    def histogram(self, name: str, help: str, *labels: str, bounds: Sequence[float] = USUAL_BOUNDS) -> AppMetric:
        """Declare a histogram; record with ``.observe(value, label=value)``. *bounds* are ascending bucket bounds."""
        return make_metric(self.name, MetricKind.HISTOGRAM, name, help, labels, bounds)

    def mirror(
        self,
        name: str,
        help: str,
        *,
        of: str,
        where: Mapping[str, LabelValues] | None = None,
        labels: Mapping[str, str] | None = None,
        constants: Mapping[str, LabelValue] | None = None,
    ) -> None:
        """Export the metric *of*, of boathook or of an app, in /metrics under a second name.

        It has the type and buckets of that metric and is computed from it on each scrape. Several calls with the same
        *name*, *help* and label names add series to one metric. Call it at module import; use functions for values that
        depend on the settings.

        Args:
            name: The exported name.
            help: The help text.
            of: The name of the metric that it is computed from.
            where: Labels of that metric with the value, or the values, that a series must have to be counted.
            labels: Exported labels, each with the label of that metric that provides its values; other labels are
                summed over.
            constants: Exported labels with a constant value. Here and in *where* a value may be a function that returns
                it, such as ``lambda: hook.settings.provider``.

        Raises:
            ConfigError: the metric *of* or one of its labels does not exist, or *name* is invalid or taken.
        """
        make_mirror(self.name, name, help, of, where or {}, labels or {}, constants or {})

    async def metric_history(self, minutes: float = 60.0, *, step_s: int = 60) -> list[MetricPoint]:
        """Return the history of the app's metrics on all hosts, oldest first; it survives restarts.

        It has what the app has declared by `counter`, `gauge`, `histogram` and `mirror`; mirror a metric of boathook to
        have its history too. Each minute is kept for seven days. Minutes in which no host ran are left out, and the
        last point is incomplete.

        Args:
            minutes: How far back it goes.
            step_s: Seconds of each point, a multiple of 60.

        Raises:
            InvalidValue: an argument is out of range.
            DatabaseUnavailable: PostgreSQL cannot be reached.
        """
        return await self.platform.metric_history(self.name, minutes=minutes, step_s=step_s)

    def alert_rule(self, name: str, summary: str, *, metric: str, **keys: Any) -> None:
        """Declare an alert rule: operators are notified when a metric of boathook or an app crosses a threshold.

        The operator can change any key under ``[notifications.rules."APP.NAME"]``, including the channels.

        Args:
            name: The rule's name is this, prefixed with the app's name.
            summary: The meaning in one sentence; ``{subject}`` is replaced by the values of the labels in *by*.
            metric: The metric's name.
            keys: Any other key of ``[notifications.rules.NAME]``: ``above`` or ``below``, ``labels``, ``by``,
                ``for_s``, ``severity``, ``advice`` ...

        Raises:
            ConfigError: a key is invalid, or the name is taken.
        """
        self.manifest.add_alert_rule(f"{self.name}.{name}", {**keys, "summary": summary, "metric": metric})

    def alert(self, name: str, summary: str, **keys: Any) -> AppAlert:
        """Declare an alert that the app fires itself, or decides by a check; see `AppAlert`.

        It is sent to the configured channels, listed on the console and by ``boathook alerts list``, and silenced, as
        those of boathook itself. The operator can change any key under ``[notifications.rules."APP.NAME"]``.

        Args:
            name: The rule's name is this, prefixed with the app's name.
            summary: The meaning in one sentence; ``{subject}``, ``{value}`` and the names of details are replaced.
            keys: Any other key of ``[notifications.rules.NAME]``: ``severity``, ``advice``, ``above`` (0 if neither it
                nor ``below`` is given), ``over_s`` (900: how long it stays after it was last fired),
                ``repeat_interval_s``, ``channels`` ...

        Raises:
            ConfigError: a key is invalid, or the name is taken.
        """
        title = f"{self.name}.{name}"
        threshold = {} if "below" in keys else {"above": 0.0}
        rule = {"over_s": 900.0, "clear_s": 0.0, **threshold, **keys, "summary": summary, "rows": "fired"}
        self.manifest.add_alert_rule(title, rule)
        return AppAlert(title, self.manifest)

    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        """Open a transaction outside of a handler; it commits at the end of the block and rolls back on an error.

        It does not support `newer`, which stores its state by handler. Events published in it are delivered right after
        the commit.
        """
        return self.platform.transaction()

    async def publish_live(self, tx: Transaction, channel: str, message: Any) -> None:
        """Send *message* (JSON, up to 7,900 bytes) to the channel's subscribers in all processes when *tx* commits."""
        await self.platform.publish_live(tx, channel, message)

    def subscribe(self, channel: str) -> AsyncIterator[Any]:
        """Yield the live messages on *channel* from now on; a slow subscriber loses the oldest."""
        return self.platform.subscribe(channel)

    @property
    def operations(self) -> Operations:
        """Actions on deliveries, dead letters, applications and endpoints; see `boathook.handlers.platform`."""
        return self.platform.operations

    @property
    def http(self) -> Http:
        """The guarded HTTP client; see `boathook.handlers.platform`."""
        return self.platform.http

    @property
    def data_dir(self) -> Path:
        """`server.data_dir`: this host's folder for files of the app."""
        return self.platform.data_dir

    def resolve(self, reference: str, key: str) -> str:
        """Return the text that ``env:NAME`` or ``file:PATH`` refers to, or other text unchanged; errors name *key*."""
        return self.platform.resolve(reference, f"{self.name}.{key}")

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run the asynchronous part of a command to completion, with access to the database."""
        result: Result = self.platform.run(work)
        return result

    def on(
        self,
        source: str | None = None,
        *types: str,
        application: str | None = None,
        name: str | None = None,
        order_by: str | None = None,
        filter: Mapping[str, Any] | None = None,
        since: str | timedelta | None = None,
        retry: RetryPolicy | None = None,
        timeout: float | None = None,
        concurrency: int | Callable[[], int | None] | None = None,
        breaker: Breaker | None = None,
        retry_on: tuple[ErrorRule, ...] | None = None,
        final: tuple[type[BaseException], ...] = (),
        session: AsyncSessions | SyncSessions | None = None,
    ) -> Callable[[Function], Function]:
        """Register the decorated function for events of *source* whose type matches one of *types*.

        The function takes the `Event` and optionally a `Transaction` (a `SyncTransaction` for sync functions, or the
        session that *session* opens). Its writes in that transaction are committed together with the end of the
        delivery, or not at all. Returning None is success; `Ignore`, `Retry`, `WaitFor` and `Dead` are further return
        values; an exception is a failed attempt. Sync functions run in a thread. Several decorators on one function are
        several routes of one handler: an event that matches more than one is delivered once.

        Args:
            source: The source's name in boathook.toml; None for any source, or with *application*.
            types: Patterns in which ``*`` matches any characters; none means every type.
            application: Handle messages published for this application instead.
            name: The handler's stable name, under which its deliveries are stored; defaults to the function's name.
            order_by: Dotted path into the JSON body; events with the same value there are handled in order, one at a
                time.
            filter: Conditions on body and headers, see `boathook.domain.filters`.
            since: When this handler is first registered, also deliver matching events accepted within this time, such
                as ``"7d"`` or ``"2h"``. This happens once, in the background.
            retry: When to retry and when to give up; None uses ``retry`` of the source, else ``worker.retry``.
            timeout: Maximum seconds of one attempt.
            concurrency: Maximum concurrent attempts over all workers; a function is called after the app's settings are
                loaded.
            breaker: Pauses this handler while the dependency that it names keeps failing.
            retry_on: Exceptions after which a retry can help, as classes or functions that take one, such as
                `HTTP_DEFAULTS`; any other dead-letters the delivery at once, with its name as the code. None: a retry
                follows any exception. Timeouts of the attempt, lost workers and `Retry` are always retried.
            final: Exceptions after which no retry is made, also if *retry_on* selects them.
            session: Opens a session of another library instead of the `Transaction`, see `boathook.handlers.sessions`.

        Raises:
            ConfigError: an argument is invalid, or another function has this handler's name.
        """
        line = make_route_spec(source, application, types, order_by, filter, since)
        options = {
            "retry": retry,
            "timeout_s": timeout,
            "concurrency": concurrency,
            "breaker": breaker,
            "retry_on": retry_on,
            "final": final,
            "session": session,
        }

        def decorate(function: Function) -> Function:
            handler = make_handler(function, name, line, self.name)
            self.handlers[handler.name] = combine(self.handlers.get(handler.name), handler, options)
            return function

        return decorate

    def routes(self, app: str, *, timeout_s: float = 30.0, retries: RetryDefaults | None = None) -> list[Route]:
        """Return the routes of all handlers, with *app* as their owner."""
        retries = retries or RetryDefaults()
        return [
            route
            for handler in self.handlers.values()
            for route in handler.routes(app, timeout_s, retries)
            if route.source is None or route.source not in self.manifest.unused_sources
        ]

    async def signal(self, tx: Any, key: str) -> None:
        """Try deliveries again that wait for *key* (`WaitFor`), when the transaction of *tx* commits.

        Call it in the transaction that writes what they wait for; in SQL, such as a trigger on a table that another
        system writes, it is ``boathook.signal(key)``. If nothing waits for the key, nothing happens. It is for code
        outside of the hot path: a signal is a row, kept for an hour.

        Args:
            tx: A session as for `publish`.
            key: The key.

        Raises:
            InvalidValue: the key is empty, longer than 200 characters or not printable.
        """
        if await call(tx, SIGNAL, _signal_arguments(key)):
            add_due(tx, ANY_DUE)

    def signal_sync(self, tx: Any, key: str) -> None:
        """Do what `signal` does, through a `SyncTransaction` or a sync session."""
        if call_sync(tx, SIGNAL, _signal_arguments(key)):
            add_due(tx, ANY_DUE)

    @property
    def published(self) -> int:
        """Number of events that this object has stored so far; their transactions may still roll back."""
        return self._outbox.published

    async def publish(
        self,
        tx: Any,
        *,
        application: str,
        type: str,
        payload: Any,
        id: str | None = None,
        headers: Mapping[str, str] | None = None,
        channels: Iterable[str] = (),
        tags: Iterable[str] = (),
        deliver_at: datetime | None = None,
    ) -> Receipt:
        """Publish an event in the transaction of *tx*; it is stored if and only if that transaction commits.

        It is delivered to the application's endpoints and to handlers of that application, in the cell to which the
        application has moved. The payload is not validated
        against the JSON Schema of its type, because a validation error would fail the caller's transaction.

        Args:
            tx: A handler's `Transaction`, an asyncpg connection, a psycopg AsyncConnection or an AsyncSession.
            application: The tenant, by id or uid in the default organization; other names are for handlers only, and
                take any printable *type* and *id*.
            type: What happened, such as ``invoice.paid``: 1 to 256 letters, digits, - _ and .
            payload: Bytes, stored unchanged, or any JSON-serializable value.
            id: Makes a second call with the same *id* and payload for this application a `Duplicate`; with None, every
                call stores a new event. It has 1 to 512 printable characters, and does not start with ``msg_``.
            headers: Stored with the event and passed to its recipients.
            channels: Endpoints with channels receive the event only if they share one.
            tags: Stored with the event, for searching.
            deliver_at: Earliest time of delivery; None for immediately.

        Raises:
            DuplicateMessage: an event of this application has this *id* but a different payload.
            InvalidMessage: an argument breaks a rule; the message names it.
            NotFound: no application has this id or uid, and no handler names it. Raised by a handler, it fails the
                attempt with the code ``APPLICATION_NOT_FOUND``.
        """
        message = Message(
            application=application,
            type=type,
            payload=payload,
            id=id,
            headers=headers,
            channels=channels,
            tags=tags,
            deliver_at=deliver_at,
        )
        return receipt_of(message, await self._outbox.publish(tx, message))

    def publish_sync(
        self,
        tx: Any,
        *,
        application: str,
        type: str,
        payload: Any,
        id: str | None = None,
        headers: Mapping[str, str] | None = None,
        channels: Iterable[str] = (),
        tags: Iterable[str] = (),
        deliver_at: datetime | None = None,
    ) -> Receipt:
        """Publish as `publish` does, through a `SyncTransaction`, a sync Session, a psycopg or a Django connection."""
        message = Message(
            application=application,
            type=type,
            payload=payload,
            id=id,
            headers=headers,
            channels=channels,
            tags=tags,
            deliver_at=deliver_at,
        )
        return receipt_of(message, self._outbox.publish_sync(tx, message))


def _signal_arguments(key: str) -> tuple[str]:
    if not is_key(key):
        raise InvalidValue(f"must be printable text of 1 to {MAX_KEY} characters, not {key!r}", "key")
    return (key,)
