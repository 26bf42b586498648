"""No operation of the API gives a tenant access to another tenant's objects.

The matrix is made from the served OpenAPI document: every operation is asked with every kind of foreign token, with the
ids of tenant A's real objects. What every answer must be follows from whom the operation is for, which is said below for
each; an operation that is missing there fails the test.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import psycopg
import pytest

from tests.acceptance.svix.receiver import Receiver
from tests.acceptance.svix.server import FAIL, SUCCESS, Api, Application, BoathookServer
from tests.support import sampled, until

MARK = "tenant-a-mark"
"""Part of every text of tenant A's; no answer to others may hold it."""

OPEN = frozenset({"GET /health", "HEAD /health", "GET /health/ping", "HEAD /health/ping"})
ANY_TOKEN = frozenset({"GET /event-type", "GET /event-type/{event_type_name}", "POST /auth/logout"})
"""Of the token's own organization or of itself: a foreign token gets only its own objects."""
ORGANIZATION = frozenset({
    "GET /app",
    "POST /app",
    "PUT /app/{app_id}",
    "PATCH /app/{app_id}",
    "DELETE /app/{app_id}",
    "POST /app/{app_id}/msg",
    "POST /app/{app_id}/msg/precheck/active",
    "POST /app/{app_id}/msg/bulk-expunge",
    "POST /app/{app_id}/msg/expunge-all-contents",
    "DELETE /app/{app_id}/msg/{msg_id}/content",
    "DELETE /app/{app_id}/msg/{msg_id}/attempt/{attempt_id}/content",
    "POST /app/{app_id}/endpoint/{endpoint_id}/send-example",
    "POST /event-type",
    "PUT /event-type/{event_type_name}",
    "PATCH /event-type/{event_type_name}",
    "DELETE /event-type/{event_type_name}",
    "POST /event-type/import/openapi",
    "POST /auth/app-portal-access/{app_id}",
    "POST /auth/dashboard-access/{app_id}",
    "POST /auth/app/{app_id}/expire-all",
    "GET /background-task",
    "GET /background-task/{task_id}",
    "POST /environment/export",
    "POST /environment/import",
    "PUT /stats/usage/event-types",
    "POST /stats/usage/app",
    "GET /operational-webhook/endpoint",
    "POST /operational-webhook/endpoint",
    "GET /operational-webhook/endpoint/{endpoint_id}",
    "PUT /operational-webhook/endpoint/{endpoint_id}",
    "PATCH /operational-webhook/endpoint/{endpoint_id}",
    "DELETE /operational-webhook/endpoint/{endpoint_id}",
    "GET /operational-webhook/endpoint/{endpoint_id}/headers",
    "PUT /operational-webhook/endpoint/{endpoint_id}/headers",
    "GET /operational-webhook/endpoint/{endpoint_id}/secret",
    "POST /operational-webhook/endpoint/{endpoint_id}/secret/rotate",
    "GET /source",
    "POST /source",
    "GET /source/{source_name}",
    "PUT /source/{source_name}",
    "PATCH /source/{source_name}",
    "DELETE /source/{source_name}",
    "GET /event",
    "GET /event/{event_id}",
    "POST /event/{event_id}/replay",
    "POST /event/{id}/wake",
    "POST /event/bulk-replay",
    "GET /bulk-job",
    "GET /bulk-job/{job_id}",
    "POST /bulk-job/{job_id}/stop",
    "GET /delivery",
    "GET /delivery/{delivery_id}",
    "GET /dead-letter",
    "GET /dead-letter/{delivery_id}",
    "POST /dead-letter/{delivery_id}/replay",
    "POST /dead-letter/{delivery_id}/ignore",
    "POST /dead-letter/bulk-replay",
    "POST /dead-letter/bulk-ignore",
    "POST /delivery/{id}/retry",
    "POST /delivery/{id}/replay",
    "POST /app/{application}/msg/expunge",
    "GET /rejection",
    "GET /rejection/{rejection_id}",
    "POST /rejection/{rejection_id}/reverify",
    "POST /rejection/bulk-reverify",
    "GET /conflict",
    "GET /conflict/{conflict_id}",
    "POST /conflict/{conflict_id}/accept",
    "POST /conflict/bulk-accept",
})  # fmt: skip
"""For the organization's own tokens only."""
DEPLOYMENT = frozenset({
    "GET /key",
    "POST /key",
    "GET /key/{id}",
    "POST /key/{id}/revoke",
    "POST /dead-letter/bulk-purge",
    "POST /integrity-check",
    "GET /integrity-check",
    "GET /integrity-check/{id}",
    "POST /integrity-check/{id}/stop",
    "GET /operator",
    "POST /operator/{name}/disable",
    "POST /operator/{name}/delete",
    "GET /operator-token",
    "POST /operator-token/{id}/revoke",
    "POST /alert-channel/{channel}/test",
    "GET /silence",
    "POST /silence",
    "POST /silence/{id}/end",
    "GET /source/{source}/secret",
    "POST /source/{source}/secret",
    "POST /source/{source}/secret/{secret}/expire",
    "POST /source/{source}/secret/{secret}/keep",
    "DELETE /source/{source}/secret/{secret}",
    "POST /source/{source}/handshake-secret",
    "DELETE /source/{source}/handshake-secret",
    "POST /event/bulk-route",
})  # fmt: skip
"""For tokens of operators only, so for none of these tenants'."""
APPLICATION = frozenset({
    "GET /app/{app_id}",
    "GET /app/{app_id}/endpoint",
    "POST /app/{app_id}/endpoint",
    "GET /app/{app_id}/endpoint/{endpoint_id}",
    "PUT /app/{app_id}/endpoint/{endpoint_id}",
    "PATCH /app/{app_id}/endpoint/{endpoint_id}",
    "DELETE /app/{app_id}/endpoint/{endpoint_id}",
    "GET /app/{app_id}/endpoint/{endpoint_id}/headers",
    "PUT /app/{app_id}/endpoint/{endpoint_id}/headers",
    "PATCH /app/{app_id}/endpoint/{endpoint_id}/headers",
    "GET /app/{app_id}/endpoint/{endpoint_id}/secret",
    "POST /app/{app_id}/endpoint/{endpoint_id}/secret/rotate",
    "GET /app/{app_id}/endpoint/{endpoint_id}/stats",
    "GET /app/{app_id}/endpoint/{endpoint_id}/attempt-stats",
    "GET /app/{app_id}/endpoint/{endpoint_id}/health",
    "POST /app/{app_id}/endpoint/{endpoint_id}/resume",
    "POST /app/{app_id}/endpoint/{endpoint_id}/recover",
    "POST /app/{app_id}/endpoint/{endpoint_id}/replay-missing",
    "POST /app/{app_id}/endpoint/{endpoint_id}/bulk-replay",
    "GET /app/{app_id}/endpoint/{endpoint_id}/msg",
    "GET /app/{app_id}/msg",
    "GET /app/{app_id}/msg/{msg_id}",
    "GET /app/{app_id}/msg/{msg_id}/endpoint",
    "POST /app/{app_id}/msg/{msg_id}/endpoint/{endpoint_id}/resend",
    "GET /app/{app_id}/msg/{msg_id}/attempt",
    "GET /app/{app_id}/msg/{msg_id}/attempt/{attempt_id}",
    "GET /app/{app_id}/msg/{msg_id}/endpoint/{endpoint_id}/attempt",
    "GET /app/{app_id}/attempt/endpoint/{endpoint_id}",
    "GET /app/{app_id}/attempt/msg/{msg_id}",
})  # fmt: skip
"""For the organization's tokens, and for those of the application in the path."""


