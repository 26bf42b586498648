"""Alert messages in each channel's format, checked by other servers and libraries, with escaped text."""

import asyncio
import contextlib
import json
import threading
from datetime import UTC, datetime
from email import message_from_bytes, policy

import pytest
from aiosmtpd.smtp import SMTP, AuthResult
from standardwebhooks.webhooks import Webhook

from boathook.alerts.channel import SendFailed, Sent
from boathook.alerts.notifier import Notifier
from boathook.domain.alerts import AlertEntry, AlertMessage, AlertMessageKind, clean, collapse, show_length, show_number
from boathook_alert_channels import render
from boathook_alert_channels.settings import TelegramChannel
from tests.alert_harness import SECRET, settings_of, webhook
from tests.support import eventually
from tests.unit.receivers import Authority, Receiver

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
HOSTILE = "<b>x</b> <!channel> @here `rm` *bold* _it_ [a](http://evil.example) \u202e\n\r\n.\r\nBcc: a@b.c & more"


def one(**changes):
    fields = {
        "id": "alt_1", "kind": AlertMessageKind.FIRING, "rule": "dead_letters", "subject": "handler:pay", "severity": "critical",
        "summary": "{subject} has given up deliveries", "advice": "See why.", "page": "/console/dead",
        "value": 3.0, "worst": 3.0, "fired_at": NOW,
    }  # fmt: skip
    return AlertEntry(**fields | changes)


def bulletin(*told, home="https://hooks.example.com"):
    return AlertMessage("ntc_1", NOW, told or (one(),), home)


def answering(body: bytes, status: str = "200 OK", head: str = ""):
    return (f"HTTP/1.1 {status}\r\n{head}content-length: {len(body)}\r\n\r\n".encode() + body,)


async def send(channel, told=None):
    notifier = Notifier(settings_of(channels={"ops": channel}, timeout_s=60))
    try:
        return await notifier.send("ops", told or bulletin())
    finally:
        notifier.close()


def test_details_of_an_app_fill_the_summary_and_are_no_markup():
    entry = one(
        summary="{subject}: {text} {value} {subject}", details={"text": HOSTILE, "subject": "x"}, figures={"value": "3"}
    )
    assert entry.sentence == f"handler:pay: {clean(HOSTILE)} 3 handler:pay"
    channel = TelegramChannel(kind="telegram", token="t", chat="1")
    assert "<b>x" not in json.loads(render.telegram(channel, bulletin(entry)))["text"]


class TestWebhook:
    async def test_standard_webhooks_own_library_verifies_it(self):
        async with Receiver() as receiver:
            assert await send(webhook(receiver.url)) == Sent()
        (request,) = receiver.requests
        found = Webhook(SECRET).verify(request.body, dict(request.headers))
        assert found["type"] == "alerts.changed"
        assert found["data"]["alerts"] == [
            {
                "id": "alt_1", "kind": "firing", "rule": "dead_letters", "subject": "handler:pay",
                "severity": "critical", "summary": "handler:pay has given up deliveries", "advice": "See why.",
                "details": {}, "value": 3.0, "worst": 3.0, "fired_at": "2026-01-02T03:04:05Z", "recovered_at": None,
                "url": "https://hooks.example.com/console/dead",
            }
        ]  # fmt: skip

    async def test_non_2xx_fails_with_its_retry_after(self):
        async with Receiver(script=answering(b"", "429 Slow", "retry-after: 77\r\n")) as receiver:
            assert await send(webhook(receiver.url)) == SendFailed("response status 429", 77.0)

    async def test_a_redirect_is_not_followed(self):
        async with Receiver() as other:
            head = f"location: {other.url}\r\n"
            async with Receiver(script=answering(b"", "307 Temporary Redirect", head)) as receiver:
                assert await send(webhook(receiver.url)) == SendFailed("response status 307")
        assert other.requests == []

    async def test_a_2xx_with_a_huge_body_is_a_success(self):
        async with Receiver(script=answering(b"x" * 10_000_000)) as receiver:
            assert await send(webhook(receiver.url)) == Sent()

    async def test_a_failure_with_a_long_answer_is_a_failure(self):
        async with Receiver(script=answering(b"x" * 10_000_000, "500 No")) as receiver:
            assert isinstance(await send(webhook(receiver.url)), SendFailed)

    @pytest.mark.parametrize("asked", ["9" * 400, "1e999", "nan", "-5", "Fri, 31 Dec 1999 23:59:59 GMT", "\u0661"])
    async def test_any_retry_after_value_is_clamped(self, asked):
        head = f"retry-after: {asked}\r\n".encode().decode("latin-1")
        async with Receiver(script=answering(b"", "503 No", head)) as receiver:
            outcome = await send(webhook(receiver.url))
        assert isinstance(outcome, SendFailed)
        assert 0 <= outcome.retry_after_s <= 3600

    async def test_an_exception_while_sending_is_a_failed_send(self, monkeypatch):
        monkeypatch.setattr(render, "document", lambda _: 1 / 0)
        assert await send(webhook("http://127.0.0.1:9999/x")) == SendFailed("sending failed: ZeroDivisionError")

    async def test_an_invalid_secret_names_its_setting(self):
        outcome = await send(webhook("http://127.0.0.1:9999/x", secret="whsec_%%%"))
        assert isinstance(outcome, SendFailed)
        assert "notifications.channels.ops.secret" in outcome.error

    async def test_an_unresponsive_receiver_times_out(self):
        async with Receiver(script=(60,)) as receiver:
            notifier = Notifier(settings_of(channels={"ops": webhook(receiver.url)}, timeout_s=0.3))
            outcome = await notifier.send("ops", bulletin())
            notifier.close()
        assert isinstance(outcome, SendFailed)


