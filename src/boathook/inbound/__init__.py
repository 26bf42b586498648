"""A stranger's request becomes a durable event."""