def since() -> str:
    return (datetime.now(UTC) - timedelta(hours=1)).isoformat()


URL = "http://127.0.0.1:61999/stranger"
BODIES: dict[str, Callable[[], Any]] = {
    "POST /app": lambda: {"name": "stranger"},
    "PUT /app/{app_id}": lambda: {"name": "stranger"},
    "PATCH /app/{app_id}": lambda: {"name": "stranger"},
    "POST /app/{app_id}/endpoint": lambda: {"url": URL},
    "PUT /app/{app_id}/endpoint/{endpoint_id}": lambda: {"url": URL},
    "PATCH /app/{app_id}/endpoint/{endpoint_id}": lambda: {"url": URL},
    "PUT /app/{app_id}/endpoint/{endpoint_id}/headers": lambda: {"headers": {"X-Stranger": "1"}},
    "PATCH /app/{app_id}/endpoint/{endpoint_id}/headers": lambda: {"headers": {"X-Stranger": "1"}},
    "POST /app/{app_id}/endpoint/{endpoint_id}/secret/rotate": dict,
    "POST /app/{app_id}/endpoint/{endpoint_id}/send-example": lambda: {"eventType": "svix.ping"},
    "POST /app/{app_id}/endpoint/{endpoint_id}/recover": lambda: {"since": since()},
    "POST /app/{app_id}/endpoint/{endpoint_id}/replay-missing": lambda: {"since": since()},
    "POST /app/{app_id}/endpoint/{endpoint_id}/bulk-replay": lambda: {"since": since()},
    "POST /app/{app_id}/msg": lambda: {"eventType": "stranger.came", "payload": {"n": 1}},
    "POST /app/{app_id}/msg/precheck/active": lambda: {"eventType": "stranger.came"},
    "POST /app/{app_id}/msg/expunge-all-contents": dict,
    "POST /app/{app_id}/msg/{msg_id}/endpoint/{endpoint_id}/resend": dict,
    "POST /event-type": lambda: {"name": "stranger.came", "description": "x"},
    "PUT /event-type/{event_type_name}": lambda: {"description": "stranger"},
    "PATCH /event-type/{event_type_name}": lambda: {"description": "stranger"},
    "POST /event-type/import/openapi": lambda: {"spec": {"openapi": "3.1.0", "webhooks": {}}},
    "POST /auth/app-portal-access/{app_id}": dict,
    "POST /auth/dashboard-access/{app_id}": dict,
    "POST /auth/app/{app_id}/expire-all": dict,
    "POST /environment/import": lambda: {"eventTypes": []},
    "POST /stats/usage/app": lambda: {"since": since(), "until": datetime.now(UTC).isoformat()},
    "POST /operational-webhook/endpoint": lambda: {"url": URL},
    "PUT /operational-webhook/endpoint/{endpoint_id}": lambda: {"url": URL},
    "PATCH /operational-webhook/endpoint/{endpoint_id}": lambda: {"url": URL},
    "PUT /operational-webhook/endpoint/{endpoint_id}/headers": lambda: {"headers": {"X-Stranger": "1"}},
    "POST /operational-webhook/endpoint/{endpoint_id}/secret/rotate": dict,
    "POST /dead-letter/{delivery_id}/ignore": lambda: {"note": "stranger"},
    "POST /dead-letter/bulk-replay": lambda: {"all": True},
    "POST /dead-letter/bulk-ignore": lambda: {"all": True, "note": "stranger"},
    "POST /dead-letter/bulk-purge": lambda: {"all": True, "note": "stranger"},
    "POST /rejection/bulk-reverify": lambda: {"all": True},
    "POST /conflict/bulk-accept": lambda: {"all": True},
    "POST /key": lambda: {"name": "stranger"},
    "POST /app/{application}/msg/expunge": lambda: {"all": True},
    "POST /silence": lambda: {"note": "stranger"},
    "POST /conflict/{conflict_id}/accept": lambda: {"note": "stranger"},
    "POST /event/bulk-replay": lambda: {"type": "*"},
    "POST /event/bulk-route": lambda: {"type": "*"},
}
"""What a foreign token sends; operations that are not here are asked without a body."""


