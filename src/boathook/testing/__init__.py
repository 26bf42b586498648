"""Signs requests as their senders do, for tests of handlers and for demos.

`sign` returns the headers for a given body. `signed_request` returns the whole request, also for senders that put the
signature into the body or the URL; without a body, it generates a typical one. For senders that sign with a key pair,
`make_keys` creates one: sign with the private key and configure the source with the public key.
"""

from boathook.verification.provider_keys import Keys
from boathook.verification.provider_signer import Signed, make_keys, sign, signed_request

__all__ = ["Keys", "Signed", "make_keys", "sign", "signed_request"]
