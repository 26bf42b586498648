"""Commands that derive from the catalogue of operations: their options, help, questions, output and errors."""

import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
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
    cli_context,
    confirm,
    option_error,
    run_in_transaction,
)
from boathook.cli.context import run as run_async
from boathook.cli.options import (
    After,
    Json,
    Limit,
    Yes,
    read_json,
    read_lifetime,
    read_pairs,
    show_lifetime,
)
from boathook.cli.output import Column, View, hint, parse_time
from boathook.domain.errors import InvalidValue
from boathook.service import id_prefixes
from boathook.service.catalogue.operation import Operation
from boathook.service.catalogue.values import PageInput, name_fields
from boathook.service.fields import Change, Field, Kind, fields_by_name, fields_of
from boathook.service.unit_of_work import UnitOfWork

if TYPE_CHECKING:
    from boathook.cli.remote import RemoteRunner

_PAGE: Final = 250
Command = TypeVar("Command", bound=Callable[..., Any])
Out = TypeVar("Out", bound=msgspec.Struct)


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
        value = read_input(operation, read(ctx, values))
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
    parameters = [option_of(field) for field in own if field.name not in extra]
    parameters += [fixed_option(option, *parameter) for option, parameter in extra.items() if parameter is not None]
    if alternatives:  # which need nothing else, so the rule of a field says that it is required
        parameters = [
            each.replace(default="") if each.default is inspect.Parameter.empty else each for each in parameters
        ]
        parameters += [fixed_option(option, annotation, None) for option, (_, annotation) in alternatives.items()]
    if is_list:
        parameters.append(fixed_option("limit", Limit, 50))
        parameters += [] if "after" in extra else [fixed_option("after", After, None)]
    if operation.must_confirm:
        parameters.append(fixed_option("yes", Yes, default=False))
    parameters.append(fixed_option("as_json", Json, default=False))
    register(group, operation, name, command, parameters)


def _shared(value: msgspec.Struct, row: msgspec.Struct) -> list[str]:
    """Return the fields that name an object in an input and in the object itself."""
    return [name for name in value.__struct_fields__ if name in row.__struct_fields__]


def _common(value: msgspec.Struct, input: type[msgspec.Struct]) -> msgspec.Struct:
    """Return the input of the operation that reads the object which *value* names."""
    return input(**{field: getattr(value, field) for field in input.__struct_fields__})


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


def register(
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


def fixed_option(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    """Return an option that is not of a field."""
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


def option_of(field: Field) -> inspect.Parameter:
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
    return fixed_option(field.name, Annotated[annotation, info], default)


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


def read_input(operation: Operation[Any, Any], values: Mapping[str, Any]) -> Any:
    """Return the input of an operation for the values of its options. Raises UsageError."""
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
    return run_async(do(remote_runner(context)))


def remote_runner(context: CliContext) -> "RemoteRunner":
    """Return the runner of operations on the server of the command line. Raises ConfigError, UsageError."""
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
                raise option_error(label, error.where[1:], str(error)) from error

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
    value = read_input(operation, {**values, "iterator": after})

    async def read(runner: Runner) -> None:
        pages = _pages(operation, runner, await runner.complete(value), limit)
        await view.print_pages(pages, limit=limit, as_json=as_json)

    with naming_options(operation):
        _run_with(ctx, read)


async def _pages(
    operation: Operation[Any, Any], runner: Runner, value: Any, limit: int
) -> AsyncIterator[Sequence[object]]:
    """Yield the pages of a list, at most *limit* rows; 0 means all."""
    remaining = limit
    while True:
        page = await runner.act(operation, replace(value, limit=min(remaining or _PAGE, _PAGE)))
        if page.data:
            yield page.data
        remaining -= len(page.data)
        if page.done or (limit and remaining <= 0):
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