class TestTelegram:
    def channel(self, receiver, **more):
        return {
            "kind": "telegram",
            "token": "12:abc",
            "chat": "-100",
            "api": receiver.url.removesuffix("/hook"),
            **more,
        }

    async def test_it_calls_the_bots_method(self):
        async with Receiver(script=answering(b'{"ok":true}')) as receiver:
            assert await send(self.channel(receiver, thread=7)) == Sent()
        (request,) = receiver.requests
        assert request.lines[0] == "POST /bot12:abc/sendMessage HTTP/1.1"
        body = json.loads(request.body)
        assert (body["chat_id"], body["message_thread_id"], body["parse_mode"]) == ("-100", 7, "HTML")
        assert "handler:pay has given up deliveries (3)" in body["text"]

    async def test_a_rejection_is_reported_without_the_token(self):
        answer = b'{"ok":false,"error_code":400,"description":"chat not found for 12:abc"}'
        async with Receiver(script=answering(answer, "400 Bad")) as receiver:
            outcome = await send(self.channel(receiver))
        assert outcome == SendFailed("Telegram responded 400: chat not found for [token]")

    async def test_retry_after_of_a_429_is_respected(self):
        answer = b'{"ok":false,"description":"Too Many Requests","parameters":{"retry_after":40}}'
        async with Receiver(script=answering(answer, "429 Slow")) as receiver:
            outcome = await send(self.channel(receiver))
        assert isinstance(outcome, SendFailed)
        assert outcome.retry_after_s == 40

    async def test_a_huge_retry_after_is_capped(self):
        answer = b'{"ok":false,"parameters":{"retry_after":' + b"9" * 400 + b"}}"
        async with Receiver(script=answering(answer, "429 Slow")) as receiver:
            outcome = await send(self.channel(receiver))
        assert isinstance(outcome, SendFailed)
        assert 0 <= outcome.retry_after_s <= 3600

    async def test_a_connection_error_is_reported_without_the_token(self):
        async with Receiver() as receiver:
            channel = self.channel(receiver)
        outcome = await send(channel)
        assert isinstance(outcome, SendFailed)
        assert "abc" not in outcome.error


class TestSlack:
    async def test_it_posts_to_the_webhook(self):
        async with Receiver(script=answering(b"ok")) as receiver:
            assert await send({"kind": "slack", "url": receiver.url}) == Sent()
        body = json.loads(receiver.requests[0].body)
        assert body["text"] == "boathook: 1 critical: handler:pay has given up deliveries"
        assert body["link_names"] is False


