"""Keeps what the charts of the console show."""

revision = "0007_pre_samples"
down_revision = "0006_pre_operators"
