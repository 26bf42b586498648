"""Sends alert messages over SMTP."""

import asyncio
import smtplib
import ssl
import threading
from dataclasses import dataclass, field
from email.message import EmailMessage
from typing import Final, Literal

from boathook.alerts.channel import ChannelTools, SendFailed, Sent
from boathook.domain.alerts import AlertMessage
from boathook_alert_channels import render
from boathook_alert_channels.settings import EmailChannel

_STEP_S: Final = 10.0
"""Maximum wait for one response of an SMTP server."""


async def send_mail(channel: EmailChannel, alert_message: AlertMessage, tools: ChannelTools) -> Sent | SendFailed:
    """Send one message to the mailboxes. Raises ConfigError."""
    login = None
    if channel.password is not None:
        login = channel.username, tools.resolve("password", channel.password)
    server = _SmtpServer(
        host=channel.host, port=channel.port, security=channel.security, login=login, ca_file=channel.ca_file
    )
    error = await _send_mail(server, render.mail(channel, alert_message), timeout_s=tools.timeout_s)
    return Sent() if error is None else SendFailed(error)


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
