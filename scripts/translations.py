"""Writes the translations of boathook's page kit and of the apps, or says what is wrong with them.

``python -m scripts.translations`` collects the texts of the code and the templates and brings each ``*.po`` up to date:
new texts are added without a translation, and those that are gone are removed. With ``--check`` it changes nothing.
"""

import argparse
import io
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from babel.messages.catalog import Catalog
from babel.messages.extract import DEFAULT_KEYWORDS, extract_from_file
from babel.messages.plurals import get_plural
from babel.messages.pofile import read_po, write_po

ROOT: Final = Path(__file__).parents[1]
LANGUAGES: Final = ("ru",)
_KEYWORDS: Final = {**DEFAULT_KEYWORDS, "gettext_noop": None}
_PLACEHOLDER: Final = re.compile(r"%(?:%|\(\w+\)[a-z])")
_WIDTH: Final = 120


class Domain(NamedTuple):
    """The texts of one distribution with their translations."""

    locale: Path
    """The folder ``locale``."""
    sources: tuple[Path, ...]
    """The folders and files with the texts."""

    @property
    def name(self) -> str:
        """The name of the distribution."""
        return self.locale.parent.name

    def path(self, language: str) -> Path:
        """Return the file with the translations into a language."""
        return self.locale / language / "LC_MESSAGES/messages.po"


def domains(root: Path = ROOT) -> list[Domain]:
    """Return the page kit and every app that has a folder ``locale``."""
    package = root / "src/boathook_pages"
    kit = Domain(
        package / "languages/locale",
        (package / "kit", package / "templates/kit", package / "sign_in", package / "user_webhooks"),
    )
    apps = (Domain(locale, (locale.parent,)) for locale in sorted(root.glob("packages/*/src/*/locale")))
    return [kit, *apps]


def extract(domain: Domain) -> Catalog:
    """Return the texts of the code and the templates."""
    template = Catalog(charset="utf-8")
    for path in sorted(_files(domain.sources)):
        method = "python" if path.suffix == ".py" else "jinja2"
        options: dict[str, Any] = {} if path.suffix == ".py" else {"trimmed": "true", "newstyle_gettext": "true"}
        for line, message, comments, context in extract_from_file(
            method, path, keywords=_KEYWORDS, comment_tags=("Translators:",), options=options
        ):
            place = path.relative_to(domain.locale.parents[1]).as_posix()
            template.add(message, locations=[(place, line)], auto_comments=comments, context=context)
    return template


def _files(sources: Iterable[Path]) -> Iterator[Path]:
    for source in sources:
        yield from (path for path in source.rglob("*") if path.suffix in {".py", ".html"} and path.is_file())


def read(path: Path, language: str) -> Catalog:
    """Return the translations of a file; none if there is no file."""
    if not path.exists():
        return Catalog(locale=language, charset="utf-8", fuzzy=False)
    with path.open("rb") as file:
        return read_po(file, locale=language)


def update(template: Catalog, translated: Catalog) -> Catalog:
    """Return the translations of the texts in *template*."""
    translated.update(template, no_fuzzy_matching=True, update_creation_date=False)
    translated.obsolete.clear()
    return translated


def write(catalog: Catalog) -> bytes:
    """Return the text of a file, without the numbers of lines, which change with each edit."""
    content = io.BytesIO()
    write_po(content, catalog, width=_WIDTH, sort_by_file=True, include_lineno=False, omit_header=True)
    header = (
        'msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=utf-8\\n"\n'
        f'"Language: {catalog.locale_identifier}\\n"\n"Plural-Forms: {catalog.plural_forms}\\n"\n\n'
    )
    return header.encode() + content.getvalue()


def problems(domain: Domain, language: str) -> list[str]:
    """Return what is wrong with the translations into a language, one sentence each."""
    path = domain.path(language)
    where = f"{domain.name}, {language}"
    template, translated = extract(domain), read(path, language)
    wanted = {_key(message) for message in template if message.id}
    present = {_key(message) for message in translated if message.id}
    missing = [f"{where}: not in the file: {_shown(key)}" for key in sorted(wanted - present)]
    surplus = [f"{where}: not in the code: {_shown(key)}" for key in sorted(present - wanted)]
    surplus += [f"{where}: obsolete: {key!r}" for key in translated.obsolete]
    wrong = [f"{where}: {fault}" for message in translated if message.id for fault in _faults(message, language)]
    if not missing and not surplus and path.exists() and path.read_bytes() != write(update(template, translated)):
        wrong.append(f"{where}: the file is not as the tool writes it")
    return [*missing, *surplus, *wrong]


def _key(message: Any) -> tuple[str, ...]:
    return message.id if isinstance(message.id, tuple) else (message.id,)


def _shown(key: Sequence[str]) -> str:
    return " / ".join(map(repr, key))


def _faults(message: Any, language: str) -> Iterator[str]:
    texts = message.string if isinstance(message.string, tuple) else (message.string,)
    name = _shown(_key(message))
    if message.fuzzy:
        yield f"fuzzy: {name}"
    if not all(texts):
        yield f"not translated: {name}"
        return
    forms = get_plural(language).num_plurals
    if message.pluralizable and len(texts) != forms:
        yield f"{len(texts)} plural forms instead of {forms}: {name}"
    if any("%" in _PLACEHOLDER.sub("", text) for text in (*_key(message), *texts)):
        yield f"a percent sign is written %%: {name}"
    expected = _placeholders(_key(message)[-1])
    if any(_placeholders(text) != expected for text in texts):
        yield f"other placeholders than in the code: {name}"


def _placeholders(text: str) -> list[str]:
    return sorted(match for match in _PLACEHOLDER.findall(text) if match != "%%")


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing, and exit with 1 if something is wrong")
    is_check = parser.parse_args().check
    faults = []
    for domain in domains():
        for language in LANGUAGES:
            if not is_check:
                path = domain.path(language)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(write(update(extract(domain), read(path, language))))
            faults += problems(domain, language)
    for fault in faults:
        print(fault)  # noqa: T201 - its result
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
