"""The rules of a message's fields: each way of publishing refuses the same values, at the same field and in one text."""

import html
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from boathook import Boathook
from boathook.db.database import Database
from boathook.db.delivery_commands import AuditContext
from boathook.db.route_registry import register
from boathook.domain.errors import InvalidMessage
from boathook.domain.messages import Message
from boathook.domain.model import Accepted, Route
from boathook.handlers.outbox import Outbox
from boathook.service.operating import operations
from boathook.service.unit_of_work import AppContext
from tests.endpoint_factory import add_application, publish
from tests.postgres.api_client import ApiClient, make_token
from tests.postgres.portal_client import PageClient, open_console

FORM_NAMES = {"type": "eventType", "id": "eventId", "deliver_at": "deliverAt"}
VALID: dict[str, Any] = {"type": "invoice.paid", "payload": {"n": 1}}
LATE = datetime.now(UTC) + timedelta(days=2)
Problem = tuple[str, str]
"""A field, by its name in the API, and what is wrong with it."""


@dataclass
class World:
    """The ways to publish a message to one application."""

    context: AppContext
    api: ApiClient
    anna: PageClient
    home: str

    async def plain(self, fields: dict[str, Any]) -> Problem:
        """Publish over the API as fast as it can."""
        return await self._ask("/app/acme/msg", fields)

    async def whole(self, fields: dict[str, Any]) -> Problem:
        """Publish over the API with a field that the fast path does not read."""
        return await self._ask("/app/acme/msg", {"deliver_at": datetime.now(UTC)} | fields)

    async def _ask(self, path: str, fields: dict[str, Any]) -> Problem:
        body = {FORM_NAMES.get(name, name): value for name, value in fields.items()}
        if isinstance(body.get("deliverAt"), datetime):
            body["deliverAt"] = body["deliverAt"].isoformat()
        (problem,) = (await self.api.ask(422, "POST", path, body))["detail"]
        assert problem["loc"][0] == "body"
        return problem["loc"][1], problem["msg"]

    async def form(self, fields: dict[str, Any]) -> Problem:
        """Publish in the console."""
        values = {FORM_NAMES.get(name, name): value for name, value in fields.items()}
        values["payload"] = '{"n": 1}' if values["payload"] == {"n": 1} else values["payload"]
        values |= {name: " ".join(values[name]) for name in ("channels", "tags") if name in values}
        path = f"{self.home}/publish"
        page = (await self.anna.submit_form(path, values, on=path, status=400)).text
        (problem,) = re.findall(r'id="f-(\w+)-hint" class="hint"><strong>(.*?)</strong>', page)
        return problem[0], html.unescape(problem[1]).strip()

    async def command(self, fields: dict[str, Any]) -> Problem:
        """Publish by `boathook send`."""
        payload = fields["payload"]
        body = payload.encode() if isinstance(payload, str) else b'{"n":1}'
        message = Message(**fields | {"application": "acme", "payload": body})
        return await _refused(
            operations.send(self.context.database, self.context.settings, AuditContext(actor="test"), message)
        )

    async def handler(self, fields: dict[str, Any]) -> Problem:
        """Publish as a handler does."""
        async with self.context.database.transaction() as connection:
            return await _refused(Boathook().publish(connection, application="acme", **fields))


async def _refused(publishing: Awaitable[object]) -> Problem:
    with pytest.raises(InvalidMessage) as caught:
        await publishing
    return FORM_NAMES.get(caught.value.field, caught.value.field), caught.value.reason


@pytest.fixture
async def world(db: Database) -> AsyncIterator[World]:
    async with open_console(db) as console:
        anna = await console.operator()
        form = {"name": "Acme", "uid": "acme"}
        answer = await anna.submit_form("/console/applications", form, on="/console/applications/new")
        async with ApiClient(console.context, await make_token(console.context)) as api:
            yield World(console.context, api, anna, str(answer.headers["location"]))


async def stored(db: Database) -> int:
    return await db.fetchval("select count(*) from boathook.event")