class MailServer:
    """Fake SMTP server."""

    def __init__(self):
        self.messages = []

    async def handle_DATA(self, server, session, envelope):  # noqa: N802 - aiosmtpd's name
        self.messages.append((envelope.rcpt_tos, message_from_bytes(envelope.content, policy=policy.default)))
        return "250 OK"

    async def handle_RCPT(self, server, session, envelope, address, options):  # noqa: N802
        if address.startswith("nobody"):
            return "550 no such mailbox"
        envelope.rcpt_tos.append(address)
        return "250 OK"


@pytest.fixture
async def smtp_server(tmp_path):
    authority = Authority(tmp_path)
    mailbox = MailServer()

    def authenticate(server, session, envelope, mechanism, data):
        return AuthResult(success=(data.login, data.password) == (b"boathook", b"right"), handled=False)

    def serve():
        context = authority.context("127.0.0.1")
        return SMTP(
            mailbox, tls_context=context, authenticator=authenticate, auth_require_tls=True, hostname="mail.test"
        )

    server = await asyncio.get_running_loop().create_server(serve, "127.0.0.1", 0)
    yield mailbox, server.sockets[0].getsockname()[1], authority
    server.close()


class TestMail:
    def channel(self, port, authority, **more):
        return {
            "kind": "email", "host": "127.0.0.1", "port": port, "sender": "boathook@example.com",
            "to": ["ops@example.com", "anna@example.com"], "ca_file": authority.file, **more,
        }  # fmt: skip

    async def test_sends_over_starttls_with_a_password(self, smtp_server):
        mailbox, port, authority = smtp_server
        assert await send(self.channel(port, authority, username="boathook", password="right")) == Sent()
        ((recipients, message),) = mailbox.messages
        assert recipients == ["ops@example.com", "anna@example.com"]
        assert message["Subject"] == "boathook: 1 critical: handler:pay has given up deliveries"
        assert message["Auto-Submitted"] == "auto-generated"
        assert "https://hooks.example.com/console/dead" in message.get_content()

    async def test_a_login_failure_is_reported_without_the_password(self, smtp_server):
        _, port, authority = smtp_server
        outcome = await send(self.channel(port, authority, username="boathook", password="wrong"))
        assert isinstance(outcome, SendFailed)
        assert "rejects the user name or password" in outcome.error
        assert "wrong" not in outcome.error

    async def test_an_untrusted_certificate_is_refused(self, smtp_server):
        mailbox, port, authority = smtp_server
        outcome = await send(self.channel(port, authority, ca_file=""))
        assert isinstance(outcome, SendFailed)
        assert "not trusted" in outcome.error
        assert mailbox.messages == []

    async def test_recipients_that_are_refused_are_named(self, smtp_server):
        _, port, authority = smtp_server
        outcome = await send(self.channel(port, authority, to=["nobody@example.com"]))
        assert outcome == SendFailed("127.0.0.1 does not accept mail for nobody@example.com (550)")

    async def test_an_unresponsive_server_times_out(self, smtp_server):
        _, _, authority = smtp_server
        async with Receiver(script=(60,)) as silent:
            notifier = Notifier(settings_of(channels={"ops": self.channel(silent.port, authority)}, timeout_s=0.3))
            outcome = await notifier.send("ops", bulletin())
        assert isinstance(outcome, SendFailed)

    async def test_a_trickling_server_occupies_only_one_thread(self):
        async def trickle(_reader, writer):
            with contextlib.suppress(OSError):
                while not is_over.is_set():
                    writer.write(b"2")
                    await writer.drain()
                    await asyncio.sleep(0.05)
            writer.close()

        is_over = asyncio.Event()
        channel = {"kind": "email", "host": "127.0.0.1", "to": ["a@b.c"], "sender": "x@y.z", "security": "none"}
        async with await asyncio.start_server(trickle, "127.0.0.1", 0) as server:
            channel["port"] = server.sockets[0].getsockname()[1]
            notifier = Notifier(settings_of(channels={"ops": channel}, timeout_s=0.5))
            first, second = [await notifier.send("ops", bulletin()) for _ in range(2)]
            notifier.close()
            assert isinstance(first, SendFailed)
            assert second == SendFailed("127.0.0.1 has not answered an earlier message yet")
            assert sum(thread.name == "boathook-mail" for thread in threading.enumerate()) == 1
            is_over.set()
            await eventually(lambda: all(thread.name != "boathook-mail" for thread in threading.enumerate()))

    async def test_tls_from_the_first_byte(self, smtp_server, tmp_path):
        _, _, authority = smtp_server
        greeted = []

        async def serve(reader, writer):
            greeted.append(writer.get_extra_info("ssl_object") is not None)
            writer.write(b"421 not today\r\n")
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=authority.context("127.0.0.1"))
        port = server.sockets[0].getsockname()[1]
        outcome = await send(self.channel(port, authority, security="tls"))
        server.close()
        assert (greeted, isinstance(outcome, SendFailed)) == ([True], True)
        assert "421" in outcome.error


