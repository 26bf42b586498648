"""Keeps secrets of sources that operators have added."""

revision = "0009_pre_source_secrets"
down_revision = "0008_pre_alarms"