@dataclass(frozen=True)
class Operation:
    """One method on one path of the document."""

    name: str
    """Such as ``GET /app/{app_id}``."""
    method: str
    template: str

    @property
    def names(self) -> list[str]:
        return re.findall(r"{(\w+)}", self.template)


def operations(base: str) -> list[Operation]:
    document = httpx.get(f"{base}/api/v1/openapi.json").json()
    found = [
        Operation(f"{method.upper()} {path.removeprefix('/api/v1')}", method.upper(), path)
        for path, methods in document["paths"].items()
        for method in methods
        if method in {"get", "post", "put", "patch", "delete", "head"}
    ]
    # What takes away comes last, so that in the mutant there is something to see first.
    order = ("GET", "HEAD", "PATCH", "PUT", "POST", "DELETE")
    return sorted(found, key=lambda operation: (order.index(operation.method), operation.name))


STATE = """
    with ours as (select id from boathook.application where organization = %(organization)s),
    events as (select id from boathook.event where application = %(app)s),
    stored as (
        select t::text as row from boathook.application t where organization = %(organization)s
        union all select t::text from boathook.endpoint t where application_id in (select id from ours)
        union all select t::text from boathook.endpoint_secret t join boathook.endpoint e on e.id = t.endpoint_id
            where e.application_id in (select id from ours)
        union all select t::text from boathook.event_type t where organization = %(organization)s
        union all select t::text from boathook.task t where organization = %(organization)s
        union all select t::text from boathook.api_key t where organization = %(organization)s
        union all select t::text from boathook.event t where id in (select id from events)
        union all select t::text from boathook.delivery t where event_id in (select id from events)
        union all select t::text from boathook.delivery_archive t where event_id in (select id from events)
        union all select t::text from boathook.attempt t where event_id in (select id from events)
    )
    select string_agg(row, e'\n' order by row) from stored
"""
"""Everything stored of one organization, and of its first application's messages."""


