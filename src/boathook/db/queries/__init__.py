"""Bounded, read-only queries for pages and lists."""
