"""A handler: the user's function and the options of its decorators."""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from boathook.domain.errors import ConfigError, InvalidValue
from boathook.domain.filters import WHOLE, Pattern, compile_filter
from boathook.domain.json_document import split_path
from boathook.domain.model import Route
from boathook.domain.policy import MAX_SECONDS, Breaker, ErrorRule, RetryDefaults, RetryPolicy
from boathook.domain.windows import parse_duration
from boathook.handlers.event import Event
from boathook.handlers.sessions import AsyncSessions, SyncSessions
from boathook.handlers.transaction import SyncTransaction, Transaction

_MAX_SINCE_S: Final = 3_650 * 86_400.0
_POSITIONAL: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class RouteSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The event selection of one `on` decorator."""

    source: str | None
    application: str | None
    types: tuple[str, ...]
    order_by: str | None
    filter: Mapping[str, Any] | None
    since_s: float | None = None
    """Maximum age in seconds of stored events that are delivered when the handler is first registered; None for no
    backfill."""


class Handler(msgspec.Struct, frozen=True, kw_only=True):
    """A user's function with the options of its decorators."""

    name: str
    function: Callable[..., Any]
    is_async: bool
    takes_session: bool
    """Whether it takes a second argument: the transaction, or the session that `session` opens."""
    lines: tuple[RouteSpec, ...]
    retry: RetryPolicy | None = None
    """None uses the policy from the settings of the event's source."""
    timeout_s: float | None = None
    """Maximum seconds of one attempt; None uses the worker's limit."""
    concurrency: int | Callable[[], int | None] | None = None
    """Maximum concurrent attempts over all workers, or a function that returns it after the settings are loaded; see
    `max_concurrency`."""
    breaker: Breaker | None = None
    retry_on: tuple[ErrorRule, ...] | None = None
    """Exceptions after which the delivery is retried; None means all. Others dead-letter it immediately."""
    final: tuple[type[BaseException], ...] = ()
    """Exceptions that dead-letter the delivery immediately, also those that `retry_on` selects."""
    session: AsyncSessions | SyncSessions | None = None

    @property
    def recipient(self) -> str:
        """The stable name under which its deliveries are stored."""
        return f"handler:{self.name}"

    @property
    def max_concurrency(self) -> int | None:
        """Maximum concurrent attempts over all workers; None for no limit other than the workers'."""
        return self.concurrency() if callable(self.concurrency) else self.concurrency

    def routes(self, app: str, timeout_s: float, retries: RetryDefaults) -> list[Route]:
        """Return one route for each decorator; *retries* and *timeout_s* are the defaults."""
        return [
            Route(
                recipient=self.recipient,
                app=app,
                source=line.source,
                application=line.application,
                types=line.types,
                filter=line.filter,
                order_by=line.order_by,
                policy=self.retry or retries.of(line.source),
                timeout_s=self.timeout_s or timeout_s,
                since_s=line.since_s,
            )
            for line in self.lines
        ]


def make_route_spec(
    source: str | None,
    application: str | None,
    types: tuple[str, ...],
    order_by: str | None,
    filter: Mapping[str, Any] | None,
    since: str | timedelta | None = None,
) -> RouteSpec:
    """Validate the arguments of one `on` decorator. Raises ConfigError."""
    if source is not None and application is not None:
        raise ConfigError(
            "hook.on takes a source or application=, not both; use two decorators for two kinds of events"
        )
    if callable(source):
        raise ConfigError('hook.on needs its parentheses: write @hook.on("stripe", "payment_intent.*")')
    place = f"hook.on({source or application!r})"
    arguments = [("source", source), ("application", application), ("order_by", order_by)]
    for argument, text in arguments + [("types", type) for type in types]:
        _check_text(place, argument, text)
    checks: dict[str, Callable[[], object]] = {
        "types": lambda: [Pattern(type) for type in types],
        "order_by": lambda: order_by in {None, WHOLE} or split_path(str(order_by)),
        "filter": lambda: filter is None or compile_filter(filter),
    }
    for argument, check in checks.items():
        try:
            check()
        except (ValueError, TypeError, AttributeError) as error:
            raise ConfigError(f"{place}: {argument}: {str(error).removeprefix(f'{argument}: ')}") from None
    since_s = None if since is None else _read_since(source or application, since)
    return RouteSpec(
        source=source, application=application, types=types or ("*",), order_by=order_by, filter=filter, since_s=since_s
    )