class TenantObjects:
    """All objects of tenant A, and the tokens of A and of other tenants."""

    def __init__(self, server: BoathookServer, receiver: Receiver, organization: str) -> None:
        self.server = server
        self.organization = organization
        self.stored = psycopg.connect(server.running.database_url, autocommit=True)
        self.api = Api(server.base, server.make_key(organization))
        self.app = Application(self.api, name=MARK, uid=f"{MARK}-app", metadata={"is": MARK})
        self.other = Application(self.api, name="sister", uid="sister")
        self.api.post("/event-type", {"name": "tenant.type", "description": MARK}, expect=201)
        box = receiver.mailbox()
        self.endpoint = self.app.endpoint(
            f"{box.url}?{MARK}", uid=f"{MARK}-ep", description=MARK, headers={"X-Mark": MARK}, retrySchedule=[]
        )
        self.message = self.app.send({"is": MARK}, "tenant.type", eventId=f"{MARK}-event", channels=[MARK])
        self.app.wait_status(self.message, self.endpoint, SUCCESS)
        self.attempt = self.app.attempts(self.endpoint)[0]["id"]
        path = f"{self.app.path}/endpoint/{self.endpoint['id']}/recover"
        self.task = self.api.post(path, {"since": since()}, expect=202)["id"]
        until(lambda: self.api.get(f"/background-task/{self.task}")["status"] != "running")
        operational = {"url": f"http://127.0.0.1:61999/{MARK}", "description": MARK, "disabled": True}
        self.operational = self.api.post("/operational-webhook/endpoint", operational, expect=201)["id"]
        self.job = self.api.post("/event/bulk-replay", {"source": "nobody", "note": MARK}, expect=202)["job"]
        until(lambda: self.api.get(f"/bulk-job/{self.job}")["state"] != "running")
        self.conflict = self._add_conflict()
        self.secret = self.app.secret(self.endpoint)
        [(self.key,)] = self.stored.execute(
            "select boathook.show_id('key', id) from boathook.api_key where token_sha256 = sha256(%s)",
            [self.api.token.encode()],
        ).fetchall()
        self.portal = self.portal_of(self.app)
        self.sister = self.portal_of(self.other)

    def _add_conflict(self) -> str:
        """Store a conflict with the message, as publishing another body under its id would, and return its id."""
        [(conflict,)] = self.stored.execute(
            """
            insert into boathook.conflict (id, event_id, application, dedup_key, type, grade, differs, headers, content_type, body,
                body_sha256)
            select id, id, application, dedup_key, type, grade, 'body', '{}', 'text/plain', %(body)s, sha256(%(body)s)
            from boathook.event where id = boathook.read_id('msg', %(message)s)
            returning boathook.show_id('cfl', id)
            """,
            {"body": MARK.encode(), "message": self.message},
        ).fetchall()
        return str(conflict)

    def portal_of(self, app: Application) -> str:
        return self.api.post(f"/auth/app-portal-access/{app.id}", {})["token"]

    def value(self, operation: Operation, name: str, *, by_uid: bool) -> str:
        """Return the identifier of tenant A's object for this part of the path."""
        if name == "endpoint_id" and "operational" in operation.template:
            return str(self.operational)
        delivery = f"{self.message.replace('msg_', 'dlv_')}_0"
        event = self.message.replace("msg_", "evt_")
        ids = {
            "id": (
                self.key if "/key/" in operation.template else event if "/event/" in operation.template else delivery,
            )
            * 2,
            "app_id": (self.app.id, f"{MARK}-app"),
            "application": (self.app.id, f"{MARK}-app"),
            "endpoint_id": (self.endpoint["id"], f"{MARK}-ep"),
            "msg_id": (self.message, f"{MARK}-event"),
            "attempt_id": (self.attempt, self.attempt),
            "event_type_name": ("tenant.type", "tenant.type"),
            "task_id": (self.task, self.task),
            "name": ("anna", "anna"),  # an operator, whom no tenant has
            "channel": ("ops", "ops"),  # of alerts, which no tenant has
            "source_name": ("stripe", "stripe"),  # of the default organization, as all sources are
            "source": ("stripe", "stripe"),
            "secret": ("ssec_01h455vb4pex5vsknk084sn02q4",) * 2,
            "event_id": (event, self.message),
            "delivery_id": (delivery, delivery),
            "rejection_id": ("rej_01h455vb4pex5vsknk084sn02q4",) * 2,  # of the default organization, as sources are
            "conflict_id": (self.conflict, self.conflict),
            "job_id": (self.job, self.job),
        }
        assert name in ids, f"{operation.name}: say which of tenant A's objects {name} is"
        return str(ids[name][by_uid])

    def state(self) -> str:
        """Return everything stored of tenant A, as text."""
        [(text,)] = self.stored.execute(STATE, {"organization": self.organization, "app": self.app.id}).fetchall()
        return str(text)


