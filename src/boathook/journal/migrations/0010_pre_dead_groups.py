"""Lets dead letters be grouped by what failed."""

revision = "0010_pre_dead_groups"
down_revision = "0009_pre_source_secrets"
