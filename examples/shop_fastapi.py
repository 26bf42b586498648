"""A FastAPI shop that learns of payments from Stripe and publishes its orders: `uvicorn shop_fastapi:app`."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException
from pydantic import BaseModel
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from boathook import Boathook, Dead, Event
from boathook.fastapi import Webhooks
from boathook.handlers.sessions import sqlalchemy_async

hook = Boathook()
webhooks = Webhooks()
engine = create_async_engine(os.environ["SHOP_DATABASE_URL"].replace("postgresql://", "postgresql+asyncpg://"))
sessions = async_sessionmaker(engine, expire_on_commit=False)


class Base(DeclarativeBase):
    """The tables."""


class Order(Base):
    """An order of a customer."""

    __tablename__ = "shop_order"
    id: Mapped[str] = mapped_column(primary_key=True)
    amount: Mapped[int]
    is_paid: Mapped[bool] = mapped_column(default=False)


@hook.on("stripe", "payment_intent.succeeded", session=sqlalchemy_async(sessions))
async def mark_paid(event: Event, session: AsyncSession) -> Dead | None:
    """Mark an order as paid, in the transaction that completes the delivery."""
    order = await session.get(Order, event.json["data"]["object"]["metadata"]["order"])
    if order is None:
        return Dead("NO_ORDER", "a payment for an order that does not exist")
    order.is_paid = True
    return None


@asynccontextmanager
async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
    """Create the tables."""
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    yield
    await engine.dispose()


async def open_session() -> AsyncIterator[AsyncSession]:
    """Open the session of one request."""
    async with sessions() as session:
        yield session


Session = Annotated[AsyncSession, Depends(open_session)]
Publisher = Annotated[Boathook, Depends(webhooks.publisher)]
app = FastAPI(lifespan=lifespan)
app.include_router(webhooks.router)


class NewOrder(BaseModel):
    """The body of a request for an order."""

    id: str
    amount: int


@app.post("/orders", status_code=201)
async def create_order(order: NewOrder, session: Session, publisher: Publisher) -> NewOrder:
    """Store an order and publish it: customers hear of exactly the orders that are committed."""
    try:
        async with session.begin():
            session.add(Order(id=order.id, amount=order.amount))
            await publisher.publish(session, application="acme", type="order.created", payload=order.model_dump())
    except IntegrityError:
        raise HTTPException(409, f"there is an order {order.id} already") from None
    return order


@app.get("/orders/{id}")
async def show_order(id: str, session: Session) -> dict[str, object]:
    """Show an order."""
    order = await session.get(Order, id)
    if order is None:
        raise HTTPException(404, f"there is no order {id}")
    return {"id": order.id, "amount": order.amount, "is_paid": order.is_paid}
