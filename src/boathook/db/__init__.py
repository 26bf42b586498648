"""The PostgreSQL store: the pool, the migrations, and one module per noun with its SQL beside it.

The only room with SQL.
"""
