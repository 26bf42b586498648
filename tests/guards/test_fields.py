"""Each resource has the same fields in its record, its API models, its command, its form and its page.

A field that is added in one place only makes a value that cannot be set, or cannot be seen, at some interface. What is
missing on purpose is listed with its reason.
"""

import inspect
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from pydantic import BaseModel

from boathook.api.applications import ApplicationOut
from boathook.api.event_types import EventTypeOut
from boathook.cli.endpoints import SETTINGS as ENDPOINT_OPTIONS
from boathook.config.sources import FIELDS
from boathook.providers import RECIPES
from boathook.service.catalogue import applications, event_types
from boathook.service.catalogue.keys import NewKey
from boathook.service.fields import fields_of
from boathook.service.receiving.source_fields import COMMON_FIELDS, recipe_fields
from boathook.service.schemas.endpoints import EndpointIn, EndpointOut, EndpointPatch, EndpointUpdate
from boathook.service.schemas.messages import (
    ApplicationIn,
    ApplicationPatch,
    EventTypeIn,
    EventTypePatch,
    EventTypeUpdate,
)
from boathook.service.sending.applications import NewApplication
from boathook.service.sending.endpoints import NewEndpoint
from boathook.service.sending.event_types import NewEventType
from boathook_console.shared import rendering
from boathook_console.source_forms import ELSEWHERE

TEMPLATES: Final = Path(rendering.__file__).parents[1] / "templates"
OTHER_NAMES: Final = {
    "disabled": "is_disabled", "archived": "is_archived", "deprecated": "is_deprecated", "version": "api_version",
    "retry_schedule": "retry", "timeout_seconds": "timeout_s", "rate": "throttle_rate", "group": "group_name",
    "schema": "schemas", "retry_preset": "retry", "retry_waits": "retry", "patterns": "event_types", "auth_kind": "auth",
    "mtls_kind": "auth", "timeout": "timeout_s",
}  # fmt: skip
"""Names of fields that differ from the record's."""
NOT_FIELDS: Final = frozenset(
    {
        "id", "created_at", "updated_at", "secret", "headers", "backlog", "rate_limit", "filter_types", "feature_flag",
        "remove_headers", "example", "basic_username", "basic_password", "oauth_token_url", "oauth_client_id",
        "oauth_client_secret", "oauth_scope", "mtls_certificate", "mtls_key",
    }
)  # fmt: skip
"""What a model or form has beside the fields of the record: identity, secrets, actions, former names, parts of auth."""


def snake(name: str) -> str:
    return re.sub(r"(?<!^)([A-Z])", lambda found: f"_{found[1].lower()}", name)


def plain(names: Any) -> set[str]:
    found = {snake(str(name)) for name in names}
    return {OTHER_NAMES.get(name, name) for name in found} - NOT_FIELDS


def of_struct(record: type[msgspec.Struct]) -> set[str]:
    return set(record.__struct_fields__)


def of_model(model: type[BaseModel]) -> set[str]:
    return plain(model.model_fields)


def of_command(command: Any, *more: str) -> set[str]:
    own = {"ctx", "as_json", "application", "version", "settings", "endpoint"}
    return plain({*inspect.signature(command).parameters, *more} - own)


def of_form(template: str, table: type[msgspec.Struct] | None = None) -> set[str]:
    text = (TEMPLATES / template).read_text()
    sections = re.findall(r'parts\.section\(fields, "(\w+)"', text)
    derived = [field.name for field in fields_of(table) if field.rule.section in sections] if table else []
    named = re.findall(r'parts\.(?:field|choice|checkbox)\("(\w+)"', text) + re.findall(r'name="(\w+)"', text)
    return plain([*named, *derived]) - {"csrf", "check"}


def of_page(template: str, record: str) -> set[str]:
    text = "".join((TEMPLATES / one).read_text() for one in template.split())
    return plain(re.findall(rf"\b{record}\.(\w+)", text))


class Place(msgspec.Struct, frozen=True):
    """Where a resource's fields are, and which of them are missing there on purpose."""

    fields: set[str]
    missing: Mapping[str, str] = {}
    """The fields that it does not have, each with the reason."""


