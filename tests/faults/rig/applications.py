"""Prepares an environment for messages that are published by the API; see `Publishing`."""

import asyncio

import httpx

from boathook.config import load
from boathook.db.database import Database
from boathook.db.secret_box import SecretBox
from boathook.handlers.outbox import Outbox
from boathook.service.caller import HOST
from boathook.service.catalogue import keys
from boathook.service.catalogue.keys import KeyScope, NewKey
from boathook.service.unit_of_work import AppContext
from tests.acceptance.conftest import wait_for_copy
from tests.faults.rig.environment import Environment
from tests.faults.rig.publishing import Publishing
from tests.sender_harness import KEY
from tests.support import until

_UID = "notes"


def open_publishing(env: Environment, *, place: str = "") -> Publishing:
    """Create an application after the hosts were started with the console's role, and wait until all can publish to it without PostgreSQL.

    Args:
        env: the environment; a receiver at ``/reports`` gets the reports of messages that are not stored.
        place: the path of a receiver that gets the messages; empty: nobody does.
    """
    token = asyncio.run(_make_token(env.server.url))
    with httpx.Client(
        base_url=f"{env.host.base}/api/v1", headers={"authorization": f"Bearer {token}"}, timeout=60
    ) as api:
        until(lambda: api.get("/app").is_success, timeout=60)
        _post(api, "/app", {"name": "Notes", "uid": _UID})
        if place:
            _post(api, f"/app/{_UID}/endpoint", {"url": f"{env.outside.receiver}{place}"})
        reports = {"url": f"{env.outside.receiver}/reports", "eventTypes": ["message.duplicate"]}
        _post(api, "/operational-webhook/endpoint", reports)
    for host in env.hosts:
        if "gateway" in host.roles.split(","):
            wait_for_copy(host, _UID)
    return Publishing(application=_UID, token=token)


def _post(api: httpx.Client, path: str, body: dict[str, object]) -> None:
    api.post(path, json=body).raise_for_status()


async def _make_token(url: str) -> str:
    settings = load(None, {"database.url": url})
    database = await Database.open(url, purpose="test", size=1)
    try:
        async with AppContext(settings, database, SecretBox([KEY]), Outbox()).work(actor="test", caller=HOST) as work:
            return (await keys.create(work, NewKey(scope=KeyScope.ORGANIZATION))).token
    finally:
        await database.close()
