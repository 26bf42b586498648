"""Makes HTTP requests to addresses that an operator wrote, such as a gateway's or a local server's."""

from collections.abc import AsyncIterator, Mapping

from boathook.config import Settings
from boathook.http_client.client import Client
from boathook.http_client.response import HttpResponse as HttpResponse  # noqa: PLC0414 - what these functions return
from boathook.http_client.stream import stream_response
from boathook.http_client.stream import unguarded_settings as unguarded_settings  # noqa: PLC0414 - for clients of their own


class RemoteClient:
    """Makes requests and reads streams of server-sent events, in any network.

    Args:
        settings: limits and the proxy.

    Raises:
        ConfigError: the proxy cannot be read.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = unguarded_settings(settings)
        self._client = Client(self._settings)

    async def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        body: bytes = b"",
        timeout_s: float,
        max_bytes: int,
    ) -> HttpResponse:
        """Send one request and return its response, whatever its status.

        Raises:
            FetchFailed: it could not be sent, or the response is larger than *max_bytes*.
        """
        return await self._client.request(
            method, url, headers=headers, body=body, timeout_s=timeout_s, max_bytes=max_bytes
        )

    def stream(self, url: str, headers: Mapping[str, str], *, quiet_s: float) -> AsyncIterator[bytes]:
        """Yield the pieces of a response as they come; FetchFailed if none comes for *quiet_s* seconds."""
        return stream_response(self._settings, url, headers, quiet_s=quiet_s)

    def close(self) -> None:
        """Cancel the requests that are under way."""
        self._client.close()
