"""The API under /api/v1, which the official Svix clients speak.

app          all routes as one ASGI application
route        how a route is written: who may call it, its transaction (read its docstring first)
auth         who calls
idempotency  a POST that comes twice is done once
pages        lists in the order of ids or names
time_ranges  lists in windows of time: messages and attempts, and what they are filtered by
errors       every error as JSON
and a module of routes for each kind of thing. Request models that other doors need too are in service/schemas.
"""

from boathook.api.app import build_api

__all__ = ["build_api"]
