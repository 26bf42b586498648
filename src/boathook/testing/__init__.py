"""Requests signed the way their senders sign them: for tests of handlers and for demonstrations.

`sign` gives the headers for a body of yours. `signed_request` gives the whole request, also for senders whose
signature stands in the body or the address, and makes up a typical body where none is given. For senders that sign with
a key pair, `make_keys` makes one: sign with its private half, give its public half to the source.
"""

from boathook.verification.provider_keys import Keys
from boathook.verification.provider_signer import Signed, make_keys, sign, signed_request

__all__ = ["Keys", "Signed", "make_keys", "sign", "signed_request"]
