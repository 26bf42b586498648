"""Scenario for the official Svix clients: requests and expected responses of every method.

`METHODS` names every method that any of the clients has, with its request and boathook's answer; docs/reference/svix-clients.md
is written from it. `STEPS` is the way through them that each client goes. Names are those of the newest clients;
`OLDER_NAMES` tells what earlier ones say.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Method:
    """One method of the clients.

    Args:
        name: the resource and the method.
        request: HTTP method and path; below /api/v1 unless it begins with /ingest.
        status: the statuses of success, first the usual one; 404 if boathook does not have it.
        reference: what Svix does otherwise.
        why: why boathook does as it does.
        body: a body that the client can send, for methods that boathook does not have.
    """

    name: str
    request: str
    status: tuple[int, ...]
    reference: str = ""
    why: str = ""
    body: Any = None

    @property
    def is_served(self) -> bool:
        """Whether boathook has it."""
        return self.status != (404,)

    @property
    def path(self) -> str:
        """The path from the root, with its parameters in braces."""
        path = self.request.partition(" ")[2]
        return path if path.startswith("/ingest/") else f"/api/v1{path}"

    @property
    def verb(self) -> str:
        """The HTTP method."""
        return self.request.partition(" ")[0]

    @property
    def parameters(self) -> list[str]:
        """The names of the path's parameters."""
        return re.findall(r"{(\w+)}", self.request)


def _served(text: str, why: Mapping[str, tuple[str, str]]) -> Iterator[Method]:
    for line in text.strip().splitlines():
        name, status, verb, path = line.split()
        reference, reason = why.get(name, ("", ""))
        yield Method(name, f"{verb} {path}", tuple(map(int, status.split("/"))), reference, reason)


def _left_out(text: str, why: str, bodies: Mapping[str, Any]) -> Iterator[Method]:
    for line in text.strip().splitlines():
        name, verb, path = line.split()
        yield Method(name, f"{verb} {path}", (404,), "the cloud has it", why, bodies.get(name))


NOT_OPEN: Final = "the cloud has it, the open server does not"
_DROPPED: Final = "accepted fields are never dropped silently"
DIFFERENCES: Final[dict[str, tuple[str, str]]] = {
    "application.upsert": (
        "the open server gives what it creates no uid but the body's",
        "without one in the body it is the one in the path, so that the same call finds the application again",
    ),
    "authentication.app_portal_access": (
        "the open server drops `capabilities`, `expiry`, `readOnly` and `sessionId`, and has no portal",
        "there is a portal, and it keeps to them",
    ),
    "authentication.dashboard_access": ("the newest clients do not have it", "older clients still call it"),
    "authentication.logout": ("the open server answers 501", "a leaked token must be revocable"),
    "endpoint.create": (
        "the open server answers 422 to `eventTypes: []`, and drops `headers`",
        f"Svix's own portal kit sends an empty list and means all types; {_DROPPED}",
    ),
    "endpoint.patch_headers": ("the open server drops `deleteHeaders`", _DROPPED),
    "endpoint.recover": ("the open server loses messages past one page", "each of them is sent"),
    "endpoint.rotate_secret": (
        "the open server answers 204",
        "the clients disagree on what they can read: the Java, Kotlin and C# ones before 2.7 get 204, the others the key",
    ),
    "endpoint.send_example": (
        "the cloud answers 202; the open server drops `payload` and `exampleIndex`",
        f"200 is the open server's status, and clients take both; {_DROPPED}",
    ),
    "environment.export": (
        "the cloud adds connectors and the settings of its portal",
        "there are none here, so both are empty",
    ),
    "environment.import": (
        "the cloud takes connectors and settings too",
        "event types are all that there is to import",
    ),
    "event_type.create": ("the open server drops `groupName` and `featureFlags`", _DROPPED),
    "health.get": ("the open server answers 200 with a body", "the Kotlin and C# clients cannot read a body there"),
    "message.create": (
        "an idempotency key with another body gets the first answer again; the open server drops `tags` and `deliverAt`",
        f"409, as a fault of the caller should not look like success; {_DROPPED}",
    ),
    "message.list": ("the open server drops `tag`", _DROPPED),
    "message_attempt.list_attempted_destinations": (
        "a message that is tried again shows as failed",
        "it shows as sending, as it has not failed yet",
    ),
    "message_attempt.list_by_endpoint": ("the open server drops `tag`, `with_msg` and `expanded_statuses`", _DROPPED),
    "message_attempt.list_by_msg": ("the open server drops `tag` and `expanded_statuses`", _DROPPED),
    "message_attempt.resend": (
        "a resend that fails ends the automatic retries",
        "it leaves them alone: a manual attempt should not cost automatic ones",
    ),
} | dict.fromkeys(
    (
        "authentication.expire_all",
        "background_task.get",
        "background_task.list",
        "endpoint.bulk_replay",
        "endpoint.get_attempt_stats",
        "endpoint.replay_missing",
        "event_type.import_openapi",
        "message.bulk_expunge_content",
        "message.expunge_all_contents",
        "message.precheck",
        "operational_webhook.endpoint.create",
        "operational_webhook.endpoint.delete",
        "operational_webhook.endpoint.get",
        "operational_webhook.endpoint.get_headers",
        "operational_webhook.endpoint.get_secret",
        "operational_webhook.endpoint.list",
        "operational_webhook.endpoint.rotate_secret",
        "operational_webhook.endpoint.set_headers",
        "operational_webhook.endpoint.upsert",
        "statistics.aggregate_app_stats",
        "statistics.aggregate_event_types",
    ),
    (NOT_OPEN, ""),
)
"""What Svix answers otherwise, and why boathook does as it does."""

