"""A browser without rendering: it keeps cookies, fills in forms, follows links, and measures time."""

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import unescape
from http.client import HTTPConnection  # noqa: TID251 - it visits the benchmark's own server
from typing import Final, Self
from urllib.parse import urlencode

from boathook.domain.errors import ConfigError

_LINK: Final = re.compile(r'(?:href|action|hx-get)="(/[^"#]*)')
_TOKEN: Final = re.compile(r'name="csrf" value="([^"]+)"')
_TIMEOUT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class PageResponse:
    """The result of one request."""

    status: int
    ms: float
    """From the request's first byte to the answer's last."""
    body: bytes
    location: str

    @property
    def links(self) -> Iterator[str]:
        """The addresses on the same server that the page names."""
        return (unescape(found) for found in _LINK.findall(self.body.decode("utf-8", "replace")))


class PageClient:
    """A browser session: one kept-alive connection and its cookies."""

    def __init__(self, port: int) -> None:
        self._origin = f"http://127.0.0.1:{port}"
        self._connection = HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)
        self._cookies: dict[str, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def get(self, path: str) -> PageResponse:
        """Ask for a page."""
        return self._ask("GET", path, b"", {})

    def post(self, path: str, body: bytes, headers: dict[str, str]) -> PageResponse:
        """Send bytes, as machines do."""
        return self._ask("POST", path, body, headers)

    def send(self, path: str, **fields: str | Sequence[str]) -> PageResponse:
        """Send a form.

        Raises:
            ConfigError: it was refused.
        """
        headers = {"content-type": "application/x-www-form-urlencoded", "origin": self._origin}
        answer = self._ask("POST", path, urlencode(fields, doseq=True).encode(), headers)
        if answer.status >= 400:
            raise ConfigError(f"the form of {path} was refused with {answer.status}: {_page_text(answer)}")
        return answer

    def submit_form(self, page: str, path: str, **fields: str | Sequence[str]) -> PageResponse:
        """Send a form that stands on a page, with the page's token."""
        found = _TOKEN.search(self.get(page).body.decode("utf-8", "replace"))
        if found is None:
            raise ConfigError(f"{page} has no form")
        return self.send(path, csrf=found[1], **fields)

    def _ask(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> PageResponse:
        cookies = "; ".join(f"{name}={value}" for name, value in self._cookies.items())
        began = time.perf_counter()
        self._connection.request(method, path, body or None, {"accept": "text/html", "cookie": cookies, **headers})
        response = self._connection.getresponse()
        content = response.read()
        took = time.perf_counter() - began
        for line in response.headers.get_all("set-cookie") or []:
            name, _, value = line.partition(";")[0].partition("=")
            self._cookies[name] = value
        return PageResponse(response.status, took * 1e3, content, response.headers.get("location", ""))


def _page_text(answer: PageResponse) -> str:
    """Return what a page says, without its marks."""
    main = re.search(rb"<main.*?</main>", answer.body, re.DOTALL)
    return " ".join(re.sub(r"<[^>]*>", " ", (main[0] if main else answer.body).decode("utf-8", "replace")).split())[
        :500
    ]
