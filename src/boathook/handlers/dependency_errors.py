"""Recognizes the errors of HTTP clients by the names of their classes, so that no client has to be installed."""

import errno
import time
from collections.abc import Iterator, Mapping
from email.message import Message
from typing import Any, Final
from urllib.error import URLError

from boathook.domain.errors import FetchFailed
from boathook.domain.policy import Breaker, ErrorRule, is_failure_of, leaves
from boathook.http_client.messages import host_of
from boathook.http_client.retry_after import read_retry_after

MAX_NAME: Final = 253
"""Maximum characters of a dependency's name: those of a host."""
_TOO_MANY_REQUESTS: Final = 429
_TRANSIENT: Final = frozenset({
    ("aiohttp", "ClientConnectionError"), ("aiohttp", "ClientPayloadError"),
    ("httpx", "NetworkError"), ("httpx", "ProxyError"), ("httpx", "RemoteProtocolError"), ("httpx", "TimeoutException"),
    ("requests", "ChunkedEncodingError"), ("requests", "ConnectionError"), ("requests", "RetryError"),
    ("requests", "Timeout"),
    ("socket", "gaierror"),
})  # fmt: skip
"""Package and class of errors without a response; subclasses are included."""
_UNREACHABLE: Final = frozenset({errno.EHOSTUNREACH, errno.ENETUNREACH})


def is_transient(error: BaseException) -> bool:
    """Return whether an HTTP request failed in a way that a later one may not: see `HTTP_DEFAULTS`."""
    if isinstance(error, ValueError):
        return False
    if isinstance(error, FetchFailed) and error.is_final:
        return False
    status = _status(error)
    if status is not None:
        return status == _TOO_MANY_REQUESTS or 500 <= status <= 599
    if isinstance(error, URLError) and isinstance(error.reason, BaseException):
        error = error.reason
    if isinstance(error, ConnectionError | TimeoutError | FetchFailed):
        return True
    if isinstance(error, OSError) and error.errno in _UNREACHABLE:
        return True
    return any((kind.__module__.partition(".")[0], kind.__name__) in _TRANSIENT for kind in type(error).__mro__)


HTTP_DEFAULTS: Final[tuple[ErrorRule, ...]] = (is_transient,)
"""For ``retry_on=``: failures of HTTP requests that another attempt may not have.

- timeouts and broken or refused connections of httpx, requests, aiohttp, ``hook.http`` and the standard library
- responses with the status 429 or 5xx, raised by these, or by any exception with an integer ``status_code`` or
  ``status``, of its own or of its ``response``

All other statuses are excluded, and every `ValueError`, such as a validation error of pydantic. Add exceptions of your
own: ``retry_on=(*HTTP_DEFAULTS, LedgerBusy)``.
"""


def retry_after_s(error: BaseException) -> float | None:
    """Return the longest delay in seconds that a response with the status 429 or 5xx requested; None without one."""
    delays = [delay for leaf in leaves(error) if (delay := _retry_after_s(leaf)) is not None]
    return max(delays, default=None)


def _retry_after_s(error: BaseException) -> float | None:
    if _status(error) is None or not is_transient(error):
        return None
    for holder in (_read(error, "response"), error):
        headers = _read(holder, "headers")
        text = headers.get("retry-after") if isinstance(headers, Mapping | Message) else None
        if isinstance(text, str):
            return read_retry_after(text, time.time())
    return None


def dependency_of(error: BaseException, breaker: Breaker | None) -> str | None:
    """Return the name of the service whose failure an error is, or None.

    It is the error's own ``dependency``, else that of the handler's breaker if the error counts for it, else the host
    of the request that failed.
    """
    for leaf in leaves(error):
        name = _read(leaf, "dependency")
        if not isinstance(name, str) and breaker is not None and is_failure_of(breaker, leaf):
            name = breaker.dependency
        name = name if isinstance(name, str) else next(_hosts(leaf), None)
        if name and (cleaned := clean_name(name)):
            return cleaned
    return None


def _hosts(error: BaseException) -> Iterator[str]:
    for place in ("request", "request_info", "response"):
        url = _read(_read(error, place), "url")
        host = host_of(url) if isinstance(url, str) else _read(url, "host")
        if isinstance(host, str) and host:
            yield host.lower()
    if isinstance(error, FetchFailed) or type(error).__module__.startswith("aiohttp."):
        host = _read(error, "host")
        if isinstance(host, str) and host:
            yield host.lower()


def clean_name(name: str) -> str:
    """Return the name of a dependency in a form that can be stored."""
    return "".join(char for char in name if char.isprintable())[:MAX_NAME]


def _status(error: BaseException) -> int | None:
    response = _read(error, "response")
    for holder, name in ((response, "status_code"), (response, "status"), (error, "status_code"), (error, "status")):
        status = _read(holder, name)
        if isinstance(status, int) and 100 <= status <= 599:
            return int(status)
    return None


def _read(holder: object, name: str) -> Any:
    """Return an attribute; None if there is none or reading it raises, as ``request`` of httpx's errors may."""
    try:
        return getattr(holder, name, None)
    except Exception:  # noqa: BLE001 - a foreign property may raise anything
        return None
