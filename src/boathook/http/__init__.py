"""The hardened HTTP/1.1 server: deadlines, caps and connection limits over uvicorn's protocol.

It knows nothing of webhooks.
"""
