"""What users may ask for: the bodies of requests, checked before anything else looks at them."""

import unicodedata
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, TypeVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from boathook.apps.cashdesk.entities import Entity
from boathook.apps.cashdesk.refusals import BadField

_LARGEST_ID: Final = 2**63 - 1
_JOINERS: Final = "\N{ZERO WIDTH JOINER}\N{ZERO WIDTH NON-JOINER}"


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("it must not hold control characters")
    return text


def _readable(text: str) -> str:
    # PostgreSQL stores no NUL, and control characters have no place on a receipt; the joiners are part of words.
    if not all(char.isprintable() or char in _JOINERS or unicodedata.category(char) == "Zs" for char in text):
        raise ValueError("it must not hold control characters")
    return text


def _without_password(url: str) -> str:
    # Addresses are shown and kept as they are written, which is no way to keep a password.
    if "@" in urlsplit(url).netloc:
        raise ValueError("write it without a user name and password; requests are signed instead")
    return url


Text = Annotated[str, StringConstraints(min_length=1, max_length=200), AfterValidator(_readable)]
Amount = Annotated[int, Field(ge=0, le=10**10)]
"""Money in minor units."""
Id = Annotated[int, Field(ge=1, le=_LARGEST_ID)]


class Form(BaseModel):
    """A body: exactly these fields, with values of exactly these kinds."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class ProductForm(Form):
    """A thing for sale."""

    name: Text
    price: Amount
    vat: Literal["none", "0", "10", "20"] = "none"
    barcode: Text | None = None


class DeviceForm(Form):
    """A cash register."""

    serial: Text
    model: Text
    name: Text


class ShiftForm(Form):
    """A cashier's time at a device."""

    device_id: Id
    cashier: Text


class ShiftChange(Form):
    """What can be said anew of a shift."""

    cashier: Text


class ItemForm(Form):
    """A line of a receipt."""

    product_id: Id
    quantity: Annotated[int, Field(ge=1, le=10_000)]


class ReceiptForm(Form):
    """A sale or its return, to be recorded by the fiscal drive."""

    shift_id: Id
    items: Annotated[list[ItemForm], Field(min_length=1, max_length=200)]
    kind: Literal["sale", "refund"] = "sale"
    payment: Literal["cash", "card"] = "cash"
    external_id: Text | None = None
    """The shop's own number; asking twice with the same one makes one receipt."""


class EncashmentForm(Form):
    """Money brought to a drawer or taken from it."""

    shift_id: Id
    kind: Literal["deposit", "withdrawal"]
    amount: Annotated[Amount, Field(gt=0)]
    comment: Annotated[str, StringConstraints(max_length=200), AfterValidator(_readable)] = ""


class EncashmentChange(Form):
    """What can be said anew of an encashment."""

    amount: Annotated[Amount, Field(gt=0)]
    comment: Annotated[str, StringConstraints(max_length=200), AfterValidator(_readable)]


class TypesForm(Form):
    """Which kinds of objects a webhook is about; what is left out is not wanted."""

    products: bool = False
    receipts: bool = False
    shifts: bool = False
    encashments: bool = False
    devices: bool = False
    operations: bool = False

    def wanted(self) -> dict[Entity, bool]:
        """Return it by kind."""
        return {entity: getattr(self, entity) for entity in Entity}


class WebhookForm(Form):
    """Where a user wants to hear of what, and whether."""

    url: Annotated[
        str,
        StringConstraints(min_length=1, max_length=2_000),
        AfterValidator(_printable),
        AfterValidator(_without_password),
    ]
    types: TypesForm
    active: bool = True


class ReplayForm(Form):
    """What shall be sent again."""

    delivery: Annotated[str, StringConstraints(min_length=1, max_length=100), AfterValidator(_printable)]


Anyform = TypeVar("Anyform", bound=Form)


def read(form: type[Anyform], document: bytes | Mapping[str, Any]) -> Anyform:
    """Return what a body holds: JSON text, or the object it holds.

    Raises:
        BadField: it is not what *form* says; the message names the first field that is wrong.
    """
    try:
        if isinstance(document, bytes):
            return form.model_validate_json(document)
        return form.model_validate(dict(document))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        raise BadField(".".join(map(str, first["loc"])), _words(first["type"], first["msg"])) from None


def _words(kind: str, message: str) -> str:
    match kind:
        case "extra_forbidden":
            return "there is no such field"
        case "missing":
            return "this field is required"
        case _:
            return message.removeprefix("Value error, ")
