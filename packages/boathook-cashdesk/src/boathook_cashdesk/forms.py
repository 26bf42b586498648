"""The bodies of requests, validated before they are used."""

import unicodedata
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    model_validator,
)

from boathook_cashdesk.app import gettext, languages
from boathook_pages import BadField, read_model
from boathook_pages.languages import gettext_noop

_MAX_ID: Final = 2**63 - 1
_JOINERS: Final = "\N{ZERO WIDTH JOINER}\N{ZERO WIDTH NON-JOINER}"


_CONTROL: Final = gettext_noop("it must not contain control characters")


def _readable(text: str) -> str:
    # PostgreSQL stores no NUL, and control characters do not belong on a receipt; zero-width joiners are parts of
    # words.
    if not all(char.isprintable() or char in _JOINERS or unicodedata.category(char) == "Zs" for char in text):
        raise ValueError(_CONTROL)
    return text


Text = Annotated[str, StringConstraints(min_length=1, max_length=200), AfterValidator(_readable)]
Amount = Annotated[int, Field(ge=0, le=10**10)]
"""Money in minor units."""
Vat = Literal["none", "0", "5", "7", "10", "20", "22"]
TaxMode = Literal["DEFAULT", "SIMPLE", "SIMPLE_WO", "ENVD", "AGRICULT", "PATENT"]
"""Dreamkas' names of the tax systems."""
Id = Annotated[int, Field(ge=1, le=_MAX_ID)]


class Form(BaseModel):
    """A body: exactly these fields, with values of exactly these types."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class ProductForm(Form):
    """A product."""

    name: Text
    price: Amount
    vat: Vat = "none"
    barcode: Text | None = None


class DeviceForm(Form):
    """A cash register."""

    serial: Text
    model: Text
    name: Text


class ShiftForm(Form):
    """A cashier's shift at a device."""

    device_id: Id
    cashier: Text


class ShiftChange(Form):
    """The fields of a shift that can be changed."""

    cashier: Text


class TagForm(Form):
    """A field of the fiscal document by its number, such as 1212, what is paid for, and 1214, how."""

    tag: Annotated[int, Field(ge=1000, le=9999)]
    value: Annotated[int, Field(ge=0, le=10**12)] | Text


Tags = Annotated[list[TagForm], Field(max_length=20)]


class ItemForm(Form):
    """A line of a receipt: of a product, or with the name and the price of what is not among the products.

    A field that is given replaces the product's.
    """

    product_id: Id | None = None
    name: Text | None = None
    price: Amount | None = None
    vat: Vat | None = None
    quantity: Annotated[int, Field(ge=1, le=10_000)]
    tags: Tags | None = None

    def given(self) -> dict[str, Any]:
        """Return the fields that are not left to the product."""
        return self.model_dump(exclude_none=True)


class PositionForm(Form):
    """A line of a receipt in Dreamkas' request; its tax is computed from the rate, not from `taxSum`."""

    name: Text
    type: Literal["COUNTABLE", "SERVICE"] = "COUNTABLE"
    quantity: Annotated[int, Field(ge=1, le=10_000)]
    """In pieces."""
    price: Amount
    priceSum: Amount | None = None  # noqa: N815 Dreamkas' name
    tax: Literal["NDS_NO_TAX", "NDS_0", "NDS_5", "NDS_7", "NDS_10", "NDS_20", "NDS_22"] = "NDS_NO_TAX"
    taxSum: Amount | None = None  # noqa: N815
    tags: Tags | None = None


class PaymentForm(Form):
    """How a receipt is paid, in Dreamkas' request."""

    sum: Amount
    type: Literal["CASH", "CASHLESS"]


class TotalForm(Form):
    """The total of a receipt in Dreamkas' request."""

    priceSum: Amount  # noqa: N815 Dreamkas' name


class AttributesForm(Form):
    """The customer of a receipt in Dreamkas' request."""

    email: Text | None = None
    phone: Text | None = None


