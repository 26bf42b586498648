"""Rules of fields: one declaration checks values, reads JSON and forms, and writes JSON Schema."""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

import jsonschema
import msgspec
import pytest

from boathook.domain import ids
from boathook.domain.errors import InvalidValue
from boathook.service.field_schemas import json_schema, json_schemas
from boathook.service.field_values import parse_texts, read_json, read_text, show_text, unknown_names, write_json
from boathook.service.fields import Input, Kind, Problem, Rule, check, check_values, fields_by_name, fields_of, problems

EVENT = "evt_01h455vb4pex5vsknk084sn02q4"


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


def _even(number: int) -> None:
    if number % 2:
        raise ValueError("write an even number")


Rate = Annotated[int, Rule(minimum=1, maximum=65_535, help="Inner.", unit="a second")]


class Login(Input, frozen=True, kw_only=True):
    user_name: Annotated[str, Rule(min_length=1, max_length=5)]
    password: Annotated[str, Rule(is_secret=True)] = ""


class Thing(Input, frozen=True, kw_only=True):
    """A thing."""

    name: Annotated[str, Rule(help="Label.", min_length=1, max_length=10, example="box", argument="NAME")]
    throttle_rate: Annotated[Rate | None, Rule(help="Outer.", option="--rate", former_name="rateLimit")] = None
    timeout_s: Annotated[float | None, Rule(minimum=0.5, maximum=60, name="timeoutSeconds")] = None
    pairs: Annotated[int, Rule(check=_even)] = 0
    is_on: bool = False
    colour: Colour = Colour.RED
    tags: Annotated[Sequence[Annotated[str, Rule(max_length=3)]] | None, Rule(min_length=1, max_length=2)] = None
    metadata: Annotated[Mapping[str, str], Rule(max_bytes=20)] = msgspec.field(default_factory=dict)
    filter: Mapping[str, Any] | None = None
    word: Annotated[str | None, Rule(pattern="[a-z]+", form="small letters")] = None
    event: Annotated[str | None, Rule(prefix=ids.EVENT)] = None
    owner: Annotated[str | None, Rule(prefix=ids.APPLICATION)] = None
    since: datetime | None = None
    login: Login | None = None

    def conflicts(self) -> Iterable[Problem]:
        if self.is_on and self.word is None:
            yield Problem(("word",), "write one for a thing that is on")


def texts(value: msgspec.Struct) -> dict[str, str]:
    return {".".join(map(str, problem.where)): problem.text for problem in problems(value)}


def test_rules_nest_and_the_outer_one_takes_precedence():
    field = fields_by_name(Thing)["throttle_rate"]
    assert (field.rule.minimum, field.rule.maximum, field.rule.unit) == (1, 65_535, "a second")
    assert (field.rule.help, field.option, field.public_name) == ("Outer.", "--rate", "throttleRate")
    assert (field.kind, field.is_nullable, field.is_required, field.default) == (Kind.INTEGER, True, False, None)


def test_what_interfaces_read_of_a_field():
    fields = fields_by_name(Thing)
    assert [field.name for field in fields_of(Thing)] == list(Thing.__struct_fields__)
    assert fields["name"].is_required
    assert fields["metadata"].default == {}
    assert fields["tags"].is_list
    assert (fields["tags"].kind, fields["tags"].item_rule.max_length) == (Kind.TEXT, 3)
    assert fields["timeout_s"].public_name == "timeoutSeconds"
    assert (fields["colour"].kind, fields["colour"].choices) == (Kind.CHOICE, ("red", "blue"))
    assert [fields[name].kind for name in ("metadata", "filter", "since", "is_on")] == [
        "pairs",
        "object",
        "time",
        "flag",
    ]
    assert (fields["is_on"].label, fields["is_on"].option, fields["is_on"].public_name) == ("Is on", "--is-on", "isOn")


