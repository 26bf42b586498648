"""Creates, reads, updates, lists, enables and deletes endpoints.

Each change publishes an operational webhook to the organization, in the same transaction.
"""

import json
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

from msgspec.structs import asdict, replace

from boathook.db import endpoints
from boathook.db.applications import Application, PageRequest
from boathook.db.audit import record, record_change
from boathook.db.due_notifier import notify_due
from boathook.db.endpoints import Endpoint as Endpoint  # noqa: PLC0414 - re-exported
from boathook.db.queries import endpoint_stats
from boathook.delivery.signer import make_secret
from boathook.domain import ids
from boathook.domain.errors import InvalidState, InvalidValue, LimitReached, NotFound
from boathook.handlers.operational import publish_operational_event
from boathook.service import id_prefixes
from boathook.service.sending import destinations
from boathook.service.sending.applications import uid_from
from boathook.service.sending.endpoint_fields import NewEndpoint as NewEndpoint  # noqa: PLC0414 - re-exported
from boathook.service.sending.endpoint_values import (
    Values,
    dump,
    read_auth,
    read_headers,
    read_secret,
    read_url,
    read_values,
)
from boathook.service.unit_of_work import UnitOfWork, new_id, require_here


class Backlog(StrEnum):
    """The action on deliveries that waited while an endpoint was disabled."""

    SEND = "send"
    CANCEL = "cancel"


MAX_ENDPOINTS: Final = 1_000
"""Maximum per application; each message is matched against all of them and may be delivered to each."""
MAX_ROUTING_BYTES: Final = 524_288
"""Total bytes of event types, channels and filters of an application; publishers reload them after each change."""
_OWN: Final = frozenset({"auth", "is_disabled"})
"""Values that are not stored as plain columns."""


async def get(work: UnitOfWork, application: Application, reference: str) -> Endpoint:
    """Return an application's endpoint by id, uid or imported id. Raises NotFound."""
    return _found(await endpoints.find(work.connection, application.id, reference), reference)


async def find(work: UnitOfWork, application: Application, reference: str) -> Endpoint:
    """Return an application's endpoint by id, the beginning of its id, uid or imported id.

    Raises NotFound, InvalidValue.
    """
    return await get(work, application, await id_prefixes.complete(work.connection, ids.ENDPOINT, reference))


async def find_owner(work: UnitOfWork, reference: str) -> str:
    """Return the id of the application that an endpoint belongs to, if the caller may reach it. Raises NotFound."""
    try:
        identifier = ids.read(ids.ENDPOINT, reference)
    except ValueError:
        raise NotFound(f"unknown endpoint {reference}") from None
    only = work.caller.application_id
    owner = await endpoint_stats.find_owner(work.connection, work.organization, identifier, only=only)
    if owner is None:
        raise NotFound(f"unknown endpoint {reference}")
    return ids.show(ids.APPLICATION, owner)


async def lock(work: UnitOfWork, application: Application, reference: str) -> Endpoint:
    """Return an application's endpoint, locked for an update in this transaction. Raises NotFound, ServedElsewhere."""
    await require_here(work, application)
    return _found(await endpoints.lock(work.connection, application.id, reference), reference)


async def _check_room(work: UnitOfWork, application: Application) -> None:
    """Check the limits after an endpoint was stored. Raises LimitReached."""
    # Runs after the update of the routes' version, which serializes changes to the application's endpoints.
    number, size = await endpoints.measure_routing(work.connection, application.id)
    if number > MAX_ENDPOINTS:
        raise LimitReached(f"an application has at most {MAX_ENDPOINTS:,} endpoints; delete one first")
    if size > MAX_ROUTING_BYTES:
        raise LimitReached(
            f"event types, channels and filters of all of an application's endpoints have at most "
            f"{MAX_ROUTING_BYTES:,} bytes, and with these {size:,}"
        )


def _found(endpoint: Endpoint | None, reference: str) -> Endpoint:
    if endpoint is None:
        raise NotFound(f"the application has no endpoint {reference}")
    return endpoint


async def list_page(work: UnitOfWork, application: Application, window: PageRequest) -> list[Endpoint]:
    """Return a page of an application's endpoints."""
    return await endpoints.list_page(work.connection, application.id, window)


