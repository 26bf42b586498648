"""No operation reaches what belongs to another organization, whichever way it selects: all operations of the catalogue.

Two organizations have two applications each. In each application the same handler failed with the same error, so that
all of them share one group of dead letters; the default organization has inbound events too.
"""

import hashlib
import hmac
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock
from uuid import UUID

import pytest

from boathook.db import api_keys, delivery_commands, tasks
from boathook.db import applications as application_rows
from boathook.db import event_types as event_type_rows
from boathook.db.database import Database
from boathook.db.queries import listings
from boathook.db.route_registry import register
from boathook.delivery import tasks as runner
from boathook.domain import ids
from boathook.domain.errors import BoathookError, NotAllowed, NotFound
from boathook.domain.model import Role, Route
from boathook.handlers.outbox import Outbox
from boathook.service import catalogue, id_prefixes
from boathook.service.access.authorization import OperatorCaller, OperatorTokenCaller, Permission, Principal
from boathook.service.caller import HOST
from boathook.service.catalogue import (
    conflicts,
    dead_letters,
    deliveries,
    endpoints,
    event_types,
    events,
    keys,
    operator_tokens,
    operators,
    recovery,
    rejections,
    selection,
    silences,
    source_secrets,
    sources,
)
from boathook.service.catalogue.conflicts import Difference
from boathook.service.catalogue.events import Events
from boathook.service.catalogue.operation import Operation, Scope
from boathook.service.catalogue.selection import DeadLetters
from boathook.service.catalogue.stored_requests import RequestsActed
from boathook.service.job_steps import make_service_step
from boathook.service.operating import tasks as service_tasks
from boathook.service.sending import applications as application_service
from boathook.service.sending import endpoints as endpoint_service
from boathook.service.sending.endpoint_fields import NewEndpoint
from boathook.service.unit_of_work import AppContext, new_id
from tests.alert_harness import settings_of, webhook
from tests.endpoint_factory import add_application
from tests.postgres.api_client import KEY, make_context, make_token
from tests.postgres.db.test_integrity import Store
from tests.postgres.operating.test_operations import mark_dead

OPERATIONS = catalogue.load()
OWN, OTHER = "b", "default"
SHARED_TYPE = "invoice.paid"
"""An event type that both organizations have."""


def only_type(organization: str) -> str:
    """Return the name of the event type that only this organization has."""
    return f"only.{organization}"


def described(organization: str) -> str:
    """Return the description of the event types of an organization."""
    return f"written by {organization}"


class Generous(Principal, frozen=True):
    """A key that the table of permissions would grant everything: what is left is the scope of the SQL."""

    def may(self, _permission: Permission) -> bool:
        return True


@dataclass
class Tenant:
    """An organization with its applications, dead letters and key."""

    organization: str
    applications: list[str]
    letters: list[str]
    key: str
    job: str
    conflicts: list[str]
    endpoints: list[str]


@dataclass
class World:
    """Two organizations in one deployment."""

    store: Store
    context: AppContext
    own: Tenant
    other: Tenant
    group: str
    rejections: list[str]
    """Those of the default organization, which all sources belong to."""
    secret: str
    """One of the secrets of the source ``shop``."""
    silence: str
    """A silence in force; with the operators ``olga`` and ``ben``, what the deployment has that no organization has."""
    token: str
    """A token of the operator ``olga``."""

    async def deployment(self) -> list[Any]:
        """Return all that the operations of the deployment might change of silences, operators and their tokens."""
        rows = await self.store.db.fetch(
            "select 'silence', id::text, ended_at::text, rule, null from boathook.alert_silence"
            " union all select 'operator', name, disabled_at::text, role::text, password_hash"
            " from boathook.operator"
            " union all select 'token', id::text, revoked_at::text, name, null from boathook.operator_token"
            " union all select 'test', id::text, subject, null, null from boathook.audit where action = 'alert.test'"
            " order by 1, 2"
        )
        return [tuple(row) for row in rows]

    def work(self, application: UUID | None = None) -> Any:
        """Open a unit of work of the first organization, whose key, or that of an application, may do everything."""
        caller = Generous(key_id=UUID(int=0), organization=OWN, application_id=application)
        return self.context.work(OWN, "test", caller)

    async def run_jobs(self) -> None:
        """Run all jobs to their end; the key that started them is valid."""
        step = make_service_step(self.context.settings, self.store.db)
        while await runner.run_step(self.store.db, Outbox(), step):
            pass

    async def rows_of(self, tenant: Tenant) -> list[Any]:
        """Return all that an operation might change of an organization."""
        events = [ids.read_delivery(name)[0] for name in tenant.letters]
        deliveries = await self.store.db.fetch(
            "select event_id, ordinal, state, replays from boathook.delivery where event_id = any ($1)"
            " union all select event_id, ordinal, state, replays from boathook.delivery_archive where event_id = any ($1)"
            " order by 1, 2",
            events,
        )
        revoked = await self.store.db.fetch(
            "select id, revoked_at from boathook.api_key where organization = $1 order by id", tenant.organization
        )
        accepted = await self.store.db.fetch(
            "select id, accepted_as from boathook.conflict where id = any ($1) order by id",
            [ids.read(ids.CONFLICT, name) for name in tenant.conflicts],
        )
        verified = await self.store.db.fetch(
            "select id, event_id from boathook.rejection where $1 = 'default' order by id", tenant.organization
        )
        sources = await self.store.db.fetch(
            "select name, encrypted, changed_by from boathook.source where $1 = 'default' order by name",
            tenant.organization,
        )
        secrets = await self.store.db.fetch(
            "select id, expires_at from boathook.source_secret where $1 = 'default' order by id", tenant.organization
        )
        contents = await self.store.db.fetch(
            "select id, expunged_at, octet_length(body) from boathook.event where id = any ($1) order by 1", events
        )
        types = await self.store.db.fetch(
            "select name, description, is_archived, updated_at from boathook.event_type where organization = $1"
            " order by name",
            tenant.organization,
        )
        owned = await self.store.db.fetch(
            "select id, uid, name, throttle_rate, updated_at, deleted_at from boathook.application"
            " where id = any ($1) order by id",
            [ids.read(ids.APPLICATION, name) for name in tenant.applications],
        )
        endpoints = await self.store.db.fetch(
            "select id, is_disabled, updated_at, deleted_at,"
            " (select count(*) from boathook.endpoint_secret s where s.endpoint_id = e.id),"
            " (select count(*) from boathook.task t where t.endpoint_id = e.id),"
            " (select count(*) from boathook.audit a where a.subject = any ($2))"
            " from boathook.endpoint e where application_id = any ($1) order by id",
            [ids.read(ids.APPLICATION, name) for name in tenant.applications],
            tenant.endpoints,
        )
        return [
            tuple(row)
            for row in (
                *deliveries,
                *revoked,
                *contents,
                *accepted,
                *verified,
                *sources,
                *secrets,
                *types,
                *owned,
                *endpoints,
            )
        ]


