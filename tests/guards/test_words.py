"""Words that users read, and names in the code, are standard terms of the field."""

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.guards.documents import ROOT, SOURCES

INVENTED = (
    "ailing", "amiss", "errand", "errands", "haul", "hush", "journal", "letterhead", "mend", "mended", "mends",
    "premises", "rehearsal", "salvage", "twin", "twins",
)  # fmt: skip
"""Banned from names, from docstrings and comments, and from all that users read."""
NAMES = (*INVENTED, "doors", "owed", "patience", "patient", "stray", "strays", "vitals")
"""Banned from the parts of names: of files, classes, functions, arguments, variables, attributes and SQL statements."""
PROSE = (
    *INVENTED, "anew", "likewise", "nobody", "owe", "owed", "owes", "somebody", "stranger", "strangers", "told", "whoever",
)  # fmt: skip
"""Banned from docstrings and comments."""
DIALECT = (
    *INVENTED, "alarm", "alarms", "bell", "books", "buried", "courier", "likewise", "nobody", "owed", "owes", "people",
    "somebody", "stands", "stranger", "strangers", "tick", "ticked", "told", "whoever",
)  # fmt: skip
"""Banned from pages, from the help of commands, and from messages."""
IN_DOCUMENTS = ("errand", "errands", "haul", "hush", "journal", "letterhead", "premises", "salvage")
"""Banned from README and docs; docs/decisions are records of their time."""
EVERY = frozenset((*NAMES, *PROSE, *DIALECT, *IN_DOCUMENTS))
ALLOWED: dict[tuple[str, str], str] = {}
"""Why a word is right in a folder or file."""
NO_NOUN = re.compile(
    r"(?<!there )\b(?:is|are) no (?!longer\b|such\b|known\b|shorter\b|better\b|cheaper\b)\w+", re.IGNORECASE
)
"""``is no address``: in English a value *is not* an address."""
SQL_NAME = re.compile(r"-- name:([^\n]*)")
SQL_COMMENT = re.compile(r"--(?! name:)[^\n]*")
SQL = re.compile(r"\s*(select|insert|update|delete|with|create|alter|from)\b")
JINJA = re.compile(r"\{#.*?#\}|\{%.*?%\}|\{\{.*?\}\}|<[^>]*>", re.DOTALL)
LITERAL = re.compile(r'"([^"]*)"')


def banned(text: str, words: Iterable[str]) -> list[str]:
    """Return the banned whole words of a text, in any letter case."""
    found = {word.lower() for word in re.findall(r"[a-z]+", text, re.IGNORECASE)}
    return sorted(found.intersection(words))


def shown_by_template(text: str) -> str:
    """Return a page's visible text, including texts in its expressions."""
    expressions = re.findall(r"\{[{%].*?[%}]\}", text, re.DOTALL)
    literals = [one for part in expressions for one in LITERAL.findall(part) if " " in one]
    return "\n".join([JINJA.sub("\n", text), *literals])


def prose(tree: ast.Module, text: str) -> Iterator[str]:
    """Yield the docstrings of a module, those of attributes included, and its comments."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


def helps(tree: ast.Module) -> Iterator[str]:
    """Yield the first sentence of each command's help."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and any(".command(" in ast.unparse(one) for one in node.decorator_list):
            yield re.split(r"(?<=[.:])\s|\n\n", ast.get_docstring(node) or "")[0]


def messages(tree: ast.Module) -> Iterator[str]:
    """Yield the texts of a module, without docstrings and SQL, and the help of its commands."""
    silent = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        text = node.value if isinstance(node, ast.Constant) and id(node) not in silent else None
        if isinstance(text, str) and " " in text and not SQL.match(text):
            yield text
    yield from helps(tree)


