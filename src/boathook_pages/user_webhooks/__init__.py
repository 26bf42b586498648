"""Webhooks that the users of an app manage themselves, by its API and on its pages; public API.

`UserWebhooks` stores them, each as an endpoint of the user's application; `add_routes` and `add_pages` offer them to
the users, with the record of their requests, replays, and the list of events since a time.
"""

from boathook_pages.user_webhooks.api import add_routes
from boathook_pages.user_webhooks.pages import add_pages
from boathook_pages.user_webhooks.store import Kind, UserWebhooks, Webhook

__all__ = ["Kind", "UserWebhooks", "Webhook", "add_pages", "add_routes"]
