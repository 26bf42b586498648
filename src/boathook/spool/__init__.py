"""The disk beside PostgreSQL: fsynced local files that take events in while the journal is away, drained in order."""