class TestHostileText:
    """A sender may have chosen the subject: it stays text."""

    def told(self):
        return bulletin(one(subject=HOSTILE))

    def test_telegram_text_has_no_tags_or_mentions(self):
        channel = settings_of(channels={"ops": {"kind": "telegram", "token": "t", "chat": "1"}}).notifications.channels[
            "ops"
        ]
        text = json.loads(render.telegram(channel, self.told()))["text"]
        assert "<b>x" not in text
        assert "&lt;b&gt;x" in text
        assert "@here" not in text

    def test_slack_text_has_no_commands_or_mentions(self):
        channel = settings_of(channels={"ops": {"kind": "slack", "url": "u"}}).notifications.channels["ops"]
        body = render.slack(channel, self.told()).decode()
        assert "<!channel>" not in body
        assert "@here" not in body
        assert all(block["text"]["verbatim"] for block in json.loads(body)["blocks"])

    def test_mail_has_no_injected_headers_or_lines(self):
        table = {"kind": "email", "host": "h", "sender": "a@b.c", "to": ["d@e.f"]}
        channel = settings_of(channels={"ops": table}).notifications.channels["ops"]
        message = message_from_bytes(bytes(render.mail(channel, self.told())), policy=policy.default)
        assert "Bcc" not in message
        assert "\n" not in message["Subject"]
        assert not any(line.startswith("Bcc") for line in message.get_content().splitlines())

    def test_the_document_stays_one_document(self):
        (alert,) = json.loads(render.document(self.told()))["data"]["alerts"]
        assert alert["subject"].isprintable()

    def test_a_long_text_is_cut(self):
        channel = settings_of(channels={"ops": {"kind": "telegram", "token": "t", "chat": "1"}}).notifications.channels[
            "ops"
        ]
        many = [one(id=str(number), subject="é" * 500, advice="x" * 900) for number in range(60)]
        text = json.loads(render.telegram(channel, bulletin(*many)))["text"]
        assert len(text) <= 4_096
        assert text.count("<b>") == text.count("</b>")
        assert text.count("<i>") == text.count("</i>")


def test_alerts_beyond_the_limit_are_counted_only():
    many = [one(id=str(number), subject=f"handler:{number}") for number in range(60)]
    table = {"kind": "email", "host": "h", "sender": "a@b.c", "to": ["d@e.f"]}
    text = render.mail(
        settings_of(channels={"ops": table}).notifications.channels["ops"], bulletin(*many)
    ).get_content()
    assert text.count("has given up deliveries") == render.MAX_ENTRIES
    assert "and 40 more" in text


def test_links_are_omitted_without_a_console_url():
    table = {"kind": "email", "host": "h", "sender": "a@b.c", "to": ["d@e.f"]}
    channel = settings_of(channels={"ops": table}).notifications.channels["ops"]
    assert "http" not in render.mail(channel, bulletin(home="")).get_content()


def test_a_recovered_alert_is_collapsed_into_its_recovery():
    recovered = one(kind=AlertMessageKind.RECOVERED, recovered_at=NOW)
    assert collapse([one(), recovered]) == [recovered]
    assert collapse([recovered, one()]) == [recovered]


@pytest.mark.parametrize(
    ("value", "shown"), [(3.0, "3"), (1234567.0, "1,234,567"), (0.98765, "0.988"), (1e20, "1e+20")]
)
def test_figures_are_short(value, shown):
    assert show_number(value) == shown


@pytest.mark.parametrize(("seconds", "shown"), [(0, "0 s"), (59, "59 s"), (61, "1 min 1 s"), (90_061, "1 d 1 h")])
def test_lengths_are_short(seconds, shown):
    assert show_length(seconds) == shown
