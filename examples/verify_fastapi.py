"""A FastAPI endpoint that takes Stripe's webhooks: `uvicorn verify_fastapi:app`."""

import os

from fastapi import FastAPI, Request, Response

from boathook import verify

app = FastAPI()
SECRET = os.environ.get("STRIPE_WEBHOOK_SECRET", "whsec_example")
seen: dict[str, str] = {}
"""Stands for your database: what a sender sends twice must be acted on once."""


@app.post("/webhooks/stripe")
async def stripe(request: Request) -> Response:
    body = await request.body()  # the raw bytes: a parsed and rewritten body never fits its signature
    result = verify("stripe", SECRET, request.headers, body, str(request.url))
    if result.event is not None:
        seen.setdefault(result.event.dedup_key, result.event.type)
    return Response(result.reply.body, result.reply.status, media_type=result.reply.content_type)
