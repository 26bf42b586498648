"""Checks raw paths, before percent-decoding."""

import re
from typing import Final

_NEEDLESS_ESCAPE: Final = re.compile(rb"%(?:2[dDeEfF]|3[0-9]|4[1-9a-fA-F]|5[0-9aAfF]|6[1-9a-fA-F]|7[0-9aA])")


def has_needless_escapes(raw_path: bytes) -> bool:
    """Return whether letters, digits, ``-``, ``.``, ``_`` or ``/`` are percent-encoded, which no client needs to do.

    A proxy that blocks ``/console`` by the raw path would let ``/%63onsole`` pass.
    """
    return b"%" in raw_path and _NEEDLESS_ESCAPE.search(raw_path) is not None
