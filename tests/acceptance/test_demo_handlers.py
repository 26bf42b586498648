"""The demo's handlers get events twice, in the wrong order and a week late from three senders: one effect each.

Every request is signed by its sender's own library; GitHub publishes none for Python, and signs as its documentation says.
"""

import hashlib
import hmac
import json
import random
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
import stripe
from psycopg.rows import dict_row
from slack_sdk.signature import SignatureVerifier

from boathook_demo.reconciliation import SQL
from tests.acceptance.conftest import PATIENT, BoathookProcess
from tests.databases import created
from tests.support import until

SECRETS = {"stripe": "whsec_of_the_demo", "github": "known to GitHub", "slack": "8f742231b10e8888abcd99yyyzzz85a5"}
WEEK_S = 7 * 86_400
PATIENCE_S = 60.0
APP = "boathook_demo.handlers:hook"
CARELESS = """
from boathook import Transaction
from boathook_demo.handlers import hook

async def believe(*_):
    return True

Transaction.newer = believe
"""
"""The same handlers without their guard against events that arrive out of order."""


@dataclass(frozen=True, slots=True)
class Sender:
    """One of the three senders and its events."""

    source: str
    handler: str
    write: Callable[[str, str, float, int], dict[str, Any]]
    """From an event's id, the object's id, the time of its change, and its new state as a number."""
    sign: Callable[[bytes, str], dict[str, str]]
    """From the body and the event's id, at the moment of sending."""
    thing: Callable[[str], str]
    """The handler's name for the object."""
    states: tuple[str, str]


def write_subscription(key: str, thing: str, at: float, state: int) -> dict[str, Any]:
    subscription = {"id": thing, "plan": PLANS[state]}
    result = {"id": key, "object": "event", "type": "customer.subscription.updated", "created": int(at)}
    return {**result, "data": {"object": subscription}}


