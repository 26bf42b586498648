"""Verifies requests: `verifier.Verifier` holds one source's compiled checks and returns a verdict for each request.

`check.make_check` builds the check for one kind of proof: `hmac` (a MAC over a template, or a MAC or hash over chosen
fields), `asymmetric` and `jwt` (public keys, parsed by `public_keys` and cached in the `keyring`), and `tokens` (also
addresses). They share `signed_content`. `diagnostics` explains to operators why a check
may have failed. No check does I/O or raises, whatever the request contains.
"""