TYPE = "an event type is 1 to 256 letters, digits, - _ and ."
ID = "write 1 to 512 printable characters"
WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"type": "a b"}, "eventType", TYPE),
    ({"type": "orders/create"}, "eventType", TYPE),
    ({"type": "a\x07b"}, "eventType", TYPE),
    ({"type": "a" * 257}, "eventType", TYPE),
    ({"type": ".."}, "eventType", "it must not be '..', which no path can end in; add another character"),
    ({"id": "a\x07b"}, "eventId", ID),
    ({"id": "a" * 513}, "eventId", ID),
    ({"id": "msg_1"}, "eventId", "it must not start with msg_, as ids do"),
    ({"id": "."}, "eventId", "it must not be '.', which no path can end in; add another character"),
    ({"channels": ["a/b"]}, "channels", "a channel is 1 to 128 letters, digits, - _ . : and +; not 'a/b'"),
    ({"channels": [str(n) for n in range(11)]}, "channels", "write 1 to 10 of them"),
    ({"tags": ["ü"]}, "tags", r"a tag is 1 to 128 letters, digits, - _ . / \ and #; not 'ü'"),
    ({"tags": list("abcdef")}, "tags", "write 1 to 5 of them"),
]
WAYS = ["plain", "whole", "form", "command", "handler"]


@pytest.mark.parametrize("way", WAYS)
async def test_a_wrong_value_is_refused_alike(world: World, db: Database, way: str) -> None:
    ask: Callable[[dict[str, Any]], Awaitable[Problem]] = getattr(world, way)
    answers = {str(wrong): await ask(VALID | wrong) for wrong, _, _ in WRONG}
    assert answers == {str(wrong): (field, text) for wrong, field, text in WRONG}
    assert await stored(db) == 0


async def test_clients_publish_a_day_ahead_at_most(world: World, db: Database) -> None:
    answer = await world.whole(VALID | {"deliver_at": LATE})
    assert answer == ("deliverAt", "write a time at most 24 hours ahead")
    assert await stored(db) == 0
    assert isinstance(await publish(db, Outbox(), "acme", deliver_at=LATE), Accepted)


@pytest.mark.parametrize("way", ["plain", "whole", "form", "command"])
async def test_a_payload_is_an_object(world: World, db: Database, way: str) -> None:
    payload: Any = [1] if way in {"plain", "whole"} else "[1]"
    assert await getattr(world, way)(VALID | {"payload": payload}) == ("payload", "write a JSON object")
    assert await stored(db) == 0


@pytest.mark.parametrize("path", ["/app/acme/msg/precheck/active", "/app/acme/endpoint/{}/send-example"])
async def test_what_names_a_type_has_its_rule(world: World, path: str) -> None:
    made = await world.api.ask(201, "POST", "/app/acme/endpoint", {"url": "http://127.0.0.1:18080/hook"})
    assert await world._ask(path.format(made["id"]), {"type": "a b"}) == ("eventType", TYPE)


@pytest.mark.parametrize("more", [{}, {"deliverAt": None}], ids=["plain", "whole"])
async def test_the_api_takes_the_ids_that_handlers_give(world: World, db: Database, more: dict[str, Any]) -> None:
    first = await publish(db, Outbox(), "acme", id="order:1/ü", payload={})
    body = {"eventType": "invoice.paid", "payload": {}, "eventId": "order:1/ü"} | more
    answer = await world.api.ask(409, "POST", "/app/acme/msg", body)
    assert answer == {"code": "conflict", "detail": "a message of this application has the eventId order:1/ü already"}
    assert isinstance(first, Accepted)
    assert (await world.api.ask(202, "POST", "/app/acme/msg", body | {"eventId": "order:2"}))["eventId"] == "order:2"


async def test_a_name_that_only_handlers_have_takes_any_printable_values(db: Database) -> None:
    await register(db, "tests", [Route(recipient="handler:step", app="tests", application="steps")])
    free = {"type": "orders/create", "id": "msg_of:" + "x" * 600}
    assert isinstance(await publish(db, Outbox(), "steps", **free), Accepted)
    for field in ("type", "id"):
        for text in ("", "a\x00b", 5):
            with pytest.raises(InvalidMessage, match=f"^{field}: write a text without control characters"):
                await publish(db, Outbox(), "steps", **{field: text})


async def test_a_message_that_was_accepted_is_not_refused_later(db: Database) -> None:
    await add_application(db, "acme")
    old = {"type": "orders/create", "id": "x" * 600}
    with pytest.raises(InvalidMessage, match=r"^type: "):
        await publish(db, Outbox(), "acme", **old)
    assert isinstance(await publish(db, Outbox(), "acme", **old, is_accepted=True), Accepted)
