"""Ids that are given by their beginning: the one they name, or a sentence that says what to write instead."""

from uuid import UUID

import pytest

from boathook.db.database import Database
from boathook.db.queries.id_prefixes import SQL
from boathook.db.queries.listings import ListFilter
from boathook.domain import ids
from boathook.domain.errors import BoathookError, InvalidValue, NotFound
from boathook.service import id_prefixes
from tests.postgres.message_factory import MessageFactory, ago

OLDEST, NEWEST = UUID(int=0), UUID(int=(1 << 128) - 1)


@pytest.fixture
async def factory(db: Database) -> MessageFactory:
    return await MessageFactory(db).open(uid="acme")


async def test_the_beginning_of_an_id_is_enough(factory: MessageFactory):
    endpoint = await factory.endpoint()
    for days in (400, 300):
        await factory.message(ago(days=days), recipients=(endpoint,))
    event = await factory.message(ago(days=200), recipients=(endpoint,))
    await factory.attempt(event, moment=ago(days=200), outcome="dead")
    db, shown = factory.db, ids.show(ids.EVENT, event)
    assert (
        await id_prefixes.find_ids(db, ids.EVENT, [shown, shown[:12], shown[:12].upper().replace("EVT", "evt")])
        == [event] * 3
    )
    assert await id_prefixes.find_ids(db, ids.EVENT, [ids.show(ids.MESSAGE, event)[:14]]) == [event]
    delivery = ids.show_delivery(event, 0)
    for text in (delivery, delivery[:-1], delivery[:-2], delivery[:12]):
        assert await id_prefixes.find_deliveries(db, [text]) == [(event, 0)]
    group = await db.fetchval(
        "select boathook.dead_group(recipient, code, error) from boathook.delivery where code <> ''"
    )
    assert await id_prefixes.find_ids(db, ids.DEAD_GROUP, [ids.show(ids.DEAD_GROUP, group)[:8]]) == [group]
    assert await id_prefixes.complete(db, ids.APPLICATION, factory.name[:20]) == factory.name
    assert await id_prefixes.complete(db, ids.APPLICATION, "acme") == "acme"
    assert await id_prefixes.complete_filter(
        db, ids.DELIVERY, ListFilter(application=factory.name[:20], after=delivery[:12])
    ) == ListFilter(application=factory.name, after=delivery)


async def test_the_beginning_of_several_ids_lists_them(factory: MessageFactory):
    endpoint = await factory.endpoint()
    moment = ago(days=1)
    event = ids.show(ids.EVENT, await factory.message(moment, recipients=(endpoint, endpoint)))
    others = [ids.show(ids.EVENT, await factory.message(moment)) for _ in range(6)]
    with pytest.raises(InvalidValue, match="several ids; use a longer one") as raised:
        await id_prefixes.find_ids(factory.db, ids.EVENT, [event[:10]])
    assert str(raised.value).endswith(" and more")
    assert sum(one in str(raised.value) for one in [event, *others]) == 5
    both = f"{event}_0, {event}_1".replace("evt_", "dlv_")
    with pytest.raises(InvalidValue, match=f"use a longer one: {both}$"):
        await id_prefixes.find_deliveries(factory.db, [event.replace("evt_", "dlv_")])


@pytest.mark.parametrize(
    ("prefix", "text", "error", "message"),
    [
        (ids.EVENT, "evt_7zzzzz", InvalidValue, "the first 4 or more of them, got 'evt_7zzzzz'"),
        (ids.EVENT, "evt_07zz", NotFound, "there is no event whose id begins with evt_07zz"),
        (
            ids.EVENT,
            "evt_01h",
            InvalidValue,
            "an id like evt_ and 27 letters and digits, or the first 4 or more of them",
        ),
        (ids.EVENT, "evt_01hu", InvalidValue, "got 'evt_01hu'"),
        (ids.EVENT, "dlv_01h455vb", InvalidValue, "the id of another kind: delivery"),
        (ids.DELIVERY, "evt_01h455vb", InvalidValue, "the id of another kind: event"),
        (ids.DELIVERY, "dlv_07zz", NotFound, "there is no delivery whose id begins with dlv_07zz"),
        (ids.DEAD_GROUP, "x", InvalidValue, "expected an id like grp_"),
    ],
)
async def test_other_texts_are_refused(db: Database, prefix: str, text: str, error: type[BoathookError], message: str):
    found = (
        id_prefixes.find_deliveries(db, [text]) if prefix == ids.DELIVERY else id_prefixes.find_ids(db, prefix, [text])
    )
    with pytest.raises(error) as raised:
        await found
    assert message in str(raised.value)


@pytest.mark.parametrize("organization", [None, "default"])
async def test_each_statement_reads_an_index_in_its_order(db: Database, organization: str | None):
    async with db.transaction() as connection:
        # Nothing is cheaper on a few rows than on many; a plan that is switched off is taken where there is no other.
        for method in ("seqscan", "bitmapscan", "sort"):
            await connection.execute(f"set local enable_{method} = off")
        for name, statement in SQL.items():
            assert await connection.fetch(statement, NEWEST, NEWEST, 5, organization) == []
            rows = await connection.fetch(f"explain {statement}", OLDEST, NEWEST, 5, organization)
            plan = "\n".join(row[0] for row in rows)
            if organization is not None and "One-Time Filter: false" in plan:
                continue  # these belong to no organization
            assert "Index" in plan, name
            assert "Seq Scan" not in plan, name
            assert "Sort  (" not in plan, plan
