"""Makes many concurrent requests over libcurl's multi interface, driven by events; belongs to one thread.

The steps of a request: parse the URL, resolve and check its host, pass it to libcurl pinned to the checked addresses,
and return the response.
"""

import contextlib
import functools
import os
import select
import socket
import threading
import time
from typing import Final

import msgspec
import pycurl

from boathook.config.tables import OutboundSettings
from boathook.http_client.addresses import ANY_NETWORK, Address, read_address
from boathook.http_client.guard import Options, ProxyPolicy, handle_options, resolve_options, tunnel_options
from boathook.http_client.messages import BODY_S, OutgoingRequest, RequestResult, TransportFailure
from boathook.http_client.resolver import Resolution, Resolver
from boathook.http_client.transfer import CurlTransfer, SinkTransfer
from boathook.observability.log import get_logger

_LOOK_S: Final = 0.5
_KEPT_OPEN: Final = 512
"""Minimum number of connections kept for the next request, so that a low concurrency can still serve many endpoints."""
_MAX_EVENTS: Final = 1_024
_MAX_PINNED: Final = 10_000
_MASKS: Final = {
    pycurl.POLL_IN: select.EPOLLIN,
    pycurl.POLL_OUT: select.EPOLLOUT,
    pycurl.POLL_INOUT: select.EPOLLIN | select.EPOLLOUT,
}
_CANCELLED: Final = "the body took too long, or the transfer was stopped"
_LOG: Final = get_logger("http_client")

Event = tuple[int, int]


