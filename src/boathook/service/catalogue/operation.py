"""An operation: an action of operators or API users, declared once, from which every interface derives its own.

A module of this package declares the operations of one noun::

    @operation("key.revoke", Permission.KEY_MANAGE, Scope.DEPLOYMENT, Http("POST", "/key/{id}/revoke"), tag="API Key",
        undo=None, says="{id} revoked; requests with it are rejected from now on")
    async def revoke(work: UnitOfWork, named: KeyNamed) -> KeyRevoked:
        \"\"\"Revoke a key immediately.\"\"\"

The result is an `Operation`. Calling it, `revoke(work, KeyNamed(id=...))`, first checks the caller of the unit of work
and the fields of the input; there is no other way to the body.
"""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from enum import StrEnum
from typing import Any, Final, Generic, TypeVar, cast

import msgspec

from boathook.domain import ids
from boathook.domain.errors import InvalidValue, NotAllowed, NotFound
from boathook.service.access.authorization import Permission
from boathook.service.fields import Field, check, fields_of
from boathook.service.unit_of_work import UnitOfWork

In = TypeVar("In", bound=msgspec.Struct)
Out = TypeVar("Out", bound=msgspec.Struct)
OpenWork = Callable[[], AbstractAsyncContextManager[UnitOfWork]]
Body = Callable[[UnitOfWork, In], Awaitable[Out]]


class Scope(StrEnum):
    """The rows that an operation may reach, and so the widest caller that it needs."""

    APPLICATION = "application"
    """Those of one application: a key of that application may run it."""
    ORGANIZATION = "organization"
    """Those of one organization: its keys may run it; operators run it on all organizations."""
    DEPLOYMENT = "deployment"
    """Those of the whole deployment: only operators may run it, no organization's key."""


class Http(msgspec.Struct, frozen=True):
    """The route of an operation in the API."""

    method: str
    path: str
    """Below /api/v1, with fields of the input in braces; the others are in the query of a GET, else in the body.

    It may end with a query that is the same for all requests.
    """
    status: int = 200
    """The status of a success."""
    id: str = ""
    """The operation's id in the OpenAPI document; by default ``v1.`` and its name."""
    is_derived: bool = True
    """Whether the route derives from the operation; else one of this method and path, which calls it, is written by
    hand in `api`, as its request or its response has a form of its own."""
    body: Mapping[str, Any] = {}
    """Fields of the body that are the same for all requests."""


