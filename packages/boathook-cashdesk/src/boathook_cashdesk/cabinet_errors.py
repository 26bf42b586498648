"""The cabinet's errors, each with its HTTP status and code."""

from typing import Any, ClassVar

from boathook import BoathookError


class CabinetError(BoathookError):
    """The request is refused; the message says why, and how to fix it."""

    status: ClassVar[int] = 400
    code: ClassVar[str] = "refused"

    def show(self) -> dict[str, Any]:
        """Return it as an API response."""
        return {"error": {"code": self.code, "message": str(self)}}


class BadField(CabinetError):
    """A field is missing, unknown, or has an invalid value."""

    code = "bad_field"

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.field = field
        self._message = message

    def within(self, place: str) -> "BadField":
        """Return it for the same field of an object that is the field *place*; an empty place changes nothing."""
        return BadField(".".join(filter(None, (place, self.field))), self._message)

    def show(self) -> dict[str, Any]:
        """Return it with the name of the field; the name is empty if the whole body is invalid."""
        return {"error": {"code": self.code, "field": self.field, "message": str(self)}}


class Unauthenticated(CabinetError):
    """The user's token is missing or unknown."""

    status = 401
    code = "unknown_token"


class Forged(CabinetError):
    """A form does not come from the cabinet's own pages."""

    status = 403
    code = "forged"


class Missing(CabinetError):
    """The user has no such object; whether another user has it is not revealed."""

    status = 404
    code = "not_found"


class Conflict(CabinetError):
    """The object's state does not allow the action."""

    status = 409
    code = "conflict"


class TooLarge(CabinetError):
    """The request's body is too large."""

    status = 413
    code = "too_large"


class LimitReached(CabinetError):
    """A limit on the number of objects is reached."""

    status = 409
    code = "limit_reached"
