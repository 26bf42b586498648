"""The table of permissions: complete, enforced by every route, and mutants without each check."""

import re
from pathlib import Path

import httpx
import pytest
from starlette.responses import Response

import boathook_pages
from boathook.api import app as api_module
from boathook.api import build_api
from boathook.api import route as calls
from boathook.domain.model import MountRole, Role
from boathook.observability.live_metrics import LiveMetrics
from boathook.service.access.authorization import (
    ACCESS_RULES,
    Capability,
    OperatorTokenCaller,
    Permission,
    Principal,
    permission_of,
    requires,
    role_may,
)
from boathook.service.unit_of_work import new_id
from boathook_console import overview
from boathook_console import routes as pages
from tests.permission_matrix import (
    TOKENS,
    Ask,
    api_asks,
    client_with,
    console_asks,
    is_covered,
    is_covered_for_token,
    is_granted,
    portal_asks,
    walk,
    wrong,
)
from tests.postgres.api_client import make_context, make_operator_token, make_token
from tests.postgres.portal_client import ORIGIN, ConsoleApp, Tenant, build_site, open_console

ENDLESS = ("/listen", "/live")
BESIDES = {
    Permission.PUBLIC, Permission.APP_CALL, Permission.APP_READ, Permission.TOKEN_END, Permission.DESTINATION_CHOOSE,
}  # fmt: skip
"""Permissions checked outside of an area's routes: files, mounted apps, the portal's sign-out, values of endpoints."""


@pytest.fixture
async def console(db):
    async with open_console(db) as console:
        yield console


def fill(tenant: Tenant, path: str) -> str:
    path = re.sub(r":\w+}", "}", path)  # a parameter's converter
    values = dict.fromkeys(re.findall(r"{(\w+)}", path), "nothing")
    application, endpoint = tenant.application.shown_id, tenant.endpoint.shown_id
    known = {"app_id": application, "application": application, "endpoint_id": endpoint, "endpoint": endpoint}
    return path.format(**{**values, **{name: known[name] for name in values.keys() & known.keys()}})


def without_streams(asks: list[Ask]) -> list[Ask]:
    """Return all routes but streaming ones, whose responses never end."""
    return [one for one in asks if not one.path.endswith(ENDLESS)]


# The table


def test_each_permission_has_a_rule_and_is_used():
    asked = {one.permission for one in (*api_asks(), *console_asks(), *portal_asks())}
    assert set(Permission) == set(ACCESS_RULES)
    assert set(Permission) - asked <= BESIDES
    for permission in set(Permission) - asked:
        assert any(f"Permission.{permission.name}" in text for text in _sources()), permission


def _sources() -> list[str]:
    root = Path(boathook_pages.__file__).parents[1]
    return [file.read_text() for file in root.rglob("*.py") if file.name != "authorization.py"]


def test_pages_ask_for_permissions_by_their_names():
    root = Path(boathook_pages.__file__).parents[1]
    words = [
        word
        for file in root.glob("boathook*/**/templates/**/*.html")
        for word in re.findall(r'\b(?:can|may)\("([^"]*)"\)', file.read_text())
    ]
    assert len(words) > 20
    assert set(words) <= {str(one) for one in Permission}


@pytest.mark.parametrize(
    ("principal", "may"),
    [
        ({}, {Permission.APPLICATION_LIST, Permission.ENDPOINT_SECRET_VIEW, Permission.APP_CALL}),
        ({"capabilities": frozenset()}, set()),
        ({"is_portal": True}, set()),
    ],
)
def test_a_limited_token_has_no_organization_permissions(principal, may):
    """No such key exists today; a future one is refused unless the table allows it."""
    holder = Principal(key_id=new_id(), organization="default", **principal)
    asked = {Permission.APPLICATION_LIST, Permission.ENDPOINT_SECRET_VIEW, Permission.APP_CALL}
    assert {one for one in asked if holder.may(one)} == may


@pytest.mark.parametrize("kind", [kind for kind in TOKENS if kind != "nobody"])
def test_a_token_has_the_permissions_of_the_table(kind: str):
    application = None if kind == "organization" else new_id()
    granted = {"organization": None, "application": None, "portal": None, "read-only": frozenset({"ViewBase"})}
    holder = Principal(
        key_id=new_id(),
        organization="default",
        application_id=application,
        capabilities=granted.get(kind, frozenset({kind})),
        is_portal=kind not in {"organization", "application"},
    )
    assert [one for one in Permission if holder.may(one) is not is_granted(ACCESS_RULES[one], kind)] == []


