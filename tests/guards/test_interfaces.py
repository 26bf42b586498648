"""Each operation of the catalogue stands at each interface, or is exempt with a reason; read from the real interfaces.

The command line is asked by the tree of its commands, the API by its OpenAPI document, the console by what the handlers
of its routes call. MCP is not asked: it offers what an agent needs, by a list of its own.
"""

import ast
import inspect
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pytest

from boathook.api.app import BASE, ROUTERS, openapi_document
from boathook.api.derived import DerivedRoute
from boathook.api.route import ApiRoute
from boathook.cli.commands import COMMAND_ENTRIES, _load
from boathook.service import catalogue
from boathook.service.access.authorization import ACCESS_RULES, Permission, permission_of
from boathook.service.catalogue.operation import Http, Operation, Scope, operation
from boathook.service.catalogue.values import Result
from boathook.service.catalogue.wire import PATH_FIELD
from boathook.service.fields import Input
from boathook.service.unit_of_work import UnitOfWork
from boathook_console.areas import AREAS
from boathook_console.shared.application_pages import APPLICATION_PAGES

NO_ACCESS_BY_TOKEN: Final = "no token gives anybody access: the console and the host do (decision 0069)"
CONTENT: Final = "what a law or a customer asks to delete is named by their program, not looked for on a page"
CHECK: Final = (
    "`boathook check` runs a check itself, as it must work without a server, and shows its progress and result"
)
EXEMPT: Final[Mapping[tuple[str, str], str]] = {
    ("key.get", "console"): "the list shows every field of a key",
    ("key.list", "console"): "the page lists the keys of the organization whole, with the names of their applications",
    ("operator_token.list", "console"): "the page of an operator shows all of its tokens, as the account does its own",
    ("operator.create", "api"): NO_ACCESS_BY_TOKEN,
    ("operator.enable", "api"): NO_ACCESS_BY_TOKEN,
    ("operator.password", "api"): NO_ACCESS_BY_TOKEN,
    ("operator.role", "api"): NO_ACCESS_BY_TOKEN,
    ("operator_token.create", "api"): NO_ACCESS_BY_TOKEN,
    ("integrity.start", "command line"): CHECK,
    ("integrity.list", "command line"): CHECK,
    ("integrity.get", "command line"): CHECK,
    ("integrity.stop", "command line"): CHECK,
    ("message.expunge", "console"): CONTENT,
    ("message.expunge_response", "console"): CONTENT,
    (
        "message.expunge_response",
        "command line",
    ): "the response to one attempt; the command deletes what it answers, too",
    ("recovery.resend", "console"): "the page has what repairs: it recovers what failed, and sends what is missing",
    ("silence.list", "console"): "the page shows those in force, and those of the last day, among the alerts",
    ("source.replace", "command line"): "sources change sets and removes single keys",
    ("source.replace", "console"): "the form sends all keys of the sender, and those without a field stay",
    ("event.wake", "console"): "the page of an event has a button for each of its deliveries, which does the same",
    ("delivery.retry", "console"): "the button replays a delivery in any state, which retries one that waits",
    ("application.get", "console"): "its pages and forms need the stored application, with its home",
    ("application.list", "console"): "the page searches applications, with the health of their endpoints",
    ("application.put", "command line"): "it is for programs that write an application again",
    ("application.put", "console"): "it is for programs that write an application again",
    ("endpoint.get", "command line"): "`endpoints show` has all settings, and the health that another route has",
    ("endpoint.get", "console"): "its page has all settings and statistics",
    ("endpoint.put", "command line"): "it is for programs that write an endpoint again; people create or update it",
    ("endpoint.put", "console"): "it is for programs that write an endpoint again; people create or update it",
    ("endpoint.reveal_secret", "api"): "the Svix wire has it as a GET, which is not in the audit",
    ("event_type.list", "console"): "the page lists event types on its own, with a link to the next ones",
    ("event_type.put", "command line"): "it is for programs that write an event type again; people create or update it",
    ("event_type.put", "console"): "it is for programs that write an event type again; people create or update it",
}
"""The operations that an interface lacks, with the reason."""


