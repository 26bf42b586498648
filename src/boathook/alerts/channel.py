"""What sends alert messages to channels of one kind, and what it gets from boathook."""

from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

import msgspec

from boathook.config.tables import Settings
from boathook.domain.alerts import AlertMessage
from boathook.domain.errors import ConfigError
from boathook.http_client.messages import HttpResponse

Post = Callable[[str, bytes, dict[str, str]], Awaitable[HttpResponse]]
"""Posts a body with headers to a URL. Raises FetchFailed."""
_JSON: Final = {"Content-Type": "application/json"}


class Sent(msgspec.Struct, frozen=True):
    """The channel accepted the message."""


class SendFailed(msgspec.Struct, frozen=True):
    """The channel did not accept the message, or the outcome is unknown."""

    error: str
    """One line for users, without secrets."""
    retry_after_s: float = 0.0
    """Wait before the next message that the channel requested."""


class ChannelTools:
    """What a message to one channel is sent with.

    Args:
        name: the channel's name in the settings.
        settings: all settings.
        post: makes requests, with the connection guard of all outgoing requests.
    """

    def __init__(self, name: str, settings: Settings, post: Post) -> None:
        self._name = name
        self._settings = settings
        self._post = post

    @property
    def timeout_s(self) -> float:
        """How long sending a message may take."""
        return self._settings.notifications.timeout_s

    def resolve(self, key: str, reference: str) -> str:
        """Return the secret that a key of the channel refers to. Raises ConfigError, which names the key."""
        return self._settings.resolve(reference, self._key(key))

    def fault(self, key: str, message: str) -> ConfigError:
        """Return the error of a key of the channel, to be raised."""
        return ConfigError(f"{self._key(key)}: {message}")

    async def post(self, url: str, body: bytes, headers: dict[str, str] | None = None) -> HttpResponse:
        """Post a JSON document. Raises FetchFailed; its *status* is set if the response began."""
        return await self._post(url, body, {**_JSON, **(headers or {})})

    def _key(self, key: str) -> str:
        return f"notifications.channels.{self._name}.{key}"


class SendMessage(Protocol):
    """Sends messages to channels of one kind; `ChannelKind.send` names such a function."""

    async def __call__(self, channel: Any, alert_message: AlertMessage, tools: ChannelTools, /) -> Sent | SendFailed:
        """Send one message.

        Args:
            channel: the settings of the channel, of the class that the kind declares.

        Raises:
            FetchFailed: it may have failed; it is sent again.
            ConfigError: the channel cannot be used as it is set.
        """
        ...
