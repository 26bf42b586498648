"""Defines how routes are written: their parameters, and the transaction around each request.

Each router is made by `router(tag)`. A route names the permission that it requires, and
`boathook.service.access.authorization` defines who has it. Its first parameter is the current call: the
transaction, the caller, and the application in the path::

    @routes.get("/app/{app_id}/thing", operation_id="v1.thing.list", summary="List things")
    @requires(Permission.THING_VIEW)
    async def list_things(call: ApplicationCall, page: IdPage) -> ListOf[ThingOut]: ...

    AnyCall            the call alone
    ApplicationCall    ``{app_id}`` is in the path and `call.application` is loaded; a token of another application
                       gets 404

`ApiRoute` handles a request in these steps: it reads the body up to a size limit, acquires a connection, and
authenticates the token, with 403 if it lacks the permission. It parses the body as JSON regardless of the content type,
and claims the idempotency key of a POST. FastAPI does the rest.

A route with `@works_without_database` is called again without a transaction if PostgreSQL is unavailable, and at once
if events wait in this gateway's buffer. `call.buffered` then publishes messages, and `call.work` raises.

Each request other than GET is one transaction, `call.work`. It is committed before the response is sent, and on a
synchronous standby if there is one, even without changes. Any exception rolls back the transaction and becomes JSON in
`errors.to_response`; other installations are queried for an application that is unknown here. Raise domain errors
(`NotFound`, `InvalidValue`, `AlreadyExists`, ...) or `ApiError`; never return an error. A route with
`Permission.PUBLIC` needs no token and gets no connection. A route with `@remembers_itself` stores `call.idempotency`
itself. `body_of(request)` returns the exact bytes of the body.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import cached_property
from typing import Annotated, Any, Final, TypeVar, cast
from uuid import UUID

import msgspec
from fastapi import APIRouter, Depends, Path, Security
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope

from boathook.api.authentication import authenticate, authenticate_buffered, forbidden
from boathook.api.errors import IGNORED, ApiError, invalid, not_found, to_response
from boathook.api.idempotency import CanonicalForm, RequestCanonicalizer, read_key, run_once
from boathook.domain.errors import DatabaseUnavailable, NotFound, ServedElsewhere
from boathook.domain.json_document import describe_fault
from boathook.domain.model import IdempotencyKey
from boathook.http.asgi import IS_AUTHENTICATED
from boathook.observability.log import OnceFilter, get_logger
from boathook.service.access.authorization import ACCESS_RULES, ApiCaller, Principal, permission_of
from boathook.service.catalogue.wire import CLIENT_HEADER, VERSION_HEADER, own_version
from boathook.service.schemas.fields import ignored_fields
from boathook.service.sending import applications
from boathook.service.sending.applications import Application
from boathook.service.sending.buffered_publisher import BufferedPublisher
from boathook.service.unit_of_work import AppContext, UnitOfWork, new_id

Route = TypeVar("Route", bound=Callable[..., Any])
Identifier = TypeVar("Identifier")
Inner = Callable[[Request], Awaitable[Response]]
"""Handles a request as FastAPI does."""
_READ_METHODS: Final = frozenset({"GET", "HEAD"})
_LARGE_BODY: Final = 65_536
"""Size in bytes from which bodies are canonicalized in a thread, as that may take a tenth of a second."""
_DISPLAY_PARAMS: Final = frozenset({"with_content"})
"""Query parameters that only select which fields of the result are shown."""
_MAX_LOGGED: Final = 100
"""How many lists of ignored fields an operation remembers, to log each once."""
_LOG = get_logger("api")


class Call(msgspec.Struct):
    """One authenticated request."""

    principal: ApiCaller
    idempotency: IdempotencyKey | None
    """The idempotency key of a POST, if it has one."""
    new_id: UUID
    """The id for what it creates; the same if the request is handled again without PostgreSQL."""
    transaction: UnitOfWork | None = None
    """See `work`; None if the request is handled without PostgreSQL."""
    buffered: BufferedPublisher | None = None
    """Publishes messages if the request is handled without PostgreSQL."""
    published: UUID | None = None
    """The message that the request has published in its transaction, or an earlier one with its key."""
    found: Application | None = None

    @property
    def work(self) -> UnitOfWork:
        """The transaction for actions; only a connection for requests that only read. Raises DatabaseUnavailable."""
        if self.transaction is None:
            raise DatabaseUnavailable("this request is handled without PostgreSQL")
        return self.transaction

    @property
    def application(self) -> Application:
        """The application in the path."""
        assert self.found is not None, "the route declares no ApplicationCall"
        return self.found


def remembers_itself(route: Route) -> Route:
    """Let a route store the idempotency keys of its requests itself."""
    cast("Any", route).remembers_itself = True
    return route


def works_without_database(route: Route) -> Route:
    """Let a route handle its requests while PostgreSQL is unavailable, with `Call.buffered`."""
    cast("Any", route).works_without_database = True
    return route


class _ApiRequest(Request):
    """A request with an already read body, parsed as JSON regardless of the content type."""

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
    """Return the raw bytes of the body; empty if it contains only white space."""
    return await request.body()


class ApiRoute(APIRoute):
    """A route with a transaction around it."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        self._permission = permission_of(endpoint)
        self._logged = OnceFilter(_MAX_LOGGED)
        super().__init__(path, endpoint, **options)

    @property
    def takes_body(self) -> bool:
        """Whether a request has a JSON body."""
        return self.body_field is not None

    def ignored(self, document: Any) -> list[str]:
        """Return the fields of a body that the route does not know."""
        return [] if self.body_field is None else ignored_fields(self.body_field.field_info.annotation, document)

    @cached_property
    def canonicalizer(self) -> CanonicalForm:
        """Brings requests into the form in which those with the same idempotency key are compared."""
        query = {field.alias: field for field in self.dependant.query_params if field.alias not in _DISPLAY_PARAMS}
        return RequestCanonicalizer(query, self.body_field)

    def get_route_handler(self) -> Callable[[Request], Awaitable[Response]]:  # type: ignore[override]
        """Return the function that handles a request; it tells the remote command line the server's version."""
        inner = super().get_route_handler()

        async def handle(request: Request) -> Response:
            try:
                response = await self._answer(request, inner)
            except Exception as error:  # noqa: BLE001 - every response is JSON
                response = await _error_response(request, error)
            if CLIENT_HEADER in request.headers and request.scope.get(IS_AUTHENTICATED):
                response.headers[VERSION_HEADER] = own_version()
            return response

        return handle

    async def _answer(self, request: Request, inner: Callable[[Request], Awaitable[Response]]) -> Response:
        app_context: AppContext = request.state.app_context
        raw = await _read_body(request, app_context.settings.outbound.max_message)
        whole = _ApiRequest(request.scope, request.receive, raw)
        if ACCESS_RULES[self._permission].is_public:
            return await inner(whole)
        with app_context.announcing():
            return await self._act(request, whole, raw, inner, new_id())

    async def _act(self, request: Request, whole: _ApiRequest, raw: bytes, inner: Inner, identifier: UUID) -> Response:
        buffered: BufferedPublisher | None = request.state.buffered
        if buffered is None or not getattr(self.endpoint, "works_without_database", False):
            return await self._act_in_transaction(request, whole, raw, inner, identifier)
        if not buffered.is_needed:
            try:
                answer = await self._act_in_transaction(request, whole, raw, inner, identifier)
            except DatabaseUnavailable as error:
                _LOG.debug("published_without_database", error=str(error))
            else:
                call: Call = whole.state.call
                if call.published is not None and call.idempotency is not None:
                    buffered.remember(call.idempotency, call.published)
                return answer
        async with buffered.parsing:
            principal = await authenticate_buffered(buffered, request.headers)
            whole.state.call = await self._call(request, whole, raw, principal, identifier)
            whole.state.call.buffered = buffered
            return self._reporting(await inner(whole), whole.document)

    async def _act_in_transaction(
        self, request: Request, whole: _ApiRequest, raw: bytes, inner: Inner, identifier: UUID
    ) -> Response:
        app_context: AppContext = request.state.app_context
        is_read = request.method in _READ_METHODS
        async with app_context.reading() if is_read else app_context.writing() as connection:
            principal = await authenticate(connection, request.headers, client_of(request))
            call = whole.state.call = await self._call(request, whole, raw, principal, identifier)
            work = call.transaction = UnitOfWork(
                app_context, connection, principal.organization, principal.actor, principal
            )
            remembers_itself = getattr(self.endpoint, "remembers_itself", False)
            if call.idempotency is None or remembers_itself:
                answer = await inner(whole)
            else:
                answer = await run_once(work, call.idempotency, lambda: inner(whole))
            if not is_read and not remembers_itself:
                await work.replicate_reads()
        return self._reporting(answer, whole.document)

    async def _call(
        self, request: Request, whole: _ApiRequest, raw: bytes, principal: ApiCaller, identifier: UUID
    ) -> Call:
        request.scope[IS_AUTHENTICATED] = True
        if not principal.may(self._permission):
            raise forbidden()
        # Parse only now: a parsed body can take thirty times its size in memory, and connections limit the number of
        # concurrent requests.
        whole.document = read_json(raw) if raw and self.takes_body else None
        return Call(principal, await self._read_key(request, principal, raw), identifier)

    def _reporting(self, answer: Response, document: Any) -> Response:
        """List the ignored fields of the request body in a response header."""
        if names := self.ignored(document):
            answer.headers[IGNORED] = ", ".join(names)
            # Clients' libraries do not show response headers.
            if self._logged.is_new(*names):
                _LOG.warning("fields_ignored", operation=self.operation_id, fields=", ".join(names))
        return answer

    async def _read_key(self, request: Request, principal: ApiCaller, raw: bytes) -> IdempotencyKey | None:
        if request.method != "POST":
            return None
        if len(raw) < _LARGE_BODY:
            return read_key(request, principal, raw, self.canonicalizer)
        return await asyncio.to_thread(read_key, request, principal, raw, self.canonicalizer)


