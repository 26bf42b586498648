"""Finds the source of a path, and guesses for which source a request to another path was meant."""

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Final, Generic, TypeVar
from urllib.parse import unquote

SOURCE_PREFIX: Final = "/in/"
API_PREFIX: Final = "/api/"
OWN_PATHS: Final = (API_PREFIX, "/console/", "/portal/")
_MAX_COMPARED: Final = 200
"""Maximum characters of a path, and number of paths, that are compared for similarity."""
_MAX_SHOWN: Final = 2_000
_SLASHES: Final = re.compile(r"//+")
_TOKEN: Final = re.compile(r"[^/A-Za-z_.-]|[^/]{21}")
"""What a word has not: other characters, or more than twenty."""

T = TypeVar("T")


def mask_path(path: str) -> str:
    """Return *path* without the segments that may be secrets: long ones, and those with other characters than words."""
    return "/".join("..." if _TOKEN.search(segment) else segment for segment in path[:_MAX_SHOWN].split("/"))


def mask_query(query: str) -> str:
    """Return *query* without its values, and without the names that may be secrets."""
    names = (part.partition("=")[0] for part in query[:_MAX_SHOWN].split("&"))
    return "&".join("..." if _TOKEN.search(name) else f"{name}=..." for name in names) if query else ""


class SourcePaths(Generic[T]):
    """The paths of all sources.

    A path with a slash too many or too few at its end is the same path, unless it belongs to another source.

    Args:
        by_path: what listens at each path.
        names: the sources' names by path.
    """

    def __init__(self, by_path: Mapping[str, T], names: Mapping[str, str]) -> None:
        self._by_path = {_other_form(path): value for path, value in by_path.items() if path != "/"} | dict(by_path)
        self.find = self._by_path.get
        """Returns what listens at a path, or None."""
        self._names = {**{_other_form(path): name for path, name in names.items()}, **names}
        self._paths = {_normalize(path): path for path in sorted(names, reverse=True)}
        self._folders = {_folder(path) for path in self._paths} - {""}
        self._own = {name.casefold(): name for name in names.values()}

    def is_meant(self, path: str) -> bool:
        """Return whether a request to *path*, where no source listens, was probably meant for a source.

        It is if the path is below the path of a source or in the same folder, differs from one only in its spelling, or
        ends with the name of a source. Other paths are those of scanners and of other applications.
        """
        if path.startswith(SOURCE_PREFIX):
            return True
        if path.startswith(OWN_PATHS):
            return False
        normal = _normalize(path)
        if normal in self._paths or normal.rpartition("/")[2] in self._own:
            return True
        folder = _folder(normal)
        while folder:
            if folder in self._folders or folder in self._paths:
                return True
            folder = _folder(folder)
        return False

    def explain(self, path: str) -> str | None:
        """Return the path that was probably meant, and the mistake; None without a guess. For operators only."""
        normal = _normalize(path)
        if normal in self._paths:
            return f"{_mistake(path)}; did you mean {self._show(normal)}"
        ending = normal.rpartition("/")[2]
        if ending in self._own:
            return f"did you mean {SOURCE_PREFIX}{self._own[ending]}"
        folder = _folder(normal)
        while folder:
            if folder in self._paths:
                return f"it is below a source's path; did you mean {self._show(folder)}"
            folder = _folder(folder)
        similar = get_close_matches(normal[:_MAX_COMPARED], list(self._paths)[:_MAX_COMPARED], n=1)
        return f"did you mean {self._show(similar[0])}" if similar else None

    def _show(self, normal: str) -> str:
        """Return the path of a source; one that may hold a secret is replaced by the source's name."""
        path = self._paths[normal]
        name = self._names[path]
        return path if path == f"{SOURCE_PREFIX}{name}" or mask_path(path) == path else f"a path of source {name}"


def _other_form(path: str) -> str:
    return path[:-1] if path.endswith("/") else f"{path}/"


def _normalize(path: str) -> str:
    """Return *path* without the differences of spelling that people and templates make."""
    path = re.split(r"[?#&]", unquote(path[:_MAX_SHOWN]), maxsplit=1)[0]
    return _SLASHES.sub("/", "/" + path.strip().strip("'\"<>.,;").strip("/")).casefold().rstrip("/ ")


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


def _mistake(path: str) -> str:
    """Return the difference between *path* and that of a source, to which it is normalized."""
    if "//" in path:
        return "double slash"
    if path.endswith("/"):
        return "trailing slash"
    if any(mark in path for mark in "?#&"):
        return "the query is part of the path"
    return "upper case" if path != path.casefold() else "other characters around the path"