class Waker:
    """Wakes a thread that waits for sockets, from any thread, with an eventfd(2)."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """The file descriptor to wait for; readable once woken."""
        self._is_closed = False

    def wake(self) -> None:
        """End the current wait, or the next one."""
        with self._lock:
            if not self._is_closed:
                os.eventfd_write(self.descriptor, 1)

    def clear(self) -> None:
        """Reset the wake-up."""
        os.eventfd_read(self.descriptor)

    def close(self) -> None:
        """Close the descriptor; its number may be reused soon."""
        with self._lock:
            self._is_closed = True
            os.close(self.descriptor)


class _Parked(msgspec.Struct, frozen=True):
    """A request whose host is being resolved."""

    request: OutgoingRequest
    address: Address
    began_at: float
    ends_at: float


class CurlMultiClient:
    """Runs requests concurrently on one thread.

    Args:
        settings: limits, proxies and allowed destinations.

    Raises:
        ConfigError: the proxy is written as a reference.
    """

    def __init__(self, settings: OutboundSettings) -> None:
        self._settings = settings
        self._proxy = ProxyPolicy(settings)
        self._read = functools.lru_cache(4_096)(
            functools.partial(read_address, ports=frozenset(settings.ports), require_https=settings.require_https)
        )
        self.waker = Waker()
        self._resolver = Resolver(settings.allow, self.waker.wake)
        self._parked: dict[str, list[_Parked]] = {}
        self._running: dict[pycurl.Curl, CurlTransfer] = {}
        self._idle: dict[bool, list[CurlTransfer]] = {False: [], True: []}
        self._opened: list[socket.socket] = []
        self._answers: list[RequestResult] = []
        direct = handle_options(settings)
        self._options = {False: direct, True: [*direct, *self._proxy.options()]}
        self._open()

    def _open(self) -> None:
        self._pinned: dict[tuple[str, int], Resolution] = {}
        self._http1: set[tuple[str, int]] = set()
        """Hosts and ports that have answered by HTTP/1."""
        self._resting: set[int] = set()
        """Sockets that libcurl does not wait for at the moment; most of them are soon used for the next request."""
        self._timer_at: float | None = None
        self._look_at = 0.0
        self._poll = select.epoll()
        self._poll.register(self.waker.descriptor, select.EPOLLIN)
        self._multi = pycurl.CurlMulti()
        self._multi.setopt(pycurl.M_SOCKETFUNCTION, self._watch)
        self._multi.setopt(pycurl.M_TIMERFUNCTION, self._set_timer)
        self._multi.setopt(pycurl.M_MAXCONNECTS, max(_KEPT_OPEN, self._settings.concurrency))

    def begin(self, request: OutgoingRequest) -> None:
        """Start a request; if it cannot be made, its result is returned at the end of the turn."""
        try:
            self._begin(request)
        except Exception as error:  # noqa: BLE001 - a bug fails this request, never the next ones
            self._fail(request, error)

    def _begin(self, request: OutgoingRequest) -> None:
        try:
            address = self._read(request.url)
        except ValueError as error:
            self._refuse(request, TransportFailure.URL, str(error))
            return
        if address.is_number and not self._proxy.applies_to(address):
            self._start(request, address, None, 0.0)
            return
        resolution = self._resolver.find(address.host)
        if resolution is None:
            self._park(request, address)
        else:
            self._start(request, address, resolution, 0.0)

    def resume(self, request: OutgoingRequest) -> None:
        """Continue a response that its sink has paused, or end it if it is to be stopped."""
        for exchange in [running for running in self._running.values() if running.request is request]:
            if exchange.is_over(0.0):
                self._end(exchange.handle, pycurl.E_ABORTED_BY_CALLBACK, _CANCELLED)
            else:
                exchange.resume()

    def wait(self) -> list[Event]:
        """Return the next socket events; an empty list if something else is due."""
        events = self._poll.poll(self._pause_s(), _MAX_EVENTS)
        # If it were cleared later, a wake-up for a request added after the inbox was read could be lost.
        woken = (self.waker.descriptor, select.EPOLLIN)
        if woken in events:
            events.remove(woken)
            self.waker.clear()
        return events

    def turn(self, events: list[Event]) -> list[RequestResult]:
        """Advance every request that can make progress, and return the results."""
        for descriptor, bits in events:
            if descriptor in self._resting:
                with contextlib.suppress(OSError):  # closed meanwhile, so no longer registered
                    self._poll.unregister(descriptor)
            else:
                self._multi.socket_action(descriptor, _conditions(bits))
        self._unpark()
        if self._timer_at is not None and self._timer_at <= time.monotonic():
            self._timer_at = None
            self._multi.socket_action(pycurl.SOCKET_TIMEOUT, 0)
        self._collect()
        self._cut_late()
        self._close_opened()
        return self._take_answers()

    def give_up(self, failure: TransportFailure, error: str) -> list[RequestResult]:
        """End every request and return the results; connections are closed, and new requests may follow."""
        for exchange in self._running.values():
            self._refuse(exchange.request, failure, error)
        for parked in self._parked.values():
            for lookup in parked:
                self._refuse(lookup.request, failure, error)
        self._free()
        self._open()
        return self._take_answers()

    def close(self) -> None:
        """Free all resources."""
        self._free()
        self._resolver.close()
        self.waker.close()

    def _free(self) -> None:
        for exchange in (*self._running.values(), *self._idle[False], *self._idle[True]):
            exchange.close()
        for table in (self._running, self._parked, self._idle[False], self._idle[True]):
            table.clear()
        self._multi.close()
        self._poll.close()
        self._close_opened()

    def _close_opened(self) -> None:
        for opened in self._opened:
            opened.close()
        self._opened.clear()

    def _take_answers(self) -> list[RequestResult]:
        answers, self._answers = self._answers, []
        return answers

    def _refuse(self, request: OutgoingRequest, failure: TransportFailure, error: str, duration_s: float = 0.0) -> None:
        self._answers.append(RequestResult(request, 0, {}, b"", duration_s, failure, error))

    def _fail(self, request: OutgoingRequest, error: Exception) -> None:
        _LOG.error("http_client_fault", exc_info=error)
        self._refuse(request, TransportFailure.FAULT, f"boathook failed: {type(error).__name__}")

    # Name resolution.

    def _park(self, request: OutgoingRequest, address: Address) -> None:
        now = time.monotonic()
        ends_at = now + min(self._settings.connect_timeout_s, request.timeout_s)
        self._parked.setdefault(address.host, []).append(_Parked(request, address, now, ends_at))

    def _unpark(self) -> None:
        for name, resolution in self._resolver.ended():
            for exchange in self._parked.pop(name, ()):
                try:
                    self._start(exchange.request, exchange.address, resolution, time.monotonic() - exchange.began_at)
                except Exception as error:  # noqa: BLE001 - as above
                    self._fail(exchange.request, error)

    # Transfer handles.

    def _start(self, request: OutgoingRequest, address: Address, resolution: Resolution | None, spent_s: float) -> None:
        """Pass a request to libcurl; *resolution* is None for an IP address, *spent_s* is the time of the lookup."""
        if resolution is not None and resolution.failure is not None:
            self._refuse(request, resolution.failure, resolution.error, spent_s)
            return
        pinned, is_proxied = self._pin(address, resolution)
        try:
            exchange = self._pick(request, is_proxied)
        except pycurl.error:
            self._refuse(request, TransportFailure.TLS, "the endpoint's client certificate or its key is empty")
            return
        try:
            exchange.prepare(
                request,
                address,
                pinned,
                self._settings.connect_timeout_s,
                spent_s,
                may_resend=(address.host, address.port) in self._http1,
            )
        except ValueError as error:
            self._refuse(request, TransportFailure.FAULT, str(error))
            self._put_back(exchange)
            return
        self._running[exchange.handle] = exchange
        self._multi.add_handle(exchange.handle)

    def _pin(self, address: Address, resolution: Resolution | None) -> tuple[Options, bool]:
        """Return the options that make libcurl connect to the checked addresses, and whether through the proxy."""
        if resolution is None:
            return [], False
        if self._proxy.applies_to(address) and not self._proxy.is_bypassed(resolution.addresses):
            return tunnel_options(address, resolution.addresses[0]), True
        key = address.host, address.port
        if self._pinned.get(key) is resolution:
            return [], False
        if len(self._pinned) >= _MAX_PINNED:
            self._pinned.clear()
        self._pinned[key] = resolution
        return resolve_options(address, resolution.addresses), False

    def _pick(self, request: OutgoingRequest, is_proxied: bool) -> CurlTransfer:
        if request.sink is not None:
            return self._make(SinkTransfer, is_proxied)
        if request.client_certificate is not None:
            certificate, key = (text.encode() for text in request.client_certificate)
            # The handle serves this request only.
            return self._make(CurlTransfer, is_proxied, [(pycurl.SSLCERT_BLOB, certificate), (pycurl.SSLKEY_BLOB, key)])
        idle = self._idle[is_proxied]
        return idle.pop() if idle else self._make(CurlTransfer, is_proxied, home=idle)

    def _make(
        self,
        kind: type[CurlTransfer],
        is_proxied: bool,
        more: Options | None = None,
        home: list[CurlTransfer] | None = None,
    ) -> CurlTransfer:
        return kind(
            [*self._options[is_proxied], *(more or [])],
            allow=ANY_NETWORK if is_proxied else self._settings.allow,
            opened=self._opened,
            keep=self._settings.max_response,
            home=home,
            is_proxied=is_proxied,
        )

    def _put_back(self, exchange: CurlTransfer) -> None:
        if exchange.home is not None and len(exchange.home) < self._settings.concurrency:
            exchange.home.append(exchange)
        else:
            exchange.close()

    # Finished requests.

    def _collect(self) -> None:
        remaining = 1
        while remaining:
            remaining, finished, failed = self._multi.info_read()
            for handle in finished:
                self._end(handle, 0, "")
            for handle, error, message in failed:
                self._end(handle, error, message)

    def _end(self, handle: pycurl.Curl, error: int, message: str) -> None:
        self._multi.remove_handle(handle)
        exchange = self._running.pop(handle)
        if exchange.is_http1:
            if len(self._http1) >= _MAX_PINNED:
                self._http1.clear()
            self._http1.add(exchange.origin)
        self._answers.append(exchange.finish(error, message))
        self._put_back(exchange)

    def _cut_late(self) -> None:
        """End requests whose body takes too long or is to be stopped, and those whose host is not resolved in time."""
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + _LOOK_S
        for exchange in [running for running in self._running.values() if running.is_over(now - BODY_S)]:
            self._end(exchange.handle, pycurl.E_OPERATION_TIMEDOUT, _CANCELLED)
        for name, parked in list(self._parked.items()):
            for lookup in parked:
                if lookup.ends_at <= now:
                    self._refuse(
                        lookup.request,
                        TransportFailure.TIMEOUT,
                        f"the name {name} was not found in time",
                        now - lookup.began_at,
                    )
            self._parked[name] = [exchange for exchange in parked if exchange.ends_at > now]
            if not self._parked[name]:
                del self._parked[name]

    # Events that libcurl waits for.

    def _pause_s(self) -> float | None:
        if self._answers:
            return 0.0
        ends = [self._timer_at] if self._timer_at is not None else []
        if self._running or self._parked:
            ends.append(self._look_at)
        return max(0.0, min(ends) - time.monotonic()) if ends else None

    def _set_timer(self, after_ms: int) -> None:
        self._timer_at = None if after_ms < 0 else time.monotonic() + after_ms / 1_000

    def _watch(self, event: int, descriptor: int, _multi: object, _data: object) -> None:
        """Register or unregister a socket for the events that libcurl waits for."""
        if event == pycurl.POLL_REMOVE:
            self._resting.add(descriptor)
            return
        self._resting.discard(descriptor)
        try:
            self._poll.modify(descriptor, _MASKS[event])
        except FileNotFoundError:  # closed since, or never registered
            self._poll.register(descriptor, _MASKS[event])


def _conditions(bits: int) -> int:
    mask = 0
    if bits & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR):
        mask |= pycurl.CSELECT_IN
    if bits & (select.EPOLLOUT | select.EPOLLERR):
        mask |= pycurl.CSELECT_OUT
    return mask
