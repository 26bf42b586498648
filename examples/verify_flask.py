"""A Flask endpoint that takes GitHub's webhooks: `flask --app verify_flask run`."""

import os

from flask import Flask, Response, request

from boathook import verify

app = Flask(__name__)
SECRET = os.environ.get("GITHUB_WEBHOOK_SECRET", "example")
seen: dict[str, str] = {}
"""Stands for your database: what a sender sends twice must be acted on once."""


@app.post("/webhooks/github")
def github() -> Response:
    result = verify("github", SECRET, request.headers, request.get_data(), request.url)
    if not result:
        app.logger.warning("refused a webhook: %s", result.detail)  # for you, never for the sender
    if result.event is not None:
        seen.setdefault(result.event.dedup_key, result.event.type)
    return Response(result.reply.body, result.reply.status, content_type=result.reply.content_type)
