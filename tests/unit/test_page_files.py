"""Style sheets and icons of the pages: every name that is used is defined, and files are cached by their content."""

import hashlib
import re
from pathlib import Path

import boathook_console
import boathook_pages
import boathook_portal

FOLDER = Path(boathook_pages.__file__).parent
STATIC = FOLDER / "static"
CONSOLE = Path(boathook_console.__file__).parent
FOLDERS = (FOLDER, CONSOLE, Path(boathook_portal.__file__).parent)
SHEETS = {path.name: path.read_text(encoding="utf-8") for one in FOLDERS for path in one.glob("static/*.css")}
TEMPLATES = {
    str(path): path.read_text(encoding="utf-8") for one in FOLDERS for path in (one / "templates").rglob("*.html")
}


def undefined_variables(sheets: dict[str, str]) -> list[str]:
    """Return the variables that are used and not defined; `PortalAppearance` changes the values of some only."""
    defined = set(re.findall(r"(--[\w-]+):", sheets["console.css"]))
    return [
        f"{name}: {one}"
        for name, text in sheets.items()
        for one in re.findall(r"var\((--[\w-]+)", text)
        if one not in defined
    ]


def dark_values(sheet: str) -> list[set[str]]:
    """Return the declarations of the dark theme: those by the system, and those by the user's choice."""
    blocks = re.findall(r':root(?::not\(\[data-theme="light"\]\)|\[data-theme="dark"\]) \{([^}]*)\}', sheet)
    return [{line.strip() for line in block.split(";") if line.strip()} for block in blocks]


def test_every_variable_is_defined() -> None:
    assert undefined_variables(SHEETS) == []
    assert undefined_variables(SHEETS | {"mutant.css": "a { color: var(--ground) }"}) == ["mutant.css: --ground"]


def test_both_dark_themes_are_the_same() -> None:
    by_system, by_choice = dark_values(SHEETS["console.css"])
    assert by_system == by_choice
    assert len(by_system) > 20


def test_files_named_by_style_sheets_carry_the_hash_of_their_content() -> None:
    found = re.findall(r'url\("([^"?]+)\?v=(\w+)"\)', SHEETS["console.css"])
    assert len(found) == SHEETS["console.css"].count("url(") == 2
    for name, version in found:
        assert hashlib.sha256((STATIC / name).read_bytes()).hexdigest().startswith(version), name


def test_every_icon_is_defined_and_used() -> None:
    defined = set(re.findall(r'id="i-([\w-]+)"', TEMPLATES[str(CONSOLE / "templates/icons.html")]))
    pages = [CONSOLE / "routes.py", *CONSOLE.parent.glob("boathook_*/pages.py")]
    navigation = "".join(path.read_text(encoding="utf-8") for path in pages)
    asked = set(re.findall(r"icon\(([^)]*)\)", "".join(TEMPLATES.values())))
    used = {name for one in asked for name in re.findall(r'"([\w-]+)"', one)} & defined
    used |= {name for name in defined if f', "{name}"' in navigation}
    plain = {one.strip('"') for one in asked if re.fullmatch(r'"[\w-]+"', one)}
    assert plain - defined == set()
    assert defined - used == set()
