"""The commands: ``boathook billing ...``."""

import sys
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from boathook import BoathookError
from boathook_app_tools import simulation
from boathook_app_tools.import_commands import add_import, add_views
from boathook_app_tools.terminal import Json, ask, print_json, print_rows, say
from boathook_billing import operator_actions, owner_tables, sending
from boathook_billing.app import gettext, hook, languages, settings
from boathook_billing.payload import Status
from boathook_billing.rules import Problem
from boathook_billing.staff_pages import sign_in

_PAYMENT_COLUMNS: Final = ("id", "external_payment_id", "status", "problem", "email", "amount", "currency", "plan_id")

_RECEIPT_COLUMNS: Final = ("id", "external_payment_id", "kind", "amount", "state", "error", "created_at")


class ReceiptState(StrEnum):
    """The state of a receipt."""

    PENDING = "PENDING"
    DONE = "DONE"
    FAILED = "FAILED"


app = typer.Typer(no_args_is_help=True, help="Subscription payments.")
users = typer.Typer(no_args_is_help=True, help="Who can have a subscription.")
app.add_typer(users, name="users")
receipts_group = typer.Typer(no_args_is_help=True, help="Receipts of payments and refunds.")
app.add_typer(receipts_group, name="receipts")
app.add_typer(sign_in.commands(), name="staff")
hook.commands(app)
add_import(hook, app, owner_tables.IMPORT)
add_views(hook, app, owner_tables.VIEWS)


@users.command("add", epilog="Example: boathook billing users add anna@example.com")
def add_user(
    email: Annotated[str, typer.Argument(metavar="EMAIL", help="Must be unique; capitals do not count.")],
    as_json: Json = False,
) -> None:
    """Add a user; payments that wait for this e-mail are applied immediately."""
    row = ask(hook, lambda tx: operator_actions.add_user(tx, email))
    if as_json:
        print_json(row)
        return
    say(operator_actions.describe_user(row))


@users.command("list", epilog="Example: boathook billing users list --json")
def list_users(as_json: Json = False) -> None:
    """List users, oldest first."""
    print_rows(ask(hook, operator_actions.list_users), as_json=as_json)


@app.command("subscriptions", epilog="Example: boathook billing subscriptions --json")
def list_subscriptions(as_json: Json = False) -> None:
    """List each user's subscription: its status, its end, and how many payments were applied and not refunded."""
    print_rows(ask(hook, operator_actions.list_subscriptions), as_json=as_json)


@app.command("payments", epilog="Example: boathook billing payments --waiting")
def list_payments(
    status: Annotated[Status | None, typer.Option(help="Only with this status.")] = None,
    problem: Annotated[Problem | None, typer.Option(help="Only those not applied because of this.")] = None,
    waiting: Annotated[bool, typer.Option("--waiting", help="Only those that wait for their user.")] = False,
    limit: Annotated[int, typer.Option(min=0, max=1_000_000_000, help="Maximum rows; 0 for all.")] = 0,
    as_json: Json = False,
) -> None:
    """List payments, newest first."""
    rows = ask(
        hook,
        lambda tx: operator_actions.list_payments(tx, status=status, problem=problem, is_waiting=waiting, limit=limit),
    )
    print_rows(rows, as_json=as_json, columns=_PAYMENT_COLUMNS)


@app.command("plans", epilog="Example: boathook billing plans")
def list_plans(as_json: Json = False) -> None:
    """List the plans with which payments are compared."""
    print_rows(ask(hook, operator_actions.list_plans), as_json=as_json)


@app.command(
    "link",
    epilog="Example: boathook billing link pay_4711 anna@example.com\n\n"
    "Example: boathook billing link 17 anna@example.com",
)
def link(
    payment: Annotated[
        str, typer.Argument(metavar="PAYMENT", help="The provider's id, provider/id, or the number it is listed with.")
    ],
    email: Annotated[str, typer.Argument(metavar="EMAIL", help="The user it belongs to.")],
    as_json: Json = False,
) -> None:
    """Link a payment to a user; if it waited for that, it is applied immediately."""
    row = ask(hook, lambda tx: operator_actions.link(tx, payment, email))
    if as_json:
        print_json(row)
        return
    say(operator_actions.describe_link(row))


