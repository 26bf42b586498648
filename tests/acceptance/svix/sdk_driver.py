"""Calls every resource of a server with one version of the official `svix` package.

Arguments: JSON with ``base``, ``token``, the receivers ``good`` (answers 200), ``bad`` (answers 500) and ``ops``, and
``folder``, where the package is installed (empty: among the interpreter's own). Prints JSON: ``facts``, what came of
each step with everything that differs from run to run taken out; ``called`` and ``offered``, the methods used and those
the version has; ``secrets``, the keys the receivers need to judge signatures.

Clients of other languages take the way of `scenario.py`.
"""

import importlib
import inspect
import json
import sys
import time
from datetime import UTC, datetime, timedelta

TASK = json.loads(sys.argv[1])
if TASK["folder"]:
    sys.path.insert(0, TASK["folder"])

import svix  # noqa: E402
from svix import models  # noqa: E402
from svix.api import Svix, SvixOptions  # noqa: E402
from svix.exceptions import HttpError, HTTPValidationError  # noqa: E402

RESOURCES = (
    "application",
    "authentication",
    "background_task",
    "endpoint",
    "environment",
    "event_type",
    "health",
    "message",
    "message_attempt",
    "operational_webhook_endpoint",
    "statistics",
)
OLD_NAMES = {
    "event_types": "filter_types",
    "throttle_rate": "rate_limit",
    "upsert": "update",
    "set_headers": "update_headers",
}
SPEC = {
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
SCHEMA = {
    "1": {
        "title": "Invoice",
        "type": "object",
        "properties": {"amount": {"type": "integer"}},
        "examples": [{"amount": 5}],
    }
}

facts: dict[str, object] = {}
called: set[str] = set()
secrets: dict[str, list[str]] = {}


class Resource:
    """One resource of the client; remembers which methods answered."""

    def __init__(self, name, inner):
        self.name = name
        self.inner = inner

    def has(self, method):
        return hasattr(self.inner, method) or hasattr(self.inner, OLD_NAMES.get(method, method))

    def __getattr__(self, method):
        method = method if hasattr(self.inner, method) else OLD_NAMES[method]
        call = getattr(self.inner, method)

        def remembered(*arguments):
            answer = call(*arguments)
            called.add(f"{self.name}.{method}")
            return answer

        return remembered


class Client:
    """The package's client behind one token."""

    def __init__(self, token):
        inner = Svix(token, SvixOptions(server_url=TASK["base"]))
        for name in RESOURCES:
            setattr(self, name, Resource(name, _find(inner, name)))

    def __getattr__(self, name: str) -> Resource:
        raise AttributeError(f"the package has no resource {name}")


def _find(inner, name):
    if name == "operational_webhook_endpoint" and hasattr(inner, "operational_webhook"):
        return inner.operational_webhook.endpoint
    if name == "background_task" and not hasattr(inner, name):
        # Version 1.62 has the class, but its client forgets to offer it.
        return importlib.import_module("svix.api.background_task").BackgroundTask(inner._client)
    return getattr(inner, name, None)


def offered():
    inner = Svix("x", SvixOptions(server_url=TASK["base"]))
    return sorted(
        f"{name}.{method}"
        for name in RESOURCES
        if (resource := _find(inner, name)) is not None
        for method, _ in inspect.getmembers(type(resource), inspect.isfunction)
        if not method.startswith("_")
    )


def make(model, **fields):
    """Create a model, with each field named as in this client generation."""
    kind = getattr(models, model)
    names = {name: name if name in kind.model_fields else OLD_NAMES.get(name, name) for name in fields}
    return kind(**{names[name]: value for name, value in fields.items()})


def body(new, old, **fields):
    """Make the model of a PUT, which was renamed."""
    return make(new if hasattr(models, new) else old, **fields)


def options(resource, name, **fields):
    return getattr(importlib.import_module(f"svix.api.{resource}"), name)(**fields)


def fact(name, value):
    facts[name] = value


def has_field(model, field):
    return field in getattr(models, model).model_fields


def either(row, new, old):
    return getattr(row, new) if hasattr(row, new) else getattr(row, old)


def names_of(page, attribute="id"):
    return [getattr(row, attribute) for row in page.data]


def refusal(call, *arguments):
    """Return the status and code with which a call is refused."""
    try:
        call(*arguments)
    except HttpError as error:
        return [error.status_code, error.code]
    except HTTPValidationError as error:
        detail = error.to_dict()["detail"]
        return [error.status_code, list(detail[0]["loc"])]
    return [200, "not refused"]


def wait(call, deadline_s=30):
    deadline = time.monotonic() + deadline_s
    while not (value := call()):
        if time.monotonic() > deadline:
            raise TimeoutError(inspect.getsource(call))
        time.sleep(0.05)
    return value


def now():
    return datetime.now(UTC)


def form(identifier):
    """Return the prefix of an id of the right form, else the id."""
    prefix, _, rest = identifier.partition("_")
    return prefix if len(rest) == 27 and rest.isalnum() and rest.isascii() else identifier


def event_types(client):
    types = client.event_type
    made = types.create(make("EventTypeIn", name="invoice.paid", description="Paid", schemas=SCHEMA))
    fact("type.created", [made.name, made.description, made.archived, made.deprecated, made.schemas == SCHEMA])
    again = make("EventTypeIn", name="invoice.paid", description="Paid")
    fact("type.conflict", refusal(types.create, again)[0])
    types.create(make("EventTypeIn", name="invoice.voided", description="Voided", group_name="invoices"))
    types.create(make("EventTypeIn", name="old.thing", description="Old"))
    fact("type.listed", names_of(types.list(), "name"))
    with_content = options("event_type", "EventTypeListOptions", with_content=True, limit=1)
    page = types.list(with_content)
    fact("type.page", [names_of(page, "name"), page.data[0].schemas == SCHEMA, page.done, page.iterator])
    fact("type.got", types.get("invoice.voided").group_name)
    fact(
        "type.put",
        types.upsert("old.thing", body("EventTypeUpsertIn", "EventTypeUpdate", description="Older")).description,
    )
    patched = types.patch("old.thing", make("EventTypePatch", deprecated=True))
    fact("type.patched", [patched.description, patched.deprecated])
    types.delete("old.thing")
    fact("type.archived", types.get("old.thing").archived)
    fact("type.listed without archived", names_of(types.list(), "name"))
    archived = options("event_type", "EventTypeListOptions", include_archived=True)
    fact("type.listed with archived", names_of(types.list(archived), "name"))
    types.delete("old.thing", options("event_type", "EventTypeDeleteOptions", expunge=True))
    fact("type.expunged", refusal(types.get, "old.thing"))
    imported = types.import_openapi(make("EventTypeImportOpenApiIn", spec=SPEC))
    fact("type.imported", [imported.data.modified, types.get("parcel.sent").description])


def applications(client):
    apps = client.application
    made = apps.create(make("ApplicationIn", name="Shop", uid="shop", throttle_rate=50, metadata={"plan": "gold"}))
    fact(
        "app.created", [form(made.id), made.name, made.uid, either(made, "throttle_rate", "rate_limit"), made.metadata]
    )
    same = apps.get_or_create(make("ApplicationIn", name="Another name", uid="shop"))
    fact("app.got or created", [same.id == made.id, same.name])
    fresh = apps.get_or_create(make("ApplicationIn", name="Fresh", uid="fresh"))
    fact("app.conflict", refusal(apps.create, make("ApplicationIn", name="Shop", uid="shop")))
    fact("app.got", [apps.get(made.id).id == made.id, apps.get("shop").id == made.id])
    page = apps.list(options("application", "ApplicationListOptions", limit=1))
    fact("app.page", [names_of(page, "uid"), page.done, page.iterator == made.id])
    rest = apps.list(options("application", "ApplicationListOptions", limit=1, iterator=page.iterator))
    fact("app.rest", [names_of(rest, "uid"), rest.done])
    descending = options("application", "ApplicationListOptions", order=models.Ordering.DESCENDING)
    fact("app.descending", names_of(apps.list(descending), "uid"))
    fact("app.bad limit", refusal(apps.list, options("application", "ApplicationListOptions", limit=300))[0])
    put = apps.upsert("shop", make("ApplicationIn", name="Renamed", uid="shop"))
    fact("app.put", [put.id == made.id, put.name, either(put, "throttle_rate", "rate_limit"), put.metadata])
    patched = apps.patch(made.id, make("ApplicationPatch", metadata={"plan": "silver"}))
    fact("app.patched", [patched.name, patched.uid, patched.metadata, patched.updated_at >= made.updated_at])
    apps.delete(fresh.id)
    fact("app.deleted", refusal(apps.get, "fresh"))
    fact("app.empty name", refusal(apps.create, make("ApplicationIn", name="")))
    return made.id


def endpoints(client, app):
    resource = client.endpoint
    made = resource.create(app, make(
        "EndpointIn", url=TASK["good"], uid="good", description="All is well", event_types=["invoice.paid"],
        channels=["blue"], throttle_rate=100, metadata={"a": "b"}, headers={"X-Shop": "one"},
    ))  # fmt: skip
    fact("ep.created", [
        form(made.id), made.uid, made.url == TASK["good"], made.description, either(made, "event_types", "filter_types"),
        made.channels, either(made, "throttle_rate", "rate_limit"), made.metadata, bool(made.disabled),
    ])  # fmt: skip
    fact("ep.headers on create", resource.get_headers(app, made.id).headers)
    fact("ep.got", [resource.get(app, made.id).id == made.id, resource.get("shop", "good").id == made.id])
    put = resource.upsert(app, "good", body("EndpointUpsertIn", "EndpointUpdate", url=TASK["good"], uid="good"))
    fact("ep.put", [put.id == made.id, put.description, either(put, "event_types", "filter_types"), put.channels])
    patched = resource.patch(
        app, made.id, make("EndpointPatch", description="Still well", event_types=["invoice.paid"])
    )
    fact("ep.patched", [patched.description, either(patched, "event_types", "filter_types"), patched.channels])
    cleared = resource.patch(app, made.id, make("EndpointPatch", event_types=None))
    fact("ep.cleared", [cleared.description, either(cleared, "event_types", "filter_types")])
    resource.set_headers(
        app, made.id, make("EndpointHeadersIn", headers={"X-Shop": "two", "Authorization": "Bearer k"})
    )
    headers = resource.get_headers(app, made.id)
    fact("ep.headers set", [headers.headers, headers.sensitive])
    resource.patch_headers(app, made.id, make("EndpointHeadersPatchIn", headers={"X-More": "3"}))
    fact("ep.headers patched", resource.get_headers(app, made.id).headers)
    if has_field("EndpointHeadersPatchIn", "delete_headers"):
        resource.patch_headers(app, made.id, make("EndpointHeadersPatchIn", headers={}, delete_headers=["X-More"]))
        fact("ep.headers removed", resource.get_headers(app, made.id).headers)
    forbidden = make("EndpointHeadersIn", headers={"content-length": "3"})
    fact("ep.forbidden header", refusal(resource.set_headers, app, made.id, forbidden)[0])
    first = resource.get_secret(app, made.id).key
    resource.rotate_secret(app, made.id, make("EndpointSecretRotateIn"))
    second = resource.get_secret(app, made.id).key
    secrets["good"] = [first, second]
    fact("ep.rotated", [first.startswith("whsec_"), second.startswith("whsec_"), first != second])
    bad = resource.create(app, make("EndpointIn", url=TASK["bad"], uid="bad"))
    fact("ep.listed", [names_of(resource.list(app), "uid"), resource.list(app).done])
    gone = resource.create(app, make("EndpointIn", url=TASK["good"], uid="gone"))
    resource.delete(app, gone.id)
    fact("ep.deleted", refusal(resource.get, app, "gone"))
    fact("ep.bad url", refusal(resource.create, app, make("EndpointIn", url="ftp://example.com"))[0])
    return made.id, bad.id


def messages(client, app):
    resource = client.message
    first = make(
        "MessageIn", event_type="invoice.paid", payload={"amount": 7}, event_id="evt-1", channels=["blue"], tags=["vip"]
    )
    # Newer versions ask for no content unless told to.
    made = resource.create(app, first, options("message", "MessageCreateOptions", with_content=True))
    fact("msg.created", [form(made.id), made.event_type, made.payload, made.event_id, made.channels])
    duplicate = make("MessageIn", event_type="invoice.paid", payload={"amount": 7}, event_id="evt-1")
    fact("msg.conflict", refusal(resource.create, app, duplicate)[0])
    keyed = options("message", "MessageCreateOptions", idempotency_key="key-1")
    plain = make("MessageIn", event_type="invoice.voided", payload={"amount": 8})
    second, again = resource.create(app, plain, keyed), resource.create(app, plain, keyed)
    other = make("MessageIn", event_type="invoice.voided", payload={"amount": 9})
    fact("msg.idempotent", [second.id == again.id, refusal(resource.create, app, other, keyed)[0] in {409, 422}])
    silent = options("message", "MessageCreateOptions", with_content=False)
    fact(
        "msg.without content",
        resource.create(app, make("MessageIn", event_type="parcel.sent", payload={"n": 1}), silent).payload,
    )
    full = options("message", "MessageListOptions", with_content=True)
    fact("msg.listed", [[row.event_type, row.payload] for row in resource.list(app, full).data])
    blue = options(
        "message", "MessageListOptions", with_content=True, channel="blue", event_types=["invoice.paid", "x"]
    )
    fact("msg.filtered", [row.payload for row in resource.list(app, blue).data])
    content = options("message", "MessageGetOptions", with_content=True)
    fact("msg.got", [resource.get(app, made.id, content).payload, resource.get(app, "evt-1").id == made.id])
    fact("msg.unknown app", refusal(resource.create, "nobody", plain))
    if resource.has("precheck"):
        check = make("MessagePrecheckIn", event_type="invoice.paid")
        fact("msg.precheck", resource.precheck(app, check).active)
    return made.id, second.id


def attempts(client, app, good, bad, message):
    resource = client.message_attempt
    failed = options(
        "message_attempt", "MessageAttemptListByEndpointOptions", status=models.MessageStatus.FAIL, with_content=True
    )
    wait(lambda: len(resource.list_by_endpoint(app, bad, failed).data) >= 9)
    row = resource.list_by_endpoint(app, bad, failed).data[0]
    fact("attempt.failed", [
        form(row.id), int(row.status), row.response_status_code, row.response, int(row.trigger_type), row.endpoint_id == bad,
        row.url == TASK["bad"], row.response_duration_ms >= 0,
    ])  # fmt: skip
    ours = options(
        "message_attempt", "MessageAttemptListByMsgOptions", with_content=True, status=models.MessageStatus.SUCCESS
    )
    wait(lambda: resource.list_by_msg(app, message, ours).data)
    row = resource.list_by_msg(app, message, ours).data[0]
    fact("attempt.succeeded", [row.response_status_code, row.response, row.msg_id == message, row.endpoint_id == good])
    codes = options(
        "message_attempt",
        "MessageAttemptListByMsgOptions",
        status_code_class=models.StatusCodeClass.CODE5XX,
        endpoint_id="bad",
    )
    fact("attempt.by code class", len(resource.list_by_msg(app, message, codes).data))
    got = resource.get(app, "evt-1", row.id)
    fact("attempt.got", [got.id == row.id, int(got.status)])
    wait(lambda: all(int(one.status) == 2 for one in resource.list_attempted_messages(app, bad).data))
    fact("attempt.messages", [
        [int(one.status) for one in resource.list_attempted_messages(app, where).data] for where in (good, bad)
    ])  # fmt: skip
    places = resource.list_attempted_destinations(app, message)
    fact("attempt.destinations", [[one.uid, int(one.status)] for one in places.data])
    fact("attempt.destinations done", places.done)
    resource.expunge_content(app, message, row.id)
    fact("attempt.expunged", resource.get(app, message, row.id).response)
    before = len(resource.list_by_endpoint(app, good).data)
    resource.resend(app, message, "good")
    wait(lambda: len(resource.list_by_endpoint(app, good).data) > before)
    fact("attempt.resent", int(resource.list_by_endpoint(app, good).data[0].trigger_type))


def endpoint_work(client, app, good, bad):
    resource = client.endpoint
    stats = resource.get_stats(app, good)
    fact("ep.stats", [stats.success, stats.fail, stats.pending, stats.sending])
    stats = resource.get_stats(
        app, bad, options("endpoint", "EndpointGetStatsOptions", since=now() - timedelta(days=1))
    )
    fact("ep.stats of failures", [stats.success, stats.fail, stats.pending, stats.sending])
    if resource.has("get_attempt_stats"):
        counts = resource.get_attempt_stats(app, good)
        fact("ep.attempt stats", [counts.success, counts.fail, counts.canceled])
    example = resource.send_example(app, good, make("EventExampleIn", event_type="invoice.paid"))
    stored = client.message.get(app, example.id, options("message", "MessageGetOptions", with_content=True))
    fact("ep.example", [example.event_type, stored.payload])
    resource.patch(app, bad, make("EndpointPatch", url=TASK["good"]))
    since = now() - timedelta(hours=1)
    recovered = resource.recover(app, bad, make("RecoverIn", since=since))
    fact("ep.recover", [form(recovered.id), recovered.task.value, finished(client, recovered.id)])
    wait(lambda: all(int(row.status) == 0 for row in client.message_attempt.list_attempted_messages(app, bad).data))
    fact("ep.recovered", [int(row.status) for row in client.message_attempt.list_attempted_messages(app, bad).data])
    late = resource.create(app, make("EndpointIn", url=TASK["good"], uid="late"))
    replayed = resource.replay_missing(app, late.id, make("ReplayIn", since=since))
    fact("ep.replay missing", [replayed.task.value, finished(client, replayed.id)])
    wait(lambda: len(client.message_attempt.list_by_endpoint(app, late.id).data) >= 3)
    if resource.has("bulk_replay"):
        bulk = make("BulkReplayIn", since=since, event_types=["invoice.paid"])
        replayed = resource.bulk_replay(app, late.id, bulk)
        fact("ep.bulk replay", [replayed.task.value, finished(client, replayed.id)])
    fact(
        "ep.recover too old",
        refusal(resource.recover, app, bad, make("RecoverIn", since=now() - timedelta(days=20)))[0],
    )


def finished(client, task):
    """Wait for a task's end and return its state."""
    wait(lambda: client.background_task.get(task).status.value != "running")
    return client.background_task.get(task).status.value


def tasks(client):
    page = client.background_task.list()
    fact("task.listed", sorted({row.task.value for row in page.data} - {"endpoint.bulk-replay"}))
    recovers = options("background_task", "BackgroundTaskListOptions", task=models.BackgroundTaskType.ENDPOINT_RECOVER)
    fact("task.filtered", [row.task.value for row in client.background_task.list(recovers).data])
    fact("task.unknown", refusal(client.background_task.get, "qtask_" + "0" * 27))


def authentication(client, app):
    resource = client.authentication
    portal = resource.app_portal_access(app, make("AppPortalAccessIn", expiry=3600))
    fact("auth.portal", portal.url.startswith("http"))
    portal_client = Client(portal.token)
    other_application = client.application.create(make("ApplicationIn", name="Stranger", uid="stranger"))
    fact("auth.guest", [
        portal_client.application.get(app).id == app,
        refusal(portal_client.application.get, other_application.id),
        refusal(portal_client.application.delete, app)[0],
        refusal(portal_client.application.list)[0],
    ])  # fmt: skip
    portal_client.authentication.logout()
    fact("auth.logged out", refusal(portal_client.application.get, app))
    portal_client = Client(resource.app_portal_access("shop", make("AppPortalAccessIn")).token)
    fact("auth.again", portal_client.application.get("shop").id == app)
    resource.expire_all(app, make("ApplicationTokenExpireIn", expiry=0))
    fact("auth.expired", refusal(portal_client.application.get, app)[0])
    fact("auth.nonsense", refusal(Client("nonsense").application.list))
    if resource.has("dashboard_access"):
        fact("auth.dashboard", Client(resource.dashboard_access(app).token).application.get(app).id == app)


def operational(client, app):
    resource = client.operational_webhook_endpoint
    made = resource.create(make(
        "OperationalWebhookEndpointIn", url=TASK["ops"], uid="ops", event_types=["endpoint.created"], description="Ops",
    ))  # fmt: skip
    fact("ops.created", [made.uid, made.description, either(made, "event_types", "filter_types")])
    put = resource.upsert(made.id, body(
        "OperationalWebhookEndpointUpsertIn", "OperationalWebhookEndpointUpdate", url=TASK["ops"], uid="ops",
        event_types=["endpoint.created"],
    ))  # fmt: skip
    fact("ops.put", [put.id == made.id, put.description])
    fact("ops.got", [resource.get("ops").id == made.id, names_of(resource.list(), "uid")])
    resource.set_headers(made.id, make("OperationalWebhookEndpointHeadersIn", headers={"X-Ops": "1"}))
    fact("ops.headers", resource.get_headers(made.id).headers)
    resource.rotate_secret(made.id, make("OperationalWebhookEndpointSecretIn"))
    secrets["ops"] = [resource.get_secret(made.id).key]
    gone = resource.create(make("OperationalWebhookEndpointIn", url=TASK["ops"], uid="gone", disabled=True))
    resource.delete(gone.id)
    fact("ops.deleted", refusal(resource.get, "gone"))
    client.endpoint.create(app, make("EndpointIn", url=TASK["good"], uid="announced", disabled=True))


def statistics(client, app):
    resource = client.statistics
    by_type = resource.aggregate_event_types()
    fact("stats.types", [by_type.task.value, finished(client, by_type.id)])
    usage = resource.aggregate_app_stats(make(
        "AppUsageStatsIn", since=now() - timedelta(days=1), until=now() + timedelta(seconds=5), app_ids=[app, "nobody"],
    ))  # fmt: skip
    fact("stats.usage", [usage.task.value, usage.unresolved_app_ids, finished(client, usage.id)])


def environment(client):
    resource = client.environment
    if resource.inner is None:
        return
    taken = resource.export()
    fact("env.exported", sorted(row.name for row in taken.event_types))
    resource.import_(
        make("EnvironmentIn", event_types=[make("EventTypeIn", name="came.along", description="Imported")])
    )
    fact("env.imported", client.event_type.get("came.along").description)


def expunging(client, app, message, second):
    resource = client.message
    content = options("message", "MessageGetOptions", with_content=True)
    resource.expunge_content(app, message)
    fact("msg.expunged", resource.get(app, message, content).payload)
    fact("msg.resend expunged", refusal(client.message_attempt.resend, app, message, "good")[0])
    if resource.has("bulk_expunge_content"):
        bulk = resource.bulk_expunge_content(app, make("BulkExpungeContentsIn", ids=[second, "nothing"]))
        fact(
            "msg.bulk expunged",
            {("second" if key == second else key): value.value for key, value in bulk.results.items()},
        )
    purge = resource.expunge_all_contents(app)
    fact("msg.all expunged", [purge.task.value, finished(client, purge.id), resource.get(app, second, content).payload])


def main():
    client = Client(TASK["token"])
    if client.health.inner is not None:
        fact("health", client.health.get())
    event_types(client)
    app = applications(client)
    good, bad = endpoints(client, app)
    message, second = messages(client, app)
    attempts(client, app, good, bad, message)
    endpoint_work(client, app, good, bad)
    operational(client, app)
    statistics(client, app)
    tasks(client)
    environment(client)
    authentication(client, app)
    expunging(client, app, message, second)


try:
    main()
    trouble = ""
except Exception as error:  # noqa: BLE001 - the report says how far it came
    import traceback

    trouble = f"{''.join(traceback.format_exception(error))[-3000:]}"
json.dump(
    {
        "module": svix.__file__,
        "facts": facts,
        "called": sorted(called),
        "offered": offered(),
        "secrets": secrets,
        "trouble": trouble,
    },
    sys.stdout,
)