class DreamkasReceiptForm(Form):
    """A receipt as Dreamkas' clients request it; `timeout` has no meaning here."""

    externalId: Text | None = None  # noqa: N815 Dreamkas' name
    deviceId: Id  # noqa: N815
    type: Literal["SALE", "REFUND"]
    timeout: int | None = None
    taxMode: TaxMode | None = None  # noqa: N815
    positions: Annotated[list[PositionForm], Field(min_length=1, max_length=200)]
    payments: Annotated[list[PaymentForm], Field(min_length=1, max_length=1)]
    attributes: AttributesForm = AttributesForm()
    total: TotalForm

    def as_receipt(self) -> dict[str, Any]:
        """Return the fields of `ReceiptForm`. Raises BadField if a sum is not that of its parts."""
        total = 0
        for index, position in enumerate(self.positions):
            price_sum = position.price * position.quantity
            if position.priceSum not in (None, price_sum):
                raise BadField(f"positions.{index}.priceSum", gettext("price times quantity is %(sum)s", sum=price_sum))
            total += price_sum
        if self.total.priceSum != total:
            raise BadField("total.priceSum", gettext("the positions cost %(sum)s", sum=total))
        if self.payments[0].sum != total:
            raise BadField("payments.0.sum", gettext("the positions cost %(sum)s", sum=total))
        return {
            "device_id": self.deviceId,
            "external_id": self.externalId,
            "kind": self.type.lower(),
            "payment": _PAYMENTS[self.payments[0].type],
            "tax_mode": self.taxMode,
            **self.attributes.model_dump(),
            "items": [
                {
                    "name": sold.name,
                    "price": sold.price,
                    "quantity": sold.quantity,
                    "vat": _VATS[sold.tax],
                    "tags": sold.tags and [tag.model_dump() for tag in sold.tags],
                }
                for sold in self.positions
            ],
        }


_PAYMENTS: Final = {"CASH": "cash", "CASHLESS": "card"}
_VATS: Final = {"NDS_NO_TAX": "none", **{f"NDS_{rate}": rate for rate in ("0", "5", "7", "10", "20", "22")}}


class ReceiptForm(Form):
    """A sale or a refund, to be recorded by the fiscal drive; a body with ``positions`` is a `DreamkasReceiptForm`."""

    shift_id: Id | None = None
    device_id: Id | None = None
    """Instead of the shift: the device, whose open shift it is."""
    items: Annotated[list[ItemForm], Field(min_length=1, max_length=200)]
    kind: Literal["sale", "refund"] = "sale"
    payment: Literal["cash", "card"] = "cash"
    external_id: Text | None = None
    """The shop's own number; repeated requests with the same number create one receipt."""
    tax_mode: TaxMode | None = None
    email: Text | None = None
    """The customer's, to whom the receipt is sent; so is `phone`."""
    phone: Text | None = None

    @model_validator(mode="before")
    @classmethod
    def _read_positions(cls, document: Any) -> Any:
        if isinstance(document, Mapping) and "positions" in document:
            return read(DreamkasReceiptForm, document).as_receipt()
        return document


class EncashmentForm(Form):
    """Cash deposited to a drawer or withdrawn from it."""

    shift_id: Id
    kind: Literal["deposit", "withdrawal"]
    amount: Annotated[Amount, Field(gt=0)]
    comment: Annotated[str, StringConstraints(max_length=200), AfterValidator(_readable)] = ""


class EncashmentChange(Form):
    """The fields of an encashment that can be changed."""

    amount: Annotated[Amount, Field(gt=0)]
    comment: Annotated[str, StringConstraints(max_length=200), AfterValidator(_readable)]


AnyForm = TypeVar("AnyForm", bound=Form)


def read(form: type[AnyForm], document: bytes | Mapping[str, Any]) -> AnyForm:
    """Parse a body, given as JSON text or as an object. Raises InvalidForm, in the current language."""
    return read_model(form, document, languages)
