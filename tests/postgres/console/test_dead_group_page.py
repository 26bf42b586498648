"""The page of a group of dead letters: the keys of their events and the newest traceback are in it."""

from tests.postgres.db.test_integrity import Store
from tests.postgres.operating.test_operations import mark_dead
from tests.postgres.portal_client import open_console


async def test_a_group_shows_keys_and_the_newest_traceback(db):
    store = Store(db)
    keys = await mark_dead(store, "order-1", "order-2")
    await db.execute(
        "update boathook.attempt set traceback = 'Traceback: line 7 of shop.py' where event_id = $1", keys[-1][0]
    )
    async with open_console(db) as console:
        anna = await console.operator()
        page = await anna.get_page("/console/dead")
        group = page.partition("/console/dead/groups/")[2].partition('"')[0]
        page = await anna.get_page(f"/console/dead/groups/{group}")
    assert "order-1" in page
    assert "order-2" in page
    assert "line 7 of shop.py" in page
