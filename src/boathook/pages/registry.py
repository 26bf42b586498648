"""Declares pages: each has a method, a path, the permission that it needs, and a handler of the request's context."""

from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import msgspec
from starlette.responses import Response

from boathook.service.authorization import Permission

Context = TypeVar("Context")
Handler = Callable[[Context], Awaitable[Response]]
Decorated = TypeVar("Decorated", bound=Callable[..., Awaitable[Response]])


class PageSpec(msgspec.Struct, Generic[Context], frozen=True):
    """A page, or the handler of a form."""

    method: str
    path: str
    permission: Permission
    handler: Handler[Context]


class PageRegistry(Generic[Context]):
    """The pages and forms of one area; the first match counts."""

    def __init__(self) -> None:
        self.entries: list[PageSpec[Context]] = []

    def get(self, path: str, permission: Permission) -> Callable[[Decorated], Decorated]:
        """Register a page."""
        return self._add("GET", path, permission)

    def post(self, path: str, permission: Permission) -> Callable[[Decorated], Decorated]:
        """Register the handler of a form."""
        return self._add("POST", path, permission)

    def _add(self, method: str, path: str, permission: Permission) -> Callable[[Decorated], Decorated]:
        def add(handler: Decorated) -> Decorated:
            self.entries.append(PageSpec(method, path, permission, handler))
            return handler

        return add