def _check_text(place: str, argument: str, text: Any) -> None:
    if text is None or (isinstance(text, str) and text.isprintable()):
        return
    fix = "write text without control characters" if isinstance(text, str) else f"write text such as {_TEXTS[argument]}"
    if isinstance(text, list | tuple | set) and all(isinstance(part, str) for part in text):
        quoted = ", ".join(f'"{part}"' for part in text)
        fix = f"write {quoted} without brackets" if argument == "types" or len(text) == 1 else "write one path"
    raise ConfigError(f"{place}: {argument}: {fix}, not {text!r}")


_TEXTS: Final[Mapping[str, str]] = {
    "source": '"stripe"',
    "application": '"acme"',
    "name": '"send_receipt"',
    "order_by": '"data.object.id"',
    "types": '"invoice.paid"',
}


def _read_since(origin: str | None, since: str | timedelta) -> float:
    try:
        seconds = since.total_seconds() if isinstance(since, timedelta) else parse_duration(str(since))
    except InvalidValue as error:
        raise ConfigError(f"hook.on({origin!r}): since: {error}") from None
    if not 0 < seconds <= _MAX_SINCE_S:
        raise ConfigError(f"hook.on({origin!r}): since: more than nothing and at most 3650d, not {since!r}")
    return seconds


def make_handler(function: Callable[..., Any], name: str | None, line: RouteSpec, app: str) -> Handler:
    """Return the handler that one `on` decorator declares. Raises ConfigError if the function cannot be one."""
    _check_text("hook.on", "name", name)
    name = name or getattr(function, "__name__", None)
    if not name or name == "<lambda>":
        raise ConfigError("a handler without a name of its own needs name=, under which its deliveries are stored")
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise ConfigError(f"handler {name}: {error}") from None
    needed = [
        parameter for parameter in parameters if parameter.default is parameter.empty and parameter.kind in _POSITIONAL
    ]
    if len(needed) not in (1, 2) and not any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
        raise ConfigError(f"handler {name} must take the event and optionally a transaction: ({name}(event, tx))")
    call = getattr(function, "__call__", function)  # noqa: B004 an object may be a handler by its async __call__
    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigError(f"handler {name} contains yield, so it would not run; return instead")
    _check_parameters(name, list(parameters), needed, is_async=is_async)
    name = f"{app}.{name}" if app else name
    return Handler(name=name, function=function, is_async=is_async, takes_session=len(needed) != 1, lines=(line,))


def _check_parameters(
    name: str, parameters: Sequence[inspect.Parameter], needed: Sequence[inspect.Parameter], *, is_async: bool
) -> None:
    """Raise ConfigError for parameters that would get something else than they are annotated with."""
    unset = [
        parameter.name
        for parameter in parameters
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty
    ]
    if unset:
        raise ConfigError(f"handler {name}: {unset[0]} gets no value: write ({name}(event, {unset[0]})) without *")
    for position, parameter in enumerate(needed):
        kind = _annotated(parameter)
        if (position == 0 and kind in _TRANSACTIONS) or (position == 1 and kind == "Event"):
            raise ConfigError(f"handler {name}: the event is the first argument: ({name}(event, tx))")
        if kind in _TRANSACTIONS and kind != (usual := _TRANSACTIONS[0 if is_async else 1]):
            form = "an async function" if is_async else "a function without async"
            raise ConfigError(f"handler {name} is {form}, which gets a {usual}: write {parameter.name}: {usual}")


def _annotated(parameter: inspect.Parameter) -> str:
    """Return the name of the class of boathook that a parameter is annotated with; empty if it is none of them."""
    annotation = parameter.annotation
    if isinstance(annotation, str):  # from __future__ import annotations
        return annotation.rpartition(".")[2]
    return annotation.__name__ if annotation in (Event, Transaction, SyncTransaction) else ""


_TRANSACTIONS: Final = ("Transaction", "SyncTransaction")
"""The classes of the second argument: of async functions, and of others."""


def combine(earlier: Handler | None, more: Handler, options: Mapping[str, Any]) -> Handler:
    """Merge a handler and its *options* with the handler that earlier decorators declared; None means not set.

    Raises:
        ConfigError: the options contradict each other, or two functions have the same name.
    """
    set_options = {key: value for key, value in options.items() if value is not None and (key, value) != ("final", ())}
    return _with_options(more if earlier is None else _joined(earlier, more), set_options)


