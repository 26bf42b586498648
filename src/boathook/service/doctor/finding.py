"""What a check of a set-up comes to."""

from dataclasses import dataclass
from enum import StrEnum


class CheckStatus(StrEnum):
    """How a thing is."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at."""

    check: str
    verdict: CheckStatus
    found: str
    fix: str = ""
    """What to do about it; empty where all is well."""
