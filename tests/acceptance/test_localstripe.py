"""localstripe, a fake of Stripe by other authors, sends its signed webhooks; its own list of events is the reference."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from tests.acceptance.conftest import SECRET, BoathookProcess, free_port
from tests.support import until

# Started on loopback only, and without its one state file for all of the machine; the rest is its own program.
START = """
import logging, sys
from aiohttp import web
from localstripe import resources, server
logging.basicConfig(level=logging.INFO)
resources.Store.dump_to_disk = lambda self: None
web.run_app(server.app, host="127.0.0.1", port=int(sys.argv[1]))
"""

EVERY_EVENT = """
from boathook import Boathook, Event, Transaction

hook = Boathook()

@hook.on("stripe", "*")
async def book(event: Event, tx: Transaction) -> None:
    await tx.execute(
        "insert into shop.effect (event_key, handler, attempt) values ($1, $2, $3)",
        event.dedup_key, event.type, event.attempt)
"""

QUARANTINE_ALL = """
[retention]
rejections_rate = 1000.0
"""

TOLERANCE_S = 8
GOOD_CARD, DECLINED_CARD = "4242424242424242", "4000000000000341"


class Stripe:
    """One localstripe process, spoken to like Stripe's API."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.log_file = folder / "localstripe.log"
        with self.log_file.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", START, str(self.port)],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.client = httpx.Client(
            base_url=f"http://127.0.0.1:{self.port}", headers={"authorization": "Bearer sk_test_12345"}, timeout=300
        )
        until(self._is_up)

    def _is_up(self) -> bool:
        assert self.process.poll() is None, self.log()
        try:
            return self.client.get("/v1/events").status_code == 200
        except httpx.TransportError:
            return False

    def stop(self) -> None:
        self.client.close()
        self.process.terminate()
        self.process.wait(300)

    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    def send_webhooks_to(self, name: str, url: str) -> None:
        self.client.post(f"/_config/webhooks/{name}", data={"url": url, "secret": SECRET}).raise_for_status()

    def create(self, what: str, /, *, status: int = 200, **form: Any) -> dict[str, Any]:
        """POST a form with nested keys in Stripe's notation, a[b]."""
        answer = self.client.post(f"/v1/{what}", data=_flat(form))
        assert answer.status_code == status, answer.text
        return answer.json()

    def events(self) -> list[dict[str, Any]]:
        """Return every event by localstripe's own account."""
        found: list[dict[str, Any]] = []
        while True:
            after = {"starting_after": found[-1]["id"]} if found else {}
            page = self.client.get("/v1/events", params={"limit": 100, **after}).raise_for_status().json()
            found += page["data"]
            if not page["has_more"]:
                return found


def _flat(form: dict[str, Any]) -> dict[str, Any]:
    flat = {}
    for name, value in form.items():
        if isinstance(value, dict):
            for key, inner in _flat(value).items():
                head, bracket, tail = key.partition("[")
                flat[f"{name}[{head}]{bracket}{tail}"] = inner
        else:
            flat[name] = value
    return flat


def do_business(stripe: Stripe, customers: int) -> list[dict[str, Any]]:
    """Sell subscriptions and single things, let one card be declined, lose a customer; return the events."""
    product = stripe.create("products", name="Rope")
    plan = stripe.create("plans", product=product["id"], amount=1200, currency="eur", interval="month")
    numbers = count()

    def card_of(customer: dict[str, Any], number: str) -> str:
        card = {"number": number, "exp_month": 12, "exp_year": 2040, "cvc": "123"}
        method = stripe.create("payment_methods", type="card", card=card)
        stripe.create(f"payment_methods/{method['id']}/attach", customer=customer["id"])
        return method["id"]

    for _ in range(customers):
        customer = stripe.create("customers", email=f"sailor{next(numbers)}@example.com", name="Zoë Ängström ⚓")
        card = card_of(customer, GOOD_CARD)
        stripe.create(f"customers/{customer['id']}", invoice_settings={"default_payment_method": card})
        stripe.create("subscriptions", customer=customer["id"], items={"0": {"plan": plan["id"]}})
        stripe.create("invoiceitems", customer=customer["id"], amount=500, currency="eur", description="Knot")
        invoice = stripe.create("invoices", customer=customer["id"])
        stripe.create(f"invoices/{invoice['id']}/pay")
        stripe.create(
            "payment_intents", amount=4200, currency="eur", customer=customer["id"], payment_method=card, confirm="true"
        )
    unlucky = stripe.create("customers", email="unlucky@example.com")
    declined = card_of(unlucky, DECLINED_CARD)
    stripe.create(
        "payment_intents", status=402, amount=700, currency="eur", customer=unlucky["id"], payment_method=declined,
        confirm="true",
    )  # fmt: skip
    stripe.client.delete(f"/v1/customers/{unlucky['id']}").raise_for_status()
    return stripe.events()


KINDS = {
    "product.created", "plan.created", "customer.created", "customer.updated", "customer.deleted",
    "customer.subscription.created", "invoice.created", "invoice.payment_succeeded", "payment_intent.succeeded",
    "payment_intent.payment_failed",
}  # fmt: skip


