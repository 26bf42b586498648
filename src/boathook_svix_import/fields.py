"""Converts objects of Svix's API to the values that the service functions take, with our API's request models.

An optional field with an invalid value is left out and reported, if that cannot send messages to other endpoints or
change them. Any other invalid field raises `InvalidValue`.
"""

from collections.abc import Collection, Mapping
from typing import Any, Final, Generic, TypeVar

import msgspec
from msgspec.structs import replace
from pydantic import BaseModel, ValidationError

from boathook.delivery.signer import read_signer
from boathook.domain.endpoints import check_header
from boathook.domain.errors import InvalidValue
from boathook.domain.signing import PUBLIC_PREFIX
from boathook.service.schemas.endpoints import EndpointUpdate
from boathook.service.schemas.messages import ApplicationIn, EventTypeIn
from boathook.service.sending.applications import NewApplication
from boathook.service.sending.endpoints import NewEndpoint
from boathook.service.sending.event_types import NewEventType
from boathook_svix_import.reader import JsonObject, RemoteEndpoint

Model = TypeVar("Model", bound=BaseModel)
Value = TypeVar("Value")

_MAX_RATE: Final = 65_535
_PREFIX: Final = "svix-"
"""Prefix of the uid of an object that has no uid on the server; its id follows."""
_COMMON: Final = frozenset({"id", "createdAt", "updatedAt"})
_RATES: Final = ("throttleRate", "rateLimit")
_TYPES: Final = ("eventTypes", "filterTypes")
_EVENT_TYPE: Final = frozenset(
    {"name", "description", "archived", "deprecated", "schemas", "featureFlag", "featureFlags", "groupName"}
)
_APPLICATION: Final = frozenset({"name", "uid", "metadata"})
_ENDPOINT: Final = frozenset({"url", "description", "uid", "disabled", "channels", "metadata", "version"})
_SVIX_NAMES: Final = frozenset(
    {"url", "description", "uid", "event_types", "channels", "throttle_rate", "metadata", "api_version"}
)
_NOT_MOVED: Final = frozenset({"is_disabled", "auth", "backlog", "destination"})
_BOATHOOK: Final = {
    str(field.validation_alias or field.alias): name
    for name, field in EndpointUpdate.model_fields.items()
    if name not in _SVIX_NAMES | _NOT_MOVED
}
"""Fields of endpoints that only boathook has, with their names in `NewEndpoint`."""


class Converted(msgspec.Struct, Generic[Value], frozen=True):
    """The portable values of an object, and why other fields were left out."""

    value: Value
    not_moved: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Reasons by field."""


def uid_for(id: str) -> str:
    """Return the uid for an object that has none on the server."""
    return _PREFIX + id


def id_from_uid(uid: str | None, prefix: str) -> str | None:
    """Return the server's id in a uid of `uid_for`; *prefix* is the type of the id, such as ``app``."""
    return uid.removeprefix(_PREFIX) if uid and uid.startswith(f"{_PREFIX}{prefix}_") else None


def read_event_type(wire: JsonObject) -> Converted[NewEventType]:
    """Return the values of an event type. Raises InvalidValue."""
    document = {"description": "", **_pick(wire, _EVENT_TYPE)}
    read, lost = _validate(EventTypeIn, document, {"groupName"})
    new = read.value()
    flags = tuple(sorted(set(new.feature_flags or ())))  # unordered
    return Converted(
        replace(new, schemas=new.schemas or None, feature_flags=flags or None),
        lost | _unknown(wire, _EVENT_TYPE),
    )


def read_application(wire: JsonObject) -> Converted[NewApplication]:
    """Return the values of an application. Raises InvalidValue."""
    rate, lost = _rate(wire)
    read, dropped = _validate(ApplicationIn, _pick(wire, _APPLICATION) | rate, {"uid", "metadata"})
    value = read.value()
    return Converted(
        replace(value, uid=value.uid or uid_for(wire["id"])),
        lost | dropped | _unknown(wire, _APPLICATION | {*_RATES}),
    )