_ENABLE: Final = "`endpoints enable` and `disable` do it"
_SVIX: Final = "only for clients of Svix; nothing reads it"
_COMPUTED: Final = "the page shows it in another form, which its route computes"
_ARCHIVE: Final = "archiving is an action of its own"
RESOURCES: Final[Mapping[str, tuple[set[str], Mapping[str, Place]]]] = {
    "endpoint": (
        of_struct(NewEndpoint),
        {
            "EndpointIn": Place(of_model(EndpointIn)),
            "EndpointUpdate": Place(of_model(EndpointUpdate)),
            "EndpointPatch": Place(of_model(EndpointPatch)),
            "EndpointOut": Place(of_model(EndpointOut)),
            "the options of endpoints": Place(
                plain(ENDPOINT_OPTIONS) | {"url"}, {"is_disabled": _ENABLE, "api_version": _SVIX}
            ),
            "the form": Place(of_form("endpoints/form.html", NewEndpoint), {"api_version": _SVIX}),
            "the page": Place(
                of_page("endpoints/show.html endpoints/parts.html", "endpoint"),
                {"api_version": _SVIX, "auth": _COMPUTED, "retry": _COMPUTED},
            ),
        },
    ),
    "application": (
        of_struct(NewApplication),
        {
            "ApplicationIn": Place(of_model(ApplicationIn)),
            "ApplicationPatch": Place(of_model(ApplicationPatch)),
            "ApplicationOut": Place(of_model(ApplicationOut)),
            "applications create": Place(of_struct(applications.create.input)),
            "applications update": Place(of_struct(applications.update.input) - {"id"}),
            "the form": Place(of_form("applications/form.html", NewApplication)),
            "the page": Place(of_page("applications/show.html", "application")),
        },
    ),
    "event type": (
        of_struct(NewEventType) | {"name"},
        {
            "EventTypeIn": Place(of_model(EventTypeIn)),
            "EventTypeUpdate": Place(of_model(EventTypeUpdate), {"name": "it is in the path"}),
            "EventTypePatch": Place(of_model(EventTypePatch), {"name": "it is in the path"}),
            "EventTypeOut": Place(of_model(EventTypeOut)),
            "event-types create": Place(of_struct(event_types.create.input)),
            "event-types update": Place(of_struct(event_types.update.input)),
            "the form": Place(of_form("event_types/form.html"), {"is_archived": _ARCHIVE}),
            "the page": Place(of_page("event_types/show.html", "type"), {"schemas": _COMPUTED}),
        },
    ),
    "key": (
        of_struct(NewKey),
        {
            "the form": Place(
                {"lifetime_seconds" if name == "lifetime" else name for name in of_form("keys/list.html")},
                {"organization": "the console is of one organization"},
            ),
        },
    ),
}


def differences(own: set[str], place: Place) -> list[str]:
    missing = [f"lacks {name}" for name in sorted(own - place.fields - place.missing.keys())]
    spare = [
        f"exempts {name}, which it has or no record has"
        for name in place.missing
        if name in place.fields or name not in own
    ]
    return missing + spare


CASES: Final = [(name, place) for name, (_, places) in RESOURCES.items() for place in places]


@pytest.mark.parametrize(("name", "place"), CASES)
def test_each_place_has_each_field_of_the_record(name: str, place: str):
    own, places = RESOURCES[name]
    assert differences(own, places[place]) == []


@pytest.mark.parametrize(("name", "place"), [case for case in CASES if not case[1].startswith("the page")])
def test_no_place_has_a_field_that_the_record_lacks(name: str, place: str):
    own, places = RESOURCES[name]
    assert places[place].fields - own == set()


@pytest.mark.parametrize(("name", "place"), CASES)
def test_mutant_a_field_in_the_record_only_is_found(name: str, place: str):
    own, places = RESOURCES[name]
    assert differences(own | {"colour"}, places[place]) == ["lacks colour"]


def form_keys() -> set[str]:
    """Return every key that the form of some provider has."""
    return set(COMMON_FIELDS) | {field.name for recipe in RECIPES for field in recipe_fields(recipe)}


def missing_keys(keys: set[str]) -> set[str]:
    return keys - form_keys() - ELSEWHERE.keys()


def test_the_form_of_a_source_has_every_key():
    assert missing_keys(set(FIELDS)) == set()
    assert not ELSEWHERE.keys() & form_keys()
    assert ELSEWHERE.keys() <= FIELDS.keys()


def test_mutant_a_key_without_a_field_is_found():
    assert missing_keys({*FIELDS, "colour"}) == {"colour"}
