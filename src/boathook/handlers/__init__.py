"""Runs the user's handlers inside the transaction that settles their delivery."""
