"""Lets boathook send: applications and their endpoints, event types, API keys, and attempts made over HTTP."""

revision = "0003_pre_sending"
down_revision = "0002_pre_items_and_replies"
