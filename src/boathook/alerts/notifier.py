"""Sends alert messages to channels, each as its kind does."""

import asyncio
from typing import TYPE_CHECKING, Final

from boathook.alerts.channel import ChannelTools, SendFailed, SendMessage, Sent
from boathook.config.channels import ChannelTable, find_kind
from boathook.config.packages import hidden_keys, resolve
from boathook.config.tables import Settings
from boathook.domain.alerts import AlertMessage
from boathook.domain.errors import ConfigError, FetchFailed
from boathook.http_client.messages import HttpResponse
from boathook.observability.log import get_logger

if TYPE_CHECKING:
    from boathook.http_client.client import Client

_LOG = get_logger("alerts")
_MAX_ANSWER: Final = 65_536


class Notifier:
    """Sends messages to channels; each process has one, with its own connections and threads.

    Args:
        settings: channels, limits and allowed network addresses.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._client: Client | None = None

    async def send(self, name: str, alert_message: AlertMessage) -> Sent | SendFailed:
        """Send one message to a channel within `notifications.timeout_s`."""
        channel = self._settings.notifications.channels.get(name)
        if channel is None:
            return SendFailed(f"unknown channel {name!r}; add it under notifications.channels")
        try:
            async with asyncio.timeout(self._settings.notifications.timeout_s + 1.0):
                return await self._send(name, channel, alert_message)
        except (FetchFailed, ConfigError) as error:
            return SendFailed(str(error))
        except TimeoutError:
            return SendFailed("timed out")
        except Exception as error:  # noqa: BLE001 - any error is a failed send, which is retried
            _LOG.error("alert_message_fault", channel=name, exc_info=error)
            return SendFailed(f"sending failed: {type(error).__name__}")

    def close(self) -> None:
        """Cancel running requests and close the connections."""
        if self._client is not None:
            self._client.close()

    async def _send(self, name: str, channel: ChannelTable, alert_message: AlertMessage) -> Sent | SendFailed:
        kind = find_kind(channel.kind)
        assert kind is not None, "the channel was read by its kind"
        send: SendMessage = resolve(kind.send)
        return await send(channel, alert_message, ChannelTools(name, self._settings, self._post))

    async def _post(self, url: str, body: bytes, headers: dict[str, str]) -> HttpResponse:
        if self._client is None:
            # Imported here because it is heavy and most keepers never send over HTTP.
            from boathook.http_client.client import Client

            outbound = self._settings.outbound
            proxy = self._settings.resolve(outbound.proxy, "outbound.proxy")
            self._client = Client(outbound.model_copy(update={"proxy": proxy}))
        return await self._client.request(
            "POST",
            url,
            headers=headers,
            body=body,
            timeout_s=self._settings.notifications.timeout_s,
            max_bytes=_MAX_ANSWER,
        )


def check_channels(settings: Settings) -> None:
    """Resolve every secret of the channels. Raises ConfigError, which names the key."""
    for name, channel in settings.notifications.channels.items():
        for key in hidden_keys(type(channel)):
            reference = getattr(channel, key)
            if reference is not None:
                settings.resolve(reference, f"notifications.channels.{name}.{key}")
