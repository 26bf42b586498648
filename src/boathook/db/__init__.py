"""The PostgreSQL store: the pool, the migrations, and one module per noun with its SQL file.

Only this package contains SQL.
"""