async def create(
    work: UnitOfWork,
    application: Application,
    new: NewEndpoint,
    *,
    secret: str | None = None,
    headers: Mapping[str, str] | None = None,
    known_types: Collection[str] = (),
) -> Endpoint:
    """Create an endpoint.

    Args:
        work: the unit of work.
        application: the application that owns it.
        new: its values.
        secret: signs its messages; None generates one of `outbound.signature_type`.
        headers: sent with each message.
        known_types: event types that may be archived or missing, such as those of a copied endpoint.

    Raises:
        InvalidValue: a value is invalid.
        AlreadyExists: the uid is in use.
        LimitReached: the application has too many endpoints, or their event types and filters are too large.
        ServedElsewhere: the application has moved to another installation.
    """
    await require_here(work, application)
    kind = work.app_context.settings.outbound.signature_type
    draft = Endpoint(id=new_id(), application_id=application.id, url="")
    target, values = destinations.read_change(work, draft, asdict(new))
    columns = await _columns(work, application, draft, values, known_types)
    endpoint = replace(draft, **target, **columns)
    if secret is not None:
        destinations.require_signature(endpoint.destination, "secret")
    secret = make_secret(kind) if secret is None else read_secret(secret, "secret")
    if headers:
        destinations.require_field(endpoint.destination, "headers")
        endpoint = encrypt_headers(work, endpoint, read_headers(headers))
    created = await endpoints.insert(work.connection, _encrypt_auth(work, endpoint, values))
    await _check_room(work, application)
    encrypted = work.app_context.secret_box.encrypt(secret, f"endpoint_secret:{created.shown_id}")
    await endpoints.add_secret(work.connection, created.id, encrypted)
    await _publish_change(work, application, created, "created")
    return created


async def put(
    work: UnitOfWork,
    application: Application,
    reference: str,
    new: NewEndpoint,
    *,
    backlog: Backlog = Backlog.SEND,
) -> tuple[Endpoint, bool]:
    """Update an endpoint with these values, or create it; and whether it was created. Its secret and headers stay.

    If *new* has no uid, the endpoint gets or keeps *reference* as its uid if it is valid, so that the same request
    finds it again. Raises as `create` does.
    """
    await require_here(work, application)
    new = replace(new, uid=new.uid or uid_from(ids.ENDPOINT, reference))
    endpoint, is_created = await work.find_or_create(
        lambda: endpoints.lock(work.connection, application.id, reference), lambda: create(work, application, new)
    )
    if is_created:
        return endpoint, True
    values = asdict(new)
    for name in ("auth", "destination"):
        if values[name] is None:
            del values[name]
    return await _change(work, application, endpoint, values, backlog), False


async def update(
    work: UnitOfWork,
    application: Application,
    reference: str,
    changes: Mapping[str, Any],
    *,
    backlog: Backlog = Backlog.SEND,
    known_types: Collection[str] = (),
) -> Endpoint:
    """Change some values of an endpoint, by their names in `NewEndpoint`. Raises NotFound, and as `create` does.

    Event types that it has already, and those of *known_types*, may be archived or missing.
    """
    endpoint = await lock(work, application, reference)
    return await _change(work, application, endpoint, changes, backlog, known_types)


async def _change(
    work: UnitOfWork,
    application: Application,
    before: Endpoint,
    values: Mapping[str, Any],
    backlog: Backlog,
    known_types: Collection[str] = (),
) -> Endpoint:
    target, values = destinations.read_change(work, before, values)
    columns = await _columns(work, application, before, values, {*known_types, *(before.event_types or ())})
    after = _encrypt_auth(work, replace(before, **target, **columns), values)
    saved = await endpoints.save(work.connection, before, after)
    await _check_room(work, application)
    if before.is_disabled and not saved.is_disabled and backlog is Backlog.CANCEL:
        await endpoints.cancel_pending(work.connection, saved, "canceled when the endpoint was enabled again")
    await complete_update(work, application, before, saved)
    if before.is_disabled is not saved.is_disabled:
        change = "disabled" if saved.is_disabled else "enabled"
        await _publish_change(work, application, saved, change)
    return saved


def _may_recover(before: Endpoint, after: Endpoint) -> bool:
    """Return whether requests to an endpoint may succeed after a change; headers often carry the credential."""
    return (
        before.url != after.url
        or destinations.is_other(before, after)
        or before.encrypted_auth != after.encrypted_auth
        or before.encrypted_headers != after.encrypted_headers
        or (before.is_disabled and not after.is_disabled)
    )


async def _reset_breaker(work: UnitOfWork, endpoint: Endpoint) -> None:
    """Forget an endpoint's failures and end its pause, because what made it fail may have changed."""
    await endpoints.reset_failures(work.connection, endpoint.id)
    await notify_due(work.connection)


async def resume(work: UnitOfWork, application: Application, reference: str) -> Endpoint:
    """End the pause of an endpoint and forget its failures: its due deliveries go out at once.

    Raises:
        NotFound: there is no such endpoint.
        InvalidState: it is disabled.
    """
    endpoint = await lock(work, application, reference)
    if endpoint.is_disabled:
        raise InvalidState("the endpoint is disabled; enable it, which resumes it too", "endpoint_disabled")
    await _reset_breaker(work, endpoint)
    await record(work.connection, work.actor, "endpoint.resumed", endpoint.shown_id)
    return endpoint


