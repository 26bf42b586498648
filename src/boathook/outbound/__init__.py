"""Requests of ours to other people's servers, all through one guard."""
