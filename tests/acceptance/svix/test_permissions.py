"""Each route of the API, console and portal enforces the table of permissions."""

import json
import secrets
import uuid
from dataclasses import dataclass

import httpx
import psycopg
import pytest

from boathook.domain.model import Role
from boathook.service.access.authorization import ACCESS_RULES, Capability, Permission
from boathook.service.access.keys import hash_token
from tests.acceptance.svix.receiver import Answer, Receiver
from tests.acceptance.svix.server import Application, BoathookServer, unique_name
from tests.permission_matrix import (
    TOKENS,
    Ask,
    api_asks,
    client_with,
    console_asks,
    is_covered,
    is_granted,
    portal_asks,
    walk,
    wrong,
)


@dataclass(frozen=True, slots=True)
class Shop:
    """An application with an endpoint that has custom headers, and a message that was sent there."""

    application: Application
    endpoint: str
    message: str
    attempt: str
    secret: str
    """The secret that signs the endpoint's messages."""
    password: str
    """The credential sent with each message; it is never shown again."""
    canaries: tuple[str, ...]
    """The values of the endpoint's custom headers."""

    def fill(self, path: str) -> str:
        """Return a route's path with this shop's ids."""
        values = {
            "app_id": self.application.id, "application": self.application.id, "endpoint_id": self.endpoint,
            "endpoint": self.endpoint, "msg_id": self.message, "message": self.message, "attempt_id": self.attempt,
            "attempt": self.attempt, "event_type_name": "invoice.paid", "source_name": "nothing", "source": "nothing", "secret": "sec_none", "name": "nothing", "kind": "csv",
            "provider": "stripe", "field": "type", "handler": "none", "app": "none", "group": uuid.UUID(int=0).hex, "task_id": "qtask_none", "task": "qtask_none",
            "id": self.message.replace("msg_", "evt_"), "event_id": self.message,
            "delivery_id": f"{self.message.replace('msg_', 'dlv_')}_0", "rejection_id": "rej_none", "conflict_id": "cfl_none",
            "job_id": "qtask_none", "channel": "none",
        }  # fmt: skip
        return path.replace(":path}", "}").format(**values)


def open_shop(server: BoathookServer, receiver: Receiver) -> Shop:
    canaries = tuple(f"canary-{secrets.token_hex(8)}" for _ in range(2))
    application = server.application()
    mailbox = receiver.mailbox(Answer(echo=True))
    headers, password = {"X-Shop-Password": canaries[0], "X-Shop": canaries[1]}, f"canary-{secrets.token_hex(8)}"
    auth = {"basic": {"username": "shop", "password": password}}
    endpoint = application.endpoint(mailbox, headers=headers, auth=auth)
    message = application.send()
    (attempt, *_) = application.wait_attempts(endpoint, 1)
    secret = application.secret(endpoint)
    return Shop(application, endpoint["id"], message, attempt["id"], secret, password, canaries)


def token_for(server: BoathookServer, application: Application, kind: str) -> str:
    """Return the token of a holder of this kind."""
    match kind:
        case "nobody":
            return ""
        case "organization":
            return server.token
        case "application":
            flags = ("--scope", "application", "--application", application.id, "--json")
            return str(json.loads(server.running.cli("keys", "create", *flags).stdout)["token"])
    granted = {"portal": None, "read-only": [Capability.VIEW_BASE]}.get(kind, [kind])
    return str(application.api.post(f"/auth/app-portal-access/{application.id}", {"capabilities": granted})["token"])


def session_for(server: BoathookServer, role: str) -> str:
    """Return the session of a new operator."""
    session = secrets.token_urlsafe(32)
    with psycopg.connect(server.running.database_url, autocommit=True) as connection:
        connection.execute(
            "with made as (insert into boathook.operator (id, name, role) values (%s, %s, %s) returning id)"
            " insert into boathook.operator_session (token_sha256, operator_id, expires_at, client_address, user_agent)"
            " select %s, id, now() + interval '1 hour', '', '' from made",
            (uuid.uuid4(), unique_name(), role, hash_token(session)),
        )
    return session


@pytest.fixture
def shop(server: BoathookServer, receiver: Receiver) -> Shop:
    return open_shop(server, receiver)


@pytest.fixture(scope="module")
def shared_shop(server: BoathookServer, receiver: Receiver) -> Shop:
    """A shop that no test of this module changes."""
    return open_shop(server, receiver)


