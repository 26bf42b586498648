"""Each number of a resource or of an operation has the same limits at every interface.

Below its lowest value, at it, at its highest and above, and what is no such number: each interface answers as the row
of the field says. The command line is asked by the parameters of its real commands.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Final

import msgspec
import pytest
import typer
from pydantic import ValidationError

from boathook import config
from boathook.cli.commands import COMMAND_ENTRIES, _load
from boathook.cli.context import UsageError
from boathook.cli.derived import _value
from boathook.cli.field_options import read_options
from boathook.config import SourceSettings
from boathook.config.notifications import RuleSettings
from boathook.config.sources import _INLINE_KEYS
from boathook.db.database import Database
from boathook.domain.errors import ConfigError, InvalidValue
from boathook.domain.model import Role
from boathook.handlers.manifest import Manifest
from boathook.ingest.reply_waiter import inline_sources
from boathook.service import catalogue
from boathook.service.caller import HOST
from boathook.service.catalogue import sources
from boathook.service.field_values import read_json, read_text
from boathook.service.fields import Field, Kind, fields_of, find_fault, problems_in
from boathook.service.receiving.source_fields import COMMON_FIELDS, parse_setting
from boathook.service.receiving.sources import view_of
from boathook.service.sending import applications, endpoints
from boathook.service.sending.applications import NewApplication
from boathook.service.sending.endpoint_fields import NewEndpoint
from boathook_mcp.server import TOOLS
from tests.alert_harness import settings_of
from tests.guards.test_interfaces import leaves
from tests.postgres.api_client import KEY, ApiClient, open_api_client
from tests.postgres.portal_client import open_console

URL: Final = "http://127.0.0.1:8089/"
HUGE: Final = 10**12
WRONG: Final = (math.nan, math.inf, "many")
NUMBERS: Final = frozenset({Kind.INTEGER, Kind.NUMBER})


def samples(minimum: float | None, maximum: float | None) -> list[Any]:
    """Return the values at the ends of a range and just beyond, and what is in no range."""
    low = [-1, 0] if minimum is None else [minimum - 1, minimum]
    high = [HUGE] if maximum is None else [maximum, maximum + 1]
    return [*low, *high, *WRONG]


def samples_of(field: Field) -> list[Any]:
    fractions = [1.5] if field.kind is Kind.INTEGER else []
    return [*samples(field.rule.minimum, field.rule.maximum), *fractions, -HUGE]


def is_number(value: Any) -> bool:
    return not isinstance(value, str) and math.isfinite(value)


def numbers_of(table: type[msgspec.Struct]) -> list[Field]:
    return [field for field in fields_of(table) if field.kind in NUMBERS and not field.is_list]


def same(field: Field, value: Any, outcome: str | None, where: str) -> None:
    """Assert that an interface refuses a value if the row of its field does; with the same words if it is a number."""
    expected = find_fault(field, value)
    assert (outcome is None) is (expected is None), f"{where}: {field.name} {value}: {outcome}, not {expected}"
    is_whole = is_number(value) and (field.kind is Kind.NUMBER or float(value).is_integer())
    if expected is not None and is_whole:
        assert outcome == expected, f"{where}: {field.name} {value}"


def parameter(command: Any, name: str) -> Any | None:
    """Return the parameter of a command for a field; None if it has none."""
    return next((each for each in command.params if each.name == name), None)


COMMANDS: Final[dict[str, Any]] = {
    name: command for top, entry in COMMAND_ENTRIES.items() for name, command in leaves(top, _load(top, entry))
}


def by_option(
    command: Any, field: Field, value: Any, table: type[msgspec.Struct], read: Callable[[Any], Mapping[str, Any]]
) -> str | None:
    """Return why a command refuses the value of an option; None if it takes it."""
    option = parameter(command, field.name)
    assert option is not None
    try:
        parsed = option.process_value(command.context_class(command), str(value))
        problems = problems_in(table, read(parsed))
    except (typer.BadParameter, UsageError) as error:
        return str(error)
    return problems[0].text if problems else None


# Endpoints and applications


OF_RESOURCES: Final = [
    pytest.param(table, field, id=f"{table.__name__}.{field.name}")
    for table in (NewEndpoint, NewApplication)
    for field in numbers_of(table)
]
PATHS: Final = {NewEndpoint: "/app/acme/endpoint", NewApplication: "/app"}
PAGES: Final = {
    NewEndpoint: ("/console/applications/acme/endpoints", "/console/applications/acme/endpoints/new"),
    NewApplication: ("/console/applications", "/console/applications/new"),
}
GROUPS: Final = {NewEndpoint: "endpoints", NewApplication: "applications"}


def body_of(table: type[msgspec.Struct]) -> dict[str, Any]:
    return {"url": URL} if table is NewEndpoint else {"name": "Numbers"}


async def by_api(api: ApiClient, method: str, path: str, body: Mapping[str, Any], name: str) -> str | None:
    """Return why the API refuses a body; None if it takes it."""
    response = await api.request(method, path, content=json.dumps(body), headers={"content-type": "application/json"})
    if response.is_success:
        return None
    detail = response.json()["detail"]
    [problem] = detail if isinstance(detail, list) else [{"loc": [name], "msg": str(detail)}]
    assert problem["loc"][-1] == name or not is_number(body.get(name, math.nan)), problem
    return str(problem["msg"])


async def by_service(api: ApiClient, table: Any, values: Mapping[str, Any]) -> str | None:
    """Return why a service function, which an app calls too, refuses values; None if it takes them."""
    try:
        async with api.context.work(actor="app:shop") as work:
            if table is NewApplication:
                await applications.put(work, "numbers", table(name="Numbers", **values))
            else:
                await endpoints.put(work, await applications.get(work, "acme"), "numbers", table(url=URL, **values))
    except InvalidValue as error:
        return str(error)
    return None


@pytest.mark.parametrize(("table", "field"), OF_RESOURCES)
async def test_a_number_of_a_resource_has_the_same_limits_everywhere(db: Database, table: Any, field: Field):
    name, path = field.public_name, PATHS[table]
    async with open_api_client(db) as api, open_console(db) as console:
        await api.ask(201, "POST", "/app", {"name": "Acme", "uid": "acme"})
        existing = (await api.ask(201, "POST", path, body_of(table)))["id"]
        anna = await console.operator("anna", Role.ADMIN)
        for value in samples_of(field):
            body = {name: value}
            same(field, value, await by_api(api, "POST", path, body_of(table) | body, name), "POST")
            same(field, value, await by_api(api, "PATCH", f"{path}/{existing}", body, name), "PATCH")
            same(field, value, await by_api(api, "PUT", f"{path}/{existing}", body_of(table) | body, name), "PUT")
            same(field, value, await by_service(api, table, {field.name: value}), "service")
            if field.rule.section:
                page, on = PAGES[table]
                form = {**body_of(table), name: str(value)}
                await anna.submit_form(page, form, on=on, status=303 if find_fault(field, value) is None else 400)


@pytest.mark.parametrize("command", ["create", "update"])
@pytest.mark.parametrize(("table", "field"), OF_RESOURCES)
def test_an_option_of_a_resource_has_the_same_limits(table: Any, field: Field, command: str):
    real = COMMANDS[f"{GROUPS[table]} {command}"]
    if parameter(real, field.name) is None:
        assert field.rule.is_deprecated, "only a field for older clients has no option"
    else:
        check_option(real, table, field)


def check_option(command: Any, table: type[msgspec.Struct], field: Field) -> None:
    """Assert that a command takes what the row of a field allows; 0 removes a value."""
    for value in samples_of(field):
        if value != 0:
            outcome = by_option(command, field, value, table, lambda parsed: read_options(table, {field.name: parsed}))
            same(field, value, outcome, "option")


# Operations and tools


TABLES: Final = {
    **{operation.name: operation.input for operation in catalogue.load()},
    **{f"tool {tool.name}": tool.input for tool in TOOLS},
}
OF_ACTIONS: Final = [
    pytest.param(name, table, field, id=f"{name} {field.name}")
    for name, table in TABLES.items()
    for field in numbers_of(table)
]


def refusal(field: Field, read: Callable[[], object]) -> str | None:
    """Return what is wrong with a field when an input is read; None if it is right, whatever else is missing."""
    try:
        read()
    except InvalidValue as error:
        found = [str(each) for each in (error, *error.others) if each.where[:1] == (field.public_name,)]
        return found[0] if found else None
    return None


def commands_of(name: str) -> Iterator[Any]:
    for command in COMMANDS.values():
        operation = getattr(command.callback, "operation", None)
        if operation is not None and operation.name == name:
            yield command


@pytest.mark.parametrize(("name", "table", "field"), OF_ACTIONS)
def test_a_number_of_an_action_has_the_same_limits_everywhere(name: str, table: Any, field: Field):
    for value in samples_of(field):
        same(field, value, refusal(field, lambda: read_json(table, {field.public_name: value})), "body")  # noqa: B023
        same(field, value, refusal(field, lambda: read_text(table, {field.public_name: str(value)})), "query")  # noqa: B023
        is_wrong = find_fault(field, value) is not None
        assert bool(problems_in(table, {field.name: value})) is is_wrong
        for command in commands_of(name):
            option = parameter(command, field.name)
            if value != 0 and field.name != "limit" and option is not None and not field.rule.is_duration:
                outcome = by_option(
                    command, field, value, table,
                    lambda parsed: {field.name: _value(table, field, parsed)},
                )  # fmt: skip
                same(field, value, outcome, "option")


# Sources and alert rules, whose rows are those of the settings


def limits_of(model: Any, key: str) -> tuple[float | None, float | None]:
    """Return the limits of a key in the JSON Schema of boathook.toml."""
    schema = model.model_json_schema()["properties"][key]
    branches = [schema, *schema.get("anyOf", ())]
    lowest = [part[word] for part in branches for word in ("minimum", "exclusiveMinimum") if word in part]
    highest = [part["maximum"] for part in branches if "maximum" in part]
    return min(lowest, default=None), min(highest, default=None)


def by_file(values: Mapping[str, Any]) -> str | None:
    """Return why boathook.toml may not have a source with these keys; None if it may."""
    try:
        own = {"sources": {"numbers": {"provider": "github", "secrets": ["long enough"], **values}}}
        settings = config.load(None, own)
        inline_sources(settings)  # as a gateway that starts
        return view_of(settings, "numbers").trouble or None
    except ConfigError as error:
        return str(error)


SOURCE_KEYS: Final = [key for key, field in COMMON_FIELDS.items() if field.kind in NUMBERS or key == "fallback_status"]


@pytest.mark.parametrize("key", SOURCE_KEYS)
async def test_a_number_of_a_source_has_the_same_limits_everywhere(db: Database, key: str, tmp_path: Any):
    more = {"mode": "inline"} if key in _INLINE_KEYS else {}
    own = {"server__data_dir": str(tmp_path), "outbound__encryption_keys": [KEY]}
    async with open_api_client(db, **own) as api:
        for number, value in enumerate([*samples(*limits_of(SourceSettings, key)), 200, HUGE, -HUGE, 0.5]):
            in_file = by_file({**more, key: value})
            new = {"name": f"api-{number}", "provider": "github", "generateSecret": True}
            over_api = await by_api(api, "POST", "/source", new | {"settings": {**more, key: value}}, key)
            try:
                typed = parse_setting(COMMON_FIELDS[key], str(value))
                async with api.context.work(actor="console:anna", caller=HOST) as work:
                    source = sources.NewSource(
                        name=f"form-{number}", provider="github", settings={**more, key: typed}, generate_secret=True
                    )
                    await sources.create(work, source)
                in_form = None
            except InvalidValue as error:
                in_form = str(error)
            outcomes = {"file": in_file, "API": over_api, "form and option": in_form}
            assert len({outcome is None for outcome in outcomes.values()}) == 1, f"{value}: {outcomes}"
            if not is_number(value):
                assert in_file is not None
            elif in_file is not None:
                assert over_api == in_form
                assert str(over_api) in in_file


RULE_KEYS: Final = [
    name for name, field in RuleSettings.model_fields.items() if field.annotation in {float, float | None}
]


@pytest.mark.parametrize("key", RULE_KEYS)
def test_a_number_of_an_alert_rule_has_the_same_limits_everywhere(key: str):
    """A threshold that is no number would never be reached."""
    for value in [*samples(*limits_of(RuleSettings, key)), -HUGE]:
        rule = {"metric": "boathook_oldest_due_seconds", "above": 1.0, key: value}
        is_wrong = [
            is_refused(lambda: settings_of(rules={"mine": rule}), ValidationError),  # noqa: B023
            is_refused(lambda: Manifest().add_alert_rule("shop.mine", rule), ConfigError),  # noqa: B023
        ]
        assert is_wrong[0] is is_wrong[1], value
        assert is_wrong[0] or is_number(value), value


def is_refused(read: Callable[[], object], error: type[Exception]) -> bool:
    try:
        read()
    except error:
        return True
    return False


# Mutants


def timeout() -> Field:
    return next(field for field in numbers_of(NewEndpoint) if field.name == "timeout_s")


def test_mutant_an_option_with_limits_of_its_own_is_seen():
    group = typer.Typer()

    @group.command()
    def create(timeout_s: Annotated[float | None, typer.Option("--timeout", min=1, max=30)] = None) -> None:
        """Have another limit."""

    with pytest.raises(AssertionError, match="option: timeout_s 60"):
        check_option(typer.main.get_command(group), NewEndpoint, timeout())


def test_mutant_a_check_that_lets_nan_pass_is_seen():
    with pytest.raises(AssertionError, match="nan"):
        same(timeout(), math.nan, None, "service")
    with pytest.raises(AssertionError):
        same(timeout(), 61, "must be at most 60", "service")