SERVED: Final = """
application.create 201 POST /app
application.delete 204 DELETE /app/{app_id}
application.get 200 GET /app/{app_id}
application.get_or_create 201/200 POST /app
application.list 200 GET /app
application.patch 200 PATCH /app/{app_id}
application.upsert 200/201 PUT /app/{app_id}
authentication.app_portal_access 200 POST /auth/app-portal-access/{app_id}
authentication.dashboard_access 200 POST /auth/dashboard-access/{app_id}
authentication.expire_all 204 POST /auth/app/{app_id}/expire-all
authentication.logout 204 POST /auth/logout
background_task.get 200 GET /background-task/{task_id}
background_task.list 200 GET /background-task
endpoint.bulk_replay 202 POST /app/{app_id}/endpoint/{endpoint_id}/bulk-replay
endpoint.create 201 POST /app/{app_id}/endpoint
endpoint.delete 204 DELETE /app/{app_id}/endpoint/{endpoint_id}
endpoint.get 200 GET /app/{app_id}/endpoint/{endpoint_id}
endpoint.get_attempt_stats 200 GET /app/{app_id}/endpoint/{endpoint_id}/attempt-stats
endpoint.get_headers 200 GET /app/{app_id}/endpoint/{endpoint_id}/headers
endpoint.get_secret 200 GET /app/{app_id}/endpoint/{endpoint_id}/secret
endpoint.get_stats 200 GET /app/{app_id}/endpoint/{endpoint_id}/stats
endpoint.list 200 GET /app/{app_id}/endpoint
endpoint.patch 200 PATCH /app/{app_id}/endpoint/{endpoint_id}
endpoint.patch_headers 204 PATCH /app/{app_id}/endpoint/{endpoint_id}/headers
endpoint.recover 202 POST /app/{app_id}/endpoint/{endpoint_id}/recover
endpoint.replay_missing 202 POST /app/{app_id}/endpoint/{endpoint_id}/replay-missing
endpoint.rotate_secret 200/204 POST /app/{app_id}/endpoint/{endpoint_id}/secret/rotate
endpoint.send_example 200 POST /app/{app_id}/endpoint/{endpoint_id}/send-example
endpoint.set_headers 204 PUT /app/{app_id}/endpoint/{endpoint_id}/headers
endpoint.upsert 200/201 PUT /app/{app_id}/endpoint/{endpoint_id}
environment.export 200 POST /environment/export
environment.import 204 POST /environment/import
event_type.create 201 POST /event-type
event_type.delete 204 DELETE /event-type/{event_type_name}
event_type.get 200 GET /event-type/{event_type_name}
event_type.import_openapi 200 POST /event-type/import/openapi
event_type.list 200 GET /event-type
event_type.patch 200 PATCH /event-type/{event_type_name}
event_type.upsert 200/201 PUT /event-type/{event_type_name}
health.get 204 GET /health
message.bulk_expunge_content 200 POST /app/{app_id}/msg/bulk-expunge
message.create 202 POST /app/{app_id}/msg
message.expunge_all_contents 202 POST /app/{app_id}/msg/expunge-all-contents
message.expunge_content 204 DELETE /app/{app_id}/msg/{msg_id}/content
message.get 200 GET /app/{app_id}/msg/{msg_id}
message.list 200 GET /app/{app_id}/msg
message.precheck 200 POST /app/{app_id}/msg/precheck/active
message_attempt.expunge_content 204 DELETE /app/{app_id}/msg/{msg_id}/attempt/{attempt_id}/content
message_attempt.get 200 GET /app/{app_id}/msg/{msg_id}/attempt/{attempt_id}
message_attempt.list_attempted_destinations 200 GET /app/{app_id}/msg/{msg_id}/endpoint
message_attempt.list_attempted_messages 200 GET /app/{app_id}/endpoint/{endpoint_id}/msg
message_attempt.list_by_endpoint 200 GET /app/{app_id}/attempt/endpoint/{endpoint_id}
message_attempt.list_by_msg 200 GET /app/{app_id}/attempt/msg/{msg_id}
message_attempt.resend 202 POST /app/{app_id}/msg/{msg_id}/endpoint/{endpoint_id}/resend
operational_webhook.endpoint.create 201 POST /operational-webhook/endpoint
operational_webhook.endpoint.delete 204 DELETE /operational-webhook/endpoint/{endpoint_id}
operational_webhook.endpoint.get 200 GET /operational-webhook/endpoint/{endpoint_id}
operational_webhook.endpoint.get_headers 200 GET /operational-webhook/endpoint/{endpoint_id}/headers
operational_webhook.endpoint.get_secret 200 GET /operational-webhook/endpoint/{endpoint_id}/secret
operational_webhook.endpoint.list 200 GET /operational-webhook/endpoint
operational_webhook.endpoint.rotate_secret 204 POST /operational-webhook/endpoint/{endpoint_id}/secret/rotate
operational_webhook.endpoint.set_headers 204 PUT /operational-webhook/endpoint/{endpoint_id}/headers
operational_webhook.endpoint.upsert 200/201 PUT /operational-webhook/endpoint/{endpoint_id}
statistics.aggregate_app_stats 202 POST /stats/usage/app
statistics.aggregate_event_types 202 PUT /stats/usage/event-types
"""
"""Methods with the statuses of success, the HTTP method and the path."""

