"""Reminders, days of grace and the end of subscriptions: each step once, in order, and none after a payment."""

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import ValidationError

from boathook.observability.failpoints import FAILPOINTS
from boathook_billing import dunning
from boathook_billing.dunning import Step, access_until, next_step
from boathook_billing.settings import BillingSettings, DunningSettings
from tests.apps.billing.server import BillingServer, started, unique, wait_until
from tests.crash_schedule import CrashSchedule

DAY = timedelta(days=1)
END = datetime(2027, 1, 31, 12, tzinfo=UTC)
RULES = DunningSettings(grace_days=5, reminder_days=(3, -3, 1))
SECOND = 1 / 86_400
FAST = DunningSettings(grace_days=9 * SECOND, reminder_days=(2 * SECOND, 5 * SECOND))
TABLE = "[billing.dunning]\ngrace_days = {grace}\nreminder_days = [{reminders}]\n"


def row(status: str = "ACTIVE", done: datetime | None = None, end: datetime | None = END) -> dict[str, Any]:
    return {"status": status, "current_period_end": end, "done_until": done}


def all_steps(rules: DunningSettings, subscription: dict[str, Any]) -> list[Step]:
    """Carry out all steps of a subscription."""
    steps = list[Step]()
    while (step := next_step(rules, subscription)) is not None:
        steps.append(step)
        ended = {"status": "INACTIVE"} if step.is_end else {}
        subscription = {**subscription, "done_until": step.at, **ended}
        assert len(steps) < 100, "it never ends"
    return steps


def test_the_steps_are_the_reminders_in_order_and_the_end():
    assert all_steps(RULES, row()) == [
        Step(END - 3 * DAY, -3.0), Step(END + DAY, 1.0), Step(END + 3 * DAY, 3.0), Step(END + 5 * DAY, 5.0, is_end=True),
    ]  # fmt: skip
    assert access_until(RULES, row()) == END + 5 * DAY


def test_a_canceled_subscription_ends_with_its_period_without_reminders():
    assert all_steps(RULES, row("CANCELED")) == [Step(END, 0.0, is_end=True)]
    assert access_until(RULES, row("CANCELED")) == END


def test_steps_before_the_period_was_set_are_left_out_but_not_the_end():
    assert all_steps(RULES, row(done=END - DAY))[0] == Step(END + DAY, 1.0)
    assert all_steps(RULES, row(done=END + 90 * DAY)) == [Step(END + 5 * DAY, 5.0, is_end=True)]


def test_what_has_ended_or_never_began_has_no_step():
    assert next_step(RULES, row("INACTIVE")) is None
    assert next_step(RULES, row(end=None)) is None


@pytest.mark.parametrize("seed", range(200))
def test_any_rules_lead_to_each_step_once_in_order_and_to_one_end(seed: int):
    rng = random.Random(seed)
    grace = rng.choice([0.0, rng.uniform(0, 30)])
    days = {round(rng.uniform(-30, grace), 3) for _ in range(rng.randrange(6))} - {round(grace, 3)}
    rules = DunningSettings(grace_days=grace, reminder_days=tuple(day for day in days if day <= 0 or day < grace))
    done = rng.choice([None, END + timedelta(days=rng.uniform(-40, 40))])
    steps = all_steps(rules, row(done=done))
    assert [step.is_end for step in steps] == [False] * (len(steps) - 1) + [True], seed
    reminders = [step.at for step in steps[:-1]]
    wanted = sorted(END + timedelta(days=day) for day in rules.reminder_days)
    assert reminders == [at for at in wanted if done is None or at > done], seed


def test_mutant_that_repeats_the_step_that_is_done_is_noticed(monkeypatch):
    def repeat(rules: DunningSettings, subscription: dict[str, Any]) -> Step | None:
        done = subscription["done_until"]
        return dunning.next_step(rules, {**subscription, "done_until": done and done - timedelta(seconds=1)})

    monkeypatch.setitem(globals(), "next_step", repeat)
    with pytest.raises(AssertionError):
        test_the_steps_are_the_reminders_in_order_and_the_end()


