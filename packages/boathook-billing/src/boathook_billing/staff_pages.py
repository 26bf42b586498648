"""The support page: finds a payment, shows its history, and offers the actions of the commands on it."""

from decimal import Decimal
from pathlib import Path
from typing import Annotated, Final

from pydantic import BaseModel, Field, StringConstraints
from starlette.responses import Response

from boathook import BoathookError
from boathook_billing import operator_actions
from boathook_billing.app import gettext, hook, languages
from boathook_pages import PageRequest, Pages, Refusal
from boathook_pages.languages import gettext_noop
from boathook_pages.sign_in import SignIn, User

MOUNT: Final = "/billing/staff"
ROLE: Final = "support"
ROWS: Final = 50
Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=500)]

sign_in: SignIn[User] = SignIn(hook, prefix="staff_", roles=(ROLE,))
pages = Pages(
    hook,
    MOUNT,
    title=gettext_noop("Payments"),
    folder=Path(__file__).parent,
    languages=languages,
    sign_in=sign_in,
)
pages.nav("/", gettext_noop("Payments"), role=ROLE)

NAMES: Final = {
    "RECEIVED": gettext_noop("received"), "FAILED": gettext_noop("failed"), "SUCCEEDED": gettext_noop("paid"),
    "REFUNDED": gettext_noop("refunded"), "PENDING": gettext_noop("pending"), "DONE": gettext_noop("issued"),
    "ACTIVE": gettext_noop("active"), "CANCELED": gettext_noop("canceled"), "INACTIVE": gettext_noop("inactive"),
    "sale": gettext_noop("sale"), "refund": gettext_noop("refund"), "linked": gettext_noop("linked"),
    "refunded": gettext_noop("refund noted"), "reissued": gettext_noop("receipt issued again"),
    "note": gettext_noop("note"), "USER_MISSING": gettext_noop("waits for its user"),
    "UNLINKED_PAYMENT": gettext_noop("names no user"), "AMOUNT_MISMATCH": gettext_noop("wrong amount"),
    "PLAN_UNKNOWN": gettext_noop("unknown plan"), "pending": gettext_noop("pending"),
    "leased": gettext_noop("in progress"), "dead": gettext_noop("failed"), "succeeded": gettext_noop("succeeded"),
    "ignored": gettext_noop("ignored"),
}  # fmt: skip
"""Statuses, problems and actions in words."""


class LinkForm(BaseModel):
    """Links a payment to a user, who is created if that is wanted."""

    email: Text
    create: str = ""


class RefundForm(BaseModel):
    """Notes a refund; without an amount, of all."""

    note: Text
    amount: Annotated[Decimal, Field(gt=0, allow_inf_nan=False)] | None = None


class NoteForm(BaseModel):
    """A note on a payment."""

    note: Text


@pages.values
def words() -> dict[str, object]:
    """Return the function with which templates show a status."""
    return {"shown": lambda word: gettext(NAMES[word]) if word in NAMES else word}


@pages.get("/", role=ROLE)
async def find(request: PageRequest) -> Response:
    """Find payments by e-mail or id, or list the newest."""
    text, is_waiting = request.query.get("q", "").strip(), request.query.get("waiting") == "yes"
    rows = await operator_actions.find_payments(request.tx, text, is_waiting=is_waiting, limit=ROWS)
    return request.page("payments.html", rows=rows, q=text, is_waiting=is_waiting, limit=ROWS)


@pages.get("/payments/{id:id}", role=ROLE)
async def show(request: PageRequest) -> Response:
    """Show a payment with its events, deliveries, receipts and changes."""
    history = await operator_actions.history(request.tx, request.path["id"])
    if history is None:
        raise Refusal(gettext("There is no such payment."), status=404)
    return request.page("payment.html", **history)


@pages.post("/payments/{id:id}/link", role=ROLE)
async def link(request: PageRequest) -> Response:
    """Link a payment to a user; one that waits is applied."""
    form, id = request.read(LinkForm), request.path["id"]
    try:
        if form.create:
            await operator_actions.add_user(request.tx, form.email)
        row = await operator_actions.link(request.tx, id, form.email, author=request.user.name)
    except BoathookError as error:
        raise Refusal(str(error)) from None
    return request.redirect(f"/payments/{id}", operator_actions.describe_link(row))


@pages.post("/payments/{id:id}/refund", role=ROLE)
async def refund(request: PageRequest) -> Response:
    """Note a refund that the provider does not report."""
    fields = {"note": request.field("note"), "amount": request.field("amount").replace(",", ".").strip() or None}
    form, id = request.read(RefundForm, fields), request.path["id"]
    try:
        await operator_actions.refund(request.tx, id, form.note, amount=form.amount, author=request.user.name)
    except BoathookError as error:
        raise Refusal(str(error)) from None
    return request.redirect(f"/payments/{id}", gettext("The refund is noted."))


@pages.post("/payments/{id:id}/note", role=ROLE)
async def note(request: PageRequest) -> Response:
    """Add a note to a payment."""
    form, id = request.read(NoteForm), request.path["id"]
    try:
        await operator_actions.add_note(request.tx, id, form.note, author=request.user.name)
    except BoathookError as error:
        raise Refusal(str(error), status=404) from None
    return request.redirect(f"/payments/{id}", gettext("The note is saved."))


@pages.post("/payments/{id:id}/receipts/{receipt:id}/reissue", role=ROLE)
async def reissue(request: PageRequest) -> Response:
    """Issue a failed receipt again."""
    try:
        await operator_actions.reissue_receipt(request.tx, request.path["receipt"], author=request.user.name)
    except BoathookError as error:
        raise Refusal(str(error), status=409) from None
    return request.redirect(f"/payments/{request.path['id']}", gettext("The receipt is issued again."))


pages.mount()
