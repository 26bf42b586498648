"""A Flask shop behind boathook, which learns of payments from Stripe: `boathook serve --app shop_flask:hook`."""

import os

from a2wsgi import WSGIMiddleware
from flask import Flask, abort, request
from sqlalchemy import create_engine
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from boathook import Boathook, Event
from boathook.handlers.sessions import sqlalchemy_sync

hook = Boathook()
app = Flask(__name__)
engine = create_engine(os.environ["SHOP_DATABASE_URL"].replace("postgresql://", "postgresql+psycopg://"))
sessions = sessionmaker(engine)


class Base(DeclarativeBase):
    """The tables; `python -c "import shop_flask as s; s.Base.metadata.create_all(s.engine)"` creates them."""


class Order(Base):
    """An order of a customer."""

    __tablename__ = "shop_order"
    id: Mapped[str] = mapped_column(primary_key=True)
    amount: Mapped[int]
    is_paid: Mapped[bool] = mapped_column(default=False)


@hook.on("stripe", "payment_intent.succeeded", session=sqlalchemy_sync(sessions))
def mark_paid(event: Event, session: Session) -> None:
    """Mark an order as paid, in the transaction that completes the delivery."""
    session.get_one(Order, event.json["data"]["object"]["metadata"]["order"]).is_paid = True


@app.post("/orders")
def create_order() -> tuple[dict[str, object], int]:
    """Store an order and publish it: customers hear of exactly the orders that are committed."""
    order = request.get_json()
    try:
        with sessions.begin() as session:
            session.add(Order(id=order["id"], amount=order["amount"]))
            hook.publish_sync(session, application="acme", type="order.created", payload=order)
    except IntegrityError:
        abort(409, f"there is an order {order['id']} already")
    return order, 201


@app.get("/orders/<id>")
def show_order(id: str) -> dict[str, object]:
    """Show an order."""
    with sessions() as session:
        order = session.get(Order, id)
        if order is None:
            abort(404, f"there is no order {id}")
        return {"id": order.id, "amount": order.amount, "is_paid": order.is_paid}


hook.mount("/", WSGIMiddleware(app, workers=10), is_open=True)
