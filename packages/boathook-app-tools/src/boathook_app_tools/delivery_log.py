"""A delivery log of an app: its deliveries as registered, completed or failed, by commands and over HTTP.

The deliveries are boathook's own; the app adds what it knows of their events.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, Protocol
from uuid import UUID

import typer
from msgspec.structs import asdict
from pydantic import BaseModel, ConfigDict, Field, create_model

from boathook import Boathook, BoathookError, Transaction
from boathook_app_tools.ids import read_uuid
from boathook_app_tools.terminal import Json, plain, print_json, print_rows, say
from boathook_pages import ApiRequest, Conflict, JsonApi
from boathook_pages.languages import Languages, gettext_noop

MAX_LISTED: Final = 250
_Ids = Annotated[list[str], typer.Argument(metavar="ID...", help="Ids as `deliveries list` shows them.")]


class DeliveryStatus(StrEnum):
    """The state of a delivery."""

    REGISTERED = "registered"
    """Received, and being handled or retried."""
    COMPLETED = "completed"
    FAILED = "failed"
    """Given up; an operator should check it."""


Reply = tuple[int, Any]
_STATES: Final = {
    DeliveryStatus.REGISTERED: ("pending", "leased"),
    DeliveryStatus.COMPLETED: ("succeeded", "ignored"),
    DeliveryStatus.FAILED: ("dead",),
}
_STATUSES: Final = {state: status for status, states in _STATES.items() for state in states}


class NoteBody(BaseModel):
    """The reason for an action."""

    model_config = ConfigDict(extra="forbid")

    note: str = Field(min_length=1, max_length=500)


class DaysBody(BaseModel):
    """The age limit in days."""

    model_config = ConfigDict(extra="forbid")

    days: float = Field(gt=0, le=36_500)


class Page(BaseModel):
    """The query of a list that continues after the last row seen."""

    after: str | None = None
    limit: int = Field(default=50, ge=1, le=MAX_LISTED)


class Describe(Protocol):
    """Adds to a row what the app knows of its event."""

    def __call__(self, row: dict[str, Any], type: str, records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return a row, given boathook's values, the event's type, and the app's records of it."""
        ...


