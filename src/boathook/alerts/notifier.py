"""Sends alert messages: over HTTP with the connection guard of all outgoing requests, or over SMTP."""

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final, assert_never

import msgspec

from boathook.alerts import render
from boathook.alerts.mail import SmtpServer, send_mail
from boathook.config.notifications import Channel, EmailChannel, SlackChannel, TelegramChannel, WebhookChannel
from boathook.config.tables import Settings
from boathook.domain.alerts import AlertMessage
from boathook.domain.errors import ConfigError, FetchFailed
from boathook.domain.signing import sign_standard
from boathook.http_client.messages import HttpResponse
from boathook.observability.log import get_logger

if TYPE_CHECKING:
    from boathook.http_client.client import Client

_LOG = get_logger("alerts")
_JSON: Final = {"Content-Type": "application/json"}
_MAX_ANSWER: Final = 65_536
_MAX_REST_S: Final = 3_600.0


class Sent(msgspec.Struct, frozen=True):
    """The channel accepted the message."""


class SendFailed(msgspec.Struct, frozen=True):
    """The channel did not accept the message, or the outcome is unknown."""

    error: str
    """One line for users, without secrets."""
    retry_after_s: float = 0.0
    """Wait before the next message that the channel requested."""


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
        except FetchFailed as error:
            # A 2xx status means accepted, whatever follows. Only Telegram reports errors in the body of a response.
            is_taken = (error.status or 0) // 100 == 2 and not isinstance(channel, TelegramChannel)
            return Sent() if is_taken else SendFailed(str(error))
        except ConfigError as error:
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

    async def _send(self, name: str, channel: Channel, alert_message: AlertMessage) -> Sent | SendFailed:
        match channel:
            case TelegramChannel():
                token = self._secret(name, "token", channel.token)
                url = f"{channel.api.rstrip('/')}/bot{token}/sendMessage"
                return _read_telegram_result(await self._post(url, render.telegram(channel, alert_message)), token)
            case SlackChannel():
                url = self._secret(name, "url", channel.url)
                return _read_result(await self._post(url, render.slack(channel, alert_message)))
            case WebhookChannel():
                return _read_result(await self._post_signed(name, channel, alert_message))
            case EmailChannel():
                return await self._mail(name, channel, alert_message)
            case _:
                assert_never(channel)

    async def _post_signed(self, name: str, channel: WebhookChannel, alert_message: AlertMessage) -> HttpResponse:
        secret, body, now = (
            self._secret(name, "secret", channel.secret),
            render.document(alert_message),
            int(time.time()),
        )
        try:
            signature = sign_standard([secret], alert_message.id, now, body)
        except ValueError as error:
            raise ConfigError(f"notifications.channels.{name}.secret: {error}") from None
        headers = {"webhook-id": alert_message.id, "webhook-timestamp": str(now), "webhook-signature": signature}
        return await self._post(self._secret(name, "url", channel.url), body, headers)

    async def _post(self, url: str, body: bytes, headers: dict[str, str] | None = None) -> HttpResponse:
        if self._client is None:
            # Imported here because it is heavy and most keepers never send over HTTP.
            from boathook.http_client.client import Client

            outbound = self._settings.outbound
            proxy = self._settings.resolve(outbound.proxy, "outbound.proxy")
            self._client = Client(outbound.model_copy(update={"proxy": proxy}))
        return await self._client.request(
            "POST",
            url,
            headers={**_JSON, **(headers or {})},
            body=body,
            timeout_s=self._settings.notifications.timeout_s,
            max_bytes=_MAX_ANSWER,
        )

    async def _mail(self, name: str, channel: EmailChannel, alert_message: AlertMessage) -> Sent | SendFailed:
        login = None
        if channel.password is not None:
            login = channel.username, self._secret(name, "password", channel.password)
        server = SmtpServer(
            host=channel.host, port=channel.port, security=channel.security, login=login, ca_file=channel.ca_file
        )
        message = render.mail(channel, alert_message)
        error = await send_mail(server, message, timeout_s=self._settings.notifications.timeout_s)
        return Sent() if error is None else SendFailed(error)

    def _secret(self, name: str, key: str, reference: str) -> str:
        return self._settings.resolve(reference, f"notifications.channels.{name}.{key}")


def check_channels(settings: Settings) -> None:
    """Resolve every secret of the channels. Raises ConfigError, which names the key."""
    for name, channel in settings.notifications.channels.items():
        hidden = [key for key, field in type(channel).model_fields.items() if not field.repr]
        for key in hidden:
            reference = getattr(channel, key)
            if reference is not None:
                settings.resolve(reference, f"notifications.channels.{name}.{key}")


def _read_result(answer: HttpResponse) -> Sent | SendFailed:
    if answer.is_ok:
        return Sent()
    return SendFailed(f"response status {answer.status}", _rest(answer.headers.get("retry-after")))


def _read_telegram_result(answer: HttpResponse, token: str) -> Sent | SendFailed:
    try:
        body: Any = msgspec.json.decode(answer.body)
    except (msgspec.DecodeError, RecursionError):
        body = None
    if not isinstance(body, dict):
        return _read_result(answer) if not answer.is_ok else SendFailed("the response is not from Telegram")
    if answer.is_ok and body.get("ok") is True:
        return Sent()
    parameters = body.get("parameters")
    retry_after = parameters.get("retry_after") if isinstance(parameters, dict) else None
    reason = str(body.get("description") or "no reason given").replace(token, "[token]")[:200]
    return SendFailed(f"Telegram responded {answer.status}: {reason}", _rest(retry_after))


def _rest(value: object) -> float:
    try:
        return min(max(0.0, float(value)), _MAX_REST_S)  # type: ignore[arg-type]  # a value of another type raises
    except (TypeError, ValueError, OverflowError):
        return 0.0
