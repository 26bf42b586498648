"""Reads ids as boathook shows them."""

from typing import Final
from uuid import UUID

_DIGITS: Final = "0123456789abcdefghjkmnpqrstvwxyz"
"""Crockford's base 32."""


def read_uuid(id: str) -> UUID:
    """Return the UUID in an id such as ``evt_01kaz3...``, as the database stores it. Raises ValueError."""
    number = 0
    for digit in id.rpartition("_")[2]:
        number = number << 5 | _DIGITS.index(digit)
    return UUID(int=number)
