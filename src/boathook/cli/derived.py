"""Commands that derive from the catalogue of operations: their options, help, questions, output and errors."""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Final, Protocol, TypeVar, cast, get_args

import msgspec
import typer
from msgspec import UNSET
from msgspec.structs import asdict, replace

from boathook.cli import output
from boathook.cli.commands import example
from boathook.cli.context import (
    CliContext,
    UsageError,
    actor,
    cli_context,
    confirm,
    open_app_context,
    out,
    run_in_transaction,
)
from boathook.cli.context import run as run_async
from boathook.cli.options import (
    After,
    Json,
    Limit,
    Yes,
    confirm_selection,
    read_json,
    read_lifetime,
    read_pairs,
    show_lifetime,
)
from boathook.cli.output import CODE, RECIPIENT, Column, Progress, View, hint, parse_time, say
from boathook.domain.errors import InvalidValue
from boathook.domain.plurals import counted
from boathook.service import id_prefixes
from boathook.service.caller import HOST
from boathook.service.catalogue.operation import OpenWork, Operation
from boathook.service.catalogue.selection import first_error, read_clock
from boathook.service.catalogue.stored_requests import Outcome, RequestsActed
from boathook.service.catalogue.values import PageInput, name_fields
from boathook.service.fields import Change, Field, Kind, fields_by_name, fields_of
from boathook.service.unit_of_work import AppContext, UnitOfWork

if TYPE_CHECKING:
    from boathook.cli.remote import RemoteRunner

_PAGE: Final = 250
Command = TypeVar("Command", bound=Callable[..., Any])
Out = TypeVar("Out", bound=msgspec.Struct)
Follow = Callable[[AppContext, Any, datetime, int], Awaitable[Any]]
"""Waits for the results of what a command has changed: its input, since when, and how many."""
Choose = Callable[[Mapping[str, Any], dict[str, Any]], tuple[Operation[Any, Any], dict[str, Any]]]
"""Chooses the operation of a command by its own options and the values of the others; see `add_selection`."""


def add(
    group: typer.Typer,
    operation: Operation[Any, Any],
    name: str,
    *,
    view: View | None = None,
    subject: Operation[Any, Any] | None = None,
    alternatives: Mapping[str, tuple[Operation[Any, Any], Any]] = MappingProxyType({}),
    options: Mapping[str, Any] | None = None,
    read: Callable[[typer.Context, dict[str, Any]], dict[str, Any]] = lambda _ctx, values: values,
    show: Callable[[Any], Iterable[Mapping[str, Any]]] | None = None,
) -> None:
    """Add the command of an operation to a group.

    Args:
        group: the group.
        operation: the operation.
        name: the name of the command.
        view: how it prints its result, or the rows of a list; by default all fields, times as ages.
        subject: reads the object that the operation ends, for the question before it and the output after it.
        alternatives: options that name an object for another operation, which then runs instead: by the option's name,
            the operation and the option.
        options: options besides those of the fields, or in place of them: the annotation and the default, by name;
            None: no option.
        read: returns the values of fields for the values of all options. Raises UsageError.
        show: returns the lines of the output, each as an object whose first value is printed.
    """
    is_list = issubclass(operation.input, PageInput)
    own = [field for field in operation.fields if not (is_list and field.name in {"limit", "iterator"})]
    extra = dict(options or {})
    view = view or view_of(operation)

    def command(ctx: typer.Context, **values: Any) -> None:
        as_json = values.pop("as_json")
        chosen_ids = {option: values.pop(option) for option in alternatives}
        for option, object_id in chosen_ids.items():
            if object_id is not None:
                other = alternatives[option][0]
                _print(other, _run(ctx, other, other.input(id=object_id)), view_of(other), as_json=as_json)
                return
        if is_list:
            _print_list(ctx, operation, values, view, as_json=as_json)
            return
        yes = values.pop("yes", True)
        value = _input(operation, read(ctx, values))
        if isinstance(value, Change) and not value.values:
            raise UsageError("give a value to change; --help lists them")
        row = None if subject is None else _run(ctx, subject, _common(value, subject.input))
        if row is not None:
            value = replace(value, **{field: getattr(row, field) for field in _shared(value, row)})
        if operation.warns and not getattr(value, "dry_run", False):
            confirm(operation.warns.format(**asdict(value), **({} if row is None else {"subject": row})), yes=yes)
        result = _run(ctx, operation, value)
        if show is not None:
            for line in show(result):
                output.print_done(line, next(iter(line.values())), as_json=as_json)
        elif as_json and row is not None:
            output.print_json(view.plain(row))
        else:
            _print(operation, result, view, as_json=as_json)

    cast("Any", command).alternatives = tuple(other for other, _ in alternatives.values())
    parameters = [_parameter(field) for field in own if field.name not in extra]
    parameters += [_fixed(option, *shown) for option, shown in extra.items() if shown is not None]
    if alternatives:  # which need nothing else, so the rule of a field says that it is required
        parameters = [
            each.replace(default="") if each.default is inspect.Parameter.empty else each for each in parameters
        ]
        parameters += [_fixed(option, annotation, None) for option, (_, annotation) in alternatives.items()]
    if is_list:
        parameters.append(_fixed("limit", Limit, 50))
        parameters += [] if "after" in extra else [_fixed("after", After, None)]
    if operation.must_confirm:
        parameters.append(_fixed("yes", Yes, default=False))
    parameters.append(_fixed("as_json", Json, default=False))
    _register(group, operation, name, command, parameters)


