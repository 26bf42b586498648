"""Hardened HTTP/1.1 server: deadlines, size limits and connection limits on top of uvicorn's protocol.

It is independent of webhooks.
"""
