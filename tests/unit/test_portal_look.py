"""The portal's appearance within the owner's product: it is readable with every colour."""

import re
from base64 import b64encode
from pathlib import Path
from urllib.parse import parse_qsl, quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import boathook_pages
from boathook import config
from boathook.domain.errors import ConfigError, InvalidValue
from boathook.service.access.portal_sessions import PortalAppearance, contrast, portal_link, stylesheet_of
from boathook.service.shown_settings import all_settings
from boathook_console.settings import console_table
from boathook_portal.logo import find_logo

SHEET = (Path(boathook_pages.__file__).parent / "static/console.css").read_text(encoding="utf-8")
COLOURS = st.integers(0, 0xFFFFFF).map(lambda number: f"{number:06x}")


def test_contrast_is_that_of_the_guidelines():
    assert contrast("000000", "ffffff") == pytest.approx(21)
    assert contrast("ffffff", "ffffff") == pytest.approx(1)
    assert contrast("767676", "ffffff") == pytest.approx(4.54, abs=0.01)


@given(COLOURS)
@example("008d00")
def test_links_and_buttons_can_be_read_in_any_colour_light_and_dark(colour: str):
    light, dark, _system = stylesheet_of(PortalAppearance("", colour)).splitlines()
    on_light, on_dark, on_dark_by_system = re.findall(r"--hover: #([0-9a-f]{6})", SHEET)
    assert on_dark == on_dark_by_system
    for rule, ground in ((light, on_light), (dark, on_dark)):
        found = dict(re.findall(r"--([\w-]+): #([0-9a-f]{6})", rule))
        assert contrast(found["link"], ground) >= 4.5
        assert found["accent"] == colour
        assert contrast(found["accent-text"], colour) >= 4.5


@given(st.text(), st.text())
def test_only_a_valid_theme_and_colour_reach_the_page(theme: str, colour: str):
    look = PortalAppearance.parse_lenient(theme, colour)
    assert look.theme in {"", "light", "dark"}
    assert re.fullmatch(r"([0-9a-f]{6})?", look.colour)
    assert re.fullmatch(r"[a-z0-9=&]*", look.query)


@given(st.text(), st.text())
def test_an_icon_and_a_font_cannot_leave_their_place(icon: str, font: str):
    look = PortalAppearance.parse_lenient("", "", icon, font)
    assert re.fullmatch(r"(https://[A-Za-z0-9.-]+(:\d+)?([/?][^\s\"'<>;,`\\]*)?)?", look.icon)
    assert re.fullmatch(r"[A-Za-z0-9_, -]*", look.font)


ICONS = [
    "http://cdn.example.com/a.png", "javascript:alert(1)", "data:image/svg+xml,<svg/>", "//cdn.example.com/a.png",
    "https://cdn.example.com/a.png; script-src *", "https://cdn.example.com/a,b", "https://a@b.example/",
    'https://cdn.example.com/"onerror="alert(1)', "https://*/a.png", "https://", "https://[::1]/", "https://a.example/" + "a" * 1024,
]  # fmt: skip
FONTS = [
    'Inter"; } * { display: none', "a} body{", "Inter;color:red", "url(https://x)", "Inter\\", "<style>", "a" * 1_025, "Inter,,", "/**/",
]  # fmt: skip


@pytest.mark.parametrize("icon", ICONS)
def test_an_icon_must_be_a_plain_https_url(icon: str):
    assert PortalAppearance.of({"icon": icon}) == PortalAppearance()


@pytest.mark.parametrize("font", FONTS)
def test_an_invalid_font_family_is_ignored(font: str):
    assert stylesheet_of(PortalAppearance.of({"fontFamily": font}) or PortalAppearance()) == ""


def test_svix_react_names_the_same_in_its_own_words():
    icon = "https://cdn.example.com:8443/logo.png?v=2"
    theirs = {"darkMode": "true", "primaryColor": "#F80", "icon": icon, "fontFamily": "Open Sans, serif"}
    look = PortalAppearance.of(theirs)
    assert look == PortalAppearance("dark", "ff8800", icon, "Open Sans, serif")
    assert look.icon_origin == "https://cdn.example.com:8443"
    assert PortalAppearance.of(dict(parse_qsl(look.query))) == look
    assert 'html { font-family: "Open Sans", serif, system-ui, sans-serif; }' in stylesheet_of(look)
    assert PortalAppearance.of({"darkMode": "auto"}) == PortalAppearance()
    assert PortalAppearance.of({"darkMode": "false"}) == PortalAppearance("light")
    assert PortalAppearance.of({"after": "x"}) is None