NO_CLIENT_CALLS: Final = {
    "GET /api/v1/health/ping": "for load balancers",
    "GET /api/v1/source": "Svix's clients know sources of another API only; so do the next ones",
    "POST /api/v1/source": "see above",
    "GET /api/v1/source/{source_name}": "see above",
    "PUT /api/v1/source/{source_name}": "see above",
    "PATCH /api/v1/source/{source_name}": "see above",
    "DELETE /api/v1/source/{source_name}": "see above",
    "GET /api/v1/event": "boathook's own, for the events of both directions; so are the next ones",
    "GET /api/v1/event/{event_id}": "see above",
    "POST /api/v1/event/{event_id}/replay": "see above",
    "POST /api/v1/event/{id}/wake": "see above",
    "POST /api/v1/event/bulk-replay": "see above",
    "POST /api/v1/event/bulk-route": "see above",
    "GET /api/v1/delivery": "see above",
    "GET /api/v1/delivery/{delivery_id}": "see above",
    "GET /api/v1/bulk-job": "see above",
    "GET /api/v1/bulk-job/{job_id}": "see above",
    "POST /api/v1/bulk-job/{job_id}/stop": "see above",
    "GET /api/v1/dead-letter": "see above",
    "GET /api/v1/dead-letter/{delivery_id}": "see above",
    "POST /api/v1/dead-letter/{delivery_id}/replay": "see above",
    "POST /api/v1/dead-letter/{delivery_id}/ignore": "see above",
    "POST /api/v1/dead-letter/bulk-replay": "see above",
    "POST /api/v1/dead-letter/bulk-ignore": "see above",
    "POST /api/v1/dead-letter/bulk-purge": "see above",
    "POST /api/v1/delivery/{id}/retry": "see above",
    "POST /api/v1/delivery/{id}/replay": "see above",
    "GET /api/v1/key": "see above",
    "POST /api/v1/key": "see above",
    "GET /api/v1/key/{id}": "see above",
    "POST /api/v1/key/{id}/revoke": "see above",
    "POST /api/v1/integrity-check": "see above",
    "GET /api/v1/integrity-check": "see above",
    "GET /api/v1/integrity-check/{id}": "see above",
    "POST /api/v1/integrity-check/{id}/stop": "see above",
    "POST /api/v1/app/{application}/msg/expunge": "see above",
    "GET /api/v1/operator": "see above",
    "POST /api/v1/operator/{name}/disable": "see above",
    "POST /api/v1/operator/{name}/delete": "see above",
    "GET /api/v1/operator-token": "see above",
    "POST /api/v1/operator-token/{id}/revoke": "see above",
    "POST /api/v1/alert-channel/{channel}/test": "see above",
    "GET /api/v1/silence": "see above",
    "POST /api/v1/silence": "see above",
    "POST /api/v1/silence/{id}/end": "see above",
    "GET /api/v1/source/{source}/secret": "see above",
    "POST /api/v1/source/{source}/secret": "see above",
    "POST /api/v1/source/{source}/secret/{secret}/expire": "see above",
    "POST /api/v1/source/{source}/secret/{secret}/keep": "see above",
    "DELETE /api/v1/source/{source}/secret/{secret}": "see above",
    "POST /api/v1/source/{source}/handshake-secret": "see above",
    "DELETE /api/v1/source/{source}/handshake-secret": "see above",
    "GET /api/v1/rejection": "see above",
    "GET /api/v1/rejection/{rejection_id}": "see above",
    "POST /api/v1/rejection/{rejection_id}/reverify": "see above",
    "POST /api/v1/rejection/bulk-reverify": "see above",
    "GET /api/v1/conflict": "see above",
    "GET /api/v1/conflict/{conflict_id}": "see above",
    "POST /api/v1/conflict/{conflict_id}/accept": "see above",
    "POST /api/v1/conflict/bulk-accept": "see above",
    "GET /api/v1/app/{app_id}/endpoint/{endpoint_id}/health": "Svix has no such operation",
    "POST /api/v1/app/{app_id}/endpoint/{endpoint_id}/resume": "see above",
}
"""Operations of our OpenAPI document that no client has a method for."""

