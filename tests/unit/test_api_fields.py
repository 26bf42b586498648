"""Values of API bodies and queries: timestamps, nulls, and unknown fields."""

import importlib
import inspect
import pkgutil
import typing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import svix.models
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter, ValidationError

import boathook.api
import boathook.service.schemas
from boathook.api.event_types import EnvironmentIn
from boathook.service.schemas.endpoints import EndpointIn, EndpointPatch
from boathook.service.schemas.fields import Input, Timestamp, format_timestamp, ignored_fields
from boathook.service.schemas.messages import MessageIn, TransformationsParams

MOMENT = TypeAdapter(Timestamp)
AT = datetime(2026, 11, 22, 17, 3, 50, 984_000, tzinfo=UTC)
SPELLINGS = [
    "2026-11-22T17:03:50.984Z", "2026-11-22t17:03:50.984z", "2026-11-22 17:03:50.984 UTC", "2026-11-22 17:03:50.984000 UTC",
    "2026-11-22T17:03:50.984+00:00", "2026-11-22T17:03:50.984 00:00", "2026-11-22T19:03:50.984 02:00",
    "2026-11-22T17:03:50.984", "2026-11-22T17:03:50.984000999Z", "2026-11-22T12:03:50.984-0500",
]  # fmt: skip
NO_MOMENTS = [
    "yesterday", "2026-11-22", "1795370630", 1_795_370_630, "2026-11-22 17:03:50 PST", "2026-11-22 17:03:50 UTC+1",
    "2026-13-22T17:03:50Z", "2026-11-22T17:03:501234", "", None, True,
]  # fmt: skip


@pytest.mark.parametrize("text", SPELLINGS)
def test_timestamps_are_read_as_clients_write_them(text: str):
    assert MOMENT.validate_python(text) == AT


def test_timestamps_have_four_digits_for_the_year():
    assert format_timestamp(datetime(1, 2, 3, 4, tzinfo=UTC)) == "0001-02-03T04:00:00.000000Z"
    assert format_timestamp(datetime(2026, 2, 3, 4, 5, 6, 7, tzinfo=UTC)) == "2026-02-03T04:05:06.000007Z"


@pytest.mark.parametrize("value", NO_MOMENTS)
def test_invalid_timestamps_are_refused(value: Any):
    with pytest.raises(ValidationError):
        MOMENT.validate_python(value)


@given(st.integers(0, 10**15), st.integers(-720, 720))
def test_all_timestamp_formats_parse_to_the_same_time(microseconds: int, minutes: int):
    moment = datetime(1971, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)
    sign, shift = "-" if minutes < 0 else "+", timedelta(minutes=minutes)
    there = f"{(moment + shift).replace(tzinfo=None).isoformat()}{sign}{abs(minutes) // 60:02}:{abs(minutes) % 60:02}"
    chrono = f"{moment.replace(tzinfo=None).isoformat(sep=' ')} UTC"
    assert MOMENT.validate_python(there) == MOMENT.validate_python(chrono) == moment


THEIRS = {
    name: model
    for name, model in vars(svix.models).items()
    if inspect.isclass(model) and issubclass(model, BaseModel) and name.endswith(("In", "Update"))
}
OTHER_NAMES = {
    "EndpointUpsertIn": "EndpointUpdate",
    "EventTypeUpsertIn": "EventTypeUpdate",
    "ApplicationTokenExpireIn": "ExpireAllIn",
    "AppUsageStatsIn": "UsageIn",
    "EventTypeImportOpenApiIn": "ImportOpenApiIn",
    "MessagePrecheckIn": "PrecheckIn",
    "OperationalWebhookEndpointIn": "OperationalEndpointIn",
    "OperationalWebhookEndpointUpdate": "OperationalEndpointUpdate",
}


