"""Commands on many objects, derived from the catalogue: they count and confirm what is selected, and then change it."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final

import msgspec
import typer
from msgspec.structs import asdict, replace

from boathook.cli import output
from boathook.cli.context import UsageError, actor, ask, cli_context, open_app_context, out
from boathook.cli.context import run as run_async
from boathook.cli.derived import (
    complete,
    fixed_option,
    naming_options,
    option_of,
    read_input,
    register,
    remote_runner,
)
from boathook.cli.options import Json, Yes
from boathook.cli.output import CODE, RECIPIENT, Column, Progress, hint, say
from boathook.domain.plurals import counted
from boathook.service.caller import HOST
from boathook.service.catalogue.operation import Operation
from boathook.service.catalogue.selection import Count, read_clock
from boathook.service.catalogue.stored_requests import Outcome, RequestsCount
from boathook.service.catalogue.values import name_fields
from boathook.service.unit_of_work import AppContext

Follow = Callable[[AppContext, Any, datetime, int], Awaitable[Any]]
"""Waits for the results of what a command has changed: its input, since when, and how many."""
Choose = Callable[[Mapping[str, Any], dict[str, Any]], tuple[Operation[Any, Any], dict[str, Any]]]
"""Chooses the operation of a command by its own options and the values of the others; see `add_bulk`."""
ShowOutcome = Callable[[Outcome], tuple[Mapping[str, object], str]]
"""Returns what a command prints of an outcome: as JSON, and as a line."""


def add_bulk(
    group: typer.Typer,
    operation: Operation[Any, Any],
    name: str,
    noun: str,
    *,
    more: Mapping[str, Any] | None = None,
    instead: Callable[[typer.Context, dict[str, Any]], bool] = lambda _ctx, _values: False,
    follow: Follow | None = None,
    choose: Choose | None = None,
    show: ShowOutcome | None = None,
) -> None:
    """Add the command of an operation on many objects to a group; it exits with 1 if some of them failed.

    Named ones are changed at once; for others, what is selected is counted, shown and confirmed, and then changed in
    batches by the command itself.

    Args:
        group: the group.
        operation: the operation.
        name: the name of the command.
        noun: what it selects, such as ``dead letter``.
        more: options besides those of the fields.
        instead: is given these options, and all other values, first; whether it has done something else instead.
        follow: waits for the results of what was changed.
        choose: is given these options, and all other values; returns the operation that they mean, and its values.
            Without it, these options need the database.
        show: returns what is printed of the outcome of each object.
    """
    extra = dict(more or {})

    def command(ctx: typer.Context, **values: Any) -> None:
        own = {option: values.pop(option) for option in extra}
        is_impossible = choose is None and cli_context(ctx).is_remote
        if is_impossible and (needing := [option for option, value in own.items() if value]):
            raise UsageError(f"--{needing[0]} needs the database; leave it out, or run the command on the host")
        if instead(ctx, {**values, **own}):
            return
        as_json, yes = values.pop("as_json"), values.pop("yes", True)
        target = operation
        if choose is not None:
            target, values = choose(own, values)
        run = _BulkRun(
            target, noun, yes, as_json,
            follow=follow if _is_followed(own, as_json=as_json) else None,
            # A job of a server has numbers, but no outcomes of single objects.
            show=None if cli_context(ctx).is_remote and not values["ids"] else show,
        )  # fmt: skip
        with naming_options(target):
            is_well = run_async(run.act(ctx, read_input(target, values)))
        if not is_well:
            raise typer.Exit(1)

    parameters = [option_of(field) for field in operation.fields]
    if operation.must_confirm:
        parameters.append(fixed_option("yes", Yes, default=False))
    parameters.append(fixed_option("as_json", Json, default=False))
    parameters += [fixed_option(option, annotation, default) for option, (annotation, default) in extra.items()]
    register(group, operation, name, command, parameters)


def _is_followed(own: Mapping[str, Any], *, as_json: bool) -> bool:
    choice = own.get("follow")
    return out.is_terminal and not as_json if choice is None else bool(choice)


class _BulkRun(msgspec.Struct, frozen=True):
    """One run of a command on many objects."""

    operation: Operation[Any, Any]
    noun: str
    yes: bool
    as_json: bool
    follow: Follow | None
    show: ShowOutcome | None

    @property
    def verb(self) -> str:
        """What it does, in the operation's name."""
        return self.operation.name.partition(".")[2]

    async def act(self, ctx: typer.Context, input: Any) -> bool:
        """Count, show, confirm and change what is selected; return whether none failed, also not while followed."""
        if (context := cli_context(ctx)).is_remote:
            remote = remote_runner(context)
            act, drive = partial(remote.act, self.operation), partial(remote.drive, self.operation)
            return await self._act_with(await remote.complete(input), act, drive)
        async with open_app_context(context.settings()) as opened:
            open_work = partial(opened.work, actor=actor(), caller=HOST)
            async with open_work() as work:
                input = await complete(work, input)
                since = await read_clock(work.connection)

            async def act_in_transaction(value: Any) -> Any:
                async with open_work() as work:
                    return await self.operation(work, value)

            follow = None if self.follow is None else partial(self.follow, opened, input, since)
            return await self._act_with(input, act_in_transaction, partial(self.operation.drive, open_work), follow)

    async def _act_with(
        self,
        input: Any,
        act: Callable[[Any], Awaitable[Any]],
        drive: Callable[[Any], AsyncIterator[Any]],
        follow: Callable[[int], Awaitable[Any]] | None = None,
    ) -> bool:
        """Do so where *act* runs the operation, and *drive* runs it on many objects."""
        preview = await act(replace(input, dry_run=True))
        if (error := preview.first_error()) is not None:
            raise error
        if pending := sum(item.code == "pending" for item in preview.skipped):
            hint(f"{pending} still pending, so not {self.noun}s: `boathook deliveries retry` makes one due now")
        acted = await self._change(input, preview, act, drive)
        if acted is not None and (sentence := acted.describe(self.operation.says, self.noun)):
            self._say(sentence)
        for note in (acted or preview).hints():
            hint(name_fields(note, naming_options(self.operation).label))
        outcome = await follow(acted.done) if acted is not None and acted.done and follow else None
        if self.as_json and (input.dry_run or self.show is None):
            result = preview if input.dry_run else acted or _nothing_done(preview)
            fields = replace(result, matching=preview.matching).to_line(self.verb)
            output.print_json(fields | ({} if outcome is None else {"outcome": asdict(outcome)}))
        return not getattr(acted, "failed", 0) and (outcome is None or not outcome.dead)

    async def _change(
        self,
        input: Any,
        preview: Any,
        act: Callable[[Any], Awaitable[Any]],
        drive: Callable[[Any], AsyncIterator[Any]],
    ) -> Any:
        """Return what was changed; None if that was not confirmed, or is a dry run."""
        is_to_confirm = input.dry_run or (not input.ids and self.operation.must_confirm)
        if is_to_confirm and not self._confirm(input, preview):
            return None
        if input.ids:
            acted = await act(input)
            for item in acted.skipped:
                if item.code != "pending":
                    hint(item.why)
            self._print_outcomes(acted)
            return acted
        acted = _nothing_done(preview)
        if self.show is not None:
            async for acted in drive(input):
                self._print_outcomes(acted)
            return acted
        with Progress(self.verb, preview.matching) as report:
            async for acted in drive(input):
                report(acted.done)
        return acted

    def _confirm(self, input: Any, preview: Any) -> bool:
        """Print what is selected; return whether to act on it."""
        counts = getattr(preview, "counts", ())
        if counts and not self.as_json:
            output.print_table(_COUNTS[type(counts[0])], counts)
        for note in preview.notes:
            self._say(note)
        if getattr(input, "group", None) is None:
            self._say(preview.count(self.noun))
        is_empty = not preview.matching and getattr(preview, "is_exact", True)
        if is_empty or input.dry_run:
            return False
        action = f"{self.verb} {counted(preview.matching, self.noun)}"
        return ask(action, yes=self.yes, advice="add --yes to confirm, or --dry-run to count")

    def _print_outcomes(self, acted: Any) -> None:
        if self.show is not None:
            for outcome in acted.results:
                fields, line = self.show(outcome)
                output.print_done(fields, line, as_json=self.as_json)

    def _say(self, message: str) -> None:
        (hint if self.as_json else say)(message)


def _nothing_done(preview: Any) -> Any:
    """Return the result of an operation that has done nothing of what it counted."""
    return type(preview)(dry_run=False, matching=preview.matching)


_ORIGIN: Final = (Column("number"), Column("from", lambda count: count.source or count.application))
_COUNTS: Final[Mapping[type, Sequence[Column]]] = {
    Count: (*_ORIGIN, Column("type"), RECIPIENT, CODE, Column("oldest", output.age_of("oldest"))),
    RequestsCount: (*_ORIGIN, Column("cause", is_whole=True)),
}