@pytest.fixture
def stripe(tmp_path: Path) -> Iterator[Stripe]:
    folder = tmp_path / "localstripe"
    folder.mkdir()
    one = Stripe(folder)
    yield one
    one.stop()


def rows(url: str, sql: str) -> list[tuple]:
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(sql).fetchall()


def serving(boathook: Callable[..., BoathookProcess], *, extra: str = "", secret: str = SECRET) -> BoathookProcess:
    """Return a boathook, not started, that books every event of Stripe's."""
    running = boathook(start=False, extra=extra)
    (running.folder / "shop.py").write_text(EVERY_EVENT)
    if secret != SECRET:
        change(running, f'["{SECRET}"]', f'["{secret}"]')
    return running


def change(running: BoathookProcess, old: str, new: str) -> None:
    file = running.folder / "boathook.toml"
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))


def named(events: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return sorted((event["id"], event["type"]) for event in events)


def booked(url: str) -> list[tuple[str, str]]:
    return sorted(rows(url, "select event_key, handler from shop.effect"))


def test_every_webhook_is_accepted_stored_and_handled_once(
    boathook: Callable[..., BoathookProcess], stripe: Stripe, pg_url: str
):
    running = serving(boathook).start()
    # Two endpoints for one boathook: every event comes twice, signed alike, and must count once.
    stripe.send_webhooks_to("one", f"{running.base}/in/stripe")
    stripe.send_webhooks_to("two", f"{running.base}/webhooks/stripe")
    sent = do_business(stripe, customers=6)
    assert {event["type"] for event in sent} >= KINDS
    until(lambda: stripe.log().count("successfully delivered") >= 2 * len(sent))
    assert " failed" not in stripe.log()
    assert stripe.log().count("successfully delivered") == 2 * len(sent)

    stored = running.listing("events", "list", "--limit", "0")
    assert sorted((event["dedup_key"], event["type"]) for event in stored) == named(sent)
    assert {(event["source"], event["grade"]) for event in stored} == {("stripe", "body signed")}
    until(lambda: len(booked(pg_url)) >= len(sent))
    until(lambda: rows(pg_url, "select count(*) from boathook.delivery") == [(0,)])
    assert booked(pg_url) == named(sent)
    assert rows(pg_url, "select count(*) from boathook.conflict") == [(0,)]
    assert running.cli("check", "--deep").returncode == 0

    shown = running.cli("events", "show", stored[0]["id"]).stdout
    assert stored[0]["dedup_key"] in shown
    assert running.stop() == 0
    assert booked(pg_url) == named(sent)


@pytest.mark.extended("waits for intervals and deadlines of the product")
def test_webhooks_rejected_by_a_wrong_secret_are_accepted_later(
    boathook: Callable[..., BoathookProcess], stripe: Stripe, pg_url: str
):
    running = serving(boathook, extra=QUARANTINE_ALL, secret="whsec_of_another_endpoint")
    change(running, 'provider = "stripe"', f'provider = "stripe"\ntolerance_s = {TOLERANCE_S}')
    running.start()
    stripe.send_webhooks_to("one", f"{running.base}/in/stripe")
    sent = do_business(stripe, customers=2)
    until(lambda: stripe.log().count("failed with response code") >= len(sent))
    assert stripe.log().count("failed with response code 401") == len(sent)
    assert "successfully delivered" not in stripe.log()
    for table in ("event", "dedup", "delivery", "delivery_archive", "conflict"):
        assert rows(pg_url, f"select count(*) from boathook.{table}") == [(0,)], table

    until(lambda: rows(pg_url, "select count(*) from boathook.rejection") == [(len(sent),)])
    refused = running.listing("rejections", "list", "--limit", "0")
    assert {(one["source"], one["status"], one["reason"]) for one in refused} == {("stripe", 401, "signature_mismatch")}
    assert all("the signature does not match the body under the source's secret" in one["detail"] for one in refused)
    still = running.cli("rejections", "reverify", "--source", "stripe", check=False)
    assert still.returncode == 1
    assert f"{len(sent)} still rejected" in still.stdout
    assert booked(pg_url) == []
    assert running.stop() == 0

    change(running, "whsec_of_another_endpoint", SECRET)
    newest = max(event["created"] for event in sent)
    until(lambda: time.time() > newest + TOLERANCE_S + 1)
    judged = running.listing("rejections", "reverify", "--source", "stripe")
    assert [one["outcome"] for one in judged] == ["accepted"] * len(sent)
    again = running.listing("rejections", "reverify", *(one["id"] for one in refused))
    assert [one["outcome"] for one in again] == ["duplicate"] * len(sent)
    assert booked(pg_url) == []

    running.start()
    until(lambda: len(booked(pg_url)) >= len(sent))
    until(lambda: rows(pg_url, "select count(*) from boathook.delivery") == [(0,)])
    assert booked(pg_url) == named(sent)
    assert running.cli("check", "--deep").returncode == 0
    # What tells that the moment of receipt was decisive: the very same request is too old by now.
    headers, body = rows(pg_url, "select headers, body from boathook.rejection limit 1")[0]
    late = httpx.post(f"{running.base}/in/stripe", content=body, headers=headers)
    assert late.status_code == 401
    until(lambda: running.listing("rejections", "list", "--reason", "timestamp_too_old"))
