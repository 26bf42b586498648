"""Verifies requests: `verifier.Verifier` holds one source's compiled checks and returns a verdict for each request.

`check.make_check` builds the check of one kind of proof: `hmac` (a MAC over a template), `field_signatures` (a MAC or
hash over chosen fields), `asymmetric` and `jwt` (public keys, parsed by `public_keys` and kept in the `keyring`),
`tokens`, and `addresses`. They share `timestamps` and `signed_content`. `diagnostics` tells operators why a check may
have failed. No check waits for I/O or raises, whatever was sent.
"""