LEFT_OUT: Final[dict[str, tuple[str, str]]] = {
    "Transformations": (
        """
endpoint.transformation.get GET /app/{app_id}/endpoint/{endpoint_id}/transformation
endpoint.transformation.patch PATCH /app/{app_id}/endpoint/{endpoint_id}/transformation
endpoint.transformation_partial_update PATCH /app/{app_id}/endpoint/{endpoint_id}/transformation
""",
        "customers' code does not run in the sender; use a filter, or shape the payload before you publish it",
    ),
    "Connectors": (
        """
connector.create POST /connector
connector.delete DELETE /connector/{connector_id}
connector.get GET /connector/{connector_id}
connector.list GET /connector
connector.patch PATCH /connector/{connector_id}
connector.upsert PUT /connector/{connector_id}
""",
        "a connector is a ready-made transformation, and there are none",
    ),
    "Integrations": (
        """
integration.create POST /app/{app_id}/integration
integration.delete DELETE /app/{app_id}/integration/{integ_id}
integration.get GET /app/{app_id}/integration/{integ_id}
integration.get_key GET /app/{app_id}/integration/{integ_id}/key
integration.list GET /app/{app_id}/integration
integration.rotate_key POST /app/{app_id}/integration/{integ_id}/key/rotate
integration.update PUT /app/{app_id}/integration/{integ_id}
""",
        "give each party a key of its own: `boathook keys create --scope application`",
    ),
    "Automatic configuration": (
        """
autoconfig_subscription.create POST /app/{app_id}/autoconfig
autoconfig_subscription.delete DELETE /app/{app_id}/autoconfig/{autoconfig_id}
autoconfig_subscription.rotate POST /app/{app_id}/autoconfig/{autoconfig_id}/rotate
""",
        "a receiver sets its endpoint up in the customers' portal or by the API",
    ),
    "Destinations and pollers": (
        """
destination.create POST /app/{app_id}/destination
destination.delete DELETE /app/{app_id}/destination/{destination_id}
destination.get GET /app/{app_id}/destination/{destination_id}
destination.list GET /app/{app_id}/destination
destination.patch PATCH /app/{app_id}/destination/{destination_id}
destination.rotate_secret POST /app/{app_id}/destination/{destination_id}/secret/rotate
destination.transformation.get GET /app/{app_id}/destination/{destination_id}/transformation
destination.transformation.patch PATCH /app/{app_id}/destination/{destination_id}/transformation
destination.upsert PUT /app/{app_id}/destination/{destination_id}
message.poller.consumer_poll GET /app/{app_id}/poller/{sink_id}/consumer/{consumer_id}
message.poller.consumer_seek POST /app/{app_id}/poller/{sink_id}/consumer/{consumer_id}/seek
message.poller.poll GET /app/{app_id}/poller/{sink_id}
""",
        "messages go to endpoints over HTTP, in order with `orderBy`; a reader lists messages page by page",
    ),
    "Streams": (
        """
authentication.get_stream_poller_token GET /auth/stream/{stream_id}/sink/{sink_id}/poller/token
authentication.rotate_stream_poller_token POST /auth/stream/{stream_id}/sink/{sink_id}/poller/token/rotate
authentication.stream_expire_all POST /auth/stream/{stream_id}/expire-all
authentication.stream_logout POST /auth/stream-logout
authentication.stream_portal_access POST /auth/stream-portal-access/{stream_id}
streaming.event_type.create POST /stream/event-type
streaming.event_type.delete DELETE /stream/event-type/{name}
streaming.event_type.get GET /stream/event-type/{name}
streaming.event_type.list GET /stream/event-type
streaming.event_type.patch PATCH /stream/event-type/{name}
streaming.event_type.upsert PUT /stream/event-type/{name}
streaming.events.create POST /stream/{stream_id}/events
streaming.events.get GET /stream/{stream_id}/sink/{sink_id}/events
streaming.sink.create POST /stream/{stream_id}/sink
streaming.sink.delete DELETE /stream/{stream_id}/sink/{sink_id}
streaming.sink.get GET /stream/{stream_id}/sink/{sink_id}
streaming.sink.get_secret GET /stream/{stream_id}/sink/{sink_id}/secret
streaming.sink.list GET /stream/{stream_id}/sink
streaming.sink.patch PATCH /stream/{stream_id}/sink/{sink_id}
streaming.sink.rotate_secret POST /stream/{stream_id}/sink/{sink_id}/secret/rotate
streaming.sink.transformation.get GET /stream/{stream_id}/sink/{sink_id}/transformation
streaming.sink.transformation.patch PATCH /stream/{stream_id}/sink/{sink_id}/transformation
streaming.sink.upsert PUT /stream/{stream_id}/sink/{sink_id}
streaming.sink_headers_get GET /stream/{stream_id}/sink/{sink_id}/headers
streaming.sink_headers_patch PATCH /stream/{stream_id}/sink/{sink_id}/headers
streaming.stream.create POST /stream
streaming.stream.delete DELETE /stream/{stream_id}
streaming.stream.get GET /stream/{stream_id}
streaming.stream.list GET /stream
streaming.stream.patch PATCH /stream/{stream_id}
streaming.stream.upsert PUT /stream/{stream_id}
""",
        "another product, for batches of data instead of webhooks",
    ),
    "Ingest": (
        """
ingest.authentication.consumer_portal_access POST /ingest/api/v1/source/{source_id}/dashboard
ingest.endpoint.create POST /ingest/api/v1/source/{source_id}/endpoint
ingest.endpoint.delete DELETE /ingest/api/v1/source/{source_id}/endpoint/{endpoint_id}
ingest.endpoint.get GET /ingest/api/v1/source/{source_id}/endpoint/{endpoint_id}
ingest.endpoint.get_headers GET /ingest/api/v1/source/{source_id}/endpoint/{endpoint_id}/headers
ingest.endpoint.get_secret GET /ingest/api/v1/source/{source_id}/endpoint/{endpoint_id}/secret
ingest.endpoint.list GET /ingest/api/v1/source/{source_id}/endpoint
ingest.endpoint.rotate_secret POST /ingest/api/v1/source/{source_id}/endpoint/{endpoint_id}/secret/rotate
ingest.endpoint.set_headers PUT /ingest/api/v1/source/{source_id}/endpoint/{endpoint_id}/headers
ingest.endpoint.transformation.get GET /ingest/api/v1/source/{source_id}/endpoint/{endpoint_id}/transformation
ingest.endpoint.transformation.patch PATCH /ingest/api/v1/source/{source_id}/endpoint/{endpoint_id}/transformation
ingest.endpoint.upsert PUT /ingest/api/v1/source/{source_id}/endpoint/{endpoint_id}
ingest.source.create POST /ingest/api/v1/source
ingest.source.delete DELETE /ingest/api/v1/source/{source_id}
ingest.source.get GET /ingest/api/v1/source/{source_id}
ingest.source.list GET /ingest/api/v1/source
ingest.source.rotate_token POST /ingest/api/v1/source/{source_id}/token/rotate
ingest.source.upsert PUT /ingest/api/v1/source/{source_id}
""",
        "sources are set up in `boathook.toml` or by `POST /source`, and handled by your code",
    ),
    "Accounts": (
        """
authentication.whoami GET /auth/whoami
""",
        "there are no accounts; `boathook keys list` shows what a key may do",
    ),
}
"""Methods that boathook does not have, by area, and why."""

_URL: Final = {"url": "https://example.com/hook"}
_SINK: Final = {"type": "http", "config": _URL}
_DESTINATION: Final = {"type": "fifoEndpoint", "config": _URL}
_SOURCE: Final = {"name": "Shop", "type": "stripe", "config": {"secret": "whsec_of_stripe"}}
_HEADERS: Final = {"headers": {"X-Shop": "one"}}
BODIES: Final[dict[str, Any]] = {
    "authentication.rotate_stream_poller_token": {},
    "authentication.stream_expire_all": {},
    "authentication.stream_portal_access": {},
    "autoconfig_subscription.create": {},
    "autoconfig_subscription.rotate": {},
    "connector.create": {"name": "Chat", "transformation": "handler = (webhook) => webhook"},
    "connector.patch": {"name": "Chat"},
    "connector.upsert": {"name": "Chat", "transformation": "handler = (webhook) => webhook"},
    "destination.create": _DESTINATION,
    "destination.patch": _DESTINATION,
    "destination.rotate_secret": {},
    "destination.transformation.patch": {},
    "destination.upsert": _DESTINATION,
    "endpoint.transformation.patch": {"enabled": True},
    "endpoint.transformation_partial_update": {"enabled": True},
    "ingest.authentication.consumer_portal_access": {},
    "ingest.endpoint.create": _URL,
    "ingest.endpoint.rotate_secret": {},
    "ingest.endpoint.set_headers": _HEADERS,
    "ingest.endpoint.transformation.patch": {"enabled": True},
    "ingest.endpoint.upsert": _URL,
    "ingest.source.create": _SOURCE,
    "ingest.source.upsert": _SOURCE,
    "integration.create": {"name": "Chat"},
    "integration.update": {"name": "Chat"},
    "message.poller.consumer_seek": {"after": "2026-01-31T12:00:00Z"},
    "streaming.event_type.create": {"name": "parcel.sent"},
    "streaming.event_type.patch": {},
    "streaming.event_type.upsert": {"name": "parcel.sent"},
    "streaming.events.create": {"events": [{"eventType": "parcel.sent", "payload": "{}"}]},
    "streaming.sink.create": _SINK,
    "streaming.sink.patch": _SINK,
    "streaming.sink.rotate_secret": {},
    "streaming.sink.transformation.patch": {},
    "streaming.sink.upsert": _SINK,
    "streaming.sink_headers_patch": _HEADERS,
    "streaming.stream.create": {"name": "Parcels"},
    "streaming.stream.patch": {},
    "streaming.stream.upsert": {"name": "Parcels"},
}
"""Bodies for methods that boathook does not have."""

