"""The import of a payment system's own tables, and the views under their names."""

import json
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from boathook_billing import owner_tables
from tests.apps.billing.server import MONTH, BillingServer, unique, wait_until
from tests.apps.owner_database import create_tables, fingerprint, kill_in_batch, run_import

DDL = Path(__file__).with_name("owner_tables.sql")
TABLES = ("users", "subscriptions", "payments", "imported_events", "imported_row")
T0 = datetime(2026, 3, 1, 12, tzinfo=UTC)
DAY = timedelta(days=1)


@pytest.fixture
def shop(tmp_path, admin_url, pg_template) -> Iterator[BillingServer]:
    """An app with its tables, whose server has run once."""
    with BillingServer.prepared(tmp_path, admin_url, pg_template) as server:
        server.start()
        yield server


class Owner:
    """Fills the owner's tables."""

    def __init__(self, server: BillingServer, *, schema: str = "old", has_numbers: bool = False) -> None:
        self.server = server
        self.schema = schema
        self.has_numbers = has_numbers
        self.latest = 0
        create_tables(server, DDL, schema, user_id="bigint" if has_numbers else "uuid")

    def add(self, table: str, **values: Any) -> Any:
        if "id" not in values:
            self.latest += 1
            values["id"] = self.latest if self.has_numbers and table == "users" else uuid.uuid4()
        names = ", ".join(values)
        places = ", ".join(["%s"] * len(values))
        self.server.rows(f"insert into {self.schema}.{table} ({names}) values ({places})", *values.values())
        return values["id"]

    def user(self, email: str) -> Any:
        return self.add("users", email=email, created_at=T0, updated_at=T0)

    def subscription(self, user: Any, end: datetime | None, status: str = "ACTIVE") -> uuid.UUID:
        return self.add(
            "subscriptions", user_id=user, status=status, current_period_end=end, created_at=T0, updated_at=T0
        )

    def payment(self, name: str, status: str = "SUCCEEDED", **values: Any) -> uuid.UUID:
        return self.add(
            "payments", external_payment_id=name, status=status,
            **{"provider": "tilda", "amount": "990.00", "currency": "RUB", "created_at": T0, **values},
        )  # fmt: skip

    def event(self, payment: str, status: str, **values: Any) -> uuid.UUID:
        body = json.dumps({"external_payment_id": payment, "status": "paid", **MONTH, **values.pop("payload", {})})
        return self.add(
            "webhook_events", external_payment_id=payment, payload=body, payload_hash=unique("hash"), status=status,
            **{"provider": "tilda", "received_at": T0, "signature_valid": True, **values},
        )  # fmt: skip

    def fill(self, users: int) -> None:
        """Add users, each with a subscription, an applied payment and its event."""
        for n in range(users):
            user = self.user(f"user{n}@example.com")
            end = T0 + 400 * DAY
            subscription = self.subscription(user, end)
            self.payment(
                f"pay{n}",
                user_id=user,
                subscription_id=subscription,
                subscription_applied_at=end - 30 * DAY,
                paid_at=T0,
            )
            self.event(f"pay{n}", "PROCESSED", external_event_id=f"evt{n}", processed_at=T0)


def test_everything_is_imported_once_with_keys_to_the_owners_users(shop):
    owner = Owner(shop)
    owner.fill(7)
    first = run_import(shop, "--schema", "old", "--batch", "3")
    each = {"rows": 7, "imported": 7}
    assert {table: first[table] for table in ("users", "subscriptions", "payments", "webhook_events")} == {
        "users": each, "subscriptions": each, "payments": each, "webhook_events": each,
    }  # fmt: skip
    assert first["notes"] == ['billing.users.owner_uuid refers to "old"."users" (id), on delete set null']
    assert ("users", "updated_at") in first["ignored"]
    [row] = shop.rows(
        "select u.owner_uuid = o.id as is_theirs, s.current_period_end, s.active_since, p.applied_days, p.applied_stretch,"
        " p.subscription_id = s.id as is_linked, p.uid = op.id as has_id"
        " from billing.users u join old.users o using (email) join billing.subscriptions s on s.user_id = u.id"
        " join billing.payments p on p.user_id = u.id join old.payments op using (external_payment_id)"
        " where u.email = 'user3@example.com'"
    )
    assert row == {
        "is_theirs": True, "current_period_end": T0 + 400 * DAY, "active_since": T0 + 370 * DAY, "applied_days": 30,
        "applied_stretch": T0 + 370 * DAY, "is_linked": True, "has_id": True,
    }  # fmt: skip
    wait_until(lambda: not shop.rows("select from billing.subscriptions where not is_planned"))
    before = fingerprint(shop, *(f"billing.{table}" for table in TABLES))
    again = run_import(shop, "--schema", "old")
    assert all(again[table] == {"rows": 7, "unchanged": 7} for table in ("users", "payments", "webhook_events"))
    assert fingerprint(shop, *(f"billing.{table}" for table in TABLES)) == before
    with pytest.raises(psycopg.errors.ForeignKeyViolation):
        shop.rows("insert into billing.users (email, owner_uuid) values ('eve@example.com', %s)", uuid.uuid4())
    # Their users can be deleted all the same.
    shop.rows("truncate old.payments, old.subscriptions")
    shop.rows("delete from old.users")
    assert shop.rows("select from billing.users where owner_uuid is not null") == []


