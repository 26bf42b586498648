"""Which pages of the console are visited, found by following its links, and the hardest questions asked of each."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final
from urllib.parse import urlsplit

from starlette.routing import compile_path

from benchmarks.history import NEEDLE
from benchmarks.page_client import PageClient
from boathook.domain.errors import ConfigError
from boathook.service.access.portal_sessions import PATH
from boathook_console.areas import AREAS
from boathook_console.routes import BASE
from boathook_portal.pages import all_pages

STREAMING_PAGES: Final = frozenset({f"{BASE}/overview/live"})
"""A response that lasts until the client disconnects, and a file of ten thousand events."""
NO_MATCH: Final = "there-is-no-such-text"
_EVENT_QUERIES: Final = (
    "source=rare", "type=invoice.paid", "type=no.such", "application=tenant-99", "state=dead", "state=pending",
    "state=leased", "state=ignored", "key=evt-77", "q=evt-77", f"q={NO_MATCH}", f"text={NO_MATCH}", f"text={NEEDLE}",
    "until=26d", f"source=rare&text={NO_MATCH}&since=28d", f"application=tenant-99&state=dead&text={NO_MATCH}",
    "since=27d&until=26d&state=dead", "since=1h", f"where=object.id%3D{NO_MATCH}", f"q=object.id%3D{NO_MATCH}&since=7d",
)  # fmt: skip
_LIST_QUERIES: Final = ("result=failed", "answer=4xx", "type=no.such", "result=failed&type=no.such")
QUERIES: Final[Mapping[str, tuple[str, ...]]] = {
    BASE: ("span=day", "span=week"),
    f"{BASE}/overview/charts": ("span=hour", "span=day", "span=week"),
    f"{BASE}/events": _EVENT_QUERIES,
    f"{BASE}/events/replay": ("source=stripe", f"text={NO_MATCH}", "state=dead"),
    f"{BASE}/events/tail": (f"text={NO_MATCH}", "source=rare"),
    f"{BASE}/events/suggestions/{{field}}": ("type=paid",),
    f"{BASE}/events/{{id}}": ("view=raw", "view=hex"),
    f"{BASE}/conflicts": ("source=rare", "application=tenant-99"),
    f"{BASE}/conflicts/requests": ("source=rare", "application=tenant-99", "until=26d", "source=stripe&differs=body"),
    f"{BASE}/conflicts/{{id}}": ("view=unified",),
    f"{BASE}/dead": ("code=TIMEOUT", "recipient=handler:push", "code=NONE"),
    f"{BASE}/dead/letters": ("code=TIMEOUT", "recipient=handler:push", "code=NONE", "type=no.such", "source=rare",
                               "until=26d"),
    f"{BASE}/rejections": ("source=rare", "reason=too_large"),
    f"{BASE}/rejections/requests": ("source=rare", "reason=too_large", "state=accepted", "until=26d",
                                    "source=stripe&reason=signature_mismatch"),
    f"{BASE}/audit": ("actor=nobody", "action=event.replay", "subject=nothing", "until=26d", "actor=nobody&since=27d"),
    f"{BASE}/applications": ("q=tenant-9", f"q={NO_MATCH}"),
    f"{BASE}/event-types": ("archived=yes", "after=order.made2"),
    **{
        f"{base}{path}": queries
        for base in (f"{BASE}/applications/{{application}}", PATH)
        for path, queries in {
            "/endpoints/{endpoint}": ("span=week",),
            "/endpoints/{endpoint}/attempts": _LIST_QUERIES,
            "/messages": ("type=no.such", "channel=none", "type=no.such&channel=none"),
        }.items()
    },
}  # fmt: skip
"""Queries for a page besides none: for rare, for old and for missing data."""


def console_pages() -> list[str]:
    """Return the paths of all pages of the console, with parameters in braces."""
    return [f"{BASE}{entry.path}" for area in AREAS for entry in area.entries if entry.method == "GET"]


def portal_pages() -> list[str]:
    """Return the paths of all pages of the portal."""
    return [f"{PATH}{page.path}" for page in all_pages() if page.method == "GET"]


class Crawler:
    """One address for each page that can be reached by links.

    Args:
        paths: of the pages, with parameters in braces; where two fit an address, the first counts, as on the server.
    """

    def __init__(self, paths: Iterable[str]) -> None:
        self._shapes = {path: compile_path(path)[0] for path in paths}
        self._waiting: list[str] = []
        self.found: dict[str, str] = {}
        """Addresses by path."""

    def follow(self, page_client: PageClient, *starts: str) -> None:
        """Follow links from these addresses on; the first address of a kind is the one that is kept.

        Raises:
            ConfigError: a link leads nowhere.
        """
        for start in starts:
            self._keep(start)
        while self._waiting:
            address = self._waiting.pop(0)
            answer = page_client.get(address)
            if answer.status >= 400:
                raise ConfigError(f"a link leads to {address}, which is answered {answer.status}")
            for link in answer.links:
                self._keep(link)

    def _keep(self, address: str) -> None:
        shape = self.path_of(address)
        if shape is not None and shape not in self.found and shape not in STREAMING_PAGES:
            self.found[shape] = address
            self._waiting.append(address)

    def path_of(self, address: str) -> str | None:
        """Return the path that an address fits; None where it is none of these pages."""
        plain = urlsplit(address).path
        return next((path for path, shape in self._shapes.items() if shape.match(plain)), None)

    @property
    def missing(self) -> list[str]:
        """Paths that nothing led to."""
        return [path for path in self._shapes if path not in self.found and path not in STREAMING_PAGES]

    def queries(self) -> Iterator[str]:
        """Yield every address that is to be visited: each page as it is, and with each of its questions."""
        for path, address in self.found.items():
            yield address
            plain = address.partition("?")[0]
            yield from (f"{plain}?{question}" for question in QUERIES.get(path, ()))