def read_endpoint(wire: JsonObject) -> Converted[tuple[NewEndpoint, list[str]]]:
    """Return the values of an endpoint, and the names of those that the server has. Raises InvalidValue."""
    rate, lost = _rate(wire)
    document = _pick(wire, _ENDPOINT | _BOATHOOK.keys()) | rate
    types = next((wire[name] for name in _TYPES if wire.get(name)), None)
    if types:
        document["eventTypes"] = types
    if not document.get("channels"):
        document.pop("channels", None)
    read, dropped = _validate(EndpointUpdate, document, {"uid", "metadata", "version"})
    value = read.value()
    names = _SVIX_NAMES | {name for field, name in _BOATHOOK.items() if field in wire}
    supported = _ENDPOINT | _BOATHOOK.keys() | {*_RATES, *_TYPES}
    unknown = _unknown(wire, supported)
    if not (wire.get("destination") or {}).keys() - {"kind"}:  # the URL is all that it has
        unknown.pop("destination", None)
    if "auth" in unknown:
        unknown["auth"] = "credentials are not shown; set them with `boathook endpoints update --auth`"
    return Converted(
        (replace(value, uid=value.uid or uid_for(wire["id"])), sorted(names)),
        lost | dropped | unknown,
    )


def read_headers(remote: RemoteEndpoint) -> Converted[dict[str, str]]:
    """Return the shown headers that may be sent."""
    headers: dict[str, str] = {}
    lost: dict[str, str] = {}
    for name, value in remote.headers.items():
        try:
            check_header(name, str(value))
            headers[name] = str(value)
        except ValueError as error:
            lost[f"headers.{name}"] = str(error)
    return Converted(headers, lost)


def read_secret(remote_secret: str | None) -> str | None:
    """Return a shown secret in a form that can sign; None if there is none."""
    for secret in () if remote_secret is None else (remote_secret, f"whsec_{remote_secret}"):
        try:
            read_signer(secret)
        except ValueError:
            continue
        return secret
    return None


def why_no_secret(remote_secret: str | None) -> str:
    """Return why a secret cannot be imported."""
    if remote_secret is None:
        return "it is not shown"
    if remote_secret.startswith(PUBLIC_PREFIX):
        return "only the public key of an Ed25519 pair is shown"
    return "it is neither whsec_ and base64 of 24 to 75 bytes nor whsk_ and base64 of an Ed25519 key"


def _pick(wire: JsonObject, names: Collection[str]) -> dict[str, Any]:
    return {name: wire[name] for name in names if wire.get(name) is not None}


def _rate(wire: JsonObject) -> tuple[dict[str, Any], dict[str, str]]:
    rate = next((wire[name] for name in _RATES if wire.get(name) is not None), None)
    if isinstance(rate, int) and rate > _MAX_RATE:
        return {"throttleRate": _MAX_RATE}, {
            "throttleRate": f"{rate:,} a second is more than {_MAX_RATE:,}, which is set"
        }
    return ({} if rate is None else {"throttleRate": rate}), {}


def _validate(model: type[Model], document: dict[str, Any], optional: Collection[str]) -> tuple[Model, dict[str, str]]:
    """Return the model of *document*, and why *optional* fields were left out. Raises InvalidValue."""
    try:
        return model.model_validate(document), {}
    except ValidationError as error:
        wrong = {str(detail["loc"][0]): detail["msg"].removeprefix("Value error, ") for detail in error.errors()}
    for name, reason in wrong.items():
        if name not in optional:
            raise InvalidValue(reason, name)
    read, more = _validate(model, {name: value for name, value in document.items() if name not in wrong}, optional)
    return read, wrong | more


def _unknown(wire: JsonObject, supported: Collection[str]) -> dict[str, str]:
    return {
        name: "boathook has no such field"
        for name, value in wire.items()
        if value and name not in supported and name not in _COMMON
    }
