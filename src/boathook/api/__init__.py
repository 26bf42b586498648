"""The API under /api/v1, compatible with the official Svix clients.

app             all routes as one ASGI application
route           how a route is written: its permission and its transaction (read its docstring first)
authentication  who sends a request, by its bearer token
idempotency     responses of repeated POST requests
pages           lists in the order of ids or names
time_ranges     lists in time windows: messages and attempts, with their filters
errors          every error as JSON

The other modules contain the routes, one module per resource. Request models that the console or the command line also
use are in service/schemas.
"""

from boathook.api.app import build_api

__all__ = ["build_api"]