def _joined(earlier: Handler, more: Handler) -> Handler:
    if earlier.function is not more.function:
        raise ConfigError(
            f"two functions are named {earlier.name}: {_place(earlier.function)} and {_place(more.function)}. "
            "Give one of them another name=."
        )
    # Decorators apply from the bottom up; the routes keep their order in the source code.
    return replace(earlier, lines=more.lines + earlier.lines)


def _place(function: Callable[..., Any]) -> str:
    title = f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', function)}"
    code = getattr(function, "__code__", None)
    return title if code is None else f"{title} in line {code.co_firstlineno}"


def _with_options(handler: Handler, options: dict[str, Any]) -> Handler:
    for key, value in options.items():
        before = getattr(handler, key)
        if before not in (None, ()) and before != value:
            raise ConfigError(f"handler {handler.name}: conflicting {key.removesuffix('_s')} in its decorators")
    for key, value in options.items():
        _check_option(handler.name, key, value)
    handler = replace(handler, **options)
    for key in ("timeout_s", "concurrency"):
        value = getattr(handler, key)
        if value is not None and not callable(value) and not 0 < value <= MAX_SECONDS:
            raise ConfigError(
                f"handler {handler.name}: {key.removesuffix('_s')} must be a finite number above 0, not {value!r}"
            )
    _check_retried(handler)
    if handler.retry is not None and not _is_finite(handler.retry):
        raise ConfigError(f"handler {handler.name}: retry has an infinite number; the longest time is a century")
    if handler.session is not None and isinstance(handler.session, AsyncSessions) is not handler.is_async:
        kind, other = ("an async", "a sync") if handler.is_async else ("a sync", "an async")
        raise ConfigError(f"handler {handler.name} is {kind} function, but its session is {other} one")
    return handler


def _check_retried(handler: Handler) -> None:
    """Raise ConfigError if `final` makes a part of `retry_on` ineffective."""
    for rule in handler.retry_on or ():
        if isinstance(rule, type) and issubclass(rule, handler.final):
            raise ConfigError(
                f"handler {handler.name}: {rule.__name__} is in retry_on, but final makes it dead at once; name it in"
                " one of them. final may name subclasses of what retry_on names"
            )


def _check_option(name: str, key: str, value: Any) -> None:
    """Raise ConfigError for an option of another type than `Boathook.on` takes; it names the argument."""
    kinds, example = _OPTIONS[key]
    is_right = isinstance(value, kinds) and not isinstance(value, bool)
    if key == "final":
        is_right = isinstance(value, tuple) and all(
            isinstance(kind, type) and issubclass(kind, BaseException) for kind in value
        )
    if key == "retry_on":
        is_right = isinstance(value, tuple) and bool(value) and all(map(_is_error_rule, value))
    if not is_right and not (key == "concurrency" and callable(value)):
        raise ConfigError(f"handler {name}: {key.removesuffix('_s')}: write {example}, not {value!r}")


_OPTIONS: Final[Mapping[str, tuple[type | tuple[type, ...], str]]] = {
    "retry": (RetryPolicy, "a policy such as RetryPolicy(max_attempts=5)"),
    "timeout_s": ((int, float), "a number of seconds such as 30"),
    "concurrency": (int, "a number such as 4"),
    "breaker": (Breaker, 'a breaker such as Breaker("erp")'),
    "retry_on": (tuple, "HTTP_DEFAULTS, or exceptions such as retry_on=(*HTTP_DEFAULTS, LedgerBusy)"),
    "final": (tuple, "exceptions such as final=(ValueError,)"),
    "session": ((AsyncSessions, SyncSessions), "a session of boathook such as sqlalchemy_async(sessions)"),
}
"""By argument of `Boathook.on`: its types, and an example."""


def _is_error_rule(rule: object) -> bool:
    """Return whether a value is a class of exceptions, or a function that is not async."""
    if isinstance(rule, type):
        return issubclass(rule, BaseException)
    return callable(rule) and not inspect.iscoroutinefunction(rule)


def _is_finite(policy: RetryPolicy) -> bool:
    """Return whether the numbers of a policy can be stored, and its delays are at most a century."""
    delays_s = (policy.first_s, policy.max_delay_s, *(policy.delays_s or ()))
    return all(delay <= MAX_SECONDS for delay in delays_s) and policy.factor < math.inf and policy.max_age_s < math.inf
