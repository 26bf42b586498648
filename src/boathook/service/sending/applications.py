"""Creates, reads, updates, lists and deletes applications."""

from collections.abc import Mapping
from typing import Annotated, Any
from uuid import UUID

import msgspec
from msgspec.structs import asdict, replace

from boathook.db import applications
from boathook.db.applications import Application as Application  # noqa: PLC0414 - re-exported
from boathook.db.applications import PageRequest as PageRequest  # noqa: PLC0414 - re-exported
from boathook.db.audit import record, record_change
from boathook.db.queries import endpoint_stats
from boathook.db.queries.endpoint_stats import ApplicationSummary
from boathook.domain import ids
from boathook.domain.endpoints import check_uid
from boathook.domain.errors import InvalidValue, NotFound
from boathook.service import id_prefixes
from boathook.service.common_fields import ApplicationUid, Metadata, ThrottleRate
from boathook.service.fields import Rule, check, check_values
from boathook.service.unit_of_work import UnitOfWork, new_id, require_here


class NewApplication(msgspec.Struct, frozen=True, kw_only=True):
    """The values of an application to create or replace."""

    name: Annotated[
        str,
        Rule(
            help="Display name.", description=None, argument="NAME", section="all", min_length=1, max_length=1_000,
            example="Acme",
        ),
    ]  # fmt: skip
    uid: Annotated[ApplicationUid | None, Rule(section="all")] = None
    throttle_rate: Annotated[
        ThrottleRate | None,
        Rule(
            help="Maximum messages per second to each endpoint without its own rate.",
            description=None, label="Rate", option="--rate", metavar="RATE", section="all",
        ),
    ] = None  # fmt: skip
    metadata: Annotated[Metadata, Rule(section="all", example={"plan": "pro"})] = msgspec.field(default_factory=dict)


async def get(work: UnitOfWork, reference: str) -> Application:
    """Return an application that the caller may reach by id, uid or imported id. Raises NotFound."""
    only = work.caller.application_id
    return _found(await applications.find(work.connection, work.organization, reference, only=only), reference)


async def find(work: UnitOfWork, reference: str) -> Application:
    """Return an application by id, the beginning of its id, uid or imported id. Raises NotFound, InvalidValue."""
    return await get(work, await id_prefixes.complete(work.connection, ids.APPLICATION, reference))


async def find_operational(work: UnitOfWork) -> Application | None:
    """Return the application that receives the organization's operational webhooks; None if it does not exist yet."""
    return await applications.find_operational(work.connection, work.organization)


async def ensure_operational(work: UnitOfWork) -> Application:
    """Return the application that receives the organization's operational webhooks; create it if needed."""
    return await applications.ensure_operational(work.connection, new_id(), work.organization)


def _found(application: Application | None, reference: str) -> Application:
    if application is None:
        raise NotFound(f"unknown application {reference}")
    return application


async def list_page(
    work: UnitOfWork, window: PageRequest, *, only_with_endpoints: bool = False, only_all_enabled: bool = False
) -> list[Application]:
    """Return a page of the organization's applications."""
    return await applications.list_page(
        work.connection,
        work.organization,
        window,
        only_with_endpoints=only_with_endpoints,
        only_all_enabled=only_all_enabled,
    )


async def search(work: UnitOfWork, words: str | None, *, after: UUID | None, limit: int) -> list[ApplicationSummary]:
    """Return applications whose name or uid contains *words*, newest first, each with counts of its endpoints.

    Args:
        work: the unit of work.
        words: the text to find; None returns all.
        after: the last application of the previous page.
        limit: the maximum number of applications.
    """
    return await endpoint_stats.search_applications(work.connection, work.organization, words, after, limit=limit)


async def create(work: UnitOfWork, new: NewApplication) -> Application:
    """Create an application. Raises AlreadyExists if its uid is in use."""
    check(new)
    created = await applications.insert(
        work.connection,
        new_id(),
        work.organization,
        **asdict(new),
    )
    await record(work.connection, work.actor, "application.create", created.shown_id)
    return created


async def get_or_create(work: UnitOfWork, new: NewApplication) -> tuple[Application, bool]:
    """Return the application with the uid of *new*, or create it; and whether it was created."""
    uid = new.uid
    if uid is None:
        return await create(work, new), True
    return await work.find_or_create(
        lambda: applications.find(work.connection, work.organization, uid), lambda: create(work, new)
    )


async def put(work: UnitOfWork, reference: str, new: NewApplication) -> tuple[Application, bool]:
    """Update an application with these values, or create it; and whether it was created.

    If *new* has no uid, the application gets or keeps *reference* as its uid if it is valid, so that the same request
    finds it again. Raises ServedElsewhere, AlreadyExists.
    """
    new = replace(new, uid=new.uid or uid_from(ids.APPLICATION, reference))
    check(new)
    stored_application, is_created = await work.find_or_create(
        lambda: applications.lock(work.connection, work.organization, reference), lambda: create(work, new)
    )
    return stored_application if is_created else await _save(
        work, stored_application, replace(stored_application, **asdict(new))
    ), is_created


def uid_from(prefix: str, reference: str) -> str | None:
    """Return *reference* if it can be a uid, else None."""
    try:
        return check_uid(reference, prefix)
    except ValueError:
        return None


async def update(work: UnitOfWork, reference: str, changes: Mapping[str, Any]) -> Application:
    """Change some fields of an application: uid, name, throttle_rate, metadata.

    Raises NotFound, AlreadyExists.
    """
    check_values(NewApplication, changes)
    stored_application = _found(await applications.lock(work.connection, work.organization, reference), reference)
    return await _save(work, stored_application, replace(stored_application, **changes))


async def _save(work: UnitOfWork, before: Application, application: Application) -> Application:
    await require_here(work, application)
    saved = await applications.save(work.connection, application)
    await record_change(work.connection, work.actor, "application.update", saved.shown_id, before, saved)
    return saved


async def delete(work: UnitOfWork, reference: str) -> None:
    """Delete an application with its endpoints. Raises NotFound."""
    stored_application = _found(await applications.lock(work.connection, work.organization, reference), reference)
    await require_here(work, stored_application)
    await applications.delete(work.connection, stored_application)
    await record(work.connection, work.actor, "application.delete", stored_application.shown_id)


async def ensure(work: UnitOfWork, reference: str, new: NewApplication | None) -> Application:
    """Return an application by id, uid or imported id; if it does not exist, create it from *new*, if given.

    Raises:
        NotFound: it does not exist, and *new* is None.
        InvalidValue: the uid of *new* is missing or is not *reference*.
    """
    if new is not None and new.uid is None:
        raise InvalidValue("the application needs its uid", "application", "uid", kind="application_uid_missing")
    stored_application = await applications.find(work.connection, work.organization, reference)
    if new is None or (stored_application is not None and new.uid in {stored_application.uid, reference}):
        return _found(stored_application, reference)
    if new.uid != reference:
        raise InvalidValue("the uid must be the one in the path", "application", "uid", kind="application_uid_mismatch")
    return (await get_or_create(work, new))[0]