METHODS: Final[dict[str, Method]] = {
    one.name: one
    for one in (
        *_served(SERVED, DIFFERENCES),
        *(one for text, why in LEFT_OUT.values() for one in _left_out(text, why, BODIES)),
    )
}
"""Every method that any of the clients has."""

_NO_BODY: Final = "it sends no body, which its HTTP library demands"
CLIENT_FAULTS: Final[dict[str, dict[str, str]]] = {
    "Go": {"streaming.sink.patch": "it writes JSON that is not valid for fields that are not set"},
    "Java": dict.fromkeys(
        (
            "authentication.dashboard_access",
            "authentication.logout",
            "authentication.stream_logout",
            "environment.export",
            "ingest.source.rotate_token",
            "integration.rotate_key",
            "message.expunge_all_contents",
            "message_attempt.resend",
            "statistics.aggregate_event_types",
        ),
        _NO_BODY,
    ),
}
"""Calls that a client of the pinned version cannot make to any server, as it fails before it sends anything."""

OLDER_NAMES: Final = {
    "endpoint.patch_transformation": "endpoint.transformation.patch",
    "endpoint.transformation_get": "endpoint.transformation.get",
    "ingest.dashboard": "ingest.authentication.consumer_portal_access",
    "ingest.endpoint.get_transformation": "ingest.endpoint.transformation.get",
    "ingest.endpoint.set_transformation": "ingest.endpoint.transformation.patch",
    "streaming.sink.transformation_partial_update": "streaming.sink.transformation.patch",
    "streaming.sink_transformation_get": "streaming.sink.transformation.get",
}


def current_name(name: str) -> str:
    """Return the newest clients' name of a method."""
    name = name.rstrip("_")
    name = OLDER_NAMES.get(name, name).replace("operational_webhook_endpoint.", "operational_webhook.endpoint.")
    if name.startswith("integration."):
        return name
    return re.sub(r"\.update$", ".upsert", name).replace(".update_headers", ".set_headers")


@dataclass(frozen=True, slots=True)
class Like:
    """Equals any text that a pattern matches completely."""

    pattern: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and re.fullmatch(self.pattern, other) is not None

    def __hash__(self) -> int:
        return hash(self.pattern)


@dataclass(frozen=True, slots=True)
class Step:
    """One call.

    Args:
        method: the method's name.
        path: values of the path's parameters; a text such as ``$app`` stands for a value that was kept.
        body: the request's body, likewise.
        options: query parameters and the idempotency key.
        status: the status if it is not the method's usual one.
        value: what the client must have read, at least; of an error, its body.
        keep: names under which fields of the value are kept, for later steps.
        token: the name of the kept token to call with.
        is_awaited: whether to call until the value is there.
        after: a method without whose effect the value is another; clients that cannot call it leave the step out.
    """

    method: str
    path: tuple[str, ...] = ()
    body: Any = None
    options: Mapping[str, Any] = field(default_factory=dict)
    status: int | None = None
    value: Any = None
    keep: Mapping[str, str] = field(default_factory=dict)
    token: str = "$token"
    is_awaited: bool = False
    after: str = ""


def identifier(prefix: str) -> Like:
    """Return a value that equals any id of a kind."""
    return Like(f"{prefix}_[0-9A-Za-z]{{27}}")


NOT_FOUND: Final = {"code": "not_found", "detail": "Entity not found"}
NO_ROUTE: Final = {"code": "not_found", "detail": "unknown route"}
NO_INGEST: Final = {
    "code": "not_found",
    "detail": "boathook has no ingest API; its sources are at /api/v1/source",
}
UNAUTHENTICATED: Final = {"code": "authentication_failed"}
SCHEMA: Final = {
    "1": {
        "title": "Invoice",
        "type": "object",
        "properties": {"amount": {"type": "integer"}},
        "examples": [{"amount": 5}],
    }
}
SPEC: Final = {
    "openapi": "3.1.0",
    "info": {"title": "Shop", "version": "1"},
    "webhooks": {
        "parcel.sent": {
            "post": {
                "description": "A parcel left",
                "requestBody": {"content": {"application/json": {"schema": {"type": "object", "title": "Parcel"}}}},
            }
        }
    },
}
FULL: Final = {"withContent": True}

HEALTH: Final = (Step("health.get"),)

EVENT_TYPES: Final = (
    Step(
        "event_type.create",
        body={"name": "invoice.paid", "description": "Paid", "schemas": SCHEMA},
        value={
            "name": "invoice.paid",
            "description": "Paid",
            "archived": False,
            "deprecated": False,
            "schemas": SCHEMA,
        },
    ),
    Step(
        "event_type.create",
        body={"name": "invoice.paid", "description": "Paid"},
        status=409,
        value={"code": "event_type_exists"},
    ),
    Step(
        "event_type.create",
        body={"name": "old.thing", "description": "Old", "groupName": "things"},
        value={"groupName": "things"},
    ),
    Step("event_type.upsert", ("old.thing",), body={"description": "Older"}, value={"description": "Older"}),
    Step("event_type.upsert", ("new.thing",), body={"description": "New"}, status=201, value={"name": "new.thing"}),
    Step("event_type.patch", ("old.thing",), body={"deprecated": True}, value={"deprecated": True}),
    Step("event_type.get", ("invoice.paid",), value={"name": "invoice.paid", "schemas": SCHEMA}),
    Step("event_type.delete", ("old.thing",)),
    Step("event_type.list", options=FULL, value={"data": [{"schemas": SCHEMA}, {"name": "new.thing"}], "done": True}),
    Step(
        "event_type.list",
        options={"includeArchived": True, "limit": 2},
        value={"data": [{"name": "invoice.paid"}, {"name": "new.thing"}], "iterator": "new.thing", "done": False},
    ),
    Step("event_type.delete", ("old.thing",), options={"expunge": True}),
    Step("event_type.get", ("old.thing",), status=404, value=NOT_FOUND),
    Step("event_type.import_openapi", body={"spec": SPEC}, value={"data": {"modified": ["parcel.sent"]}}),
    Step(
        "event_type.import_openapi",
        body={"specRaw": json.dumps(SPEC), "dryRun": True},
        value={"data": {"modified": []}},
    ),
)

