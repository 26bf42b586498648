"""Decodes gzip and deflate in chunks, so that a decompression bomb is detected before it is expanded."""

import zlib
from collections.abc import Mapping
from typing import Final

from boathook.domain.verification import Reason, Rejected

_PIECE: Final = 65_536
ENCODINGS: Final = ("gzip", "deflate")
_SAME_CODINGS: Final = {"identity": "", "x-gzip": "gzip"}
_WINDOWS: Final = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}


def content_coding(headers: Mapping[str, str]) -> str:
    """Return a request's content coding, empty if its body has none (RFC 9110, section 8.4.1)."""
    coding = headers.get("content-encoding", "").strip().lower()
    return _SAME_CODINGS.get(coding, coding)


class Decoder:
    """Decodes one body: pass it to `Verifier.verify`, then read `decoded`."""

    def __init__(self, encoding: str, *, max_decoded: int, max_ratio: int) -> None:
        self._encoding = encoding
        self._max_decoded = max_decoded
        self._max_ratio = max_ratio
        self.decoded: bytes | None = None

    def __call__(self, body: bytes) -> bytes | Rejected:
        """Return the decoded body, or the rejection."""
        max_size = self._max_decoded
        if self._max_ratio:
            max_size = min(max_size, max(len(body), 1) * self._max_ratio)
        decompressor = zlib.decompressobj(wbits=_WINDOWS[self._encoding])
        pieces, size, rest = [], 0, body
        try:
            while not decompressor.eof and (rest or size == 0):
                piece = decompressor.decompress(rest, _PIECE)
                rest = decompressor.unconsumed_tail
                size += len(piece)
                if size > max_size:
                    return _refuse(413, Reason.DECODED_TOO_LARGE, f"decodes to more than {max_size} bytes")
                pieces.append(piece)
                if not piece and not rest:
                    break
        except zlib.error:
            return _refuse(400, Reason.BODY_MALFORMED, f"is not valid {self._encoding}")
        if not decompressor.eof or decompressor.unused_data:
            return _refuse(400, Reason.BODY_MALFORMED, f"is cut short or followed by other data, as {self._encoding}")
        self.decoded = b"".join(pieces)
        return self.decoded


def _refuse(status: int, reason: Reason, problem: str) -> Rejected:
    return Rejected(
        status=status, reason=reason, detail=f"the signature is valid, but the body {problem}", may_reverify=False
    )