@pytest.mark.parametrize(
    "wrong",
    [{"grace_days": -1}, {"reminder_days": [1]}, {"grace_days": 3, "reminder_days": [3]}, {"reminder_days": [-1, -1]},
     {"reminder_days": ["soon"]}, {"grace": 3}],
    ids=str,
)  # fmt: skip
def test_wrong_settings_are_refused(wrong: dict[str, Any]):
    with pytest.raises(ValidationError, match=r"dunning"):
        BillingSettings.model_validate({"secret": "s", "dunning": wrong})


@pytest.fixture(scope="module")
def shop(tmp_path_factory, admin_url, pg_template) -> Iterator[BillingServer]:
    with started(tmp_path_factory.mktemp("dunning"), admin_url, pg_template, billing=table(FAST)) as running:
        yield running


def table(rules: DunningSettings) -> str:
    return TABLE.format(grace=f"{rules.grace_days:.12f}", reminders=", ".join(f"{d:.12f}" for d in rules.reminder_days))


def paid(shop: BillingServer) -> str:
    """Return the e-mail of a user with a subscription of a month."""
    email, payment = shop.user(), unique("pay")
    shop.send_payment(payment, email=email)
    shop.await_applied(payment)
    return email


def end_period(shop: BillingServer, email: str, when: str = "now()") -> None:
    """End a subscription's period as if time had passed."""
    shop.rows(
        f"update billing.subscriptions s set current_period_end = {when} from billing.users u"
        " where u.id = s.user_id and u.email = %s",
        email,
    )


def events(shop: BillingServer, email: str) -> list[dict[str, Any]]:
    """Return the events about a user that were published to the owner, oldest first."""
    rows = shop.rows(
        "select convert_from(body, 'UTF8')::jsonb as body from boathook.event where application = ("
        " select boathook.show_id('app', id) from boathook.application where uid = 'billing') order by id"
    )
    return [row["body"] for row in rows if row["body"]["data"]["email"] == email]


def types(shop: BillingServer, email: str) -> list[str]:
    return [event["type"].partition(".")[2] for event in events(shop, email)]


def test_an_overdue_subscription_is_reminded_of_keeps_access_and_ends(shop: BillingServer):
    email = paid(shop)
    end_period(shop, email)
    wait_until(lambda: "reminder" in types(shop, email))
    during = shop.subscription(email) or {}
    assert (during["status"], during["access_until"] > during["current_period_end"]) == ("ACTIVE", True)
    wait_until(lambda: (shop.subscription(email) or {})["status"] == "INACTIVE")
    wait_until(shop.is_idle)
    first, second, ended = events(shop, email)
    assert [first["type"], second["type"], ended["type"]] == ["subscription.reminder"] * 2 + ["subscription.ended"]
    assert [first["data"]["planned_at"], second["data"]["planned_at"], ended["data"]["planned_at"]] == [
        shown(during["current_period_end"] + timedelta(days=days)) for days in (*FAST.reminder_days, FAST.grace_days)
    ]
    assert ended["data"] == {
        "email": email, "owner_id": None, "subscription": str(during["uid"]), "status": "INACTIVE",
        "current_period_end": shown(during["current_period_end"]), "access_until": shown(during["access_until"]),
        "days": ended["data"]["days"], "planned_at": shown(during["access_until"]),
    }  # fmt: skip
    attempts = shop.rows(
        "select min(a.started_at) as started, convert_from(e.body, 'UTF8')::jsonb ->> 'at' as at"
        " from boathook.attempt a join boathook.event e on e.id = a.event_id"
        " where e.application = 'billing-steps' group by e.id, e.body"
    )
    assert all(row["started"] >= datetime.fromisoformat(row["at"]) for row in attempts), "a step came too early"


def shown(at: datetime) -> str:
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def test_a_payment_in_between_cancels_the_other_steps(shop: BillingServer):
    email = paid(shop)
    end_period(shop, email)
    wait_until(lambda: "reminder" in types(shop, email))
    shop.send_payment(payment := unique("pay"), email=email)
    shop.await_applied(payment)
    wait_until(lambda: (shop.subscription(email) or {})["is_planned"])
    renewed = shop.subscription(email) or {}
    other = paid(shop)
    end_period(shop, other)
    wait_until(lambda: "ended" in types(shop, other))  # later than the steps that were planned for the first
    wait_until(shop.is_idle)
    assert "ended" not in types(shop, email)
    assert renewed["status"] == "ACTIVE"
    assert renewed["wake_at"] is None
    assert renewed["next_step_at"] > datetime.now(UTC) + 20 * DAY


