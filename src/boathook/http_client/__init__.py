"""The HTTP client: every outgoing request passes its guard against private networks."""
