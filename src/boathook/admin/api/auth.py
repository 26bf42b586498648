"""Who calls: the bearer token, looked up with each request, so that a revoked one is refused at once."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

from boathook.admin.api.errors import ApiError
from boathook.admin.keys import hash_token
from boathook.domain import ids
from boathook.journal import api_keys
from boathook.journal.api_keys import Key
from boathook.journal.database import Connection


class Capability(StrEnum):
    """What a visitor of the portal may do; who has any of them may look at all but secrets."""

    VIEW_BASE = "ViewBase"
    VIEW_ENDPOINT_SECRET = "ViewEndpointSecret"  # noqa: S105 - the API's word, not a secret
    MANAGE_ENDPOINT_SECRET = "ManageEndpointSecret"  # noqa: S105 - the same
    MANAGE_TRANSFORMATIONS = "ManageTransformations"
    CREATE_ATTEMPTS = "CreateAttempts"
    MANAGE_ENDPOINT = "ManageEndpoint"


@dataclass(frozen=True, slots=True)
class Principal:
    """Who calls, and what they may do."""

    key_id: UUID
    organization: str
    application_id: UUID | None = None
    """The one application they may see; None is all of the organization's."""
    feature_flags: frozenset[str] = frozenset()
    capabilities: frozenset[str] | None = None
    """What they may do; None is everything."""
    is_portal: bool = False

    @property
    def actor(self) -> str:
        """Who acts, for the audit."""
        return f"api:{ids.show(ids.API_KEY, self.key_id)}"

    def may(self, capability: Capability) -> bool:
        """Return whether they may do this."""
        return self.capabilities is None or capability in self.capabilities or capability is Capability.VIEW_BASE


async def authenticate(connection: Connection, headers: Mapping[str, str]) -> Principal:
    """Return who calls. Raises ApiError 401 without a valid bearer token."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    token = token.strip()
    key = await api_keys.find(connection, hash_token(token)) if scheme.lower() == "bearer" and token else None
    if key is None:
        raise ApiError(401, "authentication_failed", "Invalid token", {"www-authenticate": "Bearer"})
    return principal_of(key)


def principal_of(key: Key) -> Principal:
    """Return who shows the token of a valid key."""
    return Principal(
        key_id=key.id,
        organization=key.organization,
        application_id=key.application_id,
        feature_flags=frozenset(key.feature_flags or ()),
        capabilities=None if key.capabilities is None else frozenset(key.capabilities),
        is_portal=key.is_portal,
    )


def refused() -> ApiError:
    """Return the error for a token that does not allow this."""
    return ApiError(403, "insufficient access", "this token does not allow it")
