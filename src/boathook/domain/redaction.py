"""Records whose `repr` hides secrets, so that a log line or a traceback with local values does not show them."""

from typing import Any, ClassVar

import msgspec


class RedactedStruct(msgspec.Struct, frozen=True):
    """A struct whose `repr` leaves out the fields in `hidden_fields`."""

    hidden_fields: ClassVar[frozenset[str]] = frozenset()

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Return the names and values of the other fields."""
        return [(name, getattr(self, name)) for name in self.__struct_fields__ if name not in self.hidden_fields]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"