async def _error_response(request: Request, error: Exception) -> Response:
    """Return the response for an error; a 409 waits until the existing object is on the synchronous standby too."""
    call: Call | None = getattr(request.state, "call", None)
    app_context: AppContext = request.state.app_context
    if isinstance(error, NotFound) and call is not None:
        error = await _find_elsewhere(app_context, request, call) or error
        if isinstance(error, NotFound) and CLIENT_HEADER in request.headers:
            error = ApiError(404, "not_found", str(error))
    answer = to_response(error, app_context.elsewhere)
    is_buffered = call is not None and call.buffered is not None
    if answer.status_code != 409 or request.method in _READ_METHODS or is_buffered:
        return answer
    try:
        await app_context.replicate_reads()
    except Exception as unsafe:  # noqa: BLE001 - every response is JSON
        return to_response(unsafe)
    return answer


async def _find_elsewhere(app_context: AppContext, request: Request, call: Call) -> ServedElsewhere | None:
    """Return the error for a request whose application is unknown here, but not elsewhere."""
    reference = request.path_params.get("app_id")
    is_limited = isinstance(call.principal, Principal) and not call.principal.is_for_organization
    if reference is None or call.found is not None or is_limited:
        return None
    if app_context.elsewhere is None:
        return None
    home = await app_context.elsewhere.find_application(call.principal.organization, reference)
    return None if home is None else ServedElsewhere(reference, home)


