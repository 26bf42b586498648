"""Sends alert messages over HTTP."""

import time
from typing import Any, Final

import msgspec

from boathook.alerts.channel import ChannelTools, SendFailed, Sent
from boathook.domain.alerts import AlertMessage
from boathook.domain.errors import FetchFailed
from boathook.domain.signing import sign_standard
from boathook.http_client.messages import HttpResponse
from boathook_alert_channels import render
from boathook_alert_channels.settings import SlackChannel, TelegramChannel, WebhookChannel

_MAX_REST_S: Final = 3_600.0


async def send_to_telegram(
    channel: TelegramChannel, alert_message: AlertMessage, tools: ChannelTools
) -> Sent | SendFailed:
    """Send one message to a chat, as a bot. Raises FetchFailed, or ConfigError."""
    token = tools.resolve("token", channel.token)
    url = f"{channel.api.rstrip('/')}/bot{token}/sendMessage"
    return _read_telegram_result(await tools.post(url, render.telegram(channel, alert_message)), token)


async def send_to_slack(channel: SlackChannel, alert_message: AlertMessage, tools: ChannelTools) -> Sent | SendFailed:
    """Send one message to an incoming webhook. Raises FetchFailed, or ConfigError."""
    return await _post(tools, tools.resolve("url", channel.url), render.slack(channel, alert_message))


async def send_to_webhook(
    channel: WebhookChannel, alert_message: AlertMessage, tools: ChannelTools
) -> Sent | SendFailed:
    """Send one message as a signed document. Raises FetchFailed, or ConfigError."""
    secret, body, now = tools.resolve("secret", channel.secret), render.document(alert_message), int(time.time())
    try:
        signature = sign_standard([secret], alert_message.id, now, body)
    except ValueError as error:
        raise tools.fault("secret", str(error)) from None
    headers = {"webhook-id": alert_message.id, "webhook-timestamp": str(now), "webhook-signature": signature}
    return await _post(tools, tools.resolve("url", channel.url), body, headers)


async def _post(tools: ChannelTools, url: str, body: bytes, headers: dict[str, str] | None = None) -> Sent | SendFailed:
    try:
        return _read_result(await tools.post(url, body, headers))
    except FetchFailed as error:
        # A 2xx status means accepted, whatever follows. Only Telegram reports errors in the body of a response.
        if (error.status or 0) // 100 == 2:
            return Sent()
        raise


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
