"""Errors of the API: always JSON, in one of two formats that Svix clients expect.

``{"code", "detail"}`` for all statuses except 422, which lists each error with its location:
``{"detail": [{"loc": ["body", "url"], "msg": ..., "type": ...}]}``.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException
from starlette.responses import Response

from boathook.config.packages import own_packages, resolve
from boathook.domain.errors import (
    AlreadyExists,
    DatabaseUnavailable,
    DuplicateMessage,
    IngestError,
    InvalidMessage,
    InvalidState,
    InvalidTransition,
    InvalidValue,
    LimitReached,
    NotAllowed,
    NotFound,
    RateLimited,
    RoutesChanged,
    SecretUnreadable,
    ServedElsewhere,
)
from boathook.domain.messages import PUBLIC_NAMES
from boathook.observability.log import get_logger
from boathook.service.elsewhere import Elsewhere
from boathook.service.schemas.fields import NAME_PATTERN

_LOG = get_logger("api")
_RETRY_AFTER: Final = {"retry-after": "5"}


class ApiError(Exception):
    """An error response.

    Args:
        status: the HTTP status.
        code: a machine-readable code.
        detail: one human-readable sentence.
        headers: additional headers of the response.
    """

    def __init__(self, status: int, code: str, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status, code, detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.headers = dict(headers or {})


def not_found() -> ApiError:
    """Return the error for an object that does not exist or belongs to another tenant, indistinguishably."""
    return ApiError(404, "not_found", "Entity not found")


def invalid(message: str, *loc: str, kind: str = "value_error") -> InvalidValue:
    """Return the error for a value that breaks a rule; *loc* begins with body, query or path."""
    return _Located(message, *loc, kind=kind)


class _Located(InvalidValue):
    """An invalid value whose location already starts with body, query or path."""


def answer_json(status: int, value: Any, headers: Mapping[str, str] | None = None) -> Response:
    """Return *value* as a JSON response."""
    return Response(msgspec.json.encode(value), status, dict(headers or {}), "application/json")


def to_response(error: Exception, elsewhere: Elsewhere | None = None) -> Response:
    """Return the response for an exception; server errors are logged.

    Args:
        error: the exception.
        elsewhere: knows the installation to which a request must be sent instead; None if there are no others.
    """
    match error:
        case ApiError():
            return _coded(error.status, error.code, error.detail, error.headers)
        case RequestValidationError():
            return answer_json(422, {"detail": [_problem(problem) for problem in error.errors()]})
        case _Located():
            return _invalid_values([error, *error.others])
        case InvalidValue():
            return _invalid_values([error, *error.others], "body")
        case InvalidMessage():
            path = [PUBLIC_NAMES.get(error.field, error.field)] if error.field else []
            return _invalid_values([InvalidValue(error.reason, *path)], "body")
        case NotFound():
            return _coded(404, "not_found", "Entity not found")
        case NotAllowed():
            return _coded(403, "insufficient access", str(error))
        case ServedElsewhere():
            return _misdirected(error, elsewhere)
        case AlreadyExists():
            return _coded(409, error.kind, str(error))
        case DuplicateMessage():
            return _coded(409, "conflict", str(error))
        case InvalidState():
            return _coded(400, error.kind, str(error))
        case InvalidTransition():
            return _coded(400, "invalid_transition", str(error))
        case LimitReached():
            return _coded(400, "limit_reached", str(error))
        case RateLimited():
            return _coded(429, "rate_limited", str(error), {"retry-after": str(error.retry_after_s)})
        case HTTPException():
            return _from_http(error)
        case _:
            return _fault(error)


def _fault(error: Exception) -> Response:
    match error:
        case DatabaseUnavailable():
            _LOG.warning("database_unavailable", error=str(error))
            return _coded(503, "unavailable", "the database is not available, try again later", _RETRY_AFTER)
        case IngestError() | RoutesChanged():
            return _coded(503, "unavailable", str(error), _RETRY_AFTER)
        case SecretUnreadable():
            _LOG.error("secret_unreadable", error=str(error))
            return _coded(500, "server_error", str(error))
        case _:
            _LOG.error("api_fault", exc_info=error)
            return _coded(500, "server_error", "internal error; see the server's log")


def _misdirected(error: ServedElsewhere, elsewhere: Elsewhere | None) -> Response:
    if elsewhere is None:
        return _coded(421, "served_elsewhere", str(error))
    return answer_json(421, elsewhere.answer(error))


def _coded(status: int, code: str, detail: str, headers: Mapping[str, str] | None = None) -> Response:
    return answer_json(status, {"code": code, "detail": detail}, headers)


_CODES: Final = {404: "not_found", 405: "method_not_allowed", 413: "payload_too_large"}


def _from_http(error: HTTPException) -> Response:
    code = _CODES.get(error.status_code, "generic_error")
    detail = {404: "unknown route", 405: "method not allowed"}.get(error.status_code)
    return _coded(error.status_code, code, detail or str(error.detail), error.headers)


def _invalid_values(errors: Sequence[InvalidValue], *within: str) -> Response:
    """Return the response for invalid values, which are in this part of the request."""
    details = [{"loc": _loc((*within, *each.where)), "msg": str(each), "type": each.kind} for each in errors]
    return answer_json(422, {"detail": details})


def _problem(problem: Mapping[str, Any]) -> dict[str, Any]:
    message = str(problem["msg"]).removeprefix("Value error, ")
    return {"loc": _loc(problem["loc"]), "msg": message, "type": "value_error"}


def _loc(loc: Sequence[str | int]) -> list[str]:
    return [f"[{part}]" if isinstance(part, int) else part for part in loc]


class ErrorOut(BaseModel):
    """An error."""

    code: str = Field(examples=["not_found"], description="A machine-readable code.")
    detail: str = Field(examples=["Entity not found"], description="A human-readable sentence.")


class Problem(BaseModel):
    """One value that breaks a rule."""

    loc: list[str] = Field(examples=[["body", "url"]], description="Its location in the request.")
    msg: str = Field(examples=["write an address such as https://example.com/hook"])
    type: str = Field(examples=["value_error"])


class ProblemsOut(BaseModel):
    """Values that break rules."""

    detail: list[Problem]


_ERRORS: Final[Mapping[str, tuple[type[BaseModel], str]]] = {
    "400": (ErrorOut, "The request is invalid in the current state"),
    "401": (ErrorOut, "The token is missing or invalid"),
    "403": (ErrorOut, "The token does not allow this"),
    "404": (ErrorOut, "Not found, or owned by another application or organization"),
    "409": (ErrorOut, "A uid is taken, or an idempotency key was used for another request"),
    "413": (ErrorOut, "The request is too large"),
    "422": (ProblemsOut, "Invalid values"),
    "500": (ErrorOut, "Internal server error"),
    "503": (ErrorOut, "The database is unavailable; retry after the time in Retry-After"),
}
"""The errors that operations may return, by status."""
IGNORED: Final = "boathook-ignored"
"""The response header that lists unknown fields of the request body."""
_IGNORED_HEADER: Final = {
    "description": "Fields of the request body that are not known, and were ignored; absent if there are none.",
    "schema": {"type": "string"},
}
_ID_EXAMPLE: Final = re.compile(r"([a-z]+)_[0-9a-hjkmnp-tv-z]{27}(_[0-9]+)?")
_NAMES_IN_PATHS: Final = frozenset({"app_id", "endpoint_id", "event_type_name", "source_name"})
"""Path parameters that are a uid or a name, which ids look like as well."""
_OF_DEFAULT_ORGANIZATION: Final = frozenset({"Source", "Rejection"})
"""Tags of operations that do not exist for other organizations, lists included."""
_REFERENCE: Final = "#/components/schemas/{model}"
_MODEL: Final = re.compile(r'"#/components/schemas/(\w+)"')


def document_responses(document: dict[str, Any]) -> None:
    """Add errors and headers to the responses of each operation in an OpenAPI document.

    FastAPI would add errors too, but would build a validator for each error of each route, at each start.
    """
    errors = _all_errors()
    models = dict.fromkeys(model for model, _ in errors.values())
    _, schemas = models_json_schema([(model, "serialization") for model in models], ref_template=_REFERENCE)
    components = document["components"]["schemas"]
    components |= schemas["$defs"]
    for replaced in ("HTTPValidationError", "ValidationError"):
        components.pop(replaced, None)
    document["components"]["schemas"] = dict(sorted(components.items()))
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            statuses = _error_statuses(path, method, operation, components)
            if "requestBody" in operation:
                for response in operation["responses"].values():
                    response["headers"] = {IGNORED: _IGNORED_HEADER}
            operation["responses"].pop("422", None)
            operation["responses"] |= {
                status: _response(*error) for status, error in errors.items() if status in statuses
            }


def _all_errors() -> dict[str, tuple[type[BaseModel], str]]:
    """Return the errors by status, with those of all optional packages: the document is the same everywhere."""
    errors = dict(_ERRORS)
    for package in own_packages():
        if package.responses is not None:
            errors |= resolve(package.responses)
    return dict(sorted(errors.items()))


def document_formats(document: dict[str, Any]) -> None:
    """Add the patterns of ids to the results, and those of names to the paths of an OpenAPI document.

    The ids are recognized by their examples.
    """
    for schema in document["components"]["schemas"].values():
        for field in schema.get("properties", {}).values():
            if example := _ID_EXAMPLE.fullmatch(str(field.get("examples", [""])[0])):
                prefix, ordinal = example.groups()
                field["pattern"] = f"^{prefix}_[0-9a-hjkmnp-tv-z]{{27}}{'_[0-9]+' if ordinal else ''}$"
    for operations in document["paths"].values():
        for parameter in (each for operation in operations.values() for each in operation.get("parameters", ())):
            if parameter["in"] == "path" and parameter["name"] in _NAMES_IN_PATHS:
                parameter["schema"]["pattern"] = NAME_PATTERN


def _error_statuses(path: str, method: str, operation: Mapping[str, Any], schemas: Mapping[str, Any]) -> set[str]:
    """Return the errors that an operation may return."""
    if "security" not in operation:
        return {"500", "503"}
    parameters = {parameter["name"] for parameter in operation.get("parameters", ())}
    has_body = "requestBody" in operation
    models = set(_MODEL.findall(json.dumps(operation.get("requestBody"))))
    has_uid = any("uid" in schemas[model].get("properties", {}) for model in models)
    conditions = {
        "400": has_body or method != "get" or "since" in parameters,
        "404": "{" in path or _OF_DEFAULT_ORGANIZATION.intersection(operation["tags"]),
        "409": method == "post" or has_uid,
        "413": has_body or method == "post",
        "421": "{app_id}" in path,
        "422": has_body or bool(parameters),
    }
    return {"401", "403", "500", "503", *(status for status, is_possible in conditions.items() if is_possible)}


def _response(model: type[BaseModel], description: str) -> dict[str, Any]:
    schema = {"$ref": _REFERENCE.format(model=model.__name__)}
    return {"description": description, "content": {"application/json": {"schema": schema}}}
