"""Portal sessions: links with a token of one application, and the appearance of the portal."""

import re
from collections.abc import Mapping
from typing import Final, Self
from urllib.parse import urlencode, urlsplit

import msgspec

from boathook.domain.errors import InvalidValue

PATH: Final = "/portal"
THEMES: Final = frozenset({"light", "dark"})
_COLOUR: Final = re.compile(r"[0-9a-f]{6}")


class PortalAppearance(msgspec.Struct, frozen=True):
    """The appearance of the portal when embedded in a product."""

    theme: str = ""
    """``light`` or ``dark``; empty for the user's system setting."""
    colour: str = ""
    """Colour of buttons and links, as six hexadecimal digits; empty for the default."""
    icon: str = ""
    """The https URL of an icon for the title; empty for none."""
    font: str = ""
    """Font names, separated by commas; empty for the system's font."""

    @classmethod
    def read(cls, theme: str, colour: str) -> Self:
        """Return the appearance with this theme and colour. Raises InvalidValue."""
        if theme and theme not in THEMES:
            raise InvalidValue("use light, dark or nothing", "theme")
        if colour and not _COLOUR.fullmatch(colour.lower()):
            raise InvalidValue("write six hexadecimal digits, such as 0f6ca8", "colour")
        return cls(theme, colour.lower())

    @classmethod
    def parse_lenient(cls, theme: str, colour: str, icon: str = "", font: str = "") -> Self:
        """Return the same, ignoring invalid values: a mistyped link must still open the portal."""
        digits = colour.lower().removeprefix("#")
        colour = "".join(2 * digit for digit in digits) if len(digits) == _SHORT else digits
        return cls(
            theme=theme if theme in THEMES else "",
            colour=colour if _COLOUR.fullmatch(colour) else "",
            icon=icon if _is_icon(icon) else "",
            font=font if len(font) <= _MAX_LENGTH and _FONTS.fullmatch(font) else "",
        )

    @classmethod
    def of(cls, query: Mapping[str, str]) -> Self | None:
        """Return the appearance in a link's parameters, ours or those of svix-react; None if there are none."""
        if not query.keys() & _PARAMETERS:
            return None
        theme = query.get("theme", _DARK_MODES.get(query.get("darkMode", ""), ""))
        colour = query.get("colour", query.get("primaryColor", ""))
        return cls.parse_lenient(theme, colour, query.get("icon", ""), query.get("font", query.get("fontFamily", "")))

    @property
    def query(self) -> str:
        """The parameters of a link that encode the appearance."""
        values = {"theme": self.theme, "colour": self.colour, "icon": self.icon, "font": self.font}
        return urlencode({name: value for name, value in values.items() if value})

    @property
    def icon_origin(self) -> str:
        """The icon's origin for a content security policy."""
        return f"https://{urlsplit(self.icon).netloc}"


_SHORT: Final = 3
"""Digits of a colour in its short form, such as #f80."""
_MAX_LENGTH: Final = 1_024
_PARAMETERS: Final = frozenset({"theme", "colour", "icon", "font", "darkMode", "primaryColor", "fontFamily"})
_DARK_MODES: Final = {"true": "dark", "false": "light"}
# Excludes quotes and directive separators: the icon is used in an attribute, and its origin in a header.
_ICON: Final = re.compile(
    r"https://[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*(?::\d{1,5})?(?:[/?][A-Za-z0-9._~!$&()*+=:@%/?-]*)?"
)
_FONTS: Final = re.compile(
    r"[A-Za-z][A-Za-z0-9_-]*(?: [A-Za-z0-9_-]+)*(?:, *[A-Za-z][A-Za-z0-9_-]*(?: [A-Za-z0-9_-]+)*)*"
)
_GENERIC: Final = frozenset(
    {"serif", "sans-serif", "monospace", "system-ui", "ui-serif", "ui-sans-serif", "ui-monospace"}
)
"""Font names that CSS treats as generic families only if they are unquoted."""


def _is_icon(address: str) -> bool:
    return len(address) <= _MAX_LENGTH and _ICON.fullmatch(address) is not None


def portal_link(base: str, token: str, look: PortalAppearance | None = None) -> str:
    """Return the URL that opens the portal.

    The token is in the fragment, so that it stays in the browser and appears in no log or Referer header.
    """
    query = "" if look is None or not look.query else f"?{look.query}"
    return f"{base}{PATH}{query}#{urlencode({'key': token})}"


def stylesheet_of(look: PortalAppearance) -> str:
    """Return the CSS rules for the portal's font and its colour, which is adjusted until text is legible."""
    fonts = [name if name in _GENERIC else f'"{name}"' for name in map(str.strip, look.font.split(",")) if name]
    return _colour_rules(look) + (
        f"html {{ font-family: {', '.join(fonts)}, system-ui, sans-serif; }}\n" if fonts else ""
    )


def _colour_rules(appearance: PortalAppearance) -> str:
    if not appearance.colour:
        return ""
    # --hover in console.css: of all surfaces, the one with the least contrast.
    on_light, on_dark = _readable(appearance.colour, "f3f6fa"), _readable(appearance.colour, "171d26")
    rules = {
        ":root": _rule(appearance.colour, on_light),
        ':root[data-theme="dark"]': _rule(appearance.colour, on_dark),
    }
    sheet = "\n".join(f"{selector} {{ {declarations} }}" for selector, declarations in rules.items())
    dark = f':root:not([data-theme="light"]) {{ {_rule(appearance.colour, on_dark)} }}'
    return f"{sheet}\n@media (prefers-color-scheme: dark) {{ {dark} }}\n"


def _rule(colour: str, link_colour: str) -> str:
    # Black, because with a lighter text colour some colours would have no legible text at all.
    text = max("ffffff", "000000", key=lambda candidate: contrast(candidate, colour))
    return f"--accent: #{colour}; --accent-text: #{text}; --link: #{link_colour};"


_LEGIBLE: Final = 4.5
"""The contrast that text needs (WCAG 2.2, 1.4.3)."""


def _readable(colour: str, background: str) -> str:
    """Return the nearest colour that is legible on a background."""
    target = "000000" if _luminance(background) > 0.5 else "ffffff"
    for step in range(21):
        mixed = _mixed(colour, target, step / 20)
        if contrast(mixed, background) >= _LEGIBLE:
            return mixed
    return target


def _mixed(colour: str, other: str, share: float) -> str:
    pairs = zip(_channels(colour), _channels(other), strict=True)
    return "".join(f"{round(first + (second - first) * share):02x}" for first, second in pairs)


def contrast(colour: str, other: str) -> float:
    """Return the contrast of two colours, from 1 to 21 (WCAG 2.2)."""
    low, high = sorted((_luminance(colour), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: str) -> float:
    shares = (0.2126, 0.7152, 0.0722)
    return sum(share * _linear(channel / 255) for share, channel in zip(shares, _channels(colour), strict=True))


def _linear(value: float) -> float:
    return float(value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4)


def _channels(colour: str) -> tuple[int, int, int]:
    return int(colour[0:2], 16), int(colour[2:4], 16), int(colour[4:6], 16)
