"""What comes of the requests and downloads of apps."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """What a server answered."""

    status: int
    headers: Mapping[str, str]
    """By lower-case name; those that come twice are joined by a comma and a space."""
    body: bytes

    @property
    def is_ok(self) -> bool:
        """Whether the status is one of success."""
        return 200 <= self.status < 300


@dataclass(frozen=True, slots=True)
class DownloadResult:
    """A file that was fetched whole."""

    size: int
    content_type: str
    """As the server named it; empty where it named none."""
    sha256: str
    """In hexadecimal digits."""
