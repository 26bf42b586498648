"""Reads for pages and listings: bounded queries that change nothing."""
