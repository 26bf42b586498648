"""Lays down the whole schema in an empty database."""

revision = "0001_pre_first_schema"
down_revision = None
