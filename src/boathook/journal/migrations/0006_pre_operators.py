"""Lets people sign in to the console."""

revision = "0006_pre_operators"
down_revision = "0005_pre_suspects"
