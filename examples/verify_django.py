"""A Django view that takes Slack's events: `python verify_django.py runserver`."""

import os
import sys

from django.conf import settings
from django.core.management import execute_from_command_line
from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from boathook import verify

SECRET = os.environ.get("SLACK_SIGNING_SECRET", "example")
seen: dict[str, str] = {}
"""Stands for your database: what a sender sends twice must be acted on once."""


@csrf_exempt  # the signature takes the place of the token
@require_POST
def slack(request: HttpRequest) -> HttpResponse:
    result = verify("slack", SECRET, request.headers, request.body, request.build_absolute_uri())
    if result.event is not None:
        seen.setdefault(result.event.dedup_key, result.event.type)
    return HttpResponse(result.reply.body, result.reply.content_type, result.reply.status)


urlpatterns = [path("webhooks/slack", slack)]

if __name__ == "__main__":
    settings.configure(DEBUG=True, ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"])
    execute_from_command_line(sys.argv)