async def delete(work: UnitOfWork, application: Application, reference: str) -> None:
    """Delete an endpoint. Raises NotFound."""
    endpoint = await lock(work, application, reference)
    await endpoints.delete(work.connection, endpoint)
    await _publish_change(work, application, endpoint, "deleted")


async def _columns(
    work: UnitOfWork,
    application: Application,
    before: Endpoint,
    values: Mapping[str, Any],
    known_types: Collection[str],
) -> Values:
    plain = {name: value for name, value in values.items() if name not in _OWN}
    columns = await read_values(work, plain, is_operational=application.is_operational, known_types=known_types)
    if values.get("is_disabled", before.is_disabled) is not before.is_disabled:
        columns |= _switch(is_disabled=not before.is_disabled)
    return columns


def _switch(*, is_disabled: bool) -> Values:
    because, at = ("manual", datetime.now(UTC)) if is_disabled else (None, None)
    return {"is_disabled": is_disabled, "disabled_because": because, "disabled_at": at}


def _encrypt_auth(work: UnitOfWork, endpoint: Endpoint, values: Mapping[str, Any]) -> Endpoint:
    """Return the endpoint with its credentials encrypted, including a user name and password in its URL."""
    user = read_url(work.app_context.settings, values["url"])[1] if "url" in values else None
    if "auth" in values:
        methods = dict(values["auth"] or {})
    elif user is not None:
        methods = {kind: value for kind, value in decrypt_auth(work, endpoint).items() if kind == "mtls"}
    else:
        return endpoint
    if user is not None:
        if "basic" in methods or "oauth2" in methods:
            raise InvalidValue("the address already contains a user name; set it in one place only", "auth")
        methods["basic"] = {"username": user[0], "password": user[1]}
    auth = read_auth(work.app_context.settings, methods)
    context = f"endpoint_auth:{endpoint.shown_id}"
    return replace(endpoint, encrypted_auth=work.app_context.secret_box.encrypt(dump(auth), context) if auth else None)


def decrypt_auth(work: UnitOfWork, endpoint: Endpoint) -> dict[str, Any]:
    """Return how requests to an endpoint authenticate; empty if they do not. Raises SecretUnreadable."""
    return _decrypt(work, endpoint.encrypted_auth, f"endpoint_auth:{endpoint.shown_id}")


def decrypt_headers(work: UnitOfWork, endpoint: Endpoint) -> dict[str, str]:
    """Return the headers sent with each message. Raises SecretUnreadable."""
    return _decrypt(work, endpoint.encrypted_headers, f"endpoint_headers:{endpoint.shown_id}")


def _decrypt(work: UnitOfWork, encrypted: bytes | None, context: str) -> dict[str, Any]:
    return {} if encrypted is None else dict(json.loads(work.app_context.secret_box.open(encrypted, context)))


def encrypt_headers(work: UnitOfWork, endpoint: Endpoint, headers: Mapping[str, str]) -> Endpoint:
    """Return the endpoint with these headers."""
    context = f"endpoint_headers:{endpoint.shown_id}"
    return replace(
        endpoint, encrypted_headers=work.app_context.secret_box.encrypt(dump(headers), context) if headers else None
    )


async def complete_update(
    work: UnitOfWork,
    application: Application,
    before: Endpoint,
    endpoint: Endpoint,
    *,
    has_new_secret: bool = False,
) -> None:
    """Record a saved change of an endpoint in the audit and publish it as an operational webhook.

    A change after which requests may succeed resets the circuit breaker.
    """
    if has_new_secret or _may_recover(before, endpoint):
        await _reset_breaker(work, endpoint)
    await _publish_change(work, application, endpoint, "updated", before)


async def _publish_change(
    work: UnitOfWork, application: Application, endpoint: Endpoint, change: str, before: Endpoint | None = None
) -> None:
    await record_change(
        work.connection, work.actor, f"endpoint.{change}", endpoint.shown_id, before or endpoint, endpoint
    )
    if application.is_operational:
        return
    data: dict[str, Any] = {
        "appId": application.shown_id,
        "appUid": application.uid,
        "endpointId": endpoint.shown_id,
        "endpointUid": endpoint.uid,
    }
    if change == "disabled":
        data |= {"failSince": None, "trigger": "manual"}
    await publish_operational_event(
        work.app_context.outbox, work.connection, organization=work.organization, type=f"endpoint.{change}", data=data
    )
