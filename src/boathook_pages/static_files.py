"""Static files of pages: read once, and cached by browsers under the hash of their content."""

import functools
import hashlib
import mimetypes
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

KIT_FOLDER: Final = Path(__file__).parent
"""The folder of the templates and static files that apps' pages use."""
_SVG: Final = "image/svg+xml"
# An SVG file is a document: opened by itself, its scripts would run with the rights of a page.
_IMAGE_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; sandbox"
mimetypes.add_type("font/woff2", ".woff2")  # Python's own table has it since 3.13


class StaticFile(msgspec.Struct, frozen=True):
    """A static file."""

    content: bytes
    kind: str
    """The media type."""
    version: str
    """The hash of the content."""

    @classmethod
    def read(cls, path: Path) -> "StaticFile":
        """Read a file; its name says the media type."""
        return cls.of(path.read_bytes(), mimetypes.guess_type(path.name)[0] or "application/octet-stream")

    @classmethod
    def of(cls, content: bytes, kind: str) -> "StaticFile":
        """Return a file with this content."""
        return cls(content, kind, hashlib.sha256(content).hexdigest()[:16])


class StaticFiles:
    """Serves files by their names.

    Args:
        files: the files by their paths below *base*.
        base: the URL of the files.
    """

    def __init__(self, files: Mapping[str, StaticFile], base: str) -> None:
        self._files = files
        self._base = base

    def url(self, name: str) -> str:
        """Return the URL of a file, which contains the hash of its content."""
        return f"{self._base}/{name}?v={self._files[name].version}"

    async def serve(self, request: Request) -> Response:
        """Serve the file that the path parameter ``path`` names; a URL with its hash can be cached forever."""
        file = self._files.get(request.path_params["path"])
        if file is None:
            return Response(status_code=404)
        is_named = request.query_params.get("v") == file.version
        cache_control = "public, max-age=31536000, immutable" if is_named else "no-cache"
        headers = {"cache-control": cache_control, "etag": f'"{file.version}"', "x-content-type-options": "nosniff"}
        if file.kind == _SVG:
            headers["content-security-policy"] = _IMAGE_POLICY
        if request.headers.get("if-none-match") == headers["etag"]:
            return Response(status_code=304, headers=headers)
        return Response(file.content, media_type=file.kind, headers=headers)


@functools.cache
def read_files(folder: Path) -> Mapping[str, StaticFile]:
    """Return the files of a folder by their relative paths; none if there is no such folder."""
    return {path.relative_to(folder).as_posix(): StaticFile.read(path) for path in folder.rglob("*") if path.is_file()}
