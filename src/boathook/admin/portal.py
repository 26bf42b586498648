"""The way into the customers' portal: a link with a token of one application, and how the portal shall look there."""

import re
from dataclasses import dataclass
from typing import Final, Self
from urllib.parse import urlencode

from boathook.domain.errors import InvalidValue

PATH: Final = "/portal"
THEMES: Final = frozenset({"light", "dark"})
_COLOUR: Final = re.compile(r"[0-9a-f]{6}")


@dataclass(frozen=True, slots=True)
class Look:
    """How the portal looks within somebody's product."""

    theme: str = ""
    """``light`` or ``dark``; empty: as the visitor's system has it."""
    colour: str = ""
    """Of buttons and links, as six hexadecimal digits; empty: ours."""

    @classmethod
    def read(cls, theme: str, colour: str) -> Self:
        """Return the look that these words name. Raises InvalidValue."""
        if theme and theme not in THEMES:
            raise InvalidValue("write light, dark or nothing", "theme")
        if colour and not _COLOUR.fullmatch(colour.lower()):
            raise InvalidValue("write six hexadecimal digits, such as 0f6ca8", "colour")
        return cls(theme, colour.lower())

    @classmethod
    def tolerant(cls, theme: str, colour: str) -> Self:
        """Return the same, without what is none: a link that was mistyped shows the portal all the same."""
        colour = colour.lower()
        return cls(theme if theme in THEMES else "", colour if _COLOUR.fullmatch(colour) else "")

    @property
    def query(self) -> str:
        """The parameters of a link that name it."""
        return urlencode({name: value for name, value in (("theme", self.theme), ("colour", self.colour)) if value})


def link(base: str, token: str, look: Look | None = None) -> str:
    """Return the address that leads into the portal.

    The token stands behind the ``#``, so that it stays in the browser: out of logs and Referer headers.
    """
    query = "" if look is None or not look.query else f"?{look.query}"
    return f"{base}{PATH}{query}#{urlencode({'key': token})}"


def stylesheet_of(look: Look) -> str:
    """Return the rules that give the portal its colour, made darker or lighter until it can be read."""
    if not look.colour:
        return ""
    on_light, on_dark = _readable(look.colour, "ffffff"), _readable(look.colour, "13212b")
    rules = {
        ":root": _rule(look.colour, on_light),
        ':root[data-theme="dark"]': _rule(look.colour, on_dark),
    }
    sheet = "\n".join(f"{where} {{ {what} }}" for where, what in rules.items())
    dark = f':root:not([data-theme="light"]) {{ {_rule(look.colour, on_dark)} }}'
    return f"{sheet}\n@media (prefers-color-scheme: dark) {{ {dark} }}\n"


def _rule(colour: str, link_colour: str) -> str:
    # Black, as a lighter ink leaves colours on which neither it nor white is legible.
    text = max("ffffff", "000000", key=lambda one: contrast(one, colour))
    return f"--accent: #{colour}; --accent-text: #{text}; --link: #{link_colour};"


_LEGIBLE: Final = 4.5
"""The contrast that text needs (WCAG 2.2, 1.4.3)."""


def _readable(colour: str, ground: str) -> str:
    """Return the colour nearest to this one that can be read on a ground."""
    goal = "000000" if _luminance(ground) > 0.5 else "ffffff"
    for step in range(21):
        mixed = _mixed(colour, goal, step / 20)
        if contrast(mixed, ground) >= _LEGIBLE:
            return mixed
    return goal


def _mixed(colour: str, other: str, share: float) -> str:
    pairs = zip(_channels(colour), _channels(other), strict=True)
    return "".join(f"{round(one + (two - one) * share):02x}" for one, two in pairs)


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colours, from 1 to 21 (WCAG 2.2)."""
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: str) -> float:
    shares = (0.2126, 0.7152, 0.0722)
    return sum(share * _linear(channel / 255) for share, channel in zip(shares, _channels(colour), strict=True))


def _linear(value: float) -> float:
    return float(value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4)


def _channels(colour: str) -> tuple[int, int, int]:
    return int(colour[0:2], 16), int(colour[2:4], 16), int(colour[4:6], 16)