def write_issue(_key: str, thing: str, at: float, state: int) -> dict[str, Any]:
    moment = datetime.fromtimestamp(int(at), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    issue = {"id": int(thing, 16), "number": 7, "state": ISSUES[state], "updated_at": moment}
    return {"action": ("opened", "closed")[state], "issue": issue}


def write_edit(key: str, thing: str, at: float, state: int) -> dict[str, Any]:
    message = {"ts": f"{int(thing, 16)}.000100", "text": TEXTS[state]}
    edit = {"type": "message", "subtype": "message_changed", "channel": "C0DEMO", "message": message}
    return {"type": "event_callback", "event_id": key, "event": {**edit, "event_ts": f"{at:.6f}"}}


def sign_as_stripe(body: bytes, _key: str, *, at: float | None = None) -> dict[str, str]:
    header = stripe.WebhookSignature.generate_signature_header(
        body.decode(), SECRETS["stripe"], timestamp=int(at or time.time())
    )
    return {"stripe-signature": header}


def sign_as_github(body: bytes, key: str) -> dict[str, str]:
    proof = hmac.new(SECRETS["github"].encode(), body, hashlib.sha256).hexdigest()
    return {"x-hub-signature-256": f"sha256={proof}", "x-github-delivery": key, "x-github-event": "issues"}


def sign_as_slack(body: bytes, _key: str) -> dict[str, str]:
    stamp = str(int(time.time()))
    proof = SignatureVerifier(SECRETS["slack"]).generate_signature(timestamp=stamp, body=body)
    assert proof is not None
    return {"x-slack-signature": proof, "x-slack-request-timestamp": stamp}


PLANS = ("basic", "pro")
ISSUES = ("open", "closed")
TEXTS = ("where is my order?", "it has come")
STRIPE = Sender("stripe", "follow_subscription", write_subscription, sign_as_stripe, lambda thing: thing, PLANS)
GITHUB = Sender("github", "follow_issue", write_issue, sign_as_github, lambda thing: f"issue {int(thing, 16)}", ISSUES)
SLACK = Sender(
    "slack", "follow_message", write_edit, sign_as_slack, lambda thing: f"message C0DEMO {int(thing, 16)}.000100", TEXTS
)
three_senders = pytest.mark.parametrize("sender", [STRIPE, GITHUB, SLACK], ids=lambda sender: sender.source)


@dataclass(frozen=True, slots=True)
class SendResult:
    """The responses to one event."""

    key: str
    answers: list[httpx.Response]

    @property
    def copies(self) -> list[bool]:
        assert [answer.status_code for answer in self.answers] == [200] * len(self.answers)
        return [answer.json()["duplicate"] for answer in self.answers]

    @property
    def ids(self) -> set[str]:
        return {answer.json()["event_id"] for answer in self.answers}


class Shop(BoathookProcess):
    """The demo's handlers on a real boathook."""

    def __init__(self, folder: Path, database_url: str, app: str) -> None:
        self.app = app
        super().__init__(folder, database_url, roles="gateway,worker,keeper")
        with self.connect() as connection:
            connection.execute(SQL["create_tables"])

    def _configuration(self, extra: str) -> str:
        sources = "".join(
            f'[sources.{name}]\nprovider = "{name}"\nsecrets = ["{secret}"]\n' for name, secret in SECRETS.items()
        )
        return (
            f'[database]\nurl = "{self.database_url}"\n'
            f'[server]\nbind = "127.0.0.1:{self.port}"\ndata_dir = "data"\napp = "{self.app}"\n'
            'roles = ["gateway", "worker", "keeper"]\n[worker]\npoll_interval_s = 0.1\n' + sources + PATIENT + extra
        )

    def connect(self) -> psycopg.Connection[dict[str, Any]]:
        return psycopg.connect(self.database_url, autocommit=True, row_factory=dict_row)

    def rows(self, sql: str, *arguments: Any) -> list[dict[str, Any]]:
        with closing(self.connect()) as connection:
            return connection.execute(sql, arguments).fetchall()

    def send_change(self, sender: Sender, thing: str, at: float, state: int, *, times: int = 1) -> SendResult:
        """Send one change *times* times at once."""
        key = new_key(sender)
        return self.send_again(sender, key, sender.write(key, thing, at, state), times=times)

    def send_again(self, sender: Sender, key: str, payload: dict[str, Any], *, times: int = 1) -> SendResult:
        body = json.dumps(payload).encode()
        headers = {"content-type": "application/json", **sender.sign(body, key)}

        def post(_: int) -> httpx.Response:
            return httpx.post(f"{self.base}/in/{sender.source}", content=body, headers=headers, timeout=300)

        with ThreadPoolExecutor(times) as pool:
            return SendResult(key, list(pool.map(post, range(times))))

    def await_end(self, *result: SendResult) -> None:
        """Wait until every delivery of these events has ended, and see that none has died."""
        keys = [one.key for one in result]
        until(
            lambda: (
                len(self.outcomes(*keys)) == len(keys)
                and not self.rows(
                    "select from boathook.delivery d join boathook.event e on e.id = d.event_id"
                    " where e.dedup_key = any(%s)",
                    keys,
                )
            ),
            timeout=PATIENCE_S,
        )

    def outcomes(self, *keys: str) -> dict[str, str]:
        """The outcome of each event's only delivery."""
        rows = self.rows(
            "select e.dedup_key, o.state from boathook.delivery_archive o join boathook.event e on e.id = o.event_id"
            " where e.dedup_key = any(%s)",
            list(keys),
        )
        assert len({row["dedup_key"] for row in rows}) == len(rows), rows
        return {row["dedup_key"]: row["state"] for row in rows}

    def effects(self, result: SendResult) -> list[str]:
        rows = self.rows("select handler from demo.effect where event_key = %s", result.key)
        return [row["handler"] for row in rows]

    def state(self, sender: Sender, thing: str) -> tuple[str, int]:
        """Return an object's stored state and number of writes."""
        [row] = self.rows("select state, changes from demo.latest where thing = %s", sender.thing(thing))
        return row["state"], row["changes"]


def new_key(sender: Sender) -> str:
    return str(uuid.uuid4()) if sender is GITHUB else f"key_{uuid.uuid4().hex}"


def new_thing() -> str:
    return f"{random.getrandbits(48):x}"


@pytest.fixture(scope="module")
def make_shop(
    admin_url: str, pg_template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Shop]]:
    made: list[Shop] = []

    with created(admin_url, pg_template) as one, created(admin_url, pg_template) as two:
        urls = [one, two]

        def make(app: str) -> Shop:
            shop = Shop(tmp_path_factory.mktemp("shop"), urls.pop(), app)
            (shop.folder / "careless.py").write_text(CARELESS)
            made.append(shop)
            shop.start()
            return shop

        yield make
        for shop in made:
            shop.kill_all()


@pytest.fixture(scope="module")
def shop(make_shop: Callable[[str], Shop]) -> Shop:
    return make_shop(APP)


@three_senders
def test_a_repeated_event_has_one_effect(shop: Shop, sender: Sender):
    thing, now = new_thing(), time.time()
    result = shop.send_change(sender, thing, now, 1, times=2)
    assert sorted(result.copies) == [False, True]
    shop.await_end(result)
    later = shop.send_again(sender, result.key, sender.write(result.key, thing, now, 1), times=3)
    assert later.copies == [True] * 3
    assert result.ids == later.ids
    assert len(result.ids) == 1
    assert shop.effects(result) == [sender.handler]
    assert shop.state(sender, thing) == (sender.states[1], 1)