APPLICATIONS: Final = (
    Step(
        "application.create",
        body={"name": "Shop", "uid": "shop", "throttleRate": 50, "metadata": {"plan": "gold"}},
        value={
            "id": identifier("app"),
            "name": "Shop",
            "uid": "shop",
            "throttleRate": 50,
            "metadata": {"plan": "gold"},
            "createdAt": Like(r"2.*"),
        },
        keep={"app": "id"},
    ),
    Step("application.create", body={"name": "Shop", "uid": "shop"}, status=409, value={"code": "conflict"}),
    Step(
        "application.create",
        body={"name": ""},
        status=422,
        value={"detail": [{"loc": ["body", "name"], "type": "value_error"}]},
    ),
    Step(
        "application.get_or_create",
        body={"name": "Another", "uid": "shop"},
        status=200,
        value={"id": "$app", "name": "Shop"},
    ),
    Step("application.get_or_create", body={"name": "Fresh", "uid": "fresh"}, status=201, keep={"fresh": "id"}),
    Step(
        "application.list",
        options={"limit": 1},
        value={"data": [{"uid": "shop"}], "done": False, "iterator": "$app"},
    ),
    Step(
        "application.list", options={"limit": 1, "iterator": "$app"}, value={"data": [{"id": "$fresh"}], "done": True}
    ),
    Step("application.list", options={"order": "descending"}, value={"data": [{"uid": "fresh"}, {"uid": "shop"}]}),
    Step("application.list", options={"limit": 300}, status=422, value={"detail": [{"loc": ["query", "limit"]}]}),
    Step(
        "application.upsert", ("shop",), body={"name": "Renamed", "uid": "shop"}, value={"id": "$app", "metadata": {}}
    ),
    Step("application.upsert", ("third",), body={"name": "Third"}, status=201, value={"uid": "third"}),
    Step(
        "application.patch",
        ("$app",),
        body={"metadata": {"plan": "silver"}},
        value={"name": "Renamed", "metadata": {"plan": "silver"}},
    ),
    Step("application.get", ("shop",), value={"id": "$app", "uid": "shop"}),
    Step("application.delete", ("$fresh",)),
    Step("application.get", ("fresh",), status=404, value=NOT_FOUND),
)

ENDPOINTS: Final = (
    Step(
        "endpoint.create",
        ("$app",),
        body={
            "url": "$good_url",
            "uid": "good",
            "description": "All is well",
            "eventTypes": ["invoice.paid"],
            "channels": ["blue"],
            "throttleRate": 100,
            "metadata": {"a": "b"},
            "headers": {"X-Shop": "one"},
        },
        value={
            "id": identifier("ep"),
            "url": "$good_url",
            "uid": "good",
            "description": "All is well",
            "disabled": False,
            "eventTypes": ["invoice.paid"],
            "channels": ["blue"],
            "throttleRate": 100,
            "metadata": {"a": "b"},
        },
        keep={"good": "id"},
    ),
    Step("endpoint.get_headers", ("$app", "$good"), value={"headers": {"X-Shop": "one"}, "sensitive": []}),
    Step("endpoint.set_headers", ("$app", "$good"), body={"headers": {"X-Shop": "two", "Authorization": "Bearer k"}}),
    Step("endpoint.patch_headers", ("$app", "$good"), body={"headers": {"X-More": "3"}}),
    Step(
        "endpoint.get_headers",
        ("$app", "$good"),
        value={"headers": {"X-Shop": "two", "X-More": "3"}, "sensitive": ["Authorization"]},
    ),
    Step(
        "endpoint.set_headers",
        ("$app", "$good"),
        body={"headers": {"content-length": "3"}},
        status=422,
        value={"detail": [{"type": "value_error"}]},
    ),
    Step("endpoint.create", ("$app",), body={"url": "ftp://example.com"}, status=422, value={"detail": [{}]}),
    Step("endpoint.create", ("nobody",), body={"url": "$good_url"}, status=404, value=NOT_FOUND),
    Step(
        "endpoint.upsert",
        ("$app", "good"),
        body={"url": "$good_url", "uid": "good", "channels": ["red"]},
        value={"id": "$good", "description": "", "channels": ["red"]},
    ),
    Step(
        "endpoint.patch",
        ("$app", "$good"),
        body={"description": "Still well", "channels": None, "eventTypes": ["invoice.paid"]},
        value={"description": "Still well", "eventTypes": ["invoice.paid"]},
    ),
    Step("endpoint.get", ("shop", "good"), value={"id": "$good", "description": "Still well"}),
    Step("endpoint.get_secret", ("$app", "$good"), value={"key": Like("whsec_.+")}, keep={"former": "key"}),
    Step("endpoint.rotate_secret", ("$app", "$good"), body={}),
    Step("endpoint.get_secret", ("$app", "$good"), value={"key": Like("whsec_.+")}, keep={"secret": "key"}),
    Step("endpoint.upsert", ("$app", "bad"), body={"url": "$bad_url", "uid": "bad"}, status=201, keep={"bad": "id"}),
    Step("endpoint.create", ("$app",), body={"url": "$good_url", "uid": "gone"}, keep={"gone": "id"}),
    Step("endpoint.delete", ("$app", "$gone")),
    Step("endpoint.get", ("$app", "gone"), status=404, value=NOT_FOUND),
    Step("endpoint.list", ("$app",), value={"data": [{"uid": "bad"}, {"uid": "good"}], "done": True}),
)

