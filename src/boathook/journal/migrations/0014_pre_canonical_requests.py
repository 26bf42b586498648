"""Lets requests that come twice be compared as they are understood, whatever way they are written."""

revision = "0014_pre_canonical_requests"
down_revision = "0013_pre_unhandled"