def names(tree: ast.Module) -> Iterator[str]:
    """Yield the words of the names that a module defines."""
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name=name):
                yield re.sub(r"([A-Z])", r" \1", name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.arg(arg=name):
                yield name.replace("_", " ")
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name.replace("_", " ")


def complaints(path: str, text: str) -> list[str]:
    """Return which banned words a file has, and where."""
    if not banned(re.sub(r"(?=[A-Z])|_", " ", f"{path} {text}") + text, EVERY) and not NO_NOUN.search(text):
        return []  # parsing every file takes long
    found: list[tuple[str, str]] = []
    if path.endswith(".html"):
        found += [(word, "shown") for word in banned(shown_by_template(text), DIALECT)]
        found += [(word, "name") for word in banned(path.replace("_", " "), DIALECT)]
    elif path.endswith((".toml", ".yml")):
        found += [(word, "shown") for word in banned(text, DIALECT)]
    elif path.endswith(".md"):
        found += [(word, "written") for word in banned(text, IN_DOCUMENTS)]
    elif path.endswith(".sql"):
        found += [(word, "comment") for one in SQL_COMMENT.findall(text) for word in banned(one, PROSE)]
        found += [(word, "name") for one in SQL_NAME.findall(text) for word in banned(one.replace("_", " "), NAMES)]
    else:
        tree = ast.parse(text)
        found += [(word, f"shown: {one[:60]!r}") for one in messages(tree) for word in banned(one, DIALECT)]
        found += [
            (word, f"shown: {one[:60]!r}")
            for one in (*messages(tree), *prose(tree, text))
            for word in NO_NOUN.findall(one)
        ]
        found += [(word, "name") for one in (path.replace("_", " "), *names(tree)) for word in banned(one, NAMES)]
        found += [(word, f"prose: {one[:60]!r}") for one in prose(tree, text) for word in banned(one, PROSE)]
    allowed = {word for folder, word in ALLOWED if path.startswith(folder)}
    return [f"{path}: {word} ({where})" for word, where in found if word not in allowed]


def pages() -> Iterator[Path]:
    """Yield the pages for users."""
    yield ROOT / "README.md"
    yield from (page for page in sorted((ROOT / "docs").rglob("*.md")) if page.parent.name != "decisions")


def test_no_word_of_a_private_dialect_is_used() -> None:
    files = [
        one
        for kind in ("py", "sql", "html", "toml", "yml")
        for source in SOURCES
        for one in sorted(source.rglob(f"*.{kind}"))
    ]
    files += pages()
    found = [one for file in files for one in complaints(str(file.relative_to(ROOT)), file.read_text(encoding="utf-8"))]
    assert found == []


def test_every_exception_is_needed() -> None:
    for place, word in ALLOWED:
        path = ROOT / place
        files = [path] if path.is_file() else path.rglob("*.py")
        trees = (ast.parse(file.read_text(encoding="utf-8")) for file in files)
        assert any(banned(one, (word,)) for tree in trees for one in (*messages(tree), *names(tree))), (place, word)


def test_mutant_a_planted_word_is_detected() -> None:
    planted = {
        "src/boathook/pages/templates/a.html": "<p>Nobody is owed anything.</p>",
        "src/boathook/pages/templates/b.html": '{{ parts.empty("It stands here.") }}',
        "src/boathook/pages/templates/people/list.html": "",
        "src/boathook/config/a.toml": 'advice = "Mend it."',
        "src/boathook/cli/a.py": 'raise Misused("somebody must mend it")',
        "src/boathook/cli/c.py": 'raise Misused(f"{text} is no address")',
        "src/boathook/cli/b.py": '@app.command("x")\ndef x() -> None:\n    """Tell whoever listens."""',
        "src/boathook/delivery/a.py": "class Haul:\n    pass",
        "src/boathook/delivery/b.py": '"""Errands of a process: one each."""',
        "src/boathook/delivery/c.py": "x = 1  # whoever asks is told",
        "src/boathook/db/a.sql": "-- Finds what somebody is owed.\nselect 1",
        "src/boathook/delivery/d.py": "is_week_owed = True",
        "src/boathook/delivery/e.py": "class A:\n    def __init__(self, doors: int) -> None:\n        pass",
        "src/boathook/delivery/f.py": "class A:\n    def __init__(self) -> None:\n        self._MAX_PATIENCE = 1",
        "src/boathook/db/b.sql": "-- name: find_strays\n-- Finds rows.\nselect 1",
        "src/boathook/delivery/salvage.py": "",
        "docs/a.md": "The Letterhead has the headers.",
    }
    assert [path for path, text in planted.items() if not complaints(path, text)] == []


def test_mutant_a_plain_word_is_not_reported() -> None:
    plain = {
        "src/boathook/pages/templates/a.html": "<p>Recommended: understands <b>standards</b>.</p>{# nobody reads #}",
        "src/boathook/db/a.py": 'QUERY = "select told from notice"\n"""A mention of ``retold`` stories; there is no other, and none is no longer kept."""',
    }
    assert [complaint for path, text in plain.items() for complaint in complaints(path, text)] == []