def our_models() -> dict[str, type[Input]]:
    rooms = (boathook.api, boathook.service.schemas)
    found = [
        importlib.import_module(f"{room.__name__}.{module.name}")
        for room in rooms
        for module in pkgutil.iter_modules(room.__path__)
    ]
    return {
        name: one
        for module in found
        for name, one in vars(module).items()
        if inspect.isclass(one) and issubclass(one, Input)
    }


def optional_fields() -> list[tuple[str, str]]:
    """Return the fields of the newest client's requests that its users may leave out, by our model of the same."""
    ours = our_models()
    pairs = [(OTHER_NAMES.get(name, name), model) for name, model in THEIRS.items()]
    return sorted(
        (name, field.alias or key)
        for name, model in pairs
        if name in ours
        for key, field in model.model_fields.items()
        if type(None) in typing.get_args(field.annotation)
    )


@pytest.mark.parametrize(
    ("name", "field"), [*optional_fields(), ("EndpointIn", "version"), ("EndpointUpdate", "version")]
)
def test_null_equals_an_omitted_field(name: str, field: str):
    model = our_models()[name]
    wrong = [error["loc"] for error in errors_of(model, {field: None})]
    assert (field,) not in wrong


def errors_of(model: type[Input], document: dict[str, Any]) -> list[Any]:
    try:
        model.model_validate(document)
    except ValidationError as error:
        return list(error.errors())
    return []


def test_null_means_the_default():
    given = EndpointIn.model_validate(
        {"url": "https://a.example", "version": None, "description": None, "disabled": None}
    )
    assert given.value() == EndpointIn.model_validate({"url": "https://a.example"}).value()


@pytest.mark.parametrize("field", ["url", "description", "disabled", "version"])
def test_patching_a_required_field_to_null_is_refused(field: str):
    assert errors_of(EndpointPatch, {field: None})


def test_unknown_fields_are_reported():
    message = {"eventType": "a", "data": {"any": 1}, "colour": 1, "application": {"name": "x", "plan\n": 1}}
    assert ignored_fields(MessageIn, message) == ["colour", r"application.plan\n"]
    assert ignored_fields(EndpointIn, {"url": "x", "filterTypes": [], "rateLimit": 1, "metadata": {"a": "b"}}) == []
    assert ignored_fields(EnvironmentIn | None, {"eventTypes": [{"name": "a"}, {"nome": "b"}]}) == [
        "eventTypes[1].nome"
    ]
    assert ignored_fields(MessageIn, ["no object"]) == []
    assert len(ignored_fields(MessageIn, {f"x{number}": 1 for number in range(1_000)})) == 20


@pytest.mark.parametrize(
    "wrong",
    [
        {"rawPayload": "x", "retries": 3},
        {"rawPayload": "x", "headers": {"x-team": "a"}},
        {"rawPayload": "x", "headers": {"content-type": "text/plain\r\nx: y"}},
        {"rawPayload": "x", "headers": {"content-type": "plain"}},
        {"rawPayload": "x", "headers": {"content-type": "a/b", "Content-Type": "a/c"}},
        {"rawPayload": "x", "headers": {"content-type": "a/" + "b" * 256}},
    ],
)
def test_invalid_raw_payload_params_are_refused(wrong: dict[str, Any]):
    assert errors_of(TransformationsParams, wrong)


@pytest.mark.parametrize(
    "type", ["text/plain", "application/vnd.api+json; charset=utf-8", 'multipart/mixed; boundary="a b"']
)
def test_a_valid_content_type_is_accepted(type: str):
    params = TransformationsParams.model_validate({"rawPayload": "x", "headers": {"Content-Type": type}})
    assert params.content_type == type


@pytest.mark.parametrize("auth", [{"basic": {"username": "a", "password": "b", "realm": "c"}}, {"bearer": "x"}])
def test_unknown_credentials_are_refused(auth: dict[str, Any]):
    (error,) = errors_of(EndpointIn, {"url": "https://a.example", "auth": auth})
    assert error["type"] == "extra_forbidden"