def test_users_may_have_numbers(shop):
    owner = Owner(shop, has_numbers=True)
    owner.fill(2)
    done = run_import(shop, "--schema", "old")
    assert done["users"] == {"rows": 2, "imported": 2}
    assert done["notes"] == ['billing.users.owner_id refers to "old"."users" (id), on delete set null']
    shop.cli("billing", "views", "create")
    theirs = shop.rows("select id as user_id from old.users order by 1")
    assert shop.rows("select user_id from public.payments order by 1") == theirs
    assert all(isinstance(row["user_id"], int) for row in theirs)


def test_a_dry_run_counts_the_same_and_changes_nothing(shop):
    owner = Owner(shop)
    owner.fill(5)
    owner.add("users", email="no address", created_at=T0)
    before = fingerprint(shop, *(f"billing.{table}" for table in TABLES))
    dry = run_import(shop, "--schema", "old", "--dry-run", "--batch", "2", code=1)
    assert fingerprint(shop, *(f"billing.{table}" for table in TABLES)) == before
    assert shop.rows("select from pg_constraint where conname = 'users_owner_uuid_fkey'") == []
    assert run_import(shop, "--schema", "old", "--batch", "2", code=1) == dry


@pytest.mark.parametrize("after", [1, 8, 21])
def test_a_kill_between_or_within_batches_loses_and_doubles_nothing(shop, after):
    owner = Owner(shop)
    owner.fill(6)
    kill_in_batch(shop, "--schema", "old", "--batch", "4", after=after)
    [count] = shop.rows("select count(*) as n from billing.imported_row")
    assert count["n"] < 24
    rest = run_import(shop, "--schema", "old", "--batch", "4")
    assert sum(rest[table].get("imported", 0) for table in rest if isinstance(rest[table], dict)) == 24 - count["n"]
    assert all(rest[table].get("adopted", 0) == 0 for table in ("users", "subscriptions", "payments", "webhook_events"))
    for table in ("users", "subscriptions", "payments"):
        assert shop.rows(f"select count(*) as n from billing.{table}") == [{"n": 6}]
    assert shop.rows("select count(*) as n from billing.imported_events") == [{"n": 6}]


def test_bad_rows_are_named_with_key_and_column(shop):
    owner = Owner(shop)
    anna = owner.user("anna@example.com")
    twice = owner.user("Anna@example.com")
    nowhere = owner.add("users", email="nowhere", created_at=T0)
    lost = owner.subscription(nowhere, T0)
    endless = owner.subscription(anna, None)
    odd_price = owner.payment("odd", user_id=anna, amount="1.50", subscription_applied_at=T0)
    failed = owner.payment("failed", "FAILED", user_id=anna, subscription_applied_at=T0)
    other = owner.payment("other", provider="yookassa")
    nameless = owner.payment(" ")
    long = owner.payment("x" * 301)
    no_user = owner.payment("no-user", subscription_applied_at=T0)
    event = owner.event("pay", "VALIDATED", provider="yookassa")
    timeless = owner.event("pay", "PROCESSED", received_at=None)
    done = run_import(shop, "--schema", "old", "--batch", "100", code=1)
    first, second = sorted((anna, twice), key=str)
    assert {key: column for (_, key), (column, _) in done["rejected"].items()} == {
        str(second): "email", str(nowhere): "email", str(lost): "user_id", str(endless): "current_period_end",
        str(odd_price): "amount" if first == anna else "user_id", str(failed): "status" if first == anna else "user_id",
        str(other): "provider", str(nameless): "external_payment_id", str(long): "external_payment_id",
        str(no_user): "user_id", str(event): "provider", str(timeless): "received_at",
    }  # fmt: skip
    assert f"the row {first} was imported as the same" in done["rejected"]["users", str(second)][1]
    total = sum(done[table]["rows"] for table in ("users", "subscriptions", "payments", "webhook_events"))
    assert total == 1 + len(done["rejected"])
    shop.environment["COLUMNS"] = "80"  # ids are whole however narrow the terminal is
    shown = shop.cli("billing", "import", "--schema", "old", check=False)
    assert shown.returncode == 1
    assert str(timeless) in shown.stdout
    assert "12 rows are not imported" in shown.stdout


