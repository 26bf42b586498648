"""Reads the header Accept-Language (RFC 9110, section 12.5.4)."""

import re
from typing import Final

_MAX_CHARS: Final = 1_000
_MAX_RANGES: Final = 30
_RANGE: Final = re.compile(
    r"\s*(?P<language>[A-Za-z]{1,8}|\*)(?:-[A-Za-z0-9]{1,8})*\s*"
    r"(?:;\s*[qQ]\s*=\s*(?P<weight>0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?)\s*)?"
)


def read_accept_language(header: str) -> list[str]:
    """Return the languages of a header in lower case, without regions, the most wanted first.

    Ranges that are invalid, have the weight 0 or mean any language are left out; so is what exceeds the limits.
    """
    weights: dict[str, float] = {}
    for text in header[:_MAX_CHARS].split(",")[:_MAX_RANGES]:
        matched = _RANGE.fullmatch(text)
        if matched is None or matched["language"] == "*":
            continue
        language, weight = matched["language"].lower(), float(matched["weight"] or 1)
        weights[language] = max(weight, weights.get(language, 0.0))
    return sorted((language for language, weight in weights.items() if weight), key=lambda name: -weights[name])