def client_of(request: Request) -> str:
    """Return the address of the client of a request."""
    return request.client.host if request.client else ""


async def _read_body(request: Request, limit: int) -> bytes:
    too_large = ApiError(413, "payload_too_large", f"a request has at most {limit} bytes")
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > limit:
        raise too_large
    body = bytearray()
    try:
        async for part in request.stream():
            body += part
            if len(body) > limit:
                raise too_large
    except ClientDisconnect:
        raise ApiError(400, "generic_error", "the request body is incomplete") from None
    return bytes(body) if body.strip() else b""


def read_json(raw: bytes) -> Any:
    """Return the body of a request as JSON; raise a client's error where it is none."""
    try:
        return msgspec.json.decode(raw)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise invalid(f"the body: {describe_fault(raw)}", "body", kind="value_error.jsondecode") from None


_BEARER: Final = HTTPBearer(auto_error=False, scheme_name="HTTPBearer", description="A token from `boathook keys`.")


def _any_call(request: Request, _token: Annotated[object, Security(_BEARER)]) -> Call:
    return cast("Call", request.state.call)


AnyCall = Annotated[Call, Depends(_any_call)]


ApplicationRef = Annotated[
    str, Path(description="The application's id or uid.", examples=["app_01h455vb4pex5vsknk084sn02q4", "acme"])
]


async def _application_call(call: AnyCall, app_id: ApplicationRef) -> Call:
    call.found = await applications.get(call.work, app_id)
    return call


ApplicationCall = Annotated[Call, Depends(_application_call)]


def read_path_id(read: Callable[[str], Identifier], text: str) -> Identifier:
    """Return the id in a path. Raises ApiError 404 if *read* finds that it is none."""
    try:
        return read(text)
    except ValueError:
        raise not_found() from None


def router(tag: str) -> APIRouter:
    """Return a router below /api/v1 whose routes are `ApiRoute`."""
    return APIRouter(prefix="/api/v1", tags=[tag], route_class=ApiRoute)