async def make_tenant(store: Store, context: AppContext, organization: str) -> Tenant:
    applications = [await add_application(store.db, f"{organization}-{number}", organization) for number in range(2)]
    endpoints = await add_endpoints(context, organization, applications)
    tenant = Tenant(organization, applications, [], "", await add_job(context, organization), [], endpoints)
    for number in range(2):
        tenant.letters.append(await add_letter(store, tenant, f"{organization}-{number}", number))
    if organization == OTHER:
        [inbound] = await mark_dead(store, "inbound", to="handler:shared")
        tenant.letters.append(ids.show_delivery(*inbound))
    tenant.conflicts.extend([await add_conflict(store, name) for name in tenant.letters])
    await make_token(context, organization)
    async with context.work(organization, caller=HOST) as work:
        for name in (SHARED_TYPE, only_type(organization)):
            new = event_types.EventTypeCreate(name=name, description=described(organization))
            await event_types.create(work, new)
        [key] = (await keys.list_keys(work, keys.KeyFilter(organization=organization))).data
    return replace(tenant, key=key.id)


async def add_job(context: AppContext, organization: str) -> str:
    """Start a job of an organization that finds nothing to do; return its id."""
    async with context.work(organization, "test", HOST) as work:
        names = ("source", "application", "type", "recipient", "since", "until", "rate")
        replay = dict.fromkeys(names) | {"code": "NOTHING", "note": "", "actor": "test", "tenant": organization}
        replay |= {"permission": "dead_letter.decide", "role": "operator", "caller": {}}
        task = await service_tasks.start(work, tasks.TaskOperation.REPLAY_DEAD, replay, subject="test")
    return task.shown_id


async def add_endpoints(context: AppContext, organization: str, applications: list[str]) -> list[str]:
    """Create an endpoint in each of these applications."""
    async with context.work(organization, "test") as work:
        owners = [await application_service.get(work, name) for name in applications]
        new = NewEndpoint(url="http://127.0.0.1:8089/", uid="box")
        return [(await endpoint_service.create(work, owner, new)).shown_id for owner in owners]


async def add_letter(store: Store, tenant: Tenant, name: str, number: int = 0) -> str:
    """Let a message of an application of an organization die at the handler that all share; return its delivery."""
    [letter] = await mark_dead(store, name, to="handler:shared")
    change = "update boathook.event set source = null, application = $2, origin = 'published' where id = $1"
    await store.db.execute(change, letter[0], tenant.applications[number])
    return ids.show_delivery(*letter)


async def add_conflict(store: Store, letter: str) -> str:
    """Store a conflict with the event of a dead letter; return its id."""
    id = new_id()
    await store.db.execute(
        "insert into boathook.conflict (id, event_id, source, application, dedup_key, type, grade, differs, headers,"
        " content_type, body, body_sha256)"
        " select $1, e.id, e.source, e.application, e.dedup_key, e.type, e.grade, 'body', '{}', '', $2, sha256($2)"
        " from boathook.event e where e.id = $3",
        id, b'{"n": 2}', ids.read_delivery(letter)[0],
    )  # fmt: skip
    return ids.show(ids.CONFLICT, id)


async def add_rejection(store: Store, number: int) -> str:
    """Store a rejected request of the source ``stripe`` that is valid with its secret now; return its id."""
    id, body = new_id(), b'{"id": "evt_%d", "type": "payment.paid"}' % number
    now = int(time.time())
    signature = hmac.new(b"right", f"{now}.".encode() + body, hashlib.sha256).hexdigest()
    await store.db.execute(
        "insert into boathook.rejection values ($1, 'stripe', 401, 'signature_mismatch', '', '::1', 'POST',"
        " 'http://h/in/stripe', $2, 'application/json', $3, $4)",
        id, json.dumps({"stripe-signature": f"t={now},v1={signature}"}), body, len(body),
    )  # fmt: skip
    return ids.show(ids.REJECTION, id)


