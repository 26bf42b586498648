"""The spool: fsynced local files that store events while PostgreSQL is unavailable, and are drained in order."""
