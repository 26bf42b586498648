"""Operations on applications: the tenants that messages are sent to."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Final

from msgspec.structs import asdict

from boathook.domain import ids
from boathook.service.access.authorization import Permission
from boathook.service.catalogue.operation import Http, Scope, operation
from boathook.service.catalogue.values import PageInput, Result, read_iterator
from boathook.service.fields import Change, Input, Rule, with_changes
from boathook.service.sending import applications
from boathook.service.sending.applications import Application as StoredApplication
from boathook.service.sending.applications import NewApplication, PageRequest
from boathook.service.unit_of_work import UnitOfWork

TAG: Final = "Application"
_ONE: Final = "/app/{id}"


class Application(Result, frozen=True, kw_only=True):
    """An application."""

    id: Annotated[str, Rule(help="Its id.", prefix=ids.APPLICATION)]
    uid: str | None = None
    name: str
    throttle_rate: int | None = None
    metadata: Mapping[str, str]
    created_at: datetime
    updated_at: datetime


class ApplicationPage(Result, frozen=True, kw_only=True):
    """A page of applications."""

    data: list[Application]
    iterator: str | None
    done: bool


class ApplicationPut(Result, frozen=True, kw_only=True):
    """An application that was replaced or created."""

    application: Application
    is_created: bool


class ApplicationDeleted(Result, frozen=True, kw_only=True):
    """An application that is gone."""

    id: Annotated[str, Rule(help="Its id.", prefix=ids.APPLICATION)]
    deleted: bool = True


class ApplicationNamed(Input, frozen=True, kw_only=True):
    """The application that is meant."""

    id: Annotated[str, Rule(help="Id or uid.", argument="APPLICATION", prefix=ids.APPLICATION)]


class ApplicationFilter(PageInput, frozen=True, kw_only=True):
    """The applications to list."""

    iterator: Annotated[str | None, Rule(help="The iterator of the previous page.", prefix=ids.APPLICATION)] = None


class ApplicationReplacement(NewApplication, frozen=True, kw_only=True):
    """The values of an application to create or replace."""

    id: Annotated[str, Rule(help="Id or uid.", argument="APPLICATION")]


@with_changes(NewApplication)
class ApplicationUpdate(Change, frozen=True, kw_only=True):
    """Changes to an application."""

    id: Annotated[str, Rule(help="Id or uid.", argument="APPLICATION", prefix=ids.APPLICATION)]


@operation(
    "application.create",
    Permission.APPLICATION_MANAGE,
    Scope.ORGANIZATION,
    Http("POST", "/app", 201, is_derived=False),
    tag=TAG,
    undo="delete it",
    says="{id}",
    examples=("boathook applications create 'Acme Corp' --uid acme",),
)
async def create(work: UnitOfWork, new: NewApplication) -> Application:
    """Create an application and print its id."""
    return view(await applications.create(work, new))


@operation(
    "application.list",
    Permission.APPLICATION_LIST,
    Scope.ORGANIZATION,
    Http("GET", "/app", is_derived=False),
    tag=TAG,
    examples=("boathook applications list --json",),
)
async def list_applications(work: UnitOfWork, input: ApplicationFilter) -> ApplicationPage:
    """List applications, oldest first."""
    place = None
    if input.iterator is not None and input.iterator.startswith(f"{ids.APPLICATION}_"):
        place = read_iterator(ids.APPLICATION, input.iterator)
    elif input.iterator is not None:
        place = (await applications.get(work, input.iterator)).id
    rows = await applications.list_page(work, PageRequest(place, True, input.limit + 1))
    data = [view(row) for row in rows[: input.limit]]
    return ApplicationPage(data=data, iterator=data[-1].id if data else None, done=len(rows) <= input.limit)


@operation(
    "application.get",
    Permission.APPLICATION_VIEW,
    Scope.APPLICATION,
    Http("GET", _ONE, is_derived=False),
    tag=TAG,
    examples=("boathook applications show acme",),
)
async def get(work: UnitOfWork, target: ApplicationNamed) -> Application:
    """Show one application."""
    return view(await applications.get(work, target.id))


@operation(
    "application.put",
    Permission.APPLICATION_MANAGE,
    Scope.ORGANIZATION,
    Http("PUT", _ONE, is_derived=False),
    tag=TAG,
    undo="put its former values",
)
async def put(work: UnitOfWork, new: ApplicationReplacement) -> ApplicationPut:
    """Replace an application's fields, or create it with the uid from the path."""
    values = asdict(new)
    row, is_created = await applications.put(work, values.pop("id"), NewApplication(**values))
    return ApplicationPut(application=view(row), is_created=is_created)


@operation(
    "application.update",
    Permission.APPLICATION_MANAGE,
    Scope.ORGANIZATION,
    Http("PATCH", _ONE, is_derived=False),
    tag=TAG,
    undo="set the former values",
    says="{id} updated",
    examples=("boathook applications update acme --rate 50", "boathook applications update acme --rate 0"),
)
async def update(work: UnitOfWork, change: ApplicationUpdate) -> Application:
    """Change the given values only. An empty text or 0 removes a value."""
    return view(await applications.update(work, change.id, change.values))


@operation(
    "application.delete",
    Permission.APPLICATION_MANAGE,
    Scope.ORGANIZATION,
    Http("DELETE", _ONE, 204, is_derived=False),
    tag=TAG,
    undo=None,
    must_confirm=True,
    says="{id} deleted",
    warns="delete the application {subject.name!r} ({subject.id}) with all its endpoints",
    examples=("boathook applications delete acme --yes",),
)
async def delete(work: UnitOfWork, target: ApplicationNamed) -> ApplicationDeleted:
    """Delete an application and its endpoints; pending deliveries become dead letters. Delivery history is kept."""
    await applications.delete(work, target.id)
    return ApplicationDeleted(id=target.id)


def view(row: StoredApplication) -> Application:
    """Return an application as interfaces show it."""
    return Application(
        id=row.shown_id,
        uid=row.uid,
        name=row.name,
        throttle_rate=row.throttle_rate,
        metadata=row.metadata,
        created_at=row.created_at,
        updated_at=row.updated_at,
    )