@pytest.fixture
async def world(db: Database, tmp_path: Path) -> World:
    own_settings = {"server__data_dir": str(tmp_path), "outbound__encryption_keys": [KEY]}
    stripe = {"stripe": {"provider": "stripe", "secrets": ["right"]}}
    # Nothing listens there, and the guard of outgoing requests refuses it before anybody is asked.
    channels = {"ops": webhook("http://10.0.0.1/")}
    store, context = Store(db), make_context(db, sources=stripe, **own_settings)
    notifications = settings_of(channels=channels).notifications
    context.settings = context.settings.model_copy(update={"notifications": notifications})
    context.live_settings.configured = context.settings
    own, other = await make_tenant(store, context, OWN), await make_tenant(store, context, OTHER)
    [group] = await db.fetch("select distinct boathook.dead_group(recipient, code, error) from boathook.delivery")
    rejections = [await add_rejection(store, number) for number in range(3)]
    async with context.work(caller=HOST) as work:
        await sources.create(work, sources.NewSource(name="shop", provider="github", generate_secret=True))
        secret = await source_secrets.create(work, source_secrets.NewSecret(source="shop"))
        silence = await silences.create(work, silences.NewSilence(rule="shared", note="for all"))
        for name in ("olga", "ben"):
            await operators.create(work, operators.NewOperator(name=name, role=Role.ADMIN))
        token = await operator_tokens.create(work, operator_tokens.NewToken(operator="olga", name="ci"))
    own_group = ids.show(ids.DEAD_GROUP, group[0])
    return World(store, context, own, other, own_group, rejections, secret.id, silence.id, token.id)


Ways = Callable[[World], Iterator[dict[str, Any]]]


def ways_of_dead_letters(world: World) -> Iterator[dict[str, Any]]:
    """Yield each way to select dead letters, by name of what is the other organization's where there is one."""
    since = datetime.now(UTC) - timedelta(days=1)
    yield {"ids": world.other.letters}
    yield {"ids": [*world.own.letters, *world.other.letters]}
    yield {"group": world.group}
    yield {"all": True}
    for name, value in (
        ("source", "stripe"),
        ("application", world.other.applications[0]),
        ("application", f"{OTHER}-1"),
        ("type", "*"),
        ("recipient", "handler:*"),
        ("code", "BROKEN"),
        ("since", since),
        ("until", since + timedelta(days=2)),
    ):
        yield {name: value}


def ways_of_messages(world: World) -> Iterator[dict[str, Any]]:
    """Yield each way to name messages of the other organization."""
    message = world.other.letters[0].replace("dlv_", "msg_").removesuffix("_0")
    for application in (*world.other.applications, *world.own.applications, f"{OTHER}-0"):
        yield {"application": application, "ids": [message]}
    for application in (*world.other.applications, f"{OTHER}-0"):
        yield {"application": application, "all": True}
        yield {"application": application, "all": True, "dry_run": True}


def ways_of_endpoints(world: World) -> Iterator[dict[str, Any]]:
    """Yield each way to name an endpoint of the other organization."""
    since = datetime.now(UTC) - timedelta(hours=1)
    for application in (*world.other.applications, f"{OTHER}-0", f"{OWN}-0"):
        yield {"application": application, "endpoint": "crm", "since": since}


def by_name(world: World) -> list[dict[str, Any]]:
    """Return the ways to name the applications of the other organization."""
    return [{"id": name} for name in (*world.other.applications, f"{OTHER}-0", f"{OTHER}-1")]


def ways_of_conflicts(world: World) -> Iterator[dict[str, Any]]:
    since = datetime.now(UTC) - timedelta(days=1)
    yield {"ids": world.other.conflicts}
    yield {"ids": [*world.own.conflicts, *world.other.conflicts]}
    yield {"all": True}
    yield {"source": "stripe"}
    yield {"application": world.other.applications[0]}
    yield {"application": f"{OTHER}-1"}
    yield {"differs": Difference.BODY}
    yield {"since": since}
    yield {"until": since + timedelta(days=2)}


def ways_of_rejections(world: World) -> Iterator[dict[str, Any]]:
    yield {"ids": world.rejections}
    yield {"all": True}
    yield {"source": "stripe"}
    yield {"reason": "signature_mismatch"}
    yield {"since": datetime.now(UTC) - timedelta(days=1)}


def event_of(letter: str) -> str:
    """Return the event of a dead letter."""
    return ids.show(ids.EVENT, ids.read_delivery(letter)[0])


def ways_of_events(world: World) -> Iterator[dict[str, Any]]:
    """Yield each way to select events, by name of what is the other organization's where there is one."""
    since = datetime.now(UTC) - timedelta(days=1)
    own, others = ([event_of(name) for name in tenant.letters] for tenant in (world.own, world.other))
    yield {"ids": others}
    yield {"ids": [*own, *others]}
    yield {"all": True}
    for name, value in (
        ("source", "stripe"),
        ("application", world.other.applications[0]),
        ("application", f"{OTHER}-1"),
        ("type", "*"),
        ("state", "dead"),
        ("key", f"{OTHER}-0"),
        ("words", OTHER),
        ("text", "{"),
        ("since", since),
        ("until", since + timedelta(days=2)),
    ):
        yield {name: value}