@pytest.mark.parametrize(
    ("role", "granted"),
    [
        (MountRole.READER, {Permission.PUBLIC, Permission.APP_READ}),
        (MountRole.OPERATOR, {Permission.PUBLIC, Permission.APP_READ, Permission.APP_CALL}),
    ],
)
def test_a_mounts_token_may_only_call_its_mount(role: MountRole, granted: set[Permission]):
    holder = Principal(key_id=new_id(), organization="default", mount="/yard", mount_role=role)
    assert not holder.is_for_organization
    assert {one for one in Permission if holder.may(one)} == granted


@pytest.mark.parametrize("role", Role)
def test_an_operator_has_the_permissions_of_the_table(role: Role):
    wrong = [one for one in Permission if role_may(role, one) is not is_covered(ACCESS_RULES[one], role)]
    assert wrong == [Permission.PUBLIC]


@pytest.mark.parametrize("role", Role)
def test_an_operators_token_has_the_permissions_of_the_table(role: Role):
    holder = OperatorTokenCaller(token_id=new_id(), operator_id=new_id(), operator="anna", role=role)
    assert [one for one in Permission if holder.may(one) is not is_covered_for_token(ACCESS_RULES[one], role)] == []


def test_no_operators_token_gives_access_to_operators():
    """Facts of the table, written a second time."""
    holder = OperatorTokenCaller(token_id=new_id(), operator_id=new_id(), operator="anna", role=Role.ADMIN)
    refused = {one for one in Permission if role_may(Role.ADMIN, one) and not holder.may(one)}
    assert refused == {Permission.ACCOUNT, Permission.OPERATOR_ACCESS_MANAGE}
    assert not {one.path for one in api_asks() if one.permission in refused}, "for pages of the console"


def test_no_token_has_operator_or_source_secret_permissions():
    """Facts of the table, written a second time."""
    whole = Principal(key_id=new_id(), organization="default")
    refused = {one for one in Permission if not whole.may(one)}
    assert refused >= {
        Permission.ACCOUNT,
        Permission.AUDIT_VIEW,
        Permission.DEAD_LETTER_PURGE,
        Permission.EVENT_REVEAL,
        Permission.KEY_MANAGE,
        Permission.OPERATOR_ACCESS_MANAGE,
        Permission.OPERATOR_MANAGE,
        Permission.SETTINGS_VIEW,
        Permission.SOURCE_SECRET_MANAGE,
        Permission.TOKEN_END,
    }


# A route without a permission


async def forgotten(_request: object) -> Response:
    return Response("open")


def test_a_route_without_a_permission_is_no_route():
    routes = calls.router("Thing")
    with pytest.raises(TypeError, match="forgotten names no permission"):
        routes.get("/thing")(forgotten)
    routes.get("/thing")(requires(Permission.MESSAGE_VIEW)(lambda: None))


@pytest.fixture
def plain_route(monkeypatch):
    """Add a route that is not an `ApiRoute`, as a careless change would."""
    planted = calls.router("Thing")
    planted.add_route("/thing", forgotten)
    monkeypatch.setattr(api_module, "ROUTERS", (*api_module.ROUTERS, planted))
    api_module.build_app.cache_clear()
    yield
    api_module.build_app.cache_clear()


def test_the_api_does_not_start_with_a_route_without_permission(db, plain_route):
    with pytest.raises(TypeError, match="forgotten names no permission"):
        build_api(make_context(db))


async def test_without_the_start_check_a_route_without_permission_is_open(db, plain_route, monkeypatch):
    monkeypatch.setattr(api_module, "check_routes", lambda _routes: None)
    client = client_with(ORIGIN, transport=httpx.ASGITransport(build_api(make_context(db))))
    assert (await client.get("/thing")).text == "open"


def test_the_console_does_not_start_with_a_route_without_permission(db, monkeypatch):
    monkeypatch.setattr(
        overview.routes, "entries", [*overview.routes.entries, pages.RouteSpec("GET", "/x", None, forgotten)]
    )
    with pytest.raises(TypeError, match="names no permission"):
        build_site(make_context(db), LiveMetrics(None))


# Without the decision


