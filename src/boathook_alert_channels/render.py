"""Renders alert messages in the format of each kind of channel.

Untrusted names are plain text everywhere: they open no tag, mention no user and form no link.
"""

import html
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from email.message import EmailMessage
from email.utils import format_datetime
from typing import Any, Final

import msgspec

from boathook.domain.alerts import AlertEntry, AlertMessage, AlertMessageKind, clean, show_length, show_number
from boathook_alert_channels.settings import EmailChannel, SlackChannel, TelegramChannel

MAX_ENTRIES: Final = 20
"""Maximum number of alerts listed in one message; the rest are only counted."""
_TELEGRAM_MOST: Final = 4_000
_WORDS: Final = {
    AlertMessageKind.FIRING: "",
    AlertMessageKind.REPEATED: "still: ",
    AlertMessageKind.RECOVERED: "recovered: ",
    AlertMessageKind.TEST: "",
}
_UNMENTIONED: Final = str.maketrans({"@": "@\u2060"})
"""A word joiner after the sign, so that it mentions no user."""


def telegram(channel: TelegramChannel, alert_message: AlertMessage) -> bytes:
    """Return the body of ``sendMessage`` (https://core.telegram.org/bots/api#sendmessage)."""
    lines = [f"<b>{_html(alert_message.title)}</b>"]
    for entry in _entries(alert_message):
        mark = _MARKS[entry.severity, entry.kind is AlertMessageKind.RECOVERED]
        lines.append(f"{mark} {_html(_line(entry, alert_message.at))}")
        if entry.kind is not AlertMessageKind.RECOVERED and entry.advice:
            lines.append(f"<i>{_html(entry.advice)}</i>")
        if link := alert_message.link(entry.page):
            lines.append(f'<a href="{html.escape(link)}">{html.escape(link)}</a>')
    lines += map(_html, _rest(alert_message))
    text = ""
    for line in lines:
        if len(text) + len(line) > _TELEGRAM_MOST:
            text += "\n…"
            break
        text += f"\n{line}" if text else line
    body: dict[str, Any] = {
        "chat_id": channel.chat,
        "text": text,
        "parse_mode": "HTML",
        "link_preview_options": {"is_disabled": True},
    }
    if channel.thread is not None:
        body["message_thread_id"] = channel.thread
    return msgspec.json.encode(body)


def slack(_channel: SlackChannel, alert_message: AlertMessage) -> bytes:
    """Return the body of an incoming webhook (https://docs.slack.dev/messaging/sending-messages-using-incoming-webhooks)."""
    blocks = [_section(f"*{_slack(alert_message.title)}*")]
    for entry in _entries(alert_message):
        parts = [
            _SLACK_MARKS[entry.severity, entry.kind is AlertMessageKind.RECOVERED]
            + f" {_slack(_line(entry, alert_message.at))}"
        ]
        if entry.kind is not AlertMessageKind.RECOVERED and entry.advice:
            parts.append(f"_{_slack(entry.advice.replace('_', ' '))}_")
        if link := alert_message.link(entry.page):
            parts.append(f"<{_slack(link)}>")
        blocks.append(_section("\n".join(parts)))
    blocks += [_section(_slack(line)) for line in _rest(alert_message)]
    return msgspec.json.encode({"text": _slack(alert_message.title), "blocks": blocks, "link_names": False})


def mail(channel: EmailChannel, alert_message: AlertMessage) -> EmailMessage:
    """Return an e-mail in plain text."""
    message = EmailMessage()
    message["Subject"] = clean(alert_message.title, 150)
    message["From"] = channel.sender
    message["To"] = ", ".join(channel.to)
    message["Date"] = format_datetime(alert_message.at)
    message["Message-ID"] = f"<{alert_message.id}@{channel.sender.rpartition('@')[2]}>"
    message["Auto-Submitted"] = "auto-generated"
    lines = [alert_message.title, ""]
    for entry in _entries(alert_message):
        lines.append(
            f"[{'recovered' if entry.kind is AlertMessageKind.RECOVERED else entry.severity}] "
            f"{_line(entry, alert_message.at)}"
        )
        if entry.kind is not AlertMessageKind.RECOVERED and entry.advice:
            lines.append(f"    {entry.advice}")
        if link := alert_message.link(entry.page):
            lines.append(f"    {link}")
        lines.append("")
    lines += _rest(alert_message)
    message.set_content("\n".join(lines))
    return message


