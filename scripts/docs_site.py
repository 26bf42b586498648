"""What MkDocs does besides (hooks of mkdocs.yml): the site holds whatever a page of docs/ leads to.

Pages of docs/ lead to tests, code and READMEs beside it, as readers of the repository can follow these. On the site
such a file is there too: Markdown as a page, anything else as plain text, both below `files/`.

For programs, each page is there as Markdown as well, beside its HTML, and `llms.txt` lists all pages of the navigation.
"""

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).parents[1]
FOLDER: Final = "files"
"""Where files from outside of docs/ are on the site."""
GALLERY: Final = "<!-- screenshots -->"
"""What stands on a page in the place of the console's screenshots."""
SECTIONS: Final = {"Providers": "reference/providers/*.md", "Decisions": "explanation/decisions/*.md"}
"""Sections of the navigation that list whole folders."""

LISTING: Final = "llms.txt"
"""The list of pages for programs that read the documentation."""
SEARCH: Final = "scripts/offline-search.js"
"""What lets search work on pages opened from a disk, in place of a script that the theme would fetch from elsewhere."""

_REMOTE_SCRIPT: Final = "https://unpkg.com/iframe-worker/shim"
_FENCE: Final = re.compile(r"^```.*?^```\n?", re.MULTILINE | re.DOTALL)
_LINK: Final = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]+)?(\))")
_OWN: Final = re.compile(
    r"https://(?:raw\.githubusercontent\.com/boathook/boathook/main|github\.com/boathook/boathook/blob/main)/"
)
"""How READMEs, which package indexes show too, lead to files of the repository."""
_TRANSITION: Final = re.compile(r"^ +(\S+) --> (\S+)(?: : (.+))?$", re.MULTILINE)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """List the pages of folders in their sections."""
    config.nav = [_expand_section(entry, Path(config.docs_dir)) for entry in config.nav or []]
    return config


def _expand_section(entry: Any, docs: Path) -> Any:
    if not isinstance(entry, dict):
        return entry
    ((title, children),) = entry.items()
    if not isinstance(children, list):
        return entry
    found = sorted(docs.glob(SECTIONS[title])) if title in SECTIONS else []
    pages = [path.relative_to(docs).as_posix() for path in found]
    return {title: [_expand_section(child, docs) for child in children] + pages}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Take in every file outside of docs/ that a page leads to, and those that these lead to."""
    docs = Path(config.docs_dir)
    left = [target for page in docs.rglob("*.md") for target in targets(page)]
    seen: set[Path] = set()
    while left:
        target = left.pop()
        if target in seen or not target.exists() or target.is_relative_to(docs):
            continue
        seen.add(target)
        files.append(_site_file(target, config))
        left += targets(target)
    return files


def targets(path: Path) -> list[Path]:
    """Return what a page's links lead to, whether it exists or not; of a folder, its files; of other files, nothing."""
    if path.is_dir():
        return sorted(one for one in path.iterdir() if one.is_file())
    if path.suffix != ".md":
        return []
    prose = _FENCE.sub("", path.read_text(encoding="utf-8"))
    links = (match[2] for match in _LINK.finditer(prose))
    return [target for link in links if (target := resolve(link, path)) is not None]


def resolve(link: str, origin: Path) -> Path | None:
    """Return the file of the repository that a link on the page *origin* leads to; None if it leads elsewhere."""
    if own := _OWN.match(link):
        return ROOT / link[own.end() :]
    return None if re.match(r"\w+:", link) else (origin.parent / link).resolve()


def _site_file(path: Path, config: MkDocsConfig) -> File:
    file = File.generated(config, site_path(path), content=_listing(path) if path.is_dir() else path.read_bytes())
    file.inclusion = file.inclusion.NOT_IN_NAV
    return file


def _listing(folder: Path) -> str:
    names = (path.name for path in targets(folder))
    return f"# {folder.relative_to(ROOT)}\n\n" + "".join(f"- [{name}]({name})\n" for name in names)


