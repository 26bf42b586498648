"""Why the cabinet does not do what it was asked: each refusal knows how HTTP says it."""

from typing import Any, ClassVar

from boathook import BoathookError


class Refusal(BoathookError):
    """The request cannot be met as it is; the message says why, and what would help."""

    status: ClassVar[int] = 400
    code: ClassVar[str] = "refused"

    def show(self) -> dict[str, Any]:
        """Return it as the API answers it."""
        return {"error": {"code": self.code, "message": str(self)}}


class BadField(Refusal):
    """A field is missing, unknown, or has a value it cannot have."""

    code = "bad_field"

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.field = field

    def show(self) -> dict[str, Any]:
        """Return it with the name of the field; empty where it is the whole body."""
        return {"error": {"code": self.code, "field": self.field, "message": str(self)}}


class NotKnown(Refusal):
    """The user's token is missing, or nobody's."""

    status = 401
    code = "unknown_token"


class Forged(Refusal):
    """A form does not come from the cabinet's own pages."""

    status = 403
    code = "forged"


class Missing(Refusal):
    """The user owns no such thing; whether somebody else does is not told."""

    status = 404
    code = "not_found"


class Conflict(Refusal):
    """The thing is in no state for it."""

    status = 409
    code = "conflict"


class TooLarge(Refusal):
    """The request's body is larger than any sensible one."""

    status = 413
    code = "too_large"


class Full(Refusal):
    """There are as many as there may be."""

    status = 409
    code = "limit_reached"