def document(alert_message: AlertMessage) -> bytes:
    """Return the JSON document of a generic webhook; docs/how-to/alerts.md fixes its fields."""
    return msgspec.json.encode(
        {
            "type": "alerts.test"
            if any(alert.kind is AlertMessageKind.TEST for alert in alert_message.alerts)
            else "alerts.changed",
            "timestamp": _moment(alert_message.at),
            "data": {
                "title": alert_message.title,
                "alerts": [_object(alert, alert_message) for alert in alert_message.alerts],
            },
        }
    )


def _object(entry: AlertEntry, alert_message: AlertMessage) -> Mapping[str, Any]:
    return {
        "id": entry.id,
        "kind": entry.kind.value,
        "rule": entry.rule,
        "subject": clean(entry.subject),
        "severity": entry.severity,
        "summary": entry.sentence,
        "advice": entry.advice,
        "details": {name: clean(text) for name, text in entry.details.items()},
        "value": entry.value,
        "worst": entry.worst,
        "fired_at": _moment(entry.fired_at),
        "recovered_at": None if entry.recovered_at is None else _moment(entry.recovered_at),
        "url": alert_message.link(entry.page) or None,
    }


def _entries(alert_message: AlertMessage) -> Sequence[AlertEntry]:
    return [*alert_message.firing, *alert_message.recovered][:MAX_ENTRIES]


def _rest(alert_message: AlertMessage) -> Iterator[str]:
    if (rest := len(alert_message.alerts) - MAX_ENTRIES) > 0:
        yield f"and {rest} more"
    if link := alert_message.link("/console/alerts"):
        yield f"All alerts: {link}"


def _line(entry: AlertEntry, now: datetime) -> str:
    """Format one alert as a line, such as ``handler:pay has new dead letters (3), for 4 min``."""
    if entry.kind is AlertMessageKind.TEST:
        return entry.sentence
    until = entry.recovered_at if entry.kind is AlertMessageKind.RECOVERED and entry.recovered_at is not None else now
    length = show_length((until - entry.fired_at).total_seconds())
    figure = (
        f"worst {show_number(entry.worst)}" if entry.kind is AlertMessageKind.RECOVERED else show_number(entry.value)
    )
    figure = "" if entry.has_value else f" ({figure})"
    ending = f"after {length}" if entry.kind is AlertMessageKind.RECOVERED else f"since {_moment(entry.fired_at)}"
    return f"{_WORDS[entry.kind]}{entry.sentence}{figure}, {ending}"


_MARKS: Final = {
    ("critical", False): "\U0001f534",
    ("warning", False): "\U0001f7e0",
    ("critical", True): "\U0001f7e2",
    ("warning", True): "\U0001f7e2",
}
_SLACK_MARKS: Final = {
    ("critical", False): ":red_circle:",
    ("warning", False): ":large_orange_circle:",
    ("critical", True): ":large_green_circle:",
    ("warning", True): ":large_green_circle:",
}


def _section(text: str) -> dict[str, Any]:
    return {"type": "section", "text": {"type": "mrkdwn", "text": text[:2_900], "verbatim": True}}


def _slack(text: str) -> str:
    """Escape the three characters with a special meaning (https://docs.slack.dev/messaging/formatting-message-text)."""
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return escaped.translate(_UNMENTIONED)


def _html(text: str) -> str:
    return html.escape(text.translate(_UNMENTIONED), quote=False)


def _moment(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")
