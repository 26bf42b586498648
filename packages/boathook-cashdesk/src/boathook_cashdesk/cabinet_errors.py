"""The cabinet's errors, each with its HTTP status and code."""

from boathook.pages import InvalidForm, Refusal


class BadField(InvalidForm):
    """A field has a value that only the cabinet's data shows to be invalid."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__({field: message})


class Missing(Refusal):
    """The user has no such object; whether another user has it is not revealed."""

    status = 404
    code = "not_found"


class Conflict(Refusal):
    """The object's state does not allow the action."""

    status = 409
    code = "conflict"


class LimitReached(Refusal):
    """A limit on the number of objects is reached."""

    status = 409
    code = "limit_reached"
