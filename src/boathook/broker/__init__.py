"""Speaks AMQP to RabbitMQ: connections with deadlines, the buffer's queues, and batches of events as messages.

Leases tokens of shared rates from Redis.
"""