def test_a_row_that_postgresql_refuses_is_reported_alone(shop):
    owner = Owner(shop)
    owner.fill(3)
    shop.rows("alter table billing.payments add constraint no_pay1 check (external_payment_id <> 'pay1')")
    done = run_import(shop, "--schema", "old", code=1)
    assert done["payments"] == {"rows": 3, "imported": 2, "rejected": 1}
    [(column, problem)] = done["rejected"].values()
    assert column == "no_pay1"
    assert "billing.payments refuses it" in problem


def test_an_unknown_schema_is_refused_with_all_that_is_missing(shop):
    owner = Owner(shop)
    owner.fill(1)
    shop.rows("alter table old.payments drop column paid_at, alter column created_at type timestamp")
    shop.rows("alter table old.webhook_events rename to events")
    shop.rows("create view old.webhook_events as select * from old.events")
    done = shop.cli("billing", "import", "--schema", "old", check=False)
    assert done.returncode == 1
    for part in (
        "the column payments.paid_at is missing",
        "payments.created_at is timestamp without time zone, not timestamptz",
        "webhook_events is a view, not a table",
    ):
        assert part in done.stderr.replace("\n", " ")
    missing = shop.cli("billing", "import", "--schema", "nowhere", check=False)
    assert missing.returncode == 1
    assert "the table users is missing" in missing.stderr
    assert shop.rows("select from billing.users") == []


def test_rows_without_a_unique_key_are_refused(shop):
    owner = Owner(shop)
    owner.fill(1)
    shop.rows("alter table old.webhook_events drop constraint webhook_events_pkey, alter column id drop not null")
    shop.rows("update old.webhook_events set id = null")
    done = shop.cli("billing", "import", "--schema", "old", check=False)
    assert "webhook_events.id does not identify rows" in done.stderr.replace("\n", " ")


def test_later_changes_are_brought_unless_the_app_has_changed_the_row(shop):
    owner = Owner(shop)
    owner.fill(2)
    run_import(shop, "--schema", "old")
    end = T0 + 430 * DAY
    shop.rows("update old.subscriptions set current_period_end = %s", end)
    shop.rows(
        "update billing.subscriptions set status = 'CANCELED' where id = (select min(id) from billing.subscriptions)"
    )
    owner.user("late@example.com")
    done = run_import(shop, "--schema", "old", code=1)
    assert done["subscriptions"] == {"rows": 2, "updated": 1, "rejected": 1}
    assert done["users"] == {"rows": 3, "imported": 1, "unchanged": 2}
    [(column, problem)] = done["rejected"].values()
    assert column == "id"
    assert "it has changed here, and in billing.subscriptions" in problem
    rows = shop.rows("select status, current_period_end from billing.subscriptions order by id")
    assert [(row["status"], row["current_period_end"]) for row in rows] == [
        ("CANCELED", T0 + 400 * DAY),
        ("ACTIVE", end),
    ]


def test_rows_that_the_app_has_already_are_adopted_or_named(shop):
    shop.user("ANNA@example.com")
    shop.send_payment("same", email="nobody@example.com")
    shop.send_payment("applied-here", email="anna@example.com")
    shop.await_applied("applied-here")
    wait_until(shop.is_idle)
    owner = Owner(shop)
    anna = owner.user("anna@example.com")
    same = owner.payment("same")
    twice = owner.payment("applied-here", user_id=anna, subscription_applied_at=T0)
    done = run_import(shop, "--schema", "old", code=1)
    assert done["users"] == {"rows": 1, "adopted": 1}
    assert done["payments"] == {"rows": 2, "adopted": 1, "rejected": 1}
    assert {key: column for (_, key), (column, _) in done["rejected"].items()} == {
        str(twice): "subscription_applied_at"
    }
    assert shop.rows("select email from billing.users where owner_uuid = %s", anna) == [{"email": "ANNA@example.com"}]
    assert shop.rows("select external_payment_id from billing.payments where uid = %s", same) == [
        {"external_payment_id": "same"}
    ]