WAYS: dict[str, Ways] = {
    "rejection.reverify": ways_of_rejections,
    "conflict.accept": ways_of_conflicts,
    "source.create": lambda _world: iter([{"name": "new", "provider": "github", "generate_secret": True}]),
    "source.change": lambda _world: iter([{"source_name": "shop", "settings": {"rate": 5}}]),
    "source.replace": lambda _world: iter([{"source_name": "shop", "provider": "github", "settings": {"rate": 5}}]),
    "source.delete": lambda _world: iter([{"source_name": "shop"}]),
    "source_secret.list": lambda _world: iter([{"source": "shop"}]),
    "source_secret.create": lambda _world: iter([{"source": "shop"}, {"source": "shop", "secret": "a long secret"}]),
    "source_secret.expire": lambda world: iter([{"source": "shop", "secret": world.secret}]),
    "source_secret.keep": lambda world: iter([{"source": "shop", "secret": world.secret}]),
    "source_secret.delete": lambda world: iter([{"source": "shop", "secret": world.secret}]),
    "source_secret.show_handshake": lambda _world: iter([{"source": "shop"}]),
    "source_secret.forget_handshake": lambda _world: iter([{"source": "shop"}]),
    "event.wake": lambda world: iter([{"id": event_of(name)} for name in world.other.letters]),
    "delivery.retry": lambda world: iter([{"id": name} for name in world.other.letters]),
    "delivery.replay": lambda world: iter([{"id": name} for name in world.other.letters]),
    "integrity.start": lambda _world: iter([{}]),
    "integrity.list": lambda _world: iter([{}]),
    "integrity.get": lambda world: iter([{"id": world.other.job}]),
    "integrity.stop": lambda world: iter([{"id": world.other.job}]),
    "job.list": lambda _world: iter([{}]),
    "job.get": lambda world: iter([{"id": world.other.job}]),
    "job.stop": lambda world: iter([{"id": world.other.job}]),
    "message.expunge": ways_of_messages,
    "message.expunge_response": lambda world: iter(
        [{"application": world.other.applications[0], "message": world.other.letters[0], "attempt": "atmpt_x"}]
    ),
    "operator.create": lambda _world: iter([{"name": "stranger"}]),
    "operator.list": lambda _world: iter([{}]),
    "operator.password": lambda _world: iter([{"name": "ben", "password": "a password of a stranger"}]),
    "operator.role": lambda _world: iter([{"name": "ben", "role": Role.VIEWER}]),
    "operator.disable": lambda _world: iter([{"name": "ben"}]),
    "operator.enable": lambda _world: iter([{"name": "ben"}]),
    "operator.delete": lambda _world: iter([{"name": "ben"}]),
    "operator_token.create": lambda _world: iter([{"operator": "olga", "name": "stranger"}]),
    "operator_token.list": lambda _world: iter([{}, {"operator": "olga"}]),
    "operator_token.revoke": lambda world: iter([{"id": world.token}]),
    "recovery.recover": ways_of_endpoints,
    "recovery.replay_missing": ways_of_endpoints,
    "recovery.resend": ways_of_endpoints,
    "silence.create": lambda _world: iter([{}]),
    "silence.list": lambda _world: iter([{"ended": True}]),
    "silence.end": lambda world: iter([{"id": world.silence}]),
    "alert.test": lambda _world: iter([{"channel": "ops"}]),
    "key.create": lambda _world: iter([{"scope": "organization", "organization": OTHER}]),
    "key.list": lambda _world: iter([{}, {"organization": OTHER}]),
    "key.get": lambda world: iter([{"id": world.other.key}]),
    "key.revoke": lambda world: iter([{"id": world.other.key}]),
    "application.create": lambda _world: iter([{"name": "A", "uid": f"{OTHER}-0"}]),
    "application.list": lambda world: iter([{}, {"iterator": world.other.applications[0]}]),
    "application.get": lambda world: iter(by_name(world)),
    "application.put": lambda world: iter([{**named, "name": "new"} for named in by_name(world)]),
    "application.update": lambda world: iter([{**named, "name": "new"} for named in by_name(world)]),
    "application.delete": lambda world: iter(by_name(world)),
    "event_type.list": lambda _world: iter([{"with_archived": True}]),
    "event_type.get": lambda _world: iter([{"name": only_type(OTHER)}, {"name": SHARED_TYPE}]),
    "event_type.create": lambda _world: iter([{"name": only_type(OTHER)}, {"name": SHARED_TYPE}]),
    "event_type.put": lambda _world: iter([{"name": only_type(OTHER)}, {"name": SHARED_TYPE}]),
    "event_type.update": lambda _world: iter(
        [{"name": only_type(OTHER), "is_archived": True}, {"name": SHARED_TYPE, "description": "new"}]
    ),
    "event_type.archive": lambda _world: iter([{"name": only_type(OTHER)}, {"name": SHARED_TYPE}]),
    "event_type.delete": lambda _world: iter([{"name": only_type(OTHER)}, {"name": SHARED_TYPE}]),
    "event_type.import": lambda _world: iter([{"spec": {"webhooks": {SHARED_TYPE: {}}}, "replace_all": True}]),
}
"""What each operation that selects nothing by fields of its own is asked about the other organization."""


