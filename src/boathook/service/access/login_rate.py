"""Limits attempts to sign in, to the console and to the pages of apps, and the requests with operators' tokens."""

import time
import unicodedata
from collections import OrderedDict
from typing import Final

from boathook.domain.errors import RateLimited
from boathook.http.limits import client_key

_REFILL_S: Final = 12.0
_TRIES: Final = 10
"""Attempts per name and address."""
_TRIES_OF_ADDRESS: Final = 60
"""Attempts per address; higher, because a whole office may share one."""
_TRIES_OF_NAME: Final = 120
"""Attempts per name; higher, with a tenfold refill rate, so that an attacker who guesses cannot lock out the owner."""
_NAME_REFILL_S: Final = _REFILL_S / 10
_REQUESTS_OF_TOKEN: Final = 500
"""Requests with one operator's token at once."""
_REQUEST_REFILL_S: Final = 0.01
MAX_BUCKETS: Final = 10_000
_MAX_NAME_CHARS: Final = 120


class _TokenBuckets:
    """Token buckets by key, refilled over time; only the most recently used keys are kept."""

    def __init__(self, capacity: int, refill_s: float) -> None:
        self._capacity = float(capacity)
        self._refill_s = refill_s
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, key: str) -> bool:
        """Take one token; return whether there was one."""
        now = time.monotonic()
        tokens, at = self._left.pop(key, (self._capacity, now))
        tokens = min(self._capacity, tokens + (now - at) / self._refill_s)
        is_left = tokens >= 1
        self._left[key] = (tokens - 1 if is_left else tokens, now)
        if len(self._left) > MAX_BUCKETS:
            self._left.popitem(last=False)
        return is_left

    def has_token(self, key: str) -> bool:
        """Return whether there is a token to take."""
        tokens, at = self._left.get(key, (self._capacity, 0.0))
        return tokens + (time.monotonic() - at) / self._refill_s >= 1

    def __contains__(self, key: str) -> bool:
        """Return whether the key is in use."""
        return key in self._left

    def give_back(self, key: str) -> None:
        """Return one token."""
        if key in self._left:
            tokens, at = self._left[key]
            self._left[key] = (tokens + 1, at)

    def forget(self, key: str) -> None:
        """Reset a key."""
        self._left.pop(key, None)


class LoginRateLimiter:
    """Limits sign-in attempts by three buckets: name and address, address, and name, in this order.

    Each bucket is used only if the previous ones had a token left. They are stored separately, so that an attacker with
    invented names cannot evict the other counts. The limits are per process: two gateways allow twice as many attempts.
    """

    def __init__(self) -> None:
        self._both = _TokenBuckets(_TRIES, _REFILL_S)
        self._addresses = _TokenBuckets(_TRIES_OF_ADDRESS, _REFILL_S)
        self._names = _TokenBuckets(_TRIES_OF_NAME, _NAME_REFILL_S)

    def take(self, name: str, address: str) -> bool:
        """Count one attempt for a name from an address; return whether it is allowed."""
        name, address = _normalize_name(name), client_key(address)
        return self._both.take(f"{address} {name}") and self._addresses.take(address) and self._names.take(name)

    def forget(self, name: str, address: str) -> None:
        """Reset the limits of a name after a successful sign-in, and return the address's token for this attempt."""
        name, address = _normalize_name(name), client_key(address)
        self._both.forget(f"{address} {name}")
        self._addresses.give_back(address)
        self._names.forget(name)


class OperatorTokenRates:
    """Limits the different wrong operators' tokens of an address, and the requests with a valid one, per process.

    Clients may share an address. So a token that was valid lately is not affected by wrong ones, and a wrong one that
    is sent again, as by a job whose token has expired, counts once.
    """

    def __init__(self) -> None:
        self._failures = _TokenBuckets(_TRIES_OF_ADDRESS, _REFILL_S)
        self._requests = _TokenBuckets(_REQUESTS_OF_TOKEN, _REQUEST_REFILL_S)
        self._wrong: OrderedDict[bytes, None] = OrderedDict()

    def check(self, token_sha256: bytes, address: str) -> None:
        """Check that a token may be looked up. Raises RateLimited after many wrong ones from its address."""
        is_known = token_sha256 in self._wrong or token_sha256.hex() in self._requests
        if not is_known and not self._failures.has_token(client_key(address)):
            raise RateLimited("too many wrong tokens; wait a minute and try again", round(_REFILL_S))

    def count_failure(self, token_sha256: bytes, address: str) -> None:
        """Count a wrong token of an address."""
        if token_sha256 not in self._wrong:
            self._failures.take(client_key(address))
            self._wrong[token_sha256] = None
        if len(self._wrong) > MAX_BUCKETS:
            self._wrong.popitem(last=False)

    def count_request(self, token_sha256: bytes) -> None:
        """Count a request with a valid token. Raises RateLimited if there were too many."""
        if not self._requests.take(token_sha256.hex()):
            raise RateLimited("too many requests with this token; send fewer a second", 1)


def _normalize_name(name: str) -> str:
    """Return a name without differences that the database may ignore: case, accents and compatibility forms."""
    plain = unicodedata.normalize("NFKD", name[:_MAX_NAME_CHARS]).casefold()
    return "".join(char for char in plain if not unicodedata.combining(char))
