"""Runs a boathook process with the billing app; sends payments as a provider does and reads its tables."""

import base64
import hashlib
import hmac
import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import httpx

from tests.apps.app_server import AppServer
from tests.support import until

Result = TypeVar("Result")
PATIENCE_S = 60.0
"""Timeout of `wait_until`; generous, as test machines may be busy."""

SECRET = "billing-test-secret"
MONTH = {"plan_id": "month", "amount": "990.00", "currency": "RUB"}
YEAR = {"plan_id": "year", "amount": "9900.00", "currency": "RUB"}
ROLES = "gateway,worker,keeper"
PLANS = """
    [[billing.plans]]
    id = "month"
    price = "990.00"
    days = 30
    [[billing.plans]]
    id = "year"
    price = "9900.00"
    days = 365
"""


class BillingServer(AppServer):
    """A `boathook serve` process with the billing app, its requests and its tables."""

    app = "billing"

    def __init__(
        self, folder: Path, database_url: str, *, billing: str = "", extra: str = "", roles: str = ROLES
    ) -> None:
        head = f'[billing]\nsecret = "{SECRET}"\n'
        super().__init__(folder, database_url, head, billing, PLANS, extra, roles=roles)

    def post(self, body: bytes, **headers: str) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return httpx.post(
            f"{self.base}/webhooks/payments",
            content=body,
            headers={"content-type": "application/json", **named},
            timeout=300,
        )

    def send_payment(self, payment: str, status: str = "paid", *, answer: int = 200, **fields: Any) -> httpx.Response:
        """Send a signed notification of a payment. Its event id is new unless *fields* has one; None leaves a field out."""
        told = {"external_payment_id": payment, "status": status, "event_id": unique("evt"), **MONTH, **fields}
        body = json.dumps({key: value for key, value in told.items() if value is not None}).encode()
        response = self.post(body, x_signature=sign(body))
        assert response.status_code == answer, response.text
        return response

    def user(self, email: str | None = None) -> str:
        """Create a user with plain SQL."""
        email = email or f"{unique('user')}@example.com"
        self.rows("insert into billing.users (email) values (%s) returning id", email)
        return email

    def payment(self, id: str) -> dict[str, Any] | None:
        found = self.rows("select * from billing.payments where external_payment_id = %s", id)
        return found[0] if found else None

    def subscription(self, email: str) -> dict[str, Any] | None:
        found = self.rows(
            "select s.*, (select count(*) from billing.payments p where p.user_id = u.id and"
            " p.subscription_applied_at is not null and p.reversed_at is null) as payments_applied"
            " from billing.users u join billing.subscriptions s on s.user_id = u.id where lower(u.email) = lower(%s)",
            email,
        )
        return found[0] if found else None

    def delivery_state(self, key: str, handler: str = "apply") -> tuple[str, str | None] | None:
        """Return the state, and the code or note, of one handler's delivery of the event with this dedup key."""
        found = self.rows(
            "select coalesce(o.state, d.state) as state, coalesce(o.note, d.code) as why"
            " from boathook.event e left join boathook.delivery d on d.event_id = e.id and d.recipient = %s"
            " left join boathook.delivery_archive o on o.event_id = e.id and o.recipient = %s where e.dedup_key = %s",
            f"handler:billing.{handler}", f"handler:billing.{handler}", key,
        )  # fmt: skip
        return (found[0]["state"], found[0]["why"]) if found and found[0]["state"] else None

    def await_end(self, key: str, state: str, why: str | None = None) -> None:
        """Wait until `apply` has ended with this outcome, and `record` has stored what was rolled back."""
        wait_until(lambda: self.delivery_state(key) == (state, why))
        wait_until(lambda: (self.delivery_state(key, "record") or ("pending",))[0] not in {"pending", "leased"})

    def await_any_end(self, *keys: str) -> None:
        wait_until(lambda: all((self.delivery_state(key) or ("",))[0] in {"succeeded", "ignored"} for key in keys))

    def await_payment(self, id: str, **fields: Any) -> dict[str, Any]:
        """Wait until a payment exists with these values and return it."""

        def there() -> dict[str, Any] | None:
            row = self.payment(id)
            return row if row is not None and fields.items() <= row.items() else None

        return wait_until(there)

    def await_metric(self, name: str, **labels: str) -> None:
        wait_until(lambda: self.metric(name, **labels) > 0)

    def await_applied(self, payment: str) -> dict[str, Any]:
        def applied() -> dict[str, Any] | None:
            row = self.payment(payment)
            return row if row and row["subscription_applied_at"] else None

        return wait_until(applied)

    def is_idle(self) -> bool:
        """Whether no delivery is running or due."""
        return not self.rows(
            "select from boathook.delivery where state = 'leased' or (state = 'pending' and code is null)"
        )

    def metric(self, name: str, **labels: str) -> float:
        """Return the sum of a metric's series that have these labels."""
        from prometheus_client.parser import text_string_to_metric_families

        text = httpx.get(f"{self.base}/metrics", timeout=300).text
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        return sum(one.value for one in samples if one.name == name and labels.items() <= one.labels.items())


started = BillingServer.started


def wait_until(predicate: Callable[[], Result]) -> Result:
    """Wait for the predicate's first truthy value and return it."""
    return until(predicate, timeout=PATIENCE_S)


def unique(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex[:12]}"


def sign(body: bytes, secret: str = SECRET, encoding: str = "hex") -> str:
    digest = hmac.new(secret.encode(), body, hashlib.sha256).digest()
    return digest.hex() if encoding == "hex" else base64.b64encode(digest).decode()


def payload(**fields: Any) -> bytes:
    return json.dumps(fields).encode()