def _shared(value: msgspec.Struct, row: msgspec.Struct) -> list[str]:
    """Return the fields that name an object in an input and in the object itself."""
    return [name for name in value.__struct_fields__ if name in row.__struct_fields__]


def _common(value: msgspec.Struct, input: type[msgspec.Struct]) -> msgspec.Struct:
    """Return the input of the operation that reads the object which *value* names."""
    return input(**{field: getattr(value, field) for field in input.__struct_fields__})


def add_selection(
    group: typer.Typer,
    operation: Operation[Any, Any],
    name: str,
    noun: str,
    *,
    more: Mapping[str, Any] | None = None,
    instead: Callable[[typer.Context, dict[str, Any]], bool] = lambda _ctx, _values: False,
    follow: Follow | None = None,
    choose: Choose | None = None,
) -> None:
    """Add the command of an operation on many objects to a group.

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
    """
    extra = dict(more or {})

    def command(ctx: typer.Context, **values: Any) -> None:
        own = {option: values.pop(option) for option in extra}
        is_impossible = choose is None and cli_context(ctx).is_remote
        if is_impossible and (needing := [option for option, value in own.items() if value]):
            raise UsageError(f"--{needing[0]} needs the database; leave it out, or run the command on the host")
        if instead(ctx, {**values, **own}):
            return
        as_json, yes = values.pop("as_json"), values.pop("yes")
        target = operation
        if choose is not None:
            target, values = choose(own, values)
        followed = follow if _is_followed(own, as_json=as_json) else None
        run = _SelectionRun(target, target.name.partition(".")[2], noun, yes, as_json, followed)
        with naming_options(target):
            is_well = run_async(run.act(ctx, _input(target, values)))
        if not is_well:
            raise typer.Exit(1)

    parameters = [_parameter(field) for field in operation.fields]
    parameters += [_fixed("yes", Yes, default=False), _fixed("as_json", Json, default=False)]
    parameters += [_fixed(option, annotation, default) for option, (annotation, default) in extra.items()]
    _register(group, operation, name, command, parameters)


def runs(operation: Operation[Any, Any], *alternatives: Operation[Any, Any]) -> Callable[[Command], Command]:
    """Mark a command that is written by hand, as its options have forms of their own, as that of operations."""

    def mark(command: Command) -> Command:
        cast("Any", command).operation = operation
        cast("Any", command).alternatives = alternatives
        cast("Any", command).runs_remotely = operation.http is not None
        return command

    return mark


