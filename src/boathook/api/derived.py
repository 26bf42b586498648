"""The routes that derive from the catalogue of operations, and their part of the OpenAPI document.

A route reads the input of its operation from the path, and from the query of a GET or the body of any other method,
runs the operation in the transaction of the request, and returns the result. Idempotency keys, ignored fields and
errors are those of every other route.
"""

from collections.abc import Mapping
from typing import Any, Final, cast

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from boathook.api.errors import answer_json, invalid, not_found
from boathook.api.idempotency import CanonicalForm, canonical_of_input
from boathook.api.route import AnyCall, ApiRoute
from boathook.domain.errors import BoathookError, InvalidValue
from boathook.service import catalogue
from boathook.service.access.authorization import requires
from boathook.service.catalogue.operation import Http, Operation
from boathook.service.catalogue.values import name_fields
from boathook.service.catalogue.wire import (
    BASE,
    CLIENT_HEADER,
    PATH_FIELD,
    QUERY_METHODS,
)
from boathook.service.field_schemas import json_schemas
from boathook.service.field_values import read_json, read_text, unknown_names
from boathook.service.fields import Field

_REFERENCE: Final = "#/components/schemas/"
_MAX_IGNORED: Final = 20
_MAX_NAME: Final = 100


class DerivedRoute(ApiRoute):
    """The route of one operation."""

    def __init__(self, operation: Operation[Any, Any], http: Http) -> None:
        self.operation: Final = operation
        self.http: Final = http
        self.parts = frozenset(PATH_FIELD.findall(http.path))

        @requires(operation.permission)
        async def act(call: AnyCall, request: Request) -> Response:
            try:
                value = self.read(request, await request.json() if self.takes_body else None)
                return answer_json(http.status, await operation(call.work, value))
            except InvalidValue as error:
                raise self.locate(error, is_named=CLIENT_HEADER not in request.headers) from error

        super().__init__(
            BASE + http.path,
            act,
            methods=[http.method],
            status_code=http.status,
            tags=[operation.tag],
            operation_id=http.id or f"v1.{operation.name.replace('_', '-')}",
            summary=operation.help.rstrip("."),
            description="\n\n".join(filter(None, (operation.help, operation.detail))),
            response_model=None,
            name=operation.name,
        )

    @property
    def takes_body(self) -> bool:
        """Whether it takes a JSON body: its method has one, and not all of the input is in the path."""
        return self.http.method not in QUERY_METHODS and len(self.operation.fields) > len(self.parts)

    def read(self, request: Request, document: Any) -> msgspec.Struct:
        """Return the input of the operation. Raises InvalidValue."""
        own = [field for field in self.operation.fields if field.name in self.parts]
        path = {field.public_name: request.path_params[field.name] for field in own}
        if not self.takes_body:
            query = {name: value for name, value in request.query_params.items() if name not in path}
            return cast("msgspec.Struct", read_text(self.operation.input, query | path))
        if document is not None and not isinstance(document, Mapping):
            raise InvalidValue("write an object")
        return cast("msgspec.Struct", read_json(self.operation.input, {**(document or {}), **path}))

    def locate(self, error: InvalidValue, *, is_named: bool = True) -> Exception:
        """Return an error of the input with its place in the request.

        Args:
            error: the error.
            is_named: whether its text names fields as the API does; else in backticks, as the service does.
        """
        if any(each.where and each.where[0] in self.parts for each in (error, *error.others)):
            return not_found()
        located, *others = (self._locate_one(each, is_named=is_named) for each in (error, *error.others))
        located.others = tuple(others)
        return located

    def _locate_one(self, error: InvalidValue, *, is_named: bool) -> InvalidValue:
        names = {field.name: field.public_name for field in self.operation.fields}
        path = [names.get(str(part), str(part)) for part in error.where]
        place = "body" if self.takes_body else "query"
        text = name_fields(str(error), lambda name: names.get(name, name)) if is_named else str(error)
        return invalid(text, place, *path, kind=error.kind)

    @property
    def canonicalizer(self) -> CanonicalForm:
        """The route itself."""
        return self

    def canonical(self, request: Request, body: bytes) -> bytes:
        """Return the input of a request without its defaults; the body as it is if it will be rejected."""
        try:
            return canonical_of_input(self.read(request, msgspec.json.decode(body) if body else None))
        except (msgspec.MsgspecError, ValueError, BoathookError, RecursionError):
            return body

    def ignored(self, document: Any) -> list[str]:
        """Return the names in a body that the input does not have."""
        names = unknown_names(self.operation.input, document) if isinstance(document, Mapping) else []
        return [ascii(name)[1:-1][:_MAX_NAME] for name in names[:_MAX_IGNORED]]


def build_routes() -> APIRouter:
    """Return the routes of all operations whose route derives."""
    router = APIRouter()
    router.routes += [
        DerivedRoute(operation, operation.http)
        for operation in catalogue.load()
        if operation.http is not None and operation.http.is_derived
    ]
    return router


routes: Final = build_routes()


def document_operations(document: dict[str, Any]) -> None:
    """Add the parameters, bodies and results of the derived routes to an OpenAPI document."""
    operations = [route for route in routes.routes if isinstance(route, DerivedRoute)]
    tables = {table for route in operations for table in (route.operation.input, route.operation.result)}
    schemas = json_schemas(sorted(tables, key=lambda table: table.__name__), _REFERENCE + "{name}")
    for route in operations:
        described = document["paths"][route.path][route.http.method.lower()]
        table, fields = route.operation.input, route.operation.fields
        schema = schemas[table.__name__]
        inside = [field for field in fields if field.name not in route.parts]
        outside = [field for field in fields if field.name in route.parts or not route.takes_body]
        if outside:
            described["parameters"] = [_parameter(route, field, schema["properties"]) for field in outside]
        if route.takes_body:
            is_required = any(field.is_required for field in inside)
            described["requestBody"] = {"required": is_required, "content": _content(table)}
        description = {"description": "Successful Response", "content": _content(route.operation.result)}
        described["responses"] = {str(route.http.status): description}
    with_body = [route for route in operations if route.takes_body]
    for route in with_body:
        # The body does not have what is in the path.
        hidden = {field.public_name for field in route.operation.fields if field.name in route.parts}
        schema = schemas[route.operation.input.__name__]
        schema["properties"] = {name: part for name, part in schema["properties"].items() if name not in hidden}
        schema["required"] = [name for name in schema["required"] if name not in hidden]
    for table in {route.operation.input for route in operations} - {route.operation.input for route in with_body}:
        del schemas[table.__name__]
    existing_schemas = document.setdefault("components", {}).setdefault("schemas", {})
    document["components"]["schemas"] = dict(sorted({**existing_schemas, **schemas}.items()))


def _content(table: type[msgspec.Struct]) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": _REFERENCE + table.__name__}}}


def _parameter(route: DerivedRoute, field: Field, properties: Mapping[str, Any]) -> dict[str, Any]:
    place, name = ("path", field.name) if field.name in route.parts else ("query", field.public_name)
    schema = dict(properties[field.public_name])
    schema.pop("description", None)
    parameter = {"name": name, "in": place, "required": field.is_required, "description": field.rule.help}
    return {**parameter, "schema": schema}
