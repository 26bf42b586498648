"""A request to a page of an app."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from pydantic import BaseModel
from starlette.datastructures import FormData, QueryParams
from starlette.requests import Request
from starlette.responses import Response

from boathook.handlers.transaction import Transaction
from boathook_pages.kit.forms import read_model
from boathook_pages.languages import Languages

Model = TypeVar("Model", bound=BaseModel)


class SignedInUser(Protocol):
    """What pages need to know of a user."""

    @property
    def name(self) -> str:
        """The displayed name."""
        ...

    @property
    def language(self) -> str | None:
        """The user's own choice of a language."""
        ...

    def has_role(self, role: str | None) -> bool:
        """Return whether the user has a role; no role means every user."""
        ...


class AppPages(Protocol):
    """What a request needs of `boathook_pages.Pages`."""

    languages: Languages

    def render(
        self, request: Request, template: str, status: int = 200, *, user: Any = None, session: str = "", **values: Any
    ) -> Response:
        """Return a page as a response."""
        ...

    def redirect(self, request: Request, path: str, notice: str = "", kind: str = "good") -> Response:
        """Redirect the browser to a path in the mount."""
        ...

    def delete_cookie(self, response: Response, name: str) -> None:
        """Delete a cookie of the pages."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRequest:
    """A request, in a transaction that is committed before the response is sent, and rolled back on an error."""

    pages: AppPages
    request: Request
    tx: Transaction
    user: Any
    """The signed-in user; None on a public page without one."""
    form: FormData
    """The fields of a form whose origin and CSRF token are valid; empty for a GET request."""
    session: str = field(repr=False)
    """The token of the browser's session; empty without one."""

    @property
    def query(self) -> QueryParams:
        """The query parameters."""
        return self.request.query_params

    @property
    def path(self) -> Mapping[str, Any]:
        """The path parameters."""
        return self.request.path_params

    @property
    def is_post(self) -> bool:
        """Whether it is a form."""
        return self.request.method == "POST"

    def field(self, name: str) -> str:
        """Return a field of the form; empty if it is missing."""
        return str(self.form.get(name, ""))

    def read(self, model: type[Model], fields: Mapping[str, Any] | None = None) -> Model:
        """Validate *fields*, by default those of the form, and return the model. Raises InvalidForm."""
        submitted = {name: value for name, value in self.form.items() if name != "csrf"} if fields is None else fields
        return read_model(model, submitted, self.pages.languages)

    def page(self, template: str, status: int = 200, **values: Any) -> Response:
        """Render a template of the app."""
        return self.pages.render(self.request, template, status, user=self.user, session=self.session, **values)

    def redirect(self, path: str, notice: str = "", kind: str = "good") -> Response:
        """Redirect the browser to another page of the app, which shows a notice.

        Args:
            path: the path in the mount, such as ``/bookings/5``.
            notice: one sentence.
            kind: ``good``, or ``bad`` for a failure.
        """
        return self.pages.redirect(self.request, path, notice, kind)