def run_operation(ctx: typer.Context, operation: Operation[Any, Out], value: Any) -> Out:
    """Return the result of the operation of a command, in one transaction of the database or on a server."""

    async def act(runner: Runner) -> Any:
        return await runner.act(operation, await runner.complete(value))

    return cast("Out", _run_with(ctx, act))


def _is_followed(own: Mapping[str, Any], *, as_json: bool) -> bool:
    wish = own.get("follow")
    return out.is_terminal and not as_json if wish is None else bool(wish)


class _SelectionRun(msgspec.Struct, frozen=True):
    """One run of a command on many objects."""

    operation: Operation[Any, Any]
    verb: str
    noun: str
    yes: bool
    as_json: bool
    follow: Follow | None

    async def act(self, ctx: typer.Context, input: Any) -> bool:
        """Count, show, confirm and change what is selected; return False if any failed again while it was followed."""
        if (context := cli_context(ctx)).is_remote:
            remote = _remote_runner(context)
            act, drive = partial(remote.act, self.operation), partial(remote.drive, self.operation)
            return await self._act_with(await remote.complete(input), act, drive)
        async with open_app_context(context.settings()) as opened:
            async with self._open(opened) as work:
                input = await complete(work, input)
                since = await read_clock(work.connection)

            async def act_in_transaction(value: Any) -> Any:
                async with self._open(opened) as work:
                    return await self.operation(work, value)

            follow = None if self.follow is None else partial(self.follow, opened, input, since)
            drive = partial(self.operation.drive, partial(self._open, opened))
            return await self._act_with(input, act_in_transaction, drive, follow)

    async def _act_with(
        self,
        input: Any,
        act: Callable[[Any], Awaitable[Any]],
        drive: Callable[[Any], AsyncIterator[Any]],
        follow: Callable[[int], Awaitable[Any]] | None = None,
    ) -> bool:
        """Do so where *act* runs the operation, and *drive* runs it on many objects."""
        preview = await act(replace(input, dry_run=True))
        if (error := first_error(preview)) is not None:
            raise error
        if pending := sum(item.code == "pending" for item in preview.skipped):
            hint(f"{pending} still pending, so not {self.noun}s: `boathook deliveries retry` makes one due now")
        acted = await self._change(input, preview, act, drive)
        if acted is not None:
            self._say(acted.describe(self.operation.says, self.noun))
        for note in (acted or preview).hints():
            hint(name_fields(note, naming_options(self.operation).label))
        outcome = await follow(acted.done) if acted is not None and acted.done and follow else None
        if self.as_json:
            result = preview if input.dry_run else acted or _nothing_done(preview)
            fields = replace(result, matching=preview.matching).to_line(self.verb)
            output.print_json(fields | ({} if outcome is None else {"outcome": asdict(outcome)}))
        return outcome is None or not outcome.dead

    async def _change(
        self,
        input: Any,
        preview: Any,
        act: Callable[[Any], Awaitable[Any]],
        drive: Callable[[Any], AsyncIterator[Any]],
    ) -> Any:
        """Return what was changed; None if that was not confirmed, or is a dry run."""
        counts = getattr(preview, "counts", ())
        if counts and not self.as_json and (input.dry_run or not input.ids):
            output.print_table(_COUNTS, counts)
        for note in preview.notes:
            self._say(note)
        if not input.ids or input.dry_run:
            if getattr(input, "group", None) is None:
                self._say(preview.count(self.noun))
            what = f"{self.verb} {counted(preview.matching, self.noun)}"
            is_empty = not preview.matching and getattr(preview, "is_exact", True)
            if is_empty or not confirm_selection(what, dry_run=input.dry_run, yes=self.yes):
                return None
        if input.ids:
            acted = await act(input)
            for item in acted.skipped:
                if item.code != "pending":
                    hint(item.why)
            return acted
        acted = _nothing_done(preview)
        with Progress(self.verb, preview.matching) as report:
            async for acted in drive(input):
                report(acted.done)
        return acted

    def _open(self, opened: AppContext) -> AbstractAsyncContextManager[UnitOfWork]:
        return opened.work(actor=actor(), caller=HOST)

    def _say(self, message: str) -> None:
        (hint if self.as_json else say)(message)


