"""Each catalogue is complete, agrees with the code, and is as its tool writes it."""

from pathlib import Path
from typing import Any

import pytest

from scripts.translations import LANGUAGES, Domain, domains, extract, problems, read, update, write

CODE = """
title = gettext_noop("Cabinet")
def greet(name, n):
    return gettext("Hello, %(name)s", name=name) + ngettext("%(num)s car", "%(num)s cars", n)
"""
TRANSLATED = {
    "Cabinet": "Кабинет",
    "Hello, %(name)s": "Здравствуйте, %(name)s",
    "%(num)s car": ("%(num)s машина", "%(num)s машины", "%(num)s машин"),
    "Save": "Сохранить",
}


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("domain", domains(), ids=lambda domain: domain.name)
def test_a_catalogue_is_complete_and_up_to_date(domain: Domain, language: str):
    assert problems(domain, language) == []


def test_the_page_kit_and_the_apps_have_catalogues():
    assert {"languages"} <= {domain.name for domain in domains()}


@pytest.fixture
def domain(tmp_path: Path) -> Domain:
    """A small app with a complete catalogue."""
    package = tmp_path / "shop"
    (package / "templates").mkdir(parents=True)
    (package / "app.py").write_text(CODE)
    (package / "templates/a.html").write_text('<button>{{ _("Save") }}</button>')
    shop = Domain(package / "locale", (package,))
    catalogue = update(extract(shop), read(shop.path("ru"), "ru"))
    message: Any
    for message in catalogue:
        if message.id:
            message.string = TRANSLATED[message.id[0] if isinstance(message.id, tuple) else message.id]
    shop.path("ru").parent.mkdir(parents=True)
    shop.path("ru").write_bytes(write(catalogue))
    return shop


def test_a_complete_catalogue_has_no_problems(domain: Domain):
    assert problems(domain, "ru") == []


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        ('msgstr "Сохранить"', 'msgstr ""', "not translated: 'Save'"),
        ('msgid "Save"', '#, fuzzy\nmsgid "Save"', "fuzzy: 'Save'"),
        ('msgid "Save"', 'msgid "Send"', "not in the file: 'Save'"),
        ('msgid "Save"', 'msgid "Send"', "not in the code: 'Send'"),
        ("Здравствуйте, %(name)s", "Здравствуйте, %(имя)s", "other placeholders than in the code: 'Hello, %(name)s'"),
        ("Здравствуйте, %(name)s", "Здравствуйте", "other placeholders than in the code: 'Hello, %(name)s'"),
        ("Сохранить", "100 %", "a percent sign is written %%: 'Save'"),
        ('msgstr[2] "%(num)s машин"\n', "", "not translated: '%(num)s car' / '%(num)s cars'"),
        ('msgid "Save"', '# by hand\nmsgid  "Save"', "the file is not as the tool writes it"),
    ],
)
def test_mutant_each_fault_of_a_catalogue_is_found(domain: Domain, before: str, after: str, problem: str):
    path = domain.path("ru")
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))
    assert f"shop, ru: {problem}" in problems(domain, "ru")


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        ('gettext_noop("Cabinet")', 'gettext_noop("Office")', "not in the file: 'Office'"),
        ('gettext_noop("Cabinet")', '"Cabinet"', "not in the code: 'Cabinet'"),
    ],
)
def test_mutant_a_changed_text_of_the_code_is_found(domain: Domain, before: str, after: str, problem: str):
    code = domain.sources[0] / "app.py"
    code.write_text(code.read_text().replace(before, after))
    assert f"shop, ru: {problem}" in problems(domain, "ru")


def test_a_missing_catalogue_is_found(domain: Domain):
    domain.path("ru").unlink()
    assert "shop, ru: not in the file: 'Save'" in problems(domain, "ru")
