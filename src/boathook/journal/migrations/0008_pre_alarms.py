"""Keeps which alarms are firing, and which are silenced."""

revision = "0008_pre_alarms"
down_revision = "0007_pre_samples"
