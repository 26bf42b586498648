"""Finds dead letters by what failed, and by when they died."""

revision = "0011_pre_dead_indexes"
down_revision = "0010_pre_dead_groups"
