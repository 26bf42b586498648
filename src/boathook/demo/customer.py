"""The demo's customer: an application whose endpoints are told of every order, and the customer's record of it.

And the reader, who may look at all that on the console.
"""

import secrets
from collections.abc import Iterator
from typing import Final

from boathook import config
from boathook.db.database import Database
from boathook.db.secret_box import open_secret_box
from boathook.demo.folder import Folder
from boathook.demo.handlers import APPLICATION
from boathook.demo.receiver import FLAKY, FLAKY_FAILURES, Receiver
from boathook.domain.roles import Role
from boathook.handlers.outbox import Outbox, message_dedup_days
from boathook.service import applications, endpoint_secrets, endpoints, operators
from boathook.service.unit_of_work import AppContext

OPERATOR_NAME: Final = "demo"
"""Whoever runs the demo, to the console."""
_QUICK: Final = (0.5, 1.0, 2.0, 4.0)
"""Seconds between attempts, as nobody waits for hours in a demo."""


async def set_up(database: Database, folder: Folder, receiver: Receiver) -> dict[str, str]:
    """Make the customer's application and an endpoint for each of their addresses; return the recipients by address."""
    recipients = {}
    async with _app_context(database, folder).work(actor="demo") as work:
        new = applications.NewApplication(name="A customer of the shop", uid=APPLICATION)
        application = await applications.create(work, new)
        for path, record in receiver.records.items():
            made = await endpoints.create(
                work, application, endpoints.NewEndpoint(url=receiver.url(path), retry=_QUICK)
            )
            record.secret = await endpoint_secrets.get_secret(work, application, made.shown_id)
            recipients[path] = made.recipient
    return recipients


async def create_operator(database: Database, folder: Folder) -> str:
    """Let the reader sign in to the console, and return their password."""
    password = secrets.token_urlsafe(12)
    async with _app_context(database, folder).work(actor="demo") as work:
        await operators.create(work, OPERATOR_NAME, Role.ADMIN, password)
    return password


def _app_context(database: Database, folder: Folder) -> AppContext:
    settings = config.load(folder.configuration, {"server.data_dir": str(folder.data)})
    return AppContext(
        settings, database, open_secret_box(settings), Outbox(memory_days=message_dedup_days(settings.retention))
    )


def compare(receiver: Receiver, sent: dict[str, set[str]]) -> Iterator[str]:
    """Yield one sentence for everything in which the customer's record and the store do not agree.

    Args:
        receiver: the customer's server.
        sent: ids of the messages that the store says were delivered, by the customer's address.
    """
    for path, record in receiver.records.items():
        delivered = sent.get(path, set())
        if record.forged:
            yield f"{record.forged} requests to {path} had a signature that does not hold"
        for message in sorted(delivered - record.taken.keys()):
            yield f"{message} is delivered to {path}, says the store, but never came"
        for message in sorted(record.taken.keys() - delivered):
            yield f"{message} came to {path}, but is not recorded as delivered"
        for message, number in record.taken.items():
            if number > 1:
                yield f"{message} was delivered to {path} {number} times"
    if receiver.records[FLAKY].taken and receiver.records[FLAKY].unavailable_count != FLAKY_FAILURES:
        yield f"{FLAKY} should have turned {FLAKY_FAILURES} requests away first"
