"""Keeps which events no handler matched, and what batches are made of, so that they can be routed again."""

revision = "0013_pre_unhandled"
down_revision = "0012_pre_dedup_order"
