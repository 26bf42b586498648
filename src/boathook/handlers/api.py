"""The object an app is made of: what is declared on it, and what boathook lends it while it runs."""

from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from boathook.domain.errors import ConfigError
from boathook.domain.model import Receipt, Route
from boathook.domain.policy import Breaker, RetryDefaults, RetryPolicy
from boathook.handlers.event import Event
from boathook.handlers.handler import Handler, combine, make_handler, make_route_spec
from boathook.handlers.manifest import (
    USUAL_BOUNDS,
    AppMetric,
    Asgi,
    Chore,
    Manifest,
    Mount,
    Sources,
    make_metric,
    make_mirror,
)
from boathook.handlers.outbox import Message, Outbox, receipt_of
from boathook.handlers.platform import Desk, Http, Platform
from boathook.handlers.sessions import AsyncSessions, SyncSessions
from boathook.handlers.transaction import SyncTransaction, Transaction
from boathook.observability.log import get_logger
from boathook.observability.metrics import LabelValue, LabelValues, MetricKind

__all__ = ["Boathook", "Event", "SyncTransaction", "Transaction"]

Function = TypeVar("Function", bound=Callable[..., Any])
Result = TypeVar("Result")


class Boathook:
    """The handlers of one app, its way to publish events of its own, and whatever else it is made of.

    Args:
        name: For an app that ``apps.load`` names: its table in boathook.toml, its schema in the database and its
            command are called so, and its handlers ``name.function``.
        settings: Checks that table; `settings` is then an instance of it. Texts such as ``env:NAME`` stay as they are
            until `resolve` is asked for them.
        migrations: A folder of ``NNNN_what.sql``, each applied once, in order, as part of ``boathook migrate``.
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
        """The app's own settings, once boathook has loaded it. Raises ConfigError before."""
        if self._settings is None:
            raise ConfigError(
                f"the settings of {self.name or 'an app without a name'} are known once boathook loads it"
            )
        return self._settings

    @property
    def platform(self) -> Platform:
        """What boathook offers the running app. Raises ConfigError where boathook does not run it."""
        if self._platform is None:
            raise ConfigError(f"{self.name or 'this app'} is not run by boathook, which would lend it its database")
        return self._platform

    def bind(self, settings: BaseModel | None, platform: Platform | None) -> None:
        """Tell the app its settings and what it may use; for whoever loads it."""
        self._settings = settings
        self._platform = platform

    def sources(self, function: Sources) -> Sources:
        """Make the decorated function say which sources the app needs.

        It takes the app's settings and returns, by name, what would stand in ``[sources.NAME]``; keys that the owner
        sets there themselves win.
        """
        self.manifest.sources = function
        return function

    def every(self, seconds: float, *, name: str | None = None) -> Callable[[Function], Function]:
        """Make the decorated function, which is async and takes nothing, run every so many seconds.

        It runs in one process of all hosts, the elected keeper, and never twice at once; an error is logged, and it is
        tried again the next time. One that takes longer than that runs less often. What computes for long, or waits
        without ``await``, belongs into ``asyncio.to_thread``: it would hold up the keeper. It is broken off, by
        `asyncio.CancelledError`, when boathook stops or another process becomes the keeper.
        """

        def decorate(function: Function) -> Function:
            title = name or str(getattr(function, "__name__", "chore"))
            chore = Chore(name=title, every_s=seconds, function=function)
            self.manifest.add_chore(chore)
            return function

        return decorate

    def mount(self, path: str, app: Asgi, *, is_open: bool = False) -> None:
        """Serve an ASGI application, WebSockets included, at *path* and all paths below, on the gateway's port.

        Unless it *is_open*, only who brings the token of an organization's API key (``boathook keys create``) gets
        through, as ``Authorization: Bearer TOKEN``, or for WebSockets as the subprotocol ``bearer.TOKEN``.
        Paths of sources win over mounted ones, longer mounted paths over shorter ones.
        """
        self.manifest.add_mount(Mount(path=path.rstrip("/"), app=app, is_open=is_open))

    def commands(self, app: Any) -> None:
        """Run a `typer.Typer` as ``boathook <name> ...``."""
        self.manifest.commands = app

    def counter(self, name: str, help: str, *labels: str) -> AppMetric:
        """Declare a counter; count with ``.add(n, label=value)``. It appears in /metrics with all others."""
        return make_metric(MetricKind.COUNTER, name, help, labels)

    def gauge(self, name: str, help: str, *labels: str) -> AppMetric:
        """Declare a gauge; set it with ``.set(value, label=value)``. Over processes the values are added up."""
        return make_metric(MetricKind.GAUGE, name, help, labels)

    def histogram(self, name: str, help: str, *labels: str, bounds: Sequence[float] = USUAL_BOUNDS) -> AppMetric:
        """Declare a histogram; record with ``.observe(value, label=value)``. *bounds* are its buckets, rising."""
        return make_metric(MetricKind.HISTOGRAM, name, help, labels, bounds)

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
        """Show the metric *of*, boathook's or an app's, a second time in /metrics under the name its owner knows.

        It has the kind and the buckets of that metric, and is computed from it whenever it is shown. Several calls
        with one *name*, *help* and label names make up the series of one metric. Call it as the module is imported;
        what only the settings know is told by functions.

        Args:
            name: As it is shown.
            help: What it says.
            of: The name of the metric it is computed from.
            where: Labels of that metric with the value, or the values, that a series must have to be counted.
            labels: Labels as they are shown, each with the label of that metric that fills it; what is left out is
                added up.
            constants: Labels as they are shown that have one value. Here and in *where* a value may be a function that
                tells it, such as ``lambda: hook.settings.provider``.

        Raises:
            ConfigError: there is no metric *of* or it has no such label, or *name* is impossible or taken.
        """
        make_mirror(name, help, of, where or {}, labels or {}, constants or {})

    def alert_rule(self, name: str, summary: str, *, metric: str, **keys: Any) -> None:
        """Declare a rule: operators are told when a metric, of the app or of boathook, passes a threshold.

        The owner may change any key of it under ``[notifications.rules."APP.NAME"]``, and say who is told.

        Args:
            name: With the app's name in front, it names the rule.
            summary: What it means, in a sentence; ``{subject}`` stands for the values of the labels in *by*.
            metric: The metric's name.
            keys: Any other key of ``[notifications.rules.NAME]``: ``above`` or ``below``, ``labels``, ``by``,
                ``for_s``, ``severity``, ``advice`` ...

        Raises:
            ConfigError: a key is wrong, or the name is taken.
        """
        self.manifest.add_alert_rule(f"{self.name}.{name}", {**keys, "summary": summary, "metric": metric})

    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        """Lend a transaction outside any handler; it commits at the end of the block and rolls back on an error.

        It has no `newer`, which remembers by handler. What is published in it is delivered as soon as it commits.
        """
        return self.platform.transaction()

    async def publish_live(self, tx: Transaction, channel: str, message: Any) -> None:
        """Send *message* (JSON, up to 7,900 bytes) to the channel's subscribers in all processes once *tx* commits."""
        await self.platform.publish_live(tx, channel, message)

    def subscribe(self, channel: str) -> AsyncIterator[Any]:
        """Yield the live messages on *channel* from now on; a slow subscriber misses the oldest."""
        return self.platform.subscribe(channel)

    @property
    def desk(self) -> Desk:
        """What operators can do: deliveries, replays, applications and endpoints; see `boathook.handlers.platform`."""
        return self.platform.desk

    @property
    def http(self) -> Http:
        """The guarded HTTP client; see `boathook.handlers.platform`."""
        return self.platform.http

    @property
    def data_dir(self) -> Path:
        """`server.data_dir`, this host's own folder, for what an app keeps in files."""
        return self.platform.data_dir

    def resolve(self, reference: str, key: str) -> str:
        """Return the text behind ``env:NAME`` or ``file:PATH``, other text as it is; *key* names it in an error."""
        return self.platform.resolve(reference, f"{self.name}.{key}")

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a command's asynchronous part to its end, with the database at hand."""
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
        final: tuple[type[BaseException], ...] = (),
        session: AsyncSessions | SyncSessions | None = None,
    ) -> Callable[[Function], Function]:
        """Make the decorated function handle events of *source* whose type fits one of *types*.

        The function takes the `Event` and, if it wants one, a `Transaction` (a `SyncTransaction` if it is sync,
        or whatever *session* opens). What it does in that transaction is committed together with the end of the
        delivery, or not at all. Returning nothing is success; `Ignore`, `Retry` and `Dead` are values to return;
        an exception is a failed attempt. Sync functions run in a thread. Several decorators on one function are
        several lines of one handler: an event that fits more than one is still delivered once.

        Args:
            source: The source's name in boathook.toml; None for any, or with *application*.
            types: Patterns in which ``*`` stands for any run of characters; none means every type.
            application: Handle messages published for this application instead.
            name: The handler's stable name, under which its deliveries are stored; its function's name if absent.
            order_by: Dotted path into the JSON body; events with an equal value there are handled one after another.
            filter: Conditions on body and headers, see `boathook.domain.filters`.
            since: When this handler is first registered, it also gets the matching events accepted so long before,
                such as ``"7d"`` or ``"2h"``. It is done once, in the background.
            retry: When to try again and when to give up; None: ``retry`` of the source, else ``worker.retry``.
            timeout: Seconds one attempt may take.
            concurrency: Most attempts at once, over all workers; a function is asked once the app's settings are known.
            breaker: Pauses this handler while the dependency it names keeps failing.
            final: Exceptions after which trying again is pointless.
            session: Opens a session of another library in place of the `Transaction`, see `boathook.handlers.sessions`.

        Raises:
            ConfigError: an argument is wrong, or another function has this handler's name.
        """
        line = make_route_spec(source, application, types, order_by, filter, since)
        options = {
            "retry": retry,
            "timeout_s": timeout,
            "concurrency": concurrency,
            "breaker": breaker,
            "final": final,
            "session": session,
        }

        def decorate(function: Function) -> Function:
            handler = make_handler(function, name, line, self.name)
            self.handlers[handler.name] = combine(self.handlers.get(handler.name), handler, options)
            return function

        return decorate

    def routes(self, app: str, *, timeout_s: float = 30.0, retries: RetryDefaults | None = None) -> list[Route]:
        """Return the routes of all handlers, declared in the name of *app*."""
        retries = retries or RetryDefaults()
        return [route for handler in self.handlers.values() for route in handler.routes(app, timeout_s, retries)]

    @property
    def published(self) -> int:
        """How many events this object has stored so far; their transactions may still roll back."""
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
        """Store an event of our own in the transaction of *tx*: it exists if that commits, and only then.

        It goes to the application's endpoints and to the handlers of that application. The payload is not checked by
        the JSON Schema of its type: a handler's transaction is not the place to refuse it.

        Args:
            tx: A handler's `Transaction`, an asyncpg connection, a psycopg AsyncConnection or an AsyncSession.
            application: The tenant it is for, by id or uid in the default organization; any other name is for handlers
                alone.
            type: What happened, such as ``invoice.paid``.
            payload: Bytes as they are, or anything JSON can hold.
            id: Makes a second call with the same *id* and payload for this application a `Duplicate`; None: every call
                counts.
            headers: Kept with the event and handed to its recipients.
            channels: An endpoint that has channels gets it only if they share one.
            tags: Kept with it, to find it by.
            deliver_at: Owed from then on; None: at once.

        Raises:
            DuplicateMessage: an event of this application has this *id*, but another payload.
            InvalidMessage: an argument breaks a rule; the message names it.
            NotFound: *application* is an id, but of no application.
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
        """Do what `publish` does through a `SyncTransaction`, a sync Session, a psycopg or a Django connection."""
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
