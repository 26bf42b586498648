"""Operations of the catalogue: the check before each body, and what interfaces derive from a declaration."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from boathook.api import route
from boathook.db.database import Database
from boathook.domain import ids
from boathook.domain.errors import InvalidValue, NotAllowed, NotFound
from boathook.domain.model import Role
from boathook.service import catalogue
from boathook.service.access import keys as service_keys
from boathook.service.access.authorization import OperatorCaller, Permission, Principal
from boathook.service.caller import HOST, UNKNOWN_CALLER
from boathook.service.catalogue import keys
from boathook.service.catalogue.keys import KeyNamed, KeyScope, NewKey
from boathook.service.catalogue.operation import Operation, Scope
from boathook.service.fields import Input
from boathook.service.unit_of_work import UnitOfWork, new_id
from tests.postgres.api_client import ApiClient, make_context, make_token

OPERATIONS = catalogue.load()


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
async def test_nobody_reaches_a_body(db: Database, operation: Operation, monkeypatch: pytest.MonkeyPatch):
    """The caller is checked before anything of the input is read."""

    async def body(_work: object, _input: object) -> None:
        raise AssertionError("the body ran")

    monkeypatch.setattr(operation, "_body", body)
    async with make_context(db).work() as work:
        assert work.caller is UNKNOWN_CALLER
        with pytest.raises(NotAllowed, match="permission"):
            await operation(work, Input())
    async with make_context(db).work(caller=HOST) as work:
        with pytest.raises(AssertionError, match="the body ran"):
            await operation(work, Input())


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_a_key_of_an_organization_runs_nothing_of_the_deployment(operation: Operation):
    """The scope holds even if the table of permissions grants too much."""

    class Generous(Principal, frozen=True):
        def may(self, _permission: Permission) -> bool:
            return True

    def is_refused(organization: str = "default", **more: Any) -> bool:
        caller = Generous(key_id=new_id(), organization="default", **more)
        try:
            operation.check_caller(cast("UnitOfWork", SimpleNamespace(caller=caller, organization=organization)))
        except NotAllowed:
            return True
        return False

    assert is_refused() is (operation.scope is Scope.DEPLOYMENT)
    assert is_refused(application_id=new_id()) is (operation.scope is not Scope.APPLICATION)
    assert is_refused("other"), "the unit of work is of another organization"


def test_a_permission_of_operators_alone_is_of_the_deployment():
    """A key has none of these permissions, so an operation with one is for operators and says so."""
    whole = Principal(key_id=new_id(), organization="default")
    wrong = [
        operation.name
        for operation in OPERATIONS
        if operation.scope is not Scope.DEPLOYMENT and not whole.may(operation.permission)
    ]
    assert wrong == []


async def test_a_field_is_checked_before_the_body(db: Database):
    async with make_context(db).work(caller=HOST) as work:
        for new, where in (
            (NewKey(scope=KeyScope.ORGANIZATION, name="n" * 201), "name"),
            (NewKey(scope=KeyScope.ORGANIZATION, lifetime_seconds=0), "lifetimeSeconds"),
            (NewKey(scope=KeyScope.MOUNT, mount="yard"), "mount"),
        ):
            with pytest.raises(InvalidValue) as caught:
                await keys.create(work, new)
            assert caught.value.where == (where,)


async def test_a_role_is_checked_too(db: Database):
    async with make_context(db).work(caller=OperatorCaller(Role.OPERATOR)) as work:
        with pytest.raises(NotAllowed, match=r"key\.manage"):
            await keys.create(work, NewKey(scope=KeyScope.ORGANIZATION))
        page = await keys.list_keys(work, keys.KeyFilter())
    assert page.data == []


class _Operator(Principal, frozen=True):
    """The holder of a token with the permissions of an admin."""

    @property
    def tenant(self) -> None:  # type: ignore[override]
        return None

    def may(self, permission: Permission) -> bool:
        return OperatorCaller(Role.ADMIN).may(permission)


@pytest.fixture
async def api(db: Database, monkeypatch: pytest.MonkeyPatch):
    """A client of an operator; the token of an organization does not do."""

    async def authenticate(*_arguments: object) -> Principal:
        return _Operator(key_id=new_id(), organization="default")

    context = make_context(db)
    token = await make_token(context)
    async with ApiClient(context, token) as client:
        for method, path in (("POST", "/key"), ("GET", "/key"), ("GET", "/key/key_x"), ("POST", "/key/key_x/revoke")):
            assert (await client.ask(403, method, path))["code"] == "insufficient access"
        monkeypatch.setattr(route, "authenticate", authenticate)
        yield client


async def test_an_operator_makes_lists_and_revokes_keys_by_the_api(api: ApiClient):
    body = {"scope": "application", "application": "acme", "lifetimeSeconds": 3_600, "nmae": "x"}
    await api.ask(404, "POST", "/key", body)
    await api.ask(201, "POST", "/app", {"name": "Acme", "uid": "acme"})
    answer = await api.post("/key", json=body, headers={"idempotency-key": "once"})
    assert (answer.status_code, answer.headers["boathook-ignored"]) == (201, "nmae")
    made = answer.json()
    again = await api.post("/key", json={**body, "organization": "default"}, headers={"idempotency-key": "once"})
    assert again.json() == made, "the same request, with a default written out"
    assert (made["scope"], made["isPortal"], made["token"][:4]) == ("application", False, "bhk_")
    shown = await api.ask(200, "GET", f"/key/{made['id']}")
    assert shown == {name: value for name, value in made.items() if name != "token"}
    first = await api.ask(200, "GET", "/key?limit=1")
    second = await api.ask(200, "GET", f"/key?limit=1&iterator={first['iterator']}")
    assert [first["data"], first["done"], second["done"]] == [[shown], False, True]
    assert await api.ask(200, "POST", f"/key/{made['id']}/revoke") == {"id": made["id"], "revoked": True}
    await api.ask(404, "POST", f"/key/{made['id']}/revoke")
    await api.ask(404, "POST", "/key/nothing/revoke")
    await api.ask(404, "POST", f"/key/{made['id'][:12]}/revoke")


@pytest.mark.parametrize(
    ("method", "path", "body", "loc", "text"),
    [
        ("POST", "/key", {}, ["body", "scope"], "it is required"),
        ("POST", "/key", {"scope": "all"}, ["body", "scope"], "organization, application, mount"),
        ("POST", "/key", {"scope": "mount"}, ["body", "mount"], "enter the path, such as /api/rentprog: scope mount"),
        ("POST", "/key", {"scope": "organization", "lifetimeSeconds": 0.5}, ["body", "lifetimeSeconds"], "number"),
        ("POST", "/key", [], ["body"], "write an object"),
        ("GET", "/key?limit=0", None, ["query", "limit"], "1"),
        ("GET", "/key?limit=many", None, ["query", "limit"], "number"),
        ("GET", "/key?iterator=x", None, ["query", "iterator"], "key_"),
    ],
)
async def test_a_wrong_value_is_named(api: ApiClient, method: str, path: str, body: object, loc: list[str], text: str):
    [problem] = (await api.ask(422, method, path, body))["detail"]
    assert problem["loc"] == loc
    assert text in problem["msg"]


async def test_all_that_is_wrong_is_named_at_once(api: ApiClient):
    body = {"scope": "all", "name": "", "lifetimeSeconds": 0}
    problems = (await api.ask(422, "POST", "/key", body))["detail"]
    assert {problem["loc"][1] for problem in problems} == {"scope", "name", "lifetimeSeconds"}


async def test_keys_of_another_organization_are_not_found(db: Database):
    """The functions below the operations are limited to a tenant, even if other callers come later."""
    context = make_context(db)
    await make_token(context, "other")
    async with context.work(caller=HOST) as work:
        [key] = (await keys.list_keys(work, keys.KeyFilter(organization="other"))).data
    async with context.work() as work:
        with pytest.raises(NotFound):
            await service_keys.revoke(work, ids.read(ids.API_KEY, key.id), "default")
    async with context.work(caller=HOST) as work:
        assert (await keys.get(work, KeyNamed(id=key.id))).revoked_at is None
