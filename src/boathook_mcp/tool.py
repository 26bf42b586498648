"""The declaration of a tool: its name, description, input, the permission it needs, and its function."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar

import msgspec

from boathook.domain.errors import NotAllowed
from boathook.domain.model import DEFAULT_ORGANIZATION
from boathook.service.access.authorization import Permission
from boathook.service.field_schemas import json_schema
from boathook.service.field_values import read_json, unknown_names
from boathook.service.fields import Input
from boathook_mcp.outside import NOTICE
from boathook_mcp.session import Session

In = TypeVar("In", bound=Input)
Result = Mapping[str, Any]
_EMPTY: Final[tuple[object, ...]] = (None, "", (), [], {})


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """One tool."""

    name: str
    description: str
    input: type[Input]
    permission: Permission
    """Needed by keys of organizations, operators' tokens and the command line."""
    application_permission: Permission | None
    """Needed by a token of one application; None: it has no such tool."""
    is_of_deployment: bool
    """Whether it is about sources, which belong to the default organization and to operators."""
    needs_writes: bool
    """Whether it exists only where the settings allow writes."""
    is_read_only: bool
    """Whether it changes nothing that anybody else sees."""
    run: Callable[[Session, Any], Awaitable[Result]]

    def is_for(self, session: Session) -> bool:
        """Return whether a caller has this tool."""
        return not self._objection(session)

    def _objection(self, session: Session) -> str:
        caller = session.caller
        needed = self.permission if caller.application_id is None else self.application_permission
        if needed is None or not caller.may(needed):
            return f"this token does not allow {self.name}"
        if self.is_of_deployment and caller.tenant not in {None, DEFAULT_ORGANIZATION}:
            return f"{self.name} is about sources, which this token's organization does not have"
        if self.needs_writes and not session.allows_writes:
            return (
                f"{self.name} is not available, because this server is read-only; an administrator can allow writes by"
                " mcp.allow_writes in boathook.toml, or by --allow-writes of boathook mcp"
            )
        return ""

    async def call(self, session: Session, arguments: Mapping[str, Any]) -> bytes:
        """Return the result as JSON.

        Raises:
            NotAllowed: the caller does not have this tool.
            InvalidValue: an argument is invalid; names it.
            BoathookError: as its function raises.
        """
        if objection := self._objection(session):
            raise NotAllowed(objection)
        ignored = unknown_names(self.input, arguments)
        result = await self.run(session, read_json(self.input, arguments))
        notes = {"ignored_arguments": [name[:100] for name in ignored]} if ignored else {}
        return msgspec.json.encode({"notice": NOTICE, **notes, **result})

    def schema(self) -> dict[str, Any]:
        """Return the JSON Schema of its arguments."""
        schema = json_schema(self.input)
        return {"type": "object", "properties": schema["properties"], "required": schema["required"]}


def tool(
    permission: Permission,
    *,
    of_application: Permission | None = None,
    is_of_deployment: bool = False,
    needs_writes: bool = False,
    is_read_only: bool = True,
) -> Callable[[Callable[[Session, In], Awaitable[Result]]], Tool]:
    """Make a function a tool: its name, docstring and second parameter are those of the tool."""

    def declare(run: Callable[[Session, In], Awaitable[Result]]) -> Tool:
        inputs = [kind for name, kind in run.__annotations__.items() if name not in {"session", "return"}]
        return Tool(
            name=run.__name__,
            description=" ".join((run.__doc__ or "").split()),
            input=inputs[0],
            permission=permission,
            application_permission=of_application,
            is_of_deployment=is_of_deployment,
            needs_writes=needs_writes,
            is_read_only=is_read_only,
            run=run,
        )

    return declare


def compact(**values: Any) -> dict[str, Any]:
    """Return values without empty ones, which would only cost tokens."""
    return {name: value for name, value in values.items() if value not in _EMPTY}