def ways_of(operation: Operation[Any, Any], world: World) -> Iterator[dict[str, Any]]:
    """Return the ways to select of an operation; each operation has some, else the test fails."""
    if operation.noun == "endpoint":
        other = world.other
        applications = [other.applications[0], f"{OTHER}-0", world.own.applications[0]]
        return iter([inputs_of(operation, name, other, 0) for name in applications])
    if issubclass(operation.input, DeadLetters):
        return ways_of_dead_letters(world)
    return (ways_of_events if issubclass(operation.input, Events) else WAYS[operation.name])(world)


def inputs_of(operation: Operation[Any, Any], application: str, tenant: Tenant, place: int) -> dict[str, Any]:
    """Return the input of an operation on the endpoint and the message of a tenant, in this application."""
    message = ids.show(ids.MESSAGE, ids.read_delivery(tenant.letters[place])[0])
    values: dict[str, Any] = {"application": application, "id": tenant.endpoints[place], "message": message}
    values["since"] = datetime.now(UTC) - timedelta(hours=1)
    values |= {"url": "http://127.0.0.1:8089/changed"}
    return {name: value for name, value in values.items() if name in operation.input.__struct_fields__}


def names_other(world: World, result: Any) -> bool:
    """Return whether a result tells something of the other organization."""
    text = str(result)
    told = [
        world.other.key,
        world.other.job,
        *world.other.applications,
        *world.other.endpoints,
        world.secret,
        described(OTHER),
    ]
    if isinstance(result, RequestsActed):  # it repeats the ids that it was asked for
        told.append("stripe")
        return any(name in str(result.counts) for name in told) or any(each.event_id for each in result.results[2:])
    return any(name in text for name in told) or "stripe" in text


async def leaks(world: World, operation: Operation[Any, Any]) -> list[str]:
    """Return the ways in which an operation counts, names or changes what is not the caller's."""
    note = {"note": "a test"} if "note" in operation.input.__struct_fields__ else {}
    found = []
    if operation.selection is not None:
        for way in ways_of(operation, world):
            result = await run(world, operation, way | note | {"dry_run": True})
            is_counted = result is not None and result.matching > len(world.own.letters)
            if is_counted or names_other(world, result):
                found.append(f"counted: {way}")
    for way in ways_of(operation, world):
        # What it acted on is gone: another one lets the next way act too, also where a job does it.
        await add_letter(world.store, world.own, f"again-{len(found)}-{way}")
        before = await world.rows_of(world.other)
        result = await run(world, operation, way | note)
        await world.run_jobs()
        if await world.rows_of(world.other) != before or names_other(world, result):
            found.append(f"changed: {way}")
    return found


async def run(world: World, operation: Operation[Any, Any], values: dict[str, Any]) -> Any:
    """Return the result of an operation that the first organization's key runs; None if it was rejected."""
    try:
        async with world.work() as work:
            return await operation(work, operation.input(**values))
    except BoathookError:
        return None


