"""The errors that pages of apps show to their users."""

from collections.abc import Mapping

from boathook.domain.errors import BoathookError


class Refusal(BoathookError):
    """The request is refused; the message says why, in the user's language.

    Args:
        message: one sentence, or more.
        status: the status of the response; subclasses may have another default.
        code: the code in the response of an API; the same.
    """

    status: int = 400
    code: str = "refused"

    def __init__(self, message: str, *, status: int | None = None, code: str | None = None) -> None:
        super().__init__(message)
        if status is not None:
            self.status = status
        if code is not None:
            self.code = code


class InvalidForm(Refusal):
    """A form or a body with invalid values.

    Args:
        problems: the error of each field, by its dotted path; one of the whole body has the empty path.
    """

    code = "bad_field"

    def __init__(self, problems: Mapping[str, str]) -> None:
        field, text = next(iter(problems.items()))
        super().__init__(f"{field}: {text}" if field else text)
        self.problems = dict(problems)

    @property
    def field(self) -> str:
        """The first invalid field."""
        return next(iter(self.problems))

    def within(self, place: str) -> "InvalidForm":
        """Return it for the same fields of an object that is the field *place*; an empty place changes nothing."""
        return InvalidForm({".".join(filter(None, (place, field))): text for field, text in self.problems.items()})


class BadField(InvalidForm):
    """A field has a value that only the app's data shows to be invalid."""

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


class SignInRequired(Exception):
    """The page needs a user, and the browser has no valid session."""
