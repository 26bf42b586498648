"""The demo's handlers: a shop with payments, code changes, chat messages and reports.

Every effect is a row of `demo.effect` with the event's id at its sender, so that the demo can count effects.
"""

import os
import time
import uuid
from pathlib import Path

from boathook import Boathook, Dead, Event, Ignore, Retry, RetryPolicy, Transaction
from boathook.handlers.transaction import SyncTransaction

APPLICATION = "shop"
MAILBOX = "BOATHOOK_DEMO_MAILBOX"
"""The environment variable with the path of the mailbox file; without it no e-mails are written."""
QUICK = RetryPolicy(first_s=0.5, factor=2.0, max_delay_s=2.0, max_attempts=4)

RECORD = "insert into demo.effect (event_id, event_key, handler, attempt) values ($1, $2, $3, $4)"
KEEP = """
    insert into demo.latest (thing, state) values ($1, $2)
    on conflict (thing) do update set state = excluded.state, changes = latest.changes + 1
"""
EDIT = {"body": {"event.subtype": "message_changed"}}
"""Filter for Slack's events about an edited message."""

hook = Boathook()


@hook.on("stripe", "payment_intent.succeeded", retry=QUICK)
async def book_payment(event: Event, tx: Transaction) -> None:
    """Record a payment, and publish a follow-up event in the same transaction."""
    await tx.execute(RECORD, event.id, event.dedup_key, "book_payment", event.attempt)
    await hook.publish(tx, application=APPLICATION, type="order.paid", payload={"payment": event.json["id"]})


@hook.on(None, "order.paid", application=APPLICATION, retry=QUICK)
async def ship_order(event: Event, tx: Transaction) -> None:
    """Handle the event that `book_payment` published."""
    await tx.execute(RECORD, event.id, event.json["payment"], "ship_order", event.attempt)


@hook.on("stripe", "customer.subscription.updated", order_by="data.object.id", retry=QUICK)
async def follow_subscription(event: Event, tx: Transaction) -> Ignore | None:
    """Keep the newest plan, in whatever order the updates arrive."""
    subscription = event.json["data"]["object"]
    if not await tx.newer("subscription", subscription["id"], event.json["created"]):
        return Ignore("older than what we have")
    await tx.execute(KEEP, subscription["id"], subscription["plan"])
    await tx.execute(RECORD, event.id, event.dedup_key, "follow_subscription", event.attempt)
    return None


@hook.on("stripe", "invoice.payment_failed", retry=QUICK)
async def remind(event: Event, tx: Transaction) -> None:
    """Fail twice, then succeed; only the first attempt sends the e-mail."""
    await event.once("reminder", send_mail, event.dedup_key)
    await tx.execute(RECORD, event.id, event.dedup_key, "remind", event.attempt)
    if event.attempt < 3:
        raise ConnectionError("the bank does not answer")


@hook.on("stripe", "charge.dispute.created", retry=RetryPolicy(delays_s=(0.5, 1.0)))
async def answer_dispute(event: Event, tx: Transaction) -> None:
    """Always fail, so that there is a dead letter to inspect."""
    await tx.execute(RECORD, event.id, event.dedup_key, "answer_dispute", event.attempt)
    raise LookupError(f"no lawyer found for {event.json['data']['object']['id']}")


@hook.on("github", "push", retry=QUICK)
def note_change(event: Event, tx: SyncTransaction) -> None:
    """Run in a thread, as blocking code must."""
    time.sleep(0.002)
    tx.execute(RECORD, event.id, event.dedup_key, "note_change", event.attempt)


@hook.on("github", "issues.*", order_by="issue.id", retry=QUICK)
async def follow_issue(event: Event, tx: Transaction) -> Ignore | None:
    """Keep the newest state of an issue: GitHub does not guarantee any order."""
    issue = event.json["issue"]
    if not await tx.newer("issue", issue["id"], issue["updated_at"]):
        return Ignore("older than what we have")
    await tx.execute(KEEP, f"issue {issue['id']}", issue["state"])
    await tx.execute(RECORD, event.id, event.dedup_key, "follow_issue", event.attempt)
    return None


@hook.on("github", "ping")
async def greet(_event: Event, _tx: Transaction) -> Ignore:
    """Ignore an event without an effect, and give the reason."""
    return Ignore("a ping needs no effect")


@hook.on("slack", "message", "app_mention", order_by="event.channel", filter={"not": EDIT}, retry=QUICK)
async def reply(event: Event, tx: Transaction) -> Retry | None:
    """Handle a channel's messages in order; retry later if the event requests it."""
    await tx.execute(RECORD, event.id, event.dedup_key, "reply", event.attempt)
    if event.json["event"].get("is_busy") and event.attempt == 1:
        return Retry(after=0.4, code="CHANNEL_BUSY")
    return None


@hook.on("slack", "message", order_by="event.message.ts", filter=EDIT, retry=QUICK)
async def follow_message(event: Event, tx: Transaction) -> Ignore | None:
    """Keep the newest text of a message, in whatever order its edits arrive."""
    edit = event.json["event"]
    key = f"{edit['channel']} {edit['message']['ts']}"
    if not await tx.newer("message", key, edit["event_ts"]):
        return Ignore("older than what we have")
    await tx.execute(KEEP, f"message {key}", edit["message"]["text"])
    await tx.execute(RECORD, event.id, event.dedup_key, "follow_message", event.attempt)
    return None


@hook.on("reports", "report.*", retry=QUICK)
async def file_report(event: Event, tx: Transaction) -> Dead | None:
    """File a report; a report without pages is dead-lettered, because retries cannot fix it."""
    await tx.execute(RECORD, event.id, event.dedup_key, "file_report", event.attempt)
    if not event.json["data"]["pages"]:
        return Dead("EMPTY_REPORT", "the report has no pages")
    return None


def send_mail(subject: str) -> str:
    """Simulate an e-mail by writing one line to the mailbox, and return the message's id."""
    message_id = str(uuid.uuid4())
    if mailbox := os.environ.get(MAILBOX):
        with Path(mailbox).open("a", encoding="utf-8") as file:
            file.write(f"{subject} {message_id}\n")
    return message_id
