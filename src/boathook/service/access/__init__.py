"""Who may do what: keys, operators, sign-in, tokens, permissions and idempotency keys."""