MESSAGES: Final = (
    Step(
        "message.create",
        ("$app",),
        body={
            "eventType": "invoice.paid",
            "payload": {"amount": 7},
            "eventId": "evt-1",
            "channels": ["blue"],
            "tags": ["vip"],
        },
        options=FULL,
        value={
            "id": identifier("msg"),
            "eventType": "invoice.paid",
            "payload": {"amount": 7},
            "eventId": "evt-1",
            "channels": ["blue"],
            "timestamp": Like(r"2.*"),
        },
        keep={"message": "id"},
    ),
    Step(
        "message.create",
        ("$app",),
        body={"eventType": "invoice.paid", "payload": {"amount": 7}, "eventId": "evt-1"},
        status=409,
        value={"code": "conflict"},
    ),
    Step(
        "message.create",
        ("shop",),
        body={"eventType": "invoice.paid", "payload": {"amount": 8}},
        options={"idempotencyKey": "key-1"},
        keep={"second": "id"},
    ),
    Step(
        "message.create",
        ("shop",),
        body={"eventType": "invoice.paid", "payload": {"amount": 8}},
        options={"idempotencyKey": "key-1"},
        value={"id": "$second"},
    ),
    Step(
        "message.create",
        ("nobody",),
        body={"eventType": "invoice.paid", "payload": {}},
        status=404,
        value=NOT_FOUND,
    ),
    Step("message.precheck", ("$app",), body={"eventType": "invoice.paid"}, value={"active": True}),
    Step("message.get", ("$app", "evt-1"), options=FULL, value={"id": "$message", "payload": {"amount": 7}}),
    Step("message.get", ("$app", "$message"), options={"withContent": False}, value={"payload": {}}),
    Step(
        "message.list",
        ("$app",),
        options=FULL,
        value={"data": [{"payload": {"amount": 8}}, {"payload": {"amount": 7}}], "done": True},
    ),
    Step(
        "message.list",
        ("$app",),
        options={"channel": "blue", "eventTypes": ["invoice.paid", "x"], "withContent": True},
        value={"data": [{"id": "$message"}]},
    ),
)

ATTEMPTS: Final = (
    Step(
        "message_attempt.list_by_endpoint",
        ("$app", "$good"),
        options={"status": 0, "withContent": True},
        value={"data": [{"response": "thanks"}, {"response": "thanks"}], "done": True},
        is_awaited=True,
    ),
    Step(
        "message_attempt.list_by_msg",
        ("$app", "$message"),
        options={"statusCodeClass": 500, "endpointId": "bad", "withContent": True},
        value={
            "data": [
                {
                    "id": identifier("atmpt"),
                    "endpointId": "$bad",
                    "msgId": "$message",
                    "url": "$bad_url",
                    "response": "broken",
                    "responseStatusCode": 500,
                    "status": 2,
                    "triggerType": 0,
                }
            ]
            * 3
        },
        keep={"attempt": "data.0.id"},
        is_awaited=True,
    ),
    Step(
        "message_attempt.get",
        ("$app", "evt-1", "$attempt"),
        value={"id": "$attempt", "status": 2, "endpointId": "$bad"},
    ),
    Step(
        "message_attempt.list_attempted_messages",
        ("$app", "$bad"),
        options={"status": 2},
        value={"data": [{"status": 2, "id": "$second"}, {"status": 2, "id": "$message"}]},
        is_awaited=True,
    ),
    Step(
        "message_attempt.list_attempted_destinations",
        ("$app", "$message"),
        value={"data": [{"id": "$good", "status": 0}, {"id": "$bad", "status": 2}], "done": True},
    ),
    Step("message_attempt.resend", ("$app", "$message", "good")),
    Step(
        "message_attempt.list_by_endpoint",
        ("$app", "$good"),
        value={"data": [{"triggerType": 1, "msgId": "$message"}, {"triggerType": 0}, {"triggerType": 0}]},
        is_awaited=True,
        after="message_attempt.resend",
    ),
    Step("message_attempt.expunge_content", ("$app", "$message", "$attempt")),
    Step("message_attempt.get", ("$app", "$message", "$attempt"), value={"response": "EXPUNGED"}),
    Step("message_attempt.get", ("$app", "$message", f"atmpt_{'0' * 27}"), status=404, value=NOT_FOUND),
)

SENDING_AGAIN: Final = (
    Step(
        "endpoint.get_stats",
        ("$app", "$good"),
        value={"success": 3, "fail": 0, "pending": 0, "sending": 0},
        after="message_attempt.resend",
    ),
    Step(
        "endpoint.get_stats",
        ("$app", "$bad"),
        options={"since": "$yesterday"},
        value={"success": 0, "fail": 6, "pending": 0, "sending": 0},
    ),
    Step("endpoint.get_attempt_stats", ("$app", "$bad"), value={"success": 0, "fail": 6, "canceled": 0}),
    Step(
        "endpoint.send_example",
        ("$app", "$good"),
        body={"eventType": "invoice.paid"},
        value={"id": identifier("msg"), "eventType": "invoice.paid"},
    ),
    Step("endpoint.patch", ("$app", "$bad"), body={"url": "$good_url"}, value={"url": "$good_url"}),
    Step(
        "endpoint.recover",
        ("$app", "$bad"),
        body={"since": "$hour_ago"},
        value={"id": identifier("qtask"), "task": "endpoint.recover", "status": Like("running|finished")},
        keep={"task": "id"},
    ),
    Step(
        "background_task.get",
        ("$task",),
        value={"id": "$task", "task": "endpoint.recover", "status": "finished", "data": {}},
        is_awaited=True,
    ),
    Step(
        "message_attempt.list_attempted_messages",
        ("$app", "$bad"),
        value={"data": [{"status": 0}, {"status": 0}]},
        is_awaited=True,
    ),
    Step("endpoint.recover", ("$app", "$bad"), body={"since": "$long_ago"}, status=422, value={"detail": [{}]}),
    Step("endpoint.create", ("$app",), body={"url": "$good_url", "uid": "late"}, keep={"late": "id"}),
    Step(
        "endpoint.replay_missing",
        ("$app", "$late"),
        body={"since": "$hour_ago"},
        value={"task": "endpoint.replay"},
        keep={"task": "id"},
    ),
    Step("background_task.get", ("$task",), value={"status": "finished"}, is_awaited=True),
    Step(
        "endpoint.bulk_replay",
        ("$app", "$late"),
        body={"since": "$hour_ago", "eventTypes": ["invoice.paid"]},
        value={"task": "endpoint.bulk-replay"},
        keep={"task": "id"},
    ),
    Step("background_task.get", ("$task",), value={"status": "finished"}, is_awaited=True),
    Step(
        "background_task.list",
        options={"task": "endpoint.recover"},
        value={"data": [{"task": "endpoint.recover", "status": "finished"}], "done": True},
    ),
    Step("background_task.get", (f"qtask_{'0' * 27}",), status=404, value=NOT_FOUND),
)

