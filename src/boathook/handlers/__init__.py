"""The user's Python, inside the transaction that settles its delivery."""