@pytest.mark.parametrize("kind", TOKENS)
async def test_the_api_enforces_the_permissions_of_each_token(server: BoathookServer, shop: Shop, kind: str):
    client = client_with(server.base, token_for(server, shop.application, kind))
    found = await walk(client, api_asks(), shop.fill)
    assert wrong(found, {401, 403}, lambda rule: is_granted(rule, kind)) == []


@pytest.mark.parametrize("kind", TOKENS[2:])
async def test_another_applications_token_reaches_nothing(server: BoathookServer, shared_shop: Shop, kind: str):
    asks = [one for one in api_asks() if "{app_id}" in one.path]
    client = client_with(server.base, token_for(server, server.application(), kind))
    assert wrong(await walk(client, asks, shared_shop.fill), {403, 404}, lambda _rule: False) == []


@pytest.mark.parametrize("role", Role)
async def test_the_console_enforces_the_permissions_of_each_role(server: BoathookServer, shop: Shop, role: str):
    client = client_with(server.base, session_for(server, role), "boathook")
    found = await walk(client, console_asks(), shop.fill)
    assert wrong(found, {401, 403}, lambda rule: is_covered(rule, role)) == []


async def test_the_console_redirects_visitors_to_sign_in(server: BoathookServer, shared_shop: Shop):
    found = await walk(client_with(server.base, "nobody", "boathook"), console_asks(), shared_shop.fill)
    assert set(found.values()) == {303}


@pytest.mark.parametrize("kind", TOKENS)
async def test_the_portal_enforces_the_permissions_of_each_token(server: BoathookServer, shop: Shop, kind: str):
    client = client_with(server.base, token_for(server, shop.application, kind) or "none", "boathook-portal")
    found = await walk(client, portal_asks(), shop.fill)
    has_a_link = kind not in {"nobody", "organization", "application"}
    assert wrong(found, {401, 403}, lambda rule: has_a_link and is_granted(rule, kind)) == []


async def pages_of(client: httpx.AsyncClient, asks: list[Ask], shop: Shop) -> dict[str, str]:
    """Return the text of everything that can be read, with the attempt of the shop chosen where a page shows one."""
    paths = [shop.fill(one.path) for one in asks if one.method == "GET" and not one.path.endswith(("/live", "/listen"))]
    chosen = [f"{path}?delivery=0&attempt=1" for path in paths if path.endswith("/curl")]
    async with client:
        return {path: (await client.get(path)).text for path in (*paths, *chosen)}


def shown(texts: dict[str, str], *canaries: str) -> list[str]:
    """Return the position of one of these texts."""
    return [path for path, text in texts.items() if any(canary in text for canary in canaries)]


@pytest.mark.parametrize("kind", [kind for kind in TOKENS if kind != "nobody"])
async def test_secrets_are_read_only_with_their_permission(server: BoathookServer, shared_shop: Shop, kind: str):
    token = token_for(server, shared_shop.application, kind)
    texts = await pages_of(client_with(server.base, token), api_asks(), shared_shop)
    texts |= await pages_of(client_with(server.base, token, "boathook-portal"), portal_asks(), shared_shop)
    endpoint = f"/api/v1/app/{shared_shop.application.id}/endpoint/{shared_shop.endpoint}"
    for permission, path, canaries in (
        (Permission.ENDPOINT_HEADERS_VIEW, f"{endpoint}/headers", shared_shop.canaries),
        (Permission.ENDPOINT_SECRET_VIEW, f"{endpoint}/secret", (shared_shop.secret,)),
    ):
        assert ACCESS_RULES[permission].capability is Capability.VIEW_ENDPOINT_SECRET
        found = shown(texts, *canaries)
        assert (path in found) if is_granted(ACCESS_RULES[permission], kind) else found == []
    assert shown(texts, shared_shop.password) == []


@pytest.mark.parametrize("role", Role)
async def test_a_viewer_of_the_console_reads_no_secret(server: BoathookServer, shared_shop: Shop, role: str):
    client = client_with(server.base, session_for(server, role), "boathook")
    texts = await pages_of(client, console_asks(), shared_shop)
    assert shown(texts, *shared_shop.canaries) == [], "they are shown after a note in the audit only"
    assert shown(texts, shared_shop.secret, shared_shop.password) == []
