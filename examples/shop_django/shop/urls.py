"""Views: one stores an order and publishes it, the other shows it."""

import json

from django.db import IntegrityError, connection, transaction
from django.http import HttpRequest, JsonResponse
from django.shortcuts import get_object_or_404
from django.urls import path
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_GET, require_POST

from boathook.django import hook
from shop.models import Order


@csrf_exempt
@require_POST
def create_order(request: HttpRequest) -> JsonResponse:
    """Store an order and publish it: customers hear of exactly the orders that are committed."""
    given = json.loads(request.body)
    try:
        with transaction.atomic():
            Order.objects.create(id=given["id"], amount=given["amount"])
            hook.publish_sync(connection, application="acme", type="order.created", payload=given)
    except IntegrityError:
        return JsonResponse({"error": f"there is an order {given['id']} already"}, status=409)
    return JsonResponse(given, status=201)


@require_GET
def show_order(_request: HttpRequest, id: str) -> JsonResponse:
    """Show an order."""
    order = get_object_or_404(Order, pk=id)
    return JsonResponse({"id": order.id, "amount": order.amount, "is_paid": order.is_paid})


urlpatterns = [path("orders", create_order), path("orders/<id>", show_order)]