def test_a_failed_payment_is_reported_once_with_the_subscription_that_keeps_its_access(shop: BillingServer):
    email = paid(shop)
    payment = unique("pay")
    for _ in range(3):
        event = unique("evt")
        shop.send_payment(payment, "failed", email=email, event_id=event)
        shop.await_end(event, "ignored", "NON_SUCCESS_STATUS")
    [failed] = events(shop, email)
    assert failed["type"] == "payment.failed"
    assert failed["data"]["payment"] == {
        "provider": "tilda", "external_payment_id": payment, "amount": "990.00", "currency": "RUB",
    }  # fmt: skip
    assert failed["data"]["status"] == "ACTIVE"


def test_a_subscription_canceled_in_its_grace_ends_at_once(shop: BillingServer):
    email = paid(shop)
    end_period(shop, email)
    wait_until(lambda: (shop.subscription(email) or {})["is_planned"])
    shop.cli("billing", "cancel", email)
    wait_until(lambda: (shop.subscription(email) or {})["status"] == "INACTIVE")
    row = shop.subscription(email) or {}
    assert row["access_until"] == row["current_period_end"]


def test_an_overdue_subscription_alerts_its_operators(shop: BillingServer):
    email = paid(shop)
    end_period(shop, email, "now() - interval '1 day'")
    wait_until(lambda: "ended" in types(shop, email))
    wait_until(lambda: "billing.overdue" in shop.cli("alerts", "list", "--json").stdout)


def test_the_owners_endpoints_can_subscribe_to_the_events(shop: BillingServer):
    email = paid(shop)
    end_period(shop, email, "now() - interval '1 day'")
    wait_until(lambda: events(shop, email))
    assert {"subscription.reminder", "subscription.ended", "payment.failed"} <= {
        row["name"] for row in shop.rows("select name from boathook.event_type")
    }


def test_steps_due_during_a_crash_are_done_once_after_it(tmp_path, admin_url, pg_template):
    with started(tmp_path, admin_url, pg_template, billing=table(FAST)) as shop:
        email = paid(shop)
        end_period(shop, email)
        wait_until(lambda: "reminder" in types(shop, email))
        shop.kill_all()
        end = (shop.subscription(email) or {})["access_until"]
        wait_until(lambda: shop.rows("select from (select now() as now) as clock where now > %s", end))
        shop.start()
        wait_until(lambda: "ended" in types(shop, email))
        wait_until(shop.is_idle)
        assert types(shop, email) == ["reminder", "reminder", "ended"]


def test_changed_days_of_grace_count_for_running_subscriptions(tmp_path, admin_url, pg_template):
    long = DunningSettings(grace_days=30)
    with started(tmp_path, admin_url, pg_template, billing=table(long)) as shop:
        email = paid(shop)
        end_period(shop, email)
        wait_until(lambda: (shop.subscription(email) or {})["next_step_at"])
        assert (shop.subscription(email) or {})["status"] == "ACTIVE"
        shop.stop()
        file = shop.folder / "boathook.toml"
        file.write_text(file.read_text().replace(f"grace_days = {long.grace_days:.12f}", "grace_days = 0"))
        shop.start()
        wait_until(lambda: (shop.subscription(email) or {})["status"] == "INACTIVE")


@pytest.mark.extended("kills or freezes processes again and again; the smokes of tests/faults stay")
def test_each_step_is_done_once_whatever_is_killed(tmp_path, admin_url, pg_template):
    hits = {point: 5 for point in FAILPOINTS if point.partition(".")[0] in {"claim", "handler"}}
    crashes = CrashSchedule(tmp_path, hits)
    with BillingServer.prepared(tmp_path, admin_url, pg_template, billing=table(FAST)) as shop:
        shop.start(**crashes.environment)
        emails = [paid(shop) for _ in range(12)]
        for email in emails:
            end_period(shop, email)
        wait_until(lambda: all("ended" in types(shop, email) for email in emails))
        wait_until(shop.is_idle)
        assert [types(shop, email) for email in emails] == [["reminder", "reminder", "ended"]] * len(emails)
        assert len(crashes.pending()) < len(hits), "nothing was killed"


def test_the_names_of_the_events_are_those_that_are_published():
    assert set(dunning.EVENT_TYPES) == {"subscription.reminder", "subscription.ended", "payment.failed"}
