"""The form of a webhook, for bodies of the API and for pages."""

from collections.abc import Iterable
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

from pydantic import AfterValidator, AliasChoices, BaseModel, ConfigDict, Field, StringConstraints, create_model

from boathook_pages.languages import gettext_noop

_STRICT: Final = ConfigDict(extra="forbid", strict=True, frozen=True)
_CONTROL: Final = gettext_noop("it must not contain control characters")
_PASSWORD: Final = gettext_noop("write it without a user name and password; requests are signed instead")
_NEVER: Final = gettext_noop("there are no such events here; leave it out or write false")


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError(_CONTROL)
    return text


def _without_password(url: str) -> str:
    # URLs are stored and shown in plain text, so they must not contain a password.
    if "@" in urlsplit(url).netloc:
        raise ValueError(_PASSWORD)
    return url


def _never(is_wanted: bool) -> bool:
    if is_wanted:
        raise ValueError(_NEVER)
    return is_wanted


class WebhookFields(BaseModel):
    """The fields of a webhook besides its kinds of events."""

    model_config = _STRICT

    url: Annotated[
        str,
        StringConstraints(min_length=1, max_length=2_000),
        AfterValidator(_printable),
        AfterValidator(_without_password),
    ]
    is_active: Annotated[bool, Field(validation_alias=AliasChoices("isActive", "active"))] = True
    """Its name is ``isActive``; ``active`` is accepted too."""


class ReplayForm(BaseModel):
    """The delivery to replay."""

    model_config = _STRICT

    delivery: Annotated[str, StringConstraints(min_length=1, max_length=100), AfterValidator(_printable)]


def make_form(kinds: Iterable[str], never: Iterable[str]) -> type[Any]:
    """Return the model of a webhook that selects some of *kinds*; names in *never* may only be false."""
    fields: dict[str, Any] = dict.fromkeys(kinds, (bool, False))
    fields |= dict.fromkeys(never, (Annotated[bool, AfterValidator(_never)], False))
    types = create_model("Types", __config__=_STRICT, **fields)
    return create_model("WebhookForm", __base__=WebhookFields, types=(types, ...))
