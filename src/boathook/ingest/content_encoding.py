"""Undoes gzip and deflate piece by piece, so that a bomb is recognised before it has unfolded."""

import zlib
from typing import Final

from boathook.domain.verification import Reason, Rejected

_PIECE: Final = 65_536
_WINDOWS: Final = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}


class Decoder:
    """Decodes one body; hand it to `Verifier.verify`, then read `decoded`."""

    def __init__(self, encoding: str, *, max_decoded: int, max_ratio: int) -> None:
        self._encoding = encoding
        self._max_decoded = max_decoded
        self._max_ratio = max_ratio
        self.decoded: bytes | None = None

    def __call__(self, body: bytes) -> bytes | Rejected:
        """Return the decoded body, or why it is refused."""
        most = min(self._max_decoded, max(len(body), 1) * self._max_ratio)
        machine = zlib.decompressobj(wbits=_WINDOWS[self._encoding])
        pieces, size, rest = [], 0, body
        try:
            while not machine.eof and (rest or size == 0):
                piece = machine.decompress(rest, _PIECE)
                rest = machine.unconsumed_tail
                size += len(piece)
                if size > most:
                    return _refuse(413, Reason.BODY_TOO_LARGE, f"decodes to more than {most} bytes")
                pieces.append(piece)
                if not piece and not rest:
                    break
        except zlib.error:
            return _refuse(400, Reason.BODY_MALFORMED, f"is no valid {self._encoding}")
        if not machine.eof or machine.unused_data:
            return _refuse(400, Reason.BODY_MALFORMED, f"is cut short or followed by other data, as {self._encoding}")
        self.decoded = b"".join(pieces)
        return self.decoded


def _refuse(status: int, reason: Reason, what: str) -> Rejected:
    return Rejected(status=status, reason=reason, detail=f"the proof holds, but the body {what}", may_reverify=False)
