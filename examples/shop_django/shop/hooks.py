"""Handlers: boathook calls each for the events that its decorator selects, inside `transaction.atomic`."""

from django.core.handlers.asgi import ASGIHandler

from boathook import Event
from boathook.django import hook
from shop.models import Order


@hook.on("stripe", "payment_intent.succeeded")
def mark_paid(event: Event) -> None:
    """Mark an order as paid, in the transaction that completes the delivery."""
    order = Order.objects.select_for_update().get(pk=event.json["data"]["object"]["metadata"]["order"])
    order.is_paid = True
    order.save()


hook.mount("/", ASGIHandler(), is_open=True)