def test_what_waits_is_applied_exactly_once_when_its_user_exists(shop):
    owner = Owner(shop)
    waiting = owner.payment("waits", email="late@example.com")
    owner.event("waits", "FAILED_RETRYABLE", error_code="USER_MISSING", payload={"email": "late@example.com"})
    owner.payment("silent", email="late@example.com")  # nothing but the payment is left of it
    unstored = owner.event("unstored", "VALIDATED", payload={"email": "late@example.com"})
    forged = owner.event("forged", "RECEIVED", signature_valid=None, payload={"email": "late@example.com"})
    done = run_import(shop, "--schema", "old")
    assert done["payments"] == {"rows": 2, "imported": 2}
    assert any(note.startswith("1 unfinished webhooks were never verified") for note in done["notes"])
    run_import(shop, "--schema", "old")
    wait_until(lambda: (shop.payment("unstored") or {}).get("problem") == "USER_MISSING")
    shop.cli("billing", "views", "create")
    view = "select status, error_code from public.webhook_events where id = %s"
    wait_until(lambda: shop.rows(view, unstored) == [{"status": "FAILED_RETRYABLE", "error_code": "USER_MISSING"}])
    shop.user("late@example.com")
    for payment in ("waits", "silent", "unstored"):
        shop.await_applied(payment)
    assert shop.subscription("late@example.com")["payments_applied"] == 3
    assert shop.payment("forged") is None
    assert shop.payment("waits")["uid"] == waiting
    wait_until(lambda: shop.rows(view, unstored) == [{"status": "PROCESSED", "error_code": None}])
    assert shop.rows(view, forged) == [{"status": "RECEIVED", "error_code": None}]
    assert "the store is consistent" in shop.cli("check").stdout


def test_open_payments_need_registered_handlers(tmp_path, admin_url, pg_template):
    with BillingServer.prepared(tmp_path, admin_url, pg_template) as server:
        server.cli("migrate")
        owner = Owner(server)
        owner.payment("waits", email="late@example.com")
        done = server.cli("billing", "import", "--schema", "old", check=False)
        assert done.returncode == 1
        assert "start `boathook serve` once" in done.stderr.replace("\n", " ")


DOCUMENTED_QUERIES = {
    "2.3": "select * from webhook_events where provider = 'tilda' and ((external_event_id is not null and"
    " external_event_id = 'evt0') or (external_event_id is null and payload_hash = 'none'))",
    "5.1": "select * from payments where provider = 'tilda' and external_payment_id = 'pay0' for update",
    "5.3": "select * from subscriptions where user_id = (select user_id from payments where external_payment_id = 'pay0')"
    " for update",
    "recovery": "select id, payload from webhook_events where status = 'PROCESSED' order by received_at limit 100"
    " for update skip locked",
    "part 4": "select * from payments where status = 'SUCCEEDED' and subscription_applied_at is not null",
}


def test_the_views_answer_the_documents_queries(shop):
    owner = Owner(shop)
    owner.fill(1)
    run_import(shop, "--schema", "old")
    with psycopg.connect(shop.database_url) as connection:
        connection.execute("set search_path = old")
        before = {name: connection.execute(sql).fetchall() for name, sql in DOCUMENTED_QUERIES.items()}
        columns = {
            name: [c.name for c in connection.execute(sql).description] for name, sql in DOCUMENTED_QUERIES.items()
        }
    assert all(len(rows) == 1 for rows in before.values())
    shop.cli("billing", "views", "create", "--schema", "public")
    with psycopg.connect(shop.database_url) as connection:
        connection.execute("set search_path = public")
        for name, sql in DOCUMENTED_QUERIES.items():
            cursor = connection.execute(sql)
            rows = [dict(zip([c.name for c in cursor.description], row, strict=True)) for row in cursor]
            assert rows == [dict(zip(columns[name], row, strict=True)) for row in before[name]], name
    shop.send_payment("new", email="user0@example.com", event_id="evt-new")
    shop.await_applied("new")
    wait_until(shop.is_idle)
    [event] = shop.rows("select * from public.webhook_events where external_payment_id = 'new'")
    assert (event["external_event_id"], event["status"], event["signature_valid"]) == ("evt-new", "PROCESSED", True)
    assert event["payload"]["amount"] == "990.00"
    assert event["processed_at"] >= event["received_at"]
    [payment] = shop.rows(
        "select p.* from public.payments p join old.users u on u.id = p.user_id where external_payment_id = 'new'"
    )
    assert payment["subscription_id"] == shop.rows("select id from old.subscriptions")[0]["id"]
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
        shop.rows("update public.payments set status = 'FAILED'")


