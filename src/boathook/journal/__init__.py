"""PostgreSQL: the only durable truth, and the only place with SQL."""
