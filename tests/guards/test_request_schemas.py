"""The OpenAPI document says of derived requests what it said when their models were written by hand.

Generated clients depend on it. After an intended change, update request_schemas.json.
"""

import json
from pathlib import Path
from typing import Annotated, Any, Final

import pytest
from pydantic import BaseModel

from boathook.api.app import openapi_document
from boathook.service.fields import Input, Rule
from boathook.service.schemas.derived import with_fields

SCHEMAS: Final[dict[str, Any]] = json.loads((Path(__file__).parent / "request_schemas.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return json.loads(json.dumps(openapi_document()))["components"]["schemas"]


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_schema_of_a_request_is_the_same(document: dict[str, Any], name: str):
    assert document[name] == SCHEMAS[name]


def test_mutant_a_changed_limit_changes_the_schema():
    class Table(Input, frozen=True, kw_only=True):
        concurrency: Annotated[int | None, Rule(minimum=1, maximum=999, help="Maximum concurrent requests.")] = None

    @with_fields(Table)
    class Body(BaseModel):
        """A request."""

    derived = Body.model_json_schema()["properties"]["concurrency"]["anyOf"][0]
    expected = SCHEMAS["EndpointIn"]["properties"]["concurrency"]["anyOf"][0]
    assert derived == {**expected, "maximum": 999}