class Operation(Generic[In, Out]):
    """One operation."""

    def __init__(
        self,
        name: str,
        body: Body[In, Out],
        *,
        input: type[In],
        result: type[Out],
        permission: Permission,
        scope: Scope,
        http: Http | None,
        tag: str,
        undo: str | None,
        says: str,
        warns: str,
        must_confirm: bool,
        secret: str,
        must_type: str = "",
        examples: Sequence[str],
        selection: Any = None,
    ) -> None:
        self.name: Final = name
        """Its noun and verb, such as ``key.revoke``: also its action in the audit."""
        self.input: Final = input
        self.result: Final = result
        self.permission: Final = permission
        self.scope: Final = scope
        self.http: Final = http
        """Its route; None if it has none, and then `EXEMPT` of the guard says why."""
        self.tag: Final = tag
        """The noun as the API's documentation names it."""
        self.undo: Final = undo
        """How to undo it; empty: there is nothing to undo, as it only reads; None: it cannot be undone."""
        self.says: Final = says
        """What a person reads after it, with fields of the result in braces; empty: the result itself."""
        self.warns: Final = warns
        """What it is about to do, for the question before it, with fields of the input in braces; empty: none."""
        self.must_confirm: Final = must_confirm
        """Whether the command line asks too, or needs ``--yes``; the console asks whenever there is a question."""
        self.must_type: Final = must_type
        """The word that a person types on a page to confirm it; empty: none."""
        self.secret: Final = secret
        """The field of the result that is shown once and never stored; empty: none."""
        self.examples: Final = tuple(examples)
        """Examples for the command line."""
        self.selection: Final = selection
        """How it selects its objects, with `run` and `drive`; None: by the fields of its input alone."""
        self.help: Final = " ".join((body.__doc__ or "").split("\n\n")[0].split())
        """The first paragraph of the body's docstring."""
        self.detail: Final = "\n\n".join(" ".join(part.split()) for part in (body.__doc__ or "").split("\n\n")[1:])
        """The other paragraphs."""
        self._body = body

    def __repr__(self) -> str:
        return f"<operation {self.name}>"

    async def __call__(self, work: UnitOfWork, input: In) -> Out:
        """Run it in the transaction of *work*.

        Raises:
            NotAllowed: the caller lacks the permission, or may not reach the rows of the operation's scope.
            InvalidValue: a field of the input breaks its rule; names the field.
            BoathookError: as its body raises.
        """
        self.check_caller(work)
        self.check_input(input)
        return await self._body(work, input)

    async def drive(self, open_work: OpenWork, input: In) -> AsyncIterator[Out]:
        """Act on all that *input* selects in batches, one transaction each; yield what is done after each.

        Raises: as a call does.
        """
        check(input)

        @contextlib.asynccontextmanager
        async def checked() -> AsyncIterator[UnitOfWork]:
            async with open_work() as work:
                self.check_caller(work)
                yield work

        async for result in self.selection.drive(checked, input):
            yield result

    def check_input(self, input: In) -> None:
        """Check the fields of an input.

        Raises:
            InvalidValue: a field breaks its rule; names the field.
            NotFound: what cannot be an id or a uid names an object in the path of a route that is written by hand.
        """
        try:
            check(input)
        except InvalidValue as error:
            fields = {field.public_name: field for field in self.fields if field.rule.prefix}
            field = fields.get(str(error.where[0])) if error.where else None
            if field is None or self.http is None or self.http.is_derived or f"{{{field.name}}}" not in self.http.path:
                raise
            raise NotFound(f"there is no {ids.NOUNS[field.rule.prefix]} {getattr(input, field.name)}") from error

    def check_caller(self, work: UnitOfWork) -> None:
        """Raise NotAllowed unless the caller of a unit of work may run it."""
        caller = work.caller
        if not caller.may(self.permission):
            raise NotAllowed(f"{self.name} needs the permission {self.permission}")
        if self.scope is Scope.DEPLOYMENT and caller.tenant is not None:
            raise NotAllowed(f"{self.name} acts on the whole deployment, which a key of one organization may not do")
        if caller.tenant not in {None, work.organization}:
            raise NotAllowed("a key of one organization may not act on another")
        if self.scope is not Scope.APPLICATION and caller.application_id is not None:
            raise NotAllowed(f"{self.name} acts beyond one application, which a key of one application may not do")

    @property
    def fields(self) -> Sequence[Field]:
        """The fields of the input."""
        return fields_of(self.input)

    @property
    def result_fields(self) -> Sequence[Field]:
        """The fields of the result."""
        return fields_of(self.result)

    @property
    def noun(self) -> str:
        """The noun of its name, which is also its module in this package."""
        return self.name.partition(".")[0]

    @property
    def is_read(self) -> bool:
        """Whether it only reads."""
        return self.undo == ""


def operation(
    name: str,
    permission: Permission,
    scope: Scope,
    http: Http | None,
    *,
    tag: str,
    undo: str | None = "",
    says: str = "",
    warns: str = "",
    must_confirm: bool = False,
    must_type: str = "",
    secret: str = "",
    examples: Sequence[str] = (),
) -> Callable[[Body[In, Out]], Operation[In, Out]]:
    """Declare the decorated function, ``(work, input) -> result``, as an operation; see `Operation` for the words."""

    def declare(body: Body[In, Out]) -> Operation[In, Out]:
        *_, input_type, result_type = cast("Any", body).__annotations__.values()
        return Operation(
            name, body, input=input_type, result=result_type, permission=permission, scope=scope, http=http, tag=tag,
            undo=undo, says=says, warns=warns, must_confirm=must_confirm, must_type=must_type, secret=secret,
            examples=examples,
        )  # fmt: skip

    return declare