def test_views_never_replace_what_is_there(shop):
    owner = Owner(shop, schema="public")
    owner.fill(1)
    done = shop.cli("billing", "views", "create", check=False)
    assert done.returncode == 1
    assert "public has these already: table payments, table subscriptions, table webhook_events" in done.stderr.replace(
        "\n", " "
    )
    assert shop.rows("select count(*) as n from public.payments") == [{"n": 1}]
    run_import(shop, "--schema", "public")
    shop.rows("create schema before_boathook")
    for table in ("payments", "subscriptions", "webhook_events"):
        shop.rows(f"alter table public.{table} set schema before_boathook")
    shop.cli("billing", "views", "create")
    assert (
        shop.cli("billing", "views", "create").stdout == "created in public: subscriptions, payments, webhook_events\n"
    )
    shop.rows("create schema other; create view other.payments as select 1 as mine")
    done = shop.cli("billing", "views", "create", "--schema", "other", check=False)
    assert "view payments" in done.stderr
    assert shop.cli("billing", "views", "drop", "--schema", "other").stdout == "dropped in other: nothing\n"
    assert "payments" in shop.cli("billing", "views", "drop").stdout
    assert shop.rows("select from pg_class where relname = 'payments' and relnamespace = 'public'::regnamespace") == []
    assert (
        "there is no schema nowhere"
        in shop.cli("billing", "views", "create", "--schema", "nowhere", check=False).stderr
    )
    # A view of ours is not a table to import from.
    shop.cli("billing", "views", "create")
    assert "payments is a view, not a table" in shop.cli("billing", "import", check=False).stderr.replace("\n", " ")


def test_a_refund_takes_back_only_days_of_the_current_period(shop):
    owner = Owner(shop)
    now = datetime.now(UTC).replace(microsecond=0)
    user = owner.user("anna@example.com")
    end = now + 40 * DAY
    subscription = owner.subscription(user, end)
    applied = {"old": now - 300 * DAY, "first": end - 60 * DAY, "second": now - 1 * DAY}
    for name, at in applied.items():
        owner.payment(name, user_id=user, subscription_id=subscription, subscription_applied_at=at)
    run_import(shop, "--schema", "old")
    [row] = shop.rows("select active_since from billing.subscriptions")
    assert row["active_since"] == applied["first"]
    stretches = {
        row["external_payment_id"]: row["applied_stretch"] for row in shop.rows("select * from billing.payments")
    }
    assert stretches == {"old": None, "first": applied["first"], "second": applied["first"]}
    for name in ("old", "second"):
        event = unique("evt")
        shop.send_payment(name, "refunded", email="anna@example.com", event_id=event)
        shop.await_end(event, "succeeded")
    assert shop.rows("select current_period_end from billing.subscriptions") == [{"current_period_end": end - 30 * DAY}]


@pytest.mark.parametrize(
    ("status", "signature_valid", "is_continued"),
    [
        ("RECEIVED", True, True), ("VALIDATED", True, True), ("FAILED_RETRYABLE", True, True),
        ("RECEIVED", None, False), ("FAILED_RETRYABLE", False, False), ("PROCESSED", True, False),
        ("FAILED_FINAL", True, False), ("IGNORED", True, False),
    ],
)  # fmt: skip
async def test_only_open_and_verified_webhooks_are_continued(monkeypatch, status, signature_valid, is_continued):
    published: list[str] = []

    async def publish(_tx: Any, id: str, _body: bytes) -> uuid.UUID:
        published.append(id)
        return uuid.uuid4()

    class Silent:
        async def execute(self, *_arguments: Any) -> None:
            return None

    monkeypatch.setattr(owner_tables, "_publish", publish)
    row = {"id": uuid.uuid4(), "status": status, "signature_valid": signature_valid, "payload": "{}"}
    await owner_tables.continue_event(Silent(), None, row, "")
    assert published == ([f"event:{row['id']}"] if is_continued else [])