@app.command("refund", epilog="Example: boathook billing refund pay_4711 --note 'by bank transfer'")
def refund(
    payment: Annotated[str, typer.Argument(metavar="PAYMENT", help="As for `link`.")],
    note: Annotated[str, typer.Option(help="Why.")],
    amount: Annotated[str | None, typer.Option(help="Less than all of it, such as 100.50.")] = None,
    as_json: Json = False,
) -> None:
    """Note a refund that the provider does not report; it is handled like one that it does."""
    row = ask(hook, lambda tx: operator_actions.refund(tx, payment, note, amount=_money(amount)))
    if as_json:
        print_json(row)
        return
    say(gettext("payment %(payment)s is being refunded", payment=row["external_payment_id"]))


def _money(text: str | None) -> Decimal | None:
    try:
        amount = None if text is None else Decimal(text.replace(",", "."))
    except InvalidOperation:
        amount = Decimal(0)
    if amount is not None and not (amount.is_finite() and amount > 0):
        raise BoathookError(gettext("amount: %(text)s is not an amount of money, such as 100.50", text=text))
    return amount


@app.command("cancel", epilog="Example: boathook billing cancel anna@example.com")
def cancel(email: Annotated[str, typer.Argument(metavar="EMAIL", help="Whose.")], as_json: Json = False) -> None:
    """Cancel a subscription; it lasts until its period ends."""
    row = ask(hook, lambda tx: operator_actions.cancel(tx, email))
    if as_json:
        print_json(row)
        return
    end = languages.format_time(row["current_period_end"])
    say(gettext("%(email)s: canceled, and valid until %(end)s", email=row["email"], end=end))


@receipts_group.command("list", epilog="Example: boathook billing receipts list --state FAILED")
def list_receipts(
    state: Annotated[ReceiptState | None, typer.Option(help="Only in this state.")] = None,
    limit: Annotated[int, typer.Option(min=0, max=1_000_000_000, help="Maximum rows; 0 for all.")] = 0,
    as_json: Json = False,
) -> None:
    """List the receipts of payments and refunds, newest first."""
    rows = ask(hook, lambda tx: operator_actions.list_receipts(tx, state=state, limit=limit))
    print_rows(rows, as_json=as_json, columns=_RECEIPT_COLUMNS)


@receipts_group.command("reissue", epilog="Example: boathook billing receipts reissue 17")
def reissue_receipt(
    receipt: Annotated[int, typer.Argument(metavar="ID", min=1, help="The number it is listed with.")],
    as_json: Json = False,
) -> None:
    """Issue a failed receipt again, under a new external id."""
    row = ask(hook, lambda tx: operator_actions.reissue_receipt(tx, receipt))
    if as_json:
        print_json(row)
        return
    say(gettext("receipt %(id)s is issued again as %(external_id)s", id=row["id"], external_id=row["external_id"]))


@app.command("alerts", epilog="Example: boathook billing alerts > /etc/prometheus/rules/billing.yml")
def print_alerts() -> None:
    """Print the alert rules for Prometheus."""
    sys.stdout.write(Path(__file__).with_name("alerts.yml").read_text(encoding="utf-8"))


@app.command("simulate", epilog="Example: boathook billing simulate --url http://127.0.0.1:8080 --count 100")
def simulate(
    url: simulation.Url = simulation.HERE,
    count: Annotated[int, typer.Option(min=1, max=100_000, help="How many payments to make up.")] = 100,
    seed: simulation.Seed = None,
    wait: simulation.Wait = simulation.WAIT_S,
    as_json: Json = False,
) -> None:
    """Send simulated payments, signed with the configured secret, add their users, and check the results."""
    result = hook.run(sending.simulate(url, settings(), count=count, seed=seed, wait_s=wait))
    simulation.finish(result, as_json=as_json)