@pytest.fixture(autouse=True)
def valid_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let jobs of the generous key run, so that only their scope limits them."""
    monkeypatch.setitem(tasks.SQL, "is_key_valid", "select $1::uuid is not null")


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
async def test_no_operation_reaches_another_organization(
    world: World, operation: Operation[Any, Any], monkeypatch: pytest.MonkeyPatch
):
    """Those of the deployment are asked as if they were of an organization: their SQL is limited as well."""
    monkeypatch.setattr(operation, "scope", Scope.ORGANIZATION)
    assert await leaks(world, operation) == []


OF_NO_ORGANIZATION = catalogue.load("silence", "alert", "operator", "operator_token")
"""Operations on what no organization has: the scope alone keeps keys of organizations from them."""


async def reach(world: World, operation: Operation[Any, Any], caller: Any) -> list[Any]:
    """Return what an operation answers, or raises, when a caller runs it in each way."""
    outcomes = []
    note = {"note": "a test"} if "note" in operation.input.__struct_fields__ else {}
    for way in ways_of(operation, world):
        try:
            async with world.context.work(OWN, "test", caller) as work:
                outcomes.append(await operation(work, operation.input(**way, **note)))
        except BoathookError as error:
            outcomes.append(error)
    return outcomes


@pytest.mark.parametrize("operation", OF_NO_ORGANIZATION, ids=lambda operation: operation.name)
async def test_a_key_of_an_organization_runs_nothing_of_the_deployment_and_the_mutant_does(
    world: World, operation: Operation[Any, Any], monkeypatch: pytest.MonkeyPatch
):
    """Each input reaches the body, as the mutant without the scope shows by what it changes or tells."""
    caller = Generous(key_id=UUID(int=0), organization=OWN)
    if operation.name == "operator.enable":
        await world.store.db.execute("update boathook.operator set disabled_at = now() where name = 'ben'")
    before = await world.deployment()
    outcomes = await reach(world, operation, caller)
    assert {type(outcome) for outcome in outcomes} == {NotAllowed}
    assert await world.deployment() == before
    monkeypatch.setattr(operation, "scope", Scope.ORGANIZATION)
    outcomes = await reach(world, operation, caller)
    if operation.name == "operator_token.create":  # whose body refuses every key and token itself
        assert "no key and no token creates operator tokens" in str(outcomes[0])
        outcomes = await reach(world, operation, OperatorCaller(Role.ADMIN))
    assert {type(outcome) for outcome in outcomes} == {operation.result}
    if operation.is_read:
        assert all(outcome.data for outcome in outcomes)
    else:
        assert await world.deployment() != before


@pytest.mark.parametrize("name", ["dead_letter.replay", "dead_letter.ignore", "dead_letter.purge"])
async def test_its_own_are_reached_in_each_way(world: World, name: str, monkeypatch: pytest.MonkeyPatch):
    """The test above would hold for an operation that does nothing."""
    operation = catalogue.find(name)
    monkeypatch.setattr(operation, "scope", Scope.ORGANIZATION)
    for way in ({"ids": world.own.letters}, {"group": world.group}, {"all": True}, {"application": f"{OWN}-0"}):
        number = 1 if "application" in way else 2
        async with world.work() as work:
            assert (await operation(work, operation.input(**way, dry_run=True, note="x"))).matching == number
    before = await world.rows_of(world.own)
    async with world.work() as work:
        assert (await operation(work, operation.input(group=world.group, note="x"))).job is not None
    await world.run_jobs()
    assert await world.rows_of(world.own) != before


@pytest.mark.parametrize("name", ["dead_letter.replay", "dead_letter.ignore", "dead_letter.purge"])
async def test_mutant_without_the_tenant_every_way_leaks(world: World, name: str, monkeypatch: pytest.MonkeyPatch):
    operation = catalogue.find(name)
    monkeypatch.setattr(operation, "scope", Scope.ORGANIZATION)
    monkeypatch.setattr(selection, "tenant_of", lambda _work: None)
    ways, found = list(ways_of(operation, world)), await leaks(world, operation)
    counted = {line for line in found if line.startswith("counted")}
    assert len(counted) == len(ways)
    assert [line for line in found if line.startswith("changed")] != []


@pytest.mark.parametrize("name", ["dead_letter.replay", "dead_letter.ignore", "dead_letter.purge"])
async def test_mutant_a_job_without_the_tenant_is_seen(world: World, name: str, monkeypatch: pytest.MonkeyPatch):
    """A hole that only the steps of a job have."""
    operation = catalogue.find(name)
    monkeypatch.setattr(operation, "scope", Scope.ORGANIZATION)
    request = selection.Selected._request
    monkeypatch.setattr(
        selection.Selected, "_request", lambda self, *arguments: request(self, *arguments) | {"tenant": None}
    )
    found = await leaks(world, operation)
    assert found != []
    assert all(line.startswith("changed") for line in found)


async def test_its_own_events_are_reached_in_each_way(world: World):
    own = [ids.show(ids.EVENT, ids.read_delivery(name)[0]) for name in world.own.letters]
    ways = ({"ids": own}, {"all": True}, {"application": f"{OWN}-0"}, {"state": "dead"}, {"key": f"{OWN}-1"})
    for way, number in zip(ways, (2, 2, 1, 2, 1), strict=True):
        async with world.work() as work:
            assert (await events.replay(work, events.ReplayEvents(**way, dry_run=True))).matching == number
    before = await world.rows_of(world.own)
    async with world.work() as work:
        assert (await events.replay(work, events.ReplayEvents(state="dead"))).job is not None
    await world.run_jobs()
    assert await world.rows_of(world.own) != before


async def test_mutant_events_without_the_tenant_leak(world: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(events, "compile_filter", lambda _work, query: query.compile())
    leaking = await leaks(world, events.replay)
    assert [line for line in leaking if line.startswith("counted")] != []
    assert [line for line in leaking if line.startswith("changed")] != []


async def test_a_routing_stays_in_its_organization_and_the_mutant_does_not(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    await register(world.store.db, "shop", [Route(recipient="handler:new", app="shop", source="stripe", types=("*",))])
    monkeypatch.setattr(events.route, "scope", Scope.ORGANIZATION)
    before = await world.rows_of(world.other)
    await run(world, events.route, {"all": True})
    await world.run_jobs()
    assert await world.rows_of(world.other) == before
    monkeypatch.setattr(events, "compile_filter", lambda _work, query: query.compile())
    await run(world, events.route, {"all": True})
    await world.run_jobs()
    assert await world.rows_of(world.other) != before


async def test_mutant_a_delivery_of_any_organization_is_retried(world: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(deliveries, "check_owner", AsyncMock())
    monkeypatch.setattr(selection, "tenant_of", lambda _work: None)
    assert await leaks(world, deliveries.retry) != []


async def test_mutant_an_event_of_any_organization_is_woken(world: World, monkeypatch: pytest.MonkeyPatch):
    of_anyone = AsyncMock(side_effect=lambda _connection, event_ids, _filter: event_ids)
    monkeypatch.setattr("boathook.db.queries.event_search.select_matching", of_anyone)
    assert await leaks(world, events.wake) != []


async def test_mutant_a_key_of_any_organization_is_revoked(world: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(
        api_keys.SQL,
        "revoke_key",
        "update boathook.api_key set revoked_at = now() where id = $1 and $2::text is not null returning *",
    )
    monkeypatch.setattr(keys.revoke, "scope", Scope.ORGANIZATION)
    assert await leaks(world, keys.revoke) != []


@pytest.mark.parametrize("name", ["event_type.get", "event_type.update", "event_type.delete", "event_type.import"])
async def test_mutant_an_event_type_of_any_organization_is_reached(
    world: World, name: str, monkeypatch: pytest.MonkeyPatch
):
    for function in ("find", "lock", "delete", "list_page"):
        original = getattr(event_type_rows, function)

        def of_other(connection: Any, _organization: str, *rest: Any, original: Any = original, **more: Any) -> Any:
            return original(connection, OTHER, *rest, **more)

        monkeypatch.setattr(event_type_rows, function, of_other)
    assert await leaks(world, catalogue.find(name)) != []


@pytest.mark.parametrize("name", ["application.get", "application.update", "application.delete"])
async def test_mutant_an_application_of_any_organization_is_reached(
    world: World, name: str, monkeypatch: pytest.MonkeyPatch
):
    for function in ("find", "lock"):
        original = getattr(application_rows, function)

        def of_other(connection: Any, _organization: str, reference: str, original: Any = original, **more: Any) -> Any:
            return original(connection, OTHER, reference, **more)

        monkeypatch.setattr(application_rows, function, of_other)
    assert await leaks(world, catalogue.find(name)) != []


IN_APPLICATION = [each for each in catalogue.load("application", "endpoint") if each.scope is Scope.APPLICATION]


async def is_reached(world: World, operation: Operation[Any, Any], values: dict[str, Any]) -> bool:
    """Return whether the key of the first application runs an operation, or changes anything by it."""
    owner = ids.read(ids.APPLICATION, world.own.applications[0])
    before = [await world.rows_of(world.own), await world.rows_of(world.other)]
    try:
        async with world.work(owner) as work:
            await operation(work, operation.input(**values))
    except NotFound:
        return before != [await world.rows_of(world.own), await world.rows_of(world.other)]
    return True


@pytest.mark.parametrize("operation", IN_APPLICATION, ids=lambda operation: operation.name)
async def test_a_key_of_one_application_reaches_no_other(world: World, operation: Operation[Any, Any]):
    own, sibling = world.own.applications
    if operation.noun == "application":
        foreign = [{"id": name} for name in (sibling, f"{OWN}-1", *world.other.applications, f"{OTHER}-0")]
        allowed = {"id": f"{OWN}-0"}
    else:
        foreign = [
            inputs_of(operation, name, tenant, place)
            for tenant, place in ((world.own, 1), (world.other, 0), (world.other, 1))
            for name in (own, sibling, f"{OWN}-1", tenant.applications[place], f"{OTHER}-0")
            if name != own or operation.name not in {"endpoint.create", "endpoint.put"}  # which make one of their own
        ]
        foreign += [way | {"id": "box"} for way in foreign if way["application"] != own and "id" in way]
        allowed = inputs_of(operation, own, world.own, 0)
    for values in foreign:
        assert not await is_reached(world, operation, values), values
    assert await is_reached(world, operation, allowed)


async def test_mutant_without_its_application_a_key_reaches_the_sibling(world: World, monkeypatch: pytest.MonkeyPatch):
    sql = application_rows.SQL["find_application"]
    assert "or id = $4" in sql
    monkeypatch.setitem(application_rows.SQL, "find_application", sql.replace("or id = $4", "or true"))
    for operation in (endpoints.reveal_secret, endpoints.resume, endpoints.disable):
        assert await is_reached(world, operation, inputs_of(operation, f"{OWN}-1", world.own, 1))


@pytest.mark.parametrize(
    ("prefix", "of"),
    [
        (ids.DELIVERY, lambda tenant: tenant.letters[0]),
        (ids.EVENT, lambda tenant: tenant.letters[0].replace("dlv_", "evt_").removesuffix("_0")),
        (ids.API_KEY, lambda tenant: tenant.key),
    ],
)
async def test_beginnings_of_ids_complete_to_own_objects(world: World, prefix: str, of: Callable[[Tenant], str]):
    """A candidate of another organization is not listed, so that its ids stay unknown."""
    own, other = of(world.own), of(world.other)
    async with world.work() as work:
        assert await id_prefixes.complete(work.connection, prefix, own[:24], OWN) == own
        with pytest.raises(BoathookError) as caught:
            await id_prefixes.complete(work.connection, prefix, other[:24], OWN)
        assert other not in str(caught.value)
        assert await id_prefixes.complete(work.connection, prefix, other[:24], None) == other


async def test_a_group_of_several_organizations_is_found_by_its_beginning(world: World):
    async with world.work() as work:
        assert await id_prefixes.complete(work.connection, ids.DEAD_GROUP, world.group[:20], OWN) == world.group
        with pytest.raises(BoathookError):
            await id_prefixes.complete(work.connection, ids.DEAD_GROUP, world.group[:20], "nobody")


@pytest.mark.parametrize(
    ("operation", "change"),
    [
        (rejections.reverify, ("count_rejections", "$6 = 'default'", "$6 <> ''")),
        (rejections.reverify, ("get_rejection", "$2 = 'default'", "$2 <> ''")),
        (conflicts.accept, ("count_conflicts", "where", "where $7::text <> '' or")),
    ],
    ids=["rejections are counted", "a rejection is read", "conflicts are counted"],
)
async def test_mutant_a_stored_request_of_another_organization_is_reached(
    world: World, operation: Operation[Any, Any], change: tuple[str, str, str], monkeypatch: pytest.MonkeyPatch
):
    name, old, new = change
    assert old in listings.SQL[name]
    monkeypatch.setitem(listings.SQL, name, listings.SQL[name].replace(old, new, 1))
    assert await leaks(world, operation) != []


async def test_mutant_a_conflict_of_any_organization_is_accepted(world: World, monkeypatch: pytest.MonkeyPatch):
    sql = delivery_commands.SQL["lock_conflict"]
    monkeypatch.setitem(
        delivery_commands.SQL, "lock_conflict", sql.replace("($2::text is null or", "($2::text <> '' or")
    )
    assert await leaks(world, conflicts.accept) != []


@pytest.mark.parametrize(
    "operation",
    [each for each in catalogue.load("source", "source_secret") if "handshake" not in each.name],
    ids=lambda operation: operation.name,
)
async def test_mutant_sources_of_the_default_organization_are_reached(
    world: World, operation: Operation[Any, Any], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(operation, "scope", Scope.ORGANIZATION)
    for module in (sources, source_secrets):
        monkeypatch.setattr(module, "require_reach", lambda _work, _name: None)
    assert await leaks(world, operation) != []


async def test_own_conflicts_are_reached_in_each_way(world: World):
    """The test of all operations would hold for one that does nothing."""
    for way in ({"ids": world.own.conflicts}, {"all": True}, {"application": f"{OWN}-0"}):
        async with world.work() as work:
            acted = await conflicts.accept(work, conflicts.Accept(**way, dry_run=True))
        assert acted.matching == (1 if "application" in way else 2)
    async with world.work() as work:
        acted = await conflicts.accept(work, conflicts.Accept(all=True))
    await world.run_jobs()
    count = "select count(*) from boathook.conflict where accepted_as is not null"
    assert await world.store.db.fetchval(count) == 2, (await state_of(world, str(acted.job)))[1]


# Jobs


Start = Callable[[World, Any], Any]


async def start(world: World, caller: Any) -> str:
    async with world.context.work(OWN, "test", caller) as work:
        acted = await dead_letters.replay(work, dead_letters.Replay(group=world.group))
    return str(acted.job)


async def start_on_events(world: World, caller: Any) -> str:
    async with world.context.work(OWN, "test", caller) as work:
        acted = await events.replay(work, events.ReplayEvents(state="dead"))
    return str(acted.job)


async def state_of(world: World, job: str) -> tuple[str, str]:
    row = await world.store.db.fetchrow("select state, data from boathook.task where id = $1", ids.read(ids.TASK, job))
    return row["state"], row["data"]


@pytest.mark.parametrize("start", [start, start_on_events])
async def test_a_job_ends_when_its_key_is_revoked(world: World, start: Start, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.undo()
    before = await world.rows_of(world.own)
    job = await start(world, Principal(key_id=ids.read(ids.API_KEY, world.own.key), organization=OWN))
    await world.store.db.execute("update boathook.api_key set revoked_at = now() where organization = $1", OWN)
    await world.run_jobs()
    state, data = await state_of(world, job)
    assert (state, f"{world.own.key}, which started it, is not valid any more" in data) == ("failed", True)
    assert [row[2:] for row in await world.rows_of(world.own)][:2] == [row[2:] for row in before][:2]


@pytest.mark.parametrize("start", [start, start_on_events])
async def test_a_job_ends_when_its_operator_or_token_may_no_longer_do_it(world: World, start: Start):
    operator, token = new_id(), new_id()
    await world.store.db.execute(
        "insert into boathook.operator (id, name, role) values ($1, 'anna', 'admin')", operator
    )
    await world.store.db.execute(
        "insert into boathook.operator_token (id, token_sha256, operator_id, name, role, expires_at)"
        " values ($1, sha256('x'), $2, 'ci', 'operator', now() + interval '1 day')",
        token, operator,
    )  # fmt: skip
    by_hand = OperatorCaller(Role.ADMIN, operator)
    by_token = OperatorTokenCaller(token_id=token, operator_id=operator, operator="anna", role=Role.OPERATOR)
    for caller, change in (
        (by_token, "update boathook.operator_token set revoked_at = now()"),
        (by_hand, "update boathook.operator set role = 'viewer'"),
        (by_hand, "update boathook.operator set role = 'admin', disabled_at = now()"),
    ):
        job = await start(world, caller)
        await world.store.db.execute(change)
        await world.run_jobs()
        state, data = await state_of(world, job)
        assert (state, "may not do this any more" in data) == ("failed", True), change
    assert {row[3] for row in (await world.rows_of(world.own))[:2]} == {0}
    await world.store.db.execute("update boathook.operator set disabled_at = null")
    job = await start(world, by_hand)
    await world.run_jobs()
    assert (await state_of(world, job))[0] == "finished"


# Applications


@pytest.mark.parametrize("operation", [recovery.recover, recovery.replay_missing, recovery.resend])
async def test_a_key_of_an_application_recovers_nothing_of_another(world: World, operation: Operation[Any, Any]):
    """Both are of its organization; of its own application it learns that there is no such endpoint."""
    own, other = world.own.applications
    caller = Generous(key_id=new_id(), organization=OWN, application_id=ids.read(ids.APPLICATION, own))
    for application, missing in ((own, "endpoint"), (other, f"unknown application {other}")):
        async with world.context.work(OWN, "test", caller) as work:
            with pytest.raises(NotFound, match=missing):
                await operation(work, operation.input(application=application, endpoint="crm", since=datetime.now(UTC)))
