"""A message about alarms in the form that each kind of channel takes.

What strangers may have named is text everywhere: it opens no tag, mentions nobody, and becomes no link.
"""

import html
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from email.message import EmailMessage
from email.utils import format_datetime
from typing import Any, Final

import msgspec

from boathook.config.notifications import EmailChannel, SlackChannel, TelegramChannel
from boathook.domain.telling import Bulletin, Kind, Told, clean, show_length, show_number

MOST_TOLD: Final = 20
"""Alarms told one by one in a message; of the others only the number is told."""
_TELEGRAM_MOST: Final = 4_000
_WORDS: Final = {Kind.FIRES: "", Kind.STILL: "still: ", Kind.RECOVERED: "recovered: ", Kind.TEST: ""}
_UNMENTIONED: Final = str.maketrans({"@": "@\u2060"})
"""A word joiner after the sign, so that nobody is called by it."""


def telegram(channel: TelegramChannel, bulletin: Bulletin) -> bytes:
    """Return the body of ``sendMessage`` (https://core.telegram.org/bots/api#sendmessage)."""
    lines = [f"<b>{_html(bulletin.title)}</b>"]
    for one in _told(bulletin):
        lines.append(f"{_MARKS[one.severity, one.kind is Kind.RECOVERED]} {_html(_line(one, bulletin.at))}")
        if one.kind is not Kind.RECOVERED and one.advice:
            lines.append(f"<i>{_html(one.advice)}</i>")
        if link := bulletin.link(one.page):
            lines.append(f'<a href="{html.escape(link)}">{html.escape(link)}</a>')
    lines += map(_html, _rest(bulletin))
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


def slack(_channel: SlackChannel, bulletin: Bulletin) -> bytes:
    """Return the body of an incoming webhook (https://docs.slack.dev/messaging/sending-messages-using-incoming-webhooks)."""
    blocks = [_section(f"*{_slack(bulletin.title)}*")]
    for one in _told(bulletin):
        parts = [f"{_SLACK_MARKS[one.severity, one.kind is Kind.RECOVERED]} {_slack(_line(one, bulletin.at))}"]
        if one.kind is not Kind.RECOVERED and one.advice:
            parts.append(f"_{_slack(one.advice.replace('_', ' '))}_")
        if link := bulletin.link(one.page):
            parts.append(f"<{_slack(link)}>")
        blocks.append(_section("\n".join(parts)))
    blocks += [_section(_slack(line)) for line in _rest(bulletin)]
    return msgspec.json.encode({"text": _slack(bulletin.title), "blocks": blocks, "link_names": False})


def mail(channel: EmailChannel, bulletin: Bulletin) -> EmailMessage:
    """Return an e-mail in plain text."""
    message = EmailMessage()
    message["Subject"] = clean(bulletin.title, 150)
    message["From"] = channel.sender
    message["To"] = ", ".join(channel.to)
    message["Date"] = format_datetime(bulletin.at)
    message["Message-ID"] = f"<{bulletin.id}@{channel.sender.rpartition('@')[2]}>"
    message["Auto-Submitted"] = "auto-generated"
    lines = [bulletin.title, ""]
    for one in _told(bulletin):
        lines.append(f"[{'recovered' if one.kind is Kind.RECOVERED else one.severity}] {_line(one, bulletin.at)}")
        if one.kind is not Kind.RECOVERED and one.advice:
            lines.append(f"    {one.advice}")
        if link := bulletin.link(one.page):
            lines.append(f"    {link}")
        lines.append("")
    lines += _rest(bulletin)
    message.set_content("\n".join(lines))
    return message


def document(bulletin: Bulletin) -> bytes:
    """Return the JSON document of a generic webhook; docs/notifications.md fixes its fields."""
    return msgspec.json.encode(
        {
            "type": "alarms.test" if any(one.kind is Kind.TEST for one in bulletin.told) else "alarms.changed",
            "timestamp": _moment(bulletin.at),
            "data": {"title": bulletin.title, "alarms": [_object(one, bulletin) for one in bulletin.told]},
        }
    )


def _object(one: Told, bulletin: Bulletin) -> Mapping[str, Any]:
    return {
        "id": one.id,
        "kind": one.kind.value,
        "rule": one.rule,
        "subject": clean(one.subject),
        "severity": one.severity,
        "summary": one.sentence,
        "advice": one.advice,
        "value": one.value,
        "worst": one.worst,
        "fired_at": _moment(one.fired_at),
        "recovered_at": None if one.recovered_at is None else _moment(one.recovered_at),
        "url": bulletin.link(one.page) or None,
    }


def _told(bulletin: Bulletin) -> Sequence[Told]:
    return [*bulletin.firing, *bulletin.recovered][:MOST_TOLD]


def _rest(bulletin: Bulletin) -> Iterator[str]:
    if (left := len(bulletin.told) - MOST_TOLD) > 0:
        yield f"and {left} more"
    if link := bulletin.link("/console/alarms"):
        yield f"All alarms: {link}"


def _line(one: Told, now: datetime) -> str:
    """Return one alarm in a line, such as ``handler:pay has given up deliveries (3), for 4 min``."""
    if one.kind is Kind.TEST:
        return one.sentence
    until = one.recovered_at if one.kind is Kind.RECOVERED and one.recovered_at is not None else now
    length = show_length((until - one.fired_at).total_seconds())
    figure = f"at worst {show_number(one.worst)}" if one.kind is Kind.RECOVERED else show_number(one.value)
    ending = f"after {length}" if one.kind is Kind.RECOVERED else f"since {_moment(one.fired_at)}"
    return f"{_WORDS[one.kind]}{one.sentence} ({figure}), {ending}"


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
    """Escape the three signs that open anything (https://docs.slack.dev/messaging/formatting-message-text)."""
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return escaped.translate(_UNMENTIONED)


def _html(text: str) -> str:
    return html.escape(text.translate(_UNMENTIONED), quote=False)


def _moment(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
