"""Lets deliveries name one item of a batch, and handlers answer a sender who waits."""

revision = "0002_pre_items_and_replies"
down_revision = "0001_pre_first_schema"
