"""Sending to endpoints, simulated: senders as processes, endpoints that follow scripts, and what must hold."""