HOST: Final = "it is about this host: its files, its processes and its database, which a server does not hand out"
LIST: Final = "it reads; its filters, pages and columns are its own"
SENDER: Final = "it plays the sender: it asks a running gateway, and shows each answer as it comes"
BY_HAND: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        (
            "serve", "migrate", "check", "doctor", "top", "config show", "config schema",
            "config check", "spool status", "spool inspect", "spool drain", "alerts rules", "dashboards", "completion",
            "apps list", "apps forget", "apps sample", "apps metrics",
        ),
        HOST,
    ),
    **dict.fromkeys(
        (
            "sources list", "sources show", "sources providers", "events list", "events show", "deliveries list",
            "deliveries show", "dead list", "dead show", "dead groups", "rejections list", "rejections groups",
            "rejections show", "conflicts list", "conflicts groups", "conflicts show", "endpoints list",
            "endpoints show", "endpoints stats", "alerts list", "alerts history",
        ),
        LIST,
    ),
    **dict.fromkeys(("trigger", "sources test"), SENDER),
    "send": "it publishes one message to try the endpoints; programs publish by the route of messages, or in Python",
    "applications portal": "it prints a link that gives access, which the wire's route makes for programs",
    "endpoints headers": "it sets, removes and shows in one command, for which the wire has a route each",
    "endpoints reencrypt": "it needs the keys of the host, the former ones too",
}  # fmt: skip
"""The commands that derive from no operation, with the reason."""


def by_hand(tree: Mapping[str, Any]) -> set[str]:
    """Return the commands of a tree that derive from no operation."""
    return {name for name, command in tree.items() if not hasattr(command.callback, "operation")}


def tree() -> dict[str, Any]:
    """Return each command by its whole name."""
    return {name: command for top, entry in COMMAND_ENTRIES.items() for name, command in leaves(top, _load(top, entry))}


def test_a_command_derives_from_an_operation_or_says_why_not():
    assert by_hand(tree()) == BY_HAND.keys()


def test_planted_a_command_of_no_operation_is_found():
    assert by_hand({**tree(), "keys forget": tree()["dashboards"]}) - BY_HAND.keys() == {"keys forget"}


def commands() -> dict[str, str]:
    """Return the commands by the operation that each derives from."""
    return {
        each.name: name
        for name, command in tree().items()
        if hasattr(command.callback, "operation")
        for each in (command.callback.operation, *getattr(command.callback, "alternatives", ()))
    }


def leaves(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    """Yield the commands below a command, or itself, by their whole names."""
    below = getattr(command, "commands", None)
    if below is None:
        yield name, command
    else:
        for word, nested in below.items():
            yield from leaves(f"{name} {word}", nested)


def routes(document: Mapping[str, Any]) -> dict[tuple[str, str], str]:
    """Return the ids of the API's operations by method and path."""
    return {
        (method.upper(), plain(path.removeprefix(BASE))): described["operationId"]
        for path, operations in document["paths"].items()
        for method, described in operations.items()
    }


def plain(path: str) -> str:
    """Return a path without the names of its parts, and without a query."""
    return PATH_FIELD.sub("{}", path.partition("?")[0])


def pages() -> dict[str, list[str]]:
    """Return the routes of the console by the operations that their handlers call, themselves or through helpers."""
    found: dict[str, list[str]] = {}
    areas: list[Any] = [*AREAS, *APPLICATION_PAGES]
    for area in areas:
        for entry in area.entries:
            for called in called_by(entry.handler, set()):
                found.setdefault(called.name, []).append(f"{entry.method} {entry.path}")
    return found


def called_by(function: Any, seen: set[Any]) -> Iterator[Operation[Any, Any]]:
    """Yield the operations that a function names, and those that other functions of its module name which it calls."""
    function = inspect.unwrap(getattr(function, "func", function))
    if function in seen or not inspect.isfunction(function):
        return
    seen.add(function)
    for page in inspect.getclosurevars(function).nonlocals.values():  # of an application, which the portal has too
        yield from called_by(getattr(page, "handler", None), seen)
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function)))):
        value = resolve(node, function.__globals__)
        if isinstance(value, Operation):
            yield value
        elif inspect.isfunction(value) and value.__module__ == function.__module__:
            yield from called_by(value, seen)


