"""The OpenAPI document says of each operation which errors it has, and of ids and names what they look like."""

import re
from typing import Any

import pytest

from boathook.api.app import openapi_document
from boathook.domain import ids


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return openapi_document()


def errors(document: dict[str, Any], method: str, path: str) -> set[str]:
    return {status for status in document["paths"][f"/api/v1{path}"][method]["responses"] if status >= "4"}


@pytest.mark.parametrize(
    ("method", "path", "present", "absent"),
    [
        ("get", "/health/ping", {"500"}, {"401", "403", "404", "409", "422"}),
        ("get", "/source", {"404"}, {"400", "409"}),
        ("post", "/source", {"400", "404", "409"}, {"421"}),
        ("get", "/rejection", {"404"}, {"400", "409"}),
        ("get", "/conflict", set(), {"404"}),
        ("get", "/app", {"401", "403", "422", "503"}, {"400", "404", "409", "413", "421"}),
        ("post", "/app", {"400", "409", "413", "422"}, {"404", "421"}),
        ("get", "/app/{app_id}", {"404", "421"}, {"409", "413"}),
        ("put", "/app/{app_id}", {"400", "404", "409", "413", "421"}, set()),
        ("put", "/app/{app_id}/endpoint/{endpoint_id}/headers", {"400", "404", "413"}, {"409"}),
        ("get", "/app/{app_id}/endpoint/{endpoint_id}/stats", {"400"}, {"409", "413"}),
        ("get", "/event/{event_id}", {"404"}, {"400", "409", "413", "421"}),
    ],
)
def test_an_operation_has_its_own_errors(document, method: str, path: str, present: set[str], absent: set[str]):
    found = errors(document, method, path)
    assert present <= found
    assert not absent & found


def test_ignored_fields_are_announced_where_there_is_a_body(document):
    for operations in document["paths"].values():
        for operation in operations.values():
            for status, response in operation["responses"].items():
                announced = "boathook-ignored" in response.get("headers", {})
                assert announced == ("requestBody" in operation and status.startswith("2"))


def test_ids_have_the_pattern_of_ids(document):
    schemas = document["components"]["schemas"]
    pattern = schemas["ApplicationOut"]["properties"]["id"]["pattern"]
    assert re.search(pattern, ids.show(ids.APPLICATION, ids.make(1, 2)))
    assert not re.search(pattern, ids.show(ids.ENDPOINT, ids.make(1, 2)))
    assert re.search(schemas["DeliveryOut"]["properties"]["id"]["pattern"], "dlv_01h455vb4pex5vsknk084sn02q4_12")
    shown = [
        field for schema in schemas.values() for name, field in schema.get("properties", {}).items() if name == "id"
    ]
    assert sum("pattern" in field for field in shown) >= 15


def test_names_in_paths_have_a_pattern(document):
    (parameter,) = [
        each for each in document["paths"]["/api/v1/app/{app_id}"]["get"]["parameters"] if each["name"] == "app_id"
    ]
    assert re.search(parameter["schema"]["pattern"], "acme-1.eu")
    assert not re.search(parameter["schema"]["pattern"], "a/b")