ShowOutcome = Callable[[Outcome], tuple[Mapping[str, object], str]]
"""Returns what a command prints of an outcome: as JSON, and as a line."""


def add_requests(
    group: typer.Typer,
    operation: Operation[Any, Any],
    name: str,
    noun: str,
    show: ShowOutcome,
    *,
    sum_up: Callable[[int, int], str] = lambda _number, _failed: "",
) -> None:
    """Add the command of an operation on stored requests to a group; it exits with 1 if any became no event.

    Args:
        group: the group.
        operation: the operation.
        name: the name of the command.
        noun: what it selects, such as ``conflict``.
        show: returns what is printed of each.
        sum_up: returns the last line, by how many were handled, and how many of these became no event.
    """

    def command(ctx: typer.Context, **values: Any) -> None:
        as_json, yes = values.pop("as_json"), values.pop("yes", True)
        run = _RequestsRun(operation, name, noun, yes, as_json, show)
        with naming_options(operation):
            number, failed = run_async(run.act(ctx, _input(operation, values)))
        if not as_json and not values["dry_run"] and (line := sum_up(number, failed)):
            say(line)
        if failed:
            raise typer.Exit(1)

    parameters = [_parameter(field) for field in operation.fields]
    if operation.must_confirm:
        parameters.append(_fixed("yes", Yes, default=False))
    parameters.append(_fixed("as_json", Json, default=False))
    _register(group, operation, name, command, parameters)