async def api_faults(console: ConsoleApp) -> list[str]:
    tenant = await console.tenant("api-reader")
    token = await console.token(tenant, capabilities=[Capability.VIEW_BASE])
    client = client_with(ORIGIN, token, transport=httpx.ASGITransport(build_api(console.context)))
    found = await walk(client, without_streams(api_asks()), lambda path: fill(tenant, path))
    return wrong(found, {401, 403}, lambda rule: is_granted(rule, "read-only"))


async def mount_faults(console: ConsoleApp) -> list[str]:
    tenant = await console.tenant("mount-operator")
    token = await make_token(console.context, mount="/yard", role=MountRole.OPERATOR)
    client = client_with(ORIGIN, token, transport=httpx.ASGITransport(build_api(console.context)))
    found = await walk(client, without_streams(api_asks()), lambda path: fill(tenant, path))
    return wrong(found, {401, 403}, lambda rule: rule.is_public)


async def operator_token_faults(console: ConsoleApp, role: Role) -> list[str]:
    tenant = await console.tenant(f"tenant-{role}")
    token = await make_operator_token(console.context, f"holder-{role}", role)
    client = client_with(ORIGIN, token, transport=httpx.ASGITransport(build_api(console.context)))
    found = await walk(client, without_streams(api_asks()), lambda path: fill(tenant, path))
    return wrong(found, {401, 403}, lambda rule: is_covered_for_token(rule, role))


async def console_faults(console: ConsoleApp) -> list[str]:
    tenant = await console.tenant("viewed")
    client = await console.operator(role=Role.VIEWER)
    found = await walk(client, without_streams(console_asks()), lambda path: fill(tenant, path))
    return wrong(found, {401, 403}, lambda rule: is_covered(rule, Role.VIEWER))


async def portal_faults(console: ConsoleApp) -> list[str]:
    tenant = await console.tenant("portal-reader")
    client = await console.portal_session(tenant, capabilities=[Capability.VIEW_BASE])
    found = await walk(client, without_streams(portal_asks()), lambda path: fill(tenant, path))
    return wrong(found, {401, 403}, lambda rule: is_granted(rule, "read-only"))


async def test_every_route_enforces_its_permission(console: ConsoleApp):
    assert await api_faults(console) == []
    assert await mount_faults(console) == []
    assert await console_faults(console) == []
    assert await portal_faults(console) == []


@pytest.mark.parametrize("role", Role)
async def test_every_route_enforces_the_role_of_an_operators_token(console: ConsoleApp, role: Role):
    assert await operator_token_faults(console, role) == []


@pytest.mark.extended("the mutant of a test that stays: it shows that the test can fail")
async def test_without_the_decision_about_operators_tokens_open_routes_are_found(console, monkeypatch):
    monkeypatch.setattr(OperatorTokenCaller, "may", lambda _caller, _permission: True)
    assert len(await operator_token_faults(console, Role.VIEWER)) > 20


@pytest.mark.extended("the mutant of a test that stays: it shows that the test can fail")
async def test_without_the_decision_about_tokens_the_walks_find_open_routes(console, monkeypatch):
    monkeypatch.setattr(Principal, "may", lambda _principal, _permission: True)
    assert len(await api_faults(console)) > 20
    assert len(await mount_faults(console)) > 20
    assert len(await portal_faults(console)) > 10


@pytest.mark.extended("the mutant of a test that stays: it shows that the test can fail")
async def test_without_the_role_check_open_pages_are_found(console, monkeypatch):
    monkeypatch.setattr(pages, "role_may", lambda _role, _permission: True)
    assert len(await console_faults(console)) > 20


@pytest.mark.extended("the mutant of a test that stays: it shows that the test can fail")
async def test_one_route_with_a_lesser_permission_is_found(console, monkeypatch):
    path = "/api/v1/app/{app_id}/endpoint/{endpoint_id}/headers"
    routes = [one for router in api_module.ROUTERS for one in router.routes if isinstance(one, calls.ApiRoute)]
    (route,) = [one for one in routes if one.path == path and "PATCH" in (one.methods or ())]
    assert permission_of(route.endpoint) is Permission.ENDPOINT_MANAGE
    monkeypatch.setattr(route, "_permission", Permission.ENDPOINT_VIEW)
    (fault,) = await api_faults(console)
    assert fault.startswith(f"PATCH {path}")
