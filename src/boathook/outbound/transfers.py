"""Many requests at once over libcurl's multi interface, driven by events; belongs to one thread."""

import functools
import os
import select
import socket
import time
from typing import Final

import pycurl

from boathook.config.tables import OutboundSettings
from boathook.outbound.addresses import read_address
from boathook.outbound.dialling import Options, common_options
from boathook.outbound.exchange import Exchange
from boathook.outbound.outgoing import Answer, Outgoing, Trouble

BODY_S: Final = 3.0
"""How long a response's body may take after its headers."""
_LOOK_S: Final = 0.5
_MOST_EVENTS: Final = 1_024
_MASKS: Final = {
    pycurl.POLL_IN: select.EPOLLIN,
    pycurl.POLL_OUT: select.EPOLLOUT,
    pycurl.POLL_INOUT: select.EPOLLIN | select.EPOLLOUT,
}


class Transfers:
    """The requests under way.

    Args:
        settings: limits, proxies and what may be dialled.
        wake: a descriptor of eventfd(2) that ends a wait.
    """

    def __init__(self, settings: OutboundSettings, wake: int) -> None:
        self._settings = settings
        self._options = _options(settings)
        self._read = functools.lru_cache(4_096)(
            functools.partial(read_address, ports=frozenset(settings.ports), require_https=settings.require_https)
        )
        self._wake = wake
        self._running: dict[pycurl.Curl, Exchange] = {}
        self._idle: list[Exchange] = []
        self._opened: list[socket.socket] = []
        self._answers: list[Answer] = []
        self._open()

    def _open(self) -> None:
        self._watched: dict[int, int] = {}
        self._timer_at: float | None = None
        self._look_at = 0.0
        self._poll = select.epoll()
        self._poll.register(self._wake, select.EPOLLIN)
        self._multi = pycurl.CurlMulti()
        self._multi.setopt(pycurl.M_SOCKETFUNCTION, self._watch)
        self._multi.setopt(pycurl.M_TIMERFUNCTION, self._set_timer)
        self._multi.setopt(pycurl.M_MAXCONNECTS, self._settings.concurrency)

    def begin(self, outgoing: Outgoing) -> None:
        """Begin a request; one that cannot be made is answered at the end of the turn."""
        try:
            address = self._read(outgoing.url)
        except ValueError as error:
            self._answers.append(_refuse(outgoing, Trouble.URL, str(error)))
            return
        exchange = self._pick(outgoing)
        try:
            exchange.prepare(outgoing, address)
        except ValueError as error:
            self._answers.append(_refuse(outgoing, Trouble.FAULT, str(error)))
            self._put_back(exchange)
            return
        self._running[exchange.handle] = exchange
        self._multi.add_handle(exchange.handle)

    def wait(self) -> list[tuple[int, int]]:
        """Return the next events of sockets; none where it is time for something else."""
        return self._poll.poll(self._pause_s(), _MOST_EVENTS)

    def turn(self, events: list[tuple[int, int]]) -> list[Answer]:
        """Move every request on that can move, and return the answers."""
        for descriptor, bits in events:
            if descriptor == self._wake:
                os.eventfd_read(descriptor)
            else:
                self._multi.socket_action(descriptor, _conditions(bits))
        if self._timer_at is not None and self._timer_at <= time.monotonic():
            self._timer_at = None
            self._multi.socket_action(pycurl.SOCKET_TIMEOUT, 0)
        self._collect()
        self._cut_late()
        self._close_opened()
        answers, self._answers = self._answers, []
        return answers

    def give_up(self, trouble: Trouble, error: str) -> list[Answer]:
        """End every request, and return their answers; the connections are closed."""
        answers = self._answers
        answers.extend(_refuse(exchange.outgoing, trouble, error) for exchange in self._running.values())
        self._answers = []
        self._free()
        self._open()
        return answers

    def close(self) -> None:
        """Free all that is held."""
        self._free()

    def _free(self) -> None:
        for exchange in (*self._running.values(), *self._idle):
            exchange.close()
        self._running.clear()
        self._idle.clear()
        self._multi.close()
        self._poll.close()
        self._close_opened()

    def _close_opened(self) -> None:
        for opened in self._opened:
            opened.close()
        self._opened.clear()

    def _pick(self, outgoing: Outgoing) -> Exchange:
        if outgoing.client_certificate is None:
            return self._idle.pop() if self._idle else self._make([])
        certificate, key = outgoing.client_certificate
        return self._make(
            [
                (pycurl.SSLCERTTYPE, "PEM"),
                (pycurl.SSLCERT_BLOB, certificate.encode()),
                (pycurl.SSLKEYTYPE, "PEM"),
                (pycurl.SSLKEY_BLOB, key.encode()),
            ]
        )

    def _make(self, more: Options) -> Exchange:
        return Exchange(
            [*self._options, *more],
            allow=self._settings.allow,
            opened=self._opened,
            keep=self._settings.max_response,
            is_plain=not more,
        )

    def _put_back(self, exchange: Exchange) -> None:
        if exchange.is_plain and len(self._idle) < self._settings.concurrency:
            self._idle.append(exchange)
        else:
            exchange.close()

    def _collect(self) -> None:
        left = 1
        while left:
            left, done, failed = self._multi.info_read()
            for handle in done:
                self._end(handle, 0, "")
            for handle, error, message in failed:
                self._end(handle, error, message)

    def _end(self, handle: pycurl.Curl, error: int, message: str) -> None:
        self._multi.remove_handle(handle)
        exchange = self._running.pop(handle)
        self._answers.append(exchange.finish(error, message))
        self._put_back(exchange)

    def _cut_late(self) -> None:
        """End the requests whose status came a while ago, and whose body does not end."""
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + _LOOK_S
        for exchange in [one for one in self._running.values() if one.is_late(now - BODY_S)]:
            self._end(exchange.handle, pycurl.E_OPERATION_TIMEDOUT, "the body took too long")

    def _pause_s(self) -> float | None:
        ends = [self._timer_at] if self._timer_at is not None else []
        if self._running:
            ends.append(self._look_at)
        if self._answers:
            return 0.0
        return max(0.0, min(ends) - time.monotonic()) if ends else None

    def _set_timer(self, after_ms: int) -> None:
        self._timer_at = None if after_ms < 0 else time.monotonic() + after_ms / 1_000

    def _watch(self, what: int, descriptor: int, _multi: object, _data: object) -> None:
        """Follow libcurl's wish to be told of a socket's events."""
        if what == pycurl.POLL_REMOVE:
            if self._watched.pop(descriptor, None) is not None:
                self._poll.unregister(descriptor)
            return
        mask = _MASKS[what]
        if descriptor in self._watched:
            self._poll.modify(descriptor, mask)
        else:
            self._poll.register(descriptor, mask)
        self._watched[descriptor] = mask


def _conditions(bits: int) -> int:
    wanted = 0
    if bits & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR):
        wanted |= pycurl.CSELECT_IN
    if bits & (select.EPOLLOUT | select.EPOLLERR):
        wanted |= pycurl.CSELECT_OUT
    return wanted


def _options(settings: OutboundSettings) -> Options:
    return [
        *common_options(settings.ca_file or None, protocols=pycurl.PROTO_HTTP | pycurl.PROTO_HTTPS),
        (pycurl.POST, 1),
        (pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_2TLS),
        (pycurl.PATH_AS_IS, 1),
        (pycurl.CONNECTTIMEOUT_MS, max(1, int(settings.connect_timeout_s * 1_000))),
    ]


def _refuse(outgoing: Outgoing, trouble: Trouble, error: str) -> Answer:
    return Answer(outgoing, 0, {}, b"", 0.0, trouble, error)
