"""What tests of alarms stand on: settings with channels, hosts that tell figures, and looks at the rules."""

import contextlib
import json
import threading
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from standardwebhooks.webhooks import Webhook

from boathook import config
from boathook.dispatch.alarms.rules import compile_rules
from boathook.dispatch.alarms.telling import Teller
from boathook.dispatch.alarms.watch import Watch
from boathook.journal import alarms as kept
from boathook.outbound.notifier import Notifier
from tests.support import until

SECRET = "whsec_" + "c2VjcmV0LW9mLWFsYXJtcy1vZi10ZXN0cw=="
QUICK = """
[notifications.channels.ops]
kind = "webhook"
url = "{url}"
secret = "{secret}"
[notifications]
every_s = 1.0
group_s = 0.0
gap_s = 0.0
"""
"""Settings of a boathook that tells a webhook of each alarm at once."""


def settings_of(*, url: str = "", channels: Any = None, rules: Any = None, own: bool = False, **keys: Any):
    """Return settings with these channels and rules; boathook's own rules only where *own*."""
    tables = config.defaults()
    tables["database"]["url"] = url
    tables["outbound"]["allow"] = ["127.0.0.0/8"]
    tables["server"]["public_url"] = "https://hooks.example.com"
    table = tables["notifications"]
    table.update({"group_s": 0, "gap_s": 0, **keys, "channels": channels or {}})
    off = {} if own else {name: {"enabled": False} for name in config.notifications.own_rules()}
    table["rules"] = {**off, **(rules or {})}
    return config.Settings.model_validate(tables)


def webhook(url: str, **more: Any) -> dict[str, Any]:
    """Return the table of a generic webhook's channel."""
    return {"kind": "webhook", "url": url, "secret": SECRET, **more}


class Stand:
    """A keeper's view of alarms, looked through by hand."""

    def __init__(self, db, settings):
        self.db = db
        self.settings = settings
        self.notifier = Notifier(settings)
        self.watch = Watch(db, settings.notifications, compile_rules(settings), "test")
        self.teller = Teller(db, settings, self.notifier)

    async def tell_figure(self, metric: str, value: float, *labels: str, host: str = "a") -> None:
        """Let a host tell one figure."""
        await kept.put_sample(self.db, host, {metric: [[list(labels), value]]})

    async def look(self, times: int = 1) -> None:
        for _ in range(times):
            await self.watch.look()

    async def deliver(self) -> None:
        """Send what is due, and wait until it is sent or has failed."""
        await self.teller.look()
        for task in list(self.teller._busy.values()):
            await task

    async def pass_time(self, **length: float) -> None:
        """Let time pass, by moving all that alarms know of into the past."""
        gone = timedelta(**length)
        for table, columns in {
            "alarm": ("since", "fired_at", "recovered_at", "told_at"),
            "alarm_notice": ("not_before", "created_at", "ended_at", "taken_until"),
            "alarm_channel": ("not_before", "sent_at", "error_at"),
            "alarm_silence": ("created_at", "until"),
        }.items():
            moved = ", ".join(f"{column} = {column} - $1::interval" for column in columns)
            await self.db.execute(f"update boathook.{table} set {moved}", gone)
        await self.db.execute(
            "update boathook.alarm_channel set recent = array(select r - $1::interval from unnest(recent) as r)", gone
        )

    async def opened(self):
        async with self.db.acquire() as connection:
            return await kept.list_open(connection)

    async def ended(self):
        async with self.db.acquire() as connection:
            return await kept.list_ended(connection)

    async def channels(self):
        async with self.db.acquire() as connection:
            return await kept.list_channels(connection)

    async def close(self) -> None:
        await self.teller.close()
        self.notifier.close()


@contextlib.asynccontextmanager
async def standing(db, settings):
    stand = Stand(db, settings)
    try:
        yield stand
    finally:
        await stand.close()


def told(receiver) -> list[tuple[str, str, str]]:
    """Return the kind, rule and subject of everything a webhook's receiver was told."""
    return [
        (one["kind"], one["rule"], one["subject"])
        for request in receiver.requests
        for one in json.loads(request.body)["data"]["alarms"]
    ]


class Mast:
    """Where alarms are told: a receiver by others' library."""

    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []
        mast = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                found = Webhook(SECRET).verify(body, {name.lower(): value for name, value in self.headers.items()})
                mast.told += found["data"]["alarms"]
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/alarms"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()

    def kinds(self, rule: str, subject: str | None = None) -> list[str]:
        return [
            one["kind"] for one in self.told if one["rule"] == rule and (subject is None or one["subject"] == subject)
        ]

    def await_kind(self, rule: str, *kinds: str, subject: str | None = None) -> dict[str, Any]:
        until(lambda: self.kinds(rule, subject) == list(kinds), timeout=60)
        return [one for one in self.told if one["rule"] == rule][-1]