Ask = Callable[[str, str, str, Any], httpx.Response]
"""Asks for a method and a path with a token and a body."""


def asker(server: BoathookServer) -> tuple[Ask, httpx.Client]:
    client = httpx.Client(base_url=server.base, timeout=300)

    def ask(method: str, path: str, token: str, body: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        return client.request(method, path, headers=headers, json=body)

    return ask, client


def allowed(operation: Operation, kind: str) -> set[int] | None:
    """Return the statuses that a foreign token of this kind may get; None: any, as the answer is of its own."""
    name = operation.name
    if name in OPEN:
        return None
    if kind in {"no token", "a revoked token"}:
        return {401}
    if name in DEPLOYMENT:
        return {403}
    if kind == "another organization" and name in {
        "PUT /app/{app_id}",
        "PUT /operational-webhook/endpoint/{endpoint_id}",
    }:
        return {201, 404, 422}  # what is unknown may be created, under an id of its own
    if name in ANY_TOKEN or kind == "another organization":
        # Nothing of A's is in the path where the operation is on the token's own collection.
        return {404} if operation.names and "event_type_name" not in operation.names else None
    if kind == "another application":
        return {403, 404} if name in ORGANIZATION else {404}
    return {403} if name in ORGANIZATION else None


def violations(tenant: TenantObjects, ask: Ask, kind: str, token: str) -> Iterator[str]:
    """Request every operation with this token, and yield what should not have happened."""
    before = tenant.state()
    for operation in operations(tenant.server.base):
        if kind == "the application itself" and operation.name not in ORGANIZATION | DEPLOYMENT:
            continue
        if operation.name in ANY_TOKEN and operation.name.startswith("POST"):
            continue  # a logout ends the token itself, and is tested elsewhere
        # A PUT with a foreign token under a uid of tenant A creates an object of the token's own.
        ways = (False, True) if operation.names and operation.name != "PUT /app/{app_id}" else (False,)
        for by_uid in ways:
            values = {name: tenant.value(operation, name, by_uid=by_uid) for name in operation.names}
            if operation.name == "POST /app/{app_id}/msg/bulk-expunge":
                body: Any = {"ids": [tenant.message]}
            else:
                body = BODIES.get(operation.name, lambda: None)()
            answer = ask(operation.method, operation.template.format(**values), token, body)
            said = f"{operation.name} as {kind}: {answer.status_code} {answer.text[:300]}"
            statuses = allowed(operation, kind)
            if statuses is not None and answer.status_code not in statuses:
                yield said
            own_words = answer.text
            for value in values.values():
                own_words = own_words.replace(value, "")
            if (kind != "another application" or operation.name not in ANY_TOKEN) and (
                MARK in own_words or tenant.secret in own_words
            ):
                yield f"leaked: {said}"
            if (after := tenant.state()) != before:
                before = after
                yield f"changed: {said}"


@pytest.fixture(scope="module")
def tenant(server, receiver):
    made = TenantObjects(server, receiver, "tenant-a")
    yield made
    made.stored.close()


@pytest.fixture(scope="module")
def foreign_tokens(server, tenant) -> dict[str, str]:
    revoked = server.make_key("tenant-a")
    [(identifier,)] = server.query(
        "select id::text from boathook.api_key where token_sha256 = sha256(%s)", revoked.encode()
    )
    server.running.cli("keys", "revoke", identifier)
    return {
        "another organization": server.make_key("tenant-b"),
        "another application": tenant.sister,
        "the application itself": tenant.portal,
        "no token": "",
        "a revoked token": revoked,
    }


def test_every_operation_is_assigned_to_an_audience(server):
    known = OPEN | ANY_TOKEN | DEPLOYMENT | ORGANIZATION | APPLICATION
    assert {operation.name for operation in operations(server.base)} - known == set()


def test_the_document_has_the_operations_the_clients_ask_for(server):
    served = {operation.name for operation in operations(server.base)}
    hidden = {"HEAD /health", "HEAD /health/ping", "GET /health/ping", "POST /auth/dashboard-access/{app_id}"}
    hidden |= {name for name in APPLICATION if name.endswith(("{msg_id}/attempt", "{endpoint_id}/attempt"))}
    hidden |= {"PATCH /operational-webhook/endpoint/{endpoint_id}"}
    assert (OPEN | ANY_TOKEN | DEPLOYMENT | ORGANIZATION | APPLICATION) - hidden - served == set()


@pytest.mark.parametrize(
    "kind",
    sampled(
        ["another organization", "another application", "the application itself", "no token", "a revoked token"], keep=2
    ),
)
def test_foreign_tokens_neither_see_nor_change_anything(kind, tenant, foreign_tokens, server):
    ask, client = asker(server)
    with client:
        assert list(violations(tenant, ask, kind, foreign_tokens[kind])) == []


@pytest.mark.extended("the mutant of a test that stays: it shows that the test can fail")
def test_the_matrix_detects_a_server_that_mixes_up_tenants(server, receiver):
    """The mutant: a proxy that uses tenant A's token for every request."""
    tenant = TenantObjects(server, receiver, "tenant-a-mutant")
    ask, client = asker(server)
    with client, tenant.stored:
        seen = list(
            violations(tenant, lambda method, path, _, body: ask(method, path, tenant.api.token, body), "no token", "")
        )
    for beginning in (
        "leaked: GET /app/{app_id}/endpoint/{endpoint_id}/secret ",
        "leaked: GET /app ",
        "changed: PATCH /app/{app_id} ",
        "changed: DELETE /app/{app_id} ",
    ):
        assert any(line.startswith(beginning) for line in seen), beginning
    asked = {operation.name for operation in operations(server.base)} - OPEN - ANY_TOKEN
    unseen = {name for name in asked if not any(f"{name} as " in line for line in seen)}
    assert unseen == set()


def test_the_tenants_objects_are_as_they_were_created(tenant):
    """The objects that the matrix requested really existed."""
    assert tenant.api.get(tenant.app.path)["uid"] == f"{MARK}-app"
    assert tenant.app.status(tenant.message, tenant.endpoint) not in {None, FAIL}
