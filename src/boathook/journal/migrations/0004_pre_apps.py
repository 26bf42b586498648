"""Remembers which of their own migrations the apps have applied."""

revision = "0004_pre_apps"
down_revision = "0003_pre_sending"