@pytest.mark.parametrize(("theme", "colour"), [("pink", ""), ("", "red"), ("", "ff88001"), ("dark;", "")])
def test_an_invalid_appearance_is_refused_when_set(theme: str, colour: str):
    with pytest.raises(InvalidValue):
        PortalAppearance.read(theme, colour)


def test_the_token_is_in_the_url_fragment():
    address = portal_link("https://hooks.example.com", "bhk_x", PortalAppearance("dark", "aa0044"))
    assert address == "https://hooks.example.com/portal?theme=dark&colour=aa0044#key=bhk_x"
    assert "bhk_x" not in address.partition("#")[0]


@pytest.mark.parametrize(
    "origin",
    ["app.example.com", "https://app.example.com/", "https://a.example; script-src *", "javascript:x", "https://"],
)
def test_only_origins_may_embed_the_portal(origin: str):
    with pytest.raises(ConfigError, match="embed_origins"):
        config.load(None, {"console.embed_origins": [origin]})


def test_origins_that_may_embed_the_portal_are_kept():
    given = ["https://app.example.com", "http://localhost:3000", "https://*.example.com"]
    assert console_table(config.load(None, {"console.embed_origins": given})).embed_origins == tuple(given)


SVG = b'<?xml version="1.0"?>\n<!-- drawn --><svg xmlns="http://www.w3.org/2000/svg"/>'
PNG = b"\x89PNG\r\n\x1a\n" + bytes(8)


@pytest.mark.parametrize(
    ("content", "media_type"),
    [
        (SVG, "image/svg+xml"),
        (b"\xef\xbb\xbf<svg>", "image/svg+xml"),
        (PNG, "image/png"),
        (b"\xff\xd8\xff\xe0", "image/jpeg"),
        (b"GIF89a", "image/gif"),
        (b"RIFF\x00\x00\x00\x00WEBPVP8 ", "image/webp"),
    ],
)
def test_a_logo_is_read_from_a_file_or_a_data_url_and_its_type_from_its_content(
    tmp_path: Path, content: bytes, media_type: str
):
    (tmp_path / "logo").write_bytes(content)
    (tmp_path / "boathook.toml").write_text('[console]\nportal_logo = "logo"\n')
    encoded = f"data:image/png;base64,{b64encode(content).decode()}"
    for settings in (
        config.load(tmp_path / "boathook.toml"),
        config.load(None, {"console.portal_logo": encoded}),
        config.load(None, {"console.portal_logo": f"data:image/svg+xml,{quote(content)}"}),
    ):
        logo = find_logo(settings)
        assert logo is not None
        assert (logo.content, logo.kind) == (content, media_type)


def test_settings_show_the_beginning_of_a_data_url():
    shown = all_settings(config.load(None, {"console.portal_logo": "data:image/png;base64," + "A" * 4_000}))
    assert shown["console"]["portal_logo"] == "data:image/png;base64,(4,000 characters)"


@pytest.mark.parametrize(
    ("logo", "fault"),
    [
        ("missing.png", "cannot read missing.png: No such file"),
        ("data:text/html,<svg>", "not a data URL of an image"),
        ("data:image/png;base64,@@", "not base64"),
        ("data:image/png,<script>", "is not an image"),
        ("data:image/svg+xml,<svg>" + "a" * 262_144, "at most 262,144"),
    ],
)
def test_a_wrong_logo_is_refused_with_the_name_of_its_setting(logo: str, fault: str):
    with pytest.raises(ConfigError, match=f"console.portal_logo: .*{re.escape(fault)}"):
        find_logo(config.load(None, {"console.portal_logo": logo}))


@pytest.mark.parametrize("name", ["", "  ", "a" * 61, "a\nb"])
def test_a_wrong_name_of_the_portal_is_refused(name: str):
    with pytest.raises(ConfigError, match=r"console\.portal_name: must be 1 to 60 printable"):
        config.load(None, {"console.portal_name": name})