def site_path(path: Path) -> str:
    """Return where a file of the repository is on the site: pages of docs/ at their own place."""
    inside = path.relative_to(ROOT).as_posix()
    if inside.startswith("docs/"):
        return inside.removeprefix("docs/")
    if path.is_dir():
        return f"{FOLDER}/{inside}/index.md"
    return f"{FOLDER}/{inside}" if path.suffix == ".md" else f"{FOLDER}/{inside}.txt"


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links out of docs/ to the files' places on the site."""
    del files
    markdown = markdown.replace(GALLERY, _gallery(Path(config.docs_dir)))
    origin = source_path(page.file.src_uri)
    here = posixpath.dirname(page.file.src_uri)
    pieces, end = [], 0
    for fence in _FENCE.finditer(markdown):
        pieces += [_rewrite_links(markdown[end : fence.start()], origin, here), _diagram_to_table(fence[0])]
        end = fence.end()
    return "".join([*pieces, _rewrite_links(markdown[end:], origin, here)])


def on_env(env: Any, *, config: MkDocsConfig, files: Files) -> None:
    """Add `llms.txt`: every page of the navigation with its first sentence."""
    del env
    parts = [f"# {config.site_name}\n\n> {config.site_description}.\n", *_list_pages(config.nav or [], files, "Start")]
    files.append(File.generated(config, LISTING, content="".join(parts)))


def _list_pages(entries: list[Any], files: Files, section: str) -> Iterator[str]:
    """Yield the lines of a section's own pages, then those of the sections in it."""
    pages = [page for entry in entries if isinstance(entry, str) and (page := _page(files, entry)) is not None]
    if pages:
        yield f"\n## {section}\n\n"
        yield from (f"- [{page.title}]({page.file.src_uri}): {_first_sentence(page)}\n" for page in pages)
    for entry in entries:
        if isinstance(entry, dict):
            ((title, children),) = entry.items()
            yield from _list_pages(children, files, title if section == "Start" else f"{section}: {title}")


def _page(files: Files, place: str) -> Page | None:
    file = files.get_file_from_path(place)
    return file.page if file else None


def _first_sentence(page: Page) -> str:
    """Return the first sentence of a page's first paragraph of prose, without its links."""
    paragraphs = _FENCE.sub("", page.markdown or "").split("\n\n")
    prose = next((one for one in paragraphs if not re.match(r"[#|<!>{-]", one)), "")
    plain = _LINK.sub("", " ".join(prose.split())).replace("[", "")
    return re.split(r"(?<=[.])\s", plain)[0].rstrip(":;")


def _gallery(docs: Path) -> str:
    """Return the screenshots of the console, each as bright as the page that it is on."""
    names = sorted({path.stem.removesuffix("-light") for path in docs.glob("screenshots/*-light.png")})
    return "\n".join(
        f"![{name}](../screenshots/{name}-{shade}.png#only-{shade})" for name in names for shade in ("light", "dark")
    )


def source_path(place: str) -> Path:
    """Return the file of the repository that is at a place of the site."""
    return ROOT / (place.removeprefix(f"{FOLDER}/") if place.startswith(f"{FOLDER}/") else f"docs/{place}")


def _rewrite_links(prose: str, origin: Path, here: str) -> str:
    def lead(link: re.Match[str]) -> str:
        start, target, anchor, end = link.groups()
        path = resolve(target, origin)
        if path is None or not path.exists():
            return link[0]
        return f"{start}{posixpath.relpath(site_path(path), here or '.')}{anchor or ''}{end}"

    return _LINK.sub(lead, prose)


def _diagram_to_table(fence: str) -> str:
    """Write a diagram of states as a table: what draws it on GitHub is a script of megabytes from elsewhere."""
    if not fence.startswith("```mermaid"):
        return fence
    ends = {"[*]": "(outside)"}
    rows = [f"| {ends.get(a, a)} | {ends.get(b, b)} | {text or ''} |\n" for a, b, text in _TRANSITION.findall(fence)]
    return "".join(["| from | to | when |\n|---|---|---|\n", *rows])


def on_post_page(output: str, *, page: Page, config: MkDocsConfig) -> str:
    """Let a page fetch nothing from elsewhere, and write it as Markdown beside its HTML."""
    place = Path(config.site_dir, page.file.src_uri)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(page.markdown or "", encoding="utf-8")
    return output.replace(_REMOTE_SCRIPT, posixpath.relpath(SEARCH, posixpath.dirname(page.file.dest_uri) or "."))


def on_post_template(output_content: str, *, template_name: str, config: MkDocsConfig) -> str:
    """Do the same for the page that says that there is no such page."""
    del template_name, config
    return output_content.replace(_REMOTE_SCRIPT, f"/{SEARCH}")