class DeliveryLog:
    """The delivery log of one app.

    Args:
        hook: the app.
        languages: those of the app.
        kinds: the deliveries that it lists, by a member of an enumeration: arguments of ``hook.operations.deliveries``;
            the first is the default.
        find: returns the app's records of events, each with ``event_id``.
        describe: adds them to a row.
        forget: deletes records older than so many days; returns their number.
    """

    def __init__(
        self,
        hook: Boathook,
        languages: Languages,
        *,
        kinds: Mapping[StrEnum, Mapping[str, str]],
        find: Callable[[Transaction, Sequence[UUID]], Awaitable[Sequence[Any]]],
        describe: Describe,
        forget: Callable[[Transaction, float], Awaitable[int]],
    ) -> None:
        self._hook = hook
        self._texts = Languages(Path(__file__).with_name("locale"), setting=lambda: languages.current)
        self._kinds = kinds
        self._default = next(iter(kinds))
        self._find = find
        self._describe = describe
        self._forget = forget

    async def listed(
        self,
        *,
        status: DeliveryStatus | None = None,
        kind: StrEnum | None = None,
        after: str | None = None,
        limit: int = 50,
    ) -> list[dict[str, Any]]:
        """Return deliveries, newest first; *after* is the id of the last one seen. Raises InvalidValue."""
        selection: Mapping[str, Any] = self._kinds[kind or self._default]
        rows: list[Any] = []
        for state in _STATES[status] if status else (None,):
            rows += await self._hook.operations.deliveries(**selection, state=state, after=after, limit=limit)
        # Ids ascend with time.
        rows.sort(key=lambda row: (row.event_id, row.id), reverse=True)
        return await self._described(rows[:limit])

    async def shown(self, id: str) -> dict[str, Any]:
        """Return a delivery with its attempts, headers and body. Raises NotFound, InvalidValue."""
        detail = await self._hook.operations.delivery(id)
        (row,) = await self._described([detail["delivery"]])
        attempts = [asdict(attempt) for attempt in detail["attempts"]]
        body = detail["body"].decode("utf-8", "replace")
        return {**row, "attempts": attempts, "headers": dict(detail["headers"]), "body": body}

    async def clean_up(self, days: float) -> int:
        """Delete the app's records older than *days*; return their number.

        The events themselves are kept as configured in ``[retention]``.
        """
        async with self._hook.transaction() as tx:
            return await self._forget(tx, days)

    def add_routes(self, api: JsonApi) -> None:
        """Add ``/deliveries`` and what is below it."""
        fields: dict[str, Any] = {"status": (DeliveryStatus | None, None), "kind": (type(self._default), self._default)}
        query_model: Any = create_model("DeliveryQuery", __base__=Page, **fields)

        async def list_deliveries(request: ApiRequest) -> Reply:
            query = request.read_query(query_model)
            rows = await self.listed(**query.model_dump())
            return 200, {"data": plain(rows), "next": rows[-1]["id"] if len(rows) == query.limit else None}

        async def clean_up(request: ApiRequest) -> Reply:
            return 200, {"forgotten": await self._forget(request.tx, request.read(DaysBody).days)}

        async def show(request: ApiRequest) -> Reply:
            return 200, plain(await self.shown(request.path["id"]))

        async def replay(request: ApiRequest) -> Reply:
            note = f"POST /api/{self._hook.name}"
            return self._reply(await self._hook.operations.replay([request.path["id"]], note=note))

        async def give_up(request: ApiRequest) -> Reply:
            note = request.read(NoteBody).note
            return self._reply(await self._hook.operations.ignore([request.path["id"]], note=note))

        api.add("/deliveries", GET=list_deliveries)
        api.add("/deliveries/cleanup", POST=clean_up)
        api.add("/deliveries/{id}", GET=show)
        api.add("/deliveries/{id}/replay", POST=replay)
        api.add("/deliveries/{id}/giveup", POST=give_up)

    def add_commands(self, commands: typer.Typer, columns: Sequence[str]) -> None:
        """Add ``deliveries`` with its commands; the list shows *columns*."""
        group = typer.Typer(no_args_is_help=True, help="Deliveries: what was received, and what follows from it.")
        commands.add_typer(group, name="deliveries")
        name, hook, default = self._hook.name, self._hook, self._default
        kind_type: Any = type(default)
        note_option = typer.Option(help="Why, for the audit.")

        @group.command("list", epilog=f"Example: boathook {name} deliveries list --status failed")
        def list_deliveries(
            status: Annotated[DeliveryStatus | None, typer.Option(help="Only those in this state.")] = None,
            kind: Annotated[kind_type, typer.Option(help="Which deliveries.")] = default,
            limit: Annotated[int, typer.Option(min=1, max=10_000, help="Maximum rows.")] = 50,
            as_json: Json = False,
        ) -> None:
            """List deliveries, newest first."""
            rows = hook.run(self.listed(status=status, kind=kind, limit=limit))
            print_rows(rows, as_json=as_json, columns=columns)

        @group.command("show", epilog=f"Example: boathook {name} deliveries show dlv_01kaz3...")
        def show(id: Annotated[str, typer.Argument(metavar="ID", help="As `deliveries list` shows it.")]) -> None:
            """Show a delivery with its attempts, headers and body, as JSON."""
            print_json(hook.run(self.shown(id)))

        @group.command("replay", epilog=f"Example: boathook {name} deliveries replay dlv_01kaz3...")
        def replay(ids: _Ids, note: Annotated[str | None, note_option] = None) -> None:
            """Retry failed deliveries."""
            changed = hook.run(hook.operations.replay(ids, note=note))
            self._report(ids, changed, gettext_noop("%(done)d of %(asked)d are tried again"))

        @group.command("giveup", epilog=f'Example: boathook {name} deliveries giveup dlv_01kaz3... --note "too old"')
        def give_up(ids: _Ids, note: Annotated[str, note_option]) -> None:
            """Settle failed deliveries permanently."""
            changed = hook.run(hook.operations.ignore(ids, note=note))
            self._report(ids, changed, gettext_noop("%(done)d of %(asked)d are settled"))

        @group.command("cleanup", epilog=f"Example: boathook {name} deliveries cleanup --days 30")
        def clean_up(
            days: Annotated[float, typer.Option(min=0.0, max=36_500.0, help="Delete records of more days ago.")],
        ) -> None:
            """Delete the app's records of old events, including those that wait."""
            say(self._texts.gettext("%(number)d callbacks forgotten", number=hook.run(self.clean_up(days))))

    async def _described(self, rows: Sequence[Any]) -> list[dict[str, Any]]:
        records: dict[UUID, list[Mapping[str, Any]]] = {read_uuid(row.event_id): [] for row in rows}
        async with self._hook.transaction() as tx:
            for record in await self._find(tx, list(records)):
                values = dict(record)
                records[values.pop("event_id")].append(values)
        return [self._describe(_row(row), row.type, records[read_uuid(row.event_id)]) for row in rows]

    def _reply(self, ids: list[str]) -> Reply:
        if not ids:
            text = gettext_noop("this delivery has not failed; only failed ones can be replayed or given up")
            raise Conflict(self._texts.gettext(text))
        return 200, {"ok": True, "id": ids[0]}

    def _report(self, requested: list[str], changed: list[str], text: str) -> None:
        if not changed:
            words = gettext_noop("none of them has failed; see `boathook %(app)s deliveries list --status failed`")
            raise BoathookError(self._texts.gettext(words, app=self._hook.name))
        say(self._texts.gettext(text, done=len(changed), asked=len(requested)))


def _row(row: Any) -> dict[str, Any]:
    names = ("id", "attempts", "code", "note", "due_at", "ended_at", "event_id", "state")
    # An id begins with the milliseconds since 1970.
    received_at = datetime.fromtimestamp((read_uuid(row.event_id).int >> 80) / 1000, UTC)
    values = {name: getattr(row, name) for name in names}
    return {**values, "standing": _STATUSES[row.state].value, "received_at": received_at}
