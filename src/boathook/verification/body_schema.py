"""What the bodies of one source must look like; looked at only once their proof has held."""

from collections.abc import Callable
from typing import Any

from boathook.domain.errors import ConfigError
from boathook.domain.json_document import UNREADABLE, parse


class BodySchema:
    """Judges whole bodies by a source's JSON Schema.

    Args:
        fault: says what is wrong with a parsed document.
    """

    def __init__(self, fault: Callable[[Any], str | None]) -> None:
        self._fault = fault

    def find_error(self, body: bytes) -> str | None:
        """Return what is wrong with a body, naming the field; None where it fits."""
        document = parse(body)
        return "the body is not JSON" if document is UNREADABLE else self._fault(document)


def compile_body_schema(source: str, schema: Any) -> BodySchema:
    """Return what judges bodies by this schema.

    Raises:
        ConfigError: it is no schema, or uses what is refused here; the message names ``sources.NAME.schema``.
    """
    # Few sources have a schema, and importing what judges by one takes longer than all the rest of verification.
    from boathook.verification.json_schema import CompiledSchema

    try:
        return BodySchema(CompiledSchema(schema).fault)
    except ValueError as error:
        raise ConfigError(f"sources.{source}.schema: {error}") from None