VALID: dict[str, list[Any]] = {
    "name": ["x", "x" * 10, "two\nlines"],
    "throttle_rate": [None, 1, 65_535],
    "timeout_s": [0.5, 60, 1],
    "pairs": [0, 4],
    "tags": [None, ["a"], ("a", "b")],
    "metadata": [{}, {"a": "b"}],
    "filter": [None, {"body": {"a": 1}}],
    "word": ["abc"],
    "event": [EVENT],
    "owner": ["acme", "app_01h455vb4pex5vsknk084sn02q4"],
    "login": [Login(user_name="anna")],
}
INVALID: dict[str, list[tuple[Any, str | None]]] = {
    "name": [
        ("", "write 1 to 10 characters"),
        ("  ", "write 1 to 10 characters"),
        ("x" * 11, "write 10 characters at most"),
        ("a\0b", "it must not contain control characters"),
        ("a\ud800b", "it must not contain control characters"),
        (5, "write a text"),
        (None, "write a value"),
    ],
    "throttle_rate": [
        (0, "write a number from 1 to 65,535"),
        (65_536, "write a number from 1 to 65,535"),
        ("5", "write a whole number"),
        (True, "write a whole number"),
        (2.5, "write a whole number"),
    ],
    "timeout_s": [
        (0.4, "write a number from 0.5 to 60"),
        (float("nan"), "write a number from 0.5 to 60"),
        (float("inf"), "write a number from 0.5 to 60"),
    ],
    "pairs": [(3, "write an even number")],
    "is_on": [("yes", "write true or false")],
    "colour": [("green", "write one of red, blue")],
    "tags": [
        ([], "write 1 to 2 of them"),
        (["a", "b", "c"], "write 2 of them at most"),
        (["long"], "write 3 characters at most"),
        ("abc", "write a list of texts"),
        ([1], "write a list of texts"),
    ],
    "metadata": [
        ({"a": "x" * 20}, "it has at most 20 bytes as JSON"),
        ({"a": "\0"}, "it must not contain control characters"),
        ({"a": 1}, "write an object whose values are texts"),
    ],
    "word": [("ABC", "write small letters"), ("abc\n", "write small letters")],
    "event": [("evt_x", None), ("acme", None)],
    "owner": [("a b", None), ("app_x", None)],
}


def cases(table: Mapping[str, Sequence[Any]]) -> list[Any]:
    return [
        pytest.param(name, value, id=f"{name}-{place}")
        for name, values in table.items()
        for place, value in enumerate(values)
    ]


@pytest.mark.parametrize(("name", "value"), cases(VALID))
def test_a_valid_value(name: str, value: Any):
    thing = Thing(**{"name": "box", name: value})
    assert problems(thing) == []
    assert check(thing) is thing
    check_values(Thing, {name: value})


@pytest.mark.parametrize(("name", "case"), cases(INVALID))
def test_a_wrong_value_names_its_field_and_the_fix(name: str, case: tuple[Any, str | None]):
    value, text = case
    public_name = fields_by_name(Thing)[name].public_name
    [problem] = problems(Thing(**{"name": "box", name: value}))
    assert problem.where == (public_name,)
    if text is not None:
        assert problem.text == text
    with pytest.raises(InvalidValue) as caught:
        check_values(Thing, {name: value})
    assert (str(caught.value), caught.value.where) == (problem.text, (public_name,))


def test_nan_breaks_a_rule_without_limits_too():
    class Plain(Input, frozen=True, kw_only=True):
        number: float

    assert texts(Plain(number=float("nan"))) == {"number": "write a number"}


def test_all_problems_are_found_in_the_order_of_the_fields():
    thing = Thing(name="", throttle_rate=0, pairs=1, login=Login(user_name="too long", password="\0"))
    assert texts(thing) == {
        "name": "write 1 to 10 characters",
        "throttleRate": "write a number from 1 to 65,535",
        "pairs": "write an even number",
        "login.userName": "write 5 characters at most",
        "login.password": "it must not contain control characters",
    }
    with pytest.raises(InvalidValue) as caught:
        check(thing)
    assert caught.value.where == ("name",)
    assert [other.where for other in caught.value.others][-1] == ("login", "password")


def test_conflicts_are_looked_for_once_each_field_is_valid():
    assert texts(Thing(name="box", is_on=True)) == {"word": "write one for a thing that is on"}
    assert texts(Thing(name="", is_on=True)) == {"name": "write 1 to 10 characters"}


def test_a_name_that_no_field_has():
    with pytest.raises(InvalidValue, match="there is no such field"):
        check_values(Thing, {"colours": 1})


DOCUMENT = {
    "name": "box",
    "rateLimit": 5,
    "timeoutSeconds": 2,
    "isOn": False,
    "colour": "blue",
    "tags": ["a"],
    "metadata": {"a": "b"},
    "filter": {"body": [1]},
    "since": "2026-01-31T12:00:00Z",
    "login": {"userName": "anna", "password": "secret"},
}


def test_a_json_object():
    assert read_json(Thing, DOCUMENT) == Thing(
        name="box",
        throttle_rate=5,
        timeout_s=2.0,
        colour=Colour.BLUE,
        tags=["a"],
        metadata={"a": "b"},
        filter={"body": [1]},
        since=datetime(2026, 1, 31, 12, tzinfo=UTC),
        login=Login(user_name="anna", password="secret"),
    )


