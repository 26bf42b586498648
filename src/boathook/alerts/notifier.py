"""Sends alert messages: over HTTP with the connection guard of all outgoing requests, or over SMTP."""

import asyncio
import smtplib
import ssl
import threading
import time
from dataclasses import dataclass, field
from email.message import EmailMessage
from typing import TYPE_CHECKING, Any, Final, Literal, assert_never

import msgspec

from boathook.alerts import render
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
_STEP_S: Final = 10.0
"""Maximum wait for one response of an SMTP server."""


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
        server = _SmtpServer(
            host=channel.host, port=channel.port, security=channel.security, login=login, ca_file=channel.ca_file
        )
        message = render.mail(channel, alert_message)
        error = await _send_mail(server, message, timeout_s=self._settings.notifications.timeout_s)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _SmtpServer:
    """An SMTP server with its connection settings."""

    host: str
    port: int
    security: Literal["starttls", "tls", "none"]
    login: tuple[str, str] | None = field(default=None, repr=False)
    """User name and password."""
    ca_file: str = ""
    """Certificates to trust instead of the system's."""


_LEFT: Final[dict[tuple[_SmtpServer, str], threading.Thread]] = {}
"""The last abandoned thread of each server and recipient list."""


async def _send_mail(server: _SmtpServer, message: EmailMessage, *, timeout_s: float) -> str | None:
    """Send one message; return None, or a one-line reason without secrets if it was not sent.

    The server's certificate is verified. After *timeout_s* the thread is abandoned; it ends when one of its own waits
    times out. A server that responds byte by byte may hold it for hours. Until it ends, no other thread is started for
    this server and these recipients.
    """
    key = server, str(message["To"])
    if (earlier := _LEFT.get(key)) is not None and earlier.is_alive():
        return f"{server.host} has not answered an earlier message yet"
    loop = asyncio.get_running_loop()
    sent: asyncio.Future[str | None] = loop.create_future()

    def run() -> None:
        outcome = _attempt(server, message, min(timeout_s, _STEP_S))
        if not loop.is_closed():
            loop.call_soon_threadsafe(lambda: None if sent.done() else sent.set_result(outcome))

    thread = threading.Thread(target=run, name="boathook-mail", daemon=True)
    thread.start()
    try:
        async with asyncio.timeout(timeout_s):
            return await sent
    except TimeoutError:
        _LEFT[key] = thread
        return f"{server.host} did not accept the message within {timeout_s:g} s"


def _attempt(server: _SmtpServer, message: EmailMessage, step_s: float) -> str | None:
    try:
        _send(server, message, step_s)
    except smtplib.SMTPAuthenticationError as error:
        return f"{server.host} rejects the user name or password (code {error.smtp_code})"
    except smtplib.SMTPRecipientsRefused as error:
        codes = ", ".join(f"{name} ({code})" for name, (code, _) in error.recipients.items())
        return f"{server.host} does not accept mail for {codes}"
    except smtplib.SMTPResponseException as error:
        return f"{server.host} answered {error.smtp_code}: {_plain(error.smtp_error)}"
    except ssl.SSLCertVerificationError as error:
        return f"{server.host}: its certificate is not trusted: {error.verify_message}"
    except smtplib.SMTPNotSupportedError:
        return f"{server.host} supports neither STARTTLS nor the login that is configured"
    except (smtplib.SMTPException, OSError, ValueError) as error:
        return f"{server.host}: {_plain(str(error)) or type(error).__name__}"
    return None


def _send(server: _SmtpServer, message: EmailMessage, step_s: float) -> None:
    with _connect(server, step_s) as smtp:
        if server.security == "starttls":
            smtp.starttls(context=_context(server))
        if server.login is not None:
            smtp.login(*server.login)
        smtp.send_message(message)


def _connect(server: _SmtpServer, step_s: float) -> smtplib.SMTP:
    if server.security == "tls":
        return smtplib.SMTP_SSL(server.host, server.port, timeout=step_s, context=_context(server))
    return smtplib.SMTP(server.host, server.port, timeout=step_s)


def _context(server: _SmtpServer) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=server.ca_file or None)


def _plain(text: bytes | str) -> str:
    words = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    return "".join(char if char.isprintable() else " " for char in words)[:200].strip()
