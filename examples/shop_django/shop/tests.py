"""Tests of the handlers and views; run them with `python manage.py test`."""

from django.db import connection
from django.test import TestCase

from boathook.django import hook
from boathook.testing import event, run_sync
from shop.models import Order


class OrderTest(TestCase):
    """A whole order."""

    @classmethod
    def setUpTestData(cls) -> None:
        """Create the application that orders are published to, as `boathook applications create` does."""
        with connection.cursor() as cursor:
            cursor.execute(
                "insert into boathook.application (id, organization, uid, name)"
                " values (gen_random_uuid(), 'default', 'acme', 'Acme')"
            )

    def test_a_payment_marks_its_order_as_paid(self) -> None:
        """The handler sees the data of the test, and its effects are rolled back after the block."""
        Order.objects.create(id="o1", amount=500)
        paid = event("stripe", type="payment_intent.succeeded", fields={"data.object.metadata.order": "o1"})
        with run_sync(hook, paid, session=connection) as result:
            assert result.outcome == "succeeded"
            assert Order.objects.get(pk="o1").is_paid

    def test_an_order_is_published_once(self) -> None:
        """The second request is refused, and publishes nothing."""
        order = {"id": "o1", "amount": 500}
        statuses = [self.client.post("/orders", order, "application/json").status_code for _ in range(2)]
        assert statuses == [201, 409]
        with connection.cursor() as cursor:
            cursor.execute("select type from boathook.event where origin = 'published'")
            assert cursor.fetchall() == [("order.created",)]