def resolve(node: ast.AST, names: Mapping[str, Any]) -> Any:
    """Return what a name, or an attribute of a module, stands for."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute) and inspect.ismodule(module := resolve(node.value, names)):
        return getattr(module, node.attr, None)
    return None


@pytest.fixture(scope="module")
def interfaces() -> dict[str, Any]:
    return {"command line": commands(), "api": routes(openapi_document()), "console": pages()}


def missing(operations: Sequence[Operation[Any, Any]], interfaces: Mapping[str, Any]) -> set[tuple[str, str]]:
    """Return the operations that an interface lacks."""
    found = set()
    for each in operations:
        http = each.http
        has = {
            "command line": each.name in interfaces["command line"],
            "api": http is not None and (http.method, plain(http.path)) in interfaces["api"],
            "console": each.name in interfaces["console"],
        }
        found |= {(each.name, interface) for interface, is_there in has.items() if not is_there}
    return found


def test_each_operation_is_at_each_interface(interfaces: dict[str, Any]):
    assert missing(catalogue.load(), interfaces) == EXEMPT.keys(), "declare it there, or exempt it with the reason"


def test_no_permission_of_an_operation_of_the_deployment_is_for_organizations():
    """The table of permissions would say that an organization's key may run it."""
    assert [
        each.name
        for each in catalogue.load()
        if each.scope is Scope.DEPLOYMENT and ACCESS_RULES[each.permission].is_for_organization
    ] == []


def test_each_route_of_the_api_has_an_id_of_its_own(interfaces: dict[str, Any]):
    names = list(interfaces["api"].values())
    assert sorted(names) == sorted(set(names))


def wire_routes() -> dict[tuple[str, str], Permission]:
    """Return the permission of each route that is written by hand, by method and path."""
    return {
        (method, plain(route.path.removeprefix(BASE))): permission_of(route.endpoint)
        for routes in ROUTERS
        for route in routes.routes
        if isinstance(route, ApiRoute) and not isinstance(route, DerivedRoute)
        for method in route.methods
    }


WITH_PAYLOAD: Final = {"endpoint.test"}
"""Operations whose route takes a payload as well, and so requires the permission to publish."""


def differing(operations: Sequence[Operation[Any, Any]]) -> set[str]:
    """Return the operations on the Svix wire whose route there requires another permission."""
    permissions = wire_routes()
    on_wire = [(each, each.http) for each in operations if each.http is not None and not each.http.is_derived]
    return {each.name for each, http in on_wire if permissions[http.method, plain(http.path)] is not each.permission}


def test_a_route_of_the_svix_wire_requires_the_permission_of_its_operation():
    assert differing(catalogue.load()) == WITH_PAYLOAD


def test_planted_a_route_with_another_permission_is_found(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(catalogue.find("event_type.create"), "permission", Permission.KEY_MANAGE)
    assert differing(catalogue.load()) == {"event_type.create"} | WITH_PAYLOAD


def test_the_nouns_are_the_modules():
    """A module that is not named would have no interface at all."""
    assert {each.noun for each in catalogue.load()} == set(catalogue.NOUNS)
    assert len({each.name for each in catalogue.load()}) == len(catalogue.load())


class Nothing(Input, frozen=True, kw_only=True):
    """No field."""


class Done(Result, frozen=True, kw_only=True):
    """No field."""


@operation("key.forget", Permission.KEY_MANAGE, Scope.DEPLOYMENT, Http("POST", "/key/forget"), tag="API Key", undo=None)
async def forget(_work: UnitOfWork, _input: Nothing) -> Done:
    """Do what no interface knows."""
    return Done()


def test_planted_an_operation_that_no_interface_knows_is_found(interfaces: dict[str, Any]):
    found = missing([*catalogue.load(), forget], interfaces) - EXEMPT.keys()
    assert found == {("key.forget", interface) for interface in interfaces}


def test_planted_a_command_that_is_not_derived_any_more_is_found(interfaces: dict[str, Any]):
    without = {name: place for name, place in interfaces["command line"].items() if name != "dead_letter.purge"}
    found = missing(catalogue.load(), {**interfaces, "command line": without}) - EXEMPT.keys()
    assert found == {("dead_letter.purge", "command line")}
