"""How a route is written: what it is given, and the transaction around it.

Each router is made by `router(tag)`. A route names the permission it needs, and `boathook.service.authorization` knows
who has it. Its first parameter is the call under way: its transaction, who calls, and the application of the path::

    @routes.get("/app/{app_id}/thing", operation_id="v1.thing.list", summary="List things")
    @requires(Permission.THING_VIEW)
    async def list_things(call: ApplicationCall, page: IdPage) -> ListOf[ThingOut]: ...

    AnyCall            the call alone
    ApplicationCall    ``{app_id}`` is in the path and `call.application` is found; a token of another application is
                       answered 404

Around the route (`ApiRoute`), in this order: the body is read with a cap, a connection is taken, the token is looked up
and refused with 403 where it lacks the permission, the body parsed as JSON whatever its type is said to be, the
idempotency key of a POST claimed, then FastAPI does the rest.
Requests other than GET are one transaction, `call.work`, committed before the answer goes out, and on a
synchronous standby where there is one, even if they have changed nothing; whatever is raised rolls all of it back and
becomes JSON by `errors.to_response`. Raise domain errors (`NotFound`, `InvalidValue`, `AlreadyExists`, ...) or
`ApiError`; never return an error. A route with `Permission.PUBLIC` needs no token and gets no connection;
`@remembers_itself` keeps `call.idempotency` by means of its own. `body_of(request)` returns the body's exact bytes.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Final, TypeVar, cast

import msgspec
from fastapi import APIRouter, Depends, Path, Security
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope

from boathook.api.auth import authenticate, forbidden
from boathook.api.errors import RESPONSES, ApiError, invalid, not_found, to_response
from boathook.api.idempotency import RequestCanonicalizer, read_key, run_once
from boathook.http.asgi import IS_AUTHENTICATED
from boathook.service import applications
from boathook.service.applications import Application
from boathook.service.authorization import ACCESS_RULES, Principal, permission_of
from boathook.service.idempotency import IdempotencyKey
from boathook.service.schemas.fields import ignored_fields
from boathook.service.unit_of_work import AppContext, UnitOfWork

Route = TypeVar("Route", bound=Callable[..., Any])
IGNORED: Final = "boathook-ignored"
"""The header that names fields of the body that no one knows."""
_READ_METHODS: Final = frozenset({"GET", "HEAD"})
_LARGE_BODY: Final = 65_536
"""Bytes of a body from which on it is compared with another in a thread, as that may take a tenth of a second."""
_DISPLAY_PARAMS: Final = frozenset({"with_content"})
"""Query parameters that choose what of the effect is shown, and not what it is."""


@dataclass(slots=True)
class Call:
    """One request with a valid token."""

    work: UnitOfWork
    """The transaction, for actions; a connection alone where the request only reads."""
    principal: Principal
    idempotency: IdempotencyKey | None
    """The key of a POST that brings one."""
    found: Application | None = None

    @property
    def application(self) -> Application:
        """The application that the path names."""
        assert self.found is not None, "the route declares no ApplicationCall"
        return self.found


def remembers_itself(route: Route) -> Route:
    """Leave the idempotency keys of a route's requests to the route."""
    cast("Any", route).remembers_itself = True
    return route


class _ApiRequest(Request):
    """A request whose body was read, and is JSON whatever its content type says."""

    def __init__(self, scope: Scope, receive: Receive, raw: bytes) -> None:
        others = [header for header in scope["headers"] if header[0] != b"content-type"]
        super().__init__({**scope, "headers": [*others, (b"content-type", b"application/json")]}, receive)
        self._raw = raw
        self.document: Any = None

    async def body(self) -> bytes:
        return self._raw

    async def json(self) -> Any:
        return self.document


async def body_of(request: Request) -> bytes:
    """Return the body's bytes exactly as they came; none where there is only white space."""
    return await request.body()


