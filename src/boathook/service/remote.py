"""Makes HTTP requests to the operator's own servers: gateways, and the server that `boathook listen` forwards to.

These may be in any network, so the guard of `http_client` does not apply. Its settings for proxy and certificates do.
"""

import asyncio
import json
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from boathook.config import Settings
from boathook.domain.errors import FetchFailed
from boathook.http_client.addresses import Address
from boathook.http_client.addresses import read_address as read_address  # noqa: PLC0414 - re-exported
from boathook.http_client.messages import HttpResponse as HttpResponse  # noqa: PLC0414 - re-exported

if TYPE_CHECKING:
    import httpx


_CONNECT_S: Final = 10.0
_MAX_ERROR_BYTES: Final = 4_096


class RemoteClient:
    """Makes requests and reads streams, each on a separate connection.

    Args:
        settings: the proxy and certificates; None uses neither, as for a gateway on this host.

    Raises:
        ConfigError: the proxy cannot be read.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        self._outbound, self._user_agent = None, "boathook"
        if settings is not None:
            proxy = settings.resolve(settings.outbound.proxy, "outbound.proxy")
            self._outbound = settings.outbound.model_copy(update={"proxy": proxy})
            self._user_agent = self._outbound.user_agent or self._user_agent

    async def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        timeout_s: float,
        max_bytes: int,
    ) -> HttpResponse:
        """Send one request and return its response, whatever its status; redirects are not followed.

        Raises:
            FetchFailed: it could not be sent, or the response is larger than *max_bytes*.
        """
        try:
            async with asyncio.timeout(timeout_s), self._open(method, url, headers or {}, body, timeout_s) as response:
                chunks: list[bytes] = []
                size = 0
                async for chunk in response.aiter_raw():
                    size += len(chunk)
                    if size > max_bytes:
                        raise FetchFailed(
                            f"the response is larger than {max_bytes:,} bytes", status=response.status_code
                        )
                    chunks.append(chunk)
                return HttpResponse(response.status_code, dict(response.headers), b"".join(chunks))
        except TimeoutError:
            raise FetchFailed(f"no response within {timeout_s:g} s") from None

    async def stream(self, url: str, headers: Mapping[str, str], *, quiet_s: float) -> AsyncIterator[bytes]:
        """Yield the chunks of a response as they arrive.

        Raises:
            FetchFailed: the request failed, its status is not 200, or nothing arrived for *quiet_s* seconds. The
                message includes a gateway's explanation of another status.
        """
        async with self._open("GET", url, headers, b"", quiet_s) as response:
            if response.status_code != 200:
                raise FetchFailed(await _reason(response), status=response.status_code)
            async for chunk in response.aiter_raw():
                yield chunk

    @asynccontextmanager
    async def _open(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes, quiet_s: float
    ) -> "AsyncIterator[httpx.Response]":
        # Imported here because most processes never make such a request.
        import httpx

        for library in ("httpx", "httpcore"):  # they log URLs and headers, which contain tokens
            logging.getLogger(library).setLevel(logging.WARNING)
        try:
            address = read_address(url)
        except ValueError as error:
            raise FetchFailed(str(error), is_final=True) from None
        header_names = {name.lower() for name in headers}
        proxy = await self._proxy_for(address)
        # The exact target, which a signature may cover; an HTTP proxy would use it instead of the CONNECT target.
        is_exact = proxy is None or proxy.url.scheme.startswith("socks")
        try:
            async with (
                httpx.AsyncClient(
                    headers={"accept-encoding": "identity", "user-agent": self._user_agent},
                    auth=None if "authorization" in header_names else address.user,
                    verify=self._ssl,
                    proxy=proxy,
                    trust_env=False,
                    timeout=httpx.Timeout(quiet_s, connect=min(quiet_s, _CONNECT_S)),
                ) as client,
                client.stream(
                    method,
                    address.url,
                    headers=[(_encode(name), _encode(value)) for name, value in headers.items()],
                    content=body or None,
                    extensions={"target": _target(address).encode()} if is_exact else {},
                ) as response,
            ):
                yield response
        except httpx.ReadTimeout:
            raise FetchFailed(f"{address.origin}: no data received for {quiet_s:g} s") from None
        except (httpx.HTTPError, OSError) as error:
            raise FetchFailed(f"{address.origin}: {str(error) or type(error).__name__}") from None

    @cached_property
    def _ssl(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=(self._outbound and self._outbound.ca_file) or None)

    async def _proxy_for(self, address: Address) -> "httpx.Proxy | None":
        if self._outbound is None or not self._outbound.proxy:
            return None
        import httpx

        from boathook.http_client.guard import ProxyPolicy

        policy = ProxyPolicy(self._outbound)
        if not policy.applies_to(address):
            return None
        try:
            addresses = await asyncio.get_running_loop().getaddrinfo(address.host, None, type=socket.SOCK_STREAM)
        except OSError:  # the proxy may be able to resolve the name
            addresses = []
        if policy.is_bypassed([str(socket_address[0]) for *_, socket_address in addresses]):
            return None
        proxy = self._outbound.proxy
        return httpx.Proxy(proxy, ssl_context=self._ssl if proxy.startswith("https:") else None)


def _target(address: Address) -> str:
    """Return path and query."""
    return "/" + address.url.split("/", 3)[3]


def _encode(text: str) -> bytes:
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace")


async def _reason(response: "httpx.Response") -> str:
    """Return the status of a response and its explanation."""
    text = b""
    async for chunk in response.aiter_raw():
        text += chunk
        if len(text) > _MAX_ERROR_BYTES:
            break
    try:
        document: Any = json.loads(text[:_MAX_ERROR_BYTES])
        detail = document.get("detail") if isinstance(document, dict) else None
        if isinstance(detail, list):  # one or more problems, each with its location
            detail = "; ".join(f"{problem['loc'][-1]}: {problem['msg']}" for problem in detail)
    except (ValueError, KeyError, IndexError, TypeError, RecursionError):
        detail = None
    return f"it answered with status {response.status_code}" + (f": {detail}" if isinstance(detail, str) else "")
