"""The demo's handlers: a shop that takes payments, watches its code, talks in a channel and files reports.

Every effect is a row of `demo.effect` with the id its sender gave the event, so that the demo can count them.
"""

import os
import time
import uuid
from pathlib import Path

from boathook import Boathook, Dead, Event, Ignore, Retry, RetryPolicy, Transaction
from boathook.handlers.transaction import SyncTransaction

APPLICATION = "shop"
MAILBOX = "BOATHOOK_DEMO_MAILBOX"
"""The environment variable that names the file which made-up mails go to; without it they go nowhere."""
QUICK = RetryPolicy(first_s=0.5, factor=2.0, longest_s=2.0, max_attempts=4)

RECORD = "insert into demo.effect (event_id, event_key, handler, attempt) values ($1, $2, $3, $4)"
KEEP = """
    insert into demo.latest (thing, state) values ($1, $2)
    on conflict (thing) do update set state = excluded.state, changes = latest.changes + 1
"""
EDIT = {"body": {"event.subtype": "message_changed"}}
"""What Slack tells when somebody has changed a message."""

hook = Boathook()


@hook.on("stripe", "payment_intent.succeeded", retry=QUICK)
async def book_payment(event: Event, tx: Transaction) -> None:
    """Book a payment, and publish what follows from it in the same transaction."""
    await tx.execute(RECORD, event.id, event.dedup_key, "book_payment", event.attempt)
    await hook.publish(tx, application=APPLICATION, type="order.paid", payload={"payment": event.json["id"]})


@hook.on(None, "order.paid", application=APPLICATION, retry=QUICK)
async def ship_order(event: Event, tx: Transaction) -> None:
    """Take the event that `book_payment` published."""
    await tx.execute(RECORD, event.id, event.json["payment"], "ship_order", event.attempt)


@hook.on("stripe", "customer.subscription.updated", order_by="data.object.id", retry=QUICK)
async def follow_subscription(event: Event, tx: Transaction) -> Ignore | None:
    """Keep the newest plan, whatever order the updates come in."""
    subscription = event.json["data"]["object"]
    if not await tx.newer("subscription", subscription["id"], event.json["created"]):
        return Ignore("older than what we have")
    await tx.execute(KEEP, subscription["id"], subscription["plan"])
    await tx.execute(RECORD, event.id, event.dedup_key, "follow_subscription", event.attempt)
    return None


@hook.on("stripe", "invoice.payment_failed", retry=QUICK)
async def remind(event: Event, tx: Transaction) -> None:
    """Fail twice, then work; the mail is sent by the first attempt only."""
    await event.once("reminder", send_mail, event.dedup_key)
    await tx.execute(RECORD, event.id, event.dedup_key, "remind", event.attempt)
    if event.attempt < 3:
        raise ConnectionError("the bank does not answer")


@hook.on("stripe", "charge.dispute.created", retry=RetryPolicy(delays_s=(0.5, 1.0)))
async def answer_dispute(event: Event, tx: Transaction) -> None:
    """Never work, so that there is a dead letter to look at."""
    await tx.execute(RECORD, event.id, event.dedup_key, "answer_dispute", event.attempt)
    raise LookupError(f"no lawyer found for {event.json['data']['object']['id']}")


@hook.on("github", "push", retry=QUICK)
def note_change(event: Event, tx: SyncTransaction) -> None:
    """Work in a thread, as code that blocks must."""
    time.sleep(0.002)
    tx.execute(RECORD, event.id, event.dedup_key, "note_change", event.attempt)


@hook.on("github", "issues.*", order_by="issue.id", retry=QUICK)
async def follow_issue(event: Event, tx: Transaction) -> Ignore | None:
    """Keep the newest state of an issue: GitHub promises no order."""
    issue = event.json["issue"]
    if not await tx.newer("issue", issue["id"], issue["updated_at"]):
        return Ignore("older than what we have")
    await tx.execute(KEEP, f"issue {issue['id']}", issue["state"])
    await tx.execute(RECORD, event.id, event.dedup_key, "follow_issue", event.attempt)
    return None


@hook.on("github", "ping")
async def greet(_event: Event, _tx: Transaction) -> Ignore:
    """Ignore what needs no effect, and say why."""
    return Ignore("a ping needs no effect")


@hook.on("slack", "message", "app_mention", order_by="event.channel", filter={"not": EDIT}, retry=QUICK)
async def reply(event: Event, tx: Transaction) -> Retry | None:
    """Answer a channel's messages in their order; come back later where that is asked for."""
    await tx.execute(RECORD, event.id, event.dedup_key, "reply", event.attempt)
    if event.json["event"].get("is_busy") and event.attempt == 1:
        return Retry(after=0.4, code="CHANNEL_BUSY")
    return None


@hook.on("slack", "message", order_by="event.message.ts", filter=EDIT, retry=QUICK)
async def follow_message(event: Event, tx: Transaction) -> Ignore | None:
    """Keep the newest text of a message, whatever order its edits are told in."""
    told = event.json["event"]
    place = f"{told['channel']} {told['message']['ts']}"
    if not await tx.newer("message", place, told["event_ts"]):
        return Ignore("older than what we have")
    await tx.execute(KEEP, f"message {place}", told["message"]["text"])
    await tx.execute(RECORD, event.id, event.dedup_key, "follow_message", event.attempt)
    return None


@hook.on("reports", "report.*", retry=QUICK)
async def file_report(event: Event, tx: Transaction) -> Dead | None:
    """File a report; a retry cannot fix one without pages."""
    await tx.execute(RECORD, event.id, event.dedup_key, "file_report", event.attempt)
    if not event.json["data"]["pages"]:
        return Dead("EMPTY_REPORT", "the report has no pages")
    return None


def send_mail(subject: str) -> str:
    """Pretend to send a mail by writing one line to the mailbox, and return the message's id."""
    message_id = str(uuid.uuid4())
    if mailbox := os.environ.get(MAILBOX):
        with Path(mailbox).open("a", encoding="utf-8") as file:
            file.write(f"{subject} {message_id}\n")
    return message_id
