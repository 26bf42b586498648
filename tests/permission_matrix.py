"""Walks routes of the API, console and portal, and compares their answers with the table of permissions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import httpx
from fastapi.routing import APIRoute

from boathook.api.app import ROUTERS
from boathook.domain.model import Role
from boathook.service.access.authorization import ACCESS_RULES, AccessRule, Capability, Permission, permission_of
from boathook_console.areas import AREAS
from boathook_pages.security import csrf_token
from boathook_portal.pages import all_pages

ALONE: Final = (
    Capability.MANAGE_ENDPOINT,
    Capability.VIEW_ENDPOINT_SECRET,
    Capability.MANAGE_ENDPOINT_SECRET,
    Capability.CREATE_ATTEMPTS,
)
TOKENS: Final = ("nobody", "organization", "application", "portal", "read-only", *ALONE)
"""Kinds of holders of a token; a capability stands for a portal token with that one alone."""
_LAST: Final = ("/auth/app/{app_id}/expire-all", "/portal/end", "/logout", "/sign-out-everywhere", "/sign-out")
"""Ends of paths that end tokens or sessions, among them the one in use."""
_METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")


@dataclass(frozen=True, slots=True)
class Ask:
    """A request to a route."""

    method: str
    path: str
    permission: Permission

    @property
    def rank(self) -> tuple[bool, bool, int, int]:
        """Its place in a walk: what removes comes behind what reads, the innermost first."""
        is_removing = self.method == "DELETE" or self.path.endswith(("/delete", "/disable"))
        return self.path.endswith(_LAST), is_removing, _METHODS.index(self.method), -self.path.count("/")


def api_asks() -> list[Ask]:
    """Return a request to each route of the API."""
    routes = (route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute))
    return [Ask(method, one.path, permission_of(one.endpoint)) for one in routes for method in one.methods or ()]


def console_asks() -> list[Ask]:
    """Return a request to each page and form of the console."""
    return [Ask(one.method, f"/console{one.path}", one.permission) for area in AREAS for one in area.entries]


def portal_asks() -> list[Ask]:
    """Return a request to each page and form of the portal."""
    return [Ask(one.method, f"/portal{one.path}", one.permission) for one in all_pages()]


def is_granted(rule: AccessRule, kind: str) -> bool:
    """Return the table's decision on a kind of token, read without the code under test."""
    if rule.is_public or kind == "nobody":
        return rule.is_public
    if kind == "organization":
        return rule.is_for_organization
    if rule.capability is None:
        return False
    return kind in {"application", "portal"} or rule.capability in {Capability.VIEW_BASE, kind}


def is_covered(rule: AccessRule, role: str) -> bool:
    """Return the table's decision on an operator, read without the code under test."""
    roles = [str(one) for one in Role]
    return rule.role is not None and roles.index(role) >= roles.index(str(rule.role))


def is_covered_for_token(rule: AccessRule, role: str) -> bool:
    """Return the table's decision on an operator's token, read without the code under test."""
    return rule.is_public or (is_covered(rule, role) and rule.is_for_operator_tokens)


def wrong(found: dict[Ask, int], refusals: set[int], is_allowed: Callable[[AccessRule], bool]) -> list[str]:
    """Return the requests whose response differs from the table."""
    assert len(found) > 20, "there are too few routes"
    return [
        f"{one.method} {one.path}: {status}, {one.permission}"
        for one, status in found.items()
        if (status in refusals) is is_allowed(ACCESS_RULES[one.permission]) or status >= 500
    ]


def client_with(base: str, token: str = "", cookie: str = "", transport: Any = None) -> httpx.AsyncClient:
    """Return a client that shows a token as a bearer, or as this cookie."""
    headers = {"authorization": f"Bearer {token}"} if token and not cookie else {"origin": base}
    cookies = {cookie: token} if token and cookie else {}
    return httpx.AsyncClient(base_url=base, headers=headers, cookies=cookies, timeout=300, transport=transport)


async def walk(client: httpx.AsyncClient, asks: Sequence[Ask], fill: Callable[[str], str]) -> dict[Ask, int]:
    """Return the status of each request; a form holds nothing but its proof, and an answer without end is left."""
    found = {}
    session = next(iter(client.cookies.values()), "")
    for one in sorted(asks, key=lambda one: one.rank):
        body: dict[str, Any] = {}
        if one.method not in {"GET", "HEAD", "DELETE"}:
            body = {"data": {"csrf": csrf_token(session)}} if session else {"json": {}}
        async with client.stream(one.method, fill(one.path), **body) as answer:
            found[one] = answer.status_code
    await client.aclose()
    return found