STATISTICS: Final = (
    Step(
        "statistics.aggregate_event_types",
        value={"id": identifier("qtask"), "task": "event-type.aggregate"},
        keep={"task": "id"},
    ),
    Step("background_task.get", ("$task",), value={"status": "finished"}, is_awaited=True),
    Step(
        "statistics.aggregate_app_stats",
        body={"since": "$yesterday", "until": "$hour_ago", "appIds": ["$app", "nobody"]},
        value={"task": "application.stats", "unresolvedAppIds": ["nobody"]},
        keep={"task": "id"},
    ),
    Step("background_task.get", ("$task",), value={"status": "finished"}, is_awaited=True),
)

OPERATIONAL: Final = (
    Step(
        "operational_webhook.endpoint.create",
        body={
            "url": "$ops_url",
            "uid": "ops",
            "eventTypes": ["endpoint.created"],
            "description": "Ops",
            "metadata": {"a": "b"},
        },
        value={"uid": "ops", "description": "Ops", "eventTypes": ["endpoint.created"], "metadata": {"a": "b"}},
        keep={"ops": "id"},
    ),
    Step(
        "operational_webhook.endpoint.upsert",
        ("$ops",),
        body={"url": "$ops_url", "uid": "ops", "eventTypes": ["endpoint.created"]},
        value={"id": "$ops", "description": ""},
    ),
    Step("operational_webhook.endpoint.get", ("ops",), value={"id": "$ops", "url": "$ops_url"}),
    Step("operational_webhook.endpoint.list", value={"data": [{"uid": "ops"}], "done": True}),
    Step("operational_webhook.endpoint.set_headers", ("$ops",), body={"headers": {"X-Ops": "1"}}),
    Step("operational_webhook.endpoint.get_headers", ("$ops",), value={"headers": {"X-Ops": "1"}}),
    Step("operational_webhook.endpoint.rotate_secret", ("$ops",), body={}),
    Step(
        "operational_webhook.endpoint.get_secret", ("$ops",), value={"key": Like("whsec_.+")}, keep={"ops_key": "key"}
    ),
    Step("endpoint.create", ("$app",), body={"url": "$good_url", "uid": "announced", "disabled": True}),
    Step(
        "operational_webhook.endpoint.upsert",
        ("gone",),
        body={"url": "$ops_url", "uid": "gone", "disabled": True},
        status=201,
    ),
    Step("operational_webhook.endpoint.delete", ("gone",)),
    Step("operational_webhook.endpoint.get", ("gone",), status=404, value=NOT_FOUND),
)

ENVIRONMENT: Final = (
    Step(
        "environment.export",
        value={
            "eventTypes": [{"name": "invoice.paid"}, {"name": "new.thing"}, {"name": "parcel.sent"}],
            "connectors": [],
        },
    ),
    Step("environment.import", body={"eventTypes": [{"name": "came.along", "description": "Imported"}]}),
    Step("event_type.get", ("came.along",), value={"description": "Imported"}),
)

AUTHENTICATION: Final = (
    Step(
        "authentication.app_portal_access",
        ("$app",),
        body={"expiry": 3600},
        value={"url": Like("http.+"), "token": Like(".+")},
        keep={"portal": "token"},
    ),
    Step("application.get", ("$app",), value={"id": "$app"}, token="$portal"),
    Step("application.get", ("third",), status=404, value=NOT_FOUND, token="$portal"),
    Step("application.list", status=403, value={"code": Like(".+")}, token="$portal"),
    Step("authentication.logout", token="$portal"),
    Step(
        "application.get",
        ("$app",),
        status=401,
        value=UNAUTHENTICATED,
        token="$portal",
        after="authentication.logout",
    ),
    Step("authentication.app_portal_access", ("shop",), body={}, keep={"portal": "token"}),
    Step("authentication.expire_all", ("$app",), body={"expiry": 0}),
    Step("application.get", ("$app",), status=401, value=UNAUTHENTICATED, token="$portal"),
    Step("authentication.dashboard_access", ("$app",), value={"url": Like("http.+"), "token": Like(".+")}),
    Step("application.list", status=401, value=UNAUTHENTICATED, token="nonsense"),
)

EXPUNGING: Final = (
    Step("message.expunge_content", ("$app", "$message")),
    Step("message.get", ("$app", "$message"), options=FULL, value={"payload": {"expired": True}}),
    Step("message_attempt.resend", ("$app", "$message", "good"), status=400, value={"code": "missing_payload"}),
    Step(
        "message.bulk_expunge_content",
        ("$app",),
        body={"ids": ["$second", "nothing"]},
        value={"results": {"nothing": "not-found"}},
    ),
    Step(
        "message.expunge_all_contents",
        ("$app",),
        value={"task": "application.purge_content"},
        keep={"task": "id"},
    ),
    Step("background_task.get", ("$task",), value={"status": "finished"}, is_awaited=True),
    Step(
        "message.get",
        ("$app", "$second"),
        options=FULL,
        value={"payload": {"expired": True}},
        after="message.expunge_all_contents",
    ),
)

ABSENT: Final = tuple(
    Step(
        one.name,
        ("$app",) * len(one.parameters),
        body=one.body,
        status=404,
        value=NO_INGEST if one.path.startswith("/ingest/") else NO_ROUTE,
    )
    for one in METHODS.values()
    if not one.is_served
)

STEPS: Final = (
    *HEALTH,
    *EVENT_TYPES,
    *APPLICATIONS,
    *ENDPOINTS,
    *MESSAGES,
    *ATTEMPTS,
    *SENDING_AGAIN,
    *OPERATIONAL,
    *STATISTICS,
    *ENVIRONMENT,
    *AUTHENTICATION,
    *EXPUNGING,
    *ABSENT,
)
"""The way of each client, in order."""