class ApiRoute(APIRoute):
    """A route with a transaction around it."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        self._permission = permission_of(endpoint)
        super().__init__(path, endpoint, **options)

    @cached_property
    def _canonicalizer(self) -> RequestCanonicalizer:
        query = {field.alias: field for field in self.dependant.query_params if field.alias not in _DISPLAY_PARAMS}
        return RequestCanonicalizer(query, self.body_field)

    def get_route_handler(self) -> Callable[[Request], Awaitable[Response]]:  # type: ignore[override]
        """Return what answers a request."""
        inner = super().get_route_handler()

        async def handle(request: Request) -> Response:
            try:
                return await self._answer(request, inner)
            except Exception as error:  # noqa: BLE001 - every answer is JSON
                return await _error_response(request, error)

        return handle

    async def _answer(self, request: Request, inner: Callable[[Request], Awaitable[Response]]) -> Response:
        app_context: AppContext = request.state.app_context
        raw = await _read_body(request, app_context.settings.outbound.max_message)
        whole = _ApiRequest(request.scope, request.receive, raw)
        if ACCESS_RULES[self._permission].is_public:
            return await inner(whole)
        published = app_context.outbox.published
        answer = await self._act(request, whole, raw, inner)
        if app_context.outbox.published != published:
            app_context.notify_due()
        return answer

    async def _act(
        self, request: Request, whole: _ApiRequest, raw: bytes, inner: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        app_context: AppContext = request.state.app_context
        is_read = request.method in _READ_METHODS
        async with app_context.reading() if is_read else app_context.writing() as connection:
            principal = await authenticate(connection, request.headers)
            request.scope[IS_AUTHENTICATED] = True
            if not principal.may(self._permission):
                raise forbidden()
            # Not before: parsed, a body may take thirty times its size, and only as many as there are connections do.
            whole.document = _read_json(raw) if raw and self.body_field is not None else None
            key = await self._read_key(request, principal, raw)
            work = UnitOfWork(app_context, connection, principal.organization, principal.actor)
            whole.state.call = Call(work, principal, key)
            remembers_itself = getattr(self.endpoint, "remembers_itself", False)
            if key is None or remembers_itself:
                answer = await inner(whole)
            else:
                answer = await run_once(work, key, lambda: inner(whole))
            if not is_read and not remembers_itself:
                await work.replicate_reads()
        return self._reporting(answer, whole.document)

    def _reporting(self, answer: Response, document: Any) -> Response:
        """Name in an answer what of the request's body was ignored."""
        names = [] if self.body_field is None else ignored_fields(self.body_field.field_info.annotation, document)
        if names:
            answer.headers[IGNORED] = ", ".join(names)
        return answer

    async def _read_key(self, request: Request, principal: Principal, raw: bytes) -> IdempotencyKey | None:
        if request.method != "POST":
            return None
        if len(raw) < _LARGE_BODY:
            return read_key(request, principal, raw, self._canonicalizer)
        return await asyncio.to_thread(read_key, request, principal, raw, self._canonicalizer)


async def _error_response(request: Request, error: Exception) -> Response:
    """Answer an error. That something is there already is said no sooner than a synchronous standby has it as well."""
    answer = to_response(error)
    if answer.status_code != 409 or request.method in _READ_METHODS:
        return answer
    try:
        await request.state.app_context.replicate_reads()
    except Exception as unsafe:  # noqa: BLE001 - every answer is JSON
        return to_response(unsafe)
    return answer


async def _read_body(request: Request, most: int) -> bytes:
    too_large = ApiError(413, "payload_too_large", f"a request has at most {most} bytes")
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > most:
        raise too_large
    body = bytearray()
    try:
        async for part in request.stream():
            body += part
            if len(body) > most:
                raise too_large
    except ClientDisconnect:
        raise ApiError(400, "generic_error", "the request body is incomplete") from None
    return bytes(body) if body.strip() else b""


def _read_json(raw: bytes) -> Any:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise invalid(f"not JSON: {error}", "body", kind="value_error.jsondecode") from None


_BEARER: Final = HTTPBearer(auto_error=False, scheme_name="HTTPBearer", description="A token from `boathook keys`.")


def _any_call(request: Request, _token: Annotated[object, Security(_BEARER)]) -> Call:
    return cast("Call", request.state.call)


AnyCall = Annotated[Call, Depends(_any_call)]


ApplicationRef = Annotated[
    str, Path(description="The application's id or uid.", examples=["app_01h455vb4pex5vsknk084sn02q4", "acme"])
]


async def _application_call(call: AnyCall, app_id: ApplicationRef) -> Call:
    application = await applications.get(call.work, app_id)
    if call.principal.application_id not in {None, application.id}:
        raise not_found()
    call.found = application
    return call


ApplicationCall = Annotated[Call, Depends(_application_call)]


def router(tag: str) -> APIRouter:
    """Return a router below /api/v1 whose routes are `ApiRoute` and whose errors are documented."""
    return APIRouter(prefix="/api/v1", tags=[tag], route_class=ApiRoute, responses=RESPONSES)
