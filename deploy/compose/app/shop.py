"""Your handlers; this one writes down each payment."""

from boathook import Boathook, Event, Transaction

hook = Boathook()


@hook.on("stripe", "payment_intent.succeeded")
async def record_payment(event: Event, tx: Transaction) -> None:
    """Keep the payment."""
    payment = event.json["data"]["object"]
    await tx.execute("create table if not exists payment (id text primary key, amount bigint)")
    await tx.execute("insert into payment values ($1, $2)", payment["id"], payment["amount"])
