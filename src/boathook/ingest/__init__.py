"""Accepts events: verifies each request, builds its event and commits it before the sender gets a 2xx."""
