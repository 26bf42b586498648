"""Limits of stored values hold in the service functions, so that each interface refuses the same value alike."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from boathook.config import load
from boathook.db.database import Database
from boathook.db.delivery_commands import AuditContext, Selection
from boathook.db.queries.listings import ListFilter
from boathook.domain.errors import InvalidValue
from boathook.domain.model import MountRole, Role
from boathook.service import limits
from boathook.service.access import operators
from boathook.service.access.keys import create_for_portal
from boathook.service.caller import HOST
from boathook.service.catalogue import event_types, keys, silences
from boathook.service.catalogue.event_types import EventTypeCreate, EventTypeUpdate
from boathook.service.catalogue.keys import KeyFilter, KeyScope, NewKey
from boathook.service.fields import check_values
from boathook.service.sending import applications, endpoint_secrets, endpoints
from boathook.service.sending.applications import NewApplication
from boathook.service.sending.endpoints import NewEndpoint
from boathook.service.unit_of_work import UnitOfWork
from tests.postgres.api_client import make_context, open_api_client
from tests.postgres.operating.dead_letter_actions import ignore_dead, purge_dead, replay_dead
from tests.postgres.operating.event_actions import replay_events, route_events
from tests.postgres.portal_client import open_console

URL = "http://127.0.0.1:8089/"
ENDPOINT = {
    "concurrency": ("concurrency", [0, -1, 1_001, 5_000]),
    "timeout_s": ("timeoutSeconds", [0.5, 61, 3_000, float("nan")]),
    "throttle_rate": ("throttleRate", [0, -5, 65_536]),
    "description": ("description", ["x" * 4_097, "a\0b"]),
    "uid": ("uid", [".", "..", "a b", "x" * 257, "ep_x"]),
    "metadata": ("metadata", [{"a": "x" * 4_096}, {"a": "\0"}]),
    "api_version": ("version", [0, 2**31]),
    "channels": ("channels", [["a b"], []]),
}
APPLICATION = {
    "name": ("name", ["", "  ", "x" * 1_001, "a\0b"]),
    "uid": ("uid", [".", "..", "app_x"]),
    "throttle_rate": ("throttleRate", [0, 65_536]),
    "metadata": ("metadata", [{"a": "x" * 4_096}]),
}
EVENT_TYPE = {
    "description": ("description", ["x" * 4_097, "a\0b"]),
    "group_name": ("groupName", ["x" * 257]),
    "feature_flags": ("featureFlags", [[""], ["x" * 257]]),
}


def cases(table: dict[str, tuple[str, list[Any]]]) -> list[Any]:
    return [
        pytest.param(name, where, value, id=f"{name}-{place}")
        for name, (where, values) in table.items()
        for place, value in enumerate(values)
    ]


async def refused(action: Callable[[], Awaitable[Any]], where: str) -> str:
    """Return why a service function refuses a value, which must be for this field."""
    with pytest.raises(InvalidValue) as found:
        await action()
    assert found.value.where[0] == where
    return str(found.value)


async def answered(client: Any, path: str, body: dict[str, Any], where: str, method: str = "POST") -> str:
    """Return why the API refuses a value, which must be for this field."""
    [problem] = (await client.ask(422, method, path, body))["detail"]
    assert problem["loc"][:2] == ["body", where]
    return str(problem["msg"])


@pytest.fixture
async def work(db: Database):
    async with make_context(db).work(actor="test", caller=HOST) as opened:
        yield opened


@pytest.mark.parametrize(("name", "where", "value"), cases(ENDPOINT))
async def test_a_wrong_value_of_an_endpoint(db: Database, name: str, where: str, value: Any):
    async with open_api_client(db) as api:
        await api.ask(201, "POST", "/app", {"name": "Acme", "uid": "acme"})
        async with api.context.work(actor="test") as work:
            acme = await applications.get(work, "acme")
            made = await endpoints.create(work, acme, NewEndpoint(url=URL))
            why = await refused(lambda: endpoints.create(work, acme, NewEndpoint(url=URL, **{name: value})), where)
            changes = {name: value}
            assert await refused(lambda: endpoints.update(work, acme, made.shown_id, changes), where) == why
        if value == value:  # noqa: PLR0124 - JSON has no NaN
            assert await answered(api, "/app/acme/endpoint", {"url": URL, where: value}, where) == why
            path = f"/app/acme/endpoint/{made.shown_id}"
            assert await answered(api, path, {where: value}, where, "PATCH") == why


@pytest.mark.parametrize(("name", "where", "value"), cases(APPLICATION))
async def test_a_wrong_value_of_an_application(db: Database, name: str, where: str, value: Any):
    async with open_api_client(db) as api:
        await api.ask(201, "POST", "/app", {"name": "Acme", "uid": "acme"})
        async with api.context.work(actor="test") as work:
            new = NewApplication(**{"name": "n", name: value})
            why = await refused(lambda: applications.create(work, new), where)
            assert await refused(lambda: applications.update(work, "acme", {name: value}), where) == why
            assert await refused(lambda: applications.put(work, "acme", new), where) == why
        assert await answered(api, "/app", {"name": "n", where: value}, where) == why
        assert await answered(api, "/app/acme", {where: value}, where, "PATCH") == why


@pytest.mark.parametrize(("name", "where", "value"), cases(EVENT_TYPE))
async def test_a_wrong_value_of_an_event_type(db: Database, name: str, where: str, value: Any):
    async with open_api_client(db) as api:
        async with api.context.work(actor="test", caller=HOST) as work:
            await event_types.create(work, EventTypeCreate(name="a.b"))
            new = EventTypeCreate(**{"name": "invoice.paid", name: value})
            why = await refused(lambda: event_types.create(work, new), where)
            change = EventTypeUpdate(**{"name": "a.b", name: value})
            assert await refused(lambda: event_types.update(work, change), where) == why
        body = {"name": "invoice.paid", "description": "", where: value}
        assert await answered(api, "/event-type", body, where) == why


@pytest.mark.parametrize("name", [".", "..", "a b", ""])
async def test_a_wrong_name_of_an_event_type(db: Database, name: str):
    async with open_api_client(db) as api:
        async with api.context.work(actor="test", caller=HOST) as work:
            new = EventTypeCreate(name=name)
            why = await refused(lambda: event_types.create(work, new), "name")
            assert await refused(lambda: event_types.put(work, new), "name") == why
        assert await answered(api, "/event-type", {"name": name, "description": ""}, "name") == why


@pytest.mark.parametrize("name", ["", " ", "n" * 201, "n" * 100_000, "a\0b"])
async def test_a_wrong_name_of_a_key(db: Database, name: str):
    async with open_console(db) as console:
        async with console.context.work(actor="test", caller=HOST) as work:
            new = NewKey(scope=KeyScope.ORGANIZATION, name=name)
            why = await refused(lambda: keys.create(work, new), "name")
        anna = await console.operator("anna", Role.ADMIN)
        form = {"name": name, "scope": "organization", "lifetime": ""}
        answer = await anna.submit_form("/console/keys", form, status=400)
        assert why in answer.text


async def test_a_key_may_have_no_name(work: UnitOfWork):
    assert (await keys.create(work, NewKey(scope=KeyScope.ORGANIZATION))).name == ""
    assert (await keys.create(work, NewKey(scope=KeyScope.ORGANIZATION, name="n" * 200))).name == "n" * 200


async def test_a_key_is_for_an_application_or_for_a_path(work: UnitOfWork):
    acme = await applications.create(work, NewApplication(name="Acme"))
    path = {"mount": "/api/rentprog", "role": MountRole.READER}
    both = NewKey(scope=KeyScope.APPLICATION, application=acme.shown_id, **path)
    assert "only a key with `scope` mount" in await refused(lambda: keys.create(work, both), "mount")
    both = replace(both, scope=KeyScope.MOUNT)
    assert "only a key with `scope` application" in await refused(lambda: keys.create(work, both), "application")


@pytest.mark.parametrize(
    ("more", "where", "shown"),
    [
        ({"mount": "", "role": "reader"}, "mount", "enter the path, such as /api/rentprog"),
        ({"mount": "rentprog", "role": "reader"}, "mount", "mount"),
        ({"mount": "/api/rentprog", "role": "owner"}, "role", "reader, operator"),
    ],
)
async def test_a_wrong_path_or_role_of_a_key(db: Database, more: dict[str, str], where: str, shown: str):
    async with open_console(db) as console:
        anna = await console.operator("anna", Role.ADMIN)
        form = {"name": "dashboard", "scope": "mount", "lifetime": "", **more}
        answer = await anna.submit_form("/console/keys", form, status=400)
        assert f'id="f-{where}-hint"' in answer.text
        assert shown in answer.text


async def test_the_console_makes_a_key_of_a_mounted_path(db: Database):
    async with open_console(db) as console:
        anna = await console.operator("anna", Role.ADMIN)
        form = {"name": "dashboard", "scope": "mount", "lifetime": "30", "mount": "/api/rentprog", "role": "reader"}
        answer = await anna.submit_form("/console/keys", form, status=200)
        assert 'reader of <span class="mono">/api/rentprog</span>' in answer.text
        async with console.context.work(actor="test", caller=HOST) as work:
            [key] = [key for key in (await keys.list_keys(work, KeyFilter())).data if key.name == "dashboard"]
        assert (key.mount, key.role, key.application) == ("/api/rentprog", MountRole.READER, None)


@pytest.mark.parametrize(
    ("more", "where"),
    [
        ({"lifetime": timedelta(minutes=59)}, "expiry"),
        ({"lifetime": timedelta(days=8)}, "expiry"),
        ({"session_id": "a b"}, "sessionId"),
        ({"feature_flags": [""]}, "featureFlags"),
    ],
)
async def test_a_wrong_value_of_a_portal_link(work: UnitOfWork, more: dict[str, Any], where: str):
    acme = await applications.create(work, NewApplication(name="Acme"))
    values = {"lifetime": timedelta(hours=1)} | more
    await refused(lambda: create_for_portal(work, acme, **values), where)


@pytest.mark.parametrize("grace", [timedelta(seconds=-1), timedelta(days=8)])
async def test_a_wrong_grace_of_a_secret(work: UnitOfWork, grace: timedelta):
    acme = await applications.create(work, NewApplication(name="Acme"))
    made = await endpoints.create(work, acme, NewEndpoint(url=URL))
    rotate = endpoint_secrets.rotate_secret
    await refused(lambda: rotate(work, acme, made.shown_id, grace=grace), "gracePeriodSeconds")


NOTES = {"long": "x" * 2_001, "huge": "x" * 1_000_000, "NUL": "a\0b", "surrogate": "a\ud800b"}


def actions(db: Database, action: AuditContext) -> dict[str, Callable[[], Awaitable[Any]]]:
    chosen = Selection(ListFilter(), [])
    return {
        "replay": lambda: replay_dead(db, chosen, action),
        "ignore": lambda: ignore_dead(db, chosen, action),
        "purge": lambda: purge_dead(db, chosen, action),
        "replay events": lambda: replay_events(db, [], action),
        "route events": lambda: route_events(db, [], action),
    }


@pytest.mark.parametrize("note", NOTES)
async def test_a_wrong_note_of_any_action(db: Database, work: UnitOfWork, note: str):
    why = await refused(lambda: _raise_for(NOTES[note]), "note")
    for action in actions(db, AuditContext(actor="cli", note=NOTES[note])).values():
        assert await refused(action, "note") == why
    silence = silences.NewSilence(note=NOTES[note])
    assert await refused(lambda: silences.create(replace(work, caller=HOST), silence), "note") == why


async def _raise_for(note: str) -> None:
    limits.check_note(note)


async def test_ignoring_needs_a_note(db: Database):
    for note in (None, "", "  "):
        ignore = actions(db, AuditContext(actor="cli", note=note))["ignore"]
        assert await refused(ignore, "note") == "write a note that says why; it is kept"


@pytest.mark.parametrize("rate", [0, -1, 0.0001, 100_001, float("nan"), float("inf")])
async def test_a_wrong_rate_of_a_replay(db: Database, rate: float):
    action = AuditContext(actor="cli")
    await refused(lambda: replay_dead(db, Selection(ListFilter(), []), action, rate=rate), "rate")
    await refused(lambda: replay_events(db, [], action, rate=rate), "rate")
    await refused(lambda: route_events(db, [], action, rate=rate), "rate")


async def test_mutant_a_check_in_the_api_model_alone_lets_others_store_it(
    work: UnitOfWork, monkeypatch: pytest.MonkeyPatch
):
    acme = await applications.create(work, NewApplication(name="Acme"))
    monkeypatch.setattr(endpoints, "read_values", _unchecked)
    made = await endpoints.create(work, acme, NewEndpoint(url=URL, concurrency=5_000))
    assert made.concurrency == 5_000


async def _unchecked(_work: UnitOfWork, values: dict[str, Any], **_: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name != "retry"}


def test_the_defaults_of_the_settings_are_within_the_limits():
    outbound = load(None).outbound
    check_values(NewEndpoint, {"timeout_s": outbound.timeout_s})


@pytest.mark.parametrize("name", [".", ".."])
async def test_a_name_of_an_operator_that_no_path_can_end_in(work: UnitOfWork, name: str):
    assert "no path can end in" in await refused(lambda: operators.create(work, name, Role.VIEWER), "name")