class _RequestsRun(msgspec.Struct, frozen=True):
    """One run of a command on stored requests."""

    operation: Operation[Any, Any]
    verb: str
    noun: str
    yes: bool
    as_json: bool
    show: ShowOutcome

    async def act(self, ctx: typer.Context, input: Any) -> tuple[int, int]:
        """Handle what is selected; return how many were handled, and how many of these became no event."""
        if (context := cli_context(ctx)).is_remote:
            remote = _remote_runner(context)
            act = partial(remote.act, self.operation)
            return await self._act_with(await remote.complete(input), act, partial(self._wait, remote))
        async with open_app_context(context.settings()) as opened:
            open_work = partial(opened.work, actor=actor(), caller=HOST)
            async with open_work() as work:
                input = await complete(work, input)

            async def act_in_transaction(value: Any) -> RequestsActed:
                async with open_work() as work:
                    return cast("RequestsActed", await self.operation(work, value))

            return await self._act_with(input, act_in_transaction, partial(self._drive, open_work))

    async def _act_with(
        self,
        input: Any,
        act: Callable[[Any], Awaitable[RequestsActed]],
        drive: Callable[[Any], Awaitable[tuple[int, int]]],
    ) -> tuple[int, int]:
        if input.dry_run or input.ids or self.operation.must_confirm:
            preview = await act(replace(input, dry_run=True))
            if (error := next((each.error() for each in preview.results), None)) is not None:
                raise error
            if (input.dry_run or not input.ids) and not self._confirm(input, preview):
                return 0, 0
        if not input.ids:
            return await drive(input)
        acted = await act(input)
        self._print(acted.results)
        return acted.done, acted.failed

    def _confirm(self, input: Any, preview: RequestsActed) -> bool:
        """Print what is selected; return whether to act on it."""
        number = counted(preview.matching, self.noun)
        if self.as_json and input.dry_run:
            output.print_json({"action": self.verb, "dry_run": True, "matching": preview.matching, "done": 0})
        elif not self.as_json:
            output.print_table(_REQUEST_COUNTS, preview.counts)
            say(number)
        return bool(preview.matching) and confirm_selection(
            f"{self.verb} {number}", dry_run=input.dry_run, yes=self.yes
        )

    async def _drive(self, open_work: OpenWork, input: Any) -> tuple[int, int]:
        number = failed = 0
        async for acted in self.operation.drive(open_work, input):
            self._print(acted.results)
            number += acted.done
            failed += acted.failed
        return number, failed

    async def _wait(self, remote: "RemoteRunner", input: Any) -> tuple[int, int]:
        """Wait for the job of a server."""
        acted = await remote.act(self.operation, input)
        number = failed = 0
        if acted.job is not None:
            with Progress(self.verb, acted.matching) as report:
                async for job in remote.follow(acted.job):
                    number, failed = job.done, job.skipped
                    report(number)
        if self.as_json:
            fields = {"action": self.verb, "dry_run": False, "matching": acted.matching, "done": number}
            output.print_json(fields | {"failed": failed})
        return number, failed

    def _print(self, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            fields, line = self.show(outcome)
            output.print_done(fields, line, as_json=self.as_json)


_REQUEST_COUNTS: Final = (
    Column("number"),
    Column("from", lambda count: count.source or count.application),
    Column("cause", is_whole=True),
)


def _nothing_done(preview: Any) -> Any:
    """Return the result of an operation that has done nothing of what it counted."""
    return type(preview)(dry_run=False, matching=preview.matching)


_COUNTS: Final = (
    Column("number"),
    Column("from", lambda count: count.source or count.application),
    Column("type"),
    RECIPIENT,
    CODE,
    Column("oldest", output.age_of("oldest")),
)


def _register(
    group: typer.Typer,
    operation: Operation[Any, Any],
    name: str,
    command: Callable[..., None],
    parameters: list[inspect.Parameter],
) -> None:
    """Register a command with these parameters and the help of its operation."""
    parameters = [inspect.Parameter("ctx", _POSITIONAL, annotation=typer.Context), *parameters]
    # An argument without a default cannot follow an option with one.
    parameters.sort(key=lambda parameter: parameter.default is not inspect.Parameter.empty)
    cast("Any", command).__signature__ = inspect.Signature(parameters)
    cast("Any", command).operation = operation
    cast("Any", command).runs_remotely = operation.http is not None
    command.__doc__ = f"{operation.help}\n\n{operation.detail}".strip()
    group.command(name, epilog=example(*operation.examples))(command)


_POSITIONAL: Final = inspect.Parameter.POSITIONAL_OR_KEYWORD


def _fixed(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, _POSITIONAL, default=default, annotation=annotation)


_TYPES: Final = {
    Kind.TEXT: str,
    Kind.INTEGER: int,
    Kind.NUMBER: float,
    Kind.FLAG: bool,
    Kind.PAIRS: str,
    Kind.OBJECT: str,
    Kind.OTHER: str,
}


def _parameter(field: Field) -> inspect.Parameter:
    """Return the option or the argument of a field."""
    rule, is_change = field.rule, field.default is UNSET
    # Typer adds a negative form to a flag whose name is not given.
    names = [field.option, *filter(None, [rule.short_option])]
    if field.kind is Kind.FLAG and is_change:
        names = [f"{field.option}/--no-{field.option.removeprefix('--')}"]
    kind: Any = _TYPES.get(field.kind, item_type(field))
    more: dict[str, Any] = {"metavar": rule.metavar} if rule.metavar else {}
    if rule.is_duration:
        kind, more = timedelta, {"parser": read_lifetime, "metavar": "LENGTH"}
    elif field.kind is Kind.TIME:
        more = {"parser": parse_time, "metavar": "TIME"}
    elif field.kind is Kind.OBJECT:
        more = {"metavar": rule.metavar or "JSON"}
    is_repeated = field.is_list or field.kind is Kind.PAIRS
    if is_repeated or is_change:
        more["show_default"] = False
    kind = list[kind] if is_repeated else kind
    is_absent = is_change or is_repeated
    default = inspect.Parameter.empty if field.is_required else None if is_absent else field.default
    if rule.is_duration and field.default and not is_absent:
        default = show_lifetime(field.default)
    is_plain_flag = field.kind is Kind.FLAG and default is not None
    annotation = kind if field.is_required or is_plain_flag else kind | None
    if rule.argument and not is_change:
        info = typer.Argument(metavar=rule.argument, help=_help(field), show_default=False)
    else:
        info = typer.Option(*names, help=_help(field), **more)
    return _fixed(field.name, Annotated[annotation, info], default)


def item_type(field: Field) -> Any:
    """Return the type of a field's value, or of the items of a list."""
    return get_args(field.type)[0] if field.is_list else field.type


def _help(field: Field) -> str:
    """Return the help of an option, with an example of its values."""
    sample = "30d, 12h" if field.rule.is_duration else field.rule.example
    if field.is_list and field.item_rule.prefix:
        return field.rule.help.replace("Ids", "Ids or their beginnings")
    if field.rule.prefix and field.rule.argument:
        return f"{field.rule.help.rstrip('.')}, or the beginning of it."
    if field.kind is Kind.OBJECT:
        return f"{field.rule.help.removesuffix('.')}; @FILE reads a file."
    if field.is_list or field.kind is Kind.PAIRS:
        return field.rule.help
    return field.rule.help if sample is None else f"{field.rule.help.rstrip('.')}, such as {sample}."


def _input(operation: Operation[Any, Any], values: Mapping[str, Any]) -> Any:
    fields = {field.name: field for field in operation.fields}
    present = {name: value for name, value in values.items() if value is not None and value != []}
    return operation.input(**{name: _value(operation.input, fields[name], value) for name, value in present.items()})


def _value(table: type[msgspec.Struct], field: Field, value: Any) -> Any:
    """Return the value of a field that an option has. Raises UsageError."""
    if issubclass(table, Change) and field.default is UNSET and value is not False and value in ("", 0, [""]):
        former = fields_by_name(table.table)[field.name]
        return value if former.is_required else former.default
    if field.kind is Kind.PAIRS:
        return read_pairs(field.option, value, "=")
    if field.kind is Kind.OBJECT and isinstance(value, str):
        document = read_json(field.option, value)
        if not isinstance(document, dict):
            raise UsageError(f"{field.option}: write a JSON object, not {value!r}")
        return document
    return int(value.total_seconds()) if isinstance(value, timedelta) else value


def _run(ctx: typer.Context, operation: Operation[Any, Any], value: Any) -> Any:
    """Do what `run_operation` does, with errors that name options."""
    with naming_options(operation):
        return run_operation(ctx, operation, value)


class Runner(Protocol):
    """Runs operations."""

    async def complete(self, value: msgspec.Struct) -> Any:
        """Return an input with the whole ids that its ids begin. Raises InvalidValue, NotFound."""
        ...

    async def act(self, operation: Operation[Any, Any], value: Any) -> Any:
        """Return the result of an operation. Raises as the operation does."""
        ...


class _DatabaseRunner(msgspec.Struct, frozen=True):
    """Runs operations in one transaction."""

    work: UnitOfWork

    async def complete(self, value: msgspec.Struct) -> Any:
        return await complete(self.work, value)

    async def act(self, operation: Operation[Any, Any], value: Any) -> Any:
        return await operation(self.work, value)


def _run_with(ctx: typer.Context, do: Callable[[Runner], Coroutine[Any, Any, Any]]) -> Any:
    """Return the result of *do*, which runs operations on the server of the command line, or on the database."""
    context = cli_context(ctx)
    if not context.is_remote:
        return run_in_transaction(ctx, lambda work: do(_DatabaseRunner(work)))
    return run_async(do(_remote_runner(context)))


def _remote_runner(context: CliContext) -> "RemoteRunner":
    # Imported only here, as most commands run on the database.
    from boathook.cli.remote import RemoteRunner, choose_server

    settings = context.plain_settings()
    return RemoteRunner(choose_server(context.remote, settings), settings)


async def complete(work: UnitOfWork, value: msgspec.Struct) -> Any:
    """Return an input with the whole ids that its ids begin. Raises InvalidValue, NotFound."""
    whole = {}
    for field in fields_of(type(value)):
        entry, rule = getattr(value, field.name), field.item_rule if field.is_list else field.rule
        prefix = rule.prefix
        if not prefix or entry is None:
            continue
        words = entry if field.is_list else [entry]
        completed = [await id_prefixes.complete(work.connection, prefix, word, work.caller.tenant) for word in words]
        whole[field.name] = completed if field.is_list else completed[0]
    return replace(value, **whole) if whole else value


class naming_options:  # noqa: N801 - a context manager
    """Let errors of an operation name the option of a field, where the service names the field."""

    def __init__(self, operation: Operation[Any, Any]) -> None:
        self._table = operation.fields

    def __enter__(self) -> None:
        """Do nothing yet."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, InvalidValue):
            error.args = (name_fields(str(error), self.label),)
            if error.where and (label := self._option(str(error.where[0]))):
                rest = ".".join(str(part) for part in error.where[1:])
                raise UsageError(f"{label} {rest}: {error}" if rest else f"{label}: {error}") from error

    def label(self, name: str) -> str:
        """Return the option or the argument of a field; the name itself if there is none."""
        return self._option(name) or name

    def _option(self, name: str) -> str:
        for field in self._table:
            if name in {field.name, field.public_name}:
                return field.option if field.default is UNSET else field.rule.argument or field.option
        return ""


def _print(operation: Operation[Any, Any], result: Any, view: View, *, as_json: bool) -> None:
    if any(field.name == "data" and field.is_list for field in operation.result_fields):
        view.print_rows(result.data, as_json=as_json)
        return
    values = asdict(result)
    for note in values.pop("notes", ()):
        hint(note)
    if as_json:
        output.print_json(view.plain(result))
    elif operation.secret:
        output.say(values[operation.secret])
    elif operation.says:
        output.say(operation.says.format(**_shown(values)))
    else:
        view.print_one(result, as_json=False)


def _shown(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a result as a sentence has them."""
    return {name: output.timestamp(value) if isinstance(value, datetime) else value for name, value in values.items()}


def _print_list(
    ctx: typer.Context, operation: Operation[Any, Any], values: dict[str, Any], view: View, *, as_json: bool
) -> None:
    limit, after = values.pop("limit"), values.pop("after")
    value = _input(operation, {**values, "iterator": after})

    async def read(runner: Runner) -> None:
        pages = _pages(operation, runner, await runner.complete(value), limit)
        await view.print_pages(pages, limit=limit, as_json=as_json)

    with naming_options(operation):
        _run_with(ctx, read)


async def _pages(
    operation: Operation[Any, Any], runner: Runner, value: Any, limit: int
) -> AsyncIterator[Sequence[object]]:
    """Yield the pages of a list, at most *limit* rows; 0 means all."""
    left = limit
    while True:
        page = await runner.act(operation, replace(value, limit=min(left or _PAGE, _PAGE)))
        if page.data:
            yield page.data
        left -= len(page.data)
        if page.done or (limit and left <= 0):
            return
        value = replace(value, iterator=page.iterator)


def view_of(operation: Operation[Any, Any]) -> View:
    """Return how the result of an operation is printed: all fields, times as ages, without empty columns."""
    table = operation.result_fields
    rows = next((fields_of(item_type(field)) for field in table if field.name == "data" and field.is_list), table)
    return View(tuple(map(_column, rows)))


def _column(field: Field) -> Column:
    title = field.name.removesuffix("_at").replace("_", " ")
    if field.kind is Kind.TIME:
        is_birth = field.name == "created_at"
        read = output.age_of(field.name) if is_birth else output.moment_of(field.name)
        return Column("age" if is_birth else title, read, is_optional=True)
    return Column(title, field.name, is_whole=bool(field.rule.prefix), is_optional=True)
