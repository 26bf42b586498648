"""Sends messages about alarms: HTTP through the guard of all that goes out, mail over SMTP."""

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, assert_never

import msgspec

from boathook.config.notifications import Channel, EmailChannel, SlackChannel, TelegramChannel, WebhookChannel
from boathook.config.tables import Settings
from boathook.domain.errors import ConfigError, FetchFailed
from boathook.domain.signing import sign_standard
from boathook.domain.telling import Bulletin
from boathook.outbound import notices
from boathook.outbound.answers import HttpAnswer
from boathook.outbound.mail import Server, send_mail
from boathook.telemetry.log import get_logger

if TYPE_CHECKING:
    from boathook.outbound.client import Client

_LOG = get_logger("alarms")
_JSON: Final = {"Content-Type": "application/json"}
_MOST_ANSWER: Final = 65_536
_LONGEST_REST_S: Final = 3_600.0


@dataclass(frozen=True, slots=True)
class Sent:
    """The channel has taken the message."""


@dataclass(frozen=True, slots=True)
class NotSent:
    """It has not, or nobody knows whether it has."""

    error: str
    """One line for people, without secrets."""
    retry_after_s: float = 0.0
    """How long it asks to be left alone."""


class Notifier:
    """The way to all channels; one for a process, with connections and threads of its own.

    Args:
        settings: channels, limits, and what may be dialled.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._client: Client | None = None

    async def send(self, name: str, bulletin: Bulletin) -> Sent | NotSent:
        """Send one message to a channel within `notifications.timeout_s`."""
        channel = self._settings.notifications.channels.get(name)
        if channel is None:
            return NotSent(f"there is no channel {name!r} in the settings")
        try:
            async with asyncio.timeout(self._settings.notifications.timeout_s + 1.0):
                return await self._send(name, channel, bulletin)
        except FetchFailed as error:
            # Who answers 2xx has taken it, whatever else follows; Telegram alone says more in its answer.
            is_taken = (error.status or 0) // 100 == 2 and not isinstance(channel, TelegramChannel)
            return Sent() if is_taken else NotSent(str(error))
        except ConfigError as error:
            return NotSent(str(error))
        except TimeoutError:
            return NotSent("it took too long")
        except Exception as error:  # noqa: BLE001 - whatever a receiver brings about, its channel rests and is tried again
            _LOG.error("notice_fault", channel=name, exc_info=error)
            return NotSent(f"it could not be told: {type(error).__name__}")

    def close(self) -> None:
        """Give up what is under way."""
        if self._client is not None:
            self._client.close()

    async def _send(self, name: str, channel: Channel, bulletin: Bulletin) -> Sent | NotSent:
        match channel:
            case TelegramChannel():
                token = self._secret(name, "token", channel.token)
                url = f"{channel.api.rstrip('/')}/bot{token}/sendMessage"
                return _telegram_verdict(await self._post(url, notices.telegram(channel, bulletin)), token)
            case SlackChannel():
                url = self._secret(name, "url", channel.url)
                return _verdict(await self._post(url, notices.slack(channel, bulletin)))
            case WebhookChannel():
                return _verdict(await self._post_signed(name, channel, bulletin))
            case EmailChannel():
                return await self._mail(name, channel, bulletin)
            case _:
                assert_never(channel)

    async def _post_signed(self, name: str, channel: WebhookChannel, bulletin: Bulletin) -> HttpAnswer:
        secret, body, now = self._secret(name, "secret", channel.secret), notices.document(bulletin), int(time.time())
        try:
            signature = sign_standard([secret], bulletin.id, now, body)
        except ValueError as error:
            raise ConfigError(f"notifications.channels.{name}.secret: {error}") from None
        headers = {"webhook-id": bulletin.id, "webhook-timestamp": str(now), "webhook-signature": signature}
        return await self._post(self._secret(name, "url", channel.url), body, headers)

    async def _post(self, url: str, body: bytes, headers: dict[str, str] | None = None) -> HttpAnswer:
        if self._client is None:
            # Most keepers never tell anybody over HTTP, and what it stands on is heavy.
            from boathook.outbound.client import Client

            outbound = self._settings.outbound
            proxy = self._settings.resolve(outbound.proxy, "outbound.proxy")
            self._client = Client(outbound.model_copy(update={"proxy": proxy}))
        return await self._client.request(
            "POST",
            url,
            headers={**_JSON, **(headers or {})},
            body=body,
            timeout_s=self._settings.notifications.timeout_s,
            max_bytes=_MOST_ANSWER,
        )

    async def _mail(self, name: str, channel: EmailChannel, bulletin: Bulletin) -> Sent | NotSent:
        login = None
        if channel.password is not None:
            login = channel.username, self._secret(name, "password", channel.password)
        server = Server(
            host=channel.host, port=channel.port, security=channel.security, login=login, ca_file=channel.ca_file
        )
        message = notices.mail(channel, bulletin)
        error = await send_mail(server, message, timeout_s=self._settings.notifications.timeout_s)
        return Sent() if error is None else NotSent(error)

    def _secret(self, name: str, key: str, reference: str) -> str:
        return self._settings.resolve(reference, f"notifications.channels.{name}.{key}")


def check_channels(settings: Settings) -> None:
    """Look every secret of the channels up. Raises ConfigError, which names the key."""
    for name, channel in settings.notifications.channels.items():
        for key in ("token", "url", "secret", "password"):
            reference = getattr(channel, key, None)
            if reference is not None:
                settings.resolve(reference, f"notifications.channels.{name}.{key}")


def _verdict(answer: HttpAnswer) -> Sent | NotSent:
    if answer.is_ok:
        return Sent()
    return NotSent(f"it answered {answer.status}", _rest(answer.headers.get("retry-after")))


def _telegram_verdict(answer: HttpAnswer, token: str) -> Sent | NotSent:
    try:
        told: Any = msgspec.json.decode(answer.body)
    except (msgspec.DecodeError, RecursionError):
        told = None
    if not isinstance(told, dict):
        return _verdict(answer) if not answer.is_ok else NotSent("its answer is none of Telegram's")
    if answer.is_ok and told.get("ok") is True:
        return Sent()
    parameters = told.get("parameters")
    rest = parameters.get("retry_after") if isinstance(parameters, dict) else None
    words = str(told.get("description") or "no reason given").replace(token, "[token]")[:200]
    return NotSent(f"Telegram answered {answer.status}: {words}", _rest(rest))


def _rest(told: object) -> float:
    try:
        return min(max(0.0, float(told)), _LONGEST_REST_S)  # type: ignore[arg-type]  # whatever it is not, is refused
    except (TypeError, ValueError, OverflowError):
        return 0.0
