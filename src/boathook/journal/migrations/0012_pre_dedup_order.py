"""Finds the dedup keys of a range of events."""

revision = "0012_pre_dedup_order"
down_revision = "0011_pre_dead_indexes"