@three_senders
def test_events_in_their_order_have_an_effect_each(shop: Shop, sender: Sender):
    thing, now = new_thing(), time.time()
    result = [shop.send_change(sender, thing, now - 60, 0), shop.send_change(sender, thing, now, 1)]
    shop.await_end(*result)
    assert [shop.effects(one) for one in result] == [[sender.handler]] * 2
    assert shop.state(sender, thing) == (sender.states[1], 2)


@three_senders
def test_an_older_event_after_a_newer_one_has_no_effect(shop: Shop, sender: Sender):
    thing, now = new_thing(), time.time()
    newer, older = shop.send_change(sender, thing, now, 1), shop.send_change(sender, thing, now - 60, 0)
    shop.await_end(newer, older)
    assert shop.effects(newer) == [sender.handler]
    assert shop.effects(older) == []
    assert shop.outcomes(newer.key, older.key) == {newer.key: "succeeded", older.key: "ignored"}
    assert shop.state(sender, thing) == (sender.states[1], 1)


@three_senders
def test_an_event_a_week_late_is_handled_once(shop: Shop, sender: Sender):
    thing, then = new_thing(), time.time() - WEEK_S
    late = shop.send_change(sender, thing, then, 0, times=2)
    assert sorted(late.copies) == [False, True]
    shop.await_end(late)
    assert shop.effects(late) == [sender.handler]
    assert shop.state(sender, thing) == (sender.states[0], 1)


@three_senders
def test_an_event_a_week_late_does_not_undo_what_happened_since(shop: Shop, sender: Sender):
    thing, now = new_thing(), time.time()
    present = shop.send_change(sender, thing, now, 1)
    shop.await_end(present)
    late = shop.send_change(sender, thing, now - WEEK_S, 0, times=2)
    shop.await_end(late)
    assert shop.effects(late) == []
    assert shop.outcomes(late.key) == {late.key: "ignored"}
    assert shop.state(sender, thing) == (sender.states[1], 1)


@three_senders
def test_events_in_any_order_end_in_the_last_state(shop: Shop, sender: Sender):
    thing, now = new_thing(), time.time()
    history = [(now - 60 * age, 1 if age == 0 else age % 2) for age in range(6)]
    random.shuffle(history)
    result = [shop.send_change(sender, thing, at, state, times=2) for at, state in history]
    shop.await_end(*result)
    newest = now - 61 * 60
    rising = 0
    for one, (at, _) in zip(result, history, strict=True):
        is_news, newest = at > newest, max(at, newest)
        assert shop.effects(one) == [sender.handler] * is_news
        rising += is_news
    assert shop.state(sender, thing) == (sender.states[1], rising)


def test_a_week_old_signature_is_refused_and_a_new_one_accepted(shop: Shop):
    thing, then = new_thing(), time.time() - WEEK_S
    key = new_key(STRIPE)
    payload = write_subscription(key, thing, then, 1)
    body = json.dumps(payload).encode()
    stale = httpx.post(f"{shop.base}/in/stripe", content=body, headers=sign_as_stripe(body, key, at=then), timeout=300)
    assert stale.status_code == 401
    result = shop.send_again(STRIPE, key, payload)
    assert result.copies == [False]
    shop.await_end(result)
    assert shop.effects(result) == [STRIPE.handler]


def test_a_repeated_payment_is_booked_and_shipped_once(shop: Shop):
    key = new_key(STRIPE)
    payload = {"id": key, "object": "event", "type": "payment_intent.succeeded", "data": {"object": {"id": "pi_1"}}}
    result = shop.send_again(STRIPE, key, payload, times=4)
    assert sorted(result.copies) == [False, True, True, True]
    until(lambda: sorted(shop.effects(result)) == ["book_payment", "ship_order"], timeout=PATIENCE_S)


def test_a_slack_edit_gets_no_reply(shop: Shop):
    key = new_key(SLACK)
    said = {"type": "message", "channel": "C0DEMO", "text": "hello", "event_ts": f"{time.time():.6f}"}
    result = shop.send_again(SLACK, key, {"type": "event_callback", "event_id": key, "event": said})
    edit = shop.send_change(SLACK, new_thing(), time.time(), 1)
    shop.await_end(result, edit)
    assert (shop.effects(result), shop.effects(edit)) == (["reply"], ["follow_message"])


def test_nothing_is_left_over_or_missing(shop: Shop):
    assert shop.cli("check").returncode == 0


@pytest.mark.extended("the mutant of a test that is left out")
def test_without_the_guard_an_older_event_would_win(make_shop: Callable[[str], Shop]):
    careless = make_shop("careless:hook")
    for sender in (STRIPE, GITHUB, SLACK):
        thing, now = new_thing(), time.time()
        newer, older = careless.send_change(sender, thing, now, 1), careless.send_change(sender, thing, now - 60, 0)
        careless.await_end(newer, older)
        assert careless.effects(older) == [sender.handler]
        assert careless.state(sender, thing) == (sender.states[0], 2)