def test_null_is_the_default_of_a_field_that_has_no_null():
    assert read_json(Thing, {"name": "box", "isOn": None, "metadata": None}) == Thing(name="box")


def test_the_current_name_takes_precedence_over_the_former_one():
    assert read_json(Thing, {"name": "box", "throttleRate": 7, "rateLimit": 5}).throttle_rate == 7


def test_unknown_names_are_ignored_and_listed():
    assert read_json(Thing, {"name": "box", "color": 1}) == Thing(name="box")
    assert unknown_names(Thing, {"name": "box", "rateLimit": 1, "color": 1}) == ["color"]


def test_all_problems_of_a_json_object():
    with pytest.raises(InvalidValue) as caught:
        read_json(Thing, {"throttleRate": "5", "pairs": 3, "login": {"password": 5}, "filter": "x", "since": "soon"})
    assert [(each.where, str(each)) for each in (caught.value, *caught.value.others)] == [
        (("name",), "it is required"),
        (("throttleRate",), "write a whole number"),
        (("pairs",), "write an even number"),
        (("filter",), "write a JSON object"),
        (("since",), "invalid time 'soon'; use 2h, 7d or 2026-01-31T12:00"),
        (("login", "userName"), "it is required"),
        (("login", "password"), "write a text"),
    ]


def test_a_json_object_is_written_as_it_is_read():
    thing = read_json(Thing, DOCUMENT)
    document = write_json(thing)
    assert json.loads(json.dumps(document)) == document
    assert read_json(Thing, document) == thing
    assert set(document) == {"throttleRate", *DOCUMENT} - {"rateLimit", "isOn"}


FORM = {
    "name": " box ",
    "throttleRate": "5",
    "timeoutSeconds": "1.5",
    "isOn": "yes",
    "colour": "blue",
    "tags": "a, b",
    "metadata": "a = b\n\nc=d",
    "filter": '{"body": [1]}',
    "word": "abc",
    "event": "",
}


def test_a_form():
    thing = read_text(Thing, FORM)
    assert thing == Thing(
        name="box",
        throttle_rate=5,
        timeout_s=1.5,
        is_on=True,
        colour=Colour.BLUE,
        tags=["a", "b"],
        metadata={"a": "b", "c": "d"},
        filter={"body": [1]},
        word="abc",
    )
    shown = {field.public_name: show_text(field, getattr(thing, field.name)) for field in fields_of(Thing)}
    assert read_text(Thing, shown) == thing


def test_a_form_of_some_fields_resets_those_that_are_empty():
    assert parse_texts(Thing, {"throttleRate": "", "metadata": " ", "word": "abc"}) == (
        {"throttle_rate": None, "metadata": {}, "word": "abc"},
        [],
    )


def test_all_problems_of_a_form():
    with pytest.raises(InvalidValue) as caught:
        read_text(Thing, {"name": "box", "throttleRate": "5x", "isOn": "maybe", "metadata": "a", "filter": "{"})
    assert [(each.where, str(each).partition(":")[0]) for each in (caught.value, *caught.value.others)] == [
        (("throttleRate",), "write a whole number"),
        (("isOn",), "write true or false"),
        (("metadata",), "write one per line, such as name = value"),
        (("filter",), "invalid JSON"),
    ]


def test_the_schema_accepts_what_the_rules_accept():
    schema = json_schema(Thing)
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    assert validator.is_valid(write_json(read_json(Thing, DOCUMENT)))
    for name, values in INVALID.items():
        for value, text in values:
            is_checked_by_function = text is None or "even" in text or "bytes" in text or "control" in text
            document = {"name": "box", fields_by_name(Thing)[name].public_name: value}
            if not is_checked_by_function and value == value and value not in ("  ", "abc\n"):  # noqa: PLR0124
                assert not validator.is_valid(document), (name, value)


def test_the_schema_says_what_the_rules_say():
    properties = json_schema(Thing)["properties"]
    assert properties["name"] == {
        "type": "string", "minLength": 1, "maxLength": 10, "description": "Label.", "examples": ["box"],
    }  # fmt: skip
    assert properties["throttleRate"]["anyOf"][0] == {"type": "integer", "minimum": 1, "maximum": 65_535}
    assert '"maximum": 60,' in json.dumps(properties["timeoutSeconds"]).replace("}", ",")
    assert json_schema(Thing)["required"] == ["name"]
    schemas = json_schemas([Thing], "#/components/schemas/{name}")
    assert set(schemas) == {"Thing", "Login", "Colour"}
    assert schemas["Login"]["properties"]["userName"]["maxLength"] == 5
